"""Text to ids and back."""

from pathlib import Path

import pytest
from tokenizers import Tokenizer

from labml_bert.tokenizers import (
    SPECIAL_TOKENS,
    character_tokenizer,
    encode_corpus,
    load_tokenizer,
    special_token_ids,
    split_lines,
    word_tokenizer,
)

TEXT = "Ünïcode, tabs\tand\r\n line ends; [MASK] is text here. 日本語 🙂\n" * 400


def test_characters_decode_to_the_letter() -> None:
    tokenizer = character_tokenizer([TEXT])
    ids = encode_corpus(tokenizer, [TEXT])
    assert tokenizer.decode(ids.tolist(), skip_special_tokens=False) == TEXT + "\n\n"
    assert len(ids) == len(TEXT) + 2
    assert tokenizer.get_vocab_size() == len(set(TEXT)) + 5


def test_specials_come_first_and_unknown_characters_are_unk() -> None:
    tokenizer = character_tokenizer(["abc"])
    assert special_token_ids(tokenizer) == [0, 1, 2, 3, 4]
    assert tokenizer.encode("a?[MASK]").ids == [5, 1, 4]


def test_mask_in_a_corpus_is_text_and_in_a_question_a_mask() -> None:
    tokenizer = character_tokenizer([TEXT])
    assert 4 not in encode_corpus(tokenizer, [TEXT]).tolist()
    assert tokenizer.encode("[MASK]").ids == [4]


def test_words() -> None:
    text = "The cat. the CAT, a dog; The end" * 3
    tokenizer = word_tokenizer([text], vocab_size=12)
    assert tokenizer.get_vocab_size() == 12
    ids = tokenizer.encode("THE cat zebra").ids
    assert tokenizer.id_to_token(ids[0]) == "the"
    assert ids[2] == 1
    assert special_token_ids(tokenizer) == [0, 1, 2, 3, 4]
    assert tokenizer.decode(ids[:2]) == "the cat"


def test_documents_are_cut_at_line_ends_only() -> None:
    assert "".join(split_lines(TEXT, 100)) == TEXT
    assert all(piece.endswith("\n") for piece in split_lines(TEXT, 100))
    assert split_lines("") == []
    whole = word_tokenizer([TEXT])
    pieces = [i for i in encode_corpus(whole, [TEXT]).tolist() if i != whole.token_to_id("[MASK]")]
    assert len(pieces) == len(encode_corpus(whole, [TEXT]))


def test_a_tokenizer_is_read_back_and_others_are_refused(tmp_path: Path) -> None:
    tokenizer = character_tokenizer([TEXT])
    path = tmp_path / "tokenizer.json"
    with pytest.raises(ValueError, match="no tokenizer at"):
        load_tokenizer(path)
    tokenizer.save(str(path))
    assert load_tokenizer(path).get_vocab() == tokenizer.get_vocab()
    path.write_text("{}")
    with pytest.raises(ValueError, match="is not a tokenizer"):
        load_tokenizer(path)
    from tokenizers import models

    Tokenizer(models.WordLevel({"[UNK]": 0}, unk_token="[UNK]")).save(str(path))
    with pytest.raises(ValueError, match=r"has no \[PAD\]"):
        load_tokenizer(path)


def test_names_are_those_of_the_original() -> None:
    assert SPECIAL_TOKENS == ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
