r"""
# Sentence pairs on disk

How does text that is larger than memory become training pairs? In shards. A shard is a group of
documents, a million characters together or more. It is split into sentences, tokenised, made into
pairs by `nsp.PairMaker`, and written as one Parquet file. Worker processes make the shards side by
side, and each depends only on its text, the arguments and the seed, so the result is the same for any
number of them.

A build can be killed at any moment. A file has its name only when it is whole, and says in itself what
it was made of; the next build keeps those that fit. `manifest.json` is written last. Without it there is
no dataset.

| column | type | what it holds |
|---|---|---|
| `tokens` | list of uint16 | `[CLS] A [SEP] B [SEP]`; uint32 where the vocabulary needs it |
| `segment_ids` | list of uint8 | 0 for A, 1 for B; the model's `token_type_ids` |
| `is_random_next` | bool | whether B is from another document; the model's `next_sentence_label` |
| `masked_positions` | list of uint16 | with static masking only: the places whose token is to be predicted |
| `masked_labels` | as `tokens` | what stood there |
"""

import collections
import contextlib
import hashlib
import itertools
import json
import multiprocessing
import os
import random
import re
import shutil
import signal
import threading
import time
from array import array
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
import torch
from rich.progress import Progress, SpinnerColumn, TextColumn
from tokenizers import Tokenizer

from labml_bert.checks import check_pairs
from labml_bert.data.pair_collator import Masking, PairCollator
from labml_bert.data.tokenizers import SPECIAL_TOKENS, save_tokenizer
from labml_bert.files import lock, whole_file, write_whole
from labml_bert.mlm import IGNORE
from labml_bert.nsp import IS_RANDOM, PairMaker, Sentence, SentencePair
from labml_bert.run.terminal import console, shown

if TYPE_CHECKING:
    # Takes seconds to import, and brings pandas. Workers that make pairs do without.
    from datasets import Dataset

MANIFEST = "manifest.json"
# To be raised when the same text and arguments would give other files. 2: pages with checksums.
FORMAT = 2
# Text of a shard, in characters. A worker holds one shard, and another document is one of the same shard.
SHARD_CHARACTERS = 1_000_000
# A process takes as long to start as this many shards to make.
FEW_SHARDS = 8

# A lookbehind lets a run of dots be tried once, not again from each of its dots.
SENTENCE_END = re.compile(
    r"""(?<![.!?…])[.!?…]++["'”’»)\]}]*(?=\s)|[。！？｡।॥؟۔።։။។]+["'”’»」』）】》]*|\n\s*\n"""
)


def sentences(text: str) -> list[str]:
    """
    ## Sentences

    A sentence ends at `.`, `!`, `?` or `…` before a blank, at `。`, `।` and their like wherever they
    stand, and at an empty line. A line break alone ends nothing: prose is wrapped. Closing quotes and
    brackets stay with their sentence. Only blanks around sentences are lost.

    No rule here knows a language, so `e.g. this` is cut in two. For this task little hangs on it: both
    pieces follow each other as sentences do.
    """
    found, start = [], 0
    for match in SENTENCE_END.finditer(text):
        found.append(text[start : match.end()].strip())
        start = match.end()
    found.append(text[start:].strip())
    return [sentence for sentence in found if sentence]


@dataclass(frozen=True)
class DatasetArguments:
    """
    What to make of the text. `max_length` counts the special tokens; `short_seq_prob` and
    `lone_sentence_is_random` are those of `PairMaker`. The text is passed over `dupe_factor` times, with
    other pairs each time. With `static_masking` each row is masked in the file; the original
    has 10 such passes, so that a row is not met with one mask only. Without it batches are masked later.

    Raises `ValueError` where a value makes no sense.
    """

    max_length: int = 128
    seed: int = 0
    dupe_factor: int = 1
    short_seq_prob: float = 0.1
    lone_sentence_is_random: bool = True
    static_masking: Masking | None = None

    def __post_init__(self) -> None:
        if not 5 <= self.max_length <= 2**16:
            raise ValueError(f"max_length is {self.max_length}; it must be in [5, 65536]")
        if self.dupe_factor < 1:
            raise ValueError(f"dupe_factor is {self.dupe_factor}; it must be at least 1")
        check_pairs(self.max_length, self.short_seq_prob)


class Shard(NamedTuple):
    """One file to be."""

    path: Path
    fingerprint: str
    """sha256 of all that its rows depend on."""
    number: int
    texts: list[str]


def build_dataset(
    documents: Iterable[str],
    tokenizer: Tokenizer,
    folder: Path,
    arguments: DatasetArguments,
    processes: int | None = None,
) -> dict[str, Any]:
    """
    ## Text to Parquet

    `documents` may be a generator: only a few shards are held at a time. A document is never cut, and takes
    some thirty times its size in memory; split books into chapters. The number of `processes`, by default
    one for each core, changes nothing but the time; with 1, and where few shards are to be made, all is done
    in this one. With more, a script needs `if __name__ == "__main__":`, as workers import it.

    Files that an earlier build left in `folder` are kept where they are of the same text, tokenizer and
    arguments, and removed where not. Returns the manifest. The tokenizer is saved beside it.

    Raises `ValueError` where there are fewer than two documents or no sentence ends in all of them, and
    where the tokenizer lacks a special token.
    """
    if isinstance(documents, str):
        raise ValueError("documents is one text; give a list of texts")
    missing = [token for token in SPECIAL_TOKENS if tokenizer.token_to_id(token) is None]
    if missing:
        raise ValueError(f"the tokenizer has no {', '.join(missing)}; train it with wordpiece_tokenizer")
    if processes is not None and processes < 1:
        raise ValueError(f"processes is {processes}; it must be at least 1")
    # Whoever lacks whole words hears it now and not from a worker.
    PairCollator(tokenizer, arguments.static_masking)
    processes = processes or os.cpu_count() or 1
    folder.mkdir(parents=True, exist_ok=True)
    with lock(folder, lambda: console.print(f"  another process makes pairs in {shown(folder)}; waiting")):
        return build_alone(documents, tokenizer, folder, arguments, processes)


def build_alone(
    documents: Iterable[str], tokenizer: Tokenizer, folder: Path, arguments: DatasetArguments, processes: int
) -> dict[str, Any]:
    """`build_dataset`, while no other process writes into `folder`."""
    for left in folder.glob("*.part"):
        left.unlink()
    frozen = tokenizer.to_str()
    about = json.dumps({"format": FORMAT, "tokenizer": frozen, **asdict(arguments)})
    shards = (
        Shard(folder / f"part-{i:05}.parquet", shard_fingerprint(about, i, texts), i, texts)
        for i, texts in enumerate(grouped(documents))
    )
    parts = []
    with progress_line() as show:
        for part in made(shards, frozen, arguments, processes):
            parts.append(part)
            show(parts)
    totals = {key: sum(part[key] for part in parts) for key in ("documents", "sentences", "rows", "tokens")}
    if totals["sentences"] == totals["documents"]:
        raise ValueError(
            "no sentence breaks in the whole text; end each sentence with . ! ? or their like and a blank, "
            "or put an empty line between two"
        )
    names = {part["name"] for part in parts}
    for path in folder.glob("part-*.parquet"):
        if path.name not in names:
            path.unlink()
    digest = hashlib.sha256("".join(part["fingerprint"] for part in parts).encode()).hexdigest()
    manifest = {"fingerprint": digest, "arguments": asdict(arguments), **totals, "parts": parts}
    save_tokenizer(tokenizer, folder)
    for arrow in (folder / "arrow").glob("*"):
        if arrow.name != digest[:16]:
            shutil.rmtree(arrow)
    write_whole(folder / MANIFEST, json.dumps(manifest, indent=2))
    return manifest


def grouped(documents: Iterable[str]) -> Iterator[list[str]]:
    """
    ### Shards

    Documents in their order, together until they are `SHARD_CHARACTERS` long and two at least. One that
    is left over at the end joins the shard before, which is held back until that is known.
    """
    held: list[str] = []
    texts: list[str] = []
    size = 0
    for text in documents:
        if text.strip():
            texts.append(text)
            size += len(text)
        if size >= SHARD_CHARACTERS and len(texts) > 1:
            if held:
                yield held
            held, texts, size = texts, [], 0
    if len(held) + len(texts) < 2:
        raise ValueError(
            f"next sentence prediction needs two documents at least, and there is {len(texts)}; "
            "split the text into documents"
        )
    if len(texts) == 1:
        held, texts = held + texts, []
    yield from filter(None, (held, texts))


def shard_fingerprint(about: str, index: int, texts: list[str]) -> str:
    """The index counts, as the seed of a shard depends on it."""
    digest = hashlib.sha256(f"{about}\0{index}".encode())
    for text in texts:
        digest.update(b"\0" + text.encode())
    return digest.hexdigest()


def made(
    shards: Iterator[Shard], tokenizer: str, arguments: DatasetArguments, processes: int
) -> Iterator[dict[str, Any]]:
    """What is known of each shard, in their order, as soon as its file is there."""
    # As far as an earlier build came, there is nothing to do.
    for shard in shards:
        known = kept(shard)
        if known is None:
            shards = itertools.chain([shard], shards)
            break
        yield known
    few = list(itertools.islice(shards, FEW_SHARDS)) if processes > 1 else []
    if len(few) < FEW_SHARDS:
        worker = Worker(tokenizer, arguments)
        for shard in itertools.chain(few, shards):
            yield worker.make(shard)
        return
    # A fresh interpreter for each: a copy of this one could hold a lock that nobody will release.
    context = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(processes, context, start_worker, (tokenizer, arguments))
    waiting: collections.deque[Future[dict[str, Any]]] = collections.deque()
    try:
        for shard in itertools.chain(few, shards):
            # One more than there are workers, so that none waits for the reader.
            if len(waiting) > processes:
                yield waiting.popleft().result()
            waiting.append(pool.submit(run_in_worker, shard))
        while waiting:
            yield waiting.popleft().result()
    finally:
        pool.shutdown(cancel_futures=True)


def described(shard: Shard) -> dict[str, Any] | None:
    """What the file of a shard says of itself, or `None` where there is none that fits."""
    try:
        metadata = pq.read_metadata(shard.path)
        about: dict[str, Any] = json.loads(metadata.metadata[b"labml_bert"])
    except (OSError, ValueError, KeyError, TypeError):
        return None
    if about.get("fingerprint") != shard.fingerprint:
        return None
    size = shard.path.stat().st_size
    return {"name": shard.path.name, **about, "rows": metadata.num_rows, "bytes": size}


def unharmed(path: Path) -> bool:
    """Whether all pages of a file have the checksums they were written with. Reading it is far less work."""
    try:
        pq.ParquetFile(path, page_checksum_verification=True).read()
    except (OSError, ValueError):
        return False
    return True


def kept(shard: Shard) -> dict[str, Any] | None:
    """What is known of a shard that an earlier build made, where its file is whole."""
    known = described(shard)
    return known if known and unharmed(shard.path) else None


class Worker:
    """
    ## In a worker

    Makes the file of one shard after another.
    """

    def __init__(self, tokenizer: str, arguments: DatasetArguments):
        """`tokenizer` is its JSON."""
        self.tokenizer = Tokenizer.from_str(tokenizer)
        self.tokenizer.no_padding()
        self.tokenizer.no_truncation()
        # A text that contains the signs `[MASK]` is text, not a mask.
        self.tokenizer.encode_special_tokens = True
        self.arguments = arguments
        self.ids = pa.uint16() if self.tokenizer.get_vocab_size() <= 2**16 else pa.uint32()
        self.generator = torch.Generator()
        self.collator = PairCollator(self.tokenizer, arguments.static_masking, generator=self.generator)

    def make(self, shard: Shard) -> dict[str, Any]:
        """Writes the file, unless an earlier build did, and says what is in it."""
        if known := kept(shard):
            return known
        a, draw = self.arguments, random.Random(f"{self.arguments.seed} {shard.number}")
        self.generator.manual_seed(draw.getrandbits(63))
        documents, count = [], 0
        for text in shard.texts:
            found = sentences(text)
            count += len(found)
            documents.append([piece for ids in self.encode(found) for piece in self.pieces(ids)])
        vocab = self.tokenizer.get_vocab()
        pairs = PairMaker(
            documents,
            vocab["[CLS]"],
            vocab["[SEP]"],
            a.max_length,
            short_seq_prob=a.short_seq_prob,
            lone_sentence_is_random=a.lone_sentence_is_random,
        )
        tables = [self.table(list(pairs(draw))) for _ in range(a.dupe_factor)]
        about = {
            "fingerprint": shard.fingerprint,
            "documents": len(shard.texts),
            "sentences": count,
            "tokens": sum(len(table["tokens"].combine_chunks().flatten()) for table in tables),
        }
        table = pa.concat_tables(tables).replace_schema_metadata({"labml_bert": json.dumps(about)})
        with whole_file(shard.path) as part:
            pq.write_table(table, part, row_group_size=10_000, compression="zstd", write_page_checksum=True)
        written = described(shard)
        assert written is not None
        return written

    def encode(self, found: list[str], batch: int = 256) -> Iterator[Sentence]:
        """The ids of each sentence; as an `array`, at four bytes a token instead of 36 in a list."""
        for start in range(0, len(found), batch):
            texts = found[start : start + batch]
            for encoding in self.tokenizer.encode_batch_fast(texts, add_special_tokens=False):
                yield array("I", encoding.ids)

    def pieces(self, ids: Sentence) -> Iterator[Sentence]:
        """
        A sentence that no pair can hold, such as a table or a listing, is cut into pieces that fit two to
        a pair. Uncut, all of it but `max_length` tokens would be thrown away, one by one.
        """
        room = self.arguments.max_length - 3
        step = len(ids) if len(ids) <= room else room // 2
        for start in range(0, len(ids), max(1, step)):
            yield ids[start : start + step]

    def table(self, pairs: list[SentencePair]) -> pa.Table:
        """The rows of one pass over the shard."""
        rows = pa.table(
            {
                "tokens": pa.array([pair.input_ids for pair in pairs], pa.list_(self.ids)),
                "segment_ids": pa.array([pair.token_type_ids for pair in pairs], pa.list_(pa.uint8())),
                "is_random_next": pa.array([pair.next_sentence_label == IS_RANDOM for pair in pairs]),
            }
        )
        if self.arguments.static_masking is None:
            return rows
        # Static masking is the dynamic one, done once and kept.
        masked = [self.masked(rows.slice(start, 256)) for start in range(0, len(rows), 256)]
        return pa.concat_tables(masked)

    def masked(self, rows: pa.Table) -> pa.Table:
        """The rows with tokens covered, and two columns that say which and what they were."""
        batch = self.collator(rows)
        seen, labels = batch["input_ids"], batch["labels"]  # (B, T)
        chosen = labels != IGNORE  # (B, T)
        covered = [ids[keep].tolist() for ids, keep in zip(seen, batch["attention_mask"].bool(), strict=True)]
        positions = [keep.nonzero().flatten().tolist() for keep in chosen]
        originals = [ids[keep].tolist() for ids, keep in zip(labels, chosen, strict=True)]
        rows = rows.set_column(0, "tokens", pa.array(covered, pa.list_(self.ids)))
        rows = rows.append_column("masked_positions", pa.array(positions, pa.list_(pa.uint16())))
        return rows.append_column("masked_labels", pa.array(originals, pa.list_(self.ids)))


worker: Worker | None = None


def end_with_parent() -> None:
    """A worker process calls this at its start, and ends with the process that it works for."""
    # Ctrl-C reaches all processes of a terminal. The first one ends the others.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # One killed without a word does not, and its workers would wait for it for ever.
    parent = multiprocessing.parent_process()
    assert parent is not None

    def follow() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=follow, daemon=True).start()


def start_worker(tokenizer: str, arguments: DatasetArguments) -> None:
    """Runs once in each worker process."""
    global worker
    end_with_parent()
    # The processes share the cores already.
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    torch.set_num_threads(1)
    worker = Worker(tokenizer, arguments)


def run_in_worker(shard: Shard) -> dict[str, Any]:
    """`Worker.make` in the process that `start_worker` has prepared."""
    assert worker is not None
    return worker.make(shard)


@contextlib.contextmanager
def progress_line() -> Iterator[Any]:
    """A line that moves on a terminal; else a line every ten seconds. How much is left, nobody knows."""
    columns = (SpinnerColumn("line"), TextColumn("{task.description}"))
    progress = Progress(*columns, console=console, disable=not console.is_terminal)
    task = progress.add_task("  reading text")
    printed = time.monotonic()

    def show(parts: list[dict[str, Any]]) -> None:
        nonlocal printed
        rows, tokens = (sum(part[key] for part in parts) for key in ("rows", "tokens"))
        text = f"  {len(parts)} files, {rows:,} pairs, {tokens / 1e6:.1f}M tokens"
        progress.update(task, description=text)
        if not console.is_terminal and time.monotonic() - printed >= 10:
            console.print(text)
            printed = time.monotonic()

    with progress:
        yield show


def open_dataset(folder: Path) -> "Dataset":
    """
    ## Parquet to rows

    A `datasets.Dataset`, mapped into memory and not read, so it may be larger than memory. The first
    call unpacks the files once into `folder/arrow`. No network is asked.

    Raises `ValueError` where there is no dataset, it is unfinished, or a file is not the one that was built.
    """
    path = folder / MANIFEST
    remedy = "build it again with build_dataset, which keeps the files that are whole"
    if not path.is_file():
        raise ValueError(f"there is no finished dataset at {folder} (no {MANIFEST}); {remedy}")
    try:
        manifest = json.loads(path.read_text(encoding="utf-8"))
        parts, digest = manifest["parts"], manifest["fingerprint"]
        joined = "".join(part["fingerprint"] for part in parts)
        fits = digest == hashlib.sha256(joined.encode()).hexdigest() and all(
            described(Shard(folder / part["name"], part["fingerprint"], 0, [])) == part for part in parts
        )
    except (ValueError, KeyError, TypeError):
        fits = False
    if not fits:
        raise ValueError(f"the files in {folder} are not those that {MANIFEST} names; {remedy}")
    from datasets import Dataset, disable_progress_bars

    # They would stand in the middle of what a run says, and it takes less than a second.
    disable_progress_bars()
    files = [str(folder / part["name"]) for part in parts]
    arrow = folder / "arrow" / digest[:16]
    if not arrow.is_dir() and not all(unharmed(Path(file)) for file in files):
        raise ValueError(f"a file in {folder} is damaged; {remedy}")
    try:
        return Dataset.from_parquet(files, cache_dir=str(arrow))
    except Exception as error:  # Each damage has an error of its own.
        raise ValueError(
            f"a file in {folder} is damaged ({type(error).__name__}); remove the folder and build it again"
        ) from None
