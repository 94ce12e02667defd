r"""
# Text files of any size

How do you read text that is larger than memory? You read it in chunks. Each chunk comes with the position of
the next chunk, so a program that was stopped can continue there. The text can be in UTF-8 files, compressed
or not, or in a streamed data set.
"""

import bz2
import codecs
import contextlib
import gzip
import io
import lzma
import os
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, cast

from labml_bert.data.corpora import visible_files
from labml_bert.files import encoding_error, without_nul

# A chunk of a file has at most this many bytes of decompressed text.
CHUNK_SIZE = 4_000_000


class Chunk(NamedTuple):
    """A chunk of text, and the position of the next chunk."""

    text: str
    next: tuple[int, int]
    """For files, the index of the file and the byte offset in its decompressed text. For a data set, 0 and
    the index of the row."""


# This is the type of a function that yields the text from a given position on. That position is (0, 0) or,
# to resume, the `next` of the last chunk that has been processed.
ReadChunks = Callable[[tuple[int, int]], Iterable[Chunk]]


def find_files(paths: Sequence[Path]) -> list[Path]:
    """
    ## Reading files

    Returns the files in `paths`. In place of each folder, returns the files that `corpora.visible_files`
    finds in it, sorted by path. Each file is returned only once.

    Raises `ValueError` if a path isn't a file or folder, or if a folder has no such files.
    """
    files: list[Path] = []
    for path in paths:
        inside = sorted(visible_files(path)) if path.is_dir() else [path]
        if not inside or not all(file.is_file() for file in inside):
            raise ValueError(f"{path} is not a file or a folder of files; name your text files")
        files += inside
    by_path: dict[Path, Path] = {}
    for file in files:
        by_path.setdefault(file.resolve(), file)
    return [*by_path.values()]


def check_not_among(texts: Path, output: Path, option: str) -> None:
    """Raises `ValueError` if `visible_files` would find `output` among the files in the folder `texts`."""
    folder, path = (Path(os.path.realpath(path)) for path in (texts, output))
    inside = path.relative_to(folder).parts if path.is_relative_to(folder) else [".outside"]
    if texts.is_dir() and not any(part.startswith(".") for part in inside):
        raise ValueError(f"{output} would be in {texts}, among the texts; choose another path with {option}")


def open_file(path: Path) -> BinaryIO:
    """Opens a file to read its bytes. Decompresses `.gz`, `.bz2` and `.xz`."""
    suffix = path.suffix.lower()
    if suffix == ".gz":
        # Python's `gzip` reads an empty file as an empty text, but no valid `.gz` file is empty.
        if path.stat().st_size == 0:
            raise EOFError("the compressed file ends too early")
        return cast(BinaryIO, gzip.open(path))
    if suffix in DECOMPRESSORS:
        return io.BufferedReader(CompressedFile(path, *DECOMPRESSORS[suffix]), 1 << 16)
    return open(path, "rb")


# For each kind of file, what creates a decompressor, and the padding that the format allows after a stream.
DECOMPRESSORS: dict[str, tuple[Callable[[], Any], bytes]] = {
    ".bz2": (bz2.BZ2Decompressor, b""),
    ".xz": (lambda: lzma.LZMADecompressor(lzma.FORMAT_XZ), b"\0"),
}


class CompressedFile(io.RawIOBase):
    """
    The contents of a `.bz2` or `.xz` file of one or more streams. If a later stream is damaged, Python's own
    readers stop before it without an error, and the rest of the text is missing. This class raises an error.
    """

    def __init__(self, path: Path, create_decompressor: Callable[[], Any], padding: bytes):
        self.create_decompressor, self.padding = create_decompressor, padding
        self.file = open(path, "rb")  # noqa: SIM115
        self.decompressor, self.position = create_decompressor(), 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def close(self) -> None:
        self.file.close()
        super().close()

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Moves to `offset`, counted from the beginning, by decompressing up to there. Returns `offset`."""
        if whence == io.SEEK_CUR and offset == 0:
            return self.position
        if offset < self.position:
            self.file.seek(0)
            self.decompressor, self.position = self.create_decompressor(), 0
        while self.position < offset and self.read(min(offset - self.position, 1 << 20)):
            pass
        return self.position

    def readinto(self, buffer: Any) -> int:
        """Fills a part of `buffer`. Raises `EOFError`, `OSError` or `LZMAError` if the file is damaged."""
        data = b""
        while not data:
            compressed = b""
            if self.decompressor.eof:
                compressed = self.decompressor.unused_data.lstrip(self.padding)
                while not compressed:
                    piece = self.file.read(1 << 16)
                    if not piece:
                        return 0
                    compressed = piece.lstrip(self.padding)
                self.decompressor = self.create_decompressor()
            elif self.decompressor.needs_input:
                compressed = self.file.read(1 << 16)
                if not compressed:
                    raise EOFError("the compressed file ends too early")
            data = self.decompressor.decompress(compressed, len(buffer))
        buffer[: len(data)] = data
        self.position += len(data)
        return len(data)


@contextlib.contextmanager
def explain_unreadable(path: Path) -> Iterator[None]:
    """Raises `ValueError`, with the reason, if the code in the `with` block can't read the file."""
    try:
        yield
    except (OSError, EOFError, zlib.error, lzma.LZMAError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ValueError(f"cannot read {path}: {reason}; replace the file or leave it out") from None


def read_files(files: Sequence[Path], position: tuple[int, int] = (0, 0)) -> Iterator[Chunk]:
    """
    Yields the text of the files from `position` on, in chunks that end at a line end or at the end of a file.
    Cuts a line that is longer than a chunk. Line ends become `\\n`, and an empty line follows each file.

    Raises `ValueError` if a file can't be read, or isn't UTF-8.
    """
    first, offset = position
    for number in range(first, len(files)):
        path = files[number]
        with explain_unreadable(path), open_file(path) as file:
            file.seek(offset)
            rest = b""
            while True:
                # A file's chunk depends only on where it begins, so a resumed program gets the same chunks.
                data = rest + file.read(CHUNK_SIZE - len(rest))
                is_last = len(data) < CHUNK_SIZE
                end = len(data) if is_last else data.rfind(b"\n") + 1 or last_character(data)
                data, rest = data[:end], data[end:]
                text = decode(data, path, offset)
                offset = 0 if is_last else offset + end
                yield Chunk(text + "\n\n" * is_last, (number + is_last, offset))
                if is_last:
                    break


def read_documents(files: Sequence[Path], longest: int = 1_000_000) -> Iterator[str]:
    """
    Yields the text of the files as documents for `pair_dataset.build_dataset`, without holding a large file
    in memory. A file of about `longest` characters or more becomes several documents of at most that length,
    each as long as possible. The file is cut at empty lines, or anywhere if there is no empty line.

    Raises `ValueError` if a file can't be read, or isn't UTF-8.
    """
    rest, number = "", 0
    for text, (next_number, _) in read_files(files):
        rest += text
        while len(rest) > longest:
            end = rest.rfind("\n\n", 1, longest) + 1 or longest
            yield rest[:end]
            rest = rest[end:]
        if next_number > number:
            yield rest
            rest, number = "", next_number


def first_character(data: bytes) -> int:
    """The index of the first byte that isn't inside a character, or 0 if `data` isn't UTF-8."""
    return next((i for i, byte in enumerate(data[:4]) if byte & 0xC0 != 0x80), 0)


def last_character(data: bytes) -> int:
    """Returns where the last character in UTF-8 `data` begins. This last character may be incomplete."""
    return next((i for i in range(len(data) - 1, 0, -1) if data[i] & 0xC0 != 0x80), len(data))


def decode(data: bytes, path: Path, offset: int, is_last: bool = True) -> str:
    """
    Decodes `data`, which starts at byte `offset` of the file. Unless `is_last` is set, leaves out an
    incomplete character at the end. Line ends become `\\n`. Raises `ValueError` if `data` isn't UTF-8, or has
    a NUL character.
    """
    decoder = codecs.getincrementaldecoder("utf-8" if offset else "utf-8-sig")()
    try:
        text = decoder.decode(data, final=is_last)
    except UnicodeDecodeError as error:
        beginning = b"" if offset else data
        raise encoding_error(path, error, beginning, f"byte {offset + error.start}") from None
    return without_nul(text, path).replace("\r\n", "\n").replace("\r", "\n")


def read_rows(dataset: Any, position: tuple[int, int] = (0, 0), column: str = "text") -> Iterator[Chunk]:
    """
    ## Reading a data set

    Yields the text of each row from `position` on, followed by an empty line. `dataset` is a
    `datasets.IterableDataset`, which `load_dataset(…, split=…, streaming=True)` returns.

    Raises `ValueError` if a row has no text in this column.
    """
    number = position[1]
    for row in dataset.skip(number):
        number += 1
        if not isinstance(row.get(column), str):
            raise ValueError(
                f"row {number} has no text in the column {column!r}; name another, or drop the row"
            )
        yield Chunk(row[column] + "\n\n", (0, number))


# A sample takes pieces of this many bytes from files of this size or more.
SAMPLE_PIECE = 100_000


def sample_text(files: Sequence[Path], most: int = 20_000_000) -> list[str]:
    """
    ## A sample for the vocabulary

    Returns evenly spaced pieces of the text, about `most` bytes in total, or all of a text of at most `most`
    bytes. A file smaller than a piece is taken whole or left out. Of a compressed file, we know only the
    compressed size, so we take text only from its beginning.

    Raises `ValueError` if a file can't be read, or isn't UTF-8.
    """
    ratio = min(1.0, most / max(1, sum(file.stat().st_size for file in files)))
    pieces, owed = [], 0.0
    for path in files:
        length = path.stat().st_size
        # The sample still needs this many bytes from the files up to and including this one.
        owed += length * ratio
        is_whole = ratio == 1 or length < SAMPLE_PIECE
        size = length if is_whole else SAMPLE_PIECE
        count = min(int(owed // max(1, size)), 1 if is_whole else length)
        owed -= count * size
        if not count:
            continue
        with explain_unreadable(path), open_file(path) as file:
            for offset in (i * length // count for i in range(count)):
                file.seek(offset)
                # The offset may be inside a line, so skip to the next line, but at most 1,000 bytes.
                if offset:
                    file.readline(1000)
                # A compressed file can have more text than bytes, so read at least one piece of its text.
                most_of_it = max(size, SAMPLE_PIECE) if is_whole else size
                start, data = file.tell(), file.read(most_of_it)
                # A piece may begin and end inside a character.
                first = first_character(data) if start else 0
                pieces.append(decode(data[first:], path, start + first, is_last=len(data) < most_of_it))
    return pieces
