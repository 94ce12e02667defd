r"""
# What a model knows after a few seconds

What does a masked language model know after ten seconds of training, and what after three minutes? This
script trains two models for three minutes each. One starts with short sequences, as in `curriculum.py`; the
other trains at the full length from the start. The script saves the weights of each at four moments. A page
of the site loads them, so you can try the model as it was at each moment.

The weights have to be downloaded before you can use the page, so the model must be small. The weights are
stored in float16, and one file should have a few hundred kilobytes. So the model is narrower than that of
`mlm_tiny.py`, and has two layers instead of four. All else is equal. Among the sizes that fit, wider models
with fewer layers learned more in the same time, because their steps take less time.

The script also measures four properties of the final weights, which `pictures.py` explains. It measures
them on the rounded weights, because the page runs those.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))  # You can run a clone without installing it.
from labml_bert.run import script  # noqa: F401  # isort: skip

import json
import shlex
import time
from collections.abc import Callable
from dataclasses import dataclass, field, fields, replace
from functools import partial
from typing import Any, NamedTuple

import torch
from rich.table import Table
from torch import Tensor

from experiments.live.pictures import TEXT, make_pictures
from labml_bert.data.corpora import load_corpus
from labml_bert.data.curriculum import length_at, parse_schedule
from labml_bert.data.masked_text import MaskedText
from labml_bert.data.tokenizers import character_tokenizer
from labml_bert.export import prepare_folder, rounding_error, to_float16, write_web, write_weights
from labml_bert.files import write_whole
from labml_bert.mlm import masked_accuracy
from labml_bert.models import BertForMaskedLM
from labml_bert.run.experiment import Run
from labml_bert.run.fingerprint import Fingerprint, take_fingerprint
from labml_bert.run.launch import launch
from labml_bert.run.options import OPERATIONAL, RunOptions
from labml_bert.stdout import console, display_path
from labml_bert.training.distributed import launcher
from labml_bert.training.evaluation import evaluate_masked_lm
from labml_bert.training.trainer import Trainer

# The two arms. You can switch between them on the page.
SHORT, FIXED = "short to long", "fixed length"
# Fractions of the budget: with three minutes, they are 2, 45, 90 and 180 seconds. At the first moment, the
# model knows only how frequent each character is. At the second, it uses the neighbors. At the last two, it
# knows words.
MOMENTS = (2 / 180, 45 / 180, 90 / 180, 1.0)


@dataclass(frozen=True)
class Options(RunOptions):
    """
    ## The values, and why

    The sizes are small enough for a page. The reasons for all other values are in `mlm_tiny.py`.
    """

    schedule: str = "16:3,32:1,64:1,128:3"
    """Sequence lengths of the first model and their weights in the budget. The second model trains only at
    the last of these lengths."""
    batch_tokens: int = 2048
    """Tokens per step at every length."""
    mlm_probability: float = 0.3
    """Fraction of tokens to predict in training. Evaluations always mask 15%."""
    hidden_size: int = 80
    """Width of the model. With two layers, this gives 182,000 weights, or 364 kB in float16."""
    num_hidden_layers: int = 2
    """Number of blocks. Among sizes that are small enough, wider models with fewer blocks learned more in
    three minutes."""
    num_attention_heads: int = 4
    """Heads per block. The hidden size must be a multiple of the number of heads."""
    max_position_embeddings: int = 128
    """Longest sequence that the model can read."""
    initializer_range: float = 0.04
    """Standard deviation of the initial weights."""
    hidden_dropout_prob: float = 0.0
    """Dropout probability, also for attention weights."""
    learning_rate: float = 3e-3
    """Peak learning rate."""
    warmup_ratio: float = 0.05
    """Fraction of the budget in which the learning rate warms up to its peak."""
    weight_decay: float = 0.05
    """Weight decay of matrices. Biases and LayerNorms have none."""
    adam_beta2: float = 0.98
    """Decay rate of Adam's second moment."""
    output: Path = field(default=Path("logs/live/web"), metadata=OPERATIONAL)
    """Folder for the files that the page loads."""


class TrainedModel(NamedTuple):
    """One of the two models, with its weights at each evaluation during training."""

    model: BertForMaskedLM
    text: MaskedText
    page: Trainer
    """A trainer that computes in float32 on the CPU, as the page does."""
    record: dict[str, Any]
    weights: dict[int, dict[str, Tensor]]
    """The parameters by name, for each number of steps."""
    moments: list[int]
    """The number of steps at each of `MOMENTS`."""


def train(run: Run, options: Options) -> TrainedModel:
    """
    ## One training run

    Copies the weights at every evaluation. Afterwards, evaluates all of them again on the whole held-out
    text: the page shows the learning curve and the moments in one figure, so they must be measured in the
    same way.
    """
    stages = parse_schedule(options.schedule)
    with run.reading_text():
        corpus = load_corpus(options.corpus)
        text = MaskedText(
            corpus,
            character_tokenizer(corpus.train),
            longest=stages[-1].length,
            batch_tokens=options.batch_tokens,
            max_position_embeddings=options.max_position_embeddings,
            mlm_probability=options.mlm_probability,
            generator=run.generator,
        )
    tokens = len(text.tokenizer.encode(TEXT).ids)
    if tokens > options.max_position_embeddings:
        raise ValueError(
            f"the sentence for the pictures has {tokens} tokens but max_position_embeddings is "
            f"{options.max_position_embeddings}; use more positions"
        )
    config = options.model_config(vocab_size=text.vocab_size, intermediate_size=4 * options.hidden_size)
    model = BertForMaskedLM(config)
    details = {
        "vocabulary": f"{text.vocab_size:,} characters",
        "length": " then ".join(str(stage.length) for stage in stages) + " characters",
        "masked": f"{options.mlm_probability:.0%} in training, 15% of the held-out text",
    }
    trainer = run.trainer(model, text, "a masked language model", details)
    weights, moments = {}, []

    for step in trainer.steps(evaluate_at=MOMENTS):  # budget, clock, Ctrl-C
        length = length_at(stages, step.progress)  # the curriculum, or always the full length
        batch = text.batch(length)  # random windows at random positions, masked
        for part in step.micro_batches(batch):
            with step.autocast():  # bfloat16 where that is fast
                output = trainer.parallel(**part)
            accuracy = masked_accuracy(output.logits, output.labels, part["num_items_in_batch"])
            step.backward(output.loss, accuracy=accuracy)
        step.update()  # clip, refuse NaN, AdamW, learning rate
        if step.evaluation_due:
            weights[step.number] = {n: p.detach().cpu().clone() for n, p in model.named_parameters()}
            run.log(step, evaluate_masked_lm(trainer, text.held_out, tokens=16_384))
        if step.at_milestone:
            moments.append(step.number)
            run.show_predictions(*text.samples)

    result = evaluate_masked_lm(trainer, text.held_out)
    run.finish(lambda: result)
    record = run.record(result)
    curves: dict[str, list[list[float]]] = {"valid.loss": [], "valid.accuracy": []}
    for number, state in weights.items():
        model.load_state_dict(state)
        for name, value in evaluate_masked_lm(trainer, text.held_out).items():
            curves[f"valid.{name}"].append([number, round(value, 6)])
    record["history"] |= curves
    page = Trainer(model, options.training_arguments(), text.generator, torch.device("cpu"), bfloat16=False)
    return TrainedModel(model, text, page, record, weights, moments)


def fingerprints(record: dict[str, Any]) -> dict[str, Callable[[], Fingerprint]]:
    """Returns one function for each of the two runs, which computes its fingerprint."""
    values = record["configuration"]
    options = Options(**{f.name: values[f.name] for f in fields(Options) if f.name in values})
    longest = str(parse_schedule(options.schedule)[-1].length)
    runs = {SHORT: options, FIXED: replace(options, schedule=longest)}
    return {arm: partial(take_fingerprint, train, arm_options, "live") for arm, arm_options in runs.items()}


def loss_curve(record: dict[str, Any]) -> list[list[float]]:
    """Returns pairs of seconds and held-out loss."""
    seconds = dict(record["history"]["seconds"])
    return [[round(seconds[step], 1), round(loss, 4)] for step, loss in record["history"]["valid.loss"]]


def write_moments(folder: Path, arm: str, trained_model: TrainedModel) -> list[dict[str, Any]]:
    """
    ## A file for each moment

    Writes the weights at each moment, and returns the entries for `model.json`. Their loss is that of the
    rounded weights, computed as on the page. Afterwards the model has the weights of the last file.
    """
    entries = []
    seconds = dict(trained_model.record["history"]["seconds"])
    for number, step in enumerate(trained_model.moments, 1):
        trained_model.model.load_state_dict(trained_model.weights[step])
        trained_model.model.load_state_dict(to_float16(trained_model.model))
        result = evaluate_masked_lm(trained_model.page, trained_model.text.held_out)
        entries.append(
            {
                "arm": arm,
                "seconds": round(seconds[step], 1),
                "steps": step,
                **{name: round(value, 4) for name, value in result.items()},
                **write_weights(folder / f"{arm.replace(' ', '-')}-{number}.bin", trained_model.model),
            }
        )
    return entries


def print_moments(entries: list[dict[str, Any]]) -> None:
    """Prints the held-out loss of the weights in each file."""
    table = Table(box=None, padding=(0, 2), header_style="dim")
    for column in ("lengths", "seconds", "steps", "loss (nats)", "accuracy", "kilobytes"):
        table.add_column(column, justify="left" if column == "lengths" else "right")
    for entry in entries:
        numbers = (f"{entry['seconds']:.0f}", f"{entry['steps']:,}", f"{entry['loss']:.3f}")
        table.add_row(entry["arm"], *numbers, f"{entry['accuracy']:.1%}", f"{entry['bytes'] / 1e3:.0f}")
    console.print(table)
    console.print()


def main(run: Run, options: Options) -> None:
    """Train two models for a web page, and write their weights at several moments to the folder --output."""
    if options.resume:
        raise ValueError("the weights of the earlier moments are lost; start over, without --resume")
    if launcher():
        raise ValueError("this experiment needs a single process; start it without torchrun")
    longest = parse_schedule(options.schedule)[-1].length
    folder = prepare_folder(options.output)
    run.is_resumable = False
    # One record contains both runs, so neither run writes its own.
    run.options = replace(options, record=None)
    fixed_options = replace(run.options, schedule=str(longest))

    short = train(run, options)
    fixed_run = Run(fixed_options, run.experiment)
    with fixed_run.resources:
        fixed = train(fixed_run, fixed_options)

    short.model.load_state_dict(short.weights[short.moments[-1]])
    short.model.eval()
    rounding = {
        "probability": float(f"{rounding_error(short.model):.2g}"),
        "loss_before": round(evaluate_masked_lm(short.page, short.text.held_out)["loss"], 4),
    }
    entries = [*write_moments(folder, FIXED, fixed), *write_moments(folder, SHORT, short)]
    curves = {SHORT: loss_curve(short.record), FIXED: loss_curve(fixed.record)}
    write_web(folder, short.model, short.text.tokenizer, entries, curves)
    record = short.record | {
        "command": f"{short.record['command']} --output {shlex.quote(display_path(folder))}",
        "fixed": {name: fixed.record[name] for name in ("history", "result")},
        "checkpoints": entries,
        "rounding": rounding,
        "pictures": make_pictures(short.model, short.text),
    }
    record["result"]["wall_seconds"] = time.monotonic() - run.start_time
    if options.record is not None:
        write_whole(options.record, json.dumps(record, separators=(",", ":")))
    print_moments(entries)
    console.print(f"  for a page  {display_path(folder)}\n")


if __name__ == "__main__":
    launch(main, Options)
