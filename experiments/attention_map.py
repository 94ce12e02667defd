"""
# Where the mask looks

Which letters does a trained model read to guess a covered one? A sentence with a `[MASK]` goes once
through a model of `mlm_tiny.py`, and every head of every layer hands out its attention weights. For
the masked place they say how much it took from each place of the sentence.

The weights show what was mixed, not why. A head may look at a place and take nothing of use from it:
what it takes are the values, and those are not in this picture.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))  # A clone runs without being installed.
from labml_bert.run import script  # noqa: F401  # isort: skip

import json
import os
from typing import Any

import torch
from rich.table import Table
from tokenizers import Tokenizer

from labml_bert.files import write_whole
from labml_bert.fill_mask import Guess, fill_mask, load_model, newest_run
from labml_bert.models import BertForMaskedLM
from labml_bert.run.record import check_record, record_head
from labml_bert.run.terminal import OneLineParser, bad_input_ends_here, console, printable, shown
from labml_bert.training.checkpoint import load_checkpoint

TEXT = "Return a copy of the [MASK]ist."


@torch.no_grad()
def attention_map(model: BertForMaskedLM, tokenizer: Tokenizer, text: str) -> dict[str, Any]:
    """
    ## One pass

    The tokens of `text`, the places of its masks, the five best answers for each, and the attention
    weights by layer, head, place that looks, and place that is looked at.

    Raises `ValueError` where there is no mask, or more text than the model has positions.
    """
    answers: list[list[Guess]] = fill_mask(model, tokenizer, text)
    encoding = tokenizer.encode(text)
    input_ids = torch.tensor([encoding.ids])  # (1, T)
    attentions = model.bert(input_ids, output_attentions=True).attentions
    weights = torch.stack(attentions)[:, 0]  # (L, H, T, T)
    mask = tokenizer.token_to_id("[MASK]")
    return {
        "text": text,
        "tokens": encoding.tokens,
        "masks": [place for place, token in enumerate(encoding.ids) if token == mask],
        "guesses": [[[guess.token, round(guess.probability, 4)] for guess in row] for row in answers],
        # Three places are more than a picture can show.
        "attentions": [
            [[[round(w, 3) for w in row] for row in head] for head in layer] for layer in weights.tolist()
        ],
    }


def print_map(found: dict[str, Any], top: int = 3) -> None:
    """For the first mask, the places that each head weighs most: the token, how far away, how much."""
    place = found["masks"][0]
    table = Table(box=None, padding=(0, 2), header_style="dim")
    for column in ("layer", "head", *(f"place {i + 1}" for i in range(top))):
        table.add_column(column)
    for i, layer in enumerate(found["attentions"]):
        for j, head in enumerate(layer):
            row = head[place]
            best = sorted(range(len(row)), key=lambda at: -row[at])[:top]
            looks = [f"{printable(found['tokens'][at])!r} {at - place:+d} {row[at]:.0%}" for at in best]
            table.add_row(str(i + 1), str(j + 1), *looks)
    console.print(table)


def write_record(path: Path, found: dict[str, Any], about: dict[str, Any]) -> None:
    """The map as JSON, with the configuration of the run that made the model."""
    configuration = about["configuration"]
    record = {
        **record_head("attention_map", ["--record", path.name], torch.device("cpu"), "float32"),
        # A path says where the file was on somebody's machine.
        "configuration": {**configuration, "corpus": os.path.basename(configuration["corpus"])},
        "trained": {"steps": about["step"], "seconds": about["seconds"]},
        "result": found,
    }
    write_whole(path, json.dumps(record, separators=(",", ":")))


def main(argv: list[str] | None = None) -> None:
    """Reads the command line, prints where the first mask looks, and writes the record if asked."""
    parser = OneLineParser(description="Show where the [MASK] in a text looks.")
    parser.add_argument("text", nargs="?", default=TEXT, help=f"text with a [MASK] (default: {TEXT!r})")
    parser.add_argument("--run", type=Path, help="folder of a run (default: the newest under logs/)")
    parser.add_argument("--record", type=Path, metavar="FILE", help="write the weights as JSON")
    options = parser.parse_args(argv)
    with bad_input_ends_here():
        if options.record is not None:
            check_record(options.record)
        run_path = options.run or newest_run(Path("logs"))
        model, tokenizer = load_model(run_path)
        found = attention_map(model, tokenizer, options.text)
        if options.record is not None:
            write_record(options.record, found, load_checkpoint(run_path)[0])
    console.print(f"\n  model {shown(run_path)}\n", style="dim")
    print_map(found)
    guesses = ", ".join(f"{token!r} {p:.0%}" for token, p in found["guesses"][0])
    console.print(f"\n  answers  {guesses}\n")


if __name__ == "__main__":
    main()
