r"""
# Short sequences first

Why does a masked language model sit for so long at the loss of a frequency table? Every token sees
every other, so when one is hidden, nothing says which of the 127 others to blame. In a sequence of
16 there are only 15 suspects. So training starts short and grows, and the number of tokens in a step
stays the same: with $N$ tokens a step and length $T$ there are $N / T$ sequences.

One thing is easily missed. If a short sequence always stood at positions 0 to 15, the other
position embeddings would still be noise when the length grows. So each sequence is placed at a
random offset among the positions, and all of them are trained from the first step:

$$p_t = o + t, \qquad o \sim \operatorname{Uniform}\{0, \dots, P - T\}$$

with $P$ the number of positions the model has.

Letters for sizes: `B` sequences in the batch, `T` tokens in a sequence.
"""

from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import NamedTuple

import torch
from torch import Tensor


@dataclass(frozen=True)
class Stage:
    """One length and the share of the training budget that it gets."""

    length: int
    share: float


def parse_schedule(text: str) -> list[Stage]:
    """
    ## A schedule as text

    `"16,32,64,128"` gives each length an equal share. `"16:1,32:1,64:2,128:4"` weighs them.

    Raises `ValueError` where it is not a list of growing lengths, or a weight is not positive.
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
        raise ValueError(f"bad schedule {text!r}: lengths must grow, like 16,32,64,128")
    if not all(weight > 0 for weight in weights) or not sum(weights) < float("inf"):
        raise ValueError(f"bad schedule {text!r}: every weight must be above 0, and their sum finite")
    return [Stage(a, b / sum(weights)) for a, b in zip(lengths, weights, strict=True)]


def length_at(stages: list[Stage], progress: float) -> int:
    """The length in force when the share `progress` of the budget, 0 to 1, is spent."""
    ends = accumulate(stage.share for stage in stages)
    return next((s.length for s, end in zip(stages, ends, strict=True) if progress < end), stages[-1].length)


def stage_ends(stages: list[Stage]) -> list[float]:
    """The fractions of the budget, 0 to 1, at which the stages end."""
    return [min(end, 1.0) for end in accumulate(stage.share for stage in stages)]


class Batch(NamedTuple):
    """Text before any masking, ready for the encoder."""

    input_ids: Tensor
    """`(B, T)`"""
    position_ids: Tensor
    """`(B, T)`"""


def random_windows(
    token_ids: Tensor, B: int, T: int, max_position_embeddings: int, generator: torch.Generator
) -> Batch:
    """
    ## Random windows at random positions

    `B` windows of `T` tokens from one long row of tokens. All randomness comes from `generator`, so its
    state is the position in the data: saved with a checkpoint, the same windows follow after a resume."""
    start = torch.randint(len(token_ids) - T + 1, (B, 1), generator=generator)  # (B, 1)
    offset = torch.randint(max_position_embeddings - T + 1, (B, 1), generator=generator)  # (B, 1)
    t = torch.arange(T)  # (T)
    return Batch(token_ids[start + t], offset + t)


def put_cls_sep(input_ids: Tensor, frame: tuple[int, int] | None) -> Tensor:
    """
    Puts the ids of `[CLS]` and `[SEP]` over the first and the last token of each row `(B, T)`, so that the
    length stays what it is. Without a `frame` the rows stay as they are.
    """
    if frame is None:
        return input_ids
    input_ids = input_ids.clone()  # (B, T)
    input_ids[:, 0], input_ids[:, -1] = frame
    return input_ids
