"""
# One run of a masked language model

From a text to a trained model: the parts of this package in the order in which a run needs them.
`experiments/mlm_tiny.py` and `experiments/mlm_words.py` are this, each with its own question and the
values that suit it.
"""

import argparse
import json
import os
import platform
import shlex
import subprocess
import time
from dataclasses import asdict, dataclass, fields, replace
from importlib.metadata import version
from itertools import accumulate
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from labml_bert.bert import BertConfig
from labml_bert.corpora import Corpus, load_corpus
from labml_bert.curriculum import Curriculum, parse_schedule
from labml_bert.floors import Floor, floors
from labml_bert.mlm import IGNORE, MaskedLMOutput, TokenMasker, masked_accuracy
from labml_bert.pretraining import BertForMaskedLM
from labml_bert.report import (
    ProgressLine,
    bad_input_ends_here,
    command,
    console,
    filled_lines,
    header,
    results_table,
    run_ends_well,
    shown,
)
from labml_bert.tokenizers import (
    SPECIAL_TOKENS,
    character_tokenizer,
    encode_corpus,
    special_token_ids,
    word_tokenizer,
)
from labml_bert.training import (
    Trainer,
    TrainingArguments,
    choose_device,
    load_checkpoint,
    read_metrics,
    tracked,
)


@dataclass(frozen=True)
class Options:
    """
    ## What can be chosen

    All that decides the result, and nothing else. It is saved with the run, and a run goes on only
    with what it was started with.
    """

    experiment: str
    corpus: str = "python-docs"
    tokenizer: str = "char"
    vocab_size: int = 8192
    schedule: str = "16:3,32:1,64:1,128:3"
    minutes: float | None = 3.0
    steps: int | None = None
    batch_tokens: int = 2048
    mlm_probability: float = 0.3
    hidden_size: int = 128
    num_hidden_layers: int = 4
    num_attention_heads: int = 4
    max_position_embeddings: int = 128
    hidden_dropout_prob: float = 0.0
    initializer_range: float = 0.04
    learning_rate: float = 3e-3
    warmup_ratio: float = 0.05
    weight_decay: float = 0.05
    adam_beta2: float = 0.98
    seed: int = 0


HELP = {
    "corpus": "python-docs, tiny-shakespeare, wikitext-2, wikitext-103, or a UTF-8 file or folder",
    "tokenizer": "what one token is",
    "vocab_size": "size of the vocabulary of words; characters need none",
    "schedule": "lengths of the sequences in turn; 16:1,128:3 gives 128 three times the share",
    "minutes": "how long to train",
    "steps": "train so many steps instead of minutes; such a run is repeatable to the bit",
    "batch_tokens": "tokens in a step, at every length",
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
    "seed": "of all random numbers",
}


def parse(defaults: Options, description: str, argv: list[str] | None) -> tuple[Options, argparse.Namespace]:
    """Reads the command line. Options not given come from the run that is resumed, or from `defaults`."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    for field in fields(Options):
        if field.name == "experiment":
            continue
        kind = {"minutes": float, "steps": int}.get(field.name) or type(field.default)
        default = getattr(defaults, field.name)
        parser.add_argument(
            f"--{field.name.replace('_', '-')}",
            type=kind,
            default=argparse.SUPPRESS,
            metavar=kind.__name__.upper(),
            choices=["char", "word"] if field.name == "tokenizer" else None,
            help=HELP[field.name] + ("" if default is None else f" (default: {default})"),
        )
    parser.add_argument("--device", default="auto", help="cpu, cuda, or the GPU if there is one")
    parser.add_argument("--runs", type=Path, default=Path("logs"), help="folder for the folders of runs")
    parser.add_argument("--checkpoint-seconds", type=float, default=30.0, help="work that a kill may lose")
    parser.add_argument("--resume", type=Path, metavar="RUN", help="go on with the run in this folder")
    parser.add_argument("--record", type=Path, metavar="FILE", help="write the result as JSON")
    given = parser.parse_args(argv)
    names = {field.name for field in fields(Options)}
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
            defaults = Options(**{key: value for key, value in saved.items() if key in names})
        return replace(defaults, **explicit), given


class Parts:
    """
    ## The parts, put together

    Raises `ValueError` where an option makes no sense, or the text is too short for it.
    """

    def __init__(self, options: Options, device: torch.device, checkpoint_seconds: float = 30.0):
        if not 0 <= options.seed < 2**63:
            raise ValueError(f"seed is {options.seed}; it must be from 0 to 2^63 - 1")
        if not 0 < options.mlm_probability <= 1:
            raise ValueError(f"mlm_probability is {options.mlm_probability}; it must be above 0, at most 1")
        torch.manual_seed(options.seed)
        # One generator for windows and masks: its state is the position in the data.
        self.generator = torch.Generator().manual_seed(options.seed)
        self.device = device
        stages = parse_schedule(options.schedule)
        self.arguments = TrainingArguments(
            steps=options.steps,
            minutes=options.minutes,
            learning_rate=options.learning_rate,
            warmup_ratio=options.warmup_ratio,
            weight_decay=options.weight_decay,
            adam_beta2=options.adam_beta2,
            checkpoint_seconds=checkpoint_seconds,
        )
        self.corpus: Corpus = load_corpus(options.corpus)
        if options.tokenizer == "word":
            self.tokenizer = word_tokenizer(self.corpus.train, options.vocab_size)
        else:
            self.tokenizer = character_tokenizer(self.corpus.train)
        self.special_ids = special_token_ids(self.tokenizer)
        self.config = BertConfig(
            vocab_size=self.tokenizer.get_vocab_size(),
            hidden_size=options.hidden_size,
            num_hidden_layers=options.num_hidden_layers,
            num_attention_heads=options.num_attention_heads,
            intermediate_size=4 * options.hidden_size,
            hidden_dropout_prob=options.hidden_dropout_prob,
            attention_probs_dropout_prob=options.hidden_dropout_prob,
            max_position_embeddings=options.max_position_embeddings,
            initializer_range=options.initializer_range,
        )
        train_ids = encode_corpus(self.tokenizer, self.corpus.train)
        valid_ids = encode_corpus(self.tokenizer, self.corpus.valid)
        self.curriculum = Curriculum(
            train_ids, stages, options.batch_tokens, options.max_position_embeddings, self.generator
        )
        self.length = stages[-1].length
        if len(valid_ids) < self.length:
            raise ValueError(
                f"the held-out tenth of the text has {len(valid_ids)} tokens, shorter than one sequence of "
                f"{self.length}; give more text or shorten the schedule"
            )
        self.floors: list[Floor] = floors(train_ids, valid_ids, self.config.vocab_size, self.special_ids)
        self.masker = self.make_masker(self.generator, options.mlm_probability)
        self.windows = valid_ids[: len(valid_ids) // self.length * self.length].view(-1, self.length)
        # The same masks at every evaluation of every run, or two results could not be compared.
        self.held_out = self.make_masker(torch.Generator().manual_seed(1))(self.windows)
        if (self.held_out.labels == IGNORE).all():
            raise ValueError("the held-out text has no token of the vocabulary to predict; give more text")
        self.model = BertForMaskedLM(self.config)
        # What decides the run, with what it met: a text that changed since is not the same run.
        self.configuration = {
            **asdict(options),
            "corpus_sha256": self.corpus.sha256,
            "model": asdict(self.config),
        }

    def make_masker(
        self, generator: torch.Generator, mlm_probability: float = 0.15, mask_replace_prob: float = 0.8
    ) -> TokenMasker:
        """The paper's rule over this vocabulary; half of what `[MASK]` leaves over becomes random."""
        return TokenMasker(
            self.config.vocab_size,
            self.special_ids[SPECIAL_TOKENS.index("[MASK]")],
            self.special_ids,
            mlm_probability,
            mask_replace_prob,
            random_replace_prob=(1 - mask_replace_prob) / 2,
            generator=generator,
        )

    def next_batch(self, progress: float) -> dict[str, Tensor]:
        """The next windows, covered."""
        batch = self.curriculum.batch(progress)
        covered = self.masker(batch.input_ids)
        return {
            "input_ids": covered.input_ids,
            "labels": covered.labels,
            "position_ids": batch.position_ids,
        }

    @torch.no_grad()
    def evaluate(self, trainer: Trainer, windows: int | None = None) -> dict[str, float]:
        """
        ## What counts

        Loss and accuracy on held-out windows of the full length, in eval mode, on masks that never
        change. The mean is over masked tokens, not over batches, which hold different numbers of them.
        """
        self.model.eval()
        loss = right = count = 0.0
        rows = max(1, 8192 // self.length)
        for start in range(0, windows or len(self.windows), rows):
            input_ids, labels = (part[start : start + rows].to(self.device) for part in self.held_out)
            with trainer.autocast():
                output: MaskedLMOutput = self.model(input_ids, labels)
            assert output.loss is not None and output.labels is not None
            number = len(output.labels)
            loss += output.loss.item() * number
            right += masked_accuracy(output.logits, output.labels).item() * number
            count += number
        self.model.train()
        return {"loss": loss / max(count, 1), "accuracy": right / max(count, 1)}

    @torch.no_grad()
    def show_samples(self, trainer: Trainer, count: int = 2) -> None:
        """Prints the model's answers in a few held-out lines; every chosen token is hidden."""
        generator = torch.Generator().manual_seed(2)
        masker = self.make_masker(generator, mask_replace_prob=1.0)
        rows = torch.linspace(0, len(self.windows) - 1, count + 2).long()[1:-1]
        input_ids, labels = masker(self.windows[rows])
        self.model.eval()
        with trainer.autocast():
            guesses = self.model(input_ids.to(self.device)).logits.argmax(-1).cpu()
        self.model.train()
        console.print()
        for row in range(len(rows)):
            for line in filled_lines(self.tokenizer, input_ids[row], labels[row], guesses[row]):
                console.print(line)
        console.print()


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


def check_record(path: Path) -> None:
    """
    Raises `ValueError` where a record cannot be written to `path`, three minutes before it is needed. A
    device or a folder is no place for one.
    """
    try:
        if path.exists() and not path.is_file():
            raise ValueError("it is there and is no file")
        part = path.with_name(path.name + ".part")
        part.touch()
        part.unlink()
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise ValueError(f"cannot write {str(path)!r}: {reason}; choose another file with --record") from None


def main(defaults: Options, question: str, argv: list[str] | None = None) -> None:
    """
    ## The run

    Everything that can be refused is refused before the first step, and before anything is written.
    """
    began = time.monotonic()
    options, given = parse(defaults, question, argv)
    with bad_input_ends_here():
        if given.record is not None:
            check_record(given.record)
        device = choose_device(given.device)
        with console.status("reading the text"):
            parts = Parts(options, device, given.checkpoint_seconds)
        run_path = given.resume or new_run_path(given.runs, options.experiment)
        trainer = Trainer(
            parts.model, parts.arguments, run_path, parts.configuration, parts.generator, device
        )
        if given.resume:
            trainer.resume()
        parts.tokenizer.save(str(run_path / "tokenizer.json"))

    corpus, config, curriculum = parts.corpus, parts.config, parts.curriculum
    unit = "characters" if options.tokenizer == "char" else "words"
    budget = f"{options.steps:,} steps" if options.steps else f"{options.minutes:g} minutes"
    arithmetic = "bfloat16" if trainer.bfloat16 else "float32"
    lengths = " then ".join(str(stage.length) for stage in curriculum.stages)
    header(
        f"{options.experiment}: a masked language model on {corpus.name}",
        {
            "text": f"{sum(map(len, corpus.train)):,} characters, {sum(map(len, corpus.valid)):,} held out",
            "vocabulary": f"{config.vocab_size:,} {unit}",
            "model": f"{sum(p.numel() for p in parts.model.parameters()):,} parameters, "
            f"{config.num_hidden_layers} layers, {config.hidden_size} wide",
            "training": f"{budget}, {arithmetic} on {device}, {options.batch_tokens:,} tokens a step",
            "length": f"{lengths} {unit}",
            "masked": f"{options.mlm_probability:.0%} in training, 15% of the held-out text",
            "run": shown(run_path),
        },
    )
    results_table(parts.floors)

    line = ProgressLine(options.minutes, options.batch_tokens)
    shares = accumulate(stage.share for stage in curriculum.stages)
    ends = [(min(end, 1.0), stage.length) for end, stage in zip(shares, curriculum.stages, strict=True)]
    ends = [(end, length) for end, length in ends if end > trainer.progress]
    quick = min(len(parts.windows), max(1, 16_384 // parts.length))
    with run_ends_well(run_path), tracked(run_path, parts.configuration):
        with line.live():
            for update in trainer.train(
                parts.next_batch,
                lambda output: {"accuracy": masked_accuracy(output.logits.detach(), output.labels)},
                lambda: parts.evaluate(trainer, quick),
                tuple(end for end, _ in ends),
            ):
                line.show(update, curriculum.length(update.progress))
                if ends and update.evaluation and update.progress >= ends[0][0] - 1e-6:
                    console.print(
                        f"\n  at {update.seconds:.0f} s, after length {ends.pop(0)[1]}: held-out loss "
                        f"{update.evaluation['loss']:.3f}, right {update.evaluation['accuracy']:.0%}"
                    )
                    parts.show_samples(trainer)
        result = parts.evaluate(trainer)

    console.print()
    ours = Floor("this model", result["loss"], result["accuracy"])
    results_table(parts.floors, ours)
    if given.record is not None:
        seconds = time.monotonic() - began
        with run_ends_well(run_path):
            write_record(given.record, options, defaults, parts, trainer, result, seconds)
        console.print(f"  record      {shown(given.record)}")
    example = "The function ret[MASK]rns a list." if options.tokenizer == "char" else "this is the [MASK] of"
    console.print(f"  run         {shown(run_path)}")
    console.print(f"  checkpoint  {shown(run_path / 'checkpoint.safetensors')}\n\n  Try it:\n")
    # Without a name the newest run under logs/ answers, which is this one unless it went elsewhere.
    elsewhere = [] if run_path.parent.parent == Path("logs") else ["--run", shown(run_path)]
    words = shlex.join([*elsewhere, example])
    console.print(f"{command('-m', 'labml_bert.fill_mask')} \\\n  {words}\n")


def write_record(
    path: Path,
    options: Options,
    defaults: Options,
    parts: Parts,
    trainer: Trainer,
    result: dict[str, float],
    wall_seconds: float,
) -> None:
    """
    ## The record

    A result with all that somebody needs to doubt or repeat it. Pages and charts quote these files.
    """
    gpu = torch.cuda.get_device_name(trainer.device) if trainer.device.type == "cuda" else None
    packages = ("torch", "labml", "tokenizers", "safetensors", "numpy")
    # A path says where the file was on somebody's machine; the name and the sha256 say what it was.
    configuration = {**parts.configuration, "corpus": parts.corpus.name}
    changed = {
        field.name: parts.corpus.name if field.name == "corpus" else value
        for field in fields(Options)
        if (value := getattr(options, field.name)) != getattr(defaults, field.name) and value is not None
    }
    words = [word for key, value in changed.items() for word in (f"--{key.replace('_', '-')}", str(value))]
    record: dict[str, Any] = {
        "experiment": options.experiment,
        "command": shlex.join(["python", f"experiments/{options.experiment}.py", *words]),
        **origin(),
        "configuration": configuration,
        "corpus": {
            "name": parts.corpus.name,
            "sha256": parts.corpus.sha256,
            "train_characters": sum(map(len, parts.corpus.train)),
            "valid_characters": sum(map(len, parts.corpus.valid)),
        },
        "parameters": sum(p.numel() for p in parts.model.parameters()),
        "versions": {"python": platform.python_version(), **{name: version(name) for name in packages}},
        "hardware": {
            "device": trainer.device.type,
            "name": gpu or torch.cpu.get_capabilities().get("cpu_name"),
            "cores": os.cpu_count(),
            "threads": torch.get_num_threads(),
            "precision": "bfloat16" if trainer.bfloat16 else "float32",
        },
        "floors": [floor._asdict() for floor in parts.floors],
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
    write_whole(path, json.dumps(record, indent=1))


def origin() -> dict[str, str | None]:
    """When a record is made, and from which commit, if git knows."""
    commit = subprocess.run(
        ["git", "rev-parse", "HEAD"], capture_output=True, text=True, check=False, cwd=Path(__file__).parent
    ).stdout.strip()
    return {"date": time.strftime("%Y-%m-%d", time.gmtime()), "commit": commit or None}


def write_whole(path: Path, text: str) -> None:
    """Writes a record under another name and renames it, so that a half-written one is never read."""
    part = path.with_name(path.name + ".part")
    part.write_text(text + "\n", encoding="utf-8")
    os.replace(part, path)
