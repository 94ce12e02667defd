"""
# One run, from the command line to the record

What surrounds the training, whatever is trained? Options are read and checked, a folder is made, a header
says what will happen, the loop runs under a tracker, and at the end there is a result, a model that
`fill_mask` and `transformers` can load, and, if asked for, a record that this site quotes.

An experiment gives its `Job`: the parts to train and what to say of them.
"""

import argparse
import json
import os
import shlex
import string
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, Protocol, TypeVar, get_type_hints

import torch
from tokenizers import Tokenizer
from torch import Tensor

from labml_bert.baselines.ngrams import Floor
from labml_bert.bert import BertConfig
from labml_bert.data.corpora import Corpus
from labml_bert.data.tokenizers import save_tokenizer
from labml_bert.files import lock, write_whole
from labml_bert.models import BertPreTrainedModel
from labml_bert.run.record import check_record, record_head
from labml_bert.run.terminal import (
    OneLineParser,
    ProgressLine,
    bad_input_ends_here,
    command,
    console,
    header,
    printable,
    results_table,
    run_ends_well,
    shown,
)
from labml_bert.training.distributed import (
    first_before_others,
    from_first,
    leave,
    only_first_speaks,
    rank,
    start,
    world_size,
)
from labml_bert.training.trainer import (
    Trainer,
    TrainingArguments,
    choose_device,
    load_checkpoint,
    read_metrics,
    tracked,
)


@dataclass(frozen=True)
class RunOptions:
    """
    ## What every run can choose

    An experiment adds its own. All of them decide the result, and nothing else does. They are saved with
    the run, and a run goes on only with what it was started with. The values are for characters.
    """

    experiment: str
    corpus: str = "python-docs"
    minutes: float | None = 3.0
    steps: int | None = None
    seed: int = 0
    vocab_size: int = 8192
    schedule: str = "16:3,32:1,64:1,128:3"
    batch_tokens: int = 2048
    hidden_size: int = 128
    num_hidden_layers: int = 4
    num_attention_heads: int = 4
    hidden_dropout_prob: float = 0.0
    initializer_range: float = 0.04
    learning_rate: float = 3e-3
    warmup_ratio: float = 0.05
    weight_decay: float = 0.05
    adam_beta2: float = 0.98
    precision: str = "auto"

    def model_config(self, vocab_size: int, max_position_embeddings: int) -> BertConfig:
        """
        The sizes of the model; a small text may give a smaller vocabulary than was asked for.

        Raises `ValueError` where they cannot work.
        """
        return BertConfig(
            vocab_size=vocab_size,
            hidden_size=self.hidden_size,
            num_hidden_layers=self.num_hidden_layers,
            num_attention_heads=self.num_attention_heads,
            intermediate_size=4 * self.hidden_size,
            hidden_dropout_prob=self.hidden_dropout_prob,
            attention_probs_dropout_prob=self.hidden_dropout_prob,
            max_position_embeddings=max_position_embeddings,
            initializer_range=self.initializer_range,
        )

    def training_arguments(self, adam_bias_correction: bool = True) -> TrainingArguments:
        """Raises `ValueError` where one makes no sense."""
        return TrainingArguments(
            steps=self.steps,
            minutes=self.minutes,
            learning_rate=self.learning_rate,
            warmup_ratio=self.warmup_ratio,
            weight_decay=self.weight_decay,
            adam_beta2=self.adam_beta2,
            adam_bias_correction=adam_bias_correction,
        )


HELP = {
    "corpus": "python-docs, tiny-shakespeare, wikitext-2, wikitext-103, or a UTF-8 file or folder",
    "minutes": "how long to train",
    "steps": "train so many steps instead of minutes; such a run is repeatable to the bit",
    "seed": "of all random numbers",
    "vocab_size": "size of the vocabulary; characters need none",
    "schedule": "lengths of the sequences in turn; 16:1,128:3 gives 128 three times the share",
    "batch_tokens": "tokens in a step, padding included, at every length",
    "mlm_probability": "share of the tokens to predict in training; the evaluation always takes 0.15",
    "hidden_size": "width of the model; the wide layer is four times this",
    "num_hidden_layers": "number of blocks",
    "num_attention_heads": "heads in each block; must divide the hidden size",
    "max_position_embeddings": "longest sequence that the model can read",
    "hidden_dropout_prob": "dropout, in the attention weights too",
    "initializer_range": "spread of the initial weights; the published 0.02 goes with a width of 768",
    "learning_rate": "its peak",
    "warmup_ratio": "share of the budget in which the rate rises to its peak",
    "weight_decay": "of matrices; biases and norms have none",
    "adam_beta2": "memory of Adam's second moment",
    "precision": "of the matrix products; auto is bfloat16 where the machine multiplies it in hardware",
}
PRECISIONS = {"auto": None, "bfloat16": True, "float32": False}

Options = TypeVar("Options", bound=RunOptions)


class Job(Protocol):
    """What an experiment trains, and what it says of it."""

    corpus: Corpus
    tokenizer: Tokenizer
    arguments: TrainingArguments
    # Its state is the position in the data.
    generator: torch.Generator
    # What decides the run, with what it met: a text that changed since is not the same run.
    configuration: dict[str, Any]
    # What counting reaches on the held-out text.
    floors: list[Floor]
    batch_tokens: int
    # Shares of the budget after which the model shows what it can do, and the name of what ended there.
    marks: list[tuple[float, str]]
    # A sentence for `fill_mask`.
    example: str

    @property
    def model(self) -> BertPreTrainedModel:
        """What is trained."""

    def describe(self) -> tuple[str, dict[str, str]]:
        """A title and the rows of the header."""

    def length(self, progress: float) -> int:
        """Tokens in a sequence at that share of the budget."""

    def next_batch(self, progress: float) -> dict[str, Tensor]:
        """The arguments of the model for one step."""

    def metrics(self, output: Any, batch: dict[str, Tensor]) -> dict[str, Tensor]:
        """Scalars to watch beside the loss; `accuracy` is one. Those of parts of a batch add up."""

    def evaluate(self, trainer: Trainer, quick: bool = False) -> dict[str, float]:
        """`loss` and `accuracy` on held-out text, or, if `quick`, on a first part of it."""

    def show_samples(self, trainer: Trainer) -> None:
        """Prints what the model can do by now."""

    def conclude(self, result: dict[str, float]) -> None:
        """Prints what the table of the result does not say."""


def parse(
    defaults: Options,
    description: str,
    argv: list[str] | None,
    helps: dict[str, str] | None = None,
    choices: dict[str, list[str]] | None = None,
) -> tuple[Options, argparse.Namespace]:
    """
    ## The command line

    Every field of the options is one. What is not given comes from the run that is resumed, or from
    `defaults`. `helps` explains the fields that `HELP` does not, `choices` lists the values of some.
    """
    parser = OneLineParser(description=description, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    for field in fields(defaults):
        if field.name == "experiment":
            continue
        default = getattr(defaults, field.name)
        kind = {"minutes": float, "steps": int}.get(field.name) or type(field.default)
        says = {**HELP, **(helps or {})}[field.name] + ("" if default is None else f" (default: {default})")
        parser.add_argument(
            f"--{field.name.replace('_', '-')}",
            type=kind,
            default=argparse.SUPPRESS,
            metavar=kind.__name__.upper(),
            choices={"precision": [*PRECISIONS], **(choices or {})}.get(field.name),
            help=says,
        )
    parser.add_argument("--device", default="auto", help="cpu, cuda, or the GPU if there is one")
    parser.add_argument("--runs", type=Path, default=Path("logs"), help="folder for the folders of runs")
    parser.add_argument("--checkpoint-seconds", type=float, default=30.0, help="work that a kill may lose")
    parser.add_argument(
        "--gradient-accumulation-steps", type=int, default=1, help="turns in which a step is done, for memory"
    )
    parser.add_argument("--torch-compile", action="store_true", help="compile the model; for a GPU")
    parser.add_argument("--resume", type=Path, metavar="RUN", help="go on with the run in this folder")
    parser.add_argument("--record", type=Path, metavar="FILE", help="write the result as JSON")
    with only_first_speaks():
        given = parser.parse_args(argv)
    names = {field.name for field in fields(defaults)}
    explicit = {key: value for key, value in vars(given).items() if key in names}
    if "steps" in explicit and "minutes" in explicit:
        parser.error("give --steps or --minutes, not both")
    if "steps" in explicit:
        explicit["minutes"] = None
    elif "minutes" in explicit:
        explicit["steps"] = None
    if "corpus" in explicit and os.path.exists(explicit["corpus"]):
        # A run can then be resumed from another folder.
        explicit["corpus"] = os.path.abspath(explicit["corpus"])
    with bad_input_ends_here():
        if given.resume:
            saved = load_checkpoint(given.resume)[0]["configuration"]
            if saved.get("experiment") != defaults.experiment:
                raise ValueError(
                    f"{given.resume} is a run of {saved.get('experiment')}, not of {defaults.experiment}"
                )
            kinds = get_type_hints(type(defaults))
            for key in names & saved.keys():
                if not isinstance(saved[key], kinds[key]):
                    raise ValueError(
                        f"{given.resume} has {key} = {saved[key]!r}, which no run has; start a new run"
                    )
            defaults = replace(defaults, **{key: value for key, value in saved.items() if key in names})
        return replace(defaults, **explicit), given


def example(texts: list[str], letters: bool, longest: int) -> str:
    """
    A line of the text with its middle word hidden, or, for a model of characters and for a script without
    blanks, one letter of it. A model of `longest` positions can read it, as a token is a character at least.
    """
    lines = [" ".join(line.split()) for text in texts for line in text.splitlines()]
    # Room for the signs around a text, and short enough for a line of the terminal.
    most = min(60, longest - 2)
    # No quotes for the shell to mind.
    signs = {*string.punctuation, *string.digits}
    fitting = [line for line in lines if most // 2 <= len(line) <= most and not signs & {*line}]
    line = min(fitting or lines, key=lambda line: abs(len(line) - 3 * most // 4))[:most]
    words = line.split(" ")
    middle = len(words) // 2
    if letters or len(words) < 4:
        at = len(" ".join(words[:middle])) + len(words[middle]) // 2
        return f"{line[:at]}[MASK]{line[at + 1 :]}"
    return " ".join([*words[:middle], "[MASK]", *words[middle + 1 :]])


def new_run_path(runs: Path, experiment: str) -> Path:
    """
    Makes the folder `runs/experiment/time`.

    Raises `ValueError` where it cannot be written.
    """
    base = runs / experiment / time.strftime("%Y%m%d-%H%M%S")
    path, n = base, 1
    try:
        base.parent.mkdir(parents=True, exist_ok=True)
        while True:
            try:
                path.mkdir()
                return path
            except FileExistsError:
                n += 1
                path = base.with_name(f"{base.name}-{n}")
    except OSError as error:
        raise ValueError(
            f"cannot write runs to {runs}: {error.strerror}; choose another folder with --runs"
        ) from None


def held_alone(run_path: Path) -> AbstractContextManager[object]:
    """
    The run's folder, for this process alone until the end of the block.

    Raises `ValueError` where another process trains in it, or it cannot be written.
    """
    try:
        held = lock(run_path)
        for left in run_path.rglob("*.part"):
            # Half a file of a run that was killed.
            left.unlink()
        return held
    except BlockingIOError:
        raise ValueError(f"another process is training in {run_path}; wait until it ends") from None
    except OSError as error:
        raise ValueError(
            f"cannot write to {run_path}: {error.strerror}; make it writable, or copy it and resume the copy"
        ) from None


def check_parts(job: Job, turns: int) -> None:
    """Raises `ValueError` where a step has fewer rows than the parts in which it is to be done."""
    longest = job.length(1.0)
    rows, parts = job.batch_tokens // longest, world_size() * turns
    if rows < parts:
        raise ValueError(
            f"a step has {rows} sequences of length {longest}, too few for {parts} parts ({world_size()} "
            f"processes, {turns} turns); raise the batch or take fewer"
        )


def run(
    defaults: Options,
    make_job: Callable[[Options, torch.device], Job],
    options: Options,
    given: argparse.Namespace,
    resumable: bool = True,
) -> None:
    """
    ## The run

    Everything that can be refused is refused before the first step, and before anything is written.
    `options` and `given` are what `parse` returned. An experiment that needs more than a checkpoint to go on
    is not `resumable`.
    """
    began = time.monotonic()
    with bad_input_ends_here():
        if given.record is not None and rank() == 0:
            check_record(given.record)
        if not 0 <= options.seed < 2**63:
            raise ValueError(f"seed is {options.seed}; it must be from 0 to 2^63 - 1")
        device = choose_device(given.device)
        start(device)
        torch.manual_seed(options.seed)
        with console.status("reading the text"), first_before_others():
            job = make_job(options, device)
        arguments = replace(
            job.arguments,
            checkpoint_seconds=given.checkpoint_seconds,
            gradient_accumulation_steps=given.gradient_accumulation_steps,
            torch_compile=given.torch_compile,
        )
        check_parts(job, arguments.gradient_accumulation_steps)
        run_path = from_first(lambda: given.resume or new_run_path(given.runs, options.experiment))
        held = held_alone(run_path) if rank() == 0 else nullcontext()
        bfloat16 = PRECISIONS[options.precision]
        trainer = Trainer(job.model, arguments, run_path, job.configuration, job.generator, device, bfloat16)
        if given.resume:
            trainer.resume()
        if rank() == 0:
            write_whole(run_path / "tokenizer.json", job.tokenizer.to_str(pretty=True))

    title, rows = job.describe()
    budget = f"{options.steps:,} steps" if options.steps else f"{options.minutes:g} minutes"
    arithmetic = "bfloat16" if trainer.bfloat16 else "float32"
    processes = world_size()
    place = f"{processes} × {device.type}" if processes > 1 else device
    header(
        f"{options.experiment}: {title}",
        {
            "text": f"{sum(map(len, job.corpus.train)):,} characters, "
            f"{sum(map(len, job.corpus.valid)):,} held out",
            "training": f"{budget}, {arithmetic} on {place}, {job.batch_tokens:,} tokens a step",
            "model": f"{sum(p.numel() for p in job.model.parameters()):,} parameters, "
            f"{job.model.config.num_hidden_layers} layers, {job.model.config.hidden_size} wide",
            **rows,
            "run": shown(run_path),
        },
    )
    results_table(job.floors)

    line = ProgressLine(options.minutes, job.batch_tokens)
    marks = [mark for mark in job.marks if mark[0] > trainer.progress]
    tracking = tracked(run_path, job.configuration) if rank() == 0 else nullcontext()
    with held, run_ends_well(run_path, resumable), tracking:
        with line.live():
            for update in trainer.train(
                job.next_batch,
                job.metrics,
                lambda: job.evaluate(trainer, quick=True),
                tuple(share for share, _ in marks),
            ):
                line.show(update, job.length(update.progress))
                if marks and update.evaluation and update.progress >= marks[0][0] - 1e-6:
                    console.print(
                        f"\n  at {update.seconds:.0f} s, after {marks.pop(0)[1]}: held-out loss "
                        f"{update.evaluation['loss']:.3f}, right {update.evaluation['accuracy']:.0%}"
                    )
                    job.show_samples(trainer)
        trainer.parallel = trainer.model
        leave()
        if rank() > 0:
            return
        result = job.evaluate(trainer)
        job.model.save_pretrained(run_path / "model")
        save_tokenizer(job.tokenizer, run_path / "model")

    console.print()
    results_table(job.floors, Floor("this model", result["loss"], result["accuracy"]))
    job.conclude(result)
    if given.record is not None:
        record = run_record(options, defaults, job, trainer, result, time.monotonic() - began)
        with run_ends_well(run_path):
            write_whole(given.record, json.dumps(record, indent=1))
        console.print(f"  record      {shown(given.record)}")
    console.print(f"  run         {shown(run_path)}")
    console.print(f"  model       {shown(run_path / 'model')}\n\n  Try it:\n")
    # Without a name the newest run under logs/ answers, which is this one unless it went elsewhere.
    where = "" if run_path.parent.parent == Path("logs") else f"  --run {shlex.quote(shown(run_path))} \\\n"
    console.print(
        f"{command('-m', 'labml_bert.fill_mask')} \\\n{where}  {shlex.quote(printable(job.example))}\n"
    )


def run_record(
    options: RunOptions,
    defaults: RunOptions,
    job: Job,
    trainer: Trainer,
    result: dict[str, float],
    wall_seconds: float,
) -> dict[str, Any]:
    """
    ## The record

    A result with all that somebody needs to doubt or repeat it. Pages and charts quote these files.
    """
    # A path says where the file was on somebody's machine; the name and the sha256 say what it was.
    configuration = {**job.configuration, "corpus": job.corpus.name}
    changed = {
        field.name: job.corpus.name if field.name == "corpus" else value
        for field in fields(options)
        if (value := getattr(options, field.name)) != getattr(defaults, field.name) and value is not None
    }
    words = [word for key, value in changed.items() for word in (f"--{key.replace('_', '-')}", str(value))]
    arithmetic = "bfloat16" if trainer.bfloat16 else "float32"
    record: dict[str, Any] = record_head(options.experiment, words, trainer.device, arithmetic)
    record["hardware"]["processes"] = trainer.processes
    return record | {
        "configuration": configuration,
        "corpus": {
            "name": job.corpus.name,
            "sha256": job.corpus.sha256,
            "train_characters": sum(map(len, job.corpus.train)),
            "valid_characters": sum(map(len, job.corpus.valid)),
        },
        "parameters": sum(p.numel() for p in job.model.parameters()),
        "floors": [floor._asdict() for floor in job.floors],
        "history": {
            name: [[step, round(value, 6)] for step, value in points]
            for name, points in read_metrics(trainer.run_path).items()
        },
        "result": {
            **result,
            "steps": trainer.step,
            "training_seconds": trainer.seconds,
            "wall_seconds": wall_seconds,
        },
    }
