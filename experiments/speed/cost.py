r"""
# How does the cost scale?

What does a longer sequence cost, or a larger vocabulary, a wider model, a larger batch? We start from a small
word model, change one size at a time, and measure two things: the time of a training step, and its peak
memory on top of the weights and the optimizer's state.

Each size has a scaling exponent. An exponent of 1 means that twice the size takes twice the time. For large
sizes, you can predict the exponent by counting FLOPs:

| size | exponent of the time | why |
|---|---|---|
| sequence length | between 1 and 2 | each token goes through the same layers, and attends to all others |
| width | at most 2 | weights are matrices; the exponent of norms, GELU and dropout is 1 |
| vocabulary | at most 1 | only the head and the embeddings depend on it |
| batch | at most 1 | the optimizer's step costs the same for any batch |

Small sizes hide the exponent: much of their time doesn't grow with the size, probably because it goes to
launching ops. So we compute two exponents. The one from the last two sizes is the one to compare with the
prediction. The other is from all sizes: the slope of a line fitted by least squares to $(\ln \text{size}, \ln
\text{cost})$.

If an exponent is above the prediction, the cause isn't FLOPs. Large tensors don't fit into any cache, and the
system allocates their memory page by page. We don't measure how much time either effect costs.

## More text

A training step doesn't depend on the amount of text. What about drawing its batches? Sentence pairs are read
from a memory-mapped file. Pages of the file that have been read count as memory of the process, but the
system takes them back whenever it needs memory. It can't take back *anonymous* memory, so that must not grow
with the text. Masked windows are slices of the tokens in memory, which take 8 bytes each.

We measure only how batches are drawn. A training run also reads all of its text into memory and keeps it
there, to train the tokenizer and to count the n-gram baselines. So the memory limits a run, although it
doesn't limit the drawing of pairs.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))  # Find the package without installing it.
from labml_bert.run import preflight  # isort: skip

import argparse
import ctypes
import gc
import json
import math
import multiprocessing
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from functools import partial
from itertools import cycle
from statistics import linear_regression, median
from typing import Any

from rich.table import Table

from labml_bert.bert import BertConfig
from labml_bert.data.corpora import python_documents
from labml_bert.data.pair_collator import PairBatches, PairCollator
from labml_bert.data.pair_dataset import build_dataset, open_dataset
from labml_bert.data.pair_shards import DatasetArguments, end_with_parent
from labml_bert.data.tokenizers import (
    encode_corpus,
    load_tokenizer,
    save_tokenizer,
    special_token_ids,
    wordpiece_tokenizer,
)
from labml_bert.data.windows import random_windows
from labml_bert.mlm import TokenMasker
from labml_bert.models import BertForMaskedLM
from labml_bert.run.record import check_range, check_record, clean_arguments, describe_run, finish
from labml_bert.run.terminal import exit_on_bad_input, header
from labml_bert.run.timing import (
    build_training_step,
    draw_batch,
    measure_peak_memory,
    read_process_memory,
    summarize,
    time_call,
    time_in_turn,
)
from labml_bert.stdout import OneLineParser, console
from labml_bert.training.device import choose_device, has_fast_bfloat16

import torch  # isort: skip

BASE = {"T": 128, "V": 8192, "D": 256, "B": 32}
SIZES = {
    "T": [32, 64, 128, 256, 512],
    "V": [100, 1024, 8192, 16384, 32768],
    "D": [64, 128, 256, 512, 768],
    "B": [4, 8, 16, 32, 64, 128],
}
NAMES = {"T": "tokens in a sequence", "V": "vocabulary", "D": "width", "B": "sequences in a batch"}


def measure_scaling(letter: str, device: torch.device, rounds: int) -> dict[str, Any]:
    """
    ## A training step

    Measures a training step at all sizes of one letter, in turn. Time is in seconds, memory in bytes.
    """
    torch.manual_seed(0)
    bfloat16 = has_fast_bfloat16(device)
    steps = {}
    for size in SIZES[letter]:
        sizes = {**BASE, letter: size}
        D = sizes["D"]
        config = BertConfig(
            vocab_size=sizes["V"],
            hidden_size=D,
            num_hidden_layers=4,
            # Heads of 64 dimensions, as in every BERT.
            num_attention_heads=max(1, D // 64),
            intermediate_size=4 * D,
            max_position_embeddings=max(SIZES["T"]),
        )
        model = BertForMaskedLM(config).to(device)
        batch = draw_batch(sizes["V"], sizes["B"], sizes["T"], device)
        _, steps[str(size)] = build_training_step(model, batch, bfloat16)
    times = time_in_turn(steps, device, rounds)
    points = [
        {"size": int(size), "seconds": summarize(times[size]), "memory": measure_peak_memory(step, device)}
        for size, step in steps.items()
    ]
    return {"letter": letter, "name": NAMES[letter], "points": points, "exponents": fit_exponents(points)}


def fit_exponents(points: list[dict[str, Any]]) -> dict[str, dict[str, float]]:
    """
    Returns the exponents of time and memory, from all sizes and from the last two. If memory can't be
    measured, its exponents are missing.
    """
    sizes = [point["size"] for point in points]
    costs = {
        "seconds": [point["seconds"]["median"] for point in points],
        "memory": [point["memory"] for point in points],
    }
    return {
        name: {"all": fit_exponent(sizes, values), "last": fit_exponent(sizes[-2:], values[-2:])}
        for name, values in costs.items()
        if all(values)
    }


def fit_exponent(sizes: list[float], costs: list[float]) -> float:
    """Returns the slope of the least-squares line through the logarithms."""
    return linear_regression([*map(math.log, sizes)], [*map(math.log, costs)]).slope


def repeat_documents(characters: int) -> Iterator[str]:
    """
    ## Drawing batches

    Yields the documents of Python's documentation repeatedly, up to a total of `characters` characters.
    """
    for document in cycle([text for _, text in python_documents() if text]):
        yield document[:characters]
        characters -= len(document)
        if characters <= 0:
            return


def read_memory() -> dict[str, float]:
    """
    Returns the memory of this process in bytes: anonymous memory, and pages of files, which the system may
    take back. On any system but Linux, the result is empty.
    """
    gc.collect()
    try:
        ctypes.CDLL(None).malloc_trim(0)
        return {"anonymous": read_process_memory("RssAnon"), "file": read_process_memory("RssFile")}
    except (OSError, AttributeError):
        return {}


def measure_drawing(pipeline: str, characters: int, folder: Path, batches: int) -> dict[str, Any]:
    """
    Draws batches of 32 sequences with 128 tokens. Call this in a fresh process. `anonymous` and `file` in the
    result are the bytes of memory on top of what the process had before it opened its data.
    """
    import datasets  # noqa: F401  # Load it now, so that its own memory doesn't count.

    torch.set_num_threads(1)
    tokenizer = load_tokenizer(folder / "tokenizer.json")
    generator = torch.Generator().manual_seed(0)
    before, start = read_memory(), time.perf_counter()
    draw: Callable[[], object]
    if pipeline == "pairs":
        path = folder / str(characters)
        tokens = json.loads((path / "manifest.json").read_text("utf-8"))["tokens"]
        collator = PairCollator(tokenizer, length=128, generator=generator)
        draw = partial(next, PairBatches(open_dataset(path), collator, 32, generator))
    else:
        token_ids = encode_corpus(tokenizer, list(repeat_documents(characters)))
        tokens = len(token_ids)
        mask_token_id, special_ids = tokenizer.get_vocab()["[MASK]"], special_token_ids(tokenizer)
        masker = TokenMasker(tokenizer.get_vocab_size(), mask_token_id, special_ids, generator=generator)
        draw = lambda: masker(random_windows(token_ids, 32, 128, 512, generator).input_ids)  # noqa: E731
    prepare_seconds = time.perf_counter() - start
    draw()
    times = [time_call(draw, torch.device("cpu")) for _ in range(batches)]
    after = read_memory()
    return {
        "pipeline": pipeline,
        "characters": characters,
        "tokens": tokens,
        "prepare_seconds": prepare_seconds,
        "batch_seconds": median(times),
        **{name: after[name] - before[name] for name in after},
    }


def measure_pipelines(sizes: list[int], batches: int) -> list[dict[str, Any]]:
    """Measures sentence pairs and masked windows at all sizes of the text, in characters."""
    rows = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        tokenizer = wordpiece_tokenizer(repeat_documents(min(sizes[0], 1_000_000)), 4096)
        save_tokenizer(tokenizer, folder)
        for characters in sizes:
            start = time.perf_counter()
            path = folder / str(characters)
            build_dataset(repeat_documents(characters), tokenizer, path, DatasetArguments())
            # This unpacks the files, which happens only once.
            open_dataset(path)
            build_seconds = time.perf_counter() - start
            for pipeline in ("pairs", "masked"):
                # A fresh process has no memory left from the previous size.
                context = multiprocessing.get_context("spawn")
                with ProcessPoolExecutor(1, context, end_with_parent) as pool:
                    try:
                        row = pool.submit(measure_drawing, pipeline, characters, folder, batches).result()
                    except BrokenProcessPool:
                        raise ValueError(
                            "the process that draws the batches was killed; run this again"
                        ) from None
                    except BaseException:
                        for child in multiprocessing.active_children():
                            child.kill()  # The pool would wait for it.
                        raise
                if pipeline == "pairs":
                    row["prepare_seconds"] += build_seconds
                rows.append(row)
    return rows


def print_scaling(result: dict[str, Any]) -> None:
    """Prints the results of `measure_scaling`."""
    table = Table(box=None, padding=(0, 2), header_style="dim")
    table.add_column(result["name"], min_width=22)
    for column in ("step, ms", "memory, MB"):
        table.add_column(column, justify="right")
    for point in result["points"]:
        memory = "–" if point["memory"] is None else f"{point['memory'] / 1e6:,.0f}"
        table.add_row(f"{point['size']:,}", f"{1e3 * point['seconds']['median']:,.1f}", memory)
    for title, key in (("exponent, all", "all"), ("exponent, last two", "last")):
        exponents = (result["exponents"].get(name) for name in ("seconds", "memory"))
        table.add_row(title, *("–" if one is None else f"{one[key]:.2f}" for one in exponents), style="dim")
    console.print(table)
    console.print()


def print_pipelines(rows: list[dict[str, Any]]) -> None:
    """Prints the results of `measure_pipelines`."""
    table = Table(box=None, padding=(0, 1), header_style="dim")
    table.add_column("text, MB")
    for column in ("tokens", "prepare, s", "batch, ms", "anonymous, MB", "file, MB"):
        table.add_column(column, justify="right")
    for row in rows:
        table.add_row(
            f"{row['characters'] / 1e6:g} {row['pipeline']}",
            f"{row['tokens']:,}",
            f"{row['prepare_seconds']:,.1f}",
            f"{1e3 * row['batch_seconds']:,.2f}",
            *(f"{row[name] / 1e6:,.1f}" if name in row else "–" for name in ("anonymous", "file")),
        )
    console.print(table)
    console.print()


def main(argv: list[str] | None = None) -> None:
    """Parses the command line, measures, prints the results, and writes a record if asked."""
    parser = OneLineParser(description="Measure how time and memory scale with the sizes.")
    parser.add_argument("--letters", nargs="+", choices=[*SIZES], default=[*SIZES], help="default: all")
    parser.add_argument("--rounds", type=int, default=3, help="rounds in which each is timed (default: 3)")
    parser.add_argument("--batches", type=int, default=300, help="batches to draw (default: 300)")
    parser.add_argument(
        "--megabytes", nargs="+", type=float, default=[1, 4, 16], help="text in MB (default: 1 4 16)"
    )
    parser.add_argument("--device", default="auto", help="cpu, cuda, or the GPU if there is one")
    parser.add_argument("--record", type=Path, metavar="FILE", help="write the result as JSON")
    options = parser.parse_args(argv)
    with exit_on_bad_input():
        measure(options, clean_arguments(argv))


def measure(options: argparse.Namespace, words: list[str]) -> None:
    """
    ## The whole measurement

    Raises `ValueError` if an option is out of range.
    """
    start = time.monotonic()
    if options.record is not None:
        check_record(options.record, "speed/cost")
    check_range(options, "rounds", "batches")
    # Less text may be a single document, which isn't enough for pairs. More could fill the disk.
    for size in options.megabytes:
        if not 0.1 <= size <= 10_000:
            raise ValueError(f"megabytes is {size:g}; it must be at least 0.1 and at most 10,000")
    device = choose_device(options.device)
    base = ", ".join(f"{letter} {size:,}" for letter, size in BASE.items())
    header("cost: how time and memory scale", {"around": f"{base}, 4 layers"})
    scaling = []
    for letter in options.letters:
        with console.status(NAMES[letter]):
            scaling.append(measure_scaling(letter, device, options.rounds))
        print_scaling(scaling[-1])
    rows = measure_pipelines(sorted(round(1e6 * size) for size in options.megabytes), options.batches)
    print_pipelines(rows)
    record = {
        **describe_run("speed/cost", words, device),
        "configuration": {"base": BASE, "rounds": options.rounds, "batches": options.batches},
        "growth": scaling,
        "feeding": rows,
    }
    finish(options.record, record, start)


if __name__ == "__main__":
    # Don't let the new processes import modules from the current folder. It may have a file `torch.py`.
    os.environ["PYTHONSAFEPATH"] = "1"
    preflight.exit_on_signals()  # Then the temporary folder is deleted.
    main()
