"""
# Files that are whole

A program can be killed and a disk can be full at any moment. What does whoever reads its files find then?
Either the file of before or the new one, never half of one: a file is written under another name, the disk
is waited for, and only then it gets its own name, which happens at once.
"""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """Gives the path to write to. It becomes `path` at the end of the block, and goes if that fails."""
    # Two programs at once do not write into each other's file.
    part = path.with_name(f"{path.name}.{os.getpid()}.part")
    try:
        yield part
        with open(part, "rb") as file:
            os.fsync(file.fileno())
        os.replace(part, path)
    except BaseException:
        part.unlink(missing_ok=True)
        raise


def write_whole(path: Path, text: str) -> None:
    """A text and a line end, as a file that is whole."""
    with whole_file(path) as part:
        part.write_text(text + "\n", encoding="utf-8")
