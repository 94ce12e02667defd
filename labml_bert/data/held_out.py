"""
# Held-out text, masked once

You can compare two results only if both were measured on the same masks. So each run masks its held-out text
once, by the paper's rule and with a fixed seed. Two runs with the same held-out windows or pairs are
evaluated on the same masks, whatever masks they use in training."""

from collections.abc import Callable, Iterable

import torch
from torch import Tensor

from labml_bert.mlm import IGNORE, MaskedTokens, TokenMasker

# In evaluations, a model predicts about this fraction of the held-out tokens that aren't special.
HELD_OUT_MLM_PROBABILITY = 0.15
SEED = 1


def held_out_generator() -> torch.Generator:
    """Returns a generator with a fixed seed, so that runs with the same held-out text use the same masks."""
    return torch.Generator().manual_seed(SEED)


def mask_held_out(
    windows: Tensor, make_masker: Callable[[torch.Generator, float], TokenMasker]
) -> MaskedTokens:
    """
    Masks windows `(N, T)` with the masker that `make_masker(generator, mlm_probability)` returns.

    Raises `ValueError` if the masker chooses none of the tokens.
    """
    masked = make_masker(held_out_generator(), HELD_OUT_MLM_PROBABILITY)(windows)
    check_labels([masked.labels])
    return masked


def check_labels(labels: Iterable[Tensor]) -> None:
    """Raises `ValueError` if no token of the held-out batches with these `labels` was chosen."""
    if all((batch == IGNORE).all() for batch in labels):
        raise ValueError("no token of the held-out text was chosen for masking; use more text")
