"""
# Diagrams of the input

A sentence before and after masking, its copies for a score, and a pair of sentences with its tensors.
"""

from docs.figures.diagrams.drawing import SMALL, Drawing, Words, columns
from docs.figures.diagrams.sentence import (
    FIRST,
    IDS,
    MASKED,
    POSITION,
    SECOND,
    TARGET,
    TOKENS,
    VOCAB,
    replace_target,
)
from labml_bert.mlm import IGNORE, TokenMasker
from labml_bert.nsp import SentencePair, collate


def masking(d: Drawing) -> Words:
    """The three cases for a chosen token."""
    labels = [str(IDS[TARGET]) if i == POSITION else str(IGNORE) for i in range(len(TOKENS))]
    fraction, masked = f"{TokenMasker.mlm_probability:.0%}", f"{TokenMasker.mask_replace_prob:.0%}"
    random = f"{TokenMasker.random_replace_prob:.0%}"
    unchanged = f"{1 - TokenMasker.mask_replace_prob - TokenMasker.random_replace_prob:.0%}"
    left, size, gap = (0, 12, 2) if d.is_narrow else (150, 13.5, 6)
    longest = [max(texts, key=len) for texts in zip(MASKED, labels, strict=True)]
    boxes = columns(longest, left, d.width, gap, size)

    def part(y: float, name: str, note: str, rows: list[tuple[str, list[str]]]) -> float:
        """A heading and rows of tokens, each with a label. Returns where the next part begins."""
        d.text(0, y + 10, name, "heading", 15, "start")
        d.text(left, y + (30 if d.is_narrow else 10), note, "note", SMALL, "start")
        y += 44 if d.is_narrow else 26
        for label, texts in rows:
            if label:
                d.text(0, y + (9 if d.is_narrow else 14), label, anchor="start")
                y += 21 if d.is_narrow else 0
            for i, (text, (x, width)) in enumerate(zip(texts, boxes, strict=True)):
                d.box(x, y, width, 28, text, "masked" if i == POSITION else "token", size, "mono")
            y += 42 if d.is_narrow else 38
        return y + 16

    cases = [
        (f"{masked} masked", MASKED),
        (f"{random} random token", replace_target("dog")),
        (f"{unchanged} unchanged", TOKENS),
    ]
    y = part(0, "Before", f"{fraction} of the ordinary tokens are chosen", [("", TOKENS)])
    y = part(y, "After: input_ids", "what the model sees in place of a chosen token", cases)
    part(y, "After: labels", f"the true id where a token was chosen, else {IGNORE}", [("", labels)])
    return Words(
        "What masking does to a batch",
        f"Before masking: the tokens {' '.join(TOKENS)}. Of the ordinary tokens, {fraction} are chosen; "
        f"here it is {TARGET}. After masking, input_ids is one of three rows, which differ only at the "
        f"chosen position. It holds [MASK] with a probability of {masked}, a random token with {random}, "
        f"here dog, and {TARGET} itself with {unchanged}. In all three cases the labels are "
        f"{labels[POSITION]}, the id of {TARGET}, at the chosen position and {IGNORE} at all others.",
        f"Of the chosen tokens, {masked} become [MASK], {random} become a random token, and {unchanged} "
        "stay. The label is the true token in all three cases.",
    )


def score(d: Drawing) -> Words:
    """One masked copy of the sentence for each token."""
    size, gap, right = (11.5, 2, d.width) if d.is_narrow else (13.5, 6, d.width - 130)
    step, scored = 56 if d.is_narrow else 38, range(1, len(TOKENS) - 1)
    for row, position in enumerate(scored):
        y, tokens = row * step, [*TOKENS[:position], "[MASK]", *TOKENS[position + 1 :]]
        across = columns(tokens, 0, right, gap, size)
        for i, (token, (x, width)) in enumerate(zip(tokens, across, strict=True)):
            d.box(x, y, width, 28, token, "masked" if i == position else "token", size, "mono")
        label = f"log p({TOKENS[position]})"
        if d.is_narrow:
            d.text(across[position][0], y + 39, label, "", SMALL, "start")
        else:
            d.text(right + 16, y + 14, label, anchor="start")
    y = len(scored) * step
    if d.is_narrow:
        d.text(0, y + 10, "score = sum of the six log-probabilities", "heading", SMALL, "start")
    else:
        d.line((right + 16, y), (d.width - 20, y))
        d.text(right + 16, y + 16, "sum = score", "heading", anchor="start")
    return Words(
        "One masked copy for each token",
        f"Six rows show the sentence {' '.join(TOKENS)}. In each row, another word is replaced by [MASK]: "
        f"in the first row {FIRST[0]}, in the second {FIRST[1]}, and so on to {FIRST[-1]} in the last. The "
        "special tokens [CLS] and [SEP] are never masked. Beside each row is the log-probability of the word "
        "that is masked there. The score of the sentence is the sum of the six log-probabilities.",
        "To score a sentence, run the model on one copy for each token and add up the log-probabilities of "
        "the masked tokens.",
    )


def mean_pooling(d: Drawing) -> Words:
    """The vectors of the words become one vector; those of the special tokens are left out."""
    size, gap = (11.5, 2) if d.is_narrow else (13.5, 6)
    cell, middle = 11.0, d.width / 2
    encoder = d.box(0, 50, d.width, 28, "encoder", "attention")
    mean = d.cells(middle - cell / 2, 184, 4, 1, (cell, cell), "embedding")
    across, bus = columns(TOKENS, 0, d.width, gap, size), 156
    for token, (x, width) in zip(TOKENS, across, strict=True):
        is_special, center = token in ("[CLS]", "[SEP]"), x + width / 2
        d.box(x, 0, width, 28, token, "token", size, "mono")
        d.drop(center, 28, encoder.y)
        kind = "pad" if is_special else "embedding"
        vector = d.cells(center - cell / 2, 98, 4, 1, (cell, cell), kind)
        d.drop(center, encoder.bottom, vector.y)
        if not is_special:
            d.line((center, vector.bottom + 2), (center, bus))
    first, last = (x + width / 2 for x, width in (across[1], across[-2]))
    d.line((first, bus), (last, bus))
    d.drop(middle, bus, mean.y)
    d.text(middle + 16, mean.center[1], "mean", "heading", anchor="start")
    return Words(
        "From token vectors to a text vector",
        f"The encoder reads the sentence {' '.join(TOKENS)} and gives each token a vector h. Lines lead from "
        "the vectors of the six words to a box with their mean, which is the vector of the text. The vectors "
        "of the special tokens [CLS] and [SEP] are left out.",
        "Mean pooling: the vector of a text is the mean of the vectors of its tokens.",
    )


def pair(d: Drawing) -> Words:
    """Two sentences as one row of a batch, with its tensors."""
    first, second = ["[CLS]", *FIRST, "[SEP]"], [*SECOND, "[SEP]"]
    length = len(first) + len(second)
    ours = SentencePair(
        [IDS[token] for token in first + second], [0] * len(first) + [1] * len(second), next_sentence_label=0
    )
    # A row that is two tokens longer, so that ours gets two padding tokens.
    longer = SentencePair([0] * (length + 2), [0] * (length + 2), next_sentence_label=0)
    batch = collate([ours, longer])
    tokens = [VOCAB[i] for i in batch["input_ids"][0]]
    rows: list[tuple[str, str, list[object]]] = [
        ("tokens", "token", [*tokens]),
        ("position", "embedding", [*range(len(tokens))]),
        ("token\ntype", "segment", batch["token_type_ids"][0].tolist()),
        ("attention\nmask", "attention", batch["attention_mask"][0].tolist()),
    ]

    across, down = columns(tokens, 78, d.width, 2, 11.5), [(34, 74), (116, 62), (186, 68), (262, 78)]
    for k, (name, kind, texts) in enumerate(rows):
        # On a phone, a row of the batch is drawn as a column.
        if d.is_narrow:
            d.text(down[k][0] + down[k][1] / 2, 16, name, "heading", SMALL)
        else:
            d.text(0, 44 + k * 40, name, "heading", SMALL, "start")
        for i, text in enumerate(texts):
            look = "pad" if i >= length else "segment second" if (kind, text) == ("segment", 1) else kind
            if d.is_narrow:
                d.box(down[k][0], 40 + i * 27, down[k][1], 23, str(text), look, SMALL, "mono")
            else:
                d.box(across[i][0], 31 + k * 40, across[i][1], 26, str(text), look, 11.5, "mono")

    for name, start, end in (
        ("A", 0, len(first)),
        ("B", len(first), length),
        ("padding", length, len(tokens)),
    ):
        if not d.is_narrow:
            a, b = across[start][0] + 1, sum(across[end - 1]) - 1
            d.line((a, 24), (a, 18), (b, 18), (b, 24))
            d.text((a + b) / 2, 6, name if name == "padding" else f"sentence {name}", "heading", 13)
        elif name != "padding":
            a, b = 40 + start * 27, 40 + end * 27 - 4
            d.line((24, a), (18, a), (18, b), (24, b))
            d.text(6, (a + b) / 2, name, "heading")
    return Words(
        "The input of next sentence prediction",
        f"The tokens are {' '.join(tokens)}. Sentence A is {' '.join(first)}, with its special tokens; "
        f"sentence B is {' '.join(second)}; two tokens of padding follow. Each token has three numbers. "
        f"The positions are 0 to {len(tokens) - 1}. The token type is 0 in sentence A, 1 in sentence B and "
        "0 in the padding. The attention mask is 1 for a token and 0 for padding.",
        "One row of a batch: two sentences, padded to the length of the longest row. Its label is 0 if B "
        "follows A in the text, and 1 if B is random.",
    )
