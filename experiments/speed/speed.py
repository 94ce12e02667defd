r"""
# How fast is it, compared with other implementations?

We compare our model's training step with those of two other libraries: `transformers`, with two of its
attention implementations, and `labml_nn`. All models train on the same batch, in one process, in turn.

The model of `transformers` has the same architecture as ours. So we copy our weights into it, and before we
time anything, both must compute the same loss. The model of `labml_nn` has the same sizes but a different
architecture: it is pre-norm, its output layer isn't tied to the embeddings, and it predicts every position.

We time each model in float32, and with autocast to bfloat16. By default, the others use float32, and ours
uses bfloat16 if the machine has fast instructions for it.

Install the others with `make peers`. Those that are missing are skipped.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))  # Find the package without installing it.
from labml_bert.run import preflight  # noqa: F401  # isort: skip

import argparse
import time
import warnings
from dataclasses import asdict, dataclass, replace
from importlib.metadata import version
from importlib.util import find_spec
from statistics import median
from typing import Any

from rich.table import Table

from labml_bert.bert import BertConfig
from labml_bert.mlm import MaskedLMOutput, MaskedTokens, masked_lm_loss
from labml_bert.models import BertForMaskedLM
from labml_bert.run.record import check_range, check_record, clean_arguments, describe_run, finish
from labml_bert.run.terminal import exit_on_bad_input, header
from labml_bert.run.timing import (
    build_layer_ops,
    build_training_step,
    count_step_flops,
    draw_batch,
    measure_matmul_flops,
    measure_memory_bandwidth,
    measure_peak_memory,
    profile_step,
    summarize,
    time_in_turn,
)
from labml_bert.stdout import OneLineParser, console
from labml_bert.training.device import choose_device, has_fast_bfloat16

import torch  # isort: skip
from torch import Tensor, nn  # isort: skip


@dataclass(frozen=True)
class Shape:
    """The sizes of a model and of its batch."""

    name: str
    vocab_size: int
    hidden_size: int
    num_hidden_layers: int
    num_attention_heads: int
    batch_size: int = 32
    length: int = 128
    repeats: int = 3
    """Number of steps that are timed together."""

    def config(self, dropout: float) -> BertConfig:
        """Returns the configuration for our model and for `transformers`."""
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


CPU_SHAPES = [
    Shape("characters", 100, 256, 4, 4),
    Shape("words", 8192, 256, 4, 4),
    Shape("BERT small", 30522, 512, 4, 8, repeats=1),
    Shape("BERT base", 30522, 768, 12, 12, repeats=1),
]
GPU_SHAPES = [
    *(replace(shape, repeats=10) for shape in CPU_SHAPES),
    # The sequence lengths of the original pretraining. Both batches have 16,384 tokens.
    Shape("BERT base, batch 128", 30522, 768, 12, 12, batch_size=128),
    Shape("BERT base, 512", 30522, 768, 12, 12, length=512),
]
PEERS = ("transformers sdpa", "transformers eager", "labml_nn")


class LabmlNN(nn.Module):
    """
    ## The model of labml_nn

    Built as in `labml_nn/transformers/mlm/experiment.py`. Its modules take tensors of shape `(T, B, …)`.
    """

    def __init__(self, shape: Shape, dropout: float):
        super().__init__()
        from labml import tracker

        # labml_nn 0.5.1 calls a function that labml has removed.
        tracker.debug = lambda *_: None
        # Python 3.12 and later warn about backslashes in its docstrings.
        warnings.filterwarnings("ignore", category=SyntaxWarning)
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

    def forward(self, input_ids: Tensor, labels: Tensor) -> MaskedLMOutput:
        """Both are `(B, T)`."""
        logits = self.generator(self.encoder(self.embeddings(input_ids.t()), None))  # (T, B, V)
        labels = labels.t()  # (T, B)
        return MaskedLMOutput(masked_lm_loss(logits.flatten(0, 1), labels.flatten()), logits, labels)


def build_model(name: str, shape: Shape, dropout: float) -> nn.Module:
    """Builds our model if `name` is `ours`, or else one of `PEERS`."""
    if name == "labml_nn":
        return LabmlNN(shape, dropout)
    config = shape.config(dropout)
    if name == "ours":
        return BertForMaskedLM(config)
    import transformers

    their_config: Any = transformers.BertConfig(**asdict(config))
    their_config._attn_implementation = name.removeprefix("transformers ")
    return transformers.BertForMaskedLM(their_config)


@torch.no_grad()
def check_losses(models: dict[str, nn.Module], batch: MaskedTokens) -> float:
    """
    ## Do the models compute the same loss?

    Copies our weights into the models of `transformers`, and returns the largest difference between their
    loss and ours.

    Raises `AssertionError` if it is 1e-4 or more, because then the models don't do the same work.
    """
    ours = models["ours"]
    losses = {}
    for name, model in models.items():
        if name.startswith("transformers"):
            model.load_state_dict(ours.state_dict())
        if name != "labml_nn":
            losses[name] = model.eval()(input_ids=batch.input_ids, labels=batch.labels).loss.item()
            model.train()
    difference = max(abs(loss - losses["ours"]) for loss in losses.values())
    assert difference < 1e-4, losses
    return difference


def variant_flops(variant: str, config: BertConfig, labels: Tensor) -> float:
    """Returns the FLOPs of the matmuls in a training step of a variant, such as `ours, bfloat16`."""
    flops = count_step_flops(config, labels, only_labeled=variant.startswith("ours"))
    if variant.startswith("labml_nn"):
        # Its head has no dense layer of width D before the output layer.
        flops -= 3 * 2 * labels.numel() * config.hidden_size**2
    return flops


def measure_steps(
    shape: Shape, dropout: float, names: list[str], device: torch.device, rounds: int
) -> dict[str, Any]:
    """
    ## A training step

    Measures all models at one shape and one dropout probability, in both precisions. Time is in seconds,
    memory in bytes.
    """
    torch.manual_seed(0)
    batch = draw_batch(shape.vocab_size, shape.batch_size, shape.length, device)
    models = {name: build_model(name, shape, dropout).to(device).train() for name in names}
    difference = check_losses(models, batch)
    forward, step = {}, {}
    for name, model in models.items():
        for precision in ("float32", "bfloat16"):
            variant = f"{name}, {precision}"
            forward[variant], step[variant] = build_training_step(model, batch, precision == "bfloat16")
    if device.type == "cuda":
        variant = "ours, bfloat16, compiled"
        forward[variant], step[variant] = build_training_step(models["ours"], batch, True, torch_compile=True)
    forward_seconds = time_in_turn(forward, device, rounds, shape.repeats)
    step_seconds = time_in_turn(step, device, rounds, shape.repeats)
    config, rows = shape.config(dropout), []
    for variant, times in step_seconds.items():
        flops = variant_flops(variant, config, batch.labels)
        rows.append(
            {
                "arm": variant,
                "forward": summarize(forward_seconds[variant]),
                "step": summarize(times),
                "tokens_per_second": shape.batch_size * shape.length / median(times),
                "flops": flops,
                "flops_per_second": flops / median(times),
                "memory": measure_peak_memory(step[variant], device),
            }
        )
    default = "ours, bfloat16" if has_fast_bfloat16(device) else "ours, float32"
    return {
        "shape": asdict(shape),
        "dropout": dropout,
        "parameters": sum(p.numel() for p in models["ours"].parameters()),
        "loss_difference": difference,
        "rows": rows,
        "profile": {"arm": default, "fractions": profile_step(step[default])},
    }


@torch.no_grad()
def measure_layer_ops(shape: Shape, device: torch.device, rounds: int) -> dict[str, Any]:
    """
    ## The ops of a layer, one by one

    Measures the points of a roofline plot: the FLOPs, the memory traffic and the seconds of each op.
    """
    rows = []
    for dtype in (torch.bfloat16, torch.float32):
        ops = build_layer_ops(shape.config(0.0), shape.batch_size, shape.length, device, dtype)
        times = time_in_turn({op.name: op.run for op in ops}, device, rounds, repeats=3)
        rows += [
            {
                "name": op.name,
                "precision": str(dtype).removeprefix("torch."),
                "flops": op.flops,
                "bytes": op.bytes,
                "seconds": median(times[op.name]),
            }
            for op in ops
        ]
    return {"shape": shape.name, "rows": rows}


def print_table(result: dict[str, Any], peaks: dict[str, float]) -> None:
    """Prints the results of `measure_steps`. `peaks` has the FLOP/s of a large matmul in each precision."""
    shape = result["shape"]
    console.print(
        f"  [bold]{shape['name']}[/bold], {result['parameters']:,} parameters, batch "
        f"{shape['batch_size']} × {shape['length']}, dropout {result['dropout']:g}",
        markup=True,
    )
    table = Table(box=None, padding=(0, 1), header_style="dim")
    table.add_column("model", min_width=28)
    for column in ("step, ms", "tokens/s", "MFU", "memory", "× sdpa"):
        table.add_column(column, justify="right")
    reference = next((row for row in result["rows"] if row["arm"] == "transformers sdpa, float32"), None)
    for row in result["rows"]:
        peak = peaks["bfloat16" if "bfloat16" in row["arm"] else "float32"]
        seconds = row["step"]["median"]
        table.add_row(
            row["arm"],
            f"{1000 * seconds:,.1f}",
            f"{row['tokens_per_second']:,.0f}",
            f"{row['flops_per_second'] / peak:.0%}",
            f"{row['memory'] / 1e6:,.0f} MB" if row["memory"] else "–",
            f"{reference['step']['median'] / seconds:.2f}" if reference else "–",
        )
    console.print(table, "")


def main(argv: list[str] | None = None) -> None:
    """Parses the command line, measures, prints the results, and writes a record if asked."""
    parser = OneLineParser(description="Time our training step next to those of transformers and labml_nn.")
    parser.add_argument("--shapes", nargs="+", choices=[s.name for s in GPU_SHAPES], help="default: all")
    parser.add_argument("--dropout", nargs="+", type=float, default=[0.1, 0.0], help="default: 0.1 0")
    parser.add_argument("--rounds", type=int, default=5, help="rounds in which each is timed (default: 5)")
    parser.add_argument("--batch-size", type=int, help="sequences in a batch, for a quick test")
    parser.add_argument("--length", type=int, help="tokens in a sequence, for a quick test")
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
        check_record(options.record, "speed/speed")
    check_range(options, "rounds", "batch_size", "length")
    for dropout in options.dropout:
        if not 0 <= dropout < 1:
            raise ValueError(f"dropout is {dropout}; it must be in [0, 1)")
    device = choose_device(options.device)
    shapes = choose_shapes(options, GPU_SHAPES if device.type == "cuda" else CPU_SHAPES)
    names = ["ours", *(name for name in PEERS if find_spec(name.split()[0]))]
    missing = [name for name in PEERS if name not in names]
    with console.status("measuring the machine"):
        peaks = {name: measure_matmul_flops(device, getattr(torch, name)) for name in ("bfloat16", "float32")}
        bandwidth = measure_memory_bandwidth(device)
    header(
        "speed: our training step compared with others",
        {
            "machine": f"{peaks['bfloat16'] / 1e9:,.0f} GFLOP/s in a large bfloat16 matmul, "
            f"{peaks['float32'] / 1e9:,.0f} in float32",
            "memory": f"{bandwidth / 1e9:,.0f} GB/s in a large copy",
            **({"missing": f"{', '.join(missing)}; install with make peers"} if missing else {}),
        },
    )
    results, ops = [], []
    for shape in shapes:
        with console.status(f"{shape.name}, op by op"):
            ops.append(measure_layer_ops(shape, device, options.rounds))
        # Large models take minutes. Time them only with the first dropout probability.
        for dropout in options.dropout[: 1 if shape.name.startswith("BERT") else None]:
            with console.status(f"{shape.name}, dropout {dropout:g}"):
                results.append(measure_steps(shape, dropout, names, device, options.rounds))
            print_table(results[-1], peaks)
    peers = dict.fromkeys(name.split()[0] for name in names if name != "ours")
    record = {
        **describe_run("speed/speed", words, device, "float32 and bfloat16"),
        "configuration": {"rounds": options.rounds, "peers": {name: version(name) for name in peers}},
        "peaks": peaks,
        "bytes_per_second": bandwidth,
        "speed": results,
        "pieces": ops,
    }
    finish(options.record, record, start)


def choose_shapes(options: argparse.Namespace, shapes: list[Shape]) -> list[Shape]:
    """
    Returns the shapes that the options ask for, with their batch size and length.

    Raises `ValueError` if a shape is for another kind of device.
    """
    names = [shape.name for shape in shapes]
    for name in options.shapes or []:
        if name not in names:
            raise ValueError(f"the shape {name!r} is for a GPU; for this device there are {', '.join(names)}")
    sizes = {name: getattr(options, name) for name in ("batch_size", "length") if getattr(options, name)}
    return [replace(shape, **sizes) for shape in shapes if shape.name in (options.shapes or names)]


if __name__ == "__main__":
    main()
