r"""
# What is each speed trick worth?

Speed tricks are easy to collect and rarely measured. Here we measure every trick in our code. We build a
model without it, and time a training step of both models in turn. Then we do the same for the tricks that we
tried and left out. For those, the other model is the one with the trick.

We keep a trick if its gain is worth the extra code. We leave it out if it gains in some rounds and loses in
others. It may seem to gain a few percent, but the next measurement may show a loss.

Three of the tricks that we keep are close calls: the single matmul for query, key and value, fused AdamW and,
at the second shape, the single cast. We keep them because of the short shape. There a step consists of many
small ops, and all three gained in every round. The single matmul costs three lines of code, fused AdamW one
word.

| trick that we keep | why it should help |
|---|---|
| bfloat16 | the CPU's matrix unit doesn't take float32 |
| logits only where a label is, and the last layer too | five sixths of the logits are never read |
| last layer only where a label is | five sixths of its outputs are never read, either |
| dropout by 16 bits | PyTorch draws a random number for each element, one after another |
| one matmul for query, key and value | fewer and larger matmuls; one gradient to add instead of three |
| attention in two matmuls | the fused kernel's backward pass doesn't use the matrix unit in bfloat16 |
| one cast after the embeddings | otherwise each matmul casts its input, and LayerNorm computes in float32 |
| as many masks in every row | PyTorch prepares its matmuls once per shape; coin flips keep changing it |
| fused AdamW | one pass over each parameter instead of a dozen passes |

| trick that we leave out | why it could help |
|---|---|
| sum in place | the residual sum needs no new memory |
| heads laid out in advance | one copy instead of one before each matmul |
| linear and cross entropy in one | the full logits are never in memory |
| memory is kept | the system otherwise hands out each large tensor page by page |
| gelu by tanh | tanh is faster than the error function, but it changes the model |

Three ideas are not in the tables:

- **Drawing batches in another thread** can save at most the time that drawing takes, which the output shows.
- **`torch.compile`** needs a C++ compiler on your machine. In an unrecorded trial on a CPU, it gained
  nothing.
- **Batches without padding** put all sequences into one row and tell the attention where each one ends.
  Windows of a text have no padding. For sentence pairs, the output shows the fraction of padding, which
  limits the gain.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))  # Find the package without installing it.
from labml_bert.run import preflight  # noqa: F401  # isort: skip

import argparse
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

from rich.table import Table

from experiments.speed.tricks import TRICKS, Trick, replace_modules
from labml_bert.bert import BertConfig
from labml_bert.data.corpora import load_corpus
from labml_bert.data.paired_text import PairedText
from labml_bert.data.tokenizers import wordpiece_tokenizer
from labml_bert.mlm import TokenMasker
from labml_bert.models import BertForMaskedLM
from labml_bert.run.record import check_range, check_record, clean_arguments, describe_run, finish
from labml_bert.run.terminal import exit_on_bad_input, header
from labml_bert.run.timing import time_call, time_in_turn
from labml_bert.stdout import OneLineParser, console
from labml_bert.training.device import choose_device, has_fast_bfloat16
from labml_bert.training.optimization import parameter_groups

import torch  # isort: skip
from torch import Tensor, nn  # isort: skip


@dataclass(frozen=True)
class Shape:
    """The sizes of a model and of its batch."""

    name: str
    vocab_size: int
    hidden_size: int
    batch_size: int
    length: int
    dropout: float

    def config(self) -> BertConfig:
        """Returns the configuration, with four layers and four heads at every shape."""
        return BertConfig(
            vocab_size=self.vocab_size,
            hidden_size=self.hidden_size,
            num_hidden_layers=4,
            num_attention_heads=4,
            intermediate_size=4 * self.hidden_size,
            hidden_dropout_prob=self.dropout,
            attention_probs_dropout_prob=self.dropout,
            max_position_embeddings=128,
        )


SHAPES = [
    Shape("characters", 100, 256, 32, 128, 0.1),
    Shape("words", 8192, 256, 32, 128, 0.1),
    # The first stage of `mlm_tiny.py`.
    Shape("short", 100, 128, 128, 16, 0.0),
]


def build_step(shape: Shape, trick: Trick, device: torch.device) -> Callable[[], float]:
    """
    ## A training step with one difference

    Returns a function that draws masks, takes one training step and returns the loss. All variants start from
    the same weights and draw the same masks, except for the trick that is about drawing masks.
    """
    torch.manual_seed(0)
    model = BertForMaskedLM(shape.config()).to(device)
    replace_modules(model, trick.replacements)
    optimizer = torch.optim.AdamW(parameter_groups(model, 0.01), lr=1e-4, fused=trick.fused_adamw)
    input_ids, masker = draw_text(shape, trick.fixed_mask_count)
    bfloat16 = has_fast_bfloat16(device) if trick.bfloat16 is None else trick.bfloat16

    def step() -> float:
        with trick.around():
            masked_ids, labels = (tensor.to(device) for tensor in masker(input_ids))
            with torch.autocast(device.type, torch.bfloat16, enabled=bfloat16):
                loss = trick.loss(model, masked_ids, labels)
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
            return loss.item()

    return step


def draw_text(shape: Shape, fixed_mask_count: bool = True) -> tuple[Tensor, TokenMasker]:
    """Returns random tokens `(B, T)`, the same at every call, and a masker for them."""
    generator = torch.Generator().manual_seed(0)
    size = (shape.batch_size, shape.length)
    input_ids = torch.randint(5, shape.vocab_size, size, generator=generator)  # (B, T)
    limit = shape.length if fixed_mask_count else None
    masker = TokenMasker(shape.vocab_size, 4, range(5), max_predictions_per_seq=limit, generator=generator)
    return input_ids, masker


def measure_tricks(shape: Shape, device: torch.device, rounds: int, repeats: int) -> dict[str, Any]:
    """
    Times our step and all of its variants in turn. The `worth` of a trick is the time without it divided by
    the time with it, so a number above 1 is a gain.
    """
    ours = Trick("ours", kept=True)
    steps = {trick.name: build_step(shape, trick, device) for trick in (ours, *TRICKS)}
    times = time_in_turn(steps, device, rounds, repeats)
    rows = []
    for trick in TRICKS:
        # Take one ratio per round. Whatever slows down a whole round cancels out.
        ratios = [
            trick_seconds / our_seconds if trick.kept else our_seconds / trick_seconds
            for our_seconds, trick_seconds in zip(times[ours.name], times[trick.name], strict=True)
        ]
        worth = {"worth": median(ratios), "least": min(ratios), "most": max(ratios)}
        rows.append({"name": trick.name, "kept": trick.kept, **worth})
    input_ids, masker = draw_text(shape)
    return {
        "shape": asdict(shape),
        "seconds": median(times[ours.name]),
        # Masking in another thread could save at most this much.
        "drawing": time_call(lambda: masker(input_ids), torch.device("cpu"), repeats=20),
        "rows": rows,
    }


def measure_padding(corpus_name: str, batches: int = 50) -> dict[str, float]:
    """
    ## Padding

    Returns the fraction of padding in the sentence pairs of `bert_tiny.py`, for each of its sequence lengths.
    """
    corpus, generator = load_corpus(corpus_name), torch.Generator().manual_seed(0)
    tokenizer = wordpiece_tokenizer(corpus.train, 4096)
    text = PairedText(corpus, tokenizer, (32, 128), 2048, "dynamic", generator)
    fractions = {}
    for length in text.batches:
        masks = [text.batch(length)["attention_mask"] for _ in range(batches)]
        fractions[str(length)] = 1 - torch.cat(masks).float().mean().item()
    return fractions


def print_tricks(result: dict[str, Any]) -> None:
    """Prints the results of `measure_tricks`."""
    shape = result["shape"]
    console.print(
        f"  [bold]{shape['name']}[/bold]: {1000 * result['seconds']:.1f} ms per step, "
        f"{result['drawing'] / result['seconds']:.1%} of it for drawing the masks\n  batch "
        f"{shape['batch_size']} × {shape['length']}, hidden size {shape['hidden_size']}, "
        f"dropout {shape['dropout']:g}",
        markup=True,
    )
    table = Table(box=None, padding=(0, 1), header_style="dim")
    table.add_column("trick", min_width=38)
    table.add_column("status")
    table.add_column("speed-up", justify="right")
    table.add_column("range", justify="right")
    for row in result["rows"]:
        table.add_row(
            row["name"],
            "kept" if row["kept"] else "left out",
            f"{row['worth']:.2f} ×",
            f"{row['least']:.2f} to {row['most']:.2f}",
        )
    console.print(table)
    console.print()


def main(argv: list[str] | None = None) -> None:
    """Parses the command line, measures, prints the results, and writes a record if asked."""
    parser = OneLineParser(description="Time our training step without each of its tricks.")
    parser.add_argument("--shapes", nargs="+", choices=[shape.name for shape in SHAPES], help="default: all")
    parser.add_argument("--rounds", type=int, default=7, help="rounds in which each is timed (default: 7)")
    parser.add_argument("--repeats", type=int, default=3, help="steps that are timed together (default: 3)")
    parser.add_argument("--corpus", default="python-docs", help="text for the pairs (default: python-docs)")
    parser.add_argument("--device", default="auto", help="cpu, cuda, or the GPU if there is one")
    parser.add_argument("--record", type=Path, metavar="FILE", help="write the result as JSON")
    options = parser.parse_args(argv)
    with exit_on_bad_input():
        compare(options, clean_arguments(argv))


def compare(options: argparse.Namespace, words: list[str]) -> None:
    """
    ## The whole comparison

    Raises `ValueError` if an option is out of range.
    """
    start = time.monotonic()
    if options.record is not None:
        check_record(options.record, "speed/speed_ablation")
    check_range(options, "rounds", "repeats")
    device = choose_device(options.device)
    precision = "bfloat16" if has_fast_bfloat16(device) else "float32"
    header(
        "speed_ablation: our training step without each of its tricks",
        {"training": f"{precision} on {device}"},
    )
    # This comes first, because it fails if the corpus can't be read.
    with console.status("padding"):
        padding = measure_padding(options.corpus)
    fractions = ", ".join(f"{fraction:.1%} at length {length}" for length, fraction in padding.items())
    console.print(f"  padding     {fractions}\n")
    results = []
    for shape in SHAPES:
        if options.shapes is None or shape.name in options.shapes:
            with console.status(shape.name):
                results.append(measure_tricks(shape, device, options.rounds, options.repeats))
            print_tricks(results[-1])
    record = {
        **describe_run("speed/speed_ablation", words, device, precision),
        "configuration": {"rounds": options.rounds, "repeats": options.repeats},
        "ablation": results,
        "padding": padding,
    }
    finish(options.record, record, start)


if __name__ == "__main__":
    main()
