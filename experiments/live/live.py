r"""
# What a model knows after a few seconds

What does a masked language model know after a few seconds of training, and what after three minutes? This
script trains three models, for three minutes each unless you choose otherwise. Two are BERTs: one starts with
short sequences, as in `curriculum.py`, and one trains at the full length from the start. The third is the
modern encoder of `modern.py`, also at the full length. The script saves the weights of each at four moments.
A page of the site loads them, so you can try the model as it was at each moment.

The weights have to be downloaded before you can use the page, so the model must be small. The weights are
stored in float16, and one file should have a few hundred kilobytes. So the model is narrower than that of
`mlm_tiny.py`, and has two layers instead of four. All else is equal. In unrecorded trials among the sizes
that fit, wider models with fewer layers learned more in the same time. Their steps take less time. The modern
encoder has as many parameters as BERT, and is otherwise trained as in `mlm_modern.py`.

The script also measures four properties of the first model's final weights, which `pictures.py` explains. It
measures them on the rounded weights, because the page runs those.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))  # Find the package without installing it.
from labml_bert.run import preflight  # noqa: F401  # isort: skip

import contextlib
import json
import shlex
import time
from collections.abc import Callable
from dataclasses import dataclass, field, fields, replace
from functools import partial
from typing import Any, Literal, NamedTuple, get_args

import torch
from rich.table import Table
from torch import Tensor

from experiments.live.pictures import TEXT, make_pictures
from labml_bert.checksums import file_sha256, parse_sealed
from labml_bert.data.corpora import load_corpus
from labml_bert.data.curriculum import length_at, parse_schedule
from labml_bert.data.masked_text import MaskedText
from labml_bert.data.tokenizers import character_tokenizer
from labml_bert.export import (
    FORMAT,
    check_is_web_export,
    describe_weights,
    prepare_folder,
    rounding_error,
    to_float16,
    write_web,
    write_weights,
)
from labml_bert.files import lock_output, whole_file
from labml_bert.mlm import masked_accuracy
from labml_bert.models import BertForMaskedLM
from labml_bert.modern import ModernBertForMaskedLM
from labml_bert.run.experiment import Run
from labml_bert.run.fingerprint import Fingerprint, take_fingerprint
from labml_bert.run.launch import launch
from labml_bert.run.options import OPERATIONAL, RunOptions, check_outputs
from labml_bert.run.record import write_record
from labml_bert.run.terminal import not_yet_written
from labml_bert.stdout import console, display_path, explain
from labml_bert.training.checkpoint import load_named_weights, named_weights
from labml_bert.training.distributed import check_single_process
from labml_bert.training.evaluation import evaluate_masked_lm
from labml_bert.training.trainer import Trainer

# The three arms. You can switch between them on the page, which starts with the first.
Arm = Literal["short to long", "fixed length", "modern"]
SHORT, FIXED, MODERN = ARMS = get_args(Arm)
# The record is that of the first arm. These are its entries for the others, and what they contain.
ENTRIES = {FIXED: "fixed", MODERN: "modern"}
CONTENTS = ("command", "date", "commit", "hardware", "parameters", "history", "result")
# Fractions of the budget: with three minutes, they are 2, 45, 90 and 180 seconds. At the first moment, the
# first model knows only how frequent each character is. At the second, it uses the neighbors. At the last
# two, it knows words.
MOMENTS = (2 / 180, 45 / 180, 90 / 180, 1.0)


@dataclass(frozen=True)
class Options(RunOptions):
    """
    ## The values, and why

    The sizes are small enough for a page. The reasons for all other values are in `mlm_tiny.py`. Where the
    modern encoder differs, `arm_options` has its values.
    """

    schedule: str = "16:3,32:1,64:1,128:3"
    """Sequence lengths of the first model and their weights in the budget. The other models train only at
    the last of these lengths."""
    batch_tokens: int = 2048
    """Tokens per step at every length, rounded down to whole rows."""
    mlm_probability: float = 0.3
    """Fraction of tokens to predict in training. Evaluations always mask 15%."""
    hidden_size: int = 80
    """Width of the model. With two layers, this gives 182,000 weights, or 365 kB in float16."""
    num_hidden_layers: int = 2
    """Number of blocks. In unrecorded trials among sizes that are small enough, wider models with
    fewer blocks learned more in three minutes."""
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
    arm: Literal[Arm, "all"] = field(default="all", metadata=OPERATIONAL)
    """Train only this model, and keep the others that are in --output and --record."""
    output: Path = field(default=Path("logs/live/web"), metadata=OPERATIONAL)
    """Folder for the files that the page loads."""


def arm_options(arm: str, options: Options) -> Options:
    """
    Returns the values of one arm. The first arm has those of the command line. The others train at the full
    length, the modern encoder with the optimizer and the learning rate of `mlm_modern.py`.
    """
    if arm == SHORT:
        return options
    options = replace(options, schedule=str(parse_schedule(options.schedule)[-1].length))
    return replace(options, optimizer="muon", learning_rate=1e-2) if arm == MODERN else options


def make_model(arm: str, options: Options, vocab_size: int) -> BertForMaskedLM | ModernBertForMaskedLM:
    """
    ## Two kinds of model, one size

    BERT's feed-forward network is four times as wide as the hidden states, as in the paper. A gated network
    of the same width would have half as many parameters again. With a factor of three instead, both models
    have 182,000 parameters.
    """
    D = options.hidden_size
    if arm != MODERN:
        return BertForMaskedLM(options.model_config(vocab_size=vocab_size, intermediate_size=4 * D))
    dropouts = ("embedding_dropout", "attention_dropout", "mlp_dropout")
    config = options.modern_config(
        vocab_size=vocab_size,
        intermediate_size=3 * D,
        global_attn_every_n_layers=1,  # a local layer would see nearly all of such a short sequence
        **dict.fromkeys(dropouts, options.hidden_dropout_prob),
    )
    return ModernBertForMaskedLM(config)


class TrainedModel(NamedTuple):
    """One of the models, with its weights at each evaluation during training."""

    model: BertForMaskedLM | ModernBertForMaskedLM
    text: MaskedText
    page: Trainer
    """A trainer that computes in float32 on the CPU, as the page does."""
    record: dict[str, Any]
    weights: dict[int, dict[str, Tensor]]
    """The parameters by name, for each number of steps."""
    moments: list[int]
    """The number of steps at each of `MOMENTS`."""


def train(run: Run, options: Options, arm: str) -> TrainedModel:
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
    model = make_model(arm, options, text.vocab_size)
    details = {
        "vocabulary": f"{text.vocab_size:,} characters",
        "length": " then ".join(str(stage.length) for stage in stages) + " characters",
        "masked": f"{options.mlm_probability:.0%} in training, 15% of the held-out text",
    }
    trainer = run.trainer(model, text, f"a masked language model, {arm}", details)
    weights, moments = {}, []

    for step in trainer.steps(evaluate_at=MOMENTS):  # budget, clock, Ctrl-C
        length = length_at(stages, step.progress)  # the curriculum, or always the full length
        batch = text.batch(length)  # random windows, with masks and random position offsets
        for part in step.micro_batches(batch):
            with step.autocast():  # bfloat16 where that is fast
                output = trainer.parallel(**part)
            accuracy = masked_accuracy(output.logits, output.labels, part["num_items_in_batch"])
            step.backward(output.loss, accuracy=accuracy)
        step.update()  # clip, refuse NaN, optimizer
        if step.evaluation_due:
            weights[step.number] = {n: w.detach().cpu().clone() for n, w in named_weights(model).items()}
            run.log(step, evaluate_masked_lm(trainer, text.held_out, tokens=16_384))
        if step.milestone:
            moments.append(step.number)
            run.show_predictions(*text.samples)

    result = evaluate_masked_lm(trainer, text.held_out)
    run.finish(lambda: result)
    record = run.record(result)
    curves: dict[str, list[list[float]]] = {"valid.loss": [], "valid.accuracy": []}
    for number, state in weights.items():
        load_named_weights(model, state)
        for name, value in evaluate_masked_lm(trainer, text.held_out).items():
            curves[f"valid.{name}"].append([number, round(value, 6)])
    record["history"] |= curves
    page = Trainer(
        model, options.training_arguments(), text.generator, torch.device("cpu"), precision="float32"
    )
    return TrainedModel(model, text, page, record, weights, moments)


def fingerprints(record: dict[str, Any]) -> dict[str, Callable[[], Fingerprint]]:
    """Returns a function for each run that computes its fingerprint."""
    values = record["configuration"]
    options = Options(**{f.name: values[f.name] for f in fields(Options) if f.name in values})
    return {
        arm: partial(take_fingerprint, partial(train, arm=arm), arm_options(arm, options), "live")
        for arm in ARMS
    }


def weights_names(*arms: str) -> list[str]:
    """Returns the names of the files with the weights of these arms, at most one for each of `MOMENTS`."""
    return [f"{arm.replace(' ', '-')}-{number}.bin" for arm in arms for number in range(1, len(MOMENTS) + 1)]


def write_moments(
    folder: Path, arm: str, trained_model: TrainedModel, stack: contextlib.ExitStack
) -> list[dict[str, Any]]:
    """
    ## A file for each moment

    Writes the weights at each moment, and returns the entries for `model.json`. Their loss is that of the
    rounded weights, computed as on the page. Afterwards the model has the weights of the last file. Until
    `stack` is closed, the files have temporary names.
    """
    entries = []
    seconds = dict(trained_model.record["history"]["seconds"])
    for file, step in zip(weights_names(arm), trained_model.moments, strict=False):
        load_named_weights(trained_model.model, trained_model.weights[step])
        load_named_weights(trained_model.model, to_float16(trained_model.model))
        result = evaluate_masked_lm(trained_model.page, trained_model.text.held_out)
        part = stack.enter_context(whole_file(folder / file))
        entries.append(
            {
                "arm": arm,
                "seconds": round(seconds[step], 1),
                "steps": step,
                **{name: round(value, 4) for name, value in result.items()},
                "file": file,
                **write_weights(part, trained_model.model),
            }
        )
    return entries


def print_moments(entries: list[dict[str, Any]]) -> None:
    """Prints the held-out loss of the weights in each file."""
    table = Table(box=None, padding=(0, 2), header_style="dim")
    for column in ("model", "seconds", "steps", "loss (nats)", "accuracy", "kilobytes"):
        table.add_column(column, justify="left" if column == "model" else "right")
    for entry in entries:
        numbers = (f"{entry['seconds']:.0f}", f"{entry['steps']:,}", f"{entry['loss']:.3f}")
        table.add_row(entry["arm"], *numbers, f"{entry['accuracy']:.1%}", f"{entry['bytes'] / 1e3:.0f}")
    console.print(table)
    console.print()


def read_other_arms(options: Options, folder: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """
    ## Training only one model

    Returns the existing record and the descriptions of the existing weights. The new model replaces its
    predecessor in both.

    Raises `ValueError` if they can't be read or don't belong together, or if the other models were trained on
    other text or with other values. Only the budget may differ.
    """
    if options.arm == "all":
        return {}, {}
    if options.record is None:
        raise ValueError("--arm adds a model to a record; name the record with --record")
    values = {**options.configuration(), "corpus": load_corpus(options.corpus).sha256}
    try:
        record: dict[str, Any] = parse_sealed(options.record.read_text("utf-8"))
        metadata: dict[str, Any] = parse_sealed((folder / "model.json").read_text("utf-8"))
        # An option that was added after the record was written isn't in it. The run had its default.
        saved = {**Options().configuration(), **record["configuration"], "corpus": record["corpus"]["sha256"]}
        # Compare the JSON, because in Python, `0 == 0.0 == False`.
        different = [name for name in values if json.dumps(values[name]) != json.dumps(saved[name])]
        if others := {*different} - {"minutes", "steps", "corpus"}:
            name = min(others)
            raise ValueError(f"{name} is {values[name]}, but {saved[name]} in {options.record}")
        if record["checkpoints"] != metadata["checkpoints"] or metadata["format"] != FORMAT:
            raise ValueError(f"{options.record} and {folder} have different models")
        if {*metadata["arms"]} != {*ARMS}:
            raise ValueError(f"model.json in {folder} must have these models: {', '.join(ARMS)}")
        for arm in ARMS:
            if arm != options.arm:
                check_arm(arm, options, folder, record, metadata)
        if "corpus" in different:
            raise ValueError(f"the text isn't that of {options.record}")
        record.setdefault("fingerprints", {}).pop(options.arm, None)
        return record, metadata["arms"]
    except KeyError as error:
        raise ValueError(f"{options.record} has no {error}; train all models, without --arm") from None
    except (OSError, ValueError, TypeError, AttributeError) as error:
        reason = explain(error)
        raise ValueError(f"cannot keep the other models: {reason}; train all models, without --arm") from None


def check_arm(
    arm: str, options: Options, folder: Path, record: dict[str, Any], metadata: dict[str, Any]
) -> None:
    """
    Raises `ValueError`, `KeyError` or `TypeError` if the weights of `arm`, their description in `metadata`
    and their `record` don't belong together.
    """
    part = record if arm == SHORT else record[ENTRIES[arm]]
    model = make_model(arm, arm_options(arm, options), len(metadata["tokens"]))
    curve = [[step, round(loss, 4)] for step, loss in part["history"]["valid.loss"]]
    entries = [entry for entry in metadata["checkpoints"] if entry["arm"] == arm]
    names = [entry["file"] for entry in entries]
    is_same = (
        metadata["arms"][arm] == {**describe_weights(model), "curve": curve}
        and names == weights_names(arm)[: len(names)]
        and [entry["steps"] for entry in entries][-1:] == [part["result"]["steps"]]
    )
    if not is_same:
        raise ValueError(f"{options.record} and {folder} have different models")
    for entry in entries:
        path = folder / entry["file"]
        if not path.is_file() or file_sha256(path) != entry["sha256"]:
            raise ValueError(f"{path} is missing or damaged")
        for name in ("seconds", "steps", "loss", "accuracy", "bytes"):
            if type(entry[name]) not in (int, float) or not abs(entry[name]) < 1e15:  # NaN < 1e15 is false
                raise ValueError(f"in {options.record}, {name} of {path.name} is not a number, or not finite")


def main(run: Run, options: Options) -> None:
    """Train three models for a web page, and write their weights at several moments to the folder
    --output."""
    if options.resume:
        raise ValueError("the weights of the earlier moments are lost; start over, without --resume")
    check_single_process()
    check_outputs(options, ["output"])
    for arm in ARMS:
        make_model(arm, arm_options(arm, options), vocab_size=10)  # refuses sizes before the first run
    folder = prepare_folder(options.output, "model.json", *weights_names(*ARMS))
    run.is_resumable = False
    with lock_output(folder):
        train_and_write(run, options, folder)


def train_and_write(run: Run, options: Options, folder: Path) -> None:
    """
    Trains the models of `--arm`, and writes them to `folder`. The caller must hold the lock of the folder.

    Raises `ValueError` if the folder has a file of another program, or if `read_other_arms` refuses a file.
    """
    check_is_web_export(folder, *weights_names(*ARMS))
    record, descriptions = read_other_arms(options, folder)
    trained_models: dict[str, TrainedModel] = {}
    for arm in ARMS if options.arm == "all" else (options.arm,):
        # One record contains all runs, so no run writes its own.
        values = replace(arm_options(arm, options), record=None)
        arm_run = Run(values, run.experiment) if trained_models else run
        arm_run.options = values
        with arm_run.resources, not_yet_written(partial(getattr, arm_run, "path")):
            trained_models[arm] = train(arm_run, values, arm)

    words = ["--output", display_path(folder), *(["--arm", options.arm] if options.arm != "all" else [])]
    command = f"{next(iter(trained_models.values())).record['command']} {shlex.join(words)}"
    old = record.get("checkpoints", [])
    checkpoints = {arm: [entry for entry in old if entry["arm"] == arm] for arm in reversed(ARMS)}
    # All files are on the disk before the first of them replaces an older one.
    with contextlib.ExitStack() as stack:
        for arm, (model, text, page, result, weights, moments) in trained_models.items():
            checkpoints[arm] = write_moments(folder, arm, trained_models[arm], stack)
            curve = [[step, round(loss, 4)] for step, loss in result["history"]["valid.loss"]]
            descriptions[arm] = {**describe_weights(model), "curve": curve}
            result["command"] = command
            if arm != SHORT:
                record[ENTRIES[arm]] = {name: result[name] for name in CONTENTS}
                continue
            assert isinstance(model, BertForMaskedLM)
            result["pictures"] = make_pictures(model, text)
            load_named_weights(model, weights[moments[-1]])
            result["rounding"] = {
                "probability": float(f"{rounding_error(model):.2g}"),
                "loss_before": round(evaluate_masked_lm(page, text.held_out)["loss"], 4),
            }
            result["result"]["wall_seconds"] = time.monotonic() - run.start_time
            record |= result
        record["checkpoints"] = [entry for entries in checkpoints.values() for entry in entries]
        write_web(folder, text.tokenizer, descriptions, record["checkpoints"])
    if options.record is not None:
        run.record_path = write_record(options.record, record)
    print_moments(record["checkpoints"])
    console.print(f"  for a page  {display_path(folder)}\n")


if __name__ == "__main__":
    launch(main, Options)
