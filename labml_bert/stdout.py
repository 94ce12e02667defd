"""
# The terminal that everything is printed to

The whole project uses one console. It prints text and paths as they are: a name with brackets isn't markup,
and a character that the terminal can't show becomes a `?` instead of an error."""

import contextlib
import io
import os
import sys
from pathlib import Path

from rich.console import Console

# Under torchrun, only rank zero prints.
is_silent = "TORCHELASTIC_RUN_ID" in os.environ and os.environ.get("RANK", "0") != "0"
console = Console(highlight=False, soft_wrap=True, emoji=False, markup=False, quiet=is_silent)

for stream in (sys.stdout, sys.stderr):
    if isinstance(stream, io.TextIOWrapper):
        stream.reconfigure(errors="replace")


def is_ascii_only() -> bool:
    """Whether the terminal can only show ASCII."""
    return not (console.encoding or "ascii").lower().startswith("utf")


def display_path(path: Path) -> str:
    """The path relative to the working directory if it's inside, otherwise unchanged."""
    with contextlib.suppress(ValueError):
        return str(path.resolve().relative_to(Path.cwd()))
    return str(path)


def printable(token: str | None) -> str:
    """A token in printable characters: line ends become visible, and what can't be shown becomes `?`."""
    token = "?" if token is None else token
    if is_ascii_only():
        token = token.encode("ascii", "replace").decode()
    line_end = "|" if is_ascii_only() else "⏎"
    return "".join(c if c.isprintable() else line_end if c == "\n" else "?" for c in token)
