r"""
# What each trick is worth

A list of tricks without numbers is lore. Here each one that is in the code is taken out again, alone, and the
step is timed with and without it, in turn. Below are those that were tried and left out, each put in alone.
What costs more reading than it gains is left out. So is what cannot be told from nothing: a trick
may seem to gain a few hundredths, but where its rounds lie on both sides of 1, the next run may show a loss.

Of those that are kept, one product for query, key and value and fused AdamW are as hard to tell from nothing
at the first two shapes. They stay for the short one, where a step is made of many small pieces and each of
their rounds gained. The one costs three lines, the other a word.

| kept | why it should help |
|---|---|
| bfloat16 | the matrix unit of the processor takes no float32 |
| logits only where a label is | five sixths of the logits are never read |
| last layer only where a label is | nor is anything else after the last attention |
| dropout by 16 bits | PyTorch draws its random numbers one after another |
| one product for query, key and value | fewer and larger products; one gradient to add instead of three |
| attention in two products | the backward pass of the fused kernel does not use the matrix unit in bfloat16 |
| one cast after the embeddings | or each product casts its input, and LayerNorm computes in float32 |
| as many masks in every row | PyTorch prepares products once a shape; coins make a new one every step |
| fused AdamW | one pass over each parameter instead of a dozen |

| left out | why it could help |
|---|---|
| sum in place | the residual needs no new memory |
| heads laid out in advance | one copy instead of one before each product |
| linear and cross entropy in one | the logits are never whole in memory |
| memory is kept | the system hands out each large tensor page by page |
| gelu by tanh | no erf; but then it is another model |

Drawing the next batch in a thread of its own is not in the list: the share of a step that drawing takes is
printed, and is all that could be saved. Nor is `torch.compile`, which needs a C++ compiler on the reader's
machine; in a trial of ours, of which there is no record, it gave nothing on a CPU. Nor are batches without
padding. Windows of a text have none. Of the pairs the share of padding is printed, and a step without it
could at most be so much faster; all sequences would stand in one row, and the attention would need to be told
where each ends.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))  # A clone runs without being installed.
from labml_bert.run import script  # noqa: F401  # isort: skip

import argparse
import contextlib
import ctypes
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any
from unittest.mock import patch

from rich.table import Table

from labml_bert import bert, models
from labml_bert.mlm import BertLMPredictionHead, MaskedLMOutput, TokenMasker, masked_lm_loss
from labml_bert.run import pair_run
from labml_bert.run.pair_run import PairJob
from labml_bert.run.record import at_least_one, check_record, finish, record_head, words_of
from labml_bert.run.terminal import OneLineParser, bad_input_ends_here, console, header
from labml_bert.run.timing import interleaved, seconds
from labml_bert.training.device import choose_device, has_fast_bfloat16
from labml_bert.training.optimization import parameter_groups

import torch  # isort: skip
import torch.nn.functional as F  # isort: skip
from torch import Tensor, nn  # isort: skip


@dataclass(frozen=True)
class Shape:
    """A model and its batch; the third is the first stage of `mlm_tiny.py`."""

    name: str
    vocab_size: int
    hidden_size: int
    batch_size: int
    length: int
    dropout: float


SHAPES = [
    Shape("characters", 100, 256, 32, 128, 0.1),
    Shape("words", 8192, 256, 32, 128, 0.1),
    Shape("short", 100, 128, 128, 16, 0.0),
]


def logits_everywhere(
    head: BertLMPredictionHead, hidden_states: Tensor, embedding: Tensor, labels: Tensor, *_: None
) -> MaskedLMOutput:
    """The head at every place, as most code has it."""
    logits = head(hidden_states, embedding)  # (B, T, V)
    return MaskedLMOutput(masked_lm_loss(logits.flatten(0, 1), labels.flatten()), logits, labels)


def encode_everywhere(
    self: models.BertPreTrainedModel, input_ids: Tensor, labels: Tensor | None, inputs: dict[str, Tensor]
) -> tuple[bert.BertModelOutput, Tensor | None]:
    """The last layer at every place."""
    return self.bert(input_ids, **inputs), labels


def three_products(self: bert.BertSelfAttention, x: Tensor, *layers: nn.Linear) -> list[Tensor]:
    """A product for each of query, key and value."""
    return [layer(x).unflatten(-1, (self.num_attention_heads, -1)).transpose(1, 2) for layer in layers]


def heads_in_advance(self: bert.BertSelfAttention, x: Tensor, *layers: nn.Linear) -> list[Tensor]:
    """One copy puts all heads where the products of the attention want them."""
    weight = torch.cat([layer.weight for layer in layers])
    bias = torch.cat([layer.bias for layer in layers])
    heads = F.linear(x, weight, bias).unflatten(-1, (len(layers), self.num_attention_heads, -1))
    return list(heads.permute(2, 0, 3, 1, 4).contiguous().unbind())


def fused_attention(
    self: bert.BertSelfAttention,
    asking: Tensor,
    hidden_states: Tensor,
    attention_mask: Tensor | None = None,
    output_attentions: bool = False,
) -> tuple[Tensor, Tensor | None]:
    """PyTorch's kernel, whatever the type."""
    (q,) = self.project(asking, self.query)
    k, v = self.project(hidden_states, self.key, self.value)
    dropout = self.dropout.p if self.training else 0.0
    context = F.scaled_dot_product_attention(q, k, v, attention_mask, dropout)
    return context.transpose(1, 2).flatten(2), None


def sum_in_place(self: bert.BertOutput, hidden_states: Tensor, residual: Tensor) -> Tensor:
    """The residual added to what the dense layer gave, in its own memory."""
    return self.LayerNorm(self.dropout(self.dense(hidden_states)).add_(residual))


def loss_in_one(
    head: BertLMPredictionHead, hidden_states: Tensor, embedding: Tensor, labels: Tensor, *_: None
) -> MaskedLMOutput:
    """The product with the embedding and the loss as one function, which works in pieces."""
    chosen = labels >= 0  # (B, P)
    hidden, wanted = head.transform(hidden_states[chosen]), labels[chosen]
    weight, bias = embedding.to(hidden.dtype), head.bias.to(hidden.dtype)
    return MaskedLMOutput(F.linear_cross_entropy(hidden, weight, wanted, linear_bias=bias), hidden, wanted)


@contextlib.contextmanager
def memory_is_kept() -> Iterator[None]:
    """Tells the C library of Linux to give no memory back to the system, and to ask for large blocks."""
    trim_threshold, top_pad, mmap_max = -1, -2, -4
    mallopt = ctypes.CDLL(None).mallopt
    mallopt(mmap_max, 0)
    mallopt(trim_threshold, 2**31 - 1)
    mallopt(top_pad, 2**28)
    try:
        yield
    finally:
        mallopt(mmap_max, 65536)
        mallopt(trim_threshold, 2**17)
        mallopt(top_pad, 0)


@dataclass(frozen=True)
class Trick:
    """One line of the ledger: how the step is changed, while `around` is entered or by the two marks."""

    name: str
    kept: bool
    around: Callable[[], AbstractContextManager[Any]] = contextlib.nullcontext
    bfloat16: bool | None = None
    coin: bool = False
    fused: bool = True


def swap(owner: Any, name: str, value: Any) -> Callable[[], AbstractContextManager[Any]]:
    """Replaces an attribute for the time of a call."""
    return lambda: patch.object(owner, name, value)


@contextlib.contextmanager
def everywhere() -> Iterator[None]:
    """Logits at all places need the last layer at all places."""
    with (
        patch.object(models, "masked_lm_output", logits_everywhere),
        patch.object(models.BertPreTrainedModel, "encode", encode_everywhere),
    ):
        yield


TRICKS = [
    Trick("bfloat16", True, bfloat16=False),
    Trick("logits only where a label is", True, everywhere),
    Trick(
        "last layer only where a label is",
        True,
        swap(models.BertPreTrainedModel, "encode", encode_everywhere),
    ),
    Trick(
        "dropout by 16 bits",
        True,
        swap(bert.Dropout, "forward", lambda self, x: F.dropout(x, self.p, self.training)),
    ),
    Trick(
        "one product for query, key and value", True, swap(bert.BertSelfAttention, "project", three_products)
    ),
    Trick("attention in two products", True, swap(bert.BertSelfAttention, "forward", fused_attention)),
    Trick("one cast after the embeddings", True, swap(torch, "is_autocast_enabled", lambda *_: False)),
    Trick("as many masks in every row", True, coin=True),
    Trick("fused AdamW", True, fused=False),
    Trick("sum in place", False, swap(bert.BertOutput, "forward", sum_in_place)),
    Trick("heads laid out in advance", False, swap(bert.BertSelfAttention, "project", heads_in_advance)),
    Trick("linear and cross entropy in one", False, swap(models, "masked_lm_output", loss_in_one)),
    Trick("memory is kept", False, memory_is_kept),
    Trick("gelu by tanh", False, swap(F, "gelu", lambda x: torch._C._nn.gelu(x, approximate="tanh"))),
]


def stepper(shape: Shape, trick: Trick, device: torch.device) -> Callable[[], float]:
    """A whole step with the trick taken out or put in; it returns the loss."""
    torch.manual_seed(0)
    config = bert.BertConfig(
        vocab_size=shape.vocab_size,
        hidden_size=shape.hidden_size,
        num_hidden_layers=4,
        num_attention_heads=4,
        intermediate_size=4 * shape.hidden_size,
        hidden_dropout_prob=shape.dropout,
        attention_probs_dropout_prob=shape.dropout,
        max_position_embeddings=128,
    )
    model = models.BertForMaskedLM(config).to(device)
    optimizer = torch.optim.AdamW(parameter_groups(model, 0.01), lr=1e-4, fused=trick.fused)
    generator = torch.Generator().manual_seed(0)
    size = (shape.batch_size, shape.length)
    input_ids = torch.randint(5, shape.vocab_size, size, generator=generator)  # (B, T)
    most = None if trick.coin else shape.length
    masker = TokenMasker(shape.vocab_size, 4, range(5), max_predictions_per_seq=most, generator=generator)
    bfloat16 = has_fast_bfloat16(device) if trick.bfloat16 is None else trick.bfloat16

    def step() -> float:
        with trick.around():
            covered, labels = (part.to(device) for part in masker(input_ids))
            with torch.autocast(device.type, torch.bfloat16, enabled=bfloat16):
                loss = model(covered, labels).loss
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
            return loss.item()

    return step


def ledger(shape: Shape, device: torch.device, rounds: int, repeats: int) -> dict[str, Any]:
    """Times the step as it is and each change of it. A worth above 1 is a gain."""
    arms = {"as it is": stepper(shape, Trick("as it is", True), device)}
    arms |= {trick.name: stepper(shape, trick, device) for trick in TRICKS}
    times = interleaved(arms, device, rounds, repeats)
    # What a thread that draws the batches in advance could save at most.
    generator = torch.Generator().manual_seed(0)
    size = (shape.batch_size, shape.length)
    input_ids = torch.randint(5, shape.vocab_size, size, generator=generator)  # (B, T)
    masker = TokenMasker(shape.vocab_size, 4, range(5), max_predictions_per_seq=shape.length)
    drawing = seconds(lambda: masker(input_ids), torch.device("cpu"), 20)
    rows = []
    for trick in TRICKS:
        # Of each round, so that what slowed a whole round cancels.
        ratios = [
            changed / now if trick.kept else now / changed
            for now, changed in zip(times["as it is"], times[trick.name], strict=True)
        ]
        rows.append(
            {
                "name": trick.name,
                "kept": trick.kept,
                "worth": median(ratios),
                "least": min(ratios),
                "most": max(ratios),
            }
        )
    return {"shape": asdict(shape), "seconds": median(times["as it is"]), "drawing": drawing, "rows": rows}


def padding(corpus: str, batches: int = 50) -> dict[str, float]:
    """The share of padding in the pairs of `bert_tiny.py`, by length."""
    job = PairJob(pair_run.Options("speed_ledger", corpus=corpus), torch.device("cpu"))
    shares = {}
    for length, drawn in job.batches.items():
        masks = [next(drawn)["attention_mask"] for _ in range(batches)]
        shares[str(length)] = 1 - torch.cat(masks).float().mean().item()
    return shares


def print_ledger(found: dict[str, Any]) -> None:
    """One shape."""
    shape = found["shape"]
    console.print(
        f"  [bold]{shape['name']}[/bold]: {1000 * found['seconds']:.1f} ms a step, "
        f"{found['drawing'] / found['seconds']:.1%} of it to draw and cover the batch\n  batch "
        f"{shape['batch_size']} × {shape['length']}, {shape['hidden_size']} wide, "
        f"dropout {shape['dropout']:g}",
        markup=True,
    )
    table = Table(box=None, padding=(0, 1), header_style="dim")
    table.add_column("trick", min_width=38)
    table.add_column("")
    table.add_column("makes it faster by", justify="right")
    table.add_column("least to most", justify="right")
    for row in found["rows"]:
        table.add_row(
            row["name"],
            "kept" if row["kept"] else "left out",
            f"{row['worth']:.2f} ×",
            f"{row['least']:.2f} to {row['most']:.2f}",
        )
    console.print(table)
    console.print()


def main(argv: list[str] | None = None) -> None:
    """Reads the command line, measures, prints, and writes the record if asked."""
    parser = OneLineParser(description="Time our step without each of its tricks.")
    parser.add_argument("--shapes", nargs="+", choices=[shape.name for shape in SHAPES], help="default: all")
    parser.add_argument("--rounds", type=int, default=7, help="how often each is timed (default: 7)")
    parser.add_argument("--repeats", type=int, default=3, help="steps in a row timed as one (default: 3)")
    parser.add_argument("--corpus", default="python-docs", help="whose pairs are looked at for padding")
    parser.add_argument("--device", default="auto", help="cpu, cuda, or the GPU if there is one")
    parser.add_argument("--record", type=Path, metavar="FILE", help="write the result as JSON")
    options = parser.parse_args(argv)
    with bad_input_ends_here():
        compare(options, words_of(argv))


def compare(options: argparse.Namespace, words: list[str]) -> None:
    """
    ## All shapes, one after another

    Raises `ValueError` where an option makes no sense.
    """
    began = time.monotonic()
    if options.record is not None:
        check_record(options.record)
    at_least_one(options, "rounds", "repeats")
    device = choose_device(options.device)
    arithmetic = "bfloat16" if has_fast_bfloat16(device) else "float32"
    header("speed_ledger: our step without each of its tricks", {"training": f"{arithmetic} on {device}"})
    # First, as a corpus may not be what it should.
    with console.status("padding"):
        shares = padding(options.corpus)
    told = ", ".join(f"{share:.1%} at length {length}" for length, share in shares.items())
    console.print(f"  padding     {told}\n")
    tables = []
    for shape in SHAPES:
        if options.shapes is None or shape.name in options.shapes:
            with console.status(shape.name):
                tables.append(ledger(shape, device, options.rounds, options.repeats))
            print_ledger(tables[-1])
    record = {
        **record_head("speed/speed_ledger", words, device, arithmetic),
        "configuration": {"rounds": options.rounds, "repeats": options.repeats},
        "ledger": tables,
        "padding": shares,
    }
    finish(options.record, record, began)


if __name__ == "__main__":
    main()
