r"""
# How fast is the modern encoder?

We compare a training step of `modern.py` with one of ModernBERT in `transformers`, on the same batch and with
the same weights. One process runs the two in turn. Before we time anything, we check that both compute
the same loss.

Most of the sizes are the same as in `speed.py`. Two settings follow ModernBERT base. The feed-forward network
is one and a half times as wide as the hidden size. Every third layer attends to the whole sequence, and the
others attend to a window of 128 tokens.

We time both models in float32, the default of `transformers`, and with autocast to bfloat16. Three things can
make our step faster: matmuls in bfloat16, a last layer and a head that compute only the labeled positions,
and attention that is written out where PyTorch's fused kernel is slow. If both models use float32, only the
second is left: computing only the labeled positions. We haven't measured how much of the difference in speed
it explains. It saves the most time if the vocabulary is large and the layers are few, and less in a character
model. `transformers` can compute the head at the labeled positions only, too, if you set
`sparse_prediction=True` in its configuration. We leave it off, as it is by default.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))  # Find the package without installing it.
from labml_bert.run import preflight  # noqa: F401  # isort: skip

import argparse
import time
from dataclasses import asdict, dataclass
from importlib.metadata import version
from statistics import median
from typing import Any

from rich.table import Table

from labml_bert.modern import ModernBertConfig, ModernBertForMaskedLM
from labml_bert.run.record import check_range, check_record, clean_arguments, describe_run, finish
from labml_bert.run.terminal import exit_on_bad_input
from labml_bert.run.timing import build_training_step, draw_batch, summarize, time_in_turn
from labml_bert.stdout import OneLineParser, console
from labml_bert.training.device import choose_device

import torch  # isort: skip
from torch import nn  # isort: skip


@dataclass(frozen=True)
class Shape:
    """The sizes of a model and its batch."""

    name: str
    vocab_size: int
    hidden_size: int
    num_hidden_layers: int
    num_attention_heads: int
    batch_size: int = 32
    length: int = 128

    def config(self) -> ModernBertConfig:
        """Returns the configuration for both models."""
        return ModernBertConfig(
            vocab_size=self.vocab_size,
            hidden_size=self.hidden_size,
            num_hidden_layers=self.num_hidden_layers,
            num_attention_heads=self.num_attention_heads,
            intermediate_size=self.hidden_size * 3 // 2,
            pad_token_id=0,
        )


SHAPES = [
    Shape("characters", 100, 256, 4, 4),
    Shape("words", 8192, 256, 4, 4),
    Shape("characters, 512", 100, 256, 4, 4, batch_size=8, length=512),
    Shape("BERT small", 30522, 512, 4, 8),
    Shape("ModernBERT base", 50368, 768, 22, 12, batch_size=8),
]


def build_peer(config: ModernBertConfig) -> nn.Module:
    """Builds the same model with `transformers`."""
    import transformers

    ids: dict[str, Any] = dict.fromkeys(("bos_token_id", "eos_token_id", "cls_token_id", "sep_token_id"))
    return transformers.ModernBertForMaskedLM(transformers.ModernBertConfig(**asdict(config), **ids))


def measure(shape: Shape, device: torch.device, rounds: int) -> dict[str, Any]:
    """
    ## One shape

    Times a training step of both models in both precisions, in seconds.

    Raises `AssertionError` if the models compute different losses.
    """
    torch.manual_seed(0)
    batch = draw_batch(shape.vocab_size, shape.batch_size, shape.length, device)
    config = shape.config()
    models: dict[str, nn.Module] = {"ours": ModernBertForMaskedLM(config), "transformers": build_peer(config)}
    models["transformers"].load_state_dict(models["ours"].state_dict())
    steps, losses = {}, []
    for name, model in models.items():
        model.to(device).eval()
        with torch.no_grad():
            losses.append(model(input_ids=batch.input_ids, labels=batch.labels).loss.item())
        model.train()
        for precision in ("float32", "bfloat16"):
            _, steps[f"{name}, {precision}"] = build_training_step(model, batch, precision == "bfloat16")
    assert abs(losses[0] - losses[1]) < 1e-4, losses
    times = time_in_turn(steps, device, rounds)
    return {
        "shape": asdict(shape),
        "parameters": sum(p.numel() for p in models["ours"].parameters()),
        "loss_difference": abs(losses[0] - losses[1]),
        "rows": [
            {
                "arm": arm,
                "step": summarize(seconds),
                "tokens_per_second": shape.batch_size * shape.length / median(seconds),
            }
            for arm, seconds in times.items()
        ],
    }


def print_table(result: dict[str, Any]) -> None:
    """Prints the results of `measure`."""
    shape = result["shape"]
    size = f"{result['parameters']:,} parameters, batch {shape['batch_size']} × {shape['length']}"
    console.print(f"  [bold]{shape['name']}[/bold], {size}", markup=True)
    table = Table(box=None, padding=(0, 1), header_style="dim")
    table.add_column("model", min_width=28)
    for column in ("step, ms", "tokens/s", "× users"):
        table.add_column(column, justify="right")
    users = next(row for row in result["rows"] if row["arm"] == "transformers, float32")
    for row in result["rows"]:
        seconds = row["step"]["median"]
        speedup = users["step"]["median"] / seconds
        tokens = f"{row['tokens_per_second']:,.0f}"
        table.add_row(row["arm"], f"{1000 * seconds:,.1f}", tokens, f"{speedup:.2f}")
    console.print(table, "")


def main(argv: list[str] | None = None) -> None:
    """Parses the command line, measures, prints the results, and writes a record if asked."""
    parser = OneLineParser(description="Time a step of modern.py next to that of transformers.")
    parser.add_argument("--shapes", nargs="+", choices=[s.name for s in SHAPES], help="default: all")
    parser.add_argument("--rounds", type=int, default=5, help="rounds in which each is timed (default: 5)")
    parser.add_argument("--device", default="auto", help="cpu, cuda, or the GPU if there is one")
    parser.add_argument("--record", type=Path, metavar="FILE", help="write the result as JSON")
    options = parser.parse_args(argv)
    with exit_on_bad_input():
        compare(options, clean_arguments(argv))


def compare(options: argparse.Namespace, words: list[str]) -> None:
    """
    ## All shapes

    Measures the chosen shapes, prints the results, and writes a record if asked.

    Raises `ValueError` if an option is out of range, or if `transformers` is missing.
    """
    start = time.monotonic()
    if options.record is not None:
        check_record(options.record, "speed/speed_modern")
    check_range(options, "rounds")
    try:
        peers = {"transformers": version("transformers")}
    except ImportError:
        raise ValueError("transformers is missing; install it with make peers") from None
    device = choose_device(options.device)
    results = []
    for shape in SHAPES:
        if options.shapes is None or shape.name in options.shapes:
            with console.status(shape.name):
                results.append(measure(shape, device, options.rounds))
            print_table(results[-1])
    record = {
        **describe_run("speed/speed_modern", words, device, "float32 and bfloat16"),
        "configuration": {"rounds": options.rounds, "peers": peers},
        "modern_steps": results,
    }
    finish(options.record, record, start)


if __name__ == "__main__":
    main()
