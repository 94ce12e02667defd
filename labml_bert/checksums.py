"""
# Checksums of saved files

A disk can return wrong bits, and one wrong bit in a vocabulary or in a configuration can silently change what
a model predicts. A file from another model can do the same: if its weights have the right names and shapes,
they load without an error.

When we save a model, we write the sha256 of its weights, its configuration and its tokenizer to `SHA256SUMS`
in the same folder. Whenever we read one of these files, we check it. You can check them all with
`sha256sum --check SHA256SUMS`. If you change a file yourself, remove its line from that list. A file that
isn't listed, such as one from another program, isn't checked.

Programs append to a file of JSON lines, so each line starts with a checksum of its own:

    {"crc32": 878173012, "step": 390, "loss": 2.913}
"""

import contextlib
import hashlib
import json
import os
import re
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from labml_bert.files import unreadable, whole_file, write_whole

SUMS = "SHA256SUMS"
# The default limit of `read_checked`, in bytes. This is enough for a tokenizer with millions of tokens.
LARGEST_FILE = 1_000_000_000


def check_readable(path: Path) -> None:
    """
    Raises `ValueError` if the file can't be opened. Such a file isn't necessarily damaged. It may belong to
    another user.
    """
    try:
        with open(path, "rb"):
            pass
    except OSError as error:
        raise unreadable(path, error.strerror) from None


def read_sums(folder: Path) -> dict[str, str]:
    """
    The sha256 of each file that `SHA256SUMS` lists, by name. Empty if the folder has no `SHA256SUMS`.

    Raises `ValueError` if `SHA256SUMS` can't be read or is damaged. Without that error, we would load
    the files unchecked.
    """
    path = folder / SUMS
    if not path.exists():
        return {}
    try:
        if not path.is_file():
            raise ValueError("it isn't a regular file")
        if not 0 < path.stat().st_size <= 1_000_000:
            raise ValueError("it's empty, or has more than a million bytes")
        *lines, rest = path.read_text(encoding="utf-8-sig").split("\n")
        if rest:
            raise ValueError("its last line is cut off, or has no line end")
    except OSError as error:
        raise unreadable(path, error.strerror) from None
    except ValueError as error:
        raise ValueError(f"{path} is damaged ({error}); replace or remove it") from None
    sums: dict[str, str] = {}
    for number, line in enumerate(lines, 1):
        # Like `sha256sum --check`, accept empty lines, comments, and an asterisk before a name.
        match = re.fullmatch(r"([0-9a-fA-F]{64}) [ *](?:\./)*(.+)", line)
        if match:
            digest, name = match[1].lower(), match[2]
            if sums.setdefault(name, digest) != digest:
                raise ValueError(f"{path} lists {name} twice; remove one of the lines")
        elif line.strip() and not line.startswith("#"):
            raise ValueError(f"{path} is damaged (line {number:,} is no checksum); replace or remove it")
    return sums


def write_sums(folder: Path, sums: dict[str, str]) -> None:
    """Writes `SHA256SUMS`. Raises `OSError` if that fails."""
    write_whole(folder / SUMS, "\n".join(f"{digest}  {name}" for name, digest in sorted(sums.items())))


def file_sha256(path: Path) -> str:
    """The sha256 of a file of any size. Raises `OSError` if it can't be read."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def text_sha256(text: str) -> str:
    """The sha256 of the file that `write_checked` writes."""
    return hashlib.sha256((text + "\n").encode()).hexdigest()


def write_checked(path: Path, text: str) -> None:
    """Writes a text and a final newline, atomically, and adds the file to `SHA256SUMS`, as `listing` does."""
    with listing(path, text_sha256(text)), whole_file(path) as part:
        part.write_bytes((text + "\n").encode())


@contextlib.contextmanager
def listing(path: Path, digest: str | None = None) -> Iterator[None]:
    """
    Adds a file to `SHA256SUMS` after the `with` block has written it. `digest` is the sha256 that the file
    will have. Without `digest`, we compute the sha256 from the written file.

    Raises `OSError` if `SHA256SUMS` is damaged, or if the system can't read or write one of the two files. If
    the block fails or the program is killed, the file may be missing from `SHA256SUMS`, but it's never listed
    with a wrong sha256.
    """
    sums = sums_for_saving(path.parent)
    if path.name in sums and sums.pop(path.name) != digest:
        write_sums(path.parent, sums)
    yield
    write_sums(path.parent, {**sums_for_saving(path.parent), path.name: digest or file_sha256(path)})


def sums_for_saving(folder: Path) -> dict[str, str]:
    """
    Returns the same as `read_sums`, but raises `OSError` instead of `ValueError`. A run that saves a model
    then ends as it does on a full disk: with one line, and with what it has saved so far.
    """
    try:
        return read_sums(folder)
    except ValueError as error:
        raise OSError(str(error)) from None


def read_checked(path: Path, most: int = LARGEST_FILE) -> bytes:
    """
    Returns the contents of a file. A file that isn't in `SHA256SUMS` isn't checked.

    Raises `ValueError` if the file is listed but missing, has more than `most` bytes, or doesn't match its
    sha256, or if `SHA256SUMS` is damaged. Raises `FileNotFoundError` if `path` isn't a regular file and isn't
    listed, and `OSError` if the file can't be read.
    """
    # Reading anything other than a regular file, such as a pipe, could wait forever.
    if not path.is_file():
        if path.name in read_sums(path.parent):
            raise ValueError(
                f"{path} is missing or not a file; put it back, or remove its line from {SUMS}, or that file "
                "if it's the only line"
            )
        raise FileNotFoundError(f"there is no file {path}")
    if path.stat().st_size > most:
        raise ValueError(f"{path} has more than {most:,} bytes")
    data = path.read_bytes()
    check_digest(path, hashlib.sha256(data).hexdigest())
    return data


def check_digest(path: Path, digest: str) -> None:
    """
    Raises `ValueError` if `SHA256SUMS` is damaged, or lists the file with another sha256 than `digest`. Such
    a file may be damaged, or come from another model.
    """
    if read_sums(path.parent).get(path.name, digest) != digest:
        raise ValueError(
            f"{path} is damaged or partly saved (it does not have the sha256 that it was saved with); save "
            f"it again; if you changed it, remove its line from {SUMS}, or that file if it's the only line"
        )


def file_state(path: Path) -> tuple[int, int] | None:
    """
    Returns the file's inode and modification time in nanoseconds, or `None` if there is no file. Raises
    `OSError` if the system can't look the file up.
    """
    try:
        status = path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return None
    return status.st_ino, status.st_mtime_ns


@contextlib.contextmanager
def reading(folder: Path, *names: str) -> Iterator[Path]:
    """
    Yields the folder to read the files `names` from. If `folder` is a link, yields the folder it points to.

    Raises `ValueError` after the `with` block if one of the files has been replaced, created or deleted. The
    block could have read the weights of one model and the tokenizer of another.
    """
    target = os.path.realpath(folder)
    folder = folder if os.path.abspath(folder) == target else Path(target)
    states = {name: file_state(folder / name) for name in names}

    def check_states() -> None:
        for name, state in states.items():
            if file_state(folder / name) != state:
                message = f"{folder / name} was replaced while it was read"
                raise ValueError(f"{message}; try again when no program writes to it") from None

    try:
        yield folder
    except ValueError:
        check_states()
        raise
    check_states()


def parse_json(text: bytes | str) -> Any:
    """
    Parses JSON. Raises `ValueError` for anything else, for JSON that's nested too deeply, and for an integer
    with more digits than Python reads.
    """
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    except ValueError as error:
        if "int_max_str_digits" not in str(error):
            raise
        raise ValueError("a number in it has thousands of digits") from None


def seal(text: str) -> str:
    """
    ## One JSON file

    Returns a JSON object as text, with a last entry `sha256`: the checksum of the text before that entry.
    """
    content = text[:-1].rstrip()
    return f'{content},"sha256":"{hashlib.sha256(content.encode()).hexdigest()}"}}'


def parse_sealed(text: str) -> Any:
    """
    Parses JSON as `parse_json` does. If an object has an entry `sha256`, checks it and leaves it out. Raises
    `ValueError` if it's wrong.
    """
    values = parse_json(text)
    if isinstance(values, dict) and "sha256" in values:
        content = text.rpartition(',"sha256":')[0]
        if values.pop("sha256") != hashlib.sha256(content.encode()).hexdigest():
            raise ValueError("its checksum differs; if you changed it, remove its last entry, sha256")
    return values


def list_files(folder: Path, files: Sequence[Path]) -> None:
    """Writes a `SHA256SUMS` that lists exactly these files, of any size, in `folder` and its subfolders."""
    write_sums(folder, {path.relative_to(folder).as_posix(): file_sha256(path) for path in files})


def are_as_listed(folder: Path, files: Sequence[Path]) -> bool:
    """Whether the `SHA256SUMS` of `folder` is intact and lists exactly these files, and none has changed."""
    try:
        sums = read_sums(folder)
    except ValueError:
        return False
    names = {path.relative_to(folder).as_posix(): path for path in files}
    return sums.keys() == names.keys() and all(file_sha256(names[name]) == sums[name] for name in sums)


def encode_line(values: dict[str, Any]) -> bytes:
    """
    ## Lines

    Returns a JSON object as a line that starts with its crc32. `values` must not be empty, and must not
    contain NaN or infinity.
    """
    text = json.dumps(values, allow_nan=False)
    return f'{{"crc32": {zlib.crc32(text.encode())}, {text[1:]}\n'.encode()


def is_list_of_blocks(path: Path) -> bool:
    """Whether `path` is a `blocks.jsonl` of `token_files.py`."""
    if not os.path.isfile(path):
        return False
    with open(path, "rb") as file:
        beginning = file.read(10)
    # In earlier versions, lines had no checksums.
    return any(start.startswith(beginning) for start in (b'{"crc32": ', b'{"files": '))


def decode_line(line: bytes) -> dict[str, Any]:
    """Returns the object in a line, without its crc32. Raises `ValueError` if the line is damaged."""
    match = re.fullmatch(rb'\{"crc32": (\d{1,10}), (.*)', line.rstrip(b"\n"))
    text = b"{" + match[2] if match else b""
    if match is None or zlib.crc32(text) != int(match[1]):
        raise ValueError("the line is damaged")
    values: dict[str, Any] = parse_json(text)
    return values
