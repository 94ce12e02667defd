"""
# What you see in the terminal

What should a training run print? At the start, it prints what it will do and the baselines to beat. During
training, it prints its progress and some of the model's predictions. At the end, it prints the result and
what to try next. The layout is made for 80 columns. If the output isn't a terminal, plain lines replace the
progress bar.
"""

import atexit
import contextlib
import errno
import os
import shlex
import signal
import string
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import NoReturn

from rich.console import RenderableType
from rich.constrain import Constrain
from rich.progress import BarColumn, Progress, TextColumn
from rich.table import Table
from rich.text import Text
from tokenizers import Tokenizer
from torch import OutOfMemoryError, Tensor

from labml_bert.baselines.ngrams import Baseline
from labml_bert.data.tokenizers import joins_with_spaces, token_text
from labml_bert.mlm import IGNORE
from labml_bert.stdout import (
    REMEDIES,
    console,
    discard_unread_output,
    display_path,
    explain,
    is_ascii_only,
    print_error,
    print_note,
    printable,
    without_controls,
)
from labml_bert.training.checkpoint import CHECKPOINT
from labml_bert.training.distributed import has_lost_another, is_first_to_fail, launcher, rank
from labml_bert.training.trainer import NonFiniteLossError, Report

IS_WINDOWS = os.name == "nt"


@contextlib.contextmanager
def exit_on_bad_input() -> Iterator[None]:
    """
    ## Bad input

    Our code raises `ValueError` for bad input. Python raises `OSError` for an error of the operating system.
    In this block, these errors print one line and end the program with exit code 2. A loss that isn't finite
    and a lack of memory do the same.
    """
    # Don't import `preflight` here, because the import can change what Ctrl-C does in your own program.
    preflight = sys.modules.get("labml_bert.run.preflight")
    if sys.excepthook in (sys.__excepthook__, getattr(preflight, "explain_failed_import", None)):
        sys.excepthook = hide_interrupt
    if preflight is not None and signal.getsignal(signal.SIGINT) is preflight.stop_before_it_began:
        # Loading is over, so Ctrl-C can raise `KeyboardInterrupt` again.
        signal.signal(signal.SIGINT, signal.default_int_handler)
        # Some libraries still clean up at exit. If you press Ctrl-C then, Python would print a traceback.
        atexit.register(signal.signal, signal.SIGINT, signal.SIG_DFL)
    try:
        yield
    except (ValueError, OSError, OverflowError, NonFiniteLossError) as error:
        fail(error)
    except (RuntimeError, MemoryError) as error:
        fail_on_runtime_error(error)
    except KeyboardInterrupt:
        raise SystemExit(130) from None
    except BaseException as error:
        fail_on_library_error(error)


def hide_interrupt(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """Prints an uncaught exception, except for that of Ctrl-C, which can come after the block above."""
    if not issubclass(kind, KeyboardInterrupt):
        sys.__excepthook__(kind, error, trace)


# The command-line words that start this program again. If the list is empty, the script's path does.
start_words: list[str] = []


def script_words(experiment: str) -> list[str]:
    """Returns the words after `python` that start `experiment` or your own script."""
    ours = Path(__file__).parents[2] / "experiments" / f"{experiment}.py"
    main = Path(getattr(sys.modules["__main__"], "__file__", None) or ours)
    is_own = main.stem == ours.stem and main.resolve() != ours.resolve()
    return start_words or [display_path(main) if is_own else f"experiments/{experiment}.py"]


@contextlib.contextmanager
def exit_cleanly(
    find_path: Callable[[], Path | None], is_resumable: Callable[[], bool], resume_options: Sequence[str] = ()
) -> Iterator[None]:
    """
    ## When a run ends early

    As long as `find_path` returns `None`, the run has saved nothing, and bad input ends the program as above.
    If you stop the run after that, the block prints how to resume the run with `resume_options`, or that you
    can only start over. A lack of memory, a loss that isn't finite or an `OSError`, such as a full disk, ends
    the program with one line. Everything saved so far is kept."""

    def has_checkpoint(path: Path) -> bool:
        try:
            return is_resumable() and (path / CHECKPOINT).is_file()
        except OSError:
            # The folder can't be read, and this may be the very error that ended the run.
            return is_resumable()

    def resume_arguments(path: Path) -> list[str]:
        return ["--resume", display_path(path), *resume_options]

    try:
        with not_yet_written(find_path):
            yield
    except KeyboardInterrupt:
        path = find_path()
        if rank() == 0 and path is not None and has_checkpoint(path):
            script = start_words or [sys.argv[0]]
            again = command(*launcher(), *script, *resume_arguments(path))
            print_last(f"\nstopped and saved; resume with:\n  {again}")
        elif rank() == 0 and path is not None:
            print_last("\nstopped; run the same command to start over (earlier results are unchanged)")
        raise SystemExit(130) from None
    except NonFiniteLossError as error:
        fail(error)
    except OSError as error:
        path = find_path()
        remedy = "start over"
        if path is not None and has_checkpoint(path):
            remedy = f"resume with {' '.join(map(quote, resume_arguments(path)))}"
        elif path is not None and not os.path.lexists(path):
            remedy = "start over, or if its folder was moved, resume the run there with --resume"
        # Other errors say by themselves what to do.
        limit = f"; {REMEDIES[error.errno]}" if error.errno in (errno.EFBIG, errno.EMFILE) else ""
        fail(f"{explain(error)}{limit}; once this is fixed, {remedy}")
    except (RuntimeError, MemoryError) as error:
        if has_lost_another(error):
            path, remedy = find_path(), "run the same command again"
            if path is not None and has_checkpoint(path):
                remedy = f"resume with {' '.join(map(quote, resume_arguments(path)))}"
            fail(f"another process of this run was killed; {remedy}")
        fail_on_runtime_error(error)
    except BaseException as error:
        fail_on_library_error(error)


@contextlib.contextmanager
def not_yet_written(find_path: Callable[[], Path | None]) -> Iterator[None]:
    """Until `find_path` returns a path, ends the program with one line on errors that bad input can raise."""
    try:
        yield
    except (ValueError, OSError, OverflowError) as error:
        if find_path() is not None:
            raise
        fail(error)


def print_last(text: str) -> None:
    """Prints how a run ended. If the console can't print, the text goes to stderr as one line."""
    discard_unread_output()
    console.print(text)
    if console.quiet or sys.stdout is None:
        # Don't use `print`. If Python couldn't write the buffer at exit, the exit code would change.
        with contextlib.suppress(OSError):
            os.write(2, os.fsencode(without_controls(text.replace("\n", "")) + "\n"))


def read_standard_input(most: int = 1_000_000_000) -> bytes:
    """
    Reads all of standard input. If it's a terminal, a note on stderr says what to type.

    Raises `ValueError` if standard input can't be read, or has more than `most` bytes.
    """
    if sys.stdin.isatty():
        end = "Ctrl-Z and Enter end" if IS_WINDOWS else "Ctrl-D ends"
        print_note(f"reading texts from the terminal, one per line; {end} the input")
    try:
        data = sys.stdin.buffer.read(most + 1)
    except OSError as error:
        raise ValueError(f"cannot read standard input: {error.strerror}; pass a text instead") from None
    if len(data) > most:
        raise ValueError(f"standard input has more than {most:,} bytes; divide it into parts")
    return data


def print_caveats(unknown: int, cut: int = 0, reason: str = "") -> None:
    """Prints how many tokens a model doesn't know, and how many texts it may have read only in part."""
    if unknown:
        console.print(f"  tokens outside the vocabulary, which all look the same: {unknown:,}", style="dim")
    if cut:
        console.print(f"  texts {reason}: {cut:,}", style="dim")


def describe_unknown(fraction: float) -> str:
    """Says how much of the held-out text is `[UNK]`. Returns an empty string if it's less than 1%."""
    if fraction < 0.01:
        return ""
    return f"{fraction:.0%} of the held-out text is [UNK]: unknown, or words of over 100 letters"


def fail(reason: object) -> NoReturn:
    """Ends the program with exit code 2. The first process that fails prints the reason in one line."""
    if is_first_to_fail():
        print_error(reason)
    raise SystemExit(2) from None


def fail_on_runtime_error(error: RuntimeError | MemoryError) -> NoReturn:
    """
    Ends the program with one line if Python or PyTorch is out of memory, if a tensor would have 2^63 bytes or
    more, or if `torch.compile` fails. For lack of memory on a CPU, and for a tensor that's too large, PyTorch
    raises a plain `RuntimeError`, so we look for certain words in its message. The first process that fails
    raises any other `RuntimeError` again, and the others end silently.
    """
    if type(error).__module__.startswith(("torch._dynamo", "torch._inductor")):
        reason = explain(error).partition(" Set TORCH")[0].strip()
        compiler = "install a C++ compiler, " if "compiler" in reason.lower() else ""
        remedy = f"{compiler}leave out --torch-compile, or resume with --no-torch-compile"
        fail(f"torch.compile failed ({reason}); {remedy}")
    if isinstance(error, RuntimeError) and not any(
        word in str(error) for word in ("alloc", "overflow", "create a primitive")
    ):
        if is_first_to_fail():
            raise error
        raise SystemExit(2)
    if isinstance(error, OutOfMemoryError):
        fail(
            "the GPU is out of memory; use a smaller model or batch, or in training, divide each batch with "
            "--gradient-accumulation-steps"
        )
    fail("out of memory; use a smaller model, batch or text")


def fail_on_library_error(error: BaseException) -> NoReturn:
    """
    Ends the program with one line if a library can't be loaded, or if a tokenizer can't encode a text.
    `tokenizers` then raises a bare `Exception` or a `PanicException`. Raises any other exception again.
    """
    if isinstance(error, ImportError):
        fail(f"cannot load a library ({error}); free some memory, or install the packages again")
    if type(error) is not Exception and type(error).__name__ != "PanicException":
        raise error
    fail(f"a library failed, probably the tokenizer ({error}); use another tokenizer or text")


def command(*words: str) -> str:
    """Returns a command line, to paste into a shell, that runs Python with `words` as arguments."""
    # Don't resolve links, because the interpreter of a virtual environment is often a link to one outside it.
    name = "python" if IS_WINDOWS else "python3"
    python = sys.executable if sys.prefix != sys.base_prefix else name
    # `relpath` raises `ValueError` if Python is on a different drive (on Windows), and `OSError` if the
    # working directory no longer exists.
    with contextlib.suppress(ValueError, OSError):
        python = min(python, os.path.relpath(python), key=len)
    return " ".join(map(quote, (python, *words)))


def quote(word: str) -> str:
    """Quotes a word for the shell. On Windows, `cmd.exe` knows only double quotes."""
    return subprocess.list2cmdline([word]) if IS_WINDOWS else shlex.quote(word)


def header(title: str, rows: dict[str, str]) -> None:
    """Prints a title in bold, and `rows` as a table of names and values."""
    console.print(Text(f"\n{title}\n", style="bold"))
    for name, value in rows.items():
        console.print(Text(f"  {name:<11}", style="dim").append(value, style="default not dim"))
    console.print()


def results_table(baselines: list[Baseline], ours: Baseline | None = None) -> None:
    """Prints the baselines and, if `ours` is set, the model's result below them."""
    table = Table(box=None, padding=(0, 2), header_style="dim")
    table.add_column("held-out text" if ours else "baselines to beat", min_width=30)
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
    A progress bar that leaves a few columns at its right end free. On Ctrl-C, terminals print `^C` there. If
    the bar filled the line, `^C` would make the line wrap, and the bar would be drawn twice.
    """

    def get_renderables(self) -> Iterator[RenderableType]:
        """Yields the bar, eight columns narrower than the terminal but at least 20 columns wide."""
        yield Constrain(self.make_tasks_table(self.tasks), max(20, console.width - 8))


class ProgressLine:
    """
    ## Progress

    Shows progress as a bar in a terminal, and otherwise as a line about every ten seconds.
    """

    def __init__(self, minutes: float | None):
        self.minutes = minutes
        self.last_print = time.monotonic() - 10
        columns = (
            TextColumn("  {task.percentage:3.0f}%"),
            BarColumn(bar_width=None),
            TextColumn("{task.description}"),
        )
        self.progress = Bar(*columns, console=console, expand=True)
        self.task = self.progress.add_task("", total=1.0)

    @contextlib.contextmanager
    def live(self, progress: float = 0.0, step: int = 0, seconds: float = 0.0) -> Iterator[None]:
        """Shows the bar while the block runs, if the output is a terminal. A resumed run starts later."""
        self.step, self.seconds = step + 1, seconds  # the clock starts at the end of the first step
        state = "starting" if progress < 1 else "finished"
        self.progress.update(self.task, completed=progress, description=state)
        with self.progress if console.is_terminal else contextlib.nullcontext():
            yield

    def speed(self, report: Report, tokens_per_step: int) -> dict[str, float]:
        """Returns the `tokens_per_second` since the last report, except after the first step."""
        steps, elapsed = report.step - self.step, report.seconds - self.seconds
        self.step, self.seconds = report.step, report.seconds
        return {"tokens_per_second": steps * tokens_per_step / elapsed} if steps and elapsed > 0 else {}

    def show(self, report: Report, tokens_per_second: float | None = None) -> None:
        """Updates the bar with a report from the trainer, or prints a line if one is due."""
        progress = max(report.progress, 1e-9)
        left = (
            self.minutes * 60 * (1 - progress) if self.minutes else report.seconds * (1 - progress) / progress
        )
        metrics = report.metrics
        speed = "" if tokens_per_second is None else f"{tokens_per_second / 1000:.1f}k tok/s  "
        text = (
            f"loss {metrics['loss']:.3f}  acc {metrics['accuracy']:.0%}  length {report.length}  "
            f"{speed}{int(left) // 60}:{int(left) % 60:02d} left"
        )
        self.progress.update(self.task, completed=report.progress, description=text)
        if not console.is_terminal and time.monotonic() - self.last_print >= 10:
            console.print(f"  {report.progress:4.0%}  {text}")
            self.last_print = time.monotonic()


def filled_lines(
    tokenizer: Tokenizer, input_ids: Tensor, labels: Tensor, guesses: Tensor, width: int = 70
) -> list[Text]:
    """
    ## What the model predicts

    Returns three lines for one row of tokens: the text with gaps at the masked tokens, the model's
    predictions below the gaps, and a symbol below each prediction. Right and wrong predictions differ in
    symbol and color. The lines end before a token that would make them longer than `width` characters.
    `input_ids`, `labels` and `guesses` are `(T,)`.
    """
    gap, space, right, wrong = "_~+x" if is_ascii_only() else "▁␣✓✗"
    text, predictions, symbols = Text("    "), Text("    "), Text("    ")
    for token, label, guess in zip(input_ids.tolist(), labels.tolist(), guesses.tolist(), strict=True):
        name, answer = (token_text(tokenizer, i) for i in (token if label == IGNORE else label, guess))
        before = (
            " " if joins_with_spaces(tokenizer) and text.plain.strip() and not name.startswith("##") else ""
        )
        visible, prediction = printable(name).removeprefix("##"), printable(answer).removeprefix("##")
        if label == IGNORE:
            prediction = symbol = ""
            style = ""
        else:
            style = "bold green" if guess == label else "bold red"
            symbol = right if guess == label else wrong
            prediction = prediction.replace(" ", space)
            visible = gap * max(len(visible), len(prediction))
        size = len(before) + len(visible)
        if len(text) + size > width:
            break
        text.append(before + visible)
        predictions.append((before + prediction).ljust(size), style)
        symbols.append((before + symbol).ljust(size), style)
    return [text, predictions, symbols]


def masked_line(texts: list[str], tokenizer: Tokenizer, longest: int) -> str:
    """
    Returns a line of `texts` with its middle word masked. For a character model, or if the line has fewer
    than four words, masks only one character near the middle. Cuts the line so that it fits into `longest`
    positions, provided that each token has at least one character. If all texts are blank, returns `[MASK]`.
    """
    is_character_model = len(tokenizer.encode("two words", add_special_tokens=False).tokens) == len(
        "two words"
    )
    lines = [" ".join(line.split()) for text in texts for line in text.splitlines() if line.strip()]
    if not lines:
        return "[MASK]"
    # Leave room for [CLS] and [SEP], and keep the text short enough for one line of the terminal.
    most = min(60, longest - 2)
    # Prefer a line without digits or punctuation. Quoted for a shell, some punctuation is hard to read.
    special = {*string.punctuation, *string.digits}
    candidates = [line for line in lines if most // 2 <= len(line) <= most and not special & {*line}]
    line = min(candidates or lines, key=lambda line: abs(len(line) - 3 * most // 4))[:most].strip()
    words = line.split(" ")
    middle = len(words) // 2
    if is_character_model or len(words) < 4:
        index = len(line) - len(" ".join(words[middle:])) + max(0, len(words[middle]) // 2 - 1)
        return f"{line[:index]}[MASK]{line[index + 1 :]}"
    return " ".join([*words[:middle], "[MASK]", *words[middle + 1 :]])
