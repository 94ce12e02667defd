"""
# Steps: masking

From the loss of a uniform guess to masked batches: the first steps in `mlm.py`.
"""

from labml_bert.course.step import Mistake, Step

STEPS = (
    Step(
        name="mlm.py:masked_lm_loss",
        title="The loss",
        task="the mean of -log p over the labeled positions",
        chapter="idea",
        hints=(
            "`F.cross_entropy` computes -log p from logits. Which positions does it leave out, and what does "
            "it divide by? Read about its arguments `ignore_index` and `reduction`.",
            "Let `F.cross_entropy` return the sum, and divide by the number of labels yourself. The number "
            "is either counted in `labels` or passed as `num_items_in_batch`.",
            "Three lines: the count; the sum of the losses of `logits.float()`; the quotient, in which the "
            "count is at least 1.",
        ),
        mistakes=(
            Mistake(
                "mean over all positions",
                "total / count.clamp(min=1)",
                "total / labels.numel()",
                "You divide by the number of all positions. Only labeled positions count, so the loss must "
                "not change when somebody appends positions labeled -100.",
            ),
            Mistake(
                "0/0 without labels",
                "count.clamp(min=1)",
                "count",
                "Without any label, your loss is 0/0, which is NaN. One such batch can turn all weights into "
                "NaN. The loss of such a batch must be 0.",
            ),
            Mistake(
                "constant without labels",
                "return total / count.clamp(min=1)",
                "return total / count if count > 0 else torch.tensor(0.0)",
                "Without any label, your loss is a constant, so `backward` raises an exception. Compute it "
                "from the logits.",
            ),
            Mistake(
                "unlabeled positions learn token 0",
                "logits.float(), labels,",
                "logits.float(), labels.clamp(min=0),",
                "You treat the label -100 as token 0, so every unmasked position learns to predict token 0.",
            ),
            Mistake(
                "number of labels of the batch unused",
                " if num_items_in_batch is None else num_items_in_batch",
                "",
                "You ignore `num_items_in_batch`. If a batch is split into micro-batches, their losses must "
                "add up to the loss of the batch, so all are divided by the same number.",
            ),
            Mistake(
                "loss in bfloat16",
                "logits.float()",
                "logits",
                "For bfloat16 logits, your loss is in bfloat16, too, where numbers between 2 and 4 are 1/64 "
                "apart. Convert the logits before you compute the loss.",
            ),
            Mistake(
                "mean divided by the count",
                ', reduction="sum"',
                "",
                "You divide twice by the number of labels: `F.cross_entropy` returns a mean by default.",
            ),
        ),
    ),
    Step(
        name="mlm.py:masked_accuracy",
        title="The accuracy",
        task="the fraction of labeled positions where the largest logit is that of the label",
        chapter="idea",
        hints=(
            "The model predicts the token with the largest logit. Which dimension of `logits` are tokens?",
            "Compare `logits.argmax(-1)` with `labels`. No prediction is ever -100, so unlabeled positions "
            "never count as right. But they must not count in the denominator either.",
            "The denominator is the same as in the loss, with `num_items_in_batch` and at least 1.",
        ),
        mistakes=(
            Mistake(
                "fraction of all positions",
                "is_right.sum().float() / count.clamp(min=1)",
                "is_right.sum().float() / labels.numel()",
                "You divide by the number of all positions, but only labeled positions count.",
            ),
            Mistake(
                "0/0 without labels",
                "count.clamp(min=1)",
                "count",
                "Without any label, your accuracy is 0/0, which is NaN. It must be 0.",
            ),
            Mistake(
                "number of labels of the batch unused",
                " if num_items_in_batch is None else num_items_in_batch",
                "",
                "You ignore `num_items_in_batch`, the number of labels in the whole batch.",
            ),
            Mistake(
                "best position for each token",
                "logits.argmax(-1)",
                "logits.argmax(0)[: len(labels)]",
                "You take the largest logit of each token over the positions. Take the largest of each "
                "position over the tokens, which are the last dimension.",
            ),
        ),
    ),
    Step(
        name="mlm.py:TokenMasker.__post_init__",
        title="Special and ordinary tokens",
        task="is_special, a boolean for each token, and ordinary_ids, the ids of the others",
        chapter="masking",
        hints=(
            "`self.is_special` is a boolean tensor of shape `(V)`. Start with all False, and set the entries "
            "of the special tokens. Look at the docstrings of the fields: which token always counts?",
            "You can index a tensor with a list of ids: `tensor[[1, 2]] = True`.",
            "`nonzero()` of a boolean tensor returns the indices where it is true, as a matrix with one "
            "column. Flatten it.",
        ),
        mistakes=(
            Mistake(
                "[MASK] counts as ordinary",
                "[self.mask_token_id, *self.special_token_ids]",
                "[*self.special_token_ids]",
                "`[MASK]` counts as an ordinary token if it isn't among the `special_token_ids`. It must "
                "always count as special.",
            ),
            Mistake(
                "special tokens in ordinary_ids",
                "(~self.is_special)",
                "self.is_special",
                "`ordinary_ids` holds the special tokens. It must hold all others.",
            ),
            Mistake(
                "ordinary_ids is a matrix",
                ".nonzero().flatten()",
                ".nonzero()",
                "`ordinary_ids` is a matrix with one column. It must have one dimension, because it's "
                "indexed with random numbers.",
            ),
            Mistake(
                "a single ordinary token",
                ".nonzero().flatten()",
                ".nonzero().squeeze()",
                "With a single ordinary token, your `ordinary_ids` has no dimension, because `squeeze` "
                "removes every dimension of size 1. Remove only the last one.",
            ),
        ),
    ),
    Step(
        name="mlm.py:TokenMasker.choose",
        title="Which tokens are chosen",
        task="a boolean (B, T), true at the chosen tokens",
        chapter="masking",
        hints=(
            "Call `self.rand(is_candidate)` once, so that each token has a random number. With `word_ids`, "
            "all tokens of word w use the number at index w: look up `gather`, and clamp the -1.",
            "Without `max_predictions_per_seq`, the candidates with a number below `mlm_probability` are "
            "chosen. With it, each row has its own count: its number of candidates times the probability, "
            "rounded, then clamped to the range from 1 to the limit. Choose the candidates with the lowest "
            "numbers.",
            "The rank of a number in its row is `x.argsort(dim=1).argsort(dim=1)`. Give non-candidates a "
            "number above 1 first, so they rank last. With both options set, return the result of "
            "`self.choose_words(is_candidate, word_ids, draw, count)`.",
        ),
        mistakes=(
            Mistake(
                "other tokens are chosen too",
                "return is_candidate & (draw < self.mlm_probability)",
                "return draw < self.mlm_probability",
                "You choose tokens that aren't candidates, such as special tokens and padding.",
            ),
            Mistake(
                "the other 85%",
                "draw < self.mlm_probability",
                "draw > self.mlm_probability",
                "You choose 85% of the candidates, not 15%. A random number is below 0.15 in 15% of the "
                "cases.",
            ),
            Mistake(
                "words chosen in part",
                "draw.take_along_dim(word_ids.clamp(min=0), dim=1)",
                "draw",
                "You choose some tokens of a word and not the others. With `word_ids`, all tokens of a word "
                "must use the same random number.",
            ),
            Mistake(
                "word ids of the first row",
                "word_ids.clamp(min=0)",
                "word_ids[:1].clamp(min=0).expand_as(draw)",
                "You use the word ids of the first row for all rows. Each row has its own.",
            ),
            Mistake(
                "the first two words as one",
                "word_ids.clamp(min=0)",
                "word_ids.clamp(min=1)",
                "Your words 0 and 1 share a random number. Change the word id -1, and no other.",
            ),
            Mistake(
                "words chosen by their length",
                "word_ids, draw, count)",
                "word_ids, self.rand(is_candidate), count)",
                "With a limit, you choose long words more often than short ones. All tokens of a word must "
                "have the same number in `draw` when you call `choose_words`.",
            ),
            Mistake(
                "no limit at all",
                "if self.max_predictions_per_seq is None:",
                "if self.max_predictions_per_seq is None or word_ids is None:",
                "You ignore `max_predictions_per_seq`. With it, choose a fixed number of tokens in each row.",
            ),
            Mistake(
                "a token in a row without candidates",
                "return is_candidate & (rank < count[:, None])",
                "return rank < count[:, None]",
                "In a row without candidates, such as one that is all padding, you choose a token.",
            ),
            Mistake(
                "no token in a short row",
                "clamp(1, self.max_predictions_per_seq)",
                "clamp(0, self.max_predictions_per_seq)",
                "In a row with few candidates, 15% rounds to 0 tokens. Choose at least one.",
            ),
            Mistake(
                "rounded down",
                "count.round()",
                "count.floor()",
                "You round the number of tokens to choose down. Round it to the nearest whole number.",
            ),
            Mistake(
                "limit ignored",
                "clamp(1, self.max_predictions_per_seq)",
                "clamp(min=1)",
                "In a long row, you choose more tokens than `max_predictions_per_seq`.",
            ),
            Mistake(
                "15% of all tokens",
                "is_candidate.sum(1).float() * self.mlm_probability",
                "torch.ones_like(is_candidate).sum(1) * self.mlm_probability",
                "You choose 15% of all tokens in a row. It must be 15% of its candidates.",
            ),
            Mistake(
                "always 15%",
                "is_candidate.sum(1).float() * self.mlm_probability",
                "is_candidate.sum(1).float() * 0.15",
                "You always choose 15%. The probability is `self.mlm_probability`.",
            ),
            Mistake(
                "order used as rank",
                ".argsort(dim=1).argsort(dim=1)",
                ".argsort(dim=1)",
                "`argsort` says which token comes at each rank. You need the opposite, the rank of each "
                "token. How do you invert a permutation?",
            ),
            Mistake(
                "draws from another generator",
                "draw = self.rand(is_candidate)",
                "draw = torch.rand(is_candidate.shape)",
                "You draw from PyTorch's global generator, not from `self.generator`. Then the masks depend "
                "on everything else that draws random numbers. `self.rand` uses the right one.",
            ),
        ),
    ),
    Step(
        name="mlm.py:TokenMasker.__call__",
        title="Three cases: masked, random, unchanged",
        task="MaskedTokens(input_ids, labels), as in the docstring's table",
        chapter="masking",
        hints=(
            "First find the candidates: not special, not padding (if there's an `attention_mask`), and part "
            "of a word (if there are `word_ids`). Then `self.choose` chooses among them. The labels are the "
            "true tokens there, and -100 elsewhere.",
            "Draw one more random number for each token, with `self.rand(input_ids)`. Below "
            "`mask_replace_prob` the token becomes `[MASK]`. In the next interval, whose width is "
            "`random_replace_prob`, it becomes a random token. Above that it stays. One draw for all three "
            "keeps the cases apart.",
            "For random tokens, draw indices with `torch.randint(len(self.ordinary_ids), input_ids.shape, "
            "generator=self.generator)` and look them up in `self.ordinary_ids`. Build the result with "
            "`masked_fill` and `torch.where`, which don't change their input. Refuse ids outside 0 to V - 1 "
            "and a negative `attention_mask` with `ValueError`.",
        ),
        mistakes=(
            Mistake(
                "random tokens overwrite masks",
                "is_random = is_chosen & ~is_masked & (draw < self.mask_replace_prob + "
                "self.random_replace_prob)",
                "is_random = is_chosen & (self.rand(input_ids) < self.random_replace_prob)",
                "You get 72% masks, 10% random tokens and 18% unchanged ones, because random tokens "
                "overwrite masks. Let a single draw decide between the three cases.",
            ),
            Mistake(
                "independent draws",
                "is_masked = is_chosen & (draw < self.mask_replace_prob)  # (B, T)\n"
                "        is_random = is_chosen & ~is_masked & (draw < self.mask_replace_prob + "
                "self.random_replace_prob)",
                "is_random = is_chosen & (draw < self.random_replace_prob)\n"
                "        is_masked = is_chosen & ~is_random & (self.rand(input_ids) < 0.9)",
                "You get 81% masks, 10% random tokens and 9% unchanged ones: two independent draws overlap. "
                "Let a single draw decide between the three cases.",
            ),
            Mistake(
                "second draw for the rest",
                "~is_masked & (draw < self.mask_replace_prob + self.random_replace_prob)",
                "~is_masked & (self.rand(input_ids) < self.random_replace_prob)",
                "You get 80% masks, 2% random tokens and 18% unchanged ones, because your second draw is "
                "only for the tokens that the first one left. Let a single draw decide between the three "
                "cases.",
            ),
            Mistake(
                "second draw below the sum",
                "~is_masked & (draw <",
                "~is_masked & (self.rand(input_ids) <",
                "You get 80% masks, 18% random tokens and 2% unchanged ones, because you draw a second time."
                " Let a single draw decide between the three cases.",
            ),
            Mistake(
                "masks and random tokens overlap",
                "is_chosen & ~is_masked & (draw",
                "is_chosen & (draw",
                "Every number below 0.8 is also below 0.9, so all your masks become random tokens. The "
                "second case must leave out the first.",
            ),
            Mistake(
                "always 80% and 10%",
                "draw < self.mask_replace_prob + self.random_replace_prob",
                "draw < self.mask_replace_prob + 0.1",
                "You always use 10% random tokens. The probability is `self.random_replace_prob`.",
            ),
            Mistake(
                "special tokens as random tokens",
                "random_ids = ordinary_ids[index]",
                "random_ids = index",
                "Some of your random tokens are special tokens. Use the random numbers as indices into "
                "`ordinary_ids`.",
            ),
            Mistake(
                "padding is chosen",
                "is_candidate = is_candidate & attention_mask.bool()  # (B, T)",
                "pass",
                "You choose padding. A token whose `attention_mask` is 0 is no candidate.",
            ),
            Mistake(
                "special tokens are chosen",
                "~self.is_special.to(input_ids.device)[input_ids]",
                "torch.ones_like(input_ids).bool()",
                "You choose special tokens. Look up `self.is_special` for each token.",
            ),
            Mistake(
                "labels at all positions",
                "input_ids.long().masked_fill(~is_chosen, IGNORE)",
                "input_ids.long()",
                "Every position has a label, so the model is trained to copy the tokens that it sees. Only "
                "chosen positions have one; elsewhere the label is -100.",
            ),
            Mistake(
                "labels of the wrong type",
                "input_ids.long()",
                "input_ids",
                "Your labels have the type of `input_ids`. They must be int64, because `F.cross_entropy` "
                "needs that.",
            ),
            Mistake(
                "labels where nothing was chosen",
                "masked_fill(~is_chosen, IGNORE)",
                "masked_fill(is_chosen, IGNORE)",
                "You label the tokens that were not chosen, and ignore those that were.",
            ),
            Mistake(
                "input changed in place",
                "input_ids.masked_fill(is_masked",
                "input_ids.masked_fill_(is_masked",
                "You write into `input_ids`, so the caller's text is masked too. Make a new tensor.",
            ),
            Mistake(
                "empty batch refused",
                "not is_token.all()",
                "input_ids.min() < 0 or input_ids.max() >= self.vocab_size",
                "Your code fails on a batch without rows, because `min` and `max` need at least one number. "
                "`any` and `all` don't.",
            ),
            Mistake(
                "tokens outside of words are chosen",
                "is_candidate = is_candidate & (word_ids >= 0)  # (B, T)",
                "pass",
                "You choose tokens whose word id is -1. They belong to no word and are no candidates.",
            ),
        ),
    ),
)
