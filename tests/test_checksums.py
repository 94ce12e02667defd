"""Flipped bits in small files are detected, and a file that was changed on purpose can still be used."""

import json
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from labml_bert.checksums import (
    SUMS,
    are_as_listed,
    decode_line,
    encode_line,
    list_files,
    parse_json,
    parse_sealed,
    read_checked,
    seal,
    write_checked,
)
from tests.support.damage import flip_bit


@pytest.mark.parametrize("indent", [None, 1])
def test_each_flipped_bit_of_sealed_json_is_detected(indent: int | None) -> None:
    values = {"sums": [{"sha256": "0"}], "loss": 1.25, "text": "é"}
    text = seal(json.dumps(values, indent=indent))
    assert json.loads(text).keys() == {*values, "sha256"}
    assert parse_sealed(text) == values
    refused = 0
    for at, character in enumerate(text):
        for bit in range(7):
            try:
                read = parse_sealed(f"{text[:at]}{chr(ord(character) ^ 1 << bit)}{text[at + 1 :]}")
            except ValueError:
                refused += 1
            else:
                # In the name of the last entry, it does no harm.
                assert {name: read[name] for name in values} == values and len(read) == len(values) + 1
    assert refused >= 7 * (len(text) - len("sha256"))


def test_sealed_json_that_was_changed_on_purpose_is_read_without_its_checksum() -> None:
    assert parse_sealed('{"loss": 1.5}') == {"loss": 1.5}
    with pytest.raises(ValueError, match="remove its last entry, sha256"):
        parse_sealed(seal('{"loss": 1.25}').replace("1.25", "1.5"))


def test_each_flipped_bit_is_detected(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    write_checked(path, '{"layers": 4}')
    intact = path.read_bytes()
    assert read_checked(path) == intact == b'{"layers": 4}\n'
    for at in range(len(intact)):
        path.write_bytes(flip_bit(intact, at))
        with pytest.raises(ValueError, match=f"damaged .*; if you changed it, remove its line from {SUMS}"):
            read_checked(path)


def test_a_listed_file_that_was_deleted_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    with pytest.raises(FileNotFoundError):
        read_checked(path)
    write_checked(path, "{}")
    path.unlink()
    with pytest.raises(
        ValueError, match=r"config\.json is missing or not a file; put it back, or remove its line"
    ):
        read_checked(path)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda data: data + bytes(2_000_000), "or has more than a million bytes"),
        (lambda data: b"", "it's empty"),
        (lambda data: data[:-3], "its last line is cut off"),
        (lambda data: bytes(len(data)) + b"\n", "line 1 is no checksum"),
        (lambda data: data + b"\nnot a sum\n", "line 3 is no checksum"),
        (lambda data: data.decode().encode("utf-16"), "codec"),
        (lambda data: data.replace(b"  ", b" "), "line 1 is no checksum"),
    ],
)
def test_a_damaged_list_is_no_list(change: Callable[[bytes], bytes], words: str, tmp_path: Path) -> None:
    """Otherwise no file would be checked."""
    path, sums = tmp_path / "config.json", tmp_path / SUMS
    write_checked(path, "{}")
    sums.write_bytes(change(sums.read_bytes()))
    with pytest.raises(ValueError, match=f"{SUMS} is damaged .*{words}.*; replace or remove it"):
        read_checked(path)
    sums.unlink()
    assert read_checked(path) == b"{}\n"
    os.mkfifo(sums)
    with pytest.raises(ValueError, match="it isn't a regular file"):
        read_checked(path)


@pytest.mark.parametrize(
    "change",
    [
        lambda data: data.replace(b"  ", b" *"),
        lambda data: data.replace(b"  ", b"  ./"),
        lambda data: data.replace(b"  ", b"  ././"),
        lambda data: data.replace(b"\n", b"\r\n"),
        lambda data: b"\xef\xbb\xbf" + data,
        lambda data: data.decode().upper().replace("CONFIG.JSON", "config.json").encode(),
        lambda data: b"# a comment\n\n" + data,
    ],
)
def test_lists_of_other_programs_are_checked(change: Callable[[bytes], bytes], tmp_path: Path) -> None:
    path, sums = tmp_path / "config.json", tmp_path / SUMS
    write_checked(path, "{}")
    sums.write_bytes(change(sums.read_bytes()))
    assert read_checked(path) == b"{}\n"
    path.write_text("[]")
    with pytest.raises(ValueError, match=r"config\.json is damaged"):
        read_checked(path)


def test_a_file_that_is_listed_twice(tmp_path: Path) -> None:
    path, sums = tmp_path / "config.json", tmp_path / SUMS
    write_checked(path, "{}")
    text = sums.read_text()
    sums.write_text(text * 2)
    assert read_checked(path) == b"{}\n"
    sums.write_text("0" * 64 + text[64:] + text)
    with pytest.raises(ValueError, match=r"SHA256SUMS lists config\.json twice; remove one of the lines"):
        read_checked(path)


def test_numbers_with_thousands_of_digits_are_refused() -> None:
    with pytest.raises(ValueError, match=r"^a number in it has thousands of digits$"):
        parse_json("9" * 5000)


def test_a_flipped_bit_in_the_list_never_changes_what_is_read(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    write_checked(path, "{}")
    intact = (tmp_path / SUMS).read_bytes()
    for at in range(len(intact)):
        (tmp_path / SUMS).write_bytes(flip_bit(intact, at))
        try:
            assert read_checked(path) == b"{}\n"
        except ValueError as error:
            assert "damaged" in str(error)


def test_a_damaged_list_stops_the_writing(tmp_path: Path) -> None:
    """A run that saves its model treats this like a full disk, so it must be an `OSError`."""
    write_checked(tmp_path / "config.json", "{}")
    (tmp_path / SUMS).write_text("damaged\n")
    with pytest.raises(OSError, match=f"{SUMS} is damaged .*; replace or remove it$"):
        write_checked(tmp_path / "config.json", "[]")
    assert (tmp_path / "config.json").read_text() == "{}\n"


@pytest.mark.processes
def test_a_file_is_listed_until_it_is_written_again(tmp_path: Path) -> None:
    a, b = tmp_path / "a b.json", tmp_path / "ü.json"
    for text in ("1", "2", "2", "3"):
        write_checked(a, text)
        write_checked(b, text)
        assert read_checked(a) == read_checked(b) == text.encode() + b"\n"
    if shutil.which("sha256sum"):
        subprocess.run(["sha256sum", "--check", "--strict", "--quiet", SUMS], cwd=tmp_path, check=True)


def test_a_kill_between_two_writes_leaves_no_wrong_checksum(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Wherever the kill happens, the old or the new contents can be read."""
    path, replace = tmp_path / "a.json", os.replace
    for number in range(3):
        write_checked(path, "old")
        left = number

        def stop(source: Path, target: Path) -> None:
            nonlocal left
            if left == 0:
                raise KeyboardInterrupt
            left -= 1
            replace(source, target)

        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            patch.setattr(os, "replace", stop)
            write_checked(path, "new")
        assert read_checked(path) == (b"new\n" if number == 2 else b"old\n")


def test_only_a_regular_file_of_the_right_size_is_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for name in ("pipe", "missing", "."):
        with pytest.raises(FileNotFoundError, match="there is no file"):
            read_checked(tmp_path / name)
    (tmp_path / "a").write_bytes(b"12345")
    assert read_checked(tmp_path / "a", 5) == b"12345"
    with pytest.raises(ValueError, match="more than 4 bytes"):
        read_checked(tmp_path / "a", 4)


def test_lists_of_files_in_folders(tmp_path: Path) -> None:
    (tmp_path / "below").mkdir()
    files = [tmp_path / "a", tmp_path / "below" / "b"]
    for file in files:
        file.write_bytes(b"data")
    assert not are_as_listed(tmp_path, files)
    list_files(tmp_path, files)
    assert are_as_listed(tmp_path, files)
    assert not are_as_listed(tmp_path, files[:1])
    files[1].write_bytes(b"date")
    assert not are_as_listed(tmp_path, files)


def test_each_flipped_bit_of_a_line_is_detected() -> None:
    values = {"step": 3, "loss": 2.5, "accuracy": None}
    line = encode_line(values)
    assert decode_line(line) == values and list(json.loads(line)) == ["crc32", *values]
    for at in range(len(line) - 1):
        for bit in range(8):
            damaged = line[:at] + bytes([line[at] ^ (1 << bit)]) + line[at + 1 :]
            with pytest.raises(ValueError, match="line is damaged"):
                decode_line(damaged)
