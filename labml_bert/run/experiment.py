"""
# What surrounds an experiment

Each script contains what is specific to one experiment: its hyperparameters, data, model and training loop.
The class `Run` does the work that these scripts have in common: it creates the run's folder, prints the
header and the progress, and tracks the metrics. At the end, a run prints its result and saves a model that
`fill_mask` and `transformers` can load. With `--record FILE`, the run also writes its result to a JSON file,
with what you need to repeat the run. A run rejects bad input before it saves anything in its folder."""

import contextlib
import signal
import stat
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, fields, replace
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import torch
from rich.text import Text
from tokenizers import Tokenizer
from torch import Tensor

from labml_bert import modern_folder
from labml_bert.baselines.ngrams import Baseline
from labml_bert.checksums import read_sums, write_checked
from labml_bert.data.corpora import Corpus
from labml_bert.data.curriculum import length_at, parse_schedule, tokens_per_step
from labml_bert.data.token_files import TokenizedCorpus
from labml_bert.data.tokenizers import check_same_tokenizer, plain_tokenizer, save_tokenizer
from labml_bert.files import (
    check_own,
    check_utf8,
    lock,
    make_folder,
    remove_partial_files,
    sync_folder,
)
from labml_bert.model_card import without_folders, write_pretraining_card
from labml_bert.models import BertPreTrainedModel
from labml_bert.modern import ModernBertForMaskedLM
from labml_bert.run.options import RunOptions, as_words, check_micro_batches
from labml_bert.run.record import check_record, describe_run, write_record
from labml_bert.run.terminal import (
    IS_WINDOWS,
    ProgressLine,
    command,
    describe_unknown,
    filled_lines,
    header,
    masked_line,
    quote,
    results_table,
    script_words,
)
from labml_bert.run.threads import read_threads, time_threads
from labml_bert.stdout import console, display_path, printable
from labml_bert.training.device import choose_device
from labml_bert.training.distributed import (
    broadcast_from_rank_zero,
    destroy_process_group,
    init_process_group,
    rank,
    rank_zero_first,
    world_size,
)
from labml_bert.training.optimization import TrainingArguments
from labml_bert.training.tracking import METRICS, Tracker, append_metrics, read_metrics
from labml_bert.training.trainer import NonFiniteLossError, Report, Step, Trainer


class PreparedText(Protocol):
    """The attributes and methods of `MaskedText` and `PairedText` that a `Run` uses."""

    tokenizer: Tokenizer
    generator: torch.Generator
    batch_tokens: int
    baselines: list[Baseline]
    unknown: float

    @property
    def corpus(self) -> Corpus | TokenizedCorpus:
        """The corpus, as text or as token ids."""

    def batch(self, length: int) -> dict[str, Tensor]:
        """Returns the next batch, with `length` tokens per row."""


class Run:
    """
    ## One run

    The script draws its batches with the random `generator` and trains on `device`. The options determine the
    generator's seed and the device. Each step and each evaluation must report a `loss` and an `accuracy`. If
    `is_alone` is true, the run doesn't connect to the other processes that `torchrun` has started.

    Raises `ValueError` if the seed or the number of threads isn't valid, if the device isn't available, or if
    the record can't be written.
    """

    def __init__(self, options: RunOptions, experiment: str, is_alone: bool = False):
        # A script may replace `options` to fill in missing values. `user_options` stays as the user set it.
        self.user_options = self.options = options
        self.experiment = experiment
        self.start_time = time.monotonic()
        if options.record is not None and rank() == 0:
            check_record(options.record, experiment)
        if not 0 <= options.seed < 2**63:
            raise ValueError(f"seed is {options.seed}; it must be from 0 to 2^63 - 1")
        self.threads = read_threads(options.threads)
        self.device = choose_device(options.device)
        if not is_alone:
            init_process_group(self.device)
        torch.manual_seed(options.seed)
        self.generator = torch.Generator().manual_seed(options.seed)
        self.path: Path | None = None
        self.record_path = options.record
        self.is_resumable, self.first_step = True, 0
        self.default_threads = torch.get_num_threads()
        # Other code can set these listeners. `on_report`, if set, replaces tracking and the progress line.
        self.on_step: Callable[[Step], None] | None = None
        self.on_report: Callable[[Report], None] | None = None
        self.progress = ProgressLine(options.minutes)
        self.resources = contextlib.ExitStack()

    @contextlib.contextmanager
    def reading_text(self) -> Iterator[None]:
        """Runs the block in rank zero first. The other processes find on disk what rank zero has written."""
        with console.status("reading the text"), rank_zero_first():
            yield

    def trainer(
        self,
        model: BertPreTrainedModel | ModernBertForMaskedLM,
        text: PreparedText,
        title: str,
        details: dict[str, str],
        arguments: TrainingArguments | None = None,
        other_texts: dict[str, str] | None = None,
    ) -> Trainer:
        """
        Creates the trainer for `model`, resumes the run if the options say so, and starts tracking. Prints
        the header, which contains `title` and the rows of `details`, and then the baselines. `other_texts`
        contains the sha256 of each text, other than the corpus, that the result depends on.

        Raises `ValueError` if an option is out of range, if a step has fewer rows than micro-batches, if the
        run's folder isn't writable or is in use, or if the run can't be resumed.
        """
        options = self.options
        arguments = arguments or options.training_arguments()
        if self.on_step:
            # A run with an `on_step` listener, such as a fingerprint, needs only the last regular evaluation.
            arguments = replace(arguments, evaluations=1)
        check_micro_batches(options, text.batch_tokens)
        self.model, self.text, self.processes = model, text, world_size()
        self.configuration = {
            "experiment": self.experiment,
            **options.configuration(),
            "corpus_sha256": text.corpus.sha256,
            **(other_texts or {}),
            "model": asdict(model.config),
        }
        path = broadcast_from_rank_zero(lambda: options.resume or new_run_path(options.runs, self.experiment))
        if rank() == 0:
            self.resources.enter_context(lock_run(path))
        trainer = Trainer(
            model, arguments, text.generator, self.device, options.precision, path, self.configuration
        )
        if options.resume:
            trainer.resume()
            self.first_step = trainer.step
            check_same_tokenizer(text.tokenizer, path)
            # Count the training time before this resume as part of the run's wall time.
            self.start_time -= trainer.seconds
        self.set_threads(trainer)
        self.path = path
        # From now on, the console doesn't end the program if it can't print. `report` stops the run instead.
        console.keeps_running = True
        if rank() == 0:
            write_checked(path / "tokenizer.json", plain_tokenizer(text.tokenizer).to_str(pretty=True))
        self.print_header(trainer, title, details)
        trainer.on_report = self.on_report or self.report
        trainer.on_step = self.on_step or trainer.on_step
        if rank() == 0:
            if options.resume:
                # This line makes `read_metrics` ignore the older values of steps that the run will repeat.
                append_metrics(path, trainer.step, {"seconds": trainer.seconds})
            tracker = Tracker(path, self.configuration, is_local=self.on_report is not None)
            self.tracker = self.resources.enter_context(tracker)
        self.resources.enter_context(self.progress.live(trainer.progress, trainer.step, trainer.seconds))
        self.current_trainer = trainer
        return trainer

    def set_threads(self, trainer: Trainer) -> None:
        """
        Sets the number of threads until the end of the run. A number in `--threads` takes precedence, unless
        the run has ended. Otherwise, a resumed run uses the number in its checkpoint, if `Trainer.resume`
        restored it. A new run with `auto` on a CPU times several numbers and uses the fastest. Other runs
        keep the current number.
        """
        self.resources.callback(torch.set_num_threads, self.default_threads)
        self.thread_speeds: dict[int, float] = {}  # tokens per second
        count = (self.threads if trainer.progress < 1 else None) or torch.get_num_threads()
        if self.options.threads == "auto" and not self.options.resume and self.device.type == "cpu":
            length = parse_schedule(self.options.schedule)[-1].length  # type: ignore[attr-defined]
            text, draw = self.text, partial(self.text.batch, length)
            with console.status("timing a few steps"):
                seconds = time_threads(self.model, trainer.arguments, trainer.precision, text.generator, draw)
            tokens = tokens_per_step(text.batch_tokens, length)
            self.thread_speeds = {n: tokens / s for n, s in seconds.items()}
            count = broadcast_from_rank_zero(lambda: min(seconds, key=seconds.__getitem__))
        # Set the number even if it stays the same: PyTorch may behave differently if nobody has set a number.
        torch.set_num_threads(count)
        self.threads = count

    def print_header(self, trainer: Trainer, title: str, details: dict[str, str]) -> None:
        """Prints the header, which says what the run will do, and the baselines."""
        options, text, model = self.options, self.text, self.model
        layers = model.config.num_hidden_layers
        budget = f"{options.steps:,} steps" if options.steps else f"{options.minutes:g} min"
        processes = world_size()
        device = f"{processes} × {self.device.type}" if processes > 1 else self.device
        stages = parse_schedule(options.schedule)  # type: ignore[attr-defined]
        most = "up to " if any(text.batch_tokens % stage.length for stage in stages) else ""
        speed = f"{trainer.precision} on {device}, {most}{text.batch_tokens:,} tokens per step"
        assert self.path is not None
        header(
            f"{self.experiment}: {title} on {text.corpus.name}",
            {
                "text": f"{text.corpus.train_characters:,} characters, "
                f"{text.corpus.valid_characters:,} held out",
                "training": f"{budget}, {speed}",
                "model": f"{sum(p.numel() for p in model.parameters()):,} parameters, "
                f"{layers} layer{'s' * (layers > 1)}, hidden size {model.config.hidden_size}",
                **self.describe_threads(),
                **details,
                **({"unknown": unknown} if (unknown := describe_unknown(text.unknown)) else {}),
                "run": display_path(self.path),
            },
        )
        results_table(text.baselines)

    def describe_threads(self) -> dict[str, str]:
        """Returns a header row with the speeds that `set_threads` measured, or no row if it measured none."""
        speeds = [f"{n}: {speed:,.0f}" for n, speed in self.thread_speeds.items()]
        return {"threads": f"{self.threads} (tokens per second: {'; '.join(speeds)})"} if speeds else {}

    def report(self, report: Report) -> None:
        """Tracks and shows a report of the trainer. Raises `OSError` if the training ids have changed."""
        if isinstance(self.text.corpus, TokenizedCorpus):
            self.text.corpus.check_unchanged()
        held_out = {f"valid.{key}": value for key, value in (report.evaluation or {}).items()}
        tokens = tokens_per_step(self.text.batch_tokens, report.length)
        speed = self.progress.speed(report, tokens)
        learning_rate = self.current_trainer.optimizers[0].param_groups[0]["learning_rate"]
        others = {"learning_rate": learning_rate, "length": report.length, **speed}
        self.tracker.save(report.step, {"seconds": report.seconds, **report.metrics, **others, **held_out})
        self.progress.show(report, **speed)
        if console.quiet:
            # The output can't be written anymore. Stop the loop as Ctrl-C does, so that the run is saved.
            self.current_trainer.stop_signal = signal.SIGINT

    def log(self, step: Step, evaluation: dict[str, float]) -> None:
        """Stores `evaluation` in `step` for the next report, and prints it at a milestone."""
        step.evaluation = evaluation
        if step.milestone:
            schedule: str = self.options.schedule  # type: ignore[attr-defined]
            length = length_at(parse_schedule(schedule), step.milestone - 1e-6)
            console.print(
                f"\n  at {self.current_trainer.seconds:.0f} s, after length {length}: loss "
                f"{evaluation['loss']:.3f}, accuracy {evaluation['accuracy']:.0%} on some held-out text"
            )

    @torch.no_grad()
    def show_predictions(self, input_ids: Tensor, labels: Tensor) -> None:
        """Prints the model's predictions at the masked positions. `input_ids` and `labels` are `(B, T)`."""
        self.model.eval()
        with self.current_trainer.autocast():
            predictions = self.model(input_ids.to(self.device)).logits.argmax(-1).cpu()
        self.model.train()
        self.print_filled(input_ids, labels, predictions)

    def print_filled(
        self, input_ids: Tensor, labels: Tensor, predictions: Tensor, notes: Sequence[str] = ()
    ) -> None:
        """Prints each row with its predictions. `notes` may have one note per row, printed below the row."""
        console.print()
        for row in range(len(predictions)):
            for line in filled_lines(self.text.tokenizer, input_ids[row], labels[row], predictions[row]):
                console.print(line)
            if notes:
                console.print(Text(f"    {notes[row]}\n"))
        console.print()

    def finish(
        self,
        evaluate: Callable[[], dict[str, float]],
        conclusion: Callable[[dict[str, float]], str] | None = None,
    ) -> None:
        """
        Disconnects the processes from each other. Then rank zero evaluates the model and saves it, with the
        tokenizer, in the format of `transformers`. Rank zero also prints the result and how to use the model,
        and writes a record if the options ask for one. The other processes only disconnect.
        """
        trainer, text, options = self.current_trainer, self.text, self.options
        trainer.parallel = trainer.model
        destroy_process_group()
        if rank() > 0:
            return
        assert self.path is not None
        # From now on, SIGTERM and SIGHUP end the run as Ctrl-C does.
        self.resources.enter_context(trainer.stoppable(signal.default_int_handler))
        self.result = result = evaluate()
        # The loop checks the loss before each update, so it can't notice what the last update did.
        if not result["loss"] < trainer.largest_loss:
            cause = f"after the last step, the held-out loss is {result['loss']:.3g}"
            raise NonFiniteLossError(f"{cause}; start a new run with a lower learning rate")
        if isinstance(self.model, ModernBertForMaskedLM):
            modern_folder.save_pretrained(self.model, self.path / "model")
        else:
            self.model.save_pretrained(self.path / "model")
        save_tokenizer(text.tokenizer, self.path / "model")
        # Resuming a run that had ended changes nothing, so keep its card, which you may have edited.
        if trainer.step > self.first_step or not (self.path / "model" / "README.md").exists():
            script = ["python", *script_words(self.experiment), *self.arguments()]
            write_pretraining_card(self.path / "model", script, self.describe(result))
        # The evaluations during training may have used only part of the held-out text, so track this one too.
        self.tracker.save(trainer.step, {f"result.{name}": value for name, value in result.items()})
        self.resources.close()

        console.print()
        results_table(text.baselines, Baseline("this model", result["loss"], result["accuracy"]))
        if conclusion:
            console.print(conclusion(result))
        if options.record is not None:
            self.record_path = write_record(options.record, self.record(result))
            console.print(f"  record      {display_path(self.record_path)}")
        console.print(f"  run         {display_path(self.path)}")
        console.print(f"  model       {display_path(self.path / 'model')}\n\n  Try it:\n")
        # By default, `fill_mask` uses the newest run under logs/. If this run isn't there, name its folder.
        is_default = self.path.parent.parent == Path("logs")
        options_of_run = [] if is_default else [f"--run {quote(display_path(self.path))}"]
        example = masked_line(text.corpus.valid, text.tokenizer, self.model.config.max_position_embeddings)
        words = [command("-m", "labml_bert.fill_mask"), *options_of_run, quote(printable(example))]
        console.print((" " if IS_WINDOWS else " \\\n  ").join(words) + "\n")

    def record(self, result: dict[str, float]) -> dict[str, Any]:
        """
        ## The record

        Returns the result, with what you need to check or repeat the run. Our pages and charts use records.
        """
        assert self.path is not None
        precision, arguments = self.current_trainer.precision, self.current_trainer.arguments
        record = describe_run(self.experiment, self.arguments(), self.device, precision)
        record["hardware"] |= {"processes": self.processes, "threads": self.threads}
        for name in ("gradient_accumulation_steps", "torch_compile"):
            record["hardware"][name] = getattr(arguments, name)
        history = {
            name: [[step, round(value, 6)] for step, value in points]
            for name, points in read_metrics(self.path).items()
        }
        return record | self.describe(result) | {"history": history}

    def arguments(self) -> list[str]:
        """Returns, as command-line arguments, the non-default options that change the result."""
        words: list[str] = []
        for option in fields(self.user_options):
            value = getattr(self.user_options, option.name)
            if option.metadata.get("operational") or value in (None, option.default):
                continue
            value = self.text.corpus.name if option.name == "corpus" else without_folders(value)
            words += as_words(option.name, value)
        return words

    def describe(self, result: dict[str, float]) -> dict[str, Any]:
        """Describes the run and its result for the record and the model card."""
        text, trainer = self.text, self.current_trainer
        return {
            "configuration": {
                **{name: without_folders(value) for name, value in trainer.configuration.items()},
                "corpus": text.corpus.name,
            },
            "corpus": {
                "name": text.corpus.name,
                "sha256": text.corpus.sha256,
                "train_characters": text.corpus.train_characters,
                "valid_characters": text.corpus.valid_characters,
            },
            "parameters": sum(p.numel() for p in self.model.parameters()),
            "baselines": [baseline._asdict() for baseline in text.baselines],
            "result": {
                **result,
                "steps": trainer.step,
                "training_seconds": trainer.seconds,
                "wall_seconds": time.monotonic() - self.start_time,
            },
        }


def new_run_path(runs: Path, experiment: str) -> Path:
    """
    Creates and returns the folder `runs/experiment/time`. If the name is taken, adds `-2`, `-3` and so on.

    Raises `ValueError` if the folder can't be created or its name isn't UTF-8.
    """
    base = runs / experiment / time.strftime("%Y%m%d-%H%M%S")
    path, n = base, 1
    check_utf8(base)
    try:
        make_folder(base.parent)
        while True:
            try:
                path.mkdir()
                sync_folder(path.parent)
                return path
            except FileExistsError:
                n += 1
                path = base.with_name(f"{base.name}-{n}")
    except OSError as error:
        raise ValueError(
            f"cannot write runs to {runs}: {error.strerror}; choose another folder with --runs"
        ) from None


def lock_run(run_path: Path) -> contextlib.AbstractContextManager[object]:
    """
    Locks the run's folder and deletes partial files. Use the returned lock in a `with` block.

    Raises `ValueError` if another process is training in the folder, if the folder isn't writable, or if a
    `SHA256SUMS` in it is damaged. Raises `OSError` if the lock file, the metrics or the model's folder is a
    link or has the wrong type.
    """
    for name in (".lock", METRICS):
        check_own(run_path / name)
    check_own(run_path / "model", stat.S_ISDIR)
    for folder in (run_path, run_path / "model"):
        read_sums(folder)
    try:
        run_lock = lock(run_path)
        for folder in (run_path, run_path / "model"):
            remove_partial_files(folder)
        return run_lock
    except BlockingIOError:
        raise ValueError(f"another process is training in {run_path}; wait until it ends") from None
    except OSError as error:
        # Of a lock that isn't ours, the message says what to do.
        reason = error.strerror and f"{error.strerror}; make it writable, or copy it and resume the copy"
        raise ValueError(f"cannot write to {run_path}: {reason or error}") from None
