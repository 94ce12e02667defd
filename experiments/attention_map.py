"""
# What does the mask attend to?

Which characters does a trained model use to predict a masked one? This script runs a sentence with a `[MASK]`
through a BERT such as the one that `mlm_tiny.py` trains. For every head of every layer, the script prints the
three positions that the masked position attends to most.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))  # Find the package without installing it.
from labml_bert.run import preflight  # noqa: F401  # isort: skip

from typing import Any

import torch
from rich.table import Table

from labml_bert.attention_map import attention_map
from labml_bert.backbone import load_model_and_state
from labml_bert.fill_mask import newest_run
from labml_bert.models import BertForMaskedLM
from labml_bert.run.record import check_record, describe_run, describe_training, write_record
from labml_bert.run.terminal import exit_on_bad_input
from labml_bert.stdout import OneLineParser, console, display_path, printable

TEXT = "Return a copy of the [MASK]ist."


def print_weights(result: dict[str, Any], top: int = 3) -> None:
    """
    For each head, prints the `top` positions to which the first mask attends most. For each of these
    positions, prints the token, the offset from the mask, and the attention weight.
    """
    mask = result["masks"][0]
    table = Table(box=None, padding=(0, 2), header_style="dim")
    for column in ("layer", "head", *(f"position {i + 1}" for i in range(top))):
        table.add_column(column)
    for i, layer in enumerate(result["attentions"]):
        for j, head in enumerate(layer):
            weights = head[mask]
            best = sorted(range(len(weights)), key=lambda position: -weights[position])[:top]
            cells = [f"{printable(result['tokens'][p])!r} {p - mask:+d} {weights[p]:.0%}" for p in best]
            table.add_row(str(i + 1), str(j + 1), *cells)
    console.print(table)


def main(argv: list[str] | None = None) -> None:
    """Parses the command line, prints what the first mask attends to, and can write a record."""
    parser = OneLineParser(description="Show what the [MASK] in a text attends to.")
    parser.add_argument("text", nargs="?", default=TEXT, help=f"text with a [MASK] (default: {TEXT!r})")
    parser.add_argument("--run", type=Path, help="folder of a run (default: the newest under logs/)")
    parser.add_argument("--record", type=Path, metavar="FILE", help="write the weights as JSON")
    options = parser.parse_args(argv)
    with exit_on_bad_input():
        if options.record is not None:
            check_record(options.record, "attention_map")
        run_path = options.run or newest_run(Path("logs"))
        model, tokenizer, run_state = load_model_and_state(run_path, options.record is not None)
        if not isinstance(model, BertForMaskedLM):
            raise ValueError(f"{run_path} has a modern model, and the map is of a BERT; use another run")
        result = attention_map(model, tokenizer, options.text)
        if options.record is not None and run_state is not None:
            record = {
                **describe_run("attention_map", [options.text], torch.device("cpu"), "float32"),
                **describe_training(run_state),
                "result": result,
            }
            console.print(f"\n  record {display_path(write_record(options.record, record))}", style="dim")
    console.print(f"\n  model {display_path(run_path)}\n", style="dim")
    print_weights(result)
    predictions = ", ".join(f"{token!r} {probability:.0%}" for token, probability in result["guesses"][0])
    console.print(f"\n  predictions  {predictions}\n")


if __name__ == "__main__":
    main()
