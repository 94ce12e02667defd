r"""
# Short sequences first

Why does a masked language model stay at the loss of the unigram baseline for so long? It's a problem of
credit assignment. Every token sees all the others, and nothing says which of the 127 others predicts the
masked one. In a sequence of 16 tokens there are only 15 suspects. So we start with short sequences and make
them longer. The number of tokens per step stays the same: with $N$ tokens per step and length $T$, a batch
has $N / T$ sequences.

One thing is easy to miss. If short sequences always used positions 0 to 15, the embeddings of the other
positions would still be random when the sequences get longer. So each sequence gets a random offset, and all
positions are trained from the first step:

$$p_t = o + t, \qquad o \sim \operatorname{Uniform}\{0, \dots, T_{\max} - T\}$$

where $T_{\max}$ is the number of positions that the model has.

Letters for sizes: `B` sequences in the batch, `T` tokens in a sequence.
"""

from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import NamedTuple

import torch
from torch import Tensor


@dataclass(frozen=True)
class Stage:
    """A sequence length and the fraction of the training budget that it gets."""

    length: int
    fraction: float


def parse_schedule(text: str) -> list[Stage]:
    """
    ## A schedule as text

    `"16,32,64,128"` splits the budget equally between the lengths, `"16:1,32:1,64:2,128:4"` by weight.

    Raises `ValueError` if the lengths don't increase or a weight isn't positive.
    """
    lengths, weights = [], []
    for part in text.split(","):
        length, _, weight = part.partition(":")
        try:
            lengths.append(int(length))
            weights.append(float(weight or 1))
        except ValueError:
            raise ValueError(f"bad schedule {text!r}: write lengths like 16,32,64,128") from None
    if min(lengths) < 2:
        raise ValueError(f"bad schedule {text!r}: a sequence needs at least 2 tokens")
    if any(a >= b for a, b in pairwise(lengths)):
        raise ValueError(f"bad schedule {text!r}: lengths must increase, like 16,32,64,128")
    if not all(weight > 0 for weight in weights) or not sum(weights) < float("inf"):
        raise ValueError(f"bad schedule {text!r}: every weight must be above 0, and their sum finite")
    return [Stage(a, b / sum(weights)) for a, b in zip(lengths, weights, strict=True)]


def length_at(stages: list[Stage], progress: float) -> int:
    """The sequence length after the fraction `progress` of the budget, 0 to 1."""
    ends = accumulate(stage.fraction for stage in stages)
    return next((s.length for s, end in zip(stages, ends, strict=True) if progress < end), stages[-1].length)


def stage_ends(stages: list[Stage]) -> list[float]:
    """The fractions of the budget, 0 to 1, at which the stages end."""
    return [min(end, 1.0) for end in accumulate(stage.fraction for stage in stages)]


class Batch(NamedTuple):
    """Windows of text, before any masking."""

    input_ids: Tensor
    """`(B, T)`"""
    position_ids: Tensor
    """`(B, T)`"""


def random_windows(
    token_ids: Tensor, B: int, T: int, max_position_embeddings: int, generator: torch.Generator
) -> Batch:
    """
    ## Random windows at random positions

    Draws `B` windows of `T` tokens from one long row of tokens. All randomness comes from `generator`, so its
    state is the position in the data. If you save it in a checkpoint, the same windows follow after a resume.
    """
    start = torch.randint(len(token_ids) - T + 1, (B, 1), generator=generator)  # (B, 1)
    offset = torch.randint(max_position_embeddings - T + 1, (B, 1), generator=generator)  # (B, 1)
    t = torch.arange(T)  # (T)
    return Batch(token_ids[start + t], offset + t)


def put_cls_sep(input_ids: Tensor, cls_sep: tuple[int, int] | None) -> Tensor:
    """
    Replaces the first and the last token of each row `(B, T)` with `[CLS]` and `[SEP]`, whose ids are
    `cls_sep`. The length stays the same. If `cls_sep` is `None`, returns `input_ids` itself.
    """
    if cls_sep is None:
        return input_ids
    input_ids = input_ids.clone()  # (B, T)
    input_ids[:, 0], input_ids[:, -1] = cls_sep
    return input_ids
