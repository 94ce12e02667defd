r"""
# One shard of sentence pairs

How does a group of documents become a Parquet file of training pairs? We split the documents into sentences
and tokenize them. `nsp.PairMaker` makes pairs from these sentences, and each pair becomes a row:

| column | type | contents |
|---|---|---|
| `tokens` | list of uint16 | `[CLS] A [SEP] B [SEP]`; uint32 for a vocabulary of more than 65,536 |
| `segment_ids` | list of uint8 | 0 for A, 1 for B; the model's `token_type_ids` |
| `is_random_next` | bool | whether B is from another document; the model's `next_sentence_label` |
| `masked_positions` | list of uint16 | with static masking only: the positions to predict |
| `masked_labels` | as `tokens` | the original tokens at those positions |

The rows of a shard depend only on its text, its number, the tokenizer and the arguments. So any number of
processes can write the shards, in any order. `pair_dataset.py` distributes the shards.
"""

import hashlib
import json
import multiprocessing
import os
import random
import signal
import threading
from array import array
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
import torch
from tokenizers import Tokenizer

from labml_bert.checks import check_pairs
from labml_bert.checksums import encode_line, file_sha256, parse_json
from labml_bert.data.pair_collator import MaskingArguments, PairCollator
from labml_bert.data.sentences import split_sentences
from labml_bert.files import append, open_to_append, unreadable, whole_file
from labml_bert.mlm import IGNORE
from labml_bert.nsp import IS_RANDOM, PairMaker, Sentence, SentencePair

PARTS = ".parts.jsonl"  # Lists the finished parts until there is a manifest.


@dataclass(frozen=True)
class DatasetArguments:
    """
    How to make pairs. `max_length` includes the special tokens. `short_seq_prob` and
    `lone_sentence_is_random` are arguments of `PairMaker`. It goes through the text `dupe_factor` times, and
    makes different pairs each time. If you set `static_masking`, the rows are masked once and saved with
    their masks. Otherwise, rows are masked each time they are batched. The original code masks statically and
    by default makes 10 passes, so the model sees each text with several masks.

    Raises `ValueError` if a value is out of range.
    """

    max_length: int = 128
    seed: int = 0
    dupe_factor: int = 1
    short_seq_prob: float = 0.1
    lone_sentence_is_random: bool = True
    static_masking: MaskingArguments | None = None

    def __post_init__(self) -> None:
        if not 5 <= self.max_length <= 2**16:
            raise ValueError(f"max_length is {self.max_length}; it must be in [5, 65536]")
        if self.dupe_factor < 1:
            raise ValueError(f"dupe_factor is {self.dupe_factor}; it must be at least 1")
        check_pairs(self.max_length, self.short_seq_prob)


# Reading a damaged Parquet file can raise any of these errors. Arrow has errors of its own: for example,
# `ArrowNotImplementedError` is neither an `OSError` nor a `ValueError`.
DAMAGE = (OSError, ValueError, KeyError, TypeError, AttributeError, pa.ArrowException)


class Shard(NamedTuple):
    """A file to write, and the documents that go into it."""

    path: Path
    fingerprint: str
    """The sha256 of everything that the rows depend on."""
    number: int
    texts: list[str]
    sha256: str | None = None
    """The sha256 of the file, if an earlier build has listed it."""


def shard_fingerprint(settings: str, number: int, texts: list[str]) -> str:
    """
    Returns the sha256 of all arguments, including the number, because the shard's random seed depends on it.
    """
    digest = hashlib.sha256(f"{settings}\0{number}".encode())
    for text in texts:
        # Hash each text's length too, because a NUL in a text looks like the end of the text.
        digest.update(f"\0{len(text)}\0{text}".encode())
    return digest.hexdigest()


def read_metadata(shard: Shard) -> dict[str, Any] | None:
    """
    Describes the shard's file: its name, size, sha256 and fingerprint, and the numbers of documents,
    sentences, rows and tokens. Returns `None` if there is no file with the shard's fingerprint.
    """
    if not shard.path.is_file():
        return None
    try:
        parquet = pq.read_metadata(shard.path)
        metadata: dict[str, Any] = parse_json(parquet.metadata[b"labml_bert"])
        if metadata.get("fingerprint") != shard.fingerprint:
            return None
    except DAMAGE:
        return None
    size = shard.path.stat().st_size
    digest = file_sha256(shard.path)
    return {"name": shard.path.name, **metadata, "rows": parquet.num_rows, "bytes": size, "sha256": digest}


def is_foreign(path: Path, if_damaged: bool) -> bool:
    """
    Whether a Parquet file is of another program. For a damaged file, returns `if_damaged`.

    Raises `ValueError` if the file can't be read.
    """
    try:
        return b"labml_bert" not in (pq.read_metadata(path).metadata or {})
    except DAMAGE as error:
        # Arrow also raises an `OSError` for some damaged files, but without a number.
        if isinstance(error, OSError) and error.errno:
            raise unreadable(path, error.strerror) from None
        return if_damaged


def read_finished(shard: Shard) -> dict[str, Any] | None:
    """Like `read_metadata`, but returns `None` unless the file has the listed sha256."""
    metadata = read_metadata(shard) if shard.sha256 else None
    return metadata if metadata and metadata["sha256"] == shard.sha256 else None


class ShardWriter:
    """
    ## Writing a shard
    """

    def __init__(self, tokenizer: str, arguments: DatasetArguments):
        """`tokenizer` is the tokenizer as JSON, which is easy to send to other processes."""
        self.tokenizer = Tokenizer.from_str(tokenizer)
        self.tokenizer.no_padding()
        self.tokenizer.no_truncation()
        # If a text contains the characters `[MASK]`, they are text, not a mask.
        self.tokenizer.encode_special_tokens = True
        self.arguments = arguments
        self.ids_type = pa.uint16() if self.tokenizer.get_vocab_size() <= 2**16 else pa.uint32()
        self.generator = torch.Generator()
        self.collator = PairCollator(self.tokenizer, arguments.static_masking, generator=self.generator)

    def write(self, shard: Shard) -> dict[str, Any]:
        """Writes the shard's file, unless an earlier build has written it. Returns the file's metadata."""
        if metadata := read_finished(shard):
            return metadata
        a, rng = self.arguments, random.Random(f"{self.arguments.seed} {shard.number}")
        self.generator.manual_seed(rng.getrandbits(63))
        documents, sentence_count = [], 0
        for text in shard.texts:
            sentences = split_sentences(text)
            sentence_count += len(sentences)
            documents.append([part for ids in self.encode(sentences) for part in self.split_long(ids)])
        vocab = self.tokenizer.get_vocab()
        pairs = PairMaker(
            documents,
            vocab["[CLS]"],
            vocab["[SEP]"],
            a.max_length,
            short_seq_prob=a.short_seq_prob,
            lone_sentence_is_random=a.lone_sentence_is_random,
        )
        tables = [self.make_table(list(pairs(rng))) for _ in range(a.dupe_factor)]
        counts = {
            "fingerprint": shard.fingerprint,
            "documents": len(shard.texts),
            "sentences": sentence_count,
            "tokens": sum(len(table["tokens"].combine_chunks().flatten()) for table in tables),
        }
        table = pa.concat_tables(tables).replace_schema_metadata({"labml_bert": json.dumps(counts)})
        with whole_file(shard.path) as part:
            pq.write_table(table, part, row_group_size=10_000, compression="zstd", write_page_checksum=True)
            line = encode_line({"fingerprint": shard.fingerprint, "sha256": file_sha256(part)})
            with open_to_append(shard.path.parent / PARTS) as lines:
                append(lines, b"\n" + line)  # A killed process may have left half a line.
        metadata = read_metadata(shard)
        assert metadata is not None
        return metadata

    def encode(self, sentences: list[str], batch_size: int = 256) -> Iterator[Sentence]:
        """
        Yields the ids of each sentence. An `array` takes four bytes per token. A list would take up to 36.
        """
        for start in range(0, len(sentences), batch_size):
            texts = sentences[start : start + batch_size]
            for encoding in self.tokenizer.encode_batch_fast(texts, add_special_tokens=False):
                yield array("I", encoding.ids)

    def split_long(self, ids: Sentence) -> Iterator[Sentence]:
        """
        Splits a sentence that is too long for a pair, such as a table or a listing, into parts short enough
        that two of them fit. Otherwise, `PairMaker` would drop tokens at its ends until the pair fits.
        """
        room = self.arguments.max_length - 3
        size = len(ids) if len(ids) <= room else room // 2
        for start in range(0, len(ids), max(1, size)):
            yield ids[start : start + size]

    def make_table(self, pairs: list[SentencePair]) -> pa.Table:
        """Returns the pairs of one pass over the shard, as rows of a table."""
        rows = pa.table(
            {
                "tokens": pa.array([pair.input_ids for pair in pairs], pa.list_(self.ids_type)),
                "segment_ids": pa.array([pair.token_type_ids for pair in pairs], pa.list_(pa.uint8())),
                "is_random_next": pa.array(
                    [pair.next_sentence_label == IS_RANDOM for pair in pairs], pa.bool_()
                ),
            }
        )
        if self.arguments.static_masking is None or not len(rows):
            return rows
        # Static masking is the same as dynamic masking, done once and saved.
        return pa.concat_tables(
            [self.mask_rows(rows.slice(start, 256)) for start in range(0, len(rows), 256)]
        )

    def mask_rows(self, rows: pa.Table) -> pa.Table:
        """Masks tokens, and adds two columns: the positions to predict, and the original tokens there."""
        batch = self.collator(rows)
        input_ids, labels = batch["input_ids"], batch["labels"]  # (B, T)
        is_masked = labels != IGNORE  # (B, T)
        is_token = batch["attention_mask"].bool()  # (B, T)
        tokens = [row[keep].tolist() for row, keep in zip(input_ids, is_token, strict=True)]
        positions = [row.nonzero().flatten().tolist() for row in is_masked]
        originals = [row[keep].tolist() for row, keep in zip(labels, is_masked, strict=True)]
        rows = rows.set_column(0, "tokens", pa.array(tokens, pa.list_(self.ids_type)))
        rows = rows.append_column("masked_positions", pa.array(positions, pa.list_(pa.uint16())))
        return rows.append_column("masked_labels", pa.array(originals, pa.list_(self.ids_type)))


writer: ShardWriter | None = None


def end_with_parent() -> None:
    """
    ## In a worker process

    Makes a worker process end when its parent process ends. Each worker calls this function first.
    """
    # Ctrl-C in a terminal interrupts all processes. Ignore it here, because the parent ends its workers.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # A killed parent can't stop its workers, so they would wait for work forever.
    parent = multiprocessing.parent_process()
    assert parent is not None

    def exit_after_parent() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=exit_after_parent, daemon=True).start()


def start_worker(tokenizer: str, arguments: DatasetArguments) -> None:
    """Prepares a worker process. Each worker runs this function once, before it writes a shard."""
    global writer
    end_with_parent()
    # The worker processes already share the cores, so each one uses a single thread.
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    torch.set_num_threads(1)
    writer = ShardWriter(tokenizer, arguments)


def write_in_worker(shard: Shard) -> dict[str, Any]:
    """Calls `ShardWriter.write`, in a process that `start_worker` has prepared."""
    assert writer is not None
    return writer.write(shard)
