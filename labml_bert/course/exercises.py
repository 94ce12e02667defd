"""
# The exercises of the chapters, as functions

Can you answer an exercise for any numbers, and not only for those of the chapter? Many exercises ask for a
number. Here you write the function that computes it.
"""

from math import log


def loss_from_perplexity(perplexity: float) -> tuple[float, float]:
    """
    ## From perplexity to loss

    Returns the loss of a model with this perplexity, first in nats and then in bits.
    """
    nats = log(perplexity)
    return nats, nats / log(2)


def fractions_drawn_twice(mask_prob: float, random_prob: float) -> tuple[float, float, float]:
    """
    ## Drawing twice

    For each chosen token, a program draws a number and masks the token if the number is below `mask_prob`. It
    then draws a second number and replaces the token with a random one if the second number is below
    `random_prob`, whether or not the token is already masked.

    Returns the fractions of the chosen tokens that are `[MASK]`, random and kept at the end.
    """
    return mask_prob * (1 - random_prob), random_prob, (1 - mask_prob) * (1 - random_prob)


def fractions_if_the_mask_wins(mask_prob: float, random_prob: float) -> tuple[float, float, float]:
    """
    ## The mask wins

    The same two draws, but `[MASK]` overwrites the random token.

    Returns the fractions of the chosen tokens that are `[MASK]`, random and kept at the end.
    """
    return mask_prob, (1 - mask_prob) * random_prob, (1 - mask_prob) * (1 - random_prob)


def fractions_counted(
    mask_prob: float, random_prob: float, ordinary_tokens: int
) -> tuple[float, float, float]:
    """
    ## Coincidences

    A masker replaces a fraction `mask_prob` of the chosen tokens with `[MASK]`, and a fraction `random_prob`
    with one of `ordinary_tokens` tokens. The chosen token is one of these, too. Somebody compares the masked
    text with the original, and counts a token as random only if it has changed.

    Returns the fractions of the chosen tokens that are counted as `[MASK]`, random and kept.
    """
    coincidences = random_prob / ordinary_tokens
    return mask_prob, random_prob - coincidences, 1 - mask_prob - random_prob + coincidences


def word_ids_of(tokens: list[str]) -> list[int]:
    """
    ## Word ids

    Numbers the words of a text from 0. `tokens` are the tokens of a WordPiece tokenizer: one that begins with
    `##` continues the word before it, and `[CLS]`, `[SEP]` and `[PAD]` belong to no word.

    Returns the number of each token's word, or -1 for the special tokens.
    """
    word_ids, words = [], 0
    for token in tokens:
        is_special = token in ("[CLS]", "[SEP]", "[PAD]")
        words += not is_special and not token.startswith("##")
        word_ids.append(-1 if is_special else words - 1)
    return word_ids


def attention_fraction(length: int, hidden_size: int) -> float:
    """
    ## What does attention cost?

    Per token, the dense layers of a block take $12 D^2$ multiplications. The scores and the average of the
    values take $2 T D$ together. Here $T$ is `length` and $D$ is `hidden_size`.

    Returns the fraction of the multiplications that the scores and the average take.
    """
    return length / (length + 6 * hidden_size)


def untied_parameters(parameters: int, vocab_size: int, hidden_size: int) -> int:
    """
    ## Untie it

    A model with tied embeddings has this many parameters. You give its MLM head a matrix of its own.

    Returns the number of parameters of the new model.
    """
    return parameters + vocab_size * hidden_size


def factored_parameters(vocab_size: int, hidden_size: int, embedding_size: int) -> int:
    """
    ## Smaller rows

    As in ALBERT, each token embedding has only `embedding_size` numbers. A dense layer with biases makes
    vectors of size `hidden_size` from them.

    Returns the number of parameters of the token embeddings and this layer.
    """
    return vocab_size * embedding_size + embedding_size * hidden_size + hidden_size


def new_parameters(hidden_size: int, num_labels: int) -> int:
    """
    ## What is new?

    You load a BERT that was pretrained on masked LM alone, and put a classifier with `num_labels` classes
    on it.

    Returns how many parameters start untrained: those of the classifier and of the pooler.
    """
    return hidden_size * hidden_size + hidden_size + num_labels * hidden_size + num_labels


def training_hours(
    flops_per_sequence: float, length: int, tokens: float, peak_flops: float, utilization: float
) -> float:
    """
    ## How long does your own model take?

    Training on a sequence of `length` tokens takes `flops_per_sequence`, forward and backward. The GPU can do
    `peak_flops` per second, and the program reaches the fraction `utilization` of it.

    Returns the hours for `tokens` tokens.
    """
    return flops_per_sequence * tokens / length / (peak_flops * utilization) / 3600


def masked_positions(labels: list[list[int]]) -> tuple[list[int], list[int], list[int]]:
    """
    ## A batch by hand

    `labels` has a list for each row of a batch, and the label -100 at the positions that aren't masked.

    Returns the row, the column and the label of each masked position, row by row.
    """
    positions = [
        (b, t, label) for b, row in enumerate(labels) for t, label in enumerate(row) if label != -100
    ]
    return [b for b, _, _ in positions], [t for _, t, _ in positions], [label for _, _, label in positions]


def uniform_scores(tokens: int, vocab_size: int) -> tuple[float, float]:
    """
    ## A model that knows nothing

    All logits of a model are equal, and a text has this many tokens.

    Returns the pseudo-log-likelihood of the text, in nats, and its pseudo-perplexity.
    """
    return -tokens * log(vocab_size), float(vocab_size)


def shifted_cosine(cosine: float) -> float:
    """
    ## A shift

    Two vectors of length 1 have this cosine. A third vector of length 1 is at a right angle to both, and is
    added to both.

    Returns the cosine of the two sums.
    """
    return (cosine + 1) / 2


def chance_loss(batch_size: int) -> float:
    """
    ## Chance level

    A contrastive loss asks which of `batch_size` sentences belongs to a given one.

    Returns the loss, in nats, of a model that can't tell the sentences apart.
    """
    return log(batch_size)
