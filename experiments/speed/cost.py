r"""
# How does the cost grow?

What does a longer sequence cost, a larger vocabulary, a wider model, a larger batch, more text? One of them
is changed at a time, around a model of words. A step is timed at each size, and its memory weighed at the
fullest moment: what it takes beyond the weights and the optimiser's state, which are there already.

Each way of growing has an exponent: where it is 1, twice the size takes twice the time. Counting operations
says what that of time should be, for large sizes. For a sequence between 1, as every token goes through the
same layers, and 2, as each looks at every other. For the width at most 2, as weights are matrices; norms,
GELU and dropout grow with 1. For the vocabulary at most 1, as only the head and the embeddings know of it.
For the batch at most 1, since the step of the optimiser costs the same for any.

Small sizes hide this, as they pay for everything else first: the start of each operation, and the parts that
do not grow. So there are two exponents: one between the last two sizes, which is the one to compare, and one
over all. An exponent that is too high is not explained by counting. Large tensors fit into no cache and get
their memory page by page from the system, so that each of their numbers costs more; what share that has is
not taken apart here. Over all sizes it is found by least squares, on $x = \ln \text{size}$ and
$y = \ln \text{cost}$:

$$\text{exponent} = \frac{\sum (x - \bar x)(y - \bar y)}{\sum (x - \bar x)^2}$$

Text is another matter. A step does not know how much there is; does whoever feeds it? Pairs are read from a
file. Its pages count as memory of the process once they are read, but the system takes them back whenever it
needs room. What it cannot take back is called anonymous, and that must not grow. The masked model is fed from
tokens in memory, 8 bytes for each.

This is what feeding holds, and not what a run does: both jobs first read all the text into memory, to make
the vocabulary and to count the floors, and keep it. So pairs could be fed from more text than fits there, but
a run as it stands ends at the reading.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))  # A clone runs without being installed.
from labml_bert.run import script  # noqa: F401  # isort: skip

import argparse
import ctypes
import gc
import json
import math
import multiprocessing
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from itertools import cycle
from statistics import mean, median
from typing import Any

from rich.table import Table

from labml_bert.bert import BertConfig
from labml_bert.data.corpora import python_documents
from labml_bert.data.curriculum import Curriculum, parse_schedule
from labml_bert.data.pair_collator import PairBatches, PairCollator
from labml_bert.data.pair_dataset import DatasetArguments, build_dataset, end_with_parent, open_dataset
from labml_bert.data.tokenizers import (
    encode_corpus,
    load_tokenizer,
    save_tokenizer,
    special_token_ids,
    wordpiece_tokenizer,
)
from labml_bert.mlm import TokenMasker
from labml_bert.models import BertForMaskedLM
from labml_bert.run.record import at_least_one, check_record, finish, record_head, words_of
from labml_bert.run.terminal import OneLineParser, bad_input_ends_here, console, header
from labml_bert.run.timing import (
    interleaved,
    peak_memory,
    random_batch,
    resident,
    seconds,
    spread,
    training_step,
)
from labml_bert.training.device import choose_device, has_fast_bfloat16

import torch  # isort: skip
from torch import Tensor, nn  # isort: skip

BASE = {"T": 128, "V": 8192, "D": 256, "B": 32}
SIZES = {
    "T": [32, 64, 128, 256, 512],
    "V": [100, 1024, 8192, 16384, 32768],
    "D": [64, 128, 256, 512, 768],
    "B": [4, 8, 16, 32, 64, 128],
}
NAMES = {"T": "tokens in a sequence", "V": "vocabulary", "D": "width", "B": "sequences in a batch"}


def exponent(xs: list[float], ys: list[float]) -> float:
    """The slope of the straight line through the logarithms."""
    x, y = ([math.log(value) for value in values] for values in (xs, ys))
    x_mean, y_mean = mean(x), mean(y)
    above = sum((a - x_mean) * (b - y_mean) for a, b in zip(x, y, strict=True))
    return above / sum((a - x_mean) ** 2 for a in x)


class Loss(nn.Module):
    """The model with its loss as the result."""

    def __init__(self, sizes: dict[str, int]):
        super().__init__()
        D = sizes["D"]
        self.model = BertForMaskedLM(
            BertConfig(
                vocab_size=sizes["V"],
                hidden_size=D,
                num_hidden_layers=4,
                # 64 numbers a head, as in every BERT.
                num_attention_heads=max(1, D // 64),
                intermediate_size=4 * D,
                max_position_embeddings=max(SIZES["T"]),
            )
        )

    def forward(self, input_ids: Tensor, labels: Tensor) -> Tensor:
        """A mean over the labelled tokens."""
        loss = self.model(input_ids, labels).loss
        assert loss is not None
        return loss


def grow(letter: str, device: torch.device, rounds: int) -> dict[str, Any]:
    """All sizes of one letter, in turn."""
    torch.manual_seed(0)
    bfloat16 = has_fast_bfloat16(device)
    steps = {}
    for size in SIZES[letter]:
        sizes = {**BASE, letter: size}
        model = Loss(sizes).to(device).train()
        batch = random_batch(sizes["V"], sizes["B"], sizes["T"], device)
        steps[str(size)] = training_step(model, batch, bfloat16)[1]
    times = interleaved(steps, device, rounds)
    points = [
        {"size": int(size), "seconds": spread(times[size]), "memory": peak_memory(step, device)}
        for size, step in steps.items()
    ]
    return {"letter": letter, "name": NAMES[letter], "points": points, **exponents(points)}


def exponents(points: list[dict[str, Any]]) -> dict[str, Any]:
    """Of time and memory, over all sizes and between the last two. What is not known is left out."""
    found = {}
    for name in ("seconds", "memory"):
        ys = [point[name]["median"] if name == "seconds" else point[name] for point in points]
        if all(ys):
            xs = [point["size"] for point in points]
            found[name] = {"all": exponent(xs, ys), "last": exponent(xs[-2:], ys[-2:])}
    return {"exponents": found}


def some_text(characters: int) -> Iterator[str]:
    """Documents of Python, again and again, until they have so many characters."""
    for document in cycle([text for _, text in python_documents() if text]):
        yield document[:characters]
        characters -= len(document)
        if characters <= 0:
            return


def memory() -> dict[str, float]:
    """
    Of this process, in bytes: what only it has, and the pages of files that the system may take back. Empty
    where it is not known.
    """
    gc.collect()
    try:
        ctypes.CDLL(None).malloc_trim(0)
        return {"anonymous": resident("RssAnon"), "file": resident("RssFile")}
    except (OSError, AttributeError):
        return {}


def feed(pipeline: str, characters: int, folder: Path, batches: int) -> dict[str, Any]:
    """
    ## Feeding

    Draws batches of 32 sequences with 128 tokens, in a process of its own. Memory is what it has after that
    above what it had before it opened its data.
    """
    import datasets  # noqa: F401  # Its own size is not the data's.

    torch.set_num_threads(1)
    tokenizer = load_tokenizer(folder / "tokenizer.json")
    generator = torch.Generator().manual_seed(0)
    mask, special = tokenizer.get_vocab()["[MASK]"], special_token_ids(tokenizer)
    masker = TokenMasker(tokenizer.get_vocab_size(), mask, special, generator=generator)
    before, began = memory(), time.perf_counter()
    draw: Callable[[], object]
    if pipeline == "pairs":
        data = folder / str(characters)
        tokens = json.loads((data / "manifest.json").read_text("utf-8"))["tokens"]
        pairs = PairBatches(
            open_dataset(data), PairCollator(tokenizer, length=128, generator=generator), 32, generator
        )
        draw = partial(next, pairs)
    else:
        token_ids = encode_corpus(tokenizer, list(some_text(characters)))
        tokens = len(token_ids)
        curriculum = Curriculum(token_ids, parse_schedule("128"), 32 * 128, 512, generator)
        draw = lambda: masker(curriculum.batch(0.0).input_ids)  # noqa: E731

    opened = time.perf_counter() - began
    draw()
    times = [seconds(draw, torch.device("cpu")) for _ in range(batches)]
    after = memory()
    return {
        "pipeline": pipeline,
        "characters": characters,
        "tokens": tokens,
        "prepare_seconds": opened,
        "batch_seconds": median(times),
        **{name: after[name] - before[name] for name in after},
    }


def feeding(sizes: list[int], batches: int) -> list[dict[str, Any]]:
    """Both pipelines at all sizes of the text, in characters."""
    rows = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        tokenizer = wordpiece_tokenizer(some_text(min(sizes[0], 1_000_000)), 4096)
        save_tokenizer(tokenizer, folder)
        for characters in sizes:
            began = time.perf_counter()
            build_dataset(some_text(characters), tokenizer, folder / str(characters), DatasetArguments())
            # Once for each dataset, its files are unpacked.
            open_dataset(folder / str(characters))
            built = time.perf_counter() - began
            # A fresh process has nothing left over from the last size.
            context = multiprocessing.get_context("spawn")
            for pipeline in ("pairs", "masked"):
                with ProcessPoolExecutor(1, context, end_with_parent) as pool:
                    row = pool.submit(feed, pipeline, characters, folder, batches).result()
                if pipeline == "pairs":
                    row["prepare_seconds"] += built
                rows.append(row)
    return rows


def print_growth(found: dict[str, Any]) -> None:
    """One letter."""
    table = Table(box=None, padding=(0, 2), header_style="dim")
    table.add_column(found["name"], min_width=22)
    for column in ("step, ms", "memory, MB"):
        table.add_column(column, justify="right")
    for point in found["points"]:
        weighs = "–" if point["memory"] is None else f"{point['memory'] / 1e6:,.0f}"
        table.add_row(f"{point['size']:,}", f"{1e3 * point['seconds']['median']:,.1f}", weighs)
    for words, which in (("exponent, all", "all"), ("exponent, last two", "last")):
        cells = (found["exponents"].get(name) for name in ("seconds", "memory"))
        table.add_row(words, *("–" if cell is None else f"{cell[which]:.2f}" for cell in cells), style="dim")
    console.print(table)
    console.print()


def print_feeding(rows: list[dict[str, Any]]) -> None:
    """Both pipelines."""
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
    """Reads the command line, measures, prints, and writes the record if asked."""
    parser = OneLineParser(description="Measure how time and memory grow with the sizes.")
    parser.add_argument("--letters", nargs="+", choices=[*SIZES], default=[*SIZES], help="what to vary")
    parser.add_argument("--rounds", type=int, default=3, help="how often each is timed (default: 3)")
    parser.add_argument("--batches", type=int, default=300, help="how many are drawn (default: 300)")
    parser.add_argument(
        "--megabytes", nargs="+", type=float, default=[1, 4, 16], help="sizes of the text (default: 1 4 16)"
    )
    parser.add_argument("--device", default="auto", help="cpu, cuda, or the GPU if there is one")
    parser.add_argument("--record", type=Path, metavar="FILE", help="write the result as JSON")
    options = parser.parse_args(argv)
    with bad_input_ends_here():
        measure(options, words_of(argv))


def measure(options: argparse.Namespace, words: list[str]) -> None:
    """
    ## All sizes, one after another

    Raises `ValueError` where an option makes no sense.
    """
    began = time.monotonic()
    if options.record is not None:
        check_record(options.record)
    at_least_one(options, "rounds", "batches")
    # With less there may be one document only, which makes no pairs; more would fill a disk.
    for size in options.megabytes:
        if not 0.1 <= size <= 10_000:
            raise ValueError(f"megabytes is {size:g}; it must be at least 0.1 and at most 10,000")
    device = choose_device(options.device)
    base = ", ".join(f"{letter} {size:,}" for letter, size in BASE.items())
    header("cost: how time and memory grow", {"around": f"{base}, 4 layers"})
    growth = []
    for letter in options.letters:
        with console.status(NAMES[letter]):
            growth.append(grow(letter, device, options.rounds))
        print_growth(growth[-1])
    rows = feeding(sorted(round(1e6 * size) for size in options.megabytes), options.batches)
    print_feeding(rows)
    record = {
        **record_head("speed/cost", words, device),
        "configuration": {"base": BASE, "rounds": options.rounds, "batches": options.batches},
        "growth": growth,
        "feeding": rows,
    }
    finish(options.record, record, began)


if __name__ == "__main__":
    main()
