"""
# The learner's folder

What is in the folder that `start` writes? The source files of the steps, at the same paths as in
`labml_bert`, with the bodies of the steps removed, and a README. `progress.json` says which code has passed
and which hints have been printed. If that file is lost, checks and hints start over.
"""

import contextlib
import hashlib
import json
from dataclasses import asdict, dataclass, field
from functools import cache
from pathlib import Path

from labml_bert.course.source import read_reference, remove_bodies, restore_others, unparse
from labml_bert.course.step import Step
from labml_bert.course.track import STEPS
from labml_bert.files import (
    is_empty_file,
    is_leftover,
    list_below,
    lock_output,
    make_folder,
    remove_partial_files,
    unreadable,
    whole_file,
    write_whole,
)

PROGRESS = "progress.json"
FILES = tuple(dict.fromkeys(step.file for step in STEPS))
README = """\
# Write it yourself

You write BERT, one function at a time. Each function raises an error that says
what to write. Its docstring says what goes in and what comes out.

    python -m labml_bert.course check    what is wrong with the next step
    python -m labml_bert.course hint     a hint; repeat it for a stronger one
    python -m labml_bert.course show     where to read about it
    python -m labml_bert.course solve    your code next to the original
    python -m labml_bert.course watch    check whenever you save
    python -m labml_bert.course train    train your model, after step 27

Run the commands in this folder. What your code prints is shown only if a step
fails. These are the steps:

"""


def write_exercises(folder: Path) -> None:
    """
    ## The start

    Writes the exercises into a new or empty folder. A start that was stopped can be repeated: a folder whose
    files are still as this function writes them is completed.

    Raises `ValueError` if the folder has other files, and `OSError` if it can't be written.
    """
    texts = exercises()
    check_is_free(folder, texts)
    make_folder(folder)
    with lock_output(folder, "wait until it ends"):
        check_is_free(folder, texts)
        for file, text in texts.items():
            remove_partial_files((folder / file).parent)
            write_file(folder / file, text)


def check_is_free(folder: Path, texts: dict[str, str]) -> None:
    """
    Raises `ValueError` if the folder has files other than `texts`, the files of a new folder, and `OSError`
    if it can't be listed.
    """
    if folder.exists() and (
        not folder.is_dir() or not all(is_ours(path, folder, texts) for path in list_below(folder))
    ):
        raise ValueError(f"{folder} exists and is not empty; choose a new folder, or run check in this one")


def exercises() -> dict[str, str]:
    """The files of a new folder, by name."""
    texts = {
        file: remove_bodies(read_reference(file), [step for step in STEPS if step.file == file])
        for file in FILES
    }
    width = max(len(step.title) for step in STEPS)
    rows = [f"    {i:2}  {step.title:{width}}  {step.file}" for i, step in enumerate(STEPS, 1)]
    return {**texts, "README.md": README + "\n".join(rows) + "\n"}


def is_ours(path: Path, folder: Path, texts: dict[str, str]) -> bool:
    """Whether a start can have left this path, and nobody has changed it since."""
    if path.is_symlink():
        return False
    if path.is_dir() or is_leftover(path.name):
        return True
    text = texts.get(path.relative_to(folder).as_posix())
    return text is not None and path.is_file() and path.read_bytes() == text.encode()


def write_file(path: Path, text: str) -> None:
    """Writes a file atomically, and creates its folder if needed. Raises `OSError` if that fails."""
    make_folder(path.parent)
    with whole_file(path) as part:
        # The same bytes on every system, so that a later start recognizes its files.
        part.write_text(text, encoding="utf-8", newline="\n")


def read_files(folder: Path) -> dict[str, str]:
    """
    The learner's files, by name.

    Raises `ValueError` if a file is missing or isn't UTF-8.
    """
    texts = {}
    for file in FILES:
        try:
            # Reading a pipe or a device could take forever.
            if (folder / file).exists() and not (folder / file).is_file():
                raise ValueError(f"{folder / file} is not a regular file; put one in its place")
            # Some editors on Windows write a byte order mark.
            texts[file] = (folder / file).read_text(encoding="utf-8-sig")
        except FileNotFoundError:
            if not any((folder / file).exists() for file in FILES):
                start = "python -m labml_bert.course start DIR"
                raise ValueError(f"{folder} has no exercises; write them with: {start}") from None
            remedy = "write the exercises into a new folder with start, and copy the file from there"
            raise ValueError(f"{folder / file} is missing; {remedy}") from None
        except UnicodeDecodeError:
            raise ValueError(f"{folder / file} is not UTF-8; save it as UTF-8") from None
    return texts


def put_back(folder: Path, texts: dict[str, str]) -> dict[str, str]:
    """
    Writes the text of each file that is missing to that file again. If a file is empty, the learner may be
    about to save it, so leaves it alone and writes its text to a new file beside it. Returns the names of the
    written files, by the names of the lost ones.
    """
    written = {}
    for file, text in texts.items():
        path, number = folder / file, 0
        if not text or (path.exists() and not is_empty_file(path)):
            continue
        while path.exists():
            number += 1
            path = folder / f"{file}.before-{number}"
        write_file(path, text)
        written[file] = path.relative_to(folder).as_posix()
    return written


@cache
def read_checks() -> str:
    """Returns the code of the course and the originals. After an update, all steps must be checked again."""
    course = "".join(path.read_text("utf-8") for path in sorted(Path(__file__).parent.glob("**/*.py")))
    return course + "".join(map(read_reference, FILES))


@cache
def fingerprint(step: Step, text: str) -> str:
    """
    A hash of everything that the check of a step depends on. Comments don't count.

    Raises `ValueError` if the file lacks a function, and `SyntaxError` if the text isn't Python.
    """
    code = unparse(restore_others(text, step, STEPS)) + read_checks()
    return hashlib.sha256(code.encode("utf-8", "surrogatepass")).hexdigest()


@dataclass
class Progress:
    """What `progress.json` holds."""

    passed: dict[str, str] = field(default_factory=dict)
    """The fingerprint of each step that has passed, by its name."""
    hints: dict[str, int] = field(default_factory=dict)
    """How many hints of a step have been printed, by its name."""


def read_progress(folder: Path) -> Progress:
    """
    The progress. A file that is missing or damaged counts as an empty one.

    Raises `ValueError` if the file can't be read. Such a file may be intact, so commands must not replace it.
    """
    path = folder / PROGRESS
    try:
        if not path.is_file():
            return Progress()
        content = json.loads(path.read_text(encoding="utf-8"))
        passed = {str(name): str(value) for name, value in content["passed"].items()}
        return Progress(passed, {str(name): int(value) for name, value in content["hints"].items()})
    except OSError as error:
        raise unreadable(path, error.strerror) from None
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, OverflowError):
        return Progress()


def write_progress(folder: Path, progress: Progress) -> bool:
    """Writes the file atomically. Returns `False` if that failed, for example in a read-only folder."""
    with contextlib.suppress(OSError):
        write_whole(folder / PROGRESS, json.dumps(asdict(progress), indent=1))
        return True
    return False
