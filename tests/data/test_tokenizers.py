"""Text to ids and back."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors

from labml_bert.data.tokenizers import (
    LONGEST_WORD,
    SPECIAL_TOKENS,
    character_tokenizer,
    check_same_tokenizer,
    cls_sep_ids,
    encode_corpus,
    encode_texts,
    load_tokenizer,
    save_tokenizer,
    special_token_ids,
    split_lines,
    unknown_fraction,
    word_tokenizer,
    wordpiece_tokenizer,
)
from labml_bert.finetuning import encode_examples
from labml_bert.labeled_text import Example

TEXT = "Ünïcode, tabs\tand\r\n line ends; [MASK] is text here. 日本語 🙂\n" * 400


def test_a_character_tokenizer_round_trips_exactly() -> None:
    tokenizer = character_tokenizer([TEXT])
    ids = encode_corpus(tokenizer, [TEXT])
    assert tokenizer.decode(ids.tolist(), skip_special_tokens=False) == TEXT + "\n\n"
    assert len(ids) == len(TEXT) + 2
    assert tokenizer.get_vocab_size() == len(set(TEXT)) + 5


def test_special_tokens_come_first_and_unknown_characters_are_unk() -> None:
    tokenizer = character_tokenizer(["abc"])
    assert special_token_ids(tokenizer) == [0, 1, 2, 3, 4]
    assert tokenizer.encode("a?[MASK]").ids == [5, 1, 4]


def test_mask_is_plain_text_in_a_corpus_and_a_special_token_elsewhere() -> None:
    tokenizer = character_tokenizer([TEXT])
    assert 4 not in encode_corpus(tokenizer, [TEXT]).tolist()
    assert tokenizer.encode("[MASK]").ids == [4]


def test_a_tokenizer_that_pads_or_truncates_still_gives_the_ids_of_each_whole_text() -> None:
    tokenizer = character_tokenizer([TEXT])
    ids, texts = encode_corpus(tokenizer, [TEXT]), ["a line", "a tab\t"]
    expected = encode_texts(tokenizer, texts)
    tokenizer.enable_padding(length=20)
    tokenizer.enable_truncation(3)
    settings = tokenizer.to_str()
    assert encode_texts(tokenizer, texts) == expected and [*map(len, expected)] == [6, 6]
    assert encode_corpus(tokenizer, [TEXT]).equal(ids)
    assert tokenizer.to_str() == settings, "the settings belong to the caller"


def test_a_tokenizer_may_lack_some_special_tokens() -> None:
    """A byte-level tokenizer needs no `[UNK]`."""
    tokenizer = Tokenizer(models.WordLevel({"[PAD]": 0, "[CLS]": 1, "[SEP]": 2, "[MASK]": 3, "cat": 4}))
    assert cls_sep_ids(tokenizer) == (1, 2)
    row = encode_examples(tokenizer, [Example("cat", 0, None)], 8)[0]
    assert row.input_ids == [1, 4, 2]
    assert unknown_fraction(tokenizer, torch.tensor([1, 4, 2])) == 0
    lacks_sep = Tokenizer(models.WordLevel({"[CLS]": 0, "cat": 1}))
    with pytest.raises(ValueError, match=r"^the tokenizer has no \[CLS\] or no \[SEP\]; add both"):
        encode_examples(lacks_sep, [Example("cat", 0, None)], 8)


@pytest.mark.parametrize("change", ["no end tokens", "whitespace", "keeps controls", "long words"])
def test_auto_tokenizer_gives_the_ids_of_an_unusual_wordpiece_tokenizer(tmp_path: Path, change: str) -> None:
    tokenizer = wordpiece_tokenizer([TEXT], 200)
    if change == "no end tokens":
        tokenizer.post_processor = processors.Sequence([])
    elif change == "whitespace":
        tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    elif change == "keeps controls":
        tokenizer.normalizer = normalizers.BertNormalizer(clean_text=False, lowercase=False)
    else:
        tokenizer.model.max_input_chars_per_word = 4
    save_tokenizer(tokenizer, tmp_path)
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    for text in ("tabs, line ends; text", "a\u200bb tabs,x"):
        assert theirs(text).input_ids == tokenizer.encode(text).ids


def test_word_tokenizer() -> None:
    text = "The cat. the CAT, a dog; The end" * 3
    tokenizer = word_tokenizer([text], vocab_size=12)
    assert tokenizer.get_vocab_size() == 12
    ids = tokenizer.encode("THE cat zebra").ids
    assert tokenizer.id_to_token(ids[0]) == "the"
    assert ids[2] == 1
    assert special_token_ids(tokenizer) == [0, 1, 2, 3, 4]
    assert tokenizer.decode(ids[:2]) == "the cat"


def test_a_long_line_is_split_at_spaces() -> None:
    for text in ("word " * 1000, "w" * 5000, "\n" + "word " * 1000):
        pieces = split_lines(text, 100)
        assert "".join(pieces) == text and max(map(len, pieces)) <= 200
        # A space belongs to the next word, as in a byte-level vocabulary.
        assert text.startswith("w" * 9) or all(piece.startswith((" ", "\n")) for piece in pieces[1:])


def test_documents_are_only_split_at_line_ends() -> None:
    assert "".join(split_lines(TEXT, 100)) == TEXT
    assert all(piece.endswith("\n") for piece in split_lines(TEXT, 100))
    assert split_lines("") == []
    whole = word_tokenizer([TEXT])
    pieces = [i for i in encode_corpus(whole, [TEXT]).tolist() if i != whole.token_to_id("[MASK]")]
    assert len(pieces) == len(encode_corpus(whole, [TEXT]))


def test_a_saved_tokenizer_is_loaded_and_other_files_are_rejected(tmp_path: Path) -> None:
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


def test_a_model_with_more_embeddings_than_tokens_gets_its_own_remedy(tmp_path: Path) -> None:
    """In such a folder, the tokenizer that was saved with the model is the one that doesn't fit."""
    tokenizer = character_tokenizer(["abc"])
    save_tokenizer(tokenizer, tmp_path)
    path, size = tmp_path / "tokenizer.json", tokenizer.get_vocab_size()
    assert load_tokenizer(path, size).get_vocab_size() == size
    with pytest.raises(
        ValueError, match=rf"or call the model's resize_token_embeddings\({size}\) and save it"
    ):
        load_tokenizer(path, 64)
    with pytest.raises(ValueError, match=r"that was saved with the model$"):
        load_tokenizer(path, size - 1)


def test_special_tokens_that_are_only_in_the_vocabulary_are_not_split(tmp_path: Path) -> None:
    tokenizer = wordpiece_tokenizer([TEXT], 120)
    content = json.loads(tokenizer.to_str())
    content["added_tokens"] = []
    path = tmp_path / "tokenizer.json"
    path.write_text(json.dumps(content))
    bare, text = Tokenizer.from_file(str(path)), "a [MASK] b"
    assert bare.encode(text).ids != tokenizer.encode(text).ids
    assert load_tokenizer(path).encode(text).ids == tokenizer.encode(text).ids
    assert load_tokenizer(path).get_vocab() == tokenizer.get_vocab()


def test_special_tokens_have_the_names_of_the_original() -> None:
    assert SPECIAL_TOKENS == ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")


TRICKY = [
    "Ünïcode, tabs\tand\r\n line ends; [MASK] 日本語 नमस्ते 🙂 \u200b don't e-mail für İstanbul ﬁ ½ 한국어",
    "##usual [CLS] [SEP] unseen zzzqqq",
    "a" * 300,
    "",
]


@pytest.mark.parametrize("lowercase", [True, False])
def test_wordpiece_matches_transformers(lowercase: bool, tmp_path: Path) -> None:
    tokenizer = wordpiece_tokenizer([TEXT, *TRICKY] * 2, 300, lowercase)
    save_tokenizer(tokenizer, tmp_path)
    for kind in (transformers.AutoTokenizer, transformers.BertTokenizerFast):
        theirs = kind.from_pretrained(tmp_path)
        for text in TRICKY:
            assert theirs(text)["input_ids"] == tokenizer.encode(text).ids
        assert theirs("a b", "c")["input_ids"] == tokenizer.encode("a b", "c").ids
        special = [theirs.pad_token_id, theirs.unk_token_id, theirs.cls_token_id]
        assert [*special, theirs.sep_token_id, theirs.mask_token_id] == [0, 1, 2, 3, 4]
        assert len(theirs) == tokenizer.get_vocab_size()
    assert (
        load_tokenizer(tmp_path / "tokenizer.json").encode(TRICKY[0]).ids == tokenizer.encode(TRICKY[0]).ids
    )
    assert (tmp_path / "vocab.txt").read_text(encoding="utf-8").split("\n")[:5] == list(SPECIAL_TOKENS)


def test_transformers_loads_a_character_tokenizer(tmp_path: Path) -> None:
    tokenizer = character_tokenizer([TEXT])
    save_tokenizer(tokenizer, tmp_path)
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    assert theirs(TRICKY[0])["input_ids"] == tokenizer.encode(TRICKY[0]).ids


def test_a_corpus_gets_no_special_tokens() -> None:
    tokenizer = wordpiece_tokenizer([TEXT], 200)
    assert tokenizer.encode("tabs").tokens[:1] == ["[CLS]"]
    assert not {0, 2, 3, 4} & {*encode_corpus(tokenizer, [TEXT]).tolist()}


def test_only_a_cased_tokenizer_keeps_accents() -> None:
    text = "für नमस्ते"
    cased, uncased = (wordpiece_tokenizer([text], 100, lowercase) for lowercase in (False, True))
    assert cased.decode(cased.encode(text).ids) == text
    assert uncased.decode(uncased.encode(text).ids) != text


def test_wordpiece_vocabulary_must_hold_the_alphabet() -> None:
    with pytest.raises(ValueError, match="4 pieces and 5 special tokens; raise it to at least 9"):
        wordpiece_tokenizer(["ab a c"], 8)
    assert wordpiece_tokenizer(["ab a c"], 9).get_vocab_size() == 9
    with pytest.raises(ValueError, match="no text"):
        wordpiece_tokenizer([])
    # The library would end the process, because it has no memory for so many pieces.
    with pytest.raises(ValueError, match="vocab_size is 1000000000000; it must be at most 10,000,000"):
        wordpiece_tokenizer(["ab a c"], 10**12)


@pytest.mark.parametrize("make_tokenizer", [word_tokenizer, wordpiece_tokenizer])
def test_ctrl_c_stops_the_training_of_a_vocabulary(make_tokenizer: Callable[..., Tokenizer]) -> None:
    """The library itself would read all texts first, which can take minutes."""

    read = 0
    text = "the cat sat on the mat. " * 500

    def texts() -> Iterator[str]:
        nonlocal read
        for read in range(20_000):
            if read == 600:
                os.kill(os.getpid(), signal.SIGINT)
            yield text

    with pytest.raises(KeyboardInterrupt):
        make_tokenizer(texts())
    assert 600 <= read < 19_000


def test_ctrl_c_between_two_parts_of_the_texts_restores_the_tokenizer() -> None:
    tokenizer = word_tokenizer(["the cat the cat"])
    texts = ["the cat"] * 250
    assert len(encode_texts(tokenizer, texts)) == 250
    setting = tokenizer.encode_special_tokens

    class Interrupting:
        encode_special_tokens = setting
        padding = truncation = None
        calls = 0

        def encode_batch_fast(self, texts: list[str], add_special_tokens: bool) -> list[Any]:
            self.calls += 1
            if self.calls == 2:
                raise KeyboardInterrupt
            return tokenizer.encode_batch_fast(texts, add_special_tokens=add_special_tokens)

    interrupting: Any = Interrupting()
    with pytest.raises(KeyboardInterrupt):
        encode_texts(interrupting, texts)
    assert interrupting.encode_special_tokens is setting


def test_a_vocabulary_is_learned_from_a_long_word_in_parts() -> None:
    """A file without spaces or line breaks is a single word, from which the library would learn for hours."""
    tokenizer = wordpiece_tokenizer(["ab" * 8192, "a b"], vocab_size=60)
    assert 500 < max(len(token.removeprefix("##")) for token in tokenizer.get_vocab()) <= LONGEST_WORD
    # The tokenizer deletes these characters, so they separate no words.
    deleted = "ab\x0b\x0c\x1c\x1d\x1e\x1f\x85" * 8192
    assert wordpiece_tokenizer([deleted, "a b"], vocab_size=60).get_vocab() == tokenizer.get_vocab()


@pytest.mark.processes
@pytest.mark.long
def test_wordpiece_is_the_same_in_every_process() -> None:
    program = (
        "import random; r = random.Random(0)\n"
        "from labml_bert.data.tokenizers import wordpiece_tokenizer as w\n"
        "t = [''.join(r.choice('abcdefgh ') for _ in range(300)) for _ in range(50)]\n"
        "print(sorted(w(t, 200).get_vocab().items()))"
    )
    runs = {subprocess.run([sys.executable, "-c", program], capture_output=True).stdout for _ in range(3)}
    assert len(runs) == 1
    assert b"##" in runs.pop()


def test_truncation_and_padding_are_removed_on_loading(tmp_path: Path) -> None:
    """After a call with truncation or padding, `transformers` saves these settings with the tokenizer."""
    tokenizer = wordpiece_tokenizer(["some words to be cut"] * 3, 60)
    tokenizer.enable_truncation(4)
    tokenizer.enable_padding(length=20)
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    ids = load_tokenizer(tmp_path / "tokenizer.json").encode("some words to be cut").ids
    tokenizer.no_truncation()
    tokenizer.no_padding()
    assert ids == tokenizer.encode("some words to be cut").ids
    assert len(ids) > 4


def test_huge_padding_is_removed_before_the_first_text(tmp_path: Path) -> None:
    content = json.loads(wordpiece_tokenizer(["some words"] * 3, 60).to_str())
    pad = {"direction": "Right", "pad_to_multiple_of": None, "pad_id": 0, "pad_type_id": 0}
    content["padding"] = {"strategy": {"Fixed": 10**12}, **pad, "pad_token": "[PAD]"}
    (tmp_path / "tokenizer.json").write_text(json.dumps(content))
    assert len(load_tokenizer(tmp_path / "tokenizer.json").encode("some words").ids) == 4


def test_a_special_token_with_an_id_of_its_own_is_rejected(tmp_path: Path) -> None:
    content = json.loads(wordpiece_tokenizer(["some words"] * 3, 60).to_str())
    content["post_processor"]["special_tokens"]["[SEP]"]["ids"] = [999]
    (tmp_path / "tokenizer.json").write_text(json.dumps(content))
    with pytest.raises(ValueError, match="it gives a text the id 999, and has"):
        load_tokenizer(tmp_path / "tokenizer.json")


def test_ids_with_a_gap_are_rejected(tmp_path: Path) -> None:
    settings = json.loads(word_tokenizer(["some words"] * 3).to_str())
    settings["model"]["vocab"]["words"] = 99
    (tmp_path / "tokenizer.json").write_text(json.dumps(settings))
    with pytest.raises(ValueError, match="are not 0, 1, 2"):
        load_tokenizer(tmp_path / "tokenizer.json")


def test_a_tokenizer_that_fails_only_when_it_encodes_is_refused(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """The library panics for the first of two bad tokenizers, and raises an error for the second."""
    path = tmp_path / "tokenizer.json"
    for part, name in (("post_processor", "special_tokens"), ("model", "unk_token")):
        content = json.loads(wordpiece_tokenizer(["a cat saw a dog " * 20], 60).to_str())
        content[part][name] = {} if name == "special_tokens" else "[NO]"
        path.write_text(json.dumps(content))
        with pytest.raises(ValueError, match=r"tokenizer.json is not a tokenizer"):
            load_tokenizer(path)
    # A word can be unknown because it's long, even if all characters are known.
    content = json.loads(wordpiece_tokenizer(["a b \ua66e x xx " * 20], 60).to_str())
    path.write_text(json.dumps(content | {"model": content["model"] | {"unk_token": "[NO]"}}))
    with pytest.raises(ValueError, match=r"tokenizer.json is not a tokenizer"):
        load_tokenizer(path)
    assert capfd.readouterr().err == ""


def test_words_that_are_too_long_count_by_their_letters() -> None:
    """Thai has no spaces between words. A phrase of more than 100 letters would become a single `[UNK]`."""
    short, long = "ไทยมีเสียง ", "ไทยมีเสียง" * 11 + " "
    text = [short * 89 + long + "\n"]
    tokenizer = wordpiece_tokenizer(text, 100, lowercase=False)
    ids = encode_corpus(tokenizer, text)
    assert ids.tolist().count(tokenizer.token_to_id("[UNK]")) == 1
    assert unknown_fraction(tokenizer, ids, text) == 110 / 1000
    tokens = pytest.approx(1 / len(ids))
    assert unknown_fraction(tokenizer, ids) == tokens
    # These words have separators that aren't spaces.
    fine = ["a.b-" * 100, "日本語" * 100]
    assert unknown_fraction(tokenizer, ids, fine) == tokens
    characters = character_tokenizer(text)
    assert unknown_fraction(characters, encode_corpus(characters, text), text) == 0.0


@pytest.mark.parametrize("train", [word_tokenizer, wordpiece_tokenizer])
def test_a_single_text_is_not_a_list_of_characters(train: Callable[[str, int], Tokenizer]) -> None:
    with pytest.raises(ValueError, match="texts is a single text; pass a list of texts"):
        train("the cat sat on the mat", 60)


def test_tokenizers_may_be_loaded_in_several_threads(tmp_path: Path) -> None:
    """The library prints its panics, so nothing reaches stderr while a tokenizer is loaded."""
    save_tokenizer(word_tokenizer(["the cat the cat"]), tmp_path)
    path = tmp_path / "tokenizer.json"
    before = os.fstat(2)
    with ThreadPoolExecutor(4) as pool:
        assert len([*pool.map(load_tokenizer, [path] * 200)]) == 200
    assert os.path.samestat(before, os.fstat(2))


def test_how_a_tokenizer_pads_and_truncates_makes_no_other_tokenizer(tmp_path: Path) -> None:
    tokenizer = word_tokenizer(["the cat the cat"])
    tokenizer.enable_truncation(4)
    tokenizer.enable_padding()
    save_tokenizer(tokenizer, tmp_path)
    assert load_tokenizer(tmp_path / "tokenizer.json").truncation is None
    for change in (tokenizer.no_truncation, tokenizer.no_padding):
        change()
        check_same_tokenizer(tokenizer, tmp_path)
    with pytest.raises(ValueError, match="the tokenizer has changed since"):
        check_same_tokenizer(word_tokenizer(["a dog a dog"]), tmp_path)


@pytest.mark.parametrize("is_missing", [True, False])
def test_a_damaged_tokenizer_is_only_replaced_by_the_same_one(tmp_path: Path, is_missing: bool) -> None:
    tokenizer = word_tokenizer(["the cat the cat"])
    save_tokenizer(tokenizer, tmp_path)
    path = tmp_path / "tokenizer.json"
    path.unlink() if is_missing else path.write_text("")
    check_same_tokenizer(tokenizer, tmp_path)
    with pytest.raises(ValueError, match="the tokenizer has changed since"):
        check_same_tokenizer(word_tokenizer(["the dog the dog"]), tmp_path)
