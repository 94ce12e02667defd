"""
# Steps: the exercises of the chapters

Functions that answer an exercise for any numbers: the steps in `course/exercises.py`.
"""

from labml_bert.course.step import Mistake, Step

STEPS = (
    Step(
        name="course/exercises.py:loss_from_perplexity",
        title="From perplexity to loss",
        task="the logarithm of the perplexity, to base e and to base 2",
        chapter="idea",
        hints=(
            "The perplexity is e to the power of the loss in nats.",
            "One nat is 1 / ln 2 bits, so the second number is larger than the first.",
        ),
        mistakes=(
            Mistake("bits first", "nats, nats / log(2)", "nats / log(2), nats", "You return the bits first."),
            Mistake(
                "bits smaller than nats",
                "nats / log(2)",
                "nats * log(2)",
                "Your loss in bits is too small. A bit is less than a nat, so it takes more of them.",
            ),
            Mistake(
                "logarithm to base 10",
                "log(perplexity)",
                "log(perplexity) / log(10)",
                "You use the logarithm to base 10. A loss in nats is a natural logarithm.",
            ),
        ),
    ),
    Step(
        name="course/exercises.py:fractions_drawn_twice",
        title="Drawing twice",
        task="the fractions of [MASK], random and kept tokens after both draws",
        chapter="masking",
        hints=(
            "The second draw doesn't know about the first, so it also overwrites masked tokens.",
            "A token is still `[MASK]` at the end if the first draw chose it and the second didn't.",
        ),
        mistakes=(
            Mistake(
                "as if the cases excluded each other",
                "mask_prob * (1 - random_prob), random_prob, (1 - mask_prob) * (1 - random_prob)",
                "mask_prob, random_prob, 1 - mask_prob - random_prob",
                "You compute the fractions for one draw with three cases. With two draws, the second one "
                "also overwrites tokens that are masked.",
            ),
            Mistake(
                "the mask wins",
                "mask_prob * (1 - random_prob), random_prob,",
                "mask_prob, (1 - mask_prob) * random_prob,",
                "In your version, the random token never overwrites `[MASK]`. That's the next exercise.",
            ),
            Mistake(
                "kept too large",
                "(1 - mask_prob) * (1 - random_prob)",
                "1 - mask_prob",
                "Your fractions sum to more than 1. The second draw also replaces tokens that the "
                "first kept.",
            ),
        ),
    ),
    Step(
        name="course/exercises.py:fractions_if_the_mask_wins",
        title="The mask wins",
        task="the fractions of [MASK], random and kept tokens if [MASK] overwrites the random token",
        chapter="masking",
        hints=(
            "The first draw now decides alone which tokens are `[MASK]`.",
            "The second draw only matters for the tokens that the first one didn't mask.",
        ),
        mistakes=(
            Mistake(
                "random tokens win",
                "mask_prob, (1 - mask_prob) * random_prob,",
                "mask_prob * (1 - random_prob), random_prob,",
                "In your version, the random token overwrites `[MASK]`. That was the exercise before.",
            ),
            Mistake(
                "as if the cases excluded each other",
                "(1 - mask_prob) * random_prob, (1 - mask_prob) * (1 - random_prob)",
                "random_prob, 1 - mask_prob - random_prob",
                "You compute the fractions for one draw with three cases. With two draws, `[MASK]` "
                "overwrites some of the random tokens.",
            ),
            Mistake(
                "all random tokens overwritten",
                "(1 - mask_prob) * random_prob, (1 - mask_prob) * (1 - random_prob)",
                "0.0, 1 - mask_prob",
                "You have no random tokens. Some tokens that aren't masked still become random.",
            ),
        ),
    ),
    Step(
        name="course/exercises.py:fractions_counted",
        title="Coincidences",
        task="the fractions that a count finds if the random token can be the true one",
        chapter="masking",
        hints=(
            "How often is one of n tokens, drawn at random, the true one?",
            "A random token that is the true one is counted as kept.",
        ),
        mistakes=(
            Mistake(
                "no coincidences",
                "random_prob / ordinary_tokens",
                "0.0",
                "You ignore that the random token can be the true one. It's then counted as kept.",
            ),
            Mistake(
                "coincidences not kept",
                "1 - mask_prob - random_prob + coincidences",
                "1 - mask_prob - random_prob",
                "Your fractions sum to less than 1. The coincidences are counted as kept.",
            ),
            Mistake(
                "one token too few",
                "/ ordinary_tokens",
                "/ (ordinary_tokens - 1)",
                "You leave out the true token when you count those that can be drawn. It's one of them.",
            ),
        ),
    ),
    Step(
        name="course/exercises.py:word_ids_of",
        title="Word ids",
        task="the number of each token's word, or -1 for the special tokens",
        chapter="masking",
        hints=(
            "Go through the tokens and count the words. A token begins a word unless it is special or begins "
            "with `##`.",
            "A token that continues a word gets the number of the word that began last.",
        ),
        mistakes=(
            Mistake(
                "numbered from 1",
                "words - 1",
                "words",
                "You number the words from 1. The first word has the number 0.",
            ),
            Mistake(
                "positions of the first tokens",
                'words += not is_special and not token.startswith("##")',
                'words = words if token.startswith("##") else len(word_ids) + 1',
                "Your word ids are the positions of the words' first tokens. Count words instead.",
            ),
            Mistake(
                "special tokens are words",
                'token in ("[CLS]", "[SEP]", "[PAD]")',
                "False",
                "You count special tokens as words. They get -1.",
            ),
            Mistake(
                "each token is a word",
                ' and not token.startswith("##")',
                "",
                "You give each token a number of its own. A token with `##` belongs to the word before it.",
            ),
            Mistake(
                "[PAD] is a word",
                '("[CLS]", "[SEP]", "[PAD]")',
                '("[CLS]", "[SEP]")',
                "You count `[PAD]` as a word. It gets -1, as the other special tokens do.",
            ),
        ),
    ),
    Step(
        name="course/exercises.py:attention_fraction",
        title="What does attention cost?",
        task="the fraction of the multiplications that the scores and the average take",
        chapter="attention",
        hints=(
            "The fraction is the part divided by the whole, and the part is in the whole, too.",
            "The part is 2TD. The whole is 2TD + 12D².",
        ),
        mistakes=(
            Mistake(
                "compared with the dense layers",
                "(length + 6 * hidden_size)",
                "(6 * hidden_size)",
                "You divide by the dense layers alone. Divide by all multiplications.",
            ),
            Mistake(
                "fraction of the dense layers",
                "return length /",
                "return 6 * hidden_size /",
                "That's the fraction of the dense layers.",
            ),
            Mistake(
                "one matmul only",
                "length / (length + 6 * hidden_size)",
                "length / (length + 12 * hidden_size)",
                "Your fraction is too small. There are two matmuls, the scores and the average: 2TD "
                "multiplications in total.",
            ),
        ),
    ),
    Step(
        name="course/exercises.py:untied_parameters",
        title="Untie it",
        task="the number of parameters with a matrix of its own for the head",
        chapter="decoder",
        hints=(
            "The new matrix has the shape of the token embeddings. The head already has its bias.",
            "It has one row per token, and each row has as many numbers as a hidden state.",
        ),
        mistakes=(
            Mistake(
                "second bias",
                "vocab_size * hidden_size",
                "vocab_size * hidden_size + vocab_size",
                "You add a second bias. The tied head already has one per token.",
            ),
            Mistake(
                "square matrix",
                "vocab_size * hidden_size",
                "hidden_size * hidden_size",
                "Your matrix has the wrong shape. It has a row for each token of the vocabulary.",
            ),
            Mistake(
                "embeddings removed",
                "parameters + vocab_size * hidden_size",
                "parameters - vocab_size * hidden_size",
                "You remove parameters. The embeddings stay, and the head gets a matrix as well.",
            ),
        ),
    ),
    Step(
        name="course/exercises.py:factored_parameters",
        title="Smaller rows",
        task="the number of parameters of the small embeddings and the dense layer after them",
        chapter="decoder",
        hints=(
            "Add up two parts: a table with one row per token, and a dense layer.",
            "A dense layer from n to m numbers has n times m weights and m biases.",
        ),
        mistakes=(
            Mistake(
                "dense layer forgotten",
                "vocab_size * embedding_size + embedding_size * hidden_size + hidden_size",
                "vocab_size * embedding_size",
                "You count the table alone. The dense layer has parameters, too.",
            ),
            Mistake(
                "no biases",
                "embedding_size * hidden_size + hidden_size",
                "embedding_size * hidden_size",
                "The biases of the dense layer are missing: one for each number of its output.",
            ),
            Mistake(
                "biases of the wrong size",
                "hidden_size + hidden_size",
                "hidden_size + embedding_size",
                "You count the wrong number of biases. A dense layer has one for each number of its output.",
            ),
        ),
    ),
    Step(
        name="course/exercises.py:new_parameters",
        title="What is new?",
        task="the number of parameters of the classifier and of the pooler",
        chapter="heads",
        hints=(
            "Both are dense layers with biases.",
            "The pooler makes a vector of the same size. The classifier makes one number for each class.",
        ),
        mistakes=(
            Mistake(
                "pooler forgotten",
                "hidden_size * hidden_size + hidden_size + num_labels * hidden_size + num_labels",
                "num_labels * hidden_size + num_labels",
                "You count the classifier alone. Masked LM has no pooler, so the pooler is new as well.",
            ),
            Mistake(
                "classifier forgotten",
                " + num_labels * hidden_size + num_labels",
                "",
                "You count the pooler alone. The classifier is new as well.",
            ),
            Mistake(
                "no biases",
                "hidden_size * hidden_size + hidden_size + num_labels * hidden_size + num_labels",
                "hidden_size * hidden_size + num_labels * hidden_size",
                "The biases are missing. Both dense layers have some.",
            ),
        ),
    ),
    Step(
        name="course/exercises.py:training_hours",
        title="How long does your own model take?",
        task="the hours that training on this many tokens takes",
        chapter="cost",
        hints=(
            "How many sequences are there, and how many FLOPs do they take in total?",
            "Divide the FLOPs by those that the program does in a second, and turn seconds into hours.",
        ),
        mistakes=(
            Mistake("in seconds", " / 3600", "", "Your result is in seconds, not in hours."),
            Mistake(
                "peak reached",
                "(peak_flops * utilization)",
                "peak_flops",
                "You assume that the program reaches the peak. It reaches only the fraction `utilization`.",
            ),
            Mistake(
                "FLOPs of a sequence for each token",
                "tokens / length",
                "tokens",
                "You count the FLOPs of a whole sequence for each token. A sequence has `length` tokens.",
            ),
        ),
    ),
    Step(
        name="course/exercises.py:masked_positions",
        title="A batch by hand",
        task="the rows, the columns and the labels of the masked positions",
        chapter="tensors",
        hints=(
            "Two loops, one inside the other: over the rows, and over the labels of a row.",
            "`enumerate` counts along. Leave out the label -100, and collect three lists.",
        ),
        mistakes=(
            Mistake(
                "rows and columns swapped",
                "[b for b, _, _ in positions], [t for _, t, _ in positions]",
                "[t for _, t, _ in positions], [b for b, _, _ in positions]",
                "You return the columns first. The rows come first.",
            ),
            Mistake(
                "label 0 left out",
                "label != -100",
                "label > 0",
                "You leave out the label 0, but token 0 is a token like any other. Only -100 is ignored.",
            ),
            Mistake(
                "columns looked up",
                "[t for _, t, _ in positions]",
                "[labels[b].index(label) for b, _, label in positions]",
                "You look up the column of a label, and find its first occurrence. Count along instead.",
            ),
            Mistake(
                "all positions",
                " if label != -100",
                "",
                "You return all positions. Leave out those with the label -100.",
            ),
        ),
    ),
    Step(
        name="course/exercises.py:uniform_scores",
        title="A model that knows nothing",
        task="the pseudo-log-likelihood and the pseudo-perplexity with equal logits",
        chapter="scores",
        hints=(
            "With equal logits, each token gets the probability 1/V.",
            "Add up the logarithms for the first number. For the second, take the mean instead of the sum: "
            "the pseudo-perplexity is e to the power of minus the mean.",
        ),
        mistakes=(
            Mistake(
                "mean instead of sum",
                "-tokens * log(vocab_size)",
                "-log(vocab_size)",
                "Your pseudo-log-likelihood is that of one token. It is the sum over all tokens.",
            ),
            Mistake(
                "positive log-likelihood",
                "-tokens * log(vocab_size)",
                "tokens * log(vocab_size)",
                "Your pseudo-log-likelihood is positive. The logarithm of a probability is at most 0.",
            ),
            Mistake(
                "perplexity grows with the length",
                "float(vocab_size)",
                "float(vocab_size) ** tokens",
                "Your pseudo-perplexity grows with the length of the text. It comes from the mean per token.",
            ),
        ),
    ),
    Step(
        name="course/exercises.py:shifted_cosine",
        title="A shift",
        task="the cosine after the shift",
        chapter="sentence-vectors",
        hints=(
            "Write the dot product of x + c and y + c as four dot products. Which of them are 0?",
            "The dot product becomes x·y + 1, and each of the two squared lengths becomes 2.",
        ),
        mistakes=(
            Mistake(
                "lengths not divided out",
                "(cosine + 1) / 2",
                "cosine + 1",
                "That's the dot product of the sums. For the cosine, divide it by both lengths.",
            ),
            Mistake(
                "divided by one length",
                "/ 2",
                "/ 2**0.5",
                "You divide by one of the two lengths. Divide by both.",
            ),
            Mistake(
                "unchanged",
                "(cosine + 1) / 2",
                "cosine",
                "The cosine doesn't stay the same: both vectors turn toward the third one.",
            ),
            Mistake(
                "shift forgotten",
                "(cosine + 1) / 2",
                "cosine / 2",
                "You leave out the dot product of the third vector with itself, which is 1.",
            ),
        ),
    ),
    Step(
        name="course/exercises.py:chance_loss",
        title="Chance level",
        task="the loss, in nats, of a model that can't tell the sentences apart",
        chapter="before-and-after",
        hints=(
            "What probability does such a model give to each sentence?",
            "The loss is -ln p, with p = 1 / `batch_size`.",
        ),
        mistakes=(
            Mistake(
                "probability instead of loss",
                "log(batch_size)",
                "1 / batch_size",
                "That's the probability of the right sentence. The loss is -ln of it.",
            ),
            Mistake(
                "negative loss",
                "log(batch_size)",
                "-log(batch_size)",
                "Your loss is negative. It's minus the logarithm of a probability, so it's positive.",
            ),
            Mistake(
                "the sentence itself left out",
                "log(batch_size)",
                "log(batch_size - 1)",
                "You leave out one candidate. The right sentence is one of the `batch_size` candidates.",
            ),
        ),
    ),
)
