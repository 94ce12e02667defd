"""
# Held-out text, masked once

Two results can be compared only if they were measured on the same masks. So held-out text is masked once,
by the paper's rule and with a seed of its own, whatever the training does: the same 15% in every evaluation
of every run."""

from collections.abc import Callable

import torch
from torch import Tensor

from labml_bert.mlm import IGNORE, MaskedTokens, TokenMasker

# The fraction of the held-out tokens that a model has to predict.
HELD_OUT_MLM_PROBABILITY = 0.15
SEED = 1


def held_out_generator() -> torch.Generator:
    """Draws the same masks in every run."""
    return torch.Generator().manual_seed(SEED)


def mask_held_out(
    windows: Tensor, make_masker: Callable[[torch.Generator, float], TokenMasker]
) -> MaskedTokens:
    """
    Masks windows `(N, T)` with `make_masker(generator, mlm_probability)`.

    Raises `ValueError` if nothing in them can be masked.
    """
    masked = make_masker(held_out_generator(), HELD_OUT_MLM_PROBABILITY)(windows)
    if (masked.labels == IGNORE).all():
        raise ValueError("the held-out text has no token of the vocabulary to predict; give more text")
    return masked
