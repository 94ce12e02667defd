r"""
# Random windows of a text

Where do the rows of a batch come from? The text is one long row of tokens, and each row of the batch is a
window of it that starts at a random token.

The position embeddings are easy to forget. If sequences of 16 tokens always used positions 0 to 15, the
embeddings of the other positions would still be untrained when the sequences get longer. So each window also
gets a random offset $o$, and training reaches all positions from the beginning:

$$p_t = o + t, \qquad o \sim \operatorname{Uniform}\{0, \dots, T_{\text{max}} - T\}$$

Here $T_{\text{max}}$ is the number of positions that the model has.

Letters for sizes: `B` sequences in the batch, `T` tokens in a sequence.
"""

from typing import NamedTuple

import torch
from torch import Tensor


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
    Draws `B` windows of `T` tokens from one long row of tokens. All randomness comes from `generator`, so its
    state determines which windows come next. If you save this state in a checkpoint, a resumed run continues
    with the same windows.
    """
    start = torch.randint(len(token_ids) - T + 1, (B, 1), generator=generator)  # (B, 1)
    offset = torch.randint(max_position_embeddings - T + 1, (B, 1), generator=generator)  # (B, 1)
    t = torch.arange(T)  # (T)
    return Batch(token_ids[start + t].long(), offset + t)


def put_cls_sep(input_ids: Tensor, cls_sep: tuple[int, int] | None) -> Tensor:
    """
    Replaces the first token of each row, `(B, T)`, with `[CLS]` and the last with `[SEP]`, so the length
    stays the same. `cls_sep` contains the two ids. If `cls_sep` is `None`, returns `input_ids` itself.
    """
    if cls_sep is None:
        return input_ids
    input_ids = input_ids.clone()  # (B, T)
    input_ids[:, 0], input_ids[:, -1] = cls_sep
    return input_ids
