"""
# Steps: pairs and heads

Next sentence prediction, and the heads for fine-tuning: the steps in `nsp.py` and `heads.py`.
"""

from labml_bert.course.step import Mistake, Step

# The heads have this mistake in common.
INPUTS_DROPPED = Mistake(
    "inputs dropped",
    "self.bert(input_ids, **inputs)",
    "self.bert(input_ids)",
    "You don't pass `inputs` to the encoder, so it never sees the attention mask.",
)
GLOBAL_GENERATOR = (
    "You draw a random number without the argument `generator`, so the same seed gives you other pairs."
)
STEPS = (
    Step(
        name="nsp.py:PairMaker.elsewhere",
        title="A random second text",
        task="sentences of a different document, until they have `length` tokens",
        chapter="next-sentence",
        hints=(
            "Draw the number of a document other than `index`, and then the sentence to start with.",
            "To leave out one of n documents, draw from the n - 1 others: `generator.randrange(n - 1)`. If "
            "the number is `index` or more, add 1.",
            "Add whole sentences to a list of tokens until it has at least `length`, or the document ends. "
            "Add at least one sentence.",
        ),
        mistakes=(
            Mistake(
                "same document",
                "self.documents[other + (other >= index)]",
                "self.documents[other]",
                "Your random text can come from the document of the first text. Then it can be the very text "
                "that follows.",
            ),
            Mistake(
                "next document twice as likely",
                "other + (other >= index)",
                "other + (other == index)",
                "You move only the number `index` up by one. Then the document after it is drawn twice as "
                "often as the others, and the last document never.",
            ),
            Mistake(
                "another generator",
                "generator.randrange(len(self.documents) - 1)",
                "random.randrange(len(self.documents) - 1)",
                GLOBAL_GENERATOR,
            ),
            Mistake(
                "always the beginning",
                "document[generator.randrange(len(document)) :]",
                "document",
                "You always start with the first sentence of the document. Draw the sentence.",
            ),
            Mistake(
                "never the last sentence first",
                "generator.randrange(len(document))",
                "generator.randrange(max(1, len(document) - 1))",
                "You never start with the last sentence of a document.",
            ),
            Mistake(
                "too long",
                "if len(tokens) >= length:",
                "if len(tokens) > length:",
                "You add a sentence although there are already `length` tokens.",
            ),
            Mistake(
                "no sentence for length 0",
                "tokens.extend(sentence)\n            if len(tokens) >= length:\n                break",
                "if len(tokens) >= length:\n                break\n            tokens.extend(sentence)",
                "If `length` is 0 or less, your text is empty. `pairs_of` passes such a length if A is a "
                "long sentence. Return at least one sentence.",
            ),
            Mistake(
                "sentences cut",
                "return tokens",
                "return tokens[:length]",
                "You cut a sentence. Return whole sentences; another function cuts the pair to length.",
            ),
        ),
    ),
    Step(
        name="nsp.py:PairMaker.pairs_of",
        title="The pairs of a document",
        task="yield the pairs of one document",
        chapter="next-sentence",
        hints=(
            "Call `self.target_length(generator)` once. Collect sentences from `start` until they have that "
            "many tokens, and at least one sentence, or two if `lone_sentence_is_random` is false. That's a "
            "chunk.",
            "Cut the chunk after a random sentence: A is what comes before. B is random if nothing is left, "
            "or with the probability `random_next_prob`.",
            "A random B comes from `self.elsewhere(index, target - len(a), generator)`, and the next chunk "
            "starts right after A. Otherwise B is the rest of the chunk, and the next one starts after B. "
            "Yield `self.assemble(a, b, label, generator)`. If too few sentences are left, stop.",
        ),
        mistakes=(
            Mistake(
                "labels swapped",
                "generator), IS_RANDOM, a_end",
                "generator), IS_NEXT, a_end",
                "Your pairs with a random B have the label 0, which means that B follows A.",
            ),
            Mistake(
                "sentences lost",
                "IS_RANDOM, a_end",
                "IS_RANDOM, end",
                "You skip the sentences that a random B replaced. The next chunk must start with them.",
            ),
            Mistake(
                "sentences used twice",
                "IS_NEXT, end",
                "IS_NEXT, a_end",
                "You use sentences twice: the next chunk must start after B, because B was part of this one.",
            ),
            Mistake(
                "second text too long",
                "target - len(a)",
                "target",
                "You ask `elsewhere` for a text as long as the whole pair. B needs only the tokens that A "
                "leaves.",
            ),
            Mistake(
                "always random",
                "generator.random() < self.random_next_prob",
                "True",
                "All your pairs are random. The probability is `random_next_prob`.",
            ),
            Mistake(
                "another generator",
                "generator.random() < self.random_next_prob",
                "random.random() < self.random_next_prob",
                GLOBAL_GENERATOR,
            ),
            Mistake(
                "never a short pair",
                "self.target_length(generator)",
                "self.max_length - 3",
                "None of your pairs is short. `self.target_length(generator)` says how long they should be.",
            ),
            Mistake(
                "never random",
                "a_end == end or generator.random() < self.random_next_prob",
                "a_end == end",
                "B is only random if nothing is left for it. It must also be random with the probability "
                "`random_next_prob`.",
            ),
            Mistake(
                "lone sentence accepted",
                "fewest = 1 if self.lone_sentence_is_random else 2",
                "fewest = 1",
                "You ignore `lone_sentence_is_random`. If it's false, every chunk has at least two "
                "sentences.",
            ),
            Mistake(
                "always cut after the first sentence",
                "generator.randint(1, max(1, end - start - 1))",
                "1",
                "A is always one sentence. Cut the chunk after a random sentence.",
            ),
        ),
    ),
    Step(
        name="nsp.py:PairMaker.assemble",
        title="Cutting a pair to length",
        task="a SentencePair of at most max_length tokens",
        chapter="next-sentence",
        hints=(
            "While A and B have more than `max_length - 3` tokens together, remove one token from the longer "
            "side. If both have the same length, shorten either one.",
            "`generator.random() < 0.5` decides between the first token, `pop(0)`, and the last, `pop(-1)`. "
            "Work on copies: the caller still needs its lists.",
            "The pair is `[CLS] A [SEP] B [SEP]`. The token types are 0 up to and including the first "
            "`[SEP]`.",
        ),
        mistakes=(
            Mistake(
                "special tokens forgotten in the length",
                "self.max_length - 3",
                "self.max_length",
                "Your pairs are three tokens too long. `max_length` includes `[CLS]` and both `[SEP]`.",
            ),
            Mistake(
                "always cut at the end",
                "0 if generator.random() < 0.5 else -1",
                "-1",
                "You always remove the last token, so the model rarely sees how a text ends.",
            ),
            Mistake(
                "another generator",
                "generator.random() < 0.5",
                "random.random() < 0.5",
                GLOBAL_GENERATOR,
            ),
            Mistake(
                "always cut the second text",
                "first if len(first) > len(second) else second",
                "second",
                "You always shorten B. Shorten the longer of the two.",
            ),
            Mistake(
                "random text cut",
                "first if len(first) > len(second) else second",
                "first if generator.random() < 0.5 else second",
                "You shorten either text at random. Shorten the longer of the two.",
            ),
            Mistake(
                "first [SEP] has type 1",
                "[0] * len(first) + [1] * len(second)",
                "[0] * (len(first) - 1) + [1] * (len(second) + 1)",
                "Your first `[SEP]` has token type 1. It belongs to the first text.",
            ),
            Mistake(
                "no [SEP] at the end",
                "[*second, self.sep_token_id]",
                "[*second]",
                "Your pairs don't end with `[SEP]`.",
            ),
            Mistake(
                "the caller's list is cut",
                "first, second = list(a), list(b)",
                "first, second = a, b",
                "You cut the lists of the caller. Copy them first.",
            ),
        ),
    ),
    Step(
        name="nsp.py:collate",
        title="Pairs to tensors",
        task="the four tensors, padded to the longest pair",
        chapter="tensors",
        hints=(
            "Pad each list at its end to the length of the longest pair, and make one tensor of all rows.",
            "`input_ids` are padded with `pad_token_id`; the attention mask and the token types with 0.",
            "Start the mask with a 1 for each token. All tensors are int64, which `torch.tensor` makes of "
            "lists of ints.",
        ),
        mistakes=(
            Mistake(
                "no mask",
                "pad([[1] * len(pair.input_ids) for pair in pairs], 0)",
                "pad([[1] * len(pair.input_ids) for pair in pairs], 1)",
                "Your attention mask is 1 at padding. It must be 0.",
            ),
            Mistake(
                "mask of the ids",
                "pad([[1] * len(pair.input_ids) for pair in pairs], 0)",
                "(pad([pair.input_ids for pair in pairs], pad_token_id) != pad_token_id).long()",
                "Your attention mask is 0 at every `pad_token_id`, but a text can contain this id, too. The "
                "length of a pair says where its padding begins.",
            ),
            Mistake(
                "padded with 0",
                "pad([pair.input_ids for pair in pairs], pad_token_id)",
                "pad([pair.input_ids for pair in pairs], 0)",
                "You pad `input_ids` with 0. Use `pad_token_id`.",
            ),
            Mistake(
                "padding in the second text",
                "pad([pair.token_type_ids for pair in pairs], 0)",
                "pad([pair.token_type_ids for pair in pairs], 1)",
                "Your padding has token type 1. It must be 0.",
            ),
            Mistake(
                "padded at the front",
                "row + [value] * (T - len(row))",
                "[value] * (T - len(row)) + row",
                "You pad at the front. `[CLS]` must stay at position 0, so pad at the end.",
            ),
        ),
    ),
    Step(
        name="nsp.py:next_sentence_loss",
        title="The loss of pairs",
        task="the mean cross-entropy of the pairs",
        chapter="next-sentence",
        hints=(
            "It's the masked LM loss with two classes. Which label is ignored, and which isn't?",
            "Divide the sum of the losses by the number of labels that aren't -100, at least 1, or by "
            "`num_pairs_in_batch`.",
        ),
        mistakes=(
            Mistake(
                "label 0 ignored",
                'F.cross_entropy(logits.float(), labels, reduction="sum")',
                'F.cross_entropy(logits.float(), labels.masked_fill(labels == 0, -100), reduction="sum")',
                "You ignore the label 0, so the model never learns to recognize the next sentence. 0 is a "
                "class like 1.",
            ),
            Mistake(
                "label 0 not counted",
                "(labels != -100).sum()",
                "(labels > 0).sum()",
                "You divide by the number of labels above 0. The label 0 counts, too; only -100 doesn't.",
            ),
            Mistake(
                "only pairs with the label 1",
                "if num_pairs_in_batch is None:",
                "logits, labels = logits[labels > 0], labels[labels > 0]\n    if num_pairs_in_batch is None:",
                "You select the labels above 0, but 0 is a class like 1. Only -100 is ignored.",
            ),
            Mistake(
                "0/0 without labels",
                "(labels != -100).sum().clamp(min=1)",
                "(labels != -100).sum()",
                "Without any label, your loss is 0/0, which is NaN. It must be 0.",
            ),
            Mistake(
                "constant without labels",
                'return F.cross_entropy(logits.float(), labels, reduction="sum") / num_pairs_in_batch',
                'total = F.cross_entropy(logits.float(), labels, reduction="sum")\n'
                "    return total / num_pairs_in_batch if (labels != -100).any() else torch.tensor(0.0)",
                "Without any label, your loss is a constant, so `backward` raises an exception. Compute it "
                "from the logits.",
            ),
            Mistake(
                "mean over all pairs",
                "(labels != -100).sum().clamp(min=1)",
                "max(1, len(labels))",
                "You divide by the number of all pairs. Pairs labeled -100 don't count.",
            ),
            Mistake(
                "number of pairs of the batch unused",
                "if num_pairs_in_batch is None:",
                "if True:",
                "You ignore `num_pairs_in_batch`, so the losses of micro-batches don't add up.",
            ),
            Mistake(
                "loss in bfloat16",
                "logits.float()",
                "logits",
                "For bfloat16 logits, your loss is in bfloat16, too. Convert the logits first.",
            ),
        ),
    ),
    Step(
        name="heads.py:BertForSequenceClassification.forward",
        title="A head for texts",
        task="ClassifierOutput(loss, logits) from the pooled vector",
        chapter="heads",
        hints=(
            "The encoder is `self.bert`, and its output has a `pooler_output`, `(B, D)`.",
            "Apply `self.dropout` and then `self.classifier`. Return float32 logits, also under autocast.",
            "With labels, the loss is `F.cross_entropy` of logits and labels. Without, it's `None`.",
        ),
        mistakes=(
            Mistake(
                "not pooled",
                ".pooler_output",
                ".last_hidden_state[:, 0]",
                "You use the hidden state of `[CLS]`. Use the pooled vector, which has passed the pooler's "
                "dense layer and tanh.",
            ),
            Mistake(
                "no dropout",
                "self.classifier(self.dropout(pooled))",
                "self.classifier(pooled)",
                "The dropout before the classifier is missing.",
            ),
            INPUTS_DROPPED,
            Mistake(
                "pooled vector detached",
                "self.dropout(pooled)",
                "self.dropout(pooled.detach())",
                "You detach the pooled vector, so the encoder learns nothing from the loss.",
            ),
            Mistake(
                "no float32",
                ".float()",
                "",
                "Under autocast, your logits are bfloat16. Convert them to float32.",
            ),
        ),
    ),
    Step(
        name="heads.py:BertForTokenClassification.forward",
        title="A head for tokens",
        task="ClassifierOutput(loss, logits) from the vector of each token",
        chapter="heads",
        hints=(
            "The output of the encoder has a `last_hidden_state`, `(B, T, D)`. All tokens share the head.",
            "The loss is `masked_lm_loss`, with classes as the vocabulary. It wants logits `(M, K)` and "
            "labels `(M)`, so flatten both.",
        ),
        mistakes=(
            Mistake(
                "NaN without labels",
                "masked_lm_loss(logits.flatten(0, 1), labels.flatten())",
                "F.cross_entropy(logits.flatten(0, 1), labels.flatten())",
                "If no token has a label, your loss is NaN. `masked_lm_loss` gives 0 then.",
            ),
            Mistake(
                "no dropout",
                "self.classifier(self.dropout(hidden))",
                "self.classifier(hidden)",
                "The dropout before the classifier is missing.",
            ),
            INPUTS_DROPPED,
            Mistake(
                "encoder detached",
                "self.dropout(hidden)",
                "self.dropout(hidden.detach())",
                "You detach the hidden states, so the encoder learns nothing from the loss.",
            ),
            Mistake(
                "labels shifted",
                "labels.flatten())",
                "labels.roll(1, 1).flatten())",
                "Your labels are shifted by one token. Every token has its own label.",
            ),
        ),
        twins=("BertForQuestionAnswering.forward", "BertForMultipleChoice.forward"),
    ),
)
