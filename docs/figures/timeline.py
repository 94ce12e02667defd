"""
# Models before and after BERT

A timeline: when each model or method was first published, and what it changed. The axis is true to scale,
but the entries are spaced evenly, so that the crowded years can be read. A line leads from each entry to its
date.
"""

from typing import NamedTuple

from markupsafe import Markup

from docs.literate.chart import figure, text


class Entry(NamedTuple):
    """A model or a method."""

    name: str
    date: str
    """Year and month of the first version of its paper, such as 2018-10."""
    change: str
    """What it changed, short enough for a phone."""
    is_corrupted: bool
    """Whether the model learns from input that is partly masked or replaced."""
    source: str
    """The address of the paper."""


def arxiv(number: str) -> str:
    """The address of a paper."""
    return f"https://arxiv.org/abs/{number}"


GPT_PAPER = "https://cdn.openai.com/research-covers/language-unsupervised/language_understanding_paper.pdf"

# Sorted by date. An arXiv number begins with the year and the month of the first version.
ENTRIES = (
    Entry("word2vec", "2013-01", "one vector for each word", False, arxiv("1301.3781")),
    Entry("Transformer", "2017-06", "attention, no recurrence", False, arxiv("1706.03762")),
    Entry("ELMo", "2018-02", "two LSTMs, one per direction", False, arxiv("1802.05365")),
    Entry("GPT", "2018-06", "left to right, then fine-tuned", False, GPT_PAPER),
    Entry("BERT", "2018-10", "both sides, by masking tokens", True, arxiv("1810.04805")),
    Entry("RoBERTa", "2019-07", "more text, longer, no NSP", True, arxiv("1907.11692")),
    Entry("ALBERT", "2019-09", "one block shared by all layers", True, arxiv("1909.11942")),
    Entry("ELECTRA", "2020-03", "a loss at every position", True, arxiv("2003.10555")),
    Entry("DeBERTa", "2020-06", "content apart from position", True, arxiv("2006.03654")),
    Entry("SimCSE", "2021-04", "contrastive, for sentences", False, arxiv("2104.08821")),
    Entry("DINO", "2021-04", "self-distillation, for images", False, arxiv("2104.14294")),
    Entry("LoRA", "2021-06", "fine-tuning with few weights", False, arxiv("2106.09685")),
    Entry("MAE", "2021-11", "masking, for images", True, arxiv("2111.06377")),
    Entry("ModernBERT", "2024-12", "new block, longer sequences", True, arxiv("2412.13663")),
)

ROW, AXIS, NAME, CHANGE = 36, 66, 138, 308


def year(date: str) -> float:
    """A date as a number: 2018-07 is 2018.5."""
    whole, month = date.split("-")
    return int(whole) + (int(month) - 1) / 12


def timeline() -> Markup:
    """Returns a `figure`, as HTML on one line."""
    first = int(year(ENTRIES[0].date))
    last = int(year(ENTRIES[-1].date)) + 1
    height = ROW * len(ENTRIES)
    scale = (height - ROW) / (last - first)
    parts = [f'<path class="grid" d="M{AXIS},{ROW / 2:g}V{height - ROW / 2:g}"/>']
    for number in range(first, last + 1):
        y = ROW / 2 + (number - first) * scale
        parts.append(f'<path class="grid" d="M{AXIS - 6},{y:.1f}H{AXIS}"/>')
        parts.append(text(AXIS - 12, f"{y + 6:.1f}", str(number), text_anchor="end"))
    for i, entry in enumerate(ENTRIES):
        y, at = (i + 0.5) * ROW, ROW / 2 + (year(entry.date) - first) * scale
        kind = "point" if entry.is_corrupted else "point n2"
        parts.append(f'<path class="level" d="M{AXIS},{at:.1f}L{NAME - 20},{y:.1f}"/>')
        parts.append(f'<circle class="{kind}" cx="{NAME - 12}" cy="{y:.1f}" r="5"/>')
        parts.append(text(NAME, f"{y + 6:.1f}", entry.name))
        parts.append(text(CHANGE, f"{y + 6:.1f}", entry.change, _class="level"))
    mark = '<svg viewBox="0 0 32 8" aria-hidden="true"><circle class="{}" cx="16" cy="4" r="3"/></svg>'
    key = [
        (mark.format("point"), "learns from corrupted input"),
        (mark.format("point n2"), "learns in another way"),
    ]
    story = "; ".join(f"{entry.date}: {entry.name}, {entry.change}" for entry in ENTRIES) + "."
    return figure(
        "".join(parts),
        height,
        "Models before and after BERT",
        story,
        "When the first version of each paper appeared, and what changed. Filled marks: part of the input is "
        "masked or replaced, and the model learns by finding out what was there.",
        key,
    )
