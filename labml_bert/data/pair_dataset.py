r"""
# Sentence pairs on disk

How does text that is larger than memory become training pairs? We divide the text into shards. A shard is a
group of two or more documents, together a million characters or more. Only the last shard may have less
text. `pair_shards.py` turns each shard into one Parquet file, and worker processes write several files at the
same time. The rows of a file depend on its text, its number, the tokenizer, the arguments and the code. They
don't depend on the number of processes.

You can kill a build at any moment. A file gets its final name only when it is complete. Each file contains a
fingerprint of its text, its settings and the code, so the next build reuses the intact files whose
fingerprints match. A build writes `manifest.json` last. Without this file, a data set isn't finished.
"""

import collections
import contextlib
import fnmatch
import hashlib
import inspect
import itertools
import json
import multiprocessing
import os
import stat
import time
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
from rich.progress import Progress, SpinnerColumn, TextColumn
from tokenizers import Tokenizer

from labml_bert import mlm, nsp
from labml_bert.checksums import (
    SUMS,
    are_as_listed,
    decode_line,
    file_state,
    list_files,
    parse_json,
    read_checked,
    read_sums,
    write_checked,
)
from labml_bert.data import pair_collator, pair_shards, sentences
from labml_bert.data.pair_collator import PairCollator
from labml_bert.data.pair_shards import (
    DAMAGE,
    PARTS,
    DatasetArguments,
    Shard,
    ShardWriter,
    is_foreign,
    read_finished,
    read_metadata,
    shard_fingerprint,
    start_worker,
    write_in_worker,
)
from labml_bert.data.tokenizers import SPECIAL_TOKENS, TOKENIZER_FILES, save_tokenizer
from labml_bert.files import (
    check_own,
    check_utf8,
    lock,
    make_folder,
    remove_partial_files,
    whole_file,
)
from labml_bert.stdout import console, display_path

if TYPE_CHECKING:
    # This import takes seconds, because it loads pandas. Workers don't need it.
    from datasets import Dataset

MANIFEST = "manifest.json"
# The contents of a shard's file depend on the code in these modules.
MODULES = (mlm, nsp, pair_collator, pair_shards, sentences)
# Each shard except for the last one has at least this many characters. A worker holds a whole shard in
# memory, and draws random second texts from it.
SHARD_CHARACTERS = 1_000_000
# If there are fewer shards to write, no worker processes are started, because starting them takes seconds.
FEW_SHARDS = 8


def build_dataset(
    documents: Iterable[str],
    tokenizer: Tokenizer,
    folder: Path,
    arguments: DatasetArguments,
    processes: int | None = None,
) -> dict[str, Any]:
    """
    ## From text to Parquet

    `documents` may be a generator: the number of shards in memory doesn't grow with the length of the text. A
    document is never split between shards. Making the pairs of a shard takes tens of times its size in
    memory. `text_files.read_documents` reads files of any size as documents of at most a million characters.
    The number of `processes`, by default one per core, doesn't change the result. With one process, or with
    fewer than eight shards to write, the calling process does all the work. Otherwise your script needs
    `if __name__ == "__main__":`, because the workers import it.

    Files from an earlier build are reused if their text, tokenizer, arguments and code are the same, and
    otherwise replaced or deleted. Returns the manifest, and saves the tokenizer in the same folder.

    Raises `ValueError` if fewer than two documents have tokens, if each document is a single sentence, if the
    tokenizer lacks a special token, or if an argument is out of range. Also raises `ValueError` if the build
    would replace a file of another program, or if the name of `folder` isn't UTF-8. Raises `OSError` if the
    folder isn't writable, or if `.lock` or `arrow` in it is a symbolic link.
    """
    if isinstance(documents, str):
        raise ValueError("documents is a single text; pass a list of texts")
    missing = [token for token in SPECIAL_TOKENS if tokenizer.token_to_id(token) is None]
    if missing:
        raise ValueError(f"the tokenizer has no {', '.join(missing)}; train it with wordpiece_tokenizer")
    if processes is not None and processes < 1:
        raise ValueError(f"processes is {processes}; it must be at least 1")
    check_utf8(folder.absolute())
    # If rows can't be masked in the requested way, raise the error here and not in a worker.
    PairCollator(tokenizer, arguments.static_masking)
    processes = processes or os.cpu_count() or 1
    make_folder(folder)
    with lock(
        folder,
        lambda: console.print(f"  another process is building pairs in {display_path(folder)}; waiting"),
    ):
        return build_locked(documents, tokenizer, folder, arguments, processes)


def build_locked(
    documents: Iterable[str], tokenizer: Tokenizer, folder: Path, arguments: DatasetArguments, processes: int
) -> dict[str, Any]:
    """Does the work of `build_dataset`. The caller must hold the lock of `folder`."""
    check_own(folder / "arrow", stat.S_ISDIR)  # Files in it are deleted below.
    check_folder(folder)
    remove_partial_files(folder)
    read_sums(folder)  # If it's damaged, raise the error now and not after the build.
    tokenizer_json = tokenizer.to_str()
    code = hashlib.sha256("".join(map(inspect.getsource, MODULES)).encode()).hexdigest()
    settings = json.dumps({"code": code, "tokenizer": tokenizer_json, **asdict(arguments)})
    hashes = listed_hashes(folder)
    shards = (
        Shard(
            folder / f"part-{i:05}.parquet",
            fingerprint := shard_fingerprint(settings, i, texts),
            i,
            texts,
            hashes.get(fingerprint),
        )
        for i, texts in enumerate(group_documents(documents, tokenizer))
    )
    parts = []
    written = write_shards(shards, tokenizer_json, arguments, processes)
    # After an error here, closing the generator ends its workers.
    with progress_line() as show, contextlib.closing(written):
        for part in written:
            parts.append(part)
            show(parts)
    totals = {key: sum(part[key] for part in parts) for key in ("documents", "sentences", "rows", "tokens")}
    if totals["sentences"] == totals["documents"]:
        raise ValueError(
            "no sentence breaks in the whole text; end each sentence with punctuation such as . ! ? and a "
            "space, or put empty lines between sentences"
        )
    if totals["rows"] == 0:
        raise ValueError("no document has two sentences with tokens; use more text, or another tokenizer")
    names = {part["name"] for part in parts}
    for path in folder.glob("part-*.parquet"):
        if path.name not in names:
            path.unlink()
    digest = hashlib.sha256("".join(part["fingerprint"] for part in parts).encode()).hexdigest()
    manifest = {"fingerprint": digest, "arguments": asdict(arguments), **totals, "parts": parts}
    save_tokenizer(tokenizer, folder)
    contents = hashlib.sha256("".join(part["sha256"] for part in parts).encode()).hexdigest()
    for old in (folder / "arrow").glob("[0-9a-f]" * 16 + ".arrow"):
        if old.stem != contents[:16]:
            old.unlink()
    write_checked(folder / MANIFEST, json.dumps(manifest, indent=2))
    (folder / PARTS).unlink(missing_ok=True)
    return manifest


def check_folder(folder: Path) -> None:
    """
    Raises `ValueError` if a build would replace or delete a file that isn't from an earlier build, and
    `OSError` if the folder can't be listed.
    """
    names = sorted(path.name for path in folder.iterdir())
    parts = [name for name in names if fnmatch.fnmatch(name, "part-*.parquet")]
    # If there is a manifest, a damaged part is probably ours.
    foreign = [name for name in parts if is_foreign(folder / name, MANIFEST not in names)]
    # A build writes its first part before these files, so without a part or a manifest they aren't ours.
    if not parts and not listed_hashes(folder):
        foreign += [name for name in names if name in (*TOKENIZER_FILES, SUMS, MANIFEST, "arrow")]
    if foreign:
        raise ValueError(
            f"{folder / foreign[0]} is not from an earlier build; choose another folder, or move it away"
        )


def listed_hashes(folder: Path) -> dict[str, str]:
    """Returns the sha256 of each file of an earlier build, by its fingerprint."""
    lines = (folder / PARTS).read_bytes().splitlines() if (folder / PARTS).is_file() else []
    parts: list[dict[str, Any]] = []
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        parts += parse_json(read_checked(folder / MANIFEST))["parts"]
    for line in lines:
        with contextlib.suppress(ValueError):
            parts.append(decode_line(line))
    with contextlib.suppress(KeyError, TypeError):
        return {part["fingerprint"]: part["sha256"] for part in parts}
    return {}


def group_documents(documents: Iterable[str], tokenizer: Tokenizer) -> Iterator[list[str]]:
    """
    ### Grouping documents into shards

    Yields the documents with tokens in order, in groups of at least two documents and `SHARD_CHARACTERS`
    characters. Only the last group may have fewer characters. A single document at the end joins the group
    before it, so a group is yielded only when the next group is complete or the documents end.

    Raises `ValueError` if there are fewer than two documents with tokens.
    """
    previous: list[str] = []
    texts: list[str] = []
    size = 0
    for text in documents:
        parts = (text[i : i + 1000].strip() for i in range(0, len(text), 1000))
        encodings = (tokenizer.encode(part, add_special_tokens=False) for part in parts)
        if any(sum(encoding.attention_mask) for encoding in encodings):  # Padding isn't counted.
            texts.append(text)
            size += len(text)
        if size >= SHARD_CHARACTERS and len(texts) > 1:
            if previous:
                yield previous
            previous, texts, size = texts, [], 0
    if len(previous) + len(texts) < 2:
        raise ValueError(
            f"next sentence prediction needs at least two documents, not {len(texts)}; "
            "split the text into documents"
        )
    if len(texts) == 1:
        previous, texts = previous + texts, []
    yield from filter(None, (previous, texts))


def write_shards(
    shards: Iterator[Shard], tokenizer: str, arguments: DatasetArguments, processes: int
) -> Generator[dict[str, Any], None, None]:
    """Writes the shards. Yields the metadata of each shard, in order, after its file is complete."""
    # An earlier build may have completed the first shards.
    for shard in shards:
        metadata = read_finished(shard)
        if metadata is None:
            shards = itertools.chain([shard], shards)
            break
        yield metadata
    first = list(itertools.islice(shards, FEW_SHARDS)) if processes > 1 else []
    if len(first) < FEW_SHARDS:
        writer = ShardWriter(tokenizer, arguments)
        for shard in itertools.chain(first, shards):
            yield writer.write(shard)
        return
    # Start fresh interpreters: a fork of this process could inherit a lock that nobody releases.
    context = multiprocessing.get_context("spawn")
    others = multiprocessing.active_children()
    pool = ProcessPoolExecutor(processes, context, start_worker, (tokenizer, arguments))
    futures: collections.deque[Future[dict[str, Any]]] = collections.deque()
    try:
        for shard in itertools.chain(first, shards):
            # Keep one more shard submitted than there are workers, so that workers rarely wait for text.
            if len(futures) > processes:
                yield futures.popleft().result()
            futures.append(pool.submit(write_in_worker, shard))
        while futures:
            yield futures.popleft().result()
    except BrokenProcessPool:
        raise ValueError(
            "a process that builds pairs was killed, perhaps for lack of memory; divide long documents into "
            "several files, or free some memory, and run the same command again"
        ) from None
    except BaseException:
        # Without this, `shutdown` would wait until the workers have written their shards. The next build
        # writes these shards again.
        for worker in {*multiprocessing.active_children()}.difference(others):
            worker.kill()
        raise
    finally:
        pool.shutdown(cancel_futures=True)


@contextlib.contextmanager
def progress_line() -> Iterator[Callable[[list[dict[str, Any]]], None]]:
    """
    Yields a function that shows progress. In a terminal, it updates one line. Elsewhere, it prints a new line
    at most every ten seconds. It can't say how much text is left, because `documents` may be a generator.
    """
    columns = (SpinnerColumn("line"), TextColumn("{task.description}"))
    progress = Progress(*columns, console=console, disable=not console.is_terminal)
    task = progress.add_task("  reading text")
    last_print = time.monotonic()

    def show(parts: list[dict[str, Any]]) -> None:
        nonlocal last_print
        rows, tokens = (sum(part[key] for part in parts) for key in ("rows", "tokens"))
        text = f"  {len(parts)} files, {rows:,} pairs, {tokens / 1e6:.1f}M tokens"
        progress.update(task, description=text)
        if not console.is_terminal and time.monotonic() - last_print >= 10:
            console.print(text)
            last_print = time.monotonic()

    with progress:
        yield show


def open_dataset(folder: Path, fingerprint: str | None = None) -> "Dataset":
    """
    ## From Parquet to rows

    Returns a memory-mapped `datasets.Dataset`, which may be larger than memory. The first call unpacks the
    files into `folder/arrow`. Each call checks the sha256 of the files, and later calls also check the
    unpacked copy. If you pass a `fingerprint`, the manifest must have the same one.

    Raises `ValueError` if there is no data set, if it's incomplete, if a file has changed since it was built
    or is replaced meanwhile, if the data set has a different fingerprint, or if the name of `folder` isn't
    UTF-8.
    """
    manifest_file = folder / MANIFEST

    def state() -> object:
        # A build that keeps all parts writes the same manifest again.
        parts = sorted(folder.glob("part-*.parquet"))
        return manifest_file.is_file() and manifest_file.read_bytes(), [(p, file_state(p)) for p in parts]

    def check_state() -> None:
        if state() != before:
            raise ValueError(f"the files in {folder} were replaced while they were read; try again") from None

    check_utf8(folder.absolute())
    # A build may replace the files while we read them.
    before = state()
    remedy = "build it again with build_dataset, which keeps the intact files"
    if not manifest_file.is_file():
        raise ValueError(f"there is no finished dataset at {folder} (no {MANIFEST}); {remedy}")
    read_sums(folder)
    try:
        manifest = parse_json(read_checked(manifest_file))
        parts, digest = manifest["parts"], manifest["fingerprint"]
        fingerprints = "".join(part["fingerprint"] for part in parts)
        matches = (
            fingerprint in (None, digest)
            and any(part["rows"] for part in parts)
            and digest == hashlib.sha256(fingerprints.encode()).hexdigest()
            and all(
                read_metadata(Shard(folder / part["name"], part["fingerprint"], 0, [])) == part
                for part in parts
            )
        )
    except (ValueError, KeyError, TypeError):
        matches = False
    if not matches:
        raise ValueError(f"the files in {folder} are not those that {MANIFEST} names; {remedy}")
    from datasets import Dataset

    arrow = folder / "arrow"
    check_own(arrow, stat.S_ISDIR)
    contents = hashlib.sha256("".join(part["sha256"] for part in parts).encode()).hexdigest()
    copy = arrow / f"{contents[:16]}.arrow"
    parquet_files = [folder / part["name"] for part in parts if part["rows"]]

    def is_intact() -> bool:
        return copy.is_file() and are_as_listed(arrow, [copy])

    # Another process may be unpacking the same files.
    try:
        if not is_intact():
            make_folder(arrow)
            with lock(folder, lambda: None, ".arrow.lock"):
                remove_partial_files(arrow)
                if not is_intact():
                    with whole_file(copy) as file:
                        unpack(parquet_files, file)
                        check_state()
                    list_files(arrow, [copy])
        return Dataset.from_file(str(copy))
    finally:
        check_state()


def unpack(files: list[Path], copy: Path) -> None:
    """Copies the rows of Parquet files to an Arrow file. Raises `ValueError` if a file is damaged."""
    try:
        schema = pq.read_schema(files[0]).remove_metadata()
        with open(copy, "wb") as output, pa.ipc.new_stream(output, schema) as stream:
            for path in files:
                with pq.ParquetFile(path) as file:
                    for rows in file.iter_batches():
                        stream.write_batch(rows.replace_schema_metadata(None))
    except DAMAGE as error:
        if isinstance(error, OSError) and error.errno:
            raise
        raise ValueError(
            f"a file in {files[0].parent} is damaged ({type(error).__name__}); remove it and build it again"
        ) from None
