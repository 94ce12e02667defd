r"""
# How fast, beside the others?

The same model, the same batch, one step forward and one of training, in one process and in turn: ours,
`transformers` with its two kinds of attention, and `labml_nn`. The first two are the same model, get the
same weights, and must give the same loss before anything is timed. That of `labml_nn` is another model of the
same sizes: it normalises before each layer, its output layer is not tied, and it predicts every place.

Each is measured in float32, and under autocast in bfloat16. What a user of each gets by default is float32
for the others, and for ours whatever the machine is good at.

The others are installed by `make peers`; one that is missing is left out.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))  # A clone runs without being installed.
from labml_bert.run import script  # noqa: F401  # isort: skip

import argparse
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from functools import partial
from importlib.util import find_spec
from statistics import median
from typing import Any

from rich.table import Table

from labml_bert.bert import BertConfig
from labml_bert.models import BertForMaskedLM
from labml_bert.run.record import at_least_one, check_record, finish, record_head, words_of
from labml_bert.run.terminal import OneLineParser, bad_input_ends_here, console, header
from labml_bert.run.timing import (
    forward_operations,
    interleaved,
    matmul_peak,
    memory_rate,
    peak_memory,
    random_batch,
    single_operations,
    spread,
    training_step,
    where_time_goes,
)
from labml_bert.training.device import choose_device, has_fast_bfloat16

import torch  # isort: skip
from torch import Tensor, nn  # isort: skip


@dataclass(frozen=True)
class Shape:
    """A model and its batch."""

    name: str
    vocab_size: int
    hidden_size: int
    num_hidden_layers: int
    num_attention_heads: int
    batch_size: int = 32
    length: int = 128
    # Steps in a row that are timed as one.
    repeats: int = 3

    def config(self, dropout: float) -> BertConfig:
        """For both `transformers` and ours."""
        return BertConfig(
            vocab_size=self.vocab_size,
            hidden_size=self.hidden_size,
            num_hidden_layers=self.num_hidden_layers,
            num_attention_heads=self.num_attention_heads,
            intermediate_size=4 * self.hidden_size,
            hidden_dropout_prob=dropout,
            attention_probs_dropout_prob=dropout,
            max_position_embeddings=max(self.length, 512),
        )


SHAPES = [
    Shape("characters", 100, 256, 4, 4),
    Shape("words", 8192, 256, 4, 4),
    Shape("BERT small", 30522, 512, 4, 8, repeats=1),
    Shape("BERT base", 30522, 768, 12, 12, repeats=1),
]
ON_A_GPU = [
    *(replace(shape, repeats=10) for shape in SHAPES),
    Shape("BERT base, 512", 30522, 768, 12, 12, length=512, repeats=5),
]
PEERS = ("transformers sdpa", "transformers eager", "labml_nn")


class Ours(nn.Module):
    """What `make train` trains."""

    def __init__(self, shape: Shape, dropout: float):
        super().__init__()
        self.model = BertForMaskedLM(shape.config(dropout))

    def forward(self, input_ids: Tensor, labels: Tensor) -> Tensor:
        """The loss."""
        loss = self.model(input_ids, labels).loss
        assert loss is not None
        return loss


class Transformers(nn.Module):
    """The class that most people use."""

    def __init__(self, shape: Shape, dropout: float, attention: str):
        super().__init__()
        import transformers

        config: Any = transformers.BertConfig(**asdict(shape.config(dropout)))
        config._attn_implementation = attention
        self.model = transformers.BertForMaskedLM(config)

    def forward(self, input_ids: Tensor, labels: Tensor) -> Tensor:
        """The loss."""
        return self.model(input_ids=input_ids, labels=labels).loss


class LabmlNN(nn.Module):
    """
    The parts from which `labml_nn/transformers/mlm/experiment.py` puts its model together. They take the
    length first.
    """

    def __init__(self, shape: Shape, dropout: float):
        super().__init__()
        from labml import tracker

        # Version 0.5.1 calls a function that labml no longer has.
        tracker.debug = lambda *_: None
        from labml_nn.transformers import Encoder, Generator, MultiHeadAttention, TransformerLayer
        from labml_nn.transformers.feed_forward import FeedForward
        from labml_nn.transformers.models import EmbeddingsWithLearnedPositionalEncoding

        D = shape.hidden_size
        layer = TransformerLayer(
            d_model=D,
            self_attn=MultiHeadAttention(shape.num_attention_heads, D, dropout),
            src_attn=None,
            feed_forward=FeedForward(D, 4 * D, dropout, nn.GELU()),
            dropout_prob=dropout,
        )
        self.embeddings = EmbeddingsWithLearnedPositionalEncoding(D, shape.vocab_size)
        self.encoder = Encoder(layer, shape.num_hidden_layers)
        self.generator = Generator(shape.vocab_size, D)

    def forward(self, input_ids: Tensor, labels: Tensor) -> Tensor:
        """The loss."""
        logits = self.generator(self.encoder(self.embeddings(input_ids.t()), None))
        return nn.functional.cross_entropy(logits.flatten(0, 1).float(), labels.t().flatten())


BUILD: dict[str, Callable[[Shape, float], nn.Module]] = {
    "ours": Ours,
    "transformers sdpa": partial(Transformers, attention="sdpa"),
    "transformers eager": partial(Transformers, attention="eager"),
    "labml_nn": LabmlNN,
}


@torch.no_grad()
def check_losses(models: dict[str, nn.Module], batch: tuple[Tensor, Tensor]) -> float:
    """
    Gives the models of `transformers` the weights of ours and returns the largest difference of the losses.

    Raises `AssertionError` where it is above 1e-4: what is compared then would not be the same work.
    """
    ours = models["ours"]
    losses = {}
    for name, model in models.items():
        if name.startswith("transformers"):
            model.load_state_dict(ours.state_dict())
        if name != "labml_nn":
            losses[name] = model.eval()(*batch).item()
            model.train()
    difference = max(abs(loss - losses["ours"]) for loss in losses.values())
    assert difference < 1e-4, losses
    return difference


def measure(
    shape: Shape, dropout: float, names: list[str], device: torch.device, rounds: int
) -> dict[str, Any]:
    """All arms at one shape and one dropout. Times in seconds, memory in bytes."""
    torch.manual_seed(0)
    batch = random_batch(shape.vocab_size, shape.batch_size, shape.length, device)
    models = {name: BUILD[name](shape, dropout).to(device).train() for name in names}
    difference = check_losses(models, batch)
    forward, step = {}, {}
    for name, model in models.items():
        for bfloat16 in (False, True):
            arm = f"{name}, {'bfloat16' if bfloat16 else 'float32'}"
            forward[arm], step[arm] = training_step(model, batch, bfloat16)
    if device.type == "cuda":
        forward["ours, bfloat16, compiled"], step["ours, bfloat16, compiled"] = training_step(
            models["ours"], batch, bfloat16=True, compiled=True
        )
    times = {
        "forward": interleaved(forward, device, rounds, shape.repeats),
        "step": interleaved(step, device, rounds, shape.repeats),
    }
    config = shape.config(dropout)
    labelled = (batch[1] >= 0).sum(1)
    places, predictions = int(labelled.max()), int(labelled.sum())
    whole = forward_operations(
        config, shape.batch_size, shape.length, shape.batch_size * shape.length, shape.length
    )
    part = forward_operations(config, shape.batch_size, shape.length, predictions, places)
    rows = []
    for arm in step:
        operations = part if arm.startswith("ours") else whole
        rows.append(
            {
                "arm": arm,
                "forward": spread(times["forward"][arm]),
                "step": spread(times["step"][arm]),
                "tokens_per_second": shape.batch_size * shape.length / median(times["step"][arm]),
                # A training step is a forward pass and a backward pass of twice the operations.
                "operations": 3 * operations,
                "operations_per_second": 3 * operations / median(times["step"][arm]),
                "memory": peak_memory(step[arm], device),
            }
        )
    best = "ours, bfloat16" if has_fast_bfloat16(device) else "ours, float32"
    return {
        "shape": asdict(shape),
        "dropout": dropout,
        "parameters": sum(p.numel() for p in models["ours"].parameters()),
        "loss_difference": difference,
        "rows": rows,
        "profile": {"arm": best, "shares": where_time_goes(step[best])},
    }


@torch.no_grad()
def measure_operations(shape: Shape, device: torch.device, rounds: int) -> dict[str, Any]:
    """The pieces of a layer one by one: what they compute, what they move, and the seconds of each."""
    rows = []
    for dtype in (torch.bfloat16, torch.float32):
        pieces = single_operations(shape.config(0.0), shape.batch_size, shape.length, device, dtype)
        times = interleaved({piece.name: piece.work for piece in pieces}, device, rounds, repeats=3)
        precision = str(dtype).removeprefix("torch.")
        rows += [
            {
                "name": piece.name,
                "precision": precision,
                "operations": piece.operations,
                "bytes": piece.bytes,
                "seconds": median(times[piece.name]),
            }
            for piece in pieces
        ]
    return {"shape": shape.name, "rows": rows}


def print_table(found: dict[str, Any], peaks: dict[str, float]) -> None:
    """One shape."""
    shape = found["shape"]
    console.print(
        f"  [bold]{shape['name']}[/bold], {found['parameters']:,} parameters, batch "
        f"{shape['batch_size']} × {shape['length']}, dropout {found['dropout']:g}",
        markup=True,
    )
    table = Table(box=None, padding=(0, 1), header_style="dim")
    table.add_column("arm", min_width=28)
    for column in ("step, ms", "tokens/s", "of peak", "memory", "× sdpa"):
        table.add_column(column, justify="right")
    reference = next((r for r in found["rows"] if r["arm"] == "transformers sdpa, float32"), None)
    for row in found["rows"]:
        peak = peaks["bfloat16" if "bfloat16" in row["arm"] else "float32"]
        memory = "–" if row["memory"] is None else f"{row['memory'] / 1e6:,.0f} MB"
        ratio = "–" if reference is None else f"{reference['step']['median'] / row['step']['median']:.2f}"
        table.add_row(
            row["arm"],
            f"{1000 * row['step']['median']:,.1f}",
            f"{row['tokens_per_second']:,.0f}",
            f"{row['operations_per_second'] / peak:.0%}",
            memory,
            ratio,
        )
    console.print(table)
    console.print()


def main(argv: list[str] | None = None) -> None:
    """Reads the command line, measures, prints, and writes the record if asked."""
    parser = OneLineParser(description="Time our step beside those of transformers and labml_nn.")
    known = [shape.name for shape in ON_A_GPU]
    parser.add_argument("--shapes", nargs="+", choices=known, help="which (default: all for this machine)")
    parser.add_argument(
        "--dropout", nargs="+", type=float, default=[0.1, 0.0], help="its values (default: 0.1 0)"
    )
    parser.add_argument("--rounds", type=int, default=5, help="how often each is timed (default: 5)")
    parser.add_argument("--batch-size", type=int, help="sequences in a batch, for a quick look")
    parser.add_argument("--length", type=int, help="tokens in a sequence, for a quick look")
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
    at_least_one(options, "rounds", "batch_size", "length")
    for dropout in options.dropout:
        if not 0 <= dropout < 1:
            raise ValueError(f"dropout is {dropout}; it must be in [0, 1)")
    device = choose_device(options.device)
    sizes = {"batch_size": options.batch_size, "length": options.length}
    sizes = {name: value for name, value in sizes.items() if value is not None}
    shapes = ON_A_GPU if device.type == "cuda" else SHAPES
    there = [shape.name for shape in shapes]
    for name in options.shapes or []:
        if name not in there:
            raise ValueError(f"the shape {name!r} is for a GPU; for this device there are {', '.join(there)}")
    shapes = [
        replace(shape, **sizes) for shape in shapes if options.shapes is None or shape.name in options.shapes
    ]
    names = ["ours", *(name for name in PEERS if find_spec(name.split()[0]))]
    with console.status("measuring the machine"):
        peaks = {
            "bfloat16": matmul_peak(device, torch.bfloat16),
            "float32": matmul_peak(device, torch.float32),
        }
        bytes_per_second = memory_rate(device)
    missing = [name for name in PEERS if name not in names]
    header(
        "speed: one step of ours beside those of others",
        {
            "machine": f"{peaks['bfloat16'] / 1e9:,.0f} GFLOP/s in a large bfloat16 product, "
            f"{peaks['float32'] / 1e9:,.0f} in float32",
            "memory": f"{bytes_per_second / 1e9:,.0f} GB/s in a large copy",
            **({"missing": f"{', '.join(missing)}: make peers installs them"} if missing else {}),
        },
    )
    tables, pieces = [], []
    for shape in shapes:
        with console.status(f"{shape.name}, piece by piece"):
            pieces.append(measure_operations(shape, device, options.rounds))
        # The large ones take minutes, and dropout costs the same share there.
        for dropout in options.dropout[: 1 if shape.name.startswith("BERT") else None]:
            with console.status(f"{shape.name}, dropout {dropout:g}"):
                found = measure(shape, dropout, names, device, options.rounds)
            tables.append(found)
            print_table(found, peaks)
    record = {
        **record_head("speed/speed", words, device, "float32 and bfloat16"),
        "configuration": {"rounds": options.rounds, "peers": versions_of(names)},
        "peaks": peaks,
        "bytes_per_second": bytes_per_second,
        "speed": tables,
        "pieces": pieces,
    }
    finish(options.record, record, began)


def versions_of(names: list[str]) -> dict[str, str]:
    """Of the peers that were measured."""
    from importlib.metadata import version

    return {name.split()[0]: version(name.split()[0]) for name in names if name != "ours"}


if __name__ == "__main__":
    main()
