"""
# What a person sees

A terminal is an interface. A run says at its start what it will do and what there is to beat, while
it runs how far it is and what the model can do by now, and at its end how it went and what to try
next. All of it fits 80 columns. Without a terminal the bar becomes a plain line now and then.
"""

import argparse
import contextlib
import os
import shlex
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NoReturn

from rich.console import RenderableType
from rich.constrain import Constrain
from rich.progress import BarColumn, Progress, TextColumn
from rich.table import Table
from rich.text import Text
from tokenizers import Tokenizer, decoders
from torch import Tensor

from labml_bert.baselines.ngrams import Baseline
from labml_bert.mlm import IGNORE
from labml_bert.stdout import console, display_path, plain, printable
from labml_bert.training.distributed import is_first_to_fail, launcher, rank
from labml_bert.training.trainer import NonFiniteLossError, Report


@contextlib.contextmanager
def bad_input_ends_here() -> Iterator[None]:
    """
    ## Bad input

    Whatever the user can get wrong is raised as `ValueError`, and what the machine refuses as `OSError`,
    before anything is written. It becomes one line and exit code 2.
    """
    # Not imported here: in somebody else's program, Ctrl-C is their own affair.
    script = sys.modules.get("labml_bert.run.script")
    if script is not None and signal.getsignal(signal.SIGINT) is script.stop_before_it_began:
        # All is loaded.
        signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    except (ValueError, OSError, OverflowError, NonFiniteLossError) as error:
        fail(error)
    except RuntimeError as error:
        fail_for_memory(error)
    except KeyboardInterrupt:
        raise SystemExit(130) from None


@contextlib.contextmanager
def run_ends_well(find_path: Callable[[], Path | None], is_resumable: Callable[[], bool]) -> Iterator[None]:
    """
    ## The end of a run that does not finish

    As long as `find_path` returns `None`, nothing has been written, and bad input ends as above. After
    that, a run that is stopped says how to resume it, if it can be resumed. One whose loss is not finite,
    or whose disk is full, says so in one line. What was saved stays."""
    try:
        with not_yet_written(find_path):
            yield
    except KeyboardInterrupt:
        path = find_path()
        if rank() == 0 and path is not None and is_resumable():
            again = command(*launcher(), sys.argv[0], "--resume", display_path(path))
            print(f"\nstopped and saved; go on with:\n  {again}")
        elif rank() == 0 and path is not None:
            print("\nstopped; the same command starts anew, and what it was to replace is as it was")
        raise SystemExit(130) from None
    except NonFiniteLossError as error:
        fail(error)
    except OSError as error:
        path = find_path()
        what = f"{error.strerror} ({error.filename})" if error.filename else error
        is_saved = path is not None and is_resumable()
        again = (
            f"what was saved is in {display_path(path)}, go on with --resume"
            if path and is_saved
            else "start anew"
        )
        fail(f"{what}; {again} when this is mended")
    except RuntimeError as error:
        fail_for_memory(error)


@contextlib.contextmanager
def not_yet_written(find_path: Callable[[], Path | None]) -> Iterator[None]:
    """Before a run has a folder, a `ValueError` or an `OSError` is bad input."""
    try:
        yield
    except (ValueError, OSError, OverflowError) as error:
        if find_path() is not None:
            raise
        fail(error)


class OneLineParser(argparse.ArgumentParser):
    """A command line that is not understood is bad input like any other, and half an option is not one."""

    def __init__(self, **options: Any):
        super().__init__(allow_abbrev=False, **options)

    def error(self, message: str) -> NoReturn:
        """Ends the program. All processes read the same line, and the first answers."""
        if rank() == 0:
            print(f"error: {message}; see --help", file=sys.stderr)
        raise SystemExit(2)


def fail(reason: object) -> NoReturn:
    """Ends the program with one line and exit code 2. Of several processes the first to fail says it."""
    if is_first_to_fail():
        print("error:", " ".join(str(reason).splitlines()), file=sys.stderr)
    raise SystemExit(2) from None


def fail_for_memory(error: RuntimeError) -> NoReturn:
    """
    PyTorch has no type of its own for a full memory. Every other `RuntimeError` is a fault of ours, or only
    says that another process is gone.
    """
    if "alloc" not in str(error):
        if is_first_to_fail():
            raise error
        raise SystemExit(2)
    fail("these sizes need more memory than there is; choose a smaller model or batch")


def command(*words: str) -> str:
    """A command line for this Python that can be pasted into a shell."""
    # Not resolved: the interpreter of a virtual environment is a link to another one.
    python = os.path.relpath(sys.executable) if sys.prefix != sys.base_prefix else "python3"
    return shlex.join([python if len(python) < len(sys.executable) else sys.executable, *words])


def header(title: str, rows: dict[str, str]) -> None:
    """Prints the title of a run and what it is made of."""
    console.print(Text(f"\n{title}\n", style="bold"))
    for name, value in rows.items():
        console.print(Text(f"  {name:<11}", style="dim").append(value, style="default not dim"))
    console.print()


def results_table(baselines: list[Baseline], ours: Baseline | None = None) -> None:
    """Prints what counting reaches, and under it what the model reaches, if there is one yet."""
    table = Table(box=None, padding=(0, 2), header_style="dim")
    table.add_column("held-out text" if ours else "to beat, by counting alone", min_width=30)
    table.add_column("loss (nats)", justify="right")
    table.add_column("accuracy", justify="right")
    for baseline in baselines:
        table.add_row(baseline.name, f"{baseline.loss:.3f}", f"{baseline.accuracy:.1%}")
    if ours:
        table.add_row(ours.name, f"{ours.loss:.3f}", f"{ours.accuracy:.1%}", style="bold")
    console.print(table)
    console.print()


class Bar(Progress):
    """
    A bar that leaves a few columns free. There a terminal writes `^C`; on a full line it would go over the
    edge, and the bar would be drawn again below.
    """

    def get_renderables(self) -> Iterator[RenderableType]:
        """What is drawn."""
        yield Constrain(self.make_tasks_table(self.tasks), max(20, console.width - 8))


class ProgressLine:
    """
    ## How far it is

    A bar on a terminal; else a line every ten seconds.
    """

    def __init__(self, minutes: float | None):
        self.minutes = minutes
        self.last: Report | None = None
        self.printed = time.monotonic() - 10
        columns = (
            TextColumn("  {task.percentage:3.0f}%"),
            BarColumn(bar_width=None),
            TextColumn("{task.description}"),
        )
        self.progress = Bar(*columns, console=console, expand=True)
        self.task = self.progress.add_task("starting", total=1.0)

    @contextlib.contextmanager
    def live(self) -> Iterator[None]:
        """Shows the bar while the block runs, where there is a terminal."""
        with self.progress if console.is_terminal else contextlib.nullcontext():
            yield

    def show(self, report: Report, batch_tokens: int) -> None:
        """Takes one report of the trainer; `batch_tokens` is the number of tokens in a step."""
        before = self.last or Report(0, 0.0, 0.0, {}, None, 0)
        took = report.seconds - before.seconds
        tokens_per_second = (report.step - before.step) * batch_tokens / took if took > 0 else 0.0
        done = max(report.progress, 1e-9)
        left = self.minutes * 60 * (1 - done) if self.minutes else report.seconds * (1 - done) / done
        metrics = report.metrics
        text = (
            f"loss {metrics['loss']:.3f}  acc {metrics['accuracy']:.0%}  length {report.length}  "
            f"{tokens_per_second / 1000:.1f}k/s  {int(left) // 60}:{int(left) % 60:02d} left"
        )
        self.progress.update(self.task, completed=report.progress, description=text)
        if not console.is_terminal and time.monotonic() - self.printed >= 10:
            console.print(f"  {report.progress:4.0%}  {text}")
            self.printed = time.monotonic()
        self.last = report


def filled_lines(
    tokenizer: Tokenizer, input_ids: Tensor, labels: Tensor, guesses: Tensor, width: int = 70
) -> list[Text]:
    """
    ## What the model answers

    For one row of tokens, three lines under each other: the text with the masked tokens hidden, the
    model's guesses below the gaps, and a mark for each. Right and wrong differ in the mark as well
    as in color. `input_ids`, `labels` and `guesses` are `(T,)`.
    """
    hidden, blank, right, wrong = "_~+x" if plain() else "▁␣✓✗"
    # Characters stand side by side; a tokenizer of words or of their pieces lost the blanks.
    spaced = not isinstance(tokenizer.decoder, decoders.Fuse)
    above, answers, marks = Text("    "), Text("    "), Text("    ")
    for token, label, guess in zip(input_ids.tolist(), labels.tolist(), guesses.tolist(), strict=True):
        name, answer = (tokenizer.id_to_token(i) for i in (token if label == IGNORE else label, guess))
        gap = " " if spaced and above.plain.strip() and not (name or "").startswith("##") else ""
        token_text, prediction = printable(name).removeprefix("##"), printable(answer).removeprefix("##")
        if label == IGNORE:
            prediction = mark = ""
            style = ""
        else:
            style = "bold green" if guess == label else "bold red"
            mark = right if guess == label else wrong
            prediction = prediction.replace(" ", blank)
            token_text = hidden * max(len(token_text), len(prediction))
        size = len(gap) + len(token_text)
        if len(above) + size > width:
            break
        above.append(gap + token_text)
        answers.append((gap + prediction).ljust(size), style)
        marks.append((gap + mark).ljust(size), style)
    return [above, answers, marks]
