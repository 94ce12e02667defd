"""Text larger than memory: reading it in blocks, writing its ids, stopping at any point, and damage."""

import bz2
import errno
import gzip
import json
import lzma
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from itertools import islice, pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from datasets import Dataset, load_dataset
from tokenizers import Tokenizer
from tokenizers.processors import TemplateProcessing

from labml_bert import prepare
from labml_bert.backbone import text_has_changed
from labml_bert.checksums import decode_line, encode_line
from labml_bert.data import text_files, token_files
from labml_bert.data.corpora import load_corpus
from labml_bert.data.masked_text import MaskedText
from labml_bert.data.pair_dataset import build_dataset
from labml_bert.data.pair_shards import DatasetArguments
from labml_bert.data.text_files import (
    Chunk,
    find_files,
    read_documents,
    read_files,
    read_rows,
    sample_text,
)
from labml_bert.data.token_files import (
    TRAIN,
    Block,
    TokenizedCorpus,
    encode_block,
    group_chunks,
    id_type,
    load_text_or_tokens,
    read_progress,
    read_token_files,
    write_token_files,
)
from labml_bert.data.tokenizers import (
    encode_texts,
    load_tokenizer,
    save_tokenizer,
    split_lines,
    wordpiece_tokenizer,
)
from labml_bert.files import PART
from tests.support.mutations import read_as_commands_do
from tests.support.runs import SIZES, main_in_process, small_text
from tests.support.tiny_run import assert_fails

SETTINGS = {"files": "a test", "held_out": 0.1}


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return wordpiece_tokenizer([small_text(500)], 200)


@pytest.fixture()
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sets the block size to 20 kB, so that a small text has several blocks."""
    monkeypatch.setattr(token_files, "BLOCK_SIZE", 20_000)
    monkeypatch.setattr(text_files, "CHUNK_SIZE", 20_000)


def write_text(folder: Path, parts: int = 3, sentences: int = 2000) -> list[Path]:
    """Writes files of about 80 kB each."""
    folder.mkdir()
    for part in range(parts):
        (folder / f"{part}.txt").write_text(small_text(sentences, seed=part), encoding="utf-8")
    return find_files([folder])


def read_bytes(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.name != ".lock"}


def corpus_of(folder: Path, tokenizer: Tokenizer, files: list[Path]) -> TokenizedCorpus:
    write_token_files(folder, tokenizer, partial(read_files, files), SETTINGS)
    return read_token_files(folder)


# Reading


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize(
    "text",
    [
        "one line\n" * 9000,
        "x" * 70_000,
        "কদম" * 20_000,
        "🙂" * 20_001 + "\nend",
        "short\n" + "é" * 50_000 + "\n" + "last",
        "\ufeffa byte order mark",
        "",
    ],
)
def test_chunks_join_to_the_text_from_every_position(tmp_path: Path, text: str) -> None:
    """Long lines are cut between characters, and reading can resume after each chunk."""
    path = tmp_path / "text.txt"
    path.write_text(text, encoding="utf-8")
    chunks = [*read_files([path, path])]
    assert "".join(chunk.text for chunk in chunks) == 2 * (text.removeprefix("\ufeff") + "\n\n")
    assert len(chunks) > 6 or len(text) < 1000
    for i, chunk in enumerate(chunks):
        assert [*read_files([path, path], chunk.next)] == chunks[i + 1 :]


@pytest.mark.usefixtures("small_blocks")
def test_documents_of_files_that_are_never_whole_in_memory(tmp_path: Path) -> None:
    long, short = small_text(1500).replace("again.\n", "again.\n\n"), "a short file\n"
    paths = [tmp_path / "a.txt", tmp_path / "b.txt"]
    for path, text in zip(paths, (long, short), strict=True):
        path.write_text(text)
    *parts, last = read_documents(paths, longest=7_000)
    assert "".join(parts) == long + "\n\n" and last == short + "\n\n"
    assert len(parts) > 5 and max(map(len, parts)) <= 7_000
    # Each part ends at an empty line.
    assert all(part.startswith("\nthe ") for part in parts[1:])
    assert [*read_documents(paths)] == [long + "\n\n", short + "\n\n"]
    # A text without empty lines is split as well.
    paths[0].write_text("x" * 50_000)
    assert [len(part) for part in read_documents(paths[:1], longest=20_000)] == [20_000, 20_000, 10_002]
    manifest = build_dataset(
        read_documents(write_text(tmp_path / "text", parts=2), longest=10_000),
        wordpiece_tokenizer([small_text(500)], 200),
        tmp_path / "pairs",
        DatasetArguments(32),
        processes=1,
    )
    assert manifest["documents"] > 10


def test_line_ends_become_newlines(tmp_path: Path) -> None:
    (tmp_path / "dos.txt").write_bytes(b"one\r\ntwo\rthree\n")
    assert [chunk.text for chunk in read_files([tmp_path / "dos.txt"])] == ["one\ntwo\nthree\n\n\n"]


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize(("suffix", "compress"), [(".gz", gzip), (".GZ", gzip), (".bz2", bz2), (".xz", lzma)])
def test_a_compressed_file_gives_the_same_chunks(tmp_path: Path, suffix: str, compress: object) -> None:
    text = small_text(2000).encode()
    (tmp_path / "text.txt").write_bytes(text)
    path = tmp_path / f"text{suffix}"
    path.write_bytes(compress.compress(text))  # type: ignore[attr-defined]
    plain, packed = ([*read_files([p])] for p in (tmp_path / "text.txt", path))
    assert packed == plain and len(plain) > 3
    assert [*read_files([path], plain[1].next)] == plain[2:]
    assert "".join(sample_text([path])).startswith("the ")
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(ValueError, match="cannot read "):
        [*read_files([path])]


@pytest.mark.parametrize("suffix", [".gz", ".bz2", ".xz"])
def test_a_compressed_file_that_was_cut_off_at_its_start_is_an_error(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"text{suffix}"
    path.touch()
    with pytest.raises(
        ValueError, match=f"text{suffix}: the compressed file ends too early; replace the file"
    ):
        [*read_files([path])]


@pytest.mark.parametrize(("suffix", "compress"), [(".bz2", bz2.compress), (".xz", lzma.compress)])
def test_seeking_ahead_decompresses_each_byte_once(
    tmp_path: Path, suffix: str, compress: Callable[[bytes], bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The sample for a vocabulary consists of 200 pieces, each further on in the file."""
    data = random.Random(0).randbytes(1_000_000)
    path = tmp_path / f"text{suffix}"
    path.write_bytes(compress(data))
    read = 0

    def count(file: text_files.CompressedFile, buffer: Any) -> int:
        nonlocal read
        size = readinto(file, buffer)
        read += size
        return size

    readinto = text_files.CompressedFile.readinto
    monkeypatch.setattr(text_files.CompressedFile, "readinto", count)
    with text_files.open_file(path) as file:
        for start in range(0, 1_000_000, 200_000):
            assert file.seek(start) == start and file.read(10) == data[start : start + 10]
        assert read <= 1_000_000
        assert file.seek(20_000) == 20_000 and file.read(10) == data[20_000:20_010]


@pytest.mark.parametrize(("suffix", "compress"), [(".bz2", bz2.compress), (".xz", lzma.compress)])
def test_a_damaged_second_stream_is_an_error(
    tmp_path: Path, suffix: str, compress: Callable[[bytes], bytes]
) -> None:
    """Python's own readers end without an error if the beginning of a second stream is damaged."""
    first, second = compress(b"one\n"), compress(b"two\n")
    path = tmp_path / f"text{suffix}"
    path.write_bytes(first + second)
    assert "".join(chunk.text for chunk in read_files([path])) == "one\ntwo\n\n\n"
    for damaged in (b"\1" + second[1:], second[:-2], b"garbage"):
        path.write_bytes(first + damaged)
        with pytest.raises(ValueError, match="cannot read "):
            [*read_files([path])]


def test_zeros_may_come_between_the_streams_of_an_xz_file(tmp_path: Path) -> None:
    path = tmp_path / "text.xz"
    path.write_bytes(lzma.compress(b"one\n") + b"\0" * 200_000 + lzma.compress(b"two\n"))
    assert "".join(chunk.text for chunk in read_files([path])) == "one\ntwo\n\n\n"


def test_a_file_that_is_not_utf8_is_named_with_the_byte(tmp_path: Path) -> None:
    (tmp_path / "latin.txt").write_bytes(b"abc\n" * 10 + "für".encode("latin-1"))
    with pytest.raises(ValueError, match=r"latin\.txt is not UTF-8 \(byte 41\)"):
        [*read_files([tmp_path / "latin.txt"])]


def test_a_file_that_was_cut_off_is_not_called_windows_1252(tmp_path: Path) -> None:
    path = tmp_path / "cut.txt"
    path.write_bytes("ein Wort: für".encode()[:-2])
    for read in (lambda: [*read_files([path])], lambda: load_corpus(str(path))):
        with pytest.raises(ValueError, match=r"cut\.txt is not UTF-8 at its end .*; get a whole copy"):
            read()


def test_files_in_a_fixed_order_and_none_missing(tmp_path: Path) -> None:
    for name in ("b/2.txt", "b/1.txt", "a.txt", ".hidden"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("x")
    names = ["a.txt", "b/1.txt", "b/2.txt"]
    assert find_files([tmp_path]) == [tmp_path / name for name in names]
    assert find_files([tmp_path / "b/2.txt", tmp_path / "a.txt"]) == [
        tmp_path / "b/2.txt",
        tmp_path / "a.txt",
    ]
    assert find_files([tmp_path / "a.txt", tmp_path]) == [tmp_path / name for name in names]
    (tmp_path / "empty").mkdir()
    for bad in ("empty", "missing.txt"):
        with pytest.raises(ValueError, match=f"{bad} is not a file or a folder of files"):
            find_files([tmp_path / bad])


def test_rows_of_a_streamed_data_set(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps({"text": f"row {i}", "id": i}) + "\n" for i in range(10)))
    dataset = load_dataset(
        "json", data_files=str(path), split="train", streaming=True, cache_dir=str(tmp_path / "cache")
    )
    rows = [*read_rows(dataset)]
    assert [chunk.text for chunk in rows] == [f"row {i}\n\n" for i in range(10)]
    assert [*read_rows(dataset, rows[6].next)] == rows[7:]


@pytest.mark.parametrize("row", [{"other": "a"}, {"text": None}, {"text": 1}])
def test_a_row_without_text_is_a_line(row: dict[str, Any]) -> None:
    dataset = Dataset.from_list([row]).to_iterable_dataset()
    with pytest.raises(ValueError, match="row 1 has no text in the column 'text'; name another"):
        list(read_rows(dataset))


def test_settings_are_compared_as_json(tmp_path: Path) -> None:
    tokenizer = wordpiece_tokenizer(["a cat sat. on a mat."], 60)

    def write(settings: dict[str, Any]) -> None:
        write_token_files(tmp_path / "out", tokenizer, lambda start: iter([Chunk("a cat", (0, 1))]), settings)

    for wrong in ({}, {"held_out": 10}, {"held_out": 1.0}, {"held_out": 0.0}, {"held_out": "0.1"}):
        with pytest.raises(
            ValueError, match=r"held_out in settings is .*; set it to a fraction between 0 and 1"
        ):
            write({"name": "x", **wrong})
    assert not (tmp_path / "out").exists()
    for _ in range(2):
        write({"held_out": 0.1, "range": (1, 2)})
    with pytest.raises(ValueError, match="of another text"):
        write({"held_out": 0.1, "range": (1, 3)})


def test_the_sample_is_spread_over_all_files(tmp_path: Path) -> None:
    files = []
    for part in range(4):
        files.append(tmp_path / f"{part}.txt")
        files[-1].write_text(f"file {part}\n" * 100_000)  # 700 kB
    pieces = sample_text(files, most=1_000_000)
    assert [sum(f"file {part}" in piece for piece in pieces) for part in range(4)] == [2, 3, 2, 3]
    assert all(piece.startswith("file") for piece in pieces)
    assert 900_000 < sum(map(len, pieces)) <= 1_000_000
    # A small text is its own sample.
    assert sample_text(files[:1]) == [files[0].read_text()]


@pytest.mark.parametrize("most", [1_000, 2_500, 10_000])
def test_the_sample_of_many_small_files_has_whole_ones(tmp_path: Path, most: int) -> None:
    files = [tmp_path / f"{part}.txt" for part in range(500)]
    for part, path in enumerate(files):
        path.write_text(f"file {part:03}\n")
    pieces = sample_text(files, most)
    assert len(pieces) == min(most // 9, 500) and all(len(piece) == 9 for piece in pieces)
    parts = [int(piece.split()[1]) for piece in pieces]
    assert max(b - a for a, b in pairwise(parts)) <= -(-4500 // most) + 1


def test_a_long_line_is_not_left_out_of_the_sample(tmp_path: Path) -> None:
    path = tmp_path / "line.txt"
    path.write_text("word " * 100_000)  # 500 kB
    assert 390_000 < sum(map(len, sample_text([path], most=400_000))) <= 400_000


# Writing


@pytest.mark.parametrize("damage", [b"", None])
def test_a_tokenizer_that_is_damaged_or_gone_is_written_again(
    tmp_path: Path, tokenizer: Tokenizer, damage: bytes | None
) -> None:
    files = write_text(tmp_path / "text")
    corpus_of(tmp_path / "tokens", tokenizer, files)
    path = tmp_path / "tokens" / "tokenizer.json"
    before = path.read_bytes()
    path.unlink()
    if damage is not None:
        path.write_bytes(damage)
    corpus_of(tmp_path / "tokens", tokenizer, files)
    assert path.read_bytes() == before


@pytest.mark.usefixtures("small_blocks")
def test_the_ids_are_those_of_the_text(tmp_path: Path, tokenizer: Tokenizer) -> None:
    files = write_text(tmp_path / "text")
    corpus = corpus_of(tmp_path / "tokens", tokenizer, files)
    pieces = [
        piece for texts, _ in group_chunks(read_files(files)) for text in texts for piece in split_lines(text)
    ]
    train, valid = (
        [p for p in pieces if token_files.is_held_out(p, 0.1) is held_out] for held_out in (False, True)
    )
    assert valid and len(train) > len(valid)
    for ids, texts in ((corpus.train_ids, train), (corpus.valid_ids, valid)):
        assert ids.tolist() == [i for encoded in encode_texts(tokenizer, texts) for i in encoded]
    assert corpus.train_ids.dtype == torch.uint16
    assert corpus.train_characters == sum(map(len, train))
    assert corpus.valid_characters == sum(map(len, valid))
    assert corpus.valid[0] == tokenizer.decode(corpus.valid_ids[:16].tolist())
    assert corpus.name == "tokens"


@pytest.mark.long
@pytest.mark.slow("builds a vocabulary of 70,000 tokens")
def test_a_large_vocabulary_gets_wider_ids(tmp_path: Path) -> None:
    words = [f"w{i}" for i in range(70_000)]
    tokenizer = Tokenizer.from_str(wordpiece_tokenizer(["a b"], 20).to_str())
    tokenizer.add_tokens(words)
    save_tokenizer(tokenizer, tmp_path / "model")
    files = [tmp_path / f"{i}.txt" for i in range(30)]
    for i, file in enumerate(files):
        # Any file could be held out, so each has the last word.
        file.write_text(f"{' '.join(words[i::30])} {words[-1]}\n")
    corpus = corpus_of(tmp_path / "tokens", tokenizer, files)
    assert id_type(tokenizer) == ("i", torch.int32)
    assert corpus.train_ids.dtype == torch.int32 and corpus.train_ids.max() == tokenizer.get_vocab_size() - 1


class StopError(Exception):
    """Raised where a process would have been killed."""


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("leftover", ["nothing", "ids", "half a line"])
def test_a_stopped_process_continues_to_the_same_bytes(
    tmp_path: Path, tokenizer: Tokenizer, leftover: str
) -> None:
    """The process is stopped after each block in turn, with the leftovers that a kill can leave."""
    files = write_text(tmp_path / "text", parts=2)
    corpus_of(tmp_path / "whole", tokenizer, files)
    expected = read_bytes(tmp_path / "whole")
    folder = tmp_path / "stopped"

    def stop(block: Block) -> None:
        raise StopError

    stops = 0
    while True:
        try:
            write_token_files(folder, tokenizer, partial(read_files, files), SETTINGS, stop)
            break
        except StopError:
            stops += 1
        # The first process may have been killed while it wrote the tokenizer.
        (folder / f"tokenizer.json.1{PART}").touch()
        if leftover != "nothing":
            with open(folder / "train.bin", "ab") as file:
                file.write(b"xyz")
        if leftover == "half a line":
            with open(folder / "blocks.jsonl", "ab") as file:
                file.write(b'{"train_tokens": 12')
        with pytest.raises(ValueError, match="only partly tokenized"):
            read_token_files(folder)
    assert stops == len(expected["blocks.jsonl"].splitlines()) - 2 >= 4
    assert read_bytes(folder) == expected
    # Writing the files once more changes nothing.
    write_token_files(folder, tokenizer, partial(read_files, files), SETTINGS, stop)
    assert read_bytes(folder) == expected


@pytest.mark.long
@pytest.mark.processes
def test_killed_at_any_moment(tmp_path: Path) -> None:
    """The operating system kills a real process three times in a row."""
    (tmp_path / "text.txt").write_text(small_text(600_000))  # 24 MB, six blocks
    command = [sys.executable, "-m", "labml_bert.prepare", "text.txt", "--vocab-size=200", "--output"]
    subprocess.run([*command, "whole"], cwd=tmp_path, check=True, capture_output=True)
    for kills in range(3):
        process = subprocess.Popen([*command, "killed"], cwd=tmp_path, stdout=subprocess.DEVNULL)
        blocks = tmp_path / "killed" / "blocks.jsonl"
        while process.poll() is None and not (
            blocks.exists() and blocks.read_bytes().count(b"\n") > kills + 1
        ):
            time.sleep(0.01)
        process.send_signal(signal.SIGKILL)
        assert process.wait() == -signal.SIGKILL, "it was killed before it was done"
    subprocess.run([*command, "killed"], cwd=tmp_path, check=True, capture_output=True)
    assert read_bytes(tmp_path / "killed") == read_bytes(tmp_path / "whole")


# Folders that can't be used


def another_text(folder: Path, tokenizer: Tokenizer, files: list[Path]) -> None:
    write_token_files(folder, tokenizer, partial(read_files, files), {**SETTINGS, "files": "others"})


def another_tokenizer(folder: Path, tokenizer: Tokenizer, files: list[Path]) -> None:
    other = wordpiece_tokenizer(["other words"], 30)
    write_token_files(folder, other, partial(read_files, files), SETTINGS)


def flip_bit(folder: Path, tokenizer: Tokenizer, files: list[Path]) -> None:
    data = bytearray((folder / "train.bin").read_bytes())
    data[1000] ^= 1
    (folder / "train.bin").write_bytes(data)
    read_token_files(folder)


def cut_off(folder: Path, tokenizer: Tokenizer, files: list[Path]) -> None:
    (folder / "valid.bin").write_bytes((folder / "valid.bin").read_bytes()[:-2])
    read_token_files(folder)


def garble_line(folder: Path, tokenizer: Tokenizer, files: list[Path]) -> None:
    lines = (folder / "blocks.jsonl").read_text().splitlines()
    lines[1] = lines[1].replace("train_tokens", "train_token")
    (folder / "blocks.jsonl").write_text("\n".join(lines) + "\n")
    read_token_files(folder)


def other_files(folder: Path, tokenizer: Tokenizer, files: list[Path]) -> None:
    write_token_files(files[0].parent, tokenizer, partial(read_files, files), SETTINGS)


@pytest.mark.parametrize(
    ("action", "message"),
    [
        (another_text, "has the tokens of another text or tokenizer"),
        (another_tokenizer, "has the tokens of another text or tokenizer"),
        (flip_bit, "are damaged"),
        (cut_off, "are damaged"),
        (garble_line, "blocks.jsonl is damaged"),
        (other_files, "is not empty and has no tokenized text"),
    ],
)
def test_a_folder_that_does_not_fit_is_refused(
    tmp_path: Path, tokenizer: Tokenizer, action: Callable[[Path, Tokenizer, list[Path]], None], message: str
) -> None:
    files = write_text(tmp_path / "text")
    corpus_of(tmp_path / "tokens", tokenizer, files)
    with pytest.raises(ValueError, match=message):
        action(tmp_path / "tokens", tokenizer, files)


def test_the_folder_of_another_tokenizer_is_refused(tmp_path: Path, tokenizer: Tokenizer) -> None:
    (tmp_path / "tokenizer.json").write_text("mine")
    with pytest.raises(ValueError, match="is not empty and has no tokenized text"):
        corpus_of(tmp_path, tokenizer, write_text(tmp_path.parent / "text"))
    assert (tmp_path / "tokenizer.json").read_text() == "mine"


def test_a_text_without_tokens_is_too_short(tmp_path: Path, tokenizer: Tokenizer) -> None:
    for _ in range(2):
        write_token_files(tmp_path, tokenizer, lambda position: iter(()), SETTINGS)
        with pytest.raises(ValueError, match="has no held-out text"):
            read_token_files(tmp_path)
    assert corpus_of(tmp_path, tokenizer, write_text(tmp_path.parent / f"{tmp_path.name}-text")).name


def test_a_file_of_another_program_with_the_name_of_ours_is_a_text(
    tmp_path: Path, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write_text(tmp_path / "text")
    own = tmp_path / "text" / "blocks.jsonl"
    own.write_text('{"text": "a stone"}\n')
    corpus = load_corpus(str(tmp_path / "text"))
    assert any("a stone" in text for text in corpus.train + corpus.valid)
    corpus_of(tmp_path / "tokens", tokenizer, find_files([tmp_path / "text"]))
    with pytest.raises(ValueError, match="is not empty and has no tokenized text"):
        corpus_of(tmp_path / "text", tokenizer, [own])
    monkeypatch.chdir(tmp_path)
    prepare.main(["text", "--output", "more", "--vocab-size", "200"])
    assert "4 files" in capsys.readouterr().out
    assert own.read_text() == '{"text": "a stone"}\n'


def test_a_folder_without_its_list_of_blocks_is_not_read_as_text(
    tmp_path: Path, tokenizer: Tokenizer
) -> None:
    corpus_of(tmp_path / "tokens", tokenizer, write_text(tmp_path / "text"))
    (tmp_path / "tokens" / "blocks.jsonl").unlink()
    with pytest.raises(ValueError, match="has no tokenized text"):
        load_text_or_tokens(str(tmp_path / "tokens"))


@pytest.mark.usefixtures("small_blocks")
def test_a_damaged_folder_is_not_continued(tmp_path: Path, tokenizer: Tokenizer) -> None:
    """This applies to finished and to unfinished folders."""
    files, folder = write_text(tmp_path / "text"), tmp_path / "tokens"
    corpus_of(folder, tokenizer, files)
    lines = (folder / "blocks.jsonl").read_text().splitlines(keepends=True)
    for kept in (len(lines), len(lines) - 1):
        (folder / "blocks.jsonl").write_text("".join(lines[:kept]))
        data = (folder / "train.bin").read_bytes()
        for damaged in (data[: len(data) // 2], data[:-1] + b"\xff"):
            (folder / "train.bin").write_bytes(damaged)
            with pytest.raises(ValueError, match="are damaged; delete the folder"):
                write_token_files(folder, tokenizer, partial(read_files, files), SETTINGS)
        (folder / "train.bin").write_bytes(data)
        corpus_of(folder, tokenizer, files)


@pytest.mark.parametrize(
    "change", [{"train_tokens": "5"}, {"valid_characters": True}, {"valid_tokens": 1.5}, {"next": ["5", 0]}]
)
def test_a_line_with_values_of_another_type_is_damaged(
    tmp_path: Path, tokenizer: Tokenizer, change: dict[str, Any]
) -> None:
    """Another version could have written such a line, with a correct checksum."""
    corpus_of(tmp_path / "tokens", tokenizer, write_text(tmp_path / "text"))
    path = tmp_path / "tokens" / "blocks.jsonl"
    settings, block, *rest = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(settings + encode_line({**decode_line(block), **change}) + b"".join(rest))
    with pytest.raises(ValueError, match=r"blocks\.jsonl is damaged or from an earlier version; delete"):
        read_token_files(tmp_path / "tokens")


def test_a_finished_folder_without_blocks_has_no_text(tmp_path: Path, tokenizer: Tokenizer) -> None:
    corpus_of(tmp_path / "tokens", tokenizer, write_text(tmp_path / "text"))
    path = tmp_path / "tokens" / "blocks.jsonl"
    path.write_bytes(path.read_bytes().splitlines(keepends=True)[0] + encode_line({"finished": 0}))
    with pytest.raises(ValueError, match="tokens has no held-out text; the text is short"):
        read_token_files(tmp_path / "tokens")


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="Windows has no named pipes")
def test_a_pipe_in_place_of_a_token_file_is_not_read(tmp_path: Path, tokenizer: Tokenizer) -> None:
    """Nobody writes to the pipe, so reading it would wait forever."""
    corpus_of(tmp_path / "tokens", tokenizer, write_text(tmp_path / "text"))
    (tmp_path / "tokens" / "train.bin").unlink()
    os.mkfifo(tmp_path / "tokens" / "train.bin")
    assert read_as_commands_do(lambda: read_token_files(tmp_path / "tokens"), "are damaged") is None


def test_a_start_without_tokens_may_be_of_another_text(tmp_path: Path, tokenizer: Tokenizer) -> None:
    """A file that isn't UTF-8 leaves a folder without tokens. Once it's converted, it has another sha256."""
    file, folder = tmp_path / "text.txt", tmp_path / "tokens"
    file.write_bytes("für".encode("latin-1"))
    with pytest.raises(ValueError, match="not UTF-8"):
        write_token_files(folder, tokenizer, partial(read_files, [file]), SETTINGS)
    file.write_text("the cat sees the dog\n" * 9)
    write_token_files(folder, tokenizer, partial(read_files, [file]), {**SETTINGS, "files": "converted"})
    with pytest.raises(ValueError, match="another text"):
        write_token_files(folder, tokenizer, partial(read_files, [file]), SETTINGS)


def test_a_text_without_held_out_pieces_is_refused(tmp_path: Path, tokenizer: Tokenizer) -> None:
    (tmp_path / "text.txt").write_text("the cat sees the dog.")
    with pytest.raises(ValueError, match="no held-out text; the text is short"):
        corpus_of(tmp_path / "tokens", tokenizer, [tmp_path / "text.txt"])


def test_lines_of_a_data_set_are_grouped_into_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(token_files, "BLOCK_SIZE", 10)

    def rows() -> Iterator[Chunk]:
        yield from (Chunk("abcd", (0, i + 1)) for i in range(7))

    assert [*group_chunks(rows())] == [(["abcd"] * 3, (0, 3)), (["abcd"] * 3, (0, 6)), (["abcd"], (0, 7))]
    assert [*group_chunks([])] == []


# Training


@pytest.mark.usefixtures("small_blocks")
def test_windows_come_from_the_file(tmp_path: Path, tokenizer: Tokenizer) -> None:
    corpus = corpus_of(tmp_path / "tokens", tokenizer, write_text(tmp_path / "text"))
    text = MaskedText(
        corpus, tokenizer, 16, 256, 16, 0.15, generator=torch.Generator().manual_seed(0), with_cls_sep=False
    )
    ids = corpus.train_ids.tolist()
    windows = {tuple(ids[i : i + 16]) for i in range(len(ids) - 15)}
    for _ in range(3):
        batch = text.batch(16)
        assert batch["input_ids"].dtype == torch.int64
        original = batch["input_ids"].where(batch["labels"] == -100, batch["labels"])
        assert {*map(tuple, original.tolist())} <= windows
    other = wordpiece_tokenizer([small_text(500)], 60)
    with pytest.raises(ValueError, match="tokenized with another tokenizer"):
        MaskedText(corpus, other, 16, 256, 16, 0.15, generator=torch.Generator())


# With fewer ids than before, the error of a mapped file would say that the disk is damaged.
@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("other_parts", [1, 3])
def test_token_files_that_are_replaced_while_they_are_read_are_refused(
    other_parts: int, tmp_path: Path, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The ids would be those of one text, and the checksum and the tokenizer those of another."""
    for name, parts in {"tokens": 2, "other": other_parts}.items():
        corpus_of(tmp_path / name, tokenizer, write_text(tmp_path / f"{name}-text", parts))

    def check_and_replace(folder: Path, *arguments: Any) -> None:
        check_blocks(folder, *arguments)
        folder.rename(tmp_path / "old")
        (tmp_path / "other").rename(folder)

    check_blocks = token_files.check_blocks
    monkeypatch.setattr(token_files, "check_blocks", check_and_replace)
    with pytest.raises(ValueError, match=r"blocks\.jsonl was replaced while it was read; try again"):
        load_text_or_tokens(str(tmp_path / "tokens"))


def test_load_text_or_tokens(tmp_path: Path, tokenizer: Tokenizer) -> None:
    files = write_text(tmp_path / "text")
    corpus_of(tmp_path / "tokens", tokenizer, files)
    assert isinstance(load_text_or_tokens(str(tmp_path / "tokens")), TokenizedCorpus)
    assert load_text_or_tokens(str(files[0])) == load_corpus(str(files[0]))
    with pytest.raises(ValueError, match="has tokenized text"):
        load_corpus(str(tmp_path / "tokens"))


def test_a_text_outside_the_vocabulary(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A tokenizer of Latin letters knows no Greek ones. The model would learn only where the spaces are."""
    write_text(tmp_path / "text")
    letters = {ord("a") + i: 0x3B1 + i for i in range(26)}
    (tmp_path / "greek").mkdir()
    for file in (tmp_path / "text").iterdir():
        (tmp_path / "greek" / file.name).write_text(file.read_text().lower().translate(letters))
    monkeypatch.chdir(tmp_path)
    prepare.main(["text", "--output", "tokens", "--vocab-size", "200"])
    assert "UNK" not in capsys.readouterr().out
    prepare.main(["greek", "--tokenizer", "tokens", "--output", "new_tokens"])
    (line,) = [line for line in capsys.readouterr().out.splitlines() if "UNK" in line]
    assert re.fullmatch(
        r"  \d+% of the held-out text is \[UNK\]: unknown, or words of over 100 letters", line
    )
    assert int(line.split("%")[0]) > 50
    sizes = [*SIZES, "--hidden-size=16", "--max-position-embeddings=16", "--schedule=16", "--steps=2"]
    main_in_process(monkeypatch, tmp_path, "--corpus=new_tokens", *sizes, experiment="own_language")
    assert f"unknown {line.strip()}" in " ".join(capsys.readouterr().out.split())


def test_the_list_of_blocks_has_whole_paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`continue_pretraining.py` compares them with the paths of other texts, from any working folder."""
    (path, *_) = write_text(tmp_path / "text")
    monkeypatch.chdir(tmp_path)
    prepare.main(["text", "--output", "tokens", "--vocab-size", "200"])
    configuration = {"corpus": str(tmp_path / "tokens"), "corpus_sha256": "1"}
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert text_has_changed(configuration, str(path), "2")
    prepare.main(["../text", "--output", "../tokens", "--vocab-size", "200"])


@pytest.mark.parametrize("more", [[], ["--tokenizer", "tokens"]])
def test_a_foreign_folder_or_file_as_output_is_refused_untouched(
    more: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write_text(tmp_path / "text")
    monkeypatch.chdir(tmp_path)
    prepare.main(["text", "--output", "tokens", "--vocab-size", "200"])
    capsys.readouterr()
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").write_text("mine")
    for name, words in (("mine", "is not empty"), ("mine/notes.txt", "is not a folder")):
        with pytest.raises(SystemExit) as exit_info:
            prepare.main(["text", "--output", name, *more])
        captured = capsys.readouterr()
        assert (exit_info.value.code, captured.out) == (2, "") and f"{name} {words}" in captured.err
    assert [path.name for path in (tmp_path / "mine").iterdir()] == ["notes.txt"]
    assert (tmp_path / "mine" / "notes.txt").read_text() == "mine"


def test_prepare_and_train(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The chapter's two commands lead from files to a model, whose tokenizer then prepares more text."""
    write_text(tmp_path / "text")
    monkeypatch.chdir(tmp_path)
    prepare.main(["text", "--output", "tokens", "--vocab-size", "200"])
    out = capsys.readouterr().out
    assert "3 files" in out and "-m experiments.own_language --corpus tokens" in out
    sizes = [*SIZES, "--hidden-size=16", "--max-position-embeddings=16"]
    main_in_process(
        monkeypatch,
        tmp_path,
        "--corpus=tokens",
        *sizes,
        "--schedule=16",
        "--steps=2",
        experiment="own_language",
    )
    assert "on tokens" in capsys.readouterr().out
    (folder,) = tmp_path.glob("logs/own_language/*")
    prepare.main(["text", "--tokenizer", str(folder), "--output", "again"])
    main_in_process(
        monkeypatch,
        tmp_path,
        *(
            f"--from={folder}",
            "--corpus=again",
            "--old-corpus=tokens",
            "--schedule=16",
            "--steps=2",
            "--batch-tokens=512",
        ),
        experiment="continue_pretraining",
    )
    assert "continued pretraining on again" in capsys.readouterr().out


def test_a_tokenizer_that_no_script_can_train_with_is_refused_at_the_start(
    tmp_path: Path, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    write_text(tmp_path / "text")
    other, sep = Tokenizer.from_str(tokenizer.to_str()), ("[SEP]", tokenizer.token_to_id("[SEP]"))
    other.post_processor = TemplateProcessing(single="$A [SEP]", pair=None, special_tokens=[sep])
    other.save("tokenizer.json")
    words = ["text", "--tokenizer", "tokenizer.json", "--output", "tokens"]
    assert_fails(prepare.main, words, "the tokenizer adds [SEP] to a text; use one that adds", capsys)
    assert not Path("tokens").exists()


def test_prepare_takes_no_vocabulary_from_a_start_without_tokens(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.txt").write_bytes(b"the cat sees the dog\n" * 99)
    (tmp_path / "b.txt").write_bytes("кот видит пса\n".encode() * 99)

    def stop(*arguments: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(token_files, "encode_block", stop)
        with pytest.raises(SystemExit):
            prepare.main(["a.txt", "--output", "tokens", "--vocab-size", "60"])
    assert (tmp_path / "tokens" / "tokenizer.json").exists()
    prepare.main(["b.txt", "--output", "tokens", "--vocab-size", "70"])
    assert "кот" in load_tokenizer(tmp_path / "tokens" / "tokenizer.json").get_vocab()


@pytest.mark.parametrize("damage", [b"", b"{}", None])
def test_a_folder_without_its_tokenizer_has_to_be_prepared_again(
    tmp_path: Path, damage: bytes | None, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "a.txt").write_bytes(b"the cat sees the dog\n" * 99)
    words = [str(tmp_path / "a.txt"), "--output", str(tmp_path / "tokens"), "--vocab-size", "60"]
    prepare.main(words)
    path = tmp_path / "tokens" / "tokenizer.json"
    path.unlink()
    if damage is not None:
        path.write_bytes(damage)
    message = "tokenizer.json is missing or damaged; delete .*tokens and prepare the text again"
    with pytest.raises(ValueError, match=message):
        read_token_files(tmp_path / "tokens")
    with pytest.raises(SystemExit):
        prepare.main(words)
    assert re.search(message, capsys.readouterr().err)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("", "tokens was deleted meanwhile; run the same command again"),
        (TRAIN, "the token files in tokens are damaged"),
        ("tokenizer.json", "tokenizer.json is missing or damaged"),
    ],
)
def test_prepare_notices_what_is_gone_at_the_end(
    name: str,
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def write_and_delete(folder: Path, *arguments: Any) -> None:
        write_token_files(folder, *arguments)
        shutil.rmtree(folder) if not name else (folder / name).unlink()

    monkeypatch.chdir(tmp_path)
    write_text(tmp_path / "text")
    monkeypatch.setattr(prepare, "write_token_files", write_and_delete)
    assert_fails(prepare.main, ["text", "--output", "tokens", "--vocab-size", "200"], message, capsys)


def test_a_short_text_needs_no_token_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """None of a short text would be held out."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "short.txt").write_text("the cat sees the dog\n" * 9)
    prepare.main(["short.txt", "--output", "tokens", "--vocab-size", "50"])
    out = capsys.readouterr().out
    assert "Train on the text itself" in out and "own_language" not in out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["missing.txt"], "missing.txt is not a file or a folder of files"),
        (["empty"], "empty is not a file or a folder of files"),
        (["text", "--tokenizer", "text"], "no tokenizer at"),
        (["text", "--vocab-size", "3"], "is too small for the alphabet"),
        (["text", "--vocab-size", "100000000000"], "it must be at most 10,000,000"),
        (["nothing.txt"], "there is no text to train a tokenizer on"),
        (["latin.txt", "--vocab-size", "200"], "latin.txt is not UTF-8"),
        (["text", "--output", "text"], "among the texts; choose another path with --output"),
        (["text", "--output", "text/tokens"], "among the texts; choose another path with --output"),
        (["text/1.txt", "--output", "text"], "is not empty and has no tokenized text"),
        (["changed.txt", "--output", "of_changed"], "has the tokens of another text or tokenizer"),
        (["text", "--output", "latin.txt"], "latin.txt"),
        (["cut.gz"], "cannot read cut.gz"),
        (["tokens"], "tokens has text that is tokenized already; name the text itself"),
        (["nul.txt"], "nul.txt has NUL characters, so it is not plain text"),
        (["text", "--tokenizer", "tokens", "--vocab-size", "200"], "leave out --vocab-size and --lowercase"),
        (["text", "--tokenizer", "tokens", "--lowercase"], "leave out --vocab-size and --lowercase"),
        (
            ["text", "--output", "tokens", "--vocab-size", "150"],
            "has the tokens of another text or tokenizer",
        ),
    ],
)
def test_bad_input_of_prepare(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    message: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    write_text(tmp_path / "text")
    (tmp_path / "empty").mkdir()
    (tmp_path / "nothing.txt").write_text("\n")
    (tmp_path / "nul.txt").write_text("the cat\0\n" * 1000)
    (tmp_path / "latin.txt").write_bytes(b"the cat\n" * 1000 + "für".encode("latin-1"))
    (tmp_path / "cut.gz").write_bytes(gzip.compress(random.Random(0).randbytes(1000))[:500])
    prepare.main(["text", "--output", "tokens", "--vocab-size", "200"])
    (tmp_path / "changed.txt").write_text("the cat sees the dog\n" * 1000)
    prepare.main(["changed.txt", "--output", "of_changed"])
    (tmp_path / "changed.txt").write_text("the dog sees the cat\n" * 1000)
    capsys.readouterr()
    output = [] if "--output" in arguments else ["--output", "out"]
    assert_fails(prepare.main, [*arguments, *output], message, capsys)


def test_a_bad_byte_in_the_last_file_is_found_before_the_work_begins(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Whoever mends the file has another text, and would have to start over."""
    write_text(tmp_path / "text")
    (tmp_path / "text" / "zzz.txt").write_bytes(b"caf\xe9")
    with pytest.raises(SystemExit):
        prepare.main([str(tmp_path / "text"), "--output", str(tmp_path / "tokens"), "--vocab-size", "90"])
    assert "zzz.txt is not UTF-8" in capsys.readouterr().err
    assert not (tmp_path / "tokens").exists()


def test_ids_that_cannot_be_mapped_are_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for i in range(30):
        (tmp_path / f"{i}.txt").write_text(small_text(100, seed=i))
    files = [str(path) for path in tmp_path.glob("*.txt")]
    prepare.main([*files, "--output", str(tmp_path / "out"), "--vocab-size", "100"])

    def fail(*_: object, **__: object) -> torch.Tensor:
        raise RuntimeError("unable to open file <train.bin>: Input/output error (5)\ntraceback")

    monkeypatch.setattr(torch, "from_file", fail)
    with pytest.raises(ValueError, match=r"cannot read the ids .*error \(5\)\); check the disk"):
        read_token_files(tmp_path / "out")


def test_a_folder_whose_path_is_not_utf8_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """PyTorch couldn't map the ids into memory."""
    folder = Path(os.fsdecode(os.fsencode(tmp_path) + b"/\xff"))
    folder.mkdir()
    monkeypatch.chdir(folder)
    Path("a.txt").write_text(small_text(20_000))
    assert_fails(prepare.main, ["a.txt", "--output", "out"], "is not UTF-8; use another folder", capsys)
    prepare.main(["a.txt", "--output", str(tmp_path / "out"), "--vocab-size", "100"])
    (tmp_path / "out").rename("out")
    with pytest.raises(ValueError, match="is not UTF-8; use another folder, or rename it"):
        read_token_files(Path("out"))


@pytest.mark.usefixtures("small_blocks")
def test_no_ids_of_a_text_that_changes_while_it_is_read_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    before = small_text(2000)
    (tmp_path / "a.txt").write_text(before)
    words = ["a.txt", "--vocab-size", "100", "--output"]
    prepare.main([*words, "expected"])
    read_whole_files = prepare.read_files
    reads = 0

    def read_and_change(files: list[Path], position: tuple[int, int] = (0, 0)) -> Iterator[Chunk]:
        nonlocal reads
        reads += 1
        for number, chunk in enumerate(read_whole_files(files, position)):
            # The first pass only checks the text.
            if reads == 2 and number == 3:
                (tmp_path / "a.txt").write_text(before.replace("the", "teh"))
            yield chunk

    monkeypatch.setattr(prepare, "read_files", read_and_change)
    message = "a.txt has changed while it was read; run this again with another --output"
    assert_fails(prepare.main, [*words, "out"], message, capsys)
    assert_fails(prepare.main, [*words, "out"], "has the tokens of another text or tokenizer", capsys)
    (tmp_path / "a.txt").write_text(before)
    prepare.main([*words, "out"])
    assert read_bytes(tmp_path / "out") == read_bytes(tmp_path / "expected")


def test_a_disk_that_fails_is_reported_with_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(path: Path) -> str:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(prepare, "file_sha256", fail)
    (tmp_path / "a.txt").write_text(small_text(100))
    words = "cannot read a.txt: Input/output error; replace the file or leave it out"
    assert_fails(prepare.main, ["a.txt", "--output", "out", "--vocab-size", "100"], words, capsys)


def test_a_vocabulary_size_for_tokenized_text_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tokenizer: Tokenizer
) -> None:
    corpus_of(tmp_path / "tokens", tokenizer, write_text(tmp_path / "text"))
    with pytest.raises(SystemExit) as exit_info:
        main_in_process(
            monkeypatch,
            tmp_path,
            "--corpus=tokens",
            "--vocab-size=500",
            "--steps=1",
            experiment="own_language",
        )
    assert exit_info.value.code == 2
    assert "--vocab-size" in capsys.readouterr().err


def test_only_the_blocks_that_are_needed_are_read(tmp_path: Path) -> None:
    """Chunks come from a generator and aren't all held in memory: none is read before its block is needed."""
    chunks = iter(Chunk("a" * 1_000_000, (0, i + 1)) for i in range(1000))
    first = next(islice(group_chunks(chunks), 1))
    assert len(first[0]) == 4
    assert next(chunks).next == (0, 5)


def test_encode_block_splits_by_hash(tokenizer: Tokenizer) -> None:
    train, valid, train_characters, valid_characters = encode_block(tokenizer, ["the cat\n"], 0.0)
    assert (valid, valid_characters) == (b"", 0) and train_characters == 8 and len(train) == 4
    assert encode_block(tokenizer, ["the cat\n"], 1.0)[1] == train


def test_progress_of_an_unused_folder(tmp_path: Path) -> None:
    assert read_progress(tmp_path / "missing") is None
    assert read_progress(tmp_path) is None
    (tmp_path / f"tokenizer.json.1{PART}").touch()
    assert read_progress(tmp_path) is None


def test_a_piece_of_the_sample_may_begin_and_end_inside_a_character(tmp_path: Path) -> None:
    path = tmp_path / "line.txt"
    path.write_text("a" + "日本語" * 100_000, "utf-8")
    pieces = sample_text([path], most=400_000)
    assert len(pieces) > 3 and set("".join(pieces)) == set("a日本語")


def test_a_sample_of_bytes_that_are_not_text_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "binary.bin"
    path.write_bytes(random.Random(0).randbytes(100_000))
    with pytest.raises(ValueError, match=r"binary\.bin is compressed, or not a text"):
        sample_text([path])
