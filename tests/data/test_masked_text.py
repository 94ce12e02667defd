"""Texts, position tables and batches too small for the longest sequence are rejected."""

import pytest

from labml_bert.data.masked_text import check_lengths

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
