"""Texts that are too small for the longest sequence are rejected, and windows without labels come last."""

import pytest
import torch

from labml_bert.data.held_out import mask_held_out
from labml_bert.data.masked_text import check_lengths
from labml_bert.mlm import IGNORE, TokenMasker

FITS = {"train": 16, "valid": 16, "longest": 16, "batch_tokens": 16, "max_position_embeddings": 16}


def test_sizes_that_just_fit_are_accepted() -> None:
    check_lengths(**FITS)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"max_position_embeddings": 15}, "max_position_embeddings is 15"),
        ({"train": 15}, "shorter than one sequence of 16"),
        ({"batch_tokens": 15}, "too few for one sequence"),
        ({"valid": 15}, "the held-out tenth of the text has 15 tokens, shorter than one sequence of 16"),
    ],
)
def test_sizes_that_do_not_fit_are_rejected(changes: dict[str, int], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        check_lengths(**(FITS | changes))


def test_windows_without_labels_come_last() -> None:
    """A text may start with words outside the vocabulary. Evaluations during training read only the start."""
    unknown, mask, size = 0, 1, 50
    windows = torch.randint(2, size, (40, 30), generator=torch.Generator().manual_seed(0))
    windows[:10] = windows[20] = unknown
    masked = mask_held_out(windows, lambda g, p: TokenMasker(size, mask, [unknown, mask], p, generator=g))
    is_empty = (masked.labels == IGNORE).all(1)
    assert is_empty.nonzero().flatten().tolist() == [*range(29, 40)]
    # The other windows are in their order, each with its own labels.
    restored = torch.where(masked.labels == IGNORE, masked.input_ids, masked.labels)
    assert torch.equal(restored, torch.cat([windows[10:20], windows[21:], windows[:10], windows[20:21]]))
