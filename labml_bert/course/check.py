"""
# Checking the next step

Which step is next, and is it right? The next step is the first whose code hasn't passed its check. Its code
runs in a process of its own, with a time limit. Whatever the code does, there is one clear answer. If the
code deletes an exercise file, the check restores the file.
"""

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from labml_bert.course import folder as folders
from labml_bert.course.source import PACKAGE, is_empty, parameter_names, read_reference
from labml_bert.course.step import Step, Verdict
from labml_bert.course.track import STEPS

# Seconds that the code of a step may take. On an idle machine, every check takes less than one.
LIMIT = 30.0
# At most this many characters of an invalid line are printed.
MAX_LINE = 200
# Seconds for loading PyTorch, on a slow machine.
START = 120.0


@dataclass(frozen=True)
class Report:
    """What a check found out."""

    verdicts: list[Verdict]
    """One for each step that was checked; only the last can have failed."""
    next_step: Step | None
    """The first step that isn't done, or `None` if all are."""
    output: str
    """What the learner's code printed."""
    restored: dict[str, str]
    """For each file that was deleted or emptied during the check, the file that has its text now."""
    is_saved: bool
    """Whether the progress could be written."""


def check_folder(folder: Path, only: Step | None = None, limit: float = LIMIT) -> Report:
    """
    Checks all steps up to the first that isn't done, or `only` one step. Code that has passed before isn't
    checked again.

    Raises `ValueError` if a file of the exercises is missing, and `OSError` if the disk is full.
    """
    texts, progress = folders.read_files(folder), folders.read_progress(folder)
    unchecked: list[Step] = []
    problem = None
    for step in [only] if only else STEPS:
        problem = read_problem(step, texts[step.file])
        if problem:
            break
        if only or not is_done(step, texts, progress):
            unchecked.append(step)
    verdicts, output = run_in_process(unchecked, texts, limit) if unchecked else ([], "")
    restored = folders.put_back(folder, texts)
    for step, verdict in zip(unchecked, verdicts, strict=False):
        if verdict.passed:
            progress.passed[step.name] = folders.fingerprint(step, texts[step.file])
    # The learner may have asked for a hint during the check.
    progress.hints |= folders.read_progress(folder).hints
    is_saved = folders.write_progress(folder, progress) if verdicts else True
    if problem and all(verdict.passed for verdict in verdicts):
        verdicts.append(problem)
    remaining = (step for step in STEPS if not is_done(step, texts, progress))
    return Report(verdicts, next(remaining, None), output, restored, is_saved)


def next_step(folder: Path) -> Step | None:
    """
    The first step that isn't done, or `None` if all are. Without a record of the progress, checks the code.

    Raises `ValueError` if a file of the exercises is missing.
    """
    texts, progress = folders.read_files(folder), folders.read_progress(folder)
    if not progress.passed:
        return check_folder(folder).next_step
    return next((step for step in STEPS if not is_done(step, texts, progress)), None)


def is_done(step: Step, texts: dict[str, str], progress: folders.Progress) -> bool:
    """Whether a step has passed with this very code."""
    text = texts[step.file]
    return not read_problem(step, text) and progress.passed.get(step.name) == folders.fingerprint(step, text)


def read_problem(step: Step, text: str) -> Verdict | None:
    """What can be said about the code without running it, or `None` if nothing is wrong."""
    try:
        if is_empty(text, step.function):
            return Verdict(step.name, False, f"Not written yet: {step.task}.", mistake="not written")
        folders.fingerprint(step, text)
        names, expected = (parameter_names(t, step.function) for t in (text, read_reference(step.file)))
    except SyntaxError as error:
        line = (error.text or "").strip()
        details = (f"{error.msg}:", f"  {line[:MAX_LINE]}") if line else (f"{error.msg}.",)
        message = f"{step.file} isn't valid Python."
        return Verdict(step.name, False, message, details, error.lineno, "syntax error")
    except ValueError as error:
        message = f"In {step.file}, {error} any more. Every function of the file has to stay where it was."
        return Verdict(step.name, False, message)
    if names != expected:
        message = "The parameters must keep their names and their order, because other code uses them."
        details = (f"  expected  {', '.join(expected)}", f"  found     {', '.join(names)}")
        return Verdict(step.name, False, message, details)
    return None


def run_in_process(steps: list[Step], texts: dict[str, str], limit: float) -> tuple[list[Verdict], str]:
    """
    Runs `run_probes.py` in an empty folder. Returns its verdicts, and what the learner's code printed.

    Raises `OSError` if the disk is full.
    """
    with temporary_folder() as folder:
        empty = folder / "empty"
        empty.mkdir()
        job = {"steps": [step.name for step in steps], "files": texts, "limit": limit}
        (folder / "job.json").write_text(json.dumps(job), encoding="utf-8")
        paths = [str(PACKAGE.parent), *filter(None, [os.environ.get("PYTHONPATH")])]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "PYTHONIOENCODING": "utf-8"}
        seconds = START + limit * (len(steps) + 1)
        process = subprocess.Popen(
            [sys.executable, "-m", "labml_bert.course.run_probes", str(folder)],
            cwd=empty,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            # `os.kill(0, …)` sends a signal to all processes of a group, so don't share ours with this code.
            start_new_session=True,
        )
        output = bytearray()
        reader = threading.Thread(target=read_start, args=(process.stdout, output), daemon=True)
        reader.start()
        code = wait_for(process, folder / "trace.txt", seconds)
        # A program that the learner's code has started can keep the pipe open.
        reader.join(timeout=1)
        text = bytes(output).decode("utf-8", "replace")
        verdicts, trace = read_text(folder / "verdicts.jsonl"), read_text(folder / "trace.txt")
        finished = [*read_verdicts(verdicts)]
        if all(verdict.passed for verdict in finished) and len(finished) < len(steps):
            # If the verdict is missing because the disk is full, this write fails too.
            (folder / "test.bin").write_bytes(bytes(65_536))
            finished.append(explain_end(steps[len(finished)], code, trace, limit))
    return finished, text


def read_verdicts(text: str) -> Iterator[Verdict]:
    """
    Yields the verdict in each line. The learner's code can write to this file too, so stops at the first line
    that isn't a verdict.
    """
    with contextlib.suppress(ValueError, TypeError):
        for line in text.splitlines():
            yield Verdict(**json.loads(line))


def read_start(stream: IO[bytes], start: bytearray, most: int = 2000) -> None:
    """Reads a stream to its end, and appends its first `most` bytes to `start`. The output can be endless."""
    with stream:
        while data := os.read(stream.fileno(), 65_536):
            start += data[: most - len(start)]


def wait_for(process: "subprocess.Popen[bytes]", trace: Path, seconds: float) -> int | None:
    """
    Returns the exit code of a process, or `None` if it's stopped after `seconds`. A process that has written
    its traceback gets two more seconds to end, because on Windows, one that uses PyTorch may never end.
    """
    deadline = time.monotonic() + seconds
    try:
        while time.monotonic() < deadline:
            with contextlib.suppress(subprocess.TimeoutExpired):
                return process.wait(timeout=0.2)
            if read_text(trace):
                deadline = min(deadline, time.monotonic() + 2)
        return None
    finally:
        # The learner's code may have started other processes, so kill the whole group. Windows has no groups.
        if hasattr(os, "killpg"):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
        process.kill()
        process.wait()


@contextlib.contextmanager
def temporary_folder() -> Iterator[Path]:
    """A new folder, deleted at the end. On Windows, it stays if another program still uses it."""
    # In some versions of Python 3.11, `TemporaryDirectory` then recurses without end.
    folder = Path(tempfile.mkdtemp())
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def explain_end(step: Step, code: int | None, trace: str, limit: float) -> Verdict:
    """The verdict on code that ended the process too early."""
    if trace or code is None:
        # Other functions of the file may be original code, with other line numbers.
        name = step.function.rpartition(".")[2]
        lines = re.findall(rf'File "{re.escape(step.file)}", line (\d+) in {name}\b', trace)
        message = f"Your code was still running after {limit:g} seconds. Is there a loop without an end?"
        return Verdict(step.name, False, message, (), int(lines[0]) if lines else None)
    message = (
        f"Your code ended the process (exit code {code}). Does it call os._exit, or need too much memory?"
    )
    return Verdict(step.name, False, message)


def read_text(path: Path) -> str:
    """The text of a file, or an empty string if there is no such file."""
    return path.read_text(encoding="utf-8", errors="replace") if path.is_file() else ""
