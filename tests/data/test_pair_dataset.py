"""Text to Parquet to tensors: the pairs in the files, interrupted builds, batches against a slow oracle."""

import errno
import json
import multiprocessing
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest import mock

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, models, pre_tokenizers

from labml_bert import files, mlm, nsp
from labml_bert.checksums import SUMS
from labml_bert.data import pair_collator, pair_shards, paired_text, sentences
from labml_bert.data import pair_dataset as module
from labml_bert.data.corpora import Corpus
from labml_bert.data.masked_text import MaskedText
from labml_bert.data.pair_collator import MaskingArguments, PairBatches, PairCollator
from labml_bert.data.pair_dataset import build_dataset, group_documents, open_dataset
from labml_bert.data.pair_shards import (
    DatasetArguments,
    Shard,
    is_foreign,
    read_metadata,
    shard_fingerprint,
)
from labml_bert.data.paired_text import PairedText
from labml_bert.data.sentences import split_sentences
from labml_bert.data.tokenizers import (
    SPECIAL_TOKENS,
    TOKENIZER_FILES,
    character_tokenizer,
    word_tokenizer,
    wordpiece_tokenizer,
)
from labml_bert.mlm import IGNORE
from tests.support.damage import flip_bit
from tests.support.pairs import build_small_dataset
from tests.support.runs import small_text

CLS, SEP, MASK = 2, 3, 4


def numbered_documents(count: int, seed: int = 0) -> tuple[list[str], Tokenizer]:
    """Documents whose words are `d.s.w`: document, sentence, word. Each word is a token and occurs once."""
    r = random.Random(seed)
    vocab = {token: i for i, token in enumerate([*SPECIAL_TOKENS, "."])}
    documents = []
    for d in range(count):
        lines = []
        for s in range(r.randint(2, 12)):
            words = [f"{d}.{s}.{w}" for w in range(r.randint(1, 9))]
            vocab |= {word: len(vocab) + i for i, word in enumerate(words)}
            lines.append(" ".join(words) + " .")
        documents.append("\n".join(lines))
    tokenizer = Tokenizer(models.WordLevel(vocab, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.add_special_tokens(list(SPECIAL_TOKENS))
    return documents, tokenizer


def texts(count: int = 60) -> list[str]:
    return [small_text(30, seed) for seed in range(count)]


@pytest.fixture(scope="module")
def wordpiece() -> Tokenizer:
    return wordpiece_tokenizer(texts(), 90)


def rows_of(folder: Path) -> list[dict]:
    return [row for file in sorted(folder.glob("part-*.parquet")) for row in pq.read_table(file).to_pylist()]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("One. Two! Three? Four… Five", ["One.", "Two!", "Three?", "Four…", "Five"]),
        ("A line\nbreak is none. Here\nneither", ["A line\nbreak is none.", "Here\nneither"]),
        ("Title\n\nText\r\n \r\nMore", ["Title", "Text", "More"]),
        ('He said "No." (Really.) Yes?! 3.14 a.b', ['He said "No."', "(Really.)", "Yes?!", "3.14 a.b"]),
        ("一。「二！」三？四", ["一。", "「二！」", "三？", "四"]),
        ("एक। दो॥", ["एक।", "दो॥"]),
        ("", []),
        (" \n\n ", []),
    ],
)
def test_splitting_into_sentences(text: str, expected: list[str]) -> None:
    assert split_sentences(text) == expected


@given(st.text(st.sampled_from("ab .!?…。।\n\r\t\"')”") | st.characters(), max_size=60))
def test_sentences_lose_only_whitespace(text: str) -> None:
    sentences = split_sentences(text)
    assert "".join("".join(sentences).split()) == "".join(text.split())
    assert all(sentence and sentence == sentence.strip() for sentence in sentences)


def test_a_line_of_dots_is_split_in_linear_time() -> None:
    """In quadratic time, this would take so long that pytest ends it."""
    text = "." * 1_000_000 + "a" + "\n" * 1_000_000 + " " * 1_000_000
    assert split_sentences(text) == ["." * 1_000_000 + "a"]


@given(
    st.lists(
        st.sampled_from(["", " ", "\u200b\n", "\ufffd", "\ufffd" * 1500 + "b", "a" * 3, "b" * 30]),
        max_size=20,
    )
)
def test_each_document_is_in_one_shard_and_each_shard_has_two_or_more(documents: list[str]) -> None:
    full = [text for text in documents if text.strip("\u200b\ufffd\n ")]
    tokenizer = wordpiece_tokenizer(["aaa bbb"], 60)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "SHARD_CHARACTERS", 40)
        if len(full) < 2:
            with pytest.raises(ValueError, match=f"at least two documents, not {len(full)}"):
                list(group_documents(documents, tokenizer))
            return
        shards = list(group_documents(iter(documents), tokenizer))
    assert [text for shard in shards for text in shard] == full
    assert min(map(len, shards)) >= 2


def test_the_segments_of_thousands_of_pairs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The names of the words in the files tell which sentences a pair took and in which order."""
    monkeypatch.setattr(module, "SHARD_CHARACTERS", 30_000)
    documents, tokenizer = numbered_documents(1500)
    arguments = DatasetArguments(max_length=40, lone_sentence_is_random=False)
    manifest = build_dataset(iter(documents), tokenizer, tmp_path, arguments, processes=1)
    rows = rows_of(tmp_path)
    assert len(rows) == manifest["rows"] > 2000
    assert len(manifest["parts"]) > 3
    random_fraction = sum(row["is_random_next"] for row in rows) / len(rows)
    assert abs(random_fraction - 0.5) < 5 * (0.25 / len(rows)) ** 0.5
    words_by_source: dict[int, list[str]] = {}
    for row in rows:
        ids, segments = row["tokens"], row["segment_ids"]
        cut = segments.index(1)
        assert len(ids) == len(segments) <= 40
        assert segments == sorted(segments)
        assert ids[0] == CLS and ids[cut - 1] == ids[-1] == SEP
        names = [tokenizer.id_to_token(i) for i in ids]
        assert names.count("[CLS]") == 1 and names.count("[SEP]") == 2 and "[UNK]" not in names
        a, b = ([name for name in part if name != "."] for part in (names[1 : cut - 1], names[cut:-1]))
        sources = [{int(name.split(".")[0]) for name in part} for part in (a, b)]
        assert all(len(source) <= 1 for source in sources)
        keys = [[tuple(map(int, name.split("."))) for name in part] for part in (a, b)]
        assert all(part == sorted(part) for part in keys)
        if not a or not b:
            continue
        if row["is_random_next"]:
            assert sources[0] != sources[1]
        else:
            assert sources[0] == sources[1] and keys[0][-1] < keys[1][0]
        words_used = a if row["is_random_next"] else a + b
        words_by_source.setdefault(min(sources[0]), []).extend(words_used)
    for words in words_by_source.values():
        assert len(words) == len(set(words)), "a word occurs twice"
    # Only words cut to fit the length and single last sentences are lost.
    assert sum(map(len, words_by_source.values())) > 0.75 * (tokenizer.get_vocab_size() - 6)


def test_long_sentences_are_truncated_rather_than_dropped(tmp_path: Path, wordpiece: Tokenizer) -> None:
    table = " ".join(["the cat sees the dog"] * 4000)
    manifest = build_dataset([table + ". No.", "One. Two."], wordpiece, tmp_path, DatasetArguments(seed=1), 1)
    assert manifest["tokens"] > 20_000


@pytest.mark.parametrize(
    ("documents", "words"),
    [
        ([], "at least two documents, not 0"),
        (["One. Two. Three."], "at least two documents, not 1"),
        (["One. Two.", " \n"], "at least two documents, not 1"),
        ("One. Two.", "documents is a single text; pass a list"),
        (["no end at all\nof a line", "nor here"], "no sentence breaks in the whole text"),
    ],
)
def test_text_that_yields_no_pairs_is_rejected(
    documents: list[str], words: str, tmp_path: Path, wordpiece: Tokenizer
) -> None:
    with pytest.raises(ValueError, match=words):
        build_dataset(documents, wordpiece, tmp_path, DatasetArguments(), 1)
    with pytest.raises(ValueError, match="no finished dataset"):
        open_dataset(tmp_path)


def test_blank_documents_do_no_harm(tmp_path: Path) -> None:
    """For this tokenizer, blanks are tokens."""
    documents = ["Hello there. Good bye.", "", " \n", "The sun shines. It is warm.", "\n" * 2000]
    manifest = build_dataset(
        documents, character_tokenizer(documents), tmp_path, DatasetArguments(max_length=64), 1
    )
    assert manifest["documents"] == 2 and manifest["sentences"] == 4


def test_sentences_without_tokens_yield_no_pairs(tmp_path: Path, wordpiece: Tokenizer) -> None:
    arguments = DatasetArguments(lone_sentence_is_random=False)
    documents = ["the cat.\n\n\u00ad", "the dog.\n\n\u200b"]
    with pytest.raises(ValueError, match="no document has two sentences with tokens; use more text"):
        build_dataset(documents, wordpiece, tmp_path, arguments, 1)


@pytest.mark.parametrize(
    "changes", [{"max_length": 4}, {"max_length": 10**6}, {"dupe_factor": 0}, {"short_seq_prob": 1.5}]
)
def test_invalid_arguments_are_rejected(changes: dict) -> None:
    with pytest.raises(ValueError, match=next(iter(changes))):
        DatasetArguments(**changes)


def test_whole_word_masking_needs_subwords_that_it_recognizes() -> None:
    tokenizer = Tokenizer(models.WordPiece({"[MASK]": 0, "a": 1, "@@a": 2}, continuing_subword_prefix="@@"))
    with pytest.raises(ValueError, match="needs subwords"):
        PairCollator(tokenizer, MaskingArguments(whole_word_mask=True))


def test_whole_word_masking_needs_subwords() -> None:
    with pytest.raises(ValueError, match="needs subwords"):
        PairCollator(word_tokenizer(texts(2)), MaskingArguments(whole_word_mask=True))


@pytest.mark.parametrize("cap", [None, 9])
def test_static_masks(cap: int | None, tmp_path: Path, wordpiece: Tokenizer) -> None:
    """The statically masked rows are the plain rows with 15% of the tokens masked, anew in each copy."""
    plain, static = DatasetArguments(max_length=96), MaskingArguments(max_predictions_per_seq=cap)
    build_dataset(texts(), wordpiece, tmp_path / "plain", plain, 1)
    arguments = DatasetArguments(max_length=96, dupe_factor=3, static_masking=static)
    build_dataset(texts(), wordpiece, tmp_path / "static", arguments, 1)
    plain_rows, masked_rows = rows_of(tmp_path / "plain"), rows_of(tmp_path / "static")
    assert len(masked_rows) > 2.5 * len(plain_rows)
    choices = candidates = masked = 0
    for number, row in enumerate(masked_rows):
        positions, labels = row["masked_positions"], row["masked_labels"]
        restored = list(row["tokens"])
        for position, label in zip(positions, labels, strict=True):
            masked += restored[position] == MASK
            restored[position] = label
        assert positions == sorted(set(positions))
        assert not {0, CLS, SEP, MASK} & {*labels}
        assert MASK not in restored
        available = len(restored) - 3
        if number < len(plain_rows):
            assert restored == plain_rows[number]["tokens"]
        if cap is not None:
            assert len(positions) == min(cap, max(1, round(0.15 * available)))
        choices, candidates = choices + len(positions), candidates + available
    assert abs(masked / choices - 0.8) < 0.03
    if cap is None:
        assert abs(choices / candidates - 0.15) < 0.01
    batch = PairCollator(wordpiece)(pq.read_table(next((tmp_path / "static").glob("part-*"))).slice(0, 5))
    for row, labels in zip(masked_rows, batch["labels"], strict=False):
        assert (labels != IGNORE).nonzero().flatten().tolist() == row["masked_positions"]
        assert labels[labels != IGNORE].tolist() == row["masked_labels"]


@pytest.fixture(scope="module")
def dataset_folder(tmp_path_factory: pytest.TempPathFactory, wordpiece: Tokenizer) -> Path:
    folder = tmp_path_factory.mktemp("built")
    build_dataset(texts(), wordpiece, folder, DatasetArguments(max_length=64), 1)
    return folder


@pytest.mark.parametrize("length", [None, 70])
def test_collator_against_loops(dataset_folder: Path, wordpiece: Tokenizer, length: int | None) -> None:
    dataset = open_dataset(dataset_folder)
    rows = [dataset[i] for i in (5, 0, 7, 7)]
    generator = torch.Generator().manual_seed(3)
    batch = PairCollator(wordpiece, None, length, generator)(dataset.with_format("arrow")[[5, 0, 7, 7]])
    T = length or max(len(row["tokens"]) for row in rows)
    for b, row in enumerate(rows):
        n = len(row["tokens"])
        original = [
            int(i) if label == IGNORE else int(label)
            for i, label in zip(batch["input_ids"][b], batch["labels"][b], strict=True)
        ]
        assert original == row["tokens"] + [0] * (T - n)
        assert batch["attention_mask"][b].tolist() == [1] * n + [0] * (T - n)
        assert batch["token_type_ids"][b].tolist() == row["segment_ids"] + [0] * (T - n)
        assert batch["next_sentence_label"][b] == int(row["is_random_next"])
    assert {value.dtype for value in batch.values()} == {torch.int64}
    with pytest.raises(ValueError, match="raise length"):
        PairCollator(wordpiece, length=10)(dataset.with_format("arrow")[:4])


@pytest.mark.parametrize("cap", [None, 10])
def test_a_word_is_masked_completely_or_not_at_all(
    dataset_folder: Path, wordpiece: Tokenizer, cap: int | None
) -> None:
    dataset = open_dataset(dataset_folder).with_format("arrow")
    masking = MaskingArguments(max_predictions_per_seq=cap, whole_word_mask=True)
    batch = PairCollator(wordpiece, masking, generator=torch.Generator().manual_seed(0))(dataset[:200])
    masked_continuations = 0
    for ids, labels in zip(batch["input_ids"].tolist(), batch["labels"].tolist(), strict=True):
        is_chosen = [label != IGNORE for label in labels]
        original = [label if c else i for i, label, c in zip(ids, labels, is_chosen, strict=True)]
        for t in range(1, len(ids)):
            is_continuation = wordpiece.id_to_token(original[t]).startswith("##")
            if is_continuation and original[t - 1] not in (CLS, SEP):
                assert is_chosen[t] == is_chosen[t - 1]
                masked_continuations += is_chosen[t]
    assert masked_continuations > 50


def test_masked_rows_are_not_masked_again(wordpiece: Tokenizer) -> None:
    rows = pa.table(
        {
            "tokens": [[2, 4, 3, 8, 3]],
            "segment_ids": [[0, 0, 0, 1, 1]],
            "is_random_next": [True],
            "masked_positions": [[1]],
            "masked_labels": [[9]],
        }
    )
    batch = PairCollator(wordpiece)(rows)
    assert batch["labels"].tolist() == [[IGNORE, 9, IGNORE, IGNORE, IGNORE]]
    assert batch["input_ids"].tolist() == [[2, 4, 3, 8, 3]]
    with pytest.raises(ValueError, match="masked already"):
        PairCollator(wordpiece, MaskingArguments())(rows)


def test_batches_continue_from_the_generator_state(dataset_folder: Path, wordpiece: Tokenizer) -> None:
    dataset = open_dataset(dataset_folder)

    def batches(state: torch.Tensor | None = None) -> PairBatches:
        generator = torch.Generator().manual_seed(7)
        if state is not None:
            generator.set_state(state)
        return PairBatches(dataset, PairCollator(wordpiece, generator=generator), 6, generator)

    first = batches()
    for _ in range(3):
        next(first)
    second = batches(first.generator.get_state())
    for _ in range(4):
        a, b = next(first), next(second)
        assert all(torch.equal(a[key], b[key]) for key in a)
    with pytest.raises(ValueError, match="must be at least 1"):
        PairBatches(dataset, first.collator, 0, first.generator)


@pytest.mark.parametrize(
    "name", ["x[1]", "x*", "x?", "**", "{a,b}", "a#b", "a%20b", "s3:", "a::b", "$HOME", "ü" * 100]
)
def test_the_name_of_a_folder_is_not_a_pattern(name: str, tmp_path: Path) -> None:
    """As patterns, some of these names would match the first folder."""
    build_small_dataset(tmp_path / "x1", dupe_factor=2)
    manifest = build_small_dataset(tmp_path / name)
    assert open_dataset(tmp_path / name)["tokens"] == [row["tokens"] for row in rows_of(tmp_path / name)]
    assert len(open_dataset(tmp_path / name)) == manifest["rows"]


def test_a_folder_whose_name_is_not_utf8_is_refused(tmp_path: Path) -> None:
    for use in (build_small_dataset, open_dataset):
        with pytest.raises(ValueError, match="is not UTF-8"):
            use(tmp_path / "\udcff")
    assert not list(tmp_path.iterdir())


@pytest.mark.processes
def test_a_dataset_is_opened_without_network_access(dataset_folder: Path) -> None:
    program = (
        "import socket, sys; from pathlib import Path\n"
        "def refuse(*a, **k): raise SystemExit('network')\n"
        "socket.socket.connect = socket.getaddrinfo = refuse\n"
        "from labml_bert.data.pair_dataset import open_dataset\n"
        "d = open_dataset(Path(sys.argv[1])); print(len(d), d.column_names)"
    )
    process = subprocess.run(
        [sys.executable, "-c", program, str(dataset_folder)], capture_output=True, text=True
    )
    assert process.returncode == 0, process.stderr
    assert "'tokens', 'segment_ids', 'is_random_next'" in process.stdout


def test_a_changed_or_missing_file_is_rejected(tmp_path: Path, wordpiece: Tokenizer) -> None:
    arguments = DatasetArguments(max_length=64)
    manifest = build_dataset(texts(), wordpiece, tmp_path, arguments, 1)
    part = tmp_path / manifest["parts"][0]["name"]
    whole = part.read_bytes()
    for data in (whole[: len(whole) // 2], b"", None, "pipe"):
        if isinstance(data, bytes):
            part.write_bytes(data)
        elif data is None:
            part.unlink()
        else:
            # Reading it would wait forever.
            os.mkfifo(part)
        with pytest.raises(ValueError, match="not those that manifest"):
            open_dataset(tmp_path)
    # A truncated file under its final name is rebuilt.
    part.unlink()
    part.write_bytes(whole[:1000])
    build_dataset(texts(), wordpiece, tmp_path, arguments, 1)
    assert part.read_bytes() == whole
    (tmp_path / "manifest.json").write_text("{}")
    with pytest.raises(ValueError, match="not those that manifest"):
        open_dataset(tmp_path)


def test_a_damaged_list_is_named_before_the_build(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    build_small_dataset(tmp_path)
    (tmp_path / SUMS).write_text("damaged")
    # Making all pairs again could take hours.
    monkeypatch.setattr(module, "write_shards", None)
    for call in (open_dataset, build_small_dataset):
        with pytest.raises(ValueError, match=f"{SUMS} is damaged .*; replace or remove it"):
            call(tmp_path)
    monkeypatch.undo()
    (tmp_path / SUMS).unlink()
    build_small_dataset(tmp_path)
    assert len(open_dataset(tmp_path)) > 0


BUILD = """
import json, sys
from pathlib import Path
from labml_bert.data import pair_dataset
from labml_bert.data.pair_collator import MaskingArguments
from labml_bert.data.pair_shards import DatasetArguments
from labml_bert.data.tokenizers import load_tokenizer
if __name__ == "__main__":
    pair_dataset.SHARD_CHARACTERS = 2_500
    folder = Path(sys.argv[1])
    texts = json.loads((folder.parent / "texts.json").read_text())
    tokenizer = load_tokenizer(folder.parent / "tokenizer.json")
    masking = MaskingArguments(max_predictions_per_seq=20, whole_word_mask=True)
    arguments = DatasetArguments(dupe_factor=3, static_masking=masking)
    pair_dataset.build_dataset(iter(texts), tokenizer, folder, arguments, processes=2)
"""


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


@pytest.mark.long
@pytest.mark.processes
def test_a_killed_build_continues_and_produces_the_same_files(
    tmp_path: Path, wordpiece: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The files equal those that an uninterrupted single process builds."""
    script = tmp_path / "build.py"
    script.write_text(BUILD)
    (tmp_path / "texts.json").write_text(json.dumps(texts(200)))
    wordpiece.save(str(tmp_path / "tokenizer.json"))

    def start() -> subprocess.Popen[bytes]:
        return subprocess.Popen([sys.executable, script, tmp_path / "killed"])

    folder = tmp_path / "killed"
    for part_count in (1, 8):
        process = start()
        while len(list(folder.glob("part-*.parquet"))) < part_count:
            assert process.poll() is None
            time.sleep(0.005)
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        with pytest.raises(ValueError, match="no finished dataset"):
            open_dataset(folder)
    # The workers exit when their parent is gone.
    time.sleep(1)
    modified_at = {path.name: path.stat().st_mtime_ns for path in folder.glob("part-*.parquet")}
    time.sleep(0.5)
    assert len(list(folder.glob("part-*.parquet"))) == len(modified_at) < 60
    (folder / f"part-00059.parquet.77{files.PART}").write_bytes(b"half")
    assert start().wait() == 0
    assert all((folder / name).stat().st_mtime_ns == time_ns for name, time_ns in modified_at.items())

    # A build with another seed replaces all the old rows.
    monkeypatch.setattr(module, "SHARD_CHARACTERS", 2_500)

    def whole(seed: int) -> dict[str, bytes]:
        masking = MaskingArguments(max_predictions_per_seq=20, whole_word_mask=True)
        arguments = DatasetArguments(seed=seed, dupe_factor=3, static_masking=masking)
        build_dataset(texts(200), wordpiece, tmp_path / "whole", arguments, 1)
        return contents(tmp_path / "whole")

    other = whole(1)
    assert contents(folder) == whole(0)
    parts = [name for name in other if name.startswith("part-")]
    assert len(parts) > 60
    assert all(other[name] != contents(folder)[name] for name in parts)


def test_a_small_build_starts_no_workers(
    tmp_path: Path, wordpiece: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither a small text nor a dataset that is almost complete is worth the start of a worker."""
    monkeypatch.setattr(module, "SHARD_CHARACTERS", 5_000)

    class StartedError(Exception):
        pass

    def start(*_: object) -> None:
        raise StartedError

    monkeypatch.setattr(module, "ProcessPoolExecutor", start)
    with pytest.raises(StartedError):
        build_dataset(texts(), wordpiece, tmp_path / "large", DatasetArguments(), 2)
    whole = build_dataset(texts(), wordpiece, tmp_path / "large", DatasetArguments(), 1)
    assert len(whole["parts"]) >= module.FEW_SHARDS
    assert build_dataset(texts(), wordpiece, tmp_path / "large", DatasetArguments(), 2) == whole
    # Only one part is missing.
    (tmp_path / "large" / whole["parts"][-2]["name"]).unlink()
    assert build_dataset(texts(), wordpiece, tmp_path / "large", DatasetArguments(), 2) == whole
    small = build_dataset(texts(10), wordpiece, tmp_path / "small", DatasetArguments(), 2)
    assert 1 < len(small["parts"]) < module.FEW_SHARDS


@pytest.mark.parametrize(
    "name",
    ["part-00000.parquet", "part-00007.parquet", "damaged", *TOKENIZER_FILES, SUMS, module.MANIFEST],
)
def test_files_of_another_program_stay(tmp_path: Path, wordpiece: Tokenizer, name: str) -> None:
    path = tmp_path / ("part-00000.parquet" if name == "damaged" else name)
    path.write_text("mine")
    if path.suffix == ".parquet" and name != "damaged":
        pq.write_table(pa.table({"x": [1]}), path)
    content = path.read_bytes()
    with pytest.raises(ValueError, match=f"{path.name} is not from an earlier build; choose another folder"):
        build_dataset(texts(10), wordpiece, tmp_path, DatasetArguments(), 1)
    assert path.read_bytes() == content
    assert {file.name for file in tmp_path.iterdir()} - {".lock"} == {path.name}


def test_a_folder_of_another_program_stays(tmp_path: Path) -> None:
    own = tmp_path / "arrow" / "0123456789abcdef.arrow"
    own.parent.mkdir()
    own.write_text("mine")
    with pytest.raises(ValueError, match="arrow is not from an earlier build; choose another folder"):
        build_small_dataset(tmp_path)
    assert own.read_text() == "mine"


def test_a_part_that_cannot_be_read_stays(
    tmp_path: Path, wordpiece: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    build_dataset(texts(10), wordpiece, tmp_path, DatasetArguments(), 1)
    path = tmp_path / "part-00000.parquet"
    content = path.read_bytes()
    monkeypatch.setattr(pq, "read_metadata", mock.Mock(side_effect=PermissionError(errno.EACCES, "denied")))
    with pytest.raises(ValueError, match=r"cannot read .*part-00000.parquet: denied; make it readable"):
        build_dataset(texts(11), wordpiece, tmp_path, DatasetArguments(), 1)
    assert path.read_bytes() == content


def test_a_killed_worker_is_a_line_with_a_remedy(
    tmp_path: Path, wordpiece: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    class BrokenPool:
        def __init__(self, *_: object) -> None:
            pass

        def submit(self, *_: object) -> Any:
            raise BrokenProcessPool("a process was terminated abruptly")

        def shutdown(self, cancel_futures: bool) -> None:
            pass

    monkeypatch.setattr(module, "SHARD_CHARACTERS", 5_000)
    monkeypatch.setattr(module, "ProcessPoolExecutor", BrokenPool)
    with pytest.raises(ValueError, match="was killed, perhaps for lack of memory; divide"):
        build_dataset(texts(), wordpiece, tmp_path, DatasetArguments(), 2)


def hang(shard: Any) -> None:
    threading.Event().wait()


@pytest.mark.processes
def test_an_interrupted_build_kills_its_workers(
    tmp_path: Path, wordpiece: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise, the build would wait for shards that its workers never finish here."""

    def documents() -> Iterator[str]:
        yield from texts(6)
        raise KeyboardInterrupt

    monkeypatch.setattr(module, "SHARD_CHARACTERS", 500)
    monkeypatch.setattr(module, "FEW_SHARDS", 2)
    monkeypatch.setattr(module, "write_in_worker", hang)
    with pytest.raises(KeyboardInterrupt):
        build_dataset(documents(), wordpiece, tmp_path, DatasetArguments(), 2)
    assert not multiprocessing.active_children()


def test_a_full_disk_is_not_called_a_damaged_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    build_small_dataset(tmp_path)

    def fail(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(pa.ipc, "new_stream", fail)
    with pytest.raises(OSError, match="No space left on device") as raised:
        open_dataset(tmp_path)
    assert raised.value.errno == errno.ENOSPC
    assert not [*(tmp_path / "arrow").iterdir()]
    monkeypatch.undo()
    assert len(open_dataset(tmp_path)) > 0


def test_a_part_that_arrow_cannot_read_is_damaged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    build_small_dataset(tmp_path)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pq.ParquetFile, "iter_batches", lambda self: iter([self.metadata]))
        with pytest.raises(ValueError, match=r"is damaged .*; remove it and build it again"):
            open_dataset(tmp_path)
    assert not [*(tmp_path / "arrow").iterdir()]


def test_a_rebuild_with_fewer_documents_leaves_no_old_files(
    tmp_path: Path, wordpiece: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "SHARD_CHARACTERS", 5_000)
    arguments = DatasetArguments()
    many = build_dataset(texts(), wordpiece, tmp_path, arguments, 1)
    open_dataset(tmp_path)
    few = build_dataset(texts(10), wordpiece, tmp_path, arguments, 1)
    assert len(few["parts"]) < len(many["parts"])
    assert len(list(tmp_path.glob("part-*.parquet"))) == len(few["parts"])
    assert len(open_dataset(tmp_path)) == few["rows"]


@pytest.mark.parametrize("source", [mlm, nsp, pair_collator, pair_shards, sentences])
def test_after_a_change_of_the_code_the_pairs_are_made_again(
    source: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    build_small_dataset(tmp_path)
    (part,) = tmp_path.glob("part-*.parquet")
    before = part.stat().st_ino
    build_small_dataset(tmp_path)
    assert part.stat().st_ino == before, "the code is the same"
    copy = tmp_path / "changed.py"
    copy.write_bytes(Path(str(source.__file__)).read_bytes() + b"# changed\n")
    monkeypatch.setattr(source, "__file__", str(copy))
    build_small_dataset(tmp_path)
    assert part.stat().st_ino != before


def test_a_folder_without_its_only_part_is_rebuilt(tmp_path: Path, wordpiece: Tokenizer) -> None:
    documents = ["the cat sees the dog. it likes the bird. the end."] * 4
    manifest = build_dataset(documents, wordpiece, tmp_path, DatasetArguments(max_length=32), processes=1)
    (tmp_path / "part-00000.parquet").unlink()
    with pytest.raises(ValueError, match="build it again with build_dataset"):
        open_dataset(tmp_path)
    again = build_dataset(documents, wordpiece, tmp_path, DatasetArguments(max_length=32), processes=1)
    assert again == manifest and len(open_dataset(tmp_path)) == manifest["rows"]


def test_documents_with_nul_have_fingerprints_of_their_own() -> None:
    texts = [["a\0b", "c"], ["a", "b\0c"], ["a", "b", "c"], ["a\0b\0c"], ["a\0001\0b", "c"]]
    assert len({shard_fingerprint("{}", 0, text) for text in texts}) == len(texts)
    assert shard_fingerprint("{}", 1, texts[0]) != shard_fingerprint("{}", 0, texts[0])


def test_a_rebuild_deletes_nothing_through_a_link(tmp_path: Path) -> None:
    """The Arrow copies of an earlier build are deleted, so their folder must not lead anywhere else."""
    own = tmp_path / "home" / "photos"
    own.mkdir(parents=True)
    (tmp_path / "pairs").mkdir()
    (tmp_path / "pairs" / "film.part").write_text("kept")
    (tmp_path / "pairs" / "arrow").symlink_to(own.parent)
    with pytest.raises(OSError, match=r"arrow must be a folder .* symbolic link; remove it"):
        build_small_dataset(tmp_path / "pairs")
    assert own.is_dir()
    (tmp_path / "pairs" / "arrow").unlink()
    build_small_dataset(tmp_path / "pairs")
    (tmp_path / "pairs" / "arrow" / "mine").mkdir(parents=True)
    build_small_dataset(tmp_path / "pairs")
    assert (tmp_path / "pairs" / "film.part").read_text() == "kept"
    assert (tmp_path / "pairs" / "arrow" / "mine").is_dir()


def test_a_part_with_a_flipped_bit_is_rebuilt(tmp_path: Path) -> None:
    """The flipped bit is found even if the Parquet footer, which describes the file, is intact."""
    build_small_dataset(tmp_path)
    (part,) = tmp_path.glob("part-*.parquet")
    whole = part.read_bytes()
    for fraction in (0.05, 0.3, 0.6):
        part.write_bytes(flip_bit(whole, int(len(whole) * fraction)))
        pq.read_metadata(part)
        with pytest.raises(ValueError, match="not those that manifest"):
            open_dataset(tmp_path)
        build_small_dataset(tmp_path)
        assert part.read_bytes() == whole
    assert len(open_dataset(tmp_path)) > 0


def test_a_part_with_a_flipped_bit_outside_the_rows_is_rebuilt(tmp_path: Path) -> None:
    """Parquet has no checksums for page headers or the footer, but the manifest has a sha256."""
    build_small_dataset(tmp_path)
    (part,) = tmp_path.glob("part-*.parquet")
    whole = part.read_bytes()
    footer = len(whole) - 8 - int.from_bytes(whole[-8:-4], "little")
    for position in (*range(4, 30, 5), *range(footer, len(whole), 400)):
        part.write_bytes(flip_bit(whole, position))
        build_small_dataset(tmp_path)
        assert part.read_bytes() == whole, position


def test_after_a_killed_build_only_intact_parts_are_kept(
    tmp_path: Path, wordpiece: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A killed build leaves no manifest, so a flipped bit in a footer would become a part of the next one."""
    monkeypatch.setattr(module, "SHARD_CHARACTERS", 2_000)
    arguments = DatasetArguments(max_length=32)

    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(module, "save_tokenizer", stop)
        build_dataset(texts(), wordpiece, tmp_path, arguments, 1)
    first, second, *_ = sorted(tmp_path.glob("part-*.parquet"))
    whole, inode = first.read_bytes(), second.stat().st_ino
    footer = len(whole) - 8 - int.from_bytes(whole[-8:-4], "little")
    first.write_bytes(flip_bit(whole, footer + 55))
    with open(tmp_path / module.PARTS, "ab") as lines:
        lines.write(b'{"crc32": 1')
    manifest = build_dataset(texts(), wordpiece, tmp_path, arguments, 1)
    assert first.read_bytes() == whole and second.stat().st_ino == inode
    assert len(open_dataset(tmp_path)) == manifest["rows"]
    assert not (tmp_path / module.PARTS).exists()


def test_a_flipped_bit_in_the_footer_raises_no_other_error(tmp_path: Path) -> None:
    """For some of these bits, Arrow raises an error that is neither an `OSError` nor a `ValueError`."""
    build_small_dataset(tmp_path)
    (part,) = tmp_path.glob("part-*.parquet")
    whole = part.read_bytes()
    footer = len(whole) - 8 - int.from_bytes(whole[-8:-4], "little")
    for position in range(footer, len(whole)):
        part.write_bytes(flip_bit(whole, position))
        assert read_metadata(Shard(part, "of another text", 0, [])) is None
        is_foreign(part, False)


@pytest.mark.parametrize("metadata", ["[]", "1", "null", "{"])
def test_a_part_with_metadata_of_another_kind_is_rebuilt(metadata: str, tmp_path: Path) -> None:
    build_small_dataset(tmp_path)
    (part,) = tmp_path.glob("part-*.parquet")
    whole = part.read_bytes()
    pq.write_table(pa.table({"x": [1]}).replace_schema_metadata({"labml_bert": metadata}), part)
    build_small_dataset(tmp_path)
    assert part.read_bytes() == whole


@pytest.mark.parametrize("static", [False, True])
def test_a_shard_without_pairs_does_no_harm(
    static: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A chunk of one sentence gives no pair here, so a shard of titles has no rows."""
    monkeypatch.setattr(module, "SHARD_CHARACTERS", 500)
    texts = [f"a title {i}" for i in range(100)] + [small_text(5, seed) for seed in range(50)]
    masking = MaskingArguments(0.15, 32) if static else None
    arguments = DatasetArguments(32, lone_sentence_is_random=False, static_masking=masking)
    manifest = build_dataset(texts, word_tokenizer(texts), tmp_path, arguments, 1)
    assert any(part["rows"] == 0 for part in manifest["parts"])
    assert len(open_dataset(tmp_path)) == manifest["rows"] > 0


def test_a_copied_folder_is_not_unpacked_again(tmp_path: Path) -> None:
    build_small_dataset(tmp_path / "a")
    rows = open_dataset(tmp_path / "a")[:]
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    (copy,) = (tmp_path / "b" / "arrow").glob("*.arrow")
    before = copy.stat().st_ino
    assert open_dataset(tmp_path / "b")[:] == rows and copy.stat().st_ino == before


def test_the_copies_of_other_data_sets_and_of_killed_processes_are_deleted(tmp_path: Path) -> None:
    build_small_dataset(tmp_path)
    open_dataset(tmp_path)
    (copy,) = (tmp_path / "arrow").glob("*.arrow")
    other = tmp_path / "arrow" / ("0123456789abcdef" + ".arrow")
    other.write_text("rows")
    own = tmp_path / "arrow" / "0123456789abcdef-mine.arrow"
    own.write_text("kept")
    build_small_dataset(tmp_path)
    assert copy.exists() and own.exists() and not other.exists()
    copy.rename(files.partial_path(copy))
    assert len(open_dataset(tmp_path)) > 0
    assert {path.name for path in (tmp_path / "arrow").iterdir()} == {copy.name, own.name, "SHA256SUMS"}


def test_the_pairs_of_a_later_build_are_not_taken_for_those_of_this_one(tmp_path: Path) -> None:
    manifest = build_small_dataset(tmp_path)
    assert len(open_dataset(tmp_path, str(manifest["fingerprint"]))) > 0
    build_small_dataset(tmp_path, dupe_factor=2)
    with pytest.raises(ValueError, match="are not those"):
        open_dataset(tmp_path, str(manifest["fingerprint"]))


@pytest.mark.parametrize("changes", [{"dupe_factor": 2}, {"mlm_probability": 0.3}])
def test_runs_with_other_options_have_other_pairs(
    changes: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Runs with the same text and seed but other options don't share a folder of pairs."""
    monkeypatch.setattr(paired_text, "cache_folder", lambda: tmp_path)
    texts = [small_text(30, seed) for seed in range(20)]
    tokenizer = wordpiece_tokenizer(texts, 200)
    corpus = Corpus("small", texts[:16], texts[16:])

    def pairs(**options: Any) -> int:
        generator = torch.Generator().manual_seed(0)
        text = PairedText(corpus, tokenizer, [32], 512, "static", generator, **options)
        return len(text.batches[32].dataset)

    expected = pairs()
    folders = {*(tmp_path / "pairs").iterdir()}
    pairs(**changes)
    assert len({*(tmp_path / "pairs").iterdir()} - folders) == 1
    assert pairs() == expected


def test_two_builds_in_one_folder_wait_for_each_other(tmp_path: Path) -> None:
    second_build = threading.Thread(target=build_small_dataset, args=[tmp_path])
    with files.lock(tmp_path):
        second_build.start()
        second_build.join(0.5)
        assert second_build.is_alive() and not list(tmp_path.glob("part-*"))
    second_build.join()
    assert len(open_dataset(tmp_path)) > 0


def test_a_build_while_the_parts_are_read_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise, the rows would be those of the other data set."""
    build_small_dataset(tmp_path)
    fingerprint = json.loads((tmp_path / "manifest.json").read_text())["fingerprint"]
    unpack = module.unpack
    is_same = True

    def build_and_unpack(*arguments: Any) -> None:
        build_small_dataset(tmp_path, dupe_factor=1 if is_same else 2)
        unpack(*arguments)

    monkeypatch.setattr(module, "unpack", build_and_unpack)
    count = len(open_dataset(tmp_path, fingerprint))
    is_same = False
    shutil.rmtree(tmp_path / "arrow")
    with pytest.raises(ValueError, match="were replaced while they were read; try again"):
        open_dataset(tmp_path, fingerprint)
    monkeypatch.undo()
    with pytest.raises(ValueError, match="build it again"):
        open_dataset(tmp_path, fingerprint)
    build_small_dataset(tmp_path)
    assert len(open_dataset(tmp_path, fingerprint)) == count

    def build_and_look(*arguments: Any) -> bool:
        build_small_dataset(tmp_path, dupe_factor=2)
        return True

    # The build deletes the copy before it's read.
    monkeypatch.setattr(module, "are_as_listed", build_and_look)
    with pytest.raises(ValueError, match="were replaced while they were read; try again"):
        open_dataset(tmp_path, fingerprint)


def test_no_copy_is_unpacked_through_a_link(tmp_path: Path) -> None:
    own = tmp_path / "own"
    own.write_text("kept")
    folder = tmp_path / "pairs"
    build_small_dataset(folder)
    rows = open_dataset(folder)[:]
    for path in (folder / "arrow").iterdir():
        path.unlink()
        path.symlink_to(own)
    assert open_dataset(folder)[:] == rows and own.read_text() == "kept"
    shutil.rmtree(folder / "arrow")
    (folder / "arrow").symlink_to(tmp_path)
    with pytest.raises(OSError, match="of its own, but is a symbolic link"):
        open_dataset(folder)


def test_an_unknown_masking_is_refused() -> None:
    tokenizer = wordpiece_tokenizer([small_text(50)], 60)
    corpus = Corpus("text", [small_text(50)], [small_text(20)])
    with pytest.raises(ValueError, match="masking is 'whole_word'; it must be dynamic, static or whole-word"):
        PairedText(corpus, tokenizer, [32], 640, "whole_word", torch.Generator())


def test_a_tokenizer_without_a_mask_is_refused() -> None:
    tokenizer = Tokenizer(models.WordLevel({"<mask>": 0, "a": 1, "[UNK]": 2}, "[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    with pytest.raises(ValueError, match=r"use a tokenizer that has \[MASK\]"):
        PairCollator(tokenizer)
    corpus = Corpus("text", ["a " * 90], ["a " * 90])
    with pytest.raises(ValueError, match=r"use a tokenizer that has \[MASK\]"):
        MaskedText(corpus, tokenizer, 8, 32, 8, 0.15, torch.Generator())
