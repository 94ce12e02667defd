"""
# Diagrams of training

From pretraining to fine-tuning, a sequence length that grows, and one step on two processes.
"""

import json
from fractions import Fraction
from itertools import pairwise

from docs.figures.diagrams.drawing import SMALL, Box, Drawing, Words
from docs.figures.diagrams.sentence import TARGET
from docs.figures.records import RUNS
from labml_bert.data.curriculum import Stage, parse_schedule, stage_ends


def pretrain_finetune(d: Drawing) -> Words:
    """Two trainings of one encoder."""
    heads = {"MLM head": TARGET, "NSP head": "next or random?"}
    note, text = "starts from random weights", "text without labels"
    first = one_training(d, 34 if d.is_narrow else 0, 0, "Pretraining", note, text, heads)
    x, y = (34, d.height + 46) if d.is_narrow else (d.width - first.width, 0)
    note, text = "starts from the pretrained weights", "texts with labels"
    second = one_training(d, x, y, "Fine-tuning", note, text, {"new head": "label"})
    start, end = (first.x - 2, first.center[1]), (second.x - 2, second.center[1])
    if d.is_narrow:
        d.arrow(start, (10, start[1]), (10, end[1]), end, kind="path")
        d.text(22, y - 26, "keep the encoder, drop the heads", "note", SMALL, "start")
    else:
        middle = (first.right + second.x) / 2
        d.arrow((first.right + 2, start[1]), end, kind="path")
        d.text(middle, start[1] - 26, "keep the\nencoder", "note", SMALL)
        d.text(middle, start[1] + 26, "drop the\nheads", "note", SMALL)
    return Words(
        "Pretraining, then fine-tuning",
        "Two drawings of one encoder. It has embeddings and N blocks, each with attention and a "
        "feed-forward network. In pretraining it starts from random weights and reads text without "
        f"labels. It has two heads: the MLM head should answer {TARGET}, the masked token, and the NSP "
        "head answers whether the second sentence is the next or a random one. A thick arrow leads to the "
        "encoder of fine-tuning: the encoder is kept and the heads are dropped. In fine-tuning it starts "
        "from the pretrained weights and reads texts with labels. It has one new head, which answers with "
        "a label.",
        "Pretraining needs a lot of text and no labels. Fine-tuning starts from the pretrained weights and "
        "trains the encoder together with a new head.",
    )


def one_training(
    d: Drawing, x: float, y: float, name: str, note: str, text: str, heads: dict[str, str]
) -> Box:
    """Text, the encoder, and heads with their answers. Returns the encoder."""
    width = 296
    d.text(x, y + 10, name, "heading", 15, "start")
    d.text(x, y + 30, note, "note", SMALL, "start")
    source = d.box(x, y + 48, width, 34, text, "token")
    encoder = d.box(x, y + 112, width, 158, "", "group")
    d.text(x + 10, y + 126, "encoder", "note", SMALL, "start")
    table = d.box(x + 10, y + 138, width - 20, 32, "embeddings", "embedding")
    blocks = d.box(x + 10, y + 192, width - 20, 68, "", "group")
    d.text(x + 20, y + 206, "N blocks", "note", SMALL, "start")
    attention = d.box(x + 20, y + 218, 116, 32, "attention", "attention")
    forward = d.box(x + 160, y + 218, 116, 32, "feed-forward", "forward")
    d.down(source, encoder)
    d.down(table, blocks)
    d.arrow((attention.right + 2, attention.center[1]), (forward.x - 2, forward.center[1]))
    wide = (width - 16 * (len(heads) - 1)) / len(heads)
    for i, (head, answer) in enumerate(heads.items()):
        box = d.box(x + i * (wide + 16), y + 300, wide, 34, head, "head")
        d.down(encoder, box)
        d.drop(box.center[0], box.bottom, box.bottom + 30)
        d.text(box.center[0], box.bottom + 42, answer, "mono" if answer == TARGET else "")
    return encoder


def curriculum(d: Drawing) -> Words:
    """Sequence lengths over the training budget, and a batch at each length."""
    configuration = json.loads((RUNS / "mlm_tiny.json").read_text("utf-8"))["configuration"]
    schedule, tokens = configuration["schedule"], configuration["batch_tokens"]
    stages = parse_schedule(schedule)
    high, bottom, middles = 120 / stages[-1].length, 156, list[float]()
    d.text(0, 10, "sequence length", "heading", anchor="start")
    for stage, (start, end) in zip(stages, pairwise([0.0, *stage_ends(stages)]), strict=True):
        x, width, height = start * d.width, (end - start) * d.width, high * stage.length
        d.box(x, bottom - height, width, height, "", "rows")
        d.text(x + width / 2, bottom - height - 11, str(stage.length), "heading")
        d.text(x + width / 2, bottom + 14, fraction(stage), "note", SMALL)
        middles.append(x + width / 2)
    d.text(0, bottom + 36, "fraction of the training budget", "note", SMALL, "start")
    d.text(0, bottom + 76, f"one batch: {tokens:,} tokens at each length", "heading", anchor="start")

    scale, rows_per_line, top = 1.0, 4, bottom + 98
    if d.is_narrow:
        # Below their own stages, the batches would overlap, so space them evenly.
        scale, rows_per_line = 0.5, 8
        middles = [(i + 0.5) * d.width / len(stages) for i in range(len(stages))]
    bottom = top + scale * tokens / stages[0].length
    for stage, middle in zip(stages, middles, strict=True):
        count, width, height = tokens // stage.length, scale * stage.length, scale * tokens / stage.length
        line = (width, scale * rows_per_line)
        d.cells(middle - width / 2, bottom - height, count // rows_per_line, 1, line, "rows")
        d.text(middle, bottom + 16, f"{count} × {stage.length}", "heading", SMALL)
    note = f"rows × tokens per row; each strip is {rows_per_line} rows"
    d.text(0, bottom + 42, note, "note", SMALL, "start")
    lengths = ", then ".join(f"{stage.length} for {fraction(stage)}" for stage in stages)
    batches = ", ".join(f"{tokens // stage.length} rows of {stage.length}" for stage in stages)
    return Words(
        "Sequence length over the training budget",
        f"Above: rising steps, which show the sequence length over the training budget. It is {lengths} of "
        f"the budget. Below: one batch at each length, to scale. Each batch has {tokens:,} tokens: "
        f"{batches}. The first batch is tall and narrow, the last one low and wide.",
        f"Many short rows first, a few long ones last. This is the schedule of mlm_tiny.py, {schedule}, "
        f"with {tokens:,} tokens in each step.",
    )


def fraction(stage: Stage) -> str:
    """The part of the budget that a stage gets, as in `3/8`."""
    return str(Fraction(stage.fraction).limit_denominator(100))


def two_processes(d: Drawing) -> Words:
    """One training step with DistributedDataParallel."""
    gap = 20 if d.is_narrow else 60
    width, rows, high = (d.width - gap) / 2, 8, 9
    reduce = d.box(0, 322, d.width, 44, "all-reduce: sum of both gradients", "sync")
    for rank in range(2):
        x = rank * (width + gap)
        middle = x + width / 2
        d.text(middle, 10, f"rank {rank}", "heading", 15)
        d.text(middle, 31, "the same weights", "note", SMALL)
        batch = d.cells(x, 48, rows, 1, (width, high), "token")
        d.cells(x, 48 + rank * rows / 2 * high, rows // 2, 1, (width, high), "rows")
        forward = d.box(x, 158, width, 34, "forward")
        backward = d.box(x, 240, width, 34, "backward")
        update = d.box(x, 410, width, 34, "optimizer step")
        d.down(batch, forward, "its rows")
        d.down(forward, backward, "its loss")
        d.drop(middle, backward.bottom, reduce.y, "gradients")
        d.drop(middle, reduce.bottom, update.y, "their sum")
        d.drop(middle, update.bottom, 476)
        d.text(middle, 488, "the same new weights", "note", SMALL)
    return Words(
        "One training step on two processes",
        "Two columns, rank 0 and rank 1, which have the same weights. Both have the same batch of eight "
        "rows. Rank 0 takes the first four rows and rank 1 the last four. Each rank does a forward pass "
        "with its rows, which gives its loss, and a backward pass, which gives its gradients. One "
        "all-reduce spans both columns and adds the gradients of both ranks. (PyTorch would take their "
        "mean; the trainer multiplies each loss by the world size, so the result is the sum.) Each rank "
        "does an optimizer step with the sum, so both have the same new weights.",
        "One step with DistributedDataParallel. The processes exchange only gradients: the same weights and "
        "the same gradients give the same new weights.",
    )
