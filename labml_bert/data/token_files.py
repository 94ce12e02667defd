r"""
# Text larger than memory

How do you train on more text than fits in memory? Tokenize it once and write the token ids to a file.
Training then maps this file into memory, and for each batch, the operating system reads only the parts that
the batch needs. [`prepare.py`](../prepare.md) tokenizes the text and writes a folder:

| file | contents |
|---|---|
| `train.bin`, `valid.bin` | the token ids, as uint16 (int32 for a vocabulary of more than 65,536) |
| `tokenizer.json` | the tokenizer |
| `blocks.jsonl` | a line with the settings, a line for each block of text, and a final line |

The text is tokenized in blocks. Each block except for the last one has at least four million characters. The
line about a block is written after the block's ids have reached the disk. So if the program is killed, the
next run continues after the last block that has a line. The line also holds the sha256 of the block's ids.
Whenever the folder is opened, we check this hash, the hash of the tokenizer, and a checksum of each line.
"""

import contextlib
import hashlib
import json
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import torch
from tokenizers import Tokenizer
from torch import Tensor

from labml_bert.checksums import decode_line, encode_line, file_state, is_list_of_blocks, reading
from labml_bert.data.corpora import BLOCKS, NAMES, Corpus, corpus_name, load_corpus
from labml_bert.data.text_files import Chunk, ReadChunks
from labml_bert.data.tokenizers import SPECIAL_TOKENS, encode_texts, load_tokenizer, split_lines
from labml_bert.files import (
    append,
    check_utf8,
    is_leftover,
    lock,
    make_folder,
    open_to_append,
    remove_partial_files,
    unreadable,
    whole_file,
    write_whole,
)

TRAIN, VALID = "train.bin", "valid.bin"
# Each block except for the last one has at least this many characters. Tokenizing a block takes tens of times
# the block's size in memory.
BLOCK_SIZE = 4_000_000
# About this many bytes of a large text are held out, or several times as many if its files are compressed.
# With many more, an evaluation could take minutes.
HELD_OUT_SIZE = 4_000_000


class Block(NamedTuple):
    """A block, as one line of `blocks.jsonl` describes it."""

    train_tokens: int
    valid_tokens: int
    train_characters: int
    valid_characters: int
    sha256: str
    """A hash of the block's ids in both files."""
    next: tuple[int, int]
    """Where the next block begins, as in `text_files.Chunk`."""


def is_held_out(text: str, fraction: float) -> bool:
    """
    ## What is held out

    Whether a piece of text is held out. A hash of the piece decides, so about `fraction` of all pieces are
    held out, and so are exact copies of these pieces. A piece has about 10,000 characters. The rest of its
    document is mostly training text. For a small text, it's better to hold out whole documents, as
    `corpora.split_documents` does.
    """
    digest = hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()
    return int.from_bytes(digest[:8], "big") < fraction * 2**64


def encode_block(
    tokenizer: Tokenizer, texts: Sequence[str], fraction: float
) -> tuple[bytes, bytes, int, int]:
    """
    Tokenizes the texts. Returns the ids of the training pieces and of the held-out pieces, as bytes, and then
    the numbers of characters in the two groups. The `tokenizers` library uses all cores.
    """
    typecode = id_type(tokenizer)[0]
    parts: tuple[list[str], list[str]] = ([], [])
    for piece in chain.from_iterable(map(split_lines, texts)):
        parts[is_held_out(piece, fraction)].append(piece)
    train, valid = (
        array(typecode, chain.from_iterable(encode_texts(tokenizer, part))).tobytes() for part in parts
    )
    train_characters, valid_characters = (sum(map(len, part)) for part in parts)
    return train, valid, train_characters, valid_characters


def id_type(tokenizer: Tokenizer) -> tuple[str, torch.dtype]:
    """Returns the type of an id: its `array` typecode and its PyTorch dtype."""
    return ("H", torch.uint16) if tokenizer.get_vocab_size() <= 2**16 else ("i", torch.int32)


class Progress(NamedTuple):
    """What `blocks.jsonl` says about a folder."""

    settings: dict[str, Any]
    blocks: list[Block]
    is_finished: bool
    size: int
    """The length of the whole lines in bytes. A killed process may have written half a line after them."""


# In a finished folder, the last line of `blocks.jsonl` has this key. Its value is the number of blocks.
FINISHED = "finished"


def read_progress(folder: Path) -> Progress | None:
    """
    Reads from `blocks.jsonl` how much has been tokenized. Returns `None` if that file doesn't exist yet.

    Raises `ValueError` if `folder` is a file or has foreign files but no `blocks.jsonl`, or if `blocks.jsonl`
    is damaged.
    """
    path = folder / BLOCKS
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"{folder} is not a folder; choose another name")
    if not is_list_of_blocks(path):
        if folder.is_dir() and any(not is_leftover(file.name) for file in folder.iterdir()):
            raise ValueError(f"{folder} is not empty and has no tokenized text; choose another folder")
        return None
    data = path.read_bytes()
    size = data.rfind(b"\n") + 1
    try:
        settings, *lines = map(decode_line, data[:size].splitlines())
        is_finished = len(lines) > 0 and lines[-1] == {FINISHED: len(lines) - 1}
        blocks = [
            Block(**{**line, "next": tuple(line["next"])}) for line in lines[: len(lines) - is_finished]
        ]
        if not all(type(number) is int for block in blocks for number in (*block[:4], *block.next)):
            raise ValueError("a number is no integer")
    except (ValueError, TypeError, KeyError):
        raise ValueError(
            f"{path} is damaged or from an earlier version; delete the folder and tokenize the text again"
        ) from None
    return Progress(settings, blocks, is_finished, size)


def write_token_files(
    folder: Path,
    tokenizer: Tokenizer,
    read_chunks: ReadChunks,
    settings: dict[str, Any],
    on_block: Callable[[Block], None] = lambda block: None,
) -> None:
    """
    ## Writing the ids

    Tokenizes a text and writes the ids to `folder`, or continues where an earlier call stopped. `settings`
    identify the text. `settings["held_out"]` is the fraction to hold out. Calls `on_block` after each block.

    Raises `ValueError` if `folder` has damaged files or the tokens of a different text or tokenizer, if it
    has foreign files but no `blocks.jsonl`, if the text can't be read, or if `held_out` isn't a fraction.
    Raises `OSError` if the disk is full or another process is using `folder`.
    """
    held_out = settings.get("held_out")
    if not isinstance(held_out, float) or not 0 < held_out < 1:
        raise ValueError(f"held_out in settings is {held_out!r}; set it to a fraction between 0 and 1")
    # Compare the settings as they are read from the file, where a tuple is a list.
    settings = json.loads(json.dumps(settings))
    make_folder(folder)
    with lock(folder):
        remove_partial_files(folder)
        json_text = tokenizer.to_str(pretty=True)
        settings = {**settings, "tokenizer_sha256": hashlib.sha256(json_text.encode()).hexdigest()}
        progress = read_progress(folder)
        if progress is None or not progress.blocks:
            with whole_file(folder / BLOCKS) as part:
                part.write_bytes(encode_line(settings))
            progress = Progress(settings, [], False, (folder / BLOCKS).stat().st_size)
        if progress.settings != settings:
            raise ValueError(f"{folder} has the tokens of another text or tokenizer; choose another folder")
        # Write the tokenizer even if an earlier call has written it, in case its file is damaged or gone.
        write_whole(folder / "tokenizer.json", json_text)
        itemsize = id_type(tokenizer)[1].itemsize
        if progress.blocks:
            check_blocks(folder, progress.blocks, itemsize)
        if progress.is_finished:
            return
        with contextlib.ExitStack() as stack:
            train, valid, lines = (
                stack.enter_context(open_to_append(folder / name)) for name in (TRAIN, VALID, BLOCKS)
            )
            # A killed process may have written ids without a line about them, or half a line. Remove these.
            train.truncate(itemsize * sum(block.train_tokens for block in progress.blocks))
            valid.truncate(itemsize * sum(block.valid_tokens for block in progress.blocks))
            lines.truncate(progress.size)
            start = progress.blocks[-1].next if progress.blocks else (0, 0)
            for texts, position in group_chunks(read_chunks(start)):
                ids, valid_ids, characters, valid_characters = encode_block(
                    tokenizer, texts, settings["held_out"]
                )
                append(train, ids)
                append(valid, valid_ids)
                digest = hashlib.sha256(ids + valid_ids).hexdigest()
                tokens = len(ids) // itemsize, len(valid_ids) // itemsize
                block = Block(*tokens, characters, valid_characters, digest, position)
                append(lines, encode_line(block._asdict()))
                progress.blocks.append(block)
                on_block(block)
            append(lines, encode_line({FINISHED: len(progress.blocks)}))


def group_chunks(chunks: Iterable[Chunk]) -> Iterator[tuple[list[str], tuple[int, int]]]:
    """Groups chunks into blocks. Yields the texts of each block, and where the next block begins."""
    texts: list[str] = []
    size = 0
    position = None
    for text, position in chunks:
        texts.append(text)
        size += len(text)
        # `size` counts characters, so in many writing systems a block has more bytes than `BLOCK_SIZE`.
        if size >= BLOCK_SIZE:
            yield texts, position
            texts, size, position = [], 0, None
    if position is not None:
        yield texts, position


@dataclass(frozen=True)
class TokenizedCorpus:
    """
    ## Reading the ids

    The counterpart of `Corpus` for a folder of token files. The training ids are memory-mapped, so they don't
    have to fit in memory.
    """

    name: str
    tokenizer: Tokenizer
    train_ids: Tensor
    """One-dimensional, uint16 or int32."""
    valid_ids: Tensor
    """One-dimensional, int64."""
    train_characters: int
    valid_characters: int
    valid: list[str]
    """The first 8,192 held-out tokens, decoded, 16 in each string. Decoding can lose line ends and spaces."""
    sha256: str
    """A hash of the ids and of the tokenizer."""
    train_file: Path
    """The file with the training ids."""
    train_state: tuple[int, int] | None
    """Its `file_state` before the ids were checked."""

    def check_unchanged(self) -> None:
        """
        Raises `OSError` if another program has written the training ids. Call this before you save a
        checkpoint. Otherwise, a run resumed with the old file would keep what it learned from the new ids.
        """
        if file_state(self.train_file) != self.train_state:
            raise OSError(f"{self.train_file} has changed during the training; put the old file back")

    def check_tokenizer(self, tokenizer: Tokenizer) -> None:
        """Raises `ValueError` if `tokenizer` could produce different ids for the same text."""
        a, b = (json.loads(t.to_str()) for t in (tokenizer, self.tokenizer))
        for parts in (a, b):
            # How special tokens are matched doesn't matter, because they are never matched in a corpus.
            added = parts["added_tokens"]
            parts["added_tokens"] = [token for token in added if token["content"] not in SPECIAL_TOKENS]
        if any(a[part] != b[part] for part in ("added_tokens", "normalizer", "pre_tokenizer", "model")):
            raise ValueError(
                f"{self.name} was tokenized with another tokenizer than the model's; run labml_bert.prepare "
                "again with --tokenizer and the folder of the model, or with new tokens, use the text itself"
            )


def load_text_or_tokens(name: str) -> Corpus | TokenizedCorpus:
    """
    Opens a folder of token files, or otherwise loads a corpus by its name or path.

    Raises `ValueError` if `read_token_files` or `load_corpus` does.
    """
    path = Path(name)
    is_prepared = is_list_of_blocks(path / BLOCKS) or any((path / file).exists() for file in (TRAIN, VALID))
    is_folder = name.strip() and name not in NAMES and is_prepared
    if not is_folder:
        return load_corpus(name)
    with reading(path, BLOCKS, TRAIN, VALID, "tokenizer.json") as folder:
        return read_token_files(folder)


def check_blocks(folder: Path, blocks: Sequence[Block], itemsize: int) -> None:
    """Raises `ValueError` if a token file is missing, or if its ids don't match their hashes in `blocks`."""
    damage = f"the token files in {folder} are damaged; delete the folder and prepare it again"
    if not ((folder / TRAIN).is_file() and (folder / VALID).is_file()):
        raise ValueError(damage)
    with open(folder / TRAIN, "rb") as train, open(folder / VALID, "rb") as valid:
        for block in blocks:
            data = train.read(block.train_tokens * itemsize) + valid.read(block.valid_tokens * itemsize)
            if hashlib.sha256(data).hexdigest() != block.sha256:
                raise ValueError(damage)


def read_ids(path: Path, count: int, tokenizer: Tokenizer) -> Tensor:
    """Maps the ids in a file into memory, `(count)`. Raises `ValueError` if the system can't do that."""
    check_utf8(path.absolute())  # PyTorch can't open other paths.
    try:
        return torch.from_file(str(path), size=count, dtype=id_type(tokenizer)[1])
    except RuntimeError as error:
        reason = str(error).splitlines()[0]
        raise ValueError(f"cannot read the ids in {path.parent} ({reason}); check the disk") from None


def read_tokenizer(folder: Path, progress: Progress) -> Tokenizer:
    """Reads the folder's tokenizer. Raises `ValueError` if it's missing or has changed."""
    path = folder / "tokenizer.json"
    try:
        text = path.read_text(encoding="utf-8", errors="replace") if path.is_file() else ""
    except OSError as error:
        raise unreadable(path, error.strerror) from None
    digest = hashlib.sha256(text.removesuffix("\n").encode()).hexdigest()
    if digest != progress.settings.get("tokenizer_sha256"):
        raise ValueError(f"{path} is missing or damaged; delete {folder} and prepare the text again")
    return load_tokenizer(path)


def read_token_files(folder: Path) -> TokenizedCorpus:
    """
    Opens a folder that `write_token_files` has finished.

    Raises `ValueError` if the folder isn't finished, if a file is damaged, or if the text is so short that
    there are no held-out tokens or no training tokens.
    """
    progress = read_progress(folder)
    if progress is None or not progress.is_finished:
        raise ValueError(
            f"{folder} is only partly tokenized; run the same command of labml_bert.prepare again"
        )
    blocks = progress.blocks
    tokenizer = read_tokenizer(folder, progress)
    dtype = id_type(tokenizer)[1]
    tokens = sum(b.train_tokens for b in blocks), sum(b.valid_tokens for b in blocks)
    if min(tokens) == 0:
        raise ValueError(f"{folder} has no held-out text; the text is short, so use it without preparing it")
    train_state = file_state(folder / TRAIN)
    check_blocks(folder, blocks, dtype.itemsize)
    digest = hashlib.sha256(json.dumps(progress.settings["tokenizer_sha256"]).encode())
    for block in blocks:
        digest.update(block.sha256.encode())
    train_ids = read_ids(folder / TRAIN, tokens[0], tokenizer)
    valid_ids = read_ids(folder / VALID, tokens[1], tokenizer).long()
    return TokenizedCorpus(
        corpus_name(folder.resolve()),
        tokenizer,
        train_ids,
        valid_ids,
        sum(block.train_characters for block in blocks),
        sum(block.valid_characters for block in blocks),
        [tokenizer.decode(ids.tolist()) for ids in valid_ids[:8192].split(16)],
        digest.hexdigest(),
        folder / TRAIN,
        train_state,
    )
