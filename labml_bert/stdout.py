"""
# The terminal that everything is printed to

One console for the whole project. It takes text and paths as they are: a name with brackets isn't markup,
and a character that the terminal doesn't have becomes a `?` instead of ending a run."""

import contextlib
import io
import os
import sys
from pathlib import Path

from rich.console import Console

# Under torchrun, only the process of rank zero prints.
is_silent = "TORCHELASTIC_RUN_ID" in os.environ and os.environ.get("RANK", "0") != "0"
console = Console(highlight=False, soft_wrap=True, emoji=False, markup=False, quiet=is_silent)

for stream in (sys.stdout, sys.stderr):
    if isinstance(stream, io.TextIOWrapper):
        stream.reconfigure(errors="replace")


def plain() -> bool:
    """Whether only ASCII can be printed."""
    return not (console.encoding or "ascii").lower().startswith("utf")


def display_path(path: Path) -> str:
    """The path relative to the working directory if it is below it, else as it is."""
    with contextlib.suppress(ValueError):
        return str(path.resolve().relative_to(Path.cwd()))
    return str(path)


def printable(token: str | None) -> str:
    """One token on one line: a line end or an unprintable character becomes visible, no token becomes `?`."""
    token = "?" if token is None else token
    if plain():
        token = token.encode("ascii", "replace").decode()
    line_end = "|" if plain() else "⏎"
    return "".join(c if c.isprintable() else line_end if c == "\n" else "?" for c in token)
