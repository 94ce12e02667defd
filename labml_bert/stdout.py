"""
# One console for all output

The project prints through one shared console. It prints text and paths as they are: a name with brackets
isn't markup, and a character that the terminal can't show becomes a `?` instead of an error. A control
character becomes a `?` too: the name of a file may contain the codes that clear a screen."""

import contextlib
import errno
import io
import os
import re
import select
import sys
import threading
from argparse import ArgumentParser, ArgumentTypeError
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, NoReturn

from rich.console import Console, ConsoleDimensions, ConsoleOptions, RenderableType
from rich.segment import Segment

# The longest error message, in characters. A damaged file can have a name or a value of any length.
LONGEST_ERROR = 1000
# If two threads redirected stderr at once, it could be lost for good.
STDERR_LOCK = threading.Lock()
# `print_error` looks up the `errno` of an `OSError` in this table, and adds the remedy to the error message.
REMEDIES = {
    errno.EACCES: "change the permissions, or choose another name",
    errno.EPERM: "change the permissions, or choose another name",
    errno.EROFS: "choose a folder that you may write to",
    errno.EEXIST: "choose another name",
    errno.EISDIR: "name a file",
    errno.ENOTDIR: "choose another name",
    errno.ENOENT: "check the name",
    errno.ELOOP: "check the links",
    errno.ENAMETOOLONG: "choose a shorter name",
    errno.EIO: "check the disk",
    errno.EFBIG: "raise the limit with ulimit -f",
    errno.ENOSPC: "free some space on the disk",
    errno.EDQUOT: "free some space on the disk",
    errno.EMFILE: "close some files, or raise the limit with ulimit -n",
}
# In a narrower terminal, Rich would leave out whole columns of a table. We let the terminal wrap the lines.
FEWEST_COLUMNS = 40
# The joiners in words of Persian and Hindi, and the spaces of French and Japanese.
JOINERS_AND_SPACES = "\u200c\u200d\u00a0\u2009\u202f\u3000"
# Under torchrun, only rank zero prints.
is_silent = "TORCHELASTIC_RUN_ID" in os.environ and os.environ.get("RANK", "0") != "0"


class PersistentConsole(Console):
    """
    ## When nobody reads the output anymore

    On Ctrl-C, the `tee` in `… | tee log` may end before the run that writes to it, and a terminal can be
    closed. Rich then ends the program. But a run has to be saved first, so if `keeps_running` is set, the
    console only becomes quiet. It does the same if it can't print for another reason, such as a full disk.
    """

    keeps_running = False

    @property
    def is_terminal(self) -> bool:
        """Whether Rich can change what it has printed. A dumb terminal, as in Emacs, is like a file."""
        return super().is_terminal and os.environ.get("TERM", "").lower() not in ("dumb", "unknown")

    @property
    def size(self) -> ConsoleDimensions:
        """The size of the terminal, but at least `FEWEST_COLUMNS` columns, so that Rich drops no column."""
        size = super().size
        return size._replace(width=max(size.width, FEWEST_COLUMNS))

    @size.setter
    def size(self, size: tuple[int, int]) -> None:
        """Sets the size, in columns and lines."""
        self.width, self.height = size

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterator[Segment]:
        """Replaces control characters in texts with `?`. Segments with a `control` come from Rich itself."""
        for segment in super().render(renderable, options):
            yield segment if segment.control else segment._replace(text=without_controls(segment.text))

    def on_broken_pipe(self) -> None:
        """Rich calls this if nobody reads the output."""
        with contextlib.suppress(SystemExit) if self.keeps_running else contextlib.nullcontext():
            super().on_broken_pipe()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Writes what was printed in the block. Every `print` is such a block."""
        try:
            super().__exit__(kind, error, traceback)
        except OSError as failure:
            if failure.errno == errno.EIO:  # The terminal was closed.
                self.on_broken_pipe()
                return
            with contextlib.suppress(OSError):  # Perhaps stderr is on the same disk.
                print_error(f"cannot print: {failure.strerror}")
            with contextlib.suppress(SystemExit):
                super().on_broken_pipe()
            if not self.keeps_running:
                raise SystemExit(2) from None


console = PersistentConsole(highlight=False, soft_wrap=True, emoji=False, markup=False, quiet=is_silent)

for stream in (sys.stdout, sys.stderr):
    if isinstance(stream, io.TextIOWrapper):
        stream.reconfigure(errors="replace")


def discard_unread_output() -> None:
    """
    If nobody reads the output and its pipe is full, discards what this process still prints. Otherwise it
    would wait forever. A signal doesn't end the waiting: after the signal's handler, Python tries again.
    """
    for number in (1, 2):
        # On Windows, `select` accepts only sockets.
        with contextlib.suppress(OSError, ValueError), open(os.devnull, "wb") as nowhere:
            if not select.select([], [number], [], 0)[1]:
                os.dup2(nowhere.fileno(), number)


def is_ascii_only() -> bool:
    """Whether the terminal can show only ASCII."""
    return not (console.encoding or "ascii").lower().startswith("utf")


def display_path(path: Path) -> str:
    """
    The path relative to the working directory if it's inside, otherwise unchanged. It can't be mistaken for
    an option.
    """
    text = str(path)
    with contextlib.suppress(ValueError, OSError):  # Perhaps the working directory no longer exists.
        text = str(path.resolve().relative_to(Path.cwd()))
    return as_operand(text)


def as_operand(name: str) -> str:
    """Puts `./` in front of a name that starts with a dash, because it would look like an option."""
    return f"./{name}" if name.startswith("-") else name


def path_with_name(name: str) -> Path:
    """For an `ArgumentParser`: the path with this name. Raises `ArgumentTypeError` if the name is empty."""
    if not name:
        raise ArgumentTypeError("the name is empty")
    return Path(name)


class OneLineParser(ArgumentParser):
    """A parser that reports a bad command line in one line, and doesn't accept abbreviated options."""

    def __init__(self, **options: Any):
        super().__init__(**{"allow_abbrev": False, **options})
        # `Path("")` is the current folder, so reject an empty name.
        self.register("type", Path, path_with_name)
        self.has_options = self.has_dash = False

    def parse_known_args(  # type: ignore[override]
        self, args: Sequence[str] | None = None, namespace: Any = None
    ) -> Any:
        """Rejects the value `--`, because `argparse` would replace it by an empty list."""
        words = list(sys.argv[1:] if args is None else args)
        self.has_options = any(word.startswith("-") for word in words)
        words_before = words[: words.index("--") if "--" in words else None]
        self.has_dash = any(re.match("-[^-]", word) and word != "-h" for word in words_before)
        for word in words_before:
            if re.fullmatch("-[^=]+=--", word):
                self.error(f"{word[:-3]} can't be --")
        return super().parse_known_args(words, namespace)

    def print_help(self, file: Any = None) -> None:
        """Prints the help, and ends the program if nobody reads it or if the disk is full."""
        console.print(self.format_help().rstrip())
        with contextlib.suppress(AttributeError):  # There may be no standard output.
            sys.stdout.flush()

    def error(self, message: str) -> NoReturn:
        """Ends the program. All processes parse the same command line, so only rank zero prints the error."""
        kind, _, words = message.partition(": ")
        has_texts = any(not action.option_strings for action in self._actions)
        if kind == "unrecognized arguments" and not words.startswith("-") and has_texts and self.has_options:
            message += "; put the options before all other words"
        elif kind.startswith("argument -") and words.startswith("expected") and self.has_dash:
            message += "; before a value that begins with -, put = and no space"
        elif has_texts and self.has_dash:
            message += "; put -- before a text that begins with -"
        if not is_silent:
            print_error(f"{message}; see --help")
        raise SystemExit(2)


def without_controls(text: str) -> str:
    """The text with a `?` for each control character, such as the one that starts the codes of a terminal."""
    return re.sub(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]", "?", text)


def explain(reason: object) -> str:
    """Describes an error in one line. For an `OSError` with a file name, the line includes that name."""
    if isinstance(reason, OSError) and reason.strerror:
        reason = f"{reason.strerror} ({reason.filename})" if reason.filename else reason.strerror
    return " ".join(str(reason).splitlines())


def print_error(reason: object) -> None:
    """
    Prints a message as one line to stderr. If `reason` is an `OSError`, adds a remedy from `REMEDIES`. A
    message can contain the name of a file, and so any character.
    """
    remedy = REMEDIES.get(reason.errno or 0) if isinstance(reason, OSError) else None
    line = without_controls("; ".join(filter(None, (explain(reason), remedy))))
    with contextlib.suppress(OSError):  # Perhaps nobody reads stderr, or its disk is full.
        if len(line) > LONGEST_ERROR:
            # The remedy is at the end.
            line = f"{line[: LONGEST_ERROR - 300]} … {line[-300:]}"
        print("error:", line, file=sys.stderr)


printed_notes: set[str] = set()


def print_note(line: str) -> None:
    """
    Prints one line to stderr, because the output may go to a file. If this process has already printed the
    same line as a note, prints nothing.
    """
    if not console.quiet and line not in printed_notes:
        printed_notes.add(line)
        with contextlib.suppress(OSError):
            print(without_controls(explain(line)), file=sys.stderr)


@contextlib.contextmanager
def hide_stderr() -> Iterator[None]:
    """Discards what is written to stderr in the block, even by libraries that aren't written in Python."""
    with STDERR_LOCK:
        saved, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, 2)
        try:
            yield
        finally:
            os.dup2(saved, 2)
            os.close(saved)
            os.close(nowhere)


def is_visible(character: str) -> bool:
    """Whether a text shows a character as it is. To Python, some joiners and spaces aren't printable."""
    return character.isprintable() or character in JOINERS_AND_SPACES


def printable(token: str | None) -> str:
    """
    A token or a text in printable characters: line ends become visible, and what can't be shown becomes `?`,
    as does a joiner or a space of `JOINERS_AND_SPACES` that is alone.
    """
    token = "?" if token is None else token
    if is_ascii_only():
        token = token.encode("ascii", "replace").decode()
    line_end = "|" if is_ascii_only() else "⏎"
    if token in JOINERS_AND_SPACES:
        return "?" * len(token)
    return "".join(c if is_visible(c) else line_end if c == "\n" else "?" for c in token)
