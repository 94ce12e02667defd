"""Texts, position tables and batches too small for the longest sequence are rejected."""

import pytest
import torch

from labml_bert.data.corpora import Corpus
from labml_bert.data.masked_text import MaskedText, check_lengths
from labml_bert.data.tokenizers import wordpiece_tokenizer

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


def test_a_script_without_spaces_is_named_as_the_cause() -> None:
    """A text in Thai can have thousands of letters without a space. As one word, it becomes one `[UNK]`."""
    corpus = Corpus("thai", ["ภาษาไทย" * 1000], ["ภาษาไทย" * 100])
    tokenizer = wordpiece_tokenizer(["ภาษา ไทย"], 60)
    with pytest.raises(ValueError, match=r"1 tokens are \[UNK\], .* over 100 letters; put spaces between"):
        MaskedText(corpus, tokenizer, 16, 64, 16, 0.3, torch.Generator())
    corpus = Corpus("thai", ["ภาษาไทย " * 1000], ["ภาษาไทย" * 100])
    with pytest.raises(ValueError, match=r"most of the held-out text's 1 tokens are \[UNK\]"):
        MaskedText(corpus, tokenizer, 16, 64, 16, 0.3, torch.Generator())
    with pytest.raises(ValueError, match="shorter than one sequence of 16"):
        MaskedText(Corpus("short", ["ภาษา"], ["ภาษา"]), tokenizer, 16, 64, 16, 0.3, torch.Generator())
