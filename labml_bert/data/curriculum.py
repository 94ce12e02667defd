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


class Batch(NamedTuple):
    """Text before any masking, ready for the encoder."""

    input_ids: Tensor
    """`(B, T)`"""
    position_ids: Tensor
    """`(B, T)`"""


class Curriculum:
    """
    ## The batches of a run

    Windows cut at random from one long row of tokens. All randomness comes from `generator`, so its
    state is the position in the data: saved with a checkpoint, the same windows follow after a resume.
    """

    def __init__(
        self,
        token_ids: Tensor,
        stages: list[Stage],
        batch_tokens: int,
        max_position_embeddings: int,
        generator: torch.Generator,
        frame: tuple[int, int] | None = None,
    ):
        """
        `token_ids` is one-dimensional, `batch_tokens` the number of tokens in a step, `frame` as in `framed`.

        Raises `ValueError` where the longest stage does not fit the text, the positions or the batch.
        """
        longest = stages[-1].length
        if longest > max_position_embeddings:
            raise ValueError(
                f"schedule reaches length {longest} but max_position_embeddings is "
                f"{max_position_embeddings}; shorten the schedule or give the model more positions"
            )
        if longest > len(token_ids):
            raise ValueError(
                f"the text has {len(token_ids)} training tokens, shorter than one sequence of {longest}; "
                "give more text or shorten the schedule"
            )
        if longest > batch_tokens:
            raise ValueError(
                f"{batch_tokens} tokens a step do not hold one sequence of {longest}; "
                "raise the batch or shorten the schedule"
            )
        self.token_ids = token_ids
        self.stages = stages
        self.batch_tokens = batch_tokens
        self.max_position_embeddings = max_position_embeddings
        self.generator = generator
        self.frame = frame

    def length(self, progress: float) -> int:
        """The length in force when the share `progress` of the budget is spent."""
        return length_at(self.stages, progress)

    def batch(self, progress: float) -> Batch:
        """The next random windows, at the length that is in force."""
        T = self.length(progress)
        B = self.batch_tokens // T
        start = torch.randint(len(self.token_ids) - T + 1, (B, 1), generator=self.generator)  # (B, 1)
        offset = torch.randint(
            self.max_position_embeddings - T + 1, (B, 1), generator=self.generator
        )  # (B, 1)
        t = torch.arange(T)  # (T)
        return Batch(framed(self.token_ids[start + t], self.frame), offset + t)


def framed(input_ids: Tensor, frame: tuple[int, int] | None) -> Tensor:
    """
    Puts the ids of `[CLS]` and `[SEP]` over the first and the last token of each row `(B, T)`, so that the
    length stays what it is. Without a `frame` the rows stay as they are.
    """
    if frame is None:
        return input_ids
    input_ids = input_ids.clone()  # (B, T)
    input_ids[:, 0], input_ids[:, -1] = frame
    return input_ids
