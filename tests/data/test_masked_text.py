"""Texts, positions and batches that cannot hold the longest sequence are refused."""

import pytest

from labml_bert.data.masked_text import check_lengths

FITS = {"train": 16, "valid": 16, "longest": 16, "batch_tokens": 16, "max_position_embeddings": 16}


def test_what_just_fits_is_taken() -> None:
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
def test_what_does_not_fit_is_refused(changes: dict[str, int], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        check_lengths(**(FITS | changes))
