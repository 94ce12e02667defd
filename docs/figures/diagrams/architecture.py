"""
# Diagrams of the model

The whole model, then its parts: the embeddings, a block, and the tied head.
"""

from docs.figures.diagrams.drawing import SMALL, Box, Drawing, Words, columns
from docs.figures.diagrams.sentence import IDS, MASKED, POSITION, TARGET, VOCAB
from labml_bert.bert import BertConfig

BASE = BertConfig()
D, V = BASE.hidden_size, BASE.vocab_size


def model(d: Drawing) -> Words:
    """The whole model with both heads."""
    # On the right, there is room for the line from the embeddings to the head.
    width = d.width - (30 if d.is_narrow else 120)
    size, gap = (11.5, 3) if d.is_narrow else (14, 6)
    for i, (token, (x, wide)) in enumerate(zip(MASKED, columns(MASKED, 0, width, gap, size), strict=True)):
        d.box(x, 0, wide, 28, token, "masked" if i == POSITION else "token", size, "mono")

    words = "token (E) + position + segment\nembeddings, LayerNorm, dropout"
    embeddings = d.box(0, 66, width, 54, words, "embedding")
    d.drop(width / 2, 28, embeddings.y, "(B, T), ids")

    # Two sheets behind the block stand for the other blocks.
    for i in (2, 1):
        d.box(5 * i, 160 + 5 * i, width - 10 * i, 118, "", "group")
    block = d.box(0, 160, width, 118, "", "group")
    d.text(14, 177, "N blocks, each with", "note", SMALL, "start")
    attention = d.box(14, 190, width - 28, 32, "self-attention", "attention")
    forward = d.box(14, 236, width - 28, 32, "feed-forward network", "forward")
    d.down(embeddings, block, "(B, T, D), vectors")
    d.down(attention, forward)

    vectors = d.box(0, 328, width, 28, "", "group")
    d.drop(width / 2, block.bottom + 10, vectors.y, "(B, T, D)")
    middles = [(i + 0.5) * width / len(MASKED) for i in range(len(MASKED))]
    for i, x in enumerate(middles):
        d.cells(x - 14, vectors.y + 7, 1, 4, (7, 14), "masked" if i == POSITION else "token")

    left_width = 104 if d.is_narrow else 190
    left = left_width + (12 if d.is_narrow else 28)
    group = d.box(left, 396, width - left, 132, "", "group")
    d.text(group.right - 12, 410, "MLM head", "note", SMALL, "end")
    transform = d.box(left + 8, 422, group.width - 16, 34, "dense, GELU, LayerNorm", "head", SMALL)
    decoder = d.box(left + 8, 484, group.width - 16, 34, "× Eᵀ + bias", "head")
    pooler = d.box(0, 422, left_width, 34, "pooler")
    nsp = d.box(0, 484, left_width, 34, "NSP head", "head")
    d.drop(middles[0], vectors.bottom, pooler.y)
    d.drop(middles[POSITION], vectors.bottom, transform.y)
    d.down(pooler, nsp, "(B, D)")
    d.down(transform, decoder)
    d.drop(nsp.center[0], group.bottom, 568, "(B, 2)")
    d.drop(decoder.center[0], group.bottom, 568, "(B, T, V)")
    d.text(nsp.center[0], 580, "next or random?", size=SMALL if d.is_narrow else 14)
    d.text(decoder.center[0], 580, TARGET, "mono")

    tie = width + 16
    high, low = embeddings.center[1], decoder.center[1]
    d.arrow((width + 2, high), (tie, high), (tie, low), (decoder.right + 2, low), kind="tie")
    if not d.is_narrow:
        d.text(tie + 10, 300, "the same\ntoken\nembeddings E", "note", SMALL, "start")
    return Words(
        "BERT with both pretraining heads",
        f"From top to bottom: the tokens {' '.join(MASKED)}, as ids of shape (B, T). Their token, position "
        "and segment embeddings are added and go through LayerNorm and dropout. This gives one vector per "
        "token, (B, T, D). N blocks follow, each with self-attention and then a feed-forward network. The "
        "shape remains (B, T, D). From there two branches begin. The vector at [CLS] goes through the "
        "pooler, (B, D), and the NSP head, (B, 2), which answers whether the second sentence is the next "
        "or a random one. The vector at [MASK] goes through the MLM head: a dense layer, GELU and "
        "LayerNorm, then the product with the transposed token embeddings E, plus a bias, (B, T, V). It "
        f"should answer {TARGET}. A dashed line shows that the MLM head uses the same token embeddings E "
        "as the input.",
        "BERT with both pretraining heads, for B sequences of T tokens. In BERT base, "
        f"D\u00a0=\u00a0{D}, V\u00a0=\u00a0{V:,} and N\u00a0=\u00a0{BASE.num_hidden_layers}. The dashed "
        "line connects the two uses of the token embeddings E.",
    )


def embeddings(d: Drawing) -> Words:
    """Three embeddings for each position, and their sum."""
    tables = [
        ("token", MASKED, V),
        ("position", [str(i) for i in range(len(MASKED))], BASE.max_position_embeddings),
        ("segment", ["A"] * len(MASKED), BASE.type_vocab_size),
    ]
    # On a phone, the tokens go down the page instead of across.
    (embeddings_down if d.is_narrow else embeddings_across)(d, tables)
    return Words(
        "Three embeddings and their sum",
        f"The input is eight tokens, {' '.join(MASKED)}. Each input vector is the sum of three rows: "
        f"the row of its token, one of {V:,}; the row of its position, 0 to {len(MASKED) - 1}, one of "
        f"{BASE.max_position_embeddings}; and the row of its segment, which is A everywhere here, one of "
        f"{BASE.type_vocab_size}. Each row has {D} numbers. The sums go through LayerNorm and dropout. The "
        "result is one vector per token, (B, T, D).",
        "Each input vector is the sum of three rows: one for the token, one for its position and one for its "
        "segment. "
        f"The tables have the sizes of BERT base, where a row has {D} numbers.",
    )


def embeddings_across(d: Drawing, tables: list[tuple[str, list[str], int]]) -> None:
    """A column for each token."""
    left, step, wide = 128, 69, 62
    middles = [left + i * step + wide / 2 for i in range(len(MASKED))]
    d.text(0, 14, "input", "heading", anchor="start")
    for i, token in enumerate(MASKED):
        d.box(left + i * step, 0, wide, 28, token, "masked" if i == POSITION else "token", 13, "mono")
        d.drop(middles[i], 28, 64)
    for k, (name, texts, rows) in enumerate(tables):
        y = 64 + k * 68
        d.text(0, y + 6, name, "heading", anchor="start")
        d.text(0, y + 24, f"one of {rows:,} rows", "note", 11.5, "start")
        for i, text in enumerate(texts):
            d.box(left + i * step, y, wide, 32, text, "embedding", 13, "mono")
            if k > 0:
                d.text(middles[i], y - 18, "+", size=16)
    norm = d.box(left, 272, 7 * step + wide, 32, "LayerNorm", "norm")
    dropout = d.box(left, 326, norm.width, 32, "dropout")
    d.down(norm, dropout)
    for x in middles:
        d.drop(x, 232, norm.y)
        d.drop(x, dropout.bottom, dropout.bottom + 32)
    d.text(0, dropout.bottom + 16, "one vector each\n(B, T, D)", "note", SMALL, "start")


def embeddings_down(d: Drawing, tables: list[tuple[str, list[str], int]]) -> None:
    """A line for each token."""
    top, step, high, wide = 48, 38, 28, 62
    norm = d.box(d.width - 92, top, 92, 8 * step - 10, "LayerNorm,\nthen\ndropout", "norm")
    for k, (name, texts, rows) in enumerate(tables):
        x = 6 + k * 82
        d.text(x + wide / 2, 14, name, "heading")
        d.text(x + wide / 2, 32, f"{rows:,} rows", "note", 11.5)
        for i, text in enumerate(texts):
            y = top + i * step
            box = d.box(x, y, wide, high, text, "embedding", SMALL, "mono")
            if k > 0:
                d.text(x - 10, box.center[1], "+", size=16)
            if k == len(tables) - 1:
                d.arrow((box.right + 2, box.center[1]), (norm.x - 2, box.center[1]))
    d.drop(norm.center[0], norm.bottom, norm.bottom + 34)
    d.text(norm.center[0] - 12, norm.bottom + 17, "one vector each, (B, T, D)", "note", SMALL, "end")


def block(d: Drawing) -> Words:
    """One block in its two forms."""
    one_block(d, 0, 0, is_pre_norm=False)
    if d.is_narrow:
        one_block(d, 0, d.height + 40, is_pre_norm=True)
    else:
        one_block(d, d.width - 310, 0, is_pre_norm=True)
    return Words(
        "One block, with post-norm and with pre-norm",
        "Two drawings of a block. In both, a thick line, the residual path, leads from the input, (B, T, "
        "D), down to the output, which has the same shape. Twice, a branch leaves the path, and its "
        f"result is added to the path. The first branch is self-attention with {BASE.num_attention_heads} "
        f"heads. The second is the feed-forward network, from {D} to {BASE.intermediate_size:,} and back "
        f"to {D}. The drawings differ in where the two LayerNorms are. Post-norm, as in BERT: on the "
        "residual path, after each sum. Pre-norm, as in later models: at the beginning of each branch, so "
        "that the residual path has only the two sums on it.",
        "The same parts in two orders. BERT normalizes on the residual path (the thick line), after each "
        "sum; pre-norm models normalize in the branches, so the path from input to output stays clear.",
    )


def one_block(d: Drawing, x: float, y: float, is_pre_norm: bool) -> None:
    """The residual path on the left, the two branches on the right."""
    path, middle = x + 52, x + 210
    halves = [
        ("attention", f"self-attention\n{BASE.num_attention_heads} heads"),
        ("forward", f"feed-forward network\n{D} → {BASE.intermediate_size:,} → {D}"),
    ]
    title = "Pre-norm: later models" if is_pre_norm else "Post-norm: BERT"
    d.text(x, y + 10, title, "heading", 15, "start")
    start = y + 34
    d.text(path + 12, start + 2, "(B, T, D)", "note", SMALL, "start")
    for kind, words in halves:
        top = start + 24
        layer = d.box(middle - 100, top + (68 if is_pre_norm else 20), 200, 48, words, kind)
        first = layer
        if is_pre_norm:
            first = d.box(middle - 100, top + 20, 200, 30, "LayerNorm", "norm")
            d.down(first, layer)
        total = layer.bottom + 24
        d.arrow((path, top), (middle, top), (middle, first.y - 2))
        d.arrow((middle, layer.bottom + 2), (middle, total), (path + 11, total))
        d.line((path, start), (path, total - 9), kind="path")
        d.plus(path, total)
        start = total + 9
        if not is_pre_norm:
            norm = d.box(path - 48, start + 18, 96, 30, "LayerNorm", "norm")
            d.line((path, start), (path, norm.y), kind="path")
            start = norm.bottom
    d.arrow((path, start), (path, start + 34), kind="path")
    d.text(path + 12, start + 18, "(B, T, D)", "note", SMALL, "start")


def tied_head(d: Drawing) -> Words:
    """The two uses of the token embeddings."""
    at_input = lookup(d, 0, 0)
    at_output = product(d, 0, at_input.bottom + 66) if d.is_narrow else product(d, 350, 0)
    # A line from below one table to below the other. On a phone, it goes around the second drawing.
    start, end, side = at_input.right - 12, at_output.right - 12, d.width - 6
    high, low = at_input.bottom + 24, at_output.bottom + 24
    between = [(side, high), (side, low)] if d.is_narrow else []
    d.line(
        *((start, at_input.bottom + 2), (start, high), *between, (end, low), (end, at_output.bottom + 2)),
        kind="tie",
    )
    d.text(start + 72, high - 11, "the same table E", "note", SMALL)
    return Words(
        "The two uses of the token embeddings",
        f"Two drawings of one table E, which has a row for each token: {', '.join(VOCAB)}. At the input it "
        f"is a lookup: [MASK] has the id {IDS['[MASK]']}, which picks a row of E, and this vector of D "
        "numbers goes to the blocks. At the output it is a matrix multiplication. The vector from the blocks "
        "goes through a dense layer, GELU and LayerNorm. Its product with each row of E, plus a bias, "
        f"gives one logit for each of the V tokens. The logit of {TARGET} should be the largest. A dashed "
        "line connects the two tables: they are the same.",
        "The model stores E once and uses it twice: as the lookup table at the input and as the output "
        f"matrix. In BERT base, E has V\u00a0=\u00a0{V:,} rows of D\u00a0=\u00a0{D} numbers.",
    )


ROW, CELL = 17, 18
HIDDEN_SIZE = 4
"""The tiny model in the chapters has this hidden size."""


def table(d: Drawing, x: float, y: float, token: str, kind: str) -> Box:
    """The table E with the names of its rows. The row of `token` stands out."""
    for i, name in enumerate(VOCAB):
        d.text(x - 6, y + (i + 0.5) * ROW, name, "mono strong" if name == token else "mono", 12, "end")
    grid = d.cells(x, y, len(VOCAB), HIDDEN_SIZE, (CELL, ROW), "embedding")
    d.cells(x, y + IDS[token] * ROW, 1, HIDDEN_SIZE, (CELL, ROW), kind)
    d.text(x - 6, grid.bottom + 14, "E (V, D)", "note", SMALL, "end")
    return grid


def lookup(d: Drawing, x: float, y: float) -> Box:
    """An id picks a row. Returns the table."""
    d.text(x, y + 10, "At the input: a lookup", "heading", 15, "start")
    grid = table(d, x + 138, y + (40 if d.is_narrow else 130), "[MASK]", "masked")
    row = grid.y + (IDS["[MASK]"] + 0.5) * ROW
    token = d.box(x, row - 14, 58, 28, "[MASK]", "masked", SMALL, "mono")
    d.text(token.center[0], row + 28, f"id {IDS['[MASK]']}", "note", SMALL)
    d.arrow((token.right + 2, row), (token.right + 26, row))
    vector = d.cells(x + 238, row - ROW / 2, 1, HIDDEN_SIZE, (CELL, ROW), "masked")
    d.arrow((grid.right + 3, row), (vector.x - 2, row))
    d.text(vector.center[0], vector.bottom + 25, "D numbers,\nto the blocks", "note", SMALL)
    return grid


def product(d: Drawing, x: float, y: float) -> Box:
    """A vector times each row, plus a bias, is a logit. Returns the table."""
    d.text(x, y + 10, "At the output: a matrix multiplication", "heading", 15, "start")
    middle = y + 50
    h = d.cells(x, middle - ROW / 2, 1, HIDDEN_SIZE, (CELL, ROW), "token")
    d.text(x, middle + 24, "from the blocks", "note", SMALL, "start")
    dense = d.box(x + 94, middle - 16, 102, 32, "dense, GELU", "head")
    norm = d.box(x + 218, middle - 16, 92, 32, "LayerNorm", "norm")
    d.arrow((h.right + 2, middle), (dense.x - 2, middle))
    d.arrow((dense.right + 2, middle), (norm.x - 2, middle))
    grid = table(d, x + 94, y + 130, TARGET, "embedding")
    vector = d.cells(grid.x, y + 98, 1, HIDDEN_SIZE, (CELL, ROW), "head")
    corner = norm.center[0], vector.center[1]
    d.arrow((corner[0], norm.bottom + 2), corner, (vector.right + 2, corner[1]))
    d.text(grid.x - 6, corner[1], "× each row", "note", SMALL, "end")
    bias = d.cells(grid.right + 28, grid.y, len(VOCAB), 1, (18, ROW), "head")
    logits = d.cells(bias.right + 28, grid.y, len(VOCAB), 1, (18, ROW), "token")
    best = d.cells(logits.x, grid.y + IDS[TARGET] * ROW, 1, 1, (18, ROW), "masked")
    for column, sign, name in ((bias, "+", "bias"), (logits, "=", "logits")):
        d.text(column.x - 14, grid.center[1], sign, size=16)
        d.text(column.center[0], grid.bottom + 14, name, "note", SMALL)
    d.text(best.right + 8, best.center[1], TARGET, "mono strong", 12, "start")
    return grid
