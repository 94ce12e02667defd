"""A sample of the faults of `faults.py` and `power_loss.py`, and tests of the code they rely on."""

import errno
import os
import random
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.runs import ROOT
from tests.support.syscalls import IS_SUPPORTED, SHORT, Call, trace
from tests.tools.power_loss import FOLDER, Disk, File

needs_linux = pytest.mark.skipif(not IS_SUPPORTED, reason="needs the system calls of Linux on x86-64")


def run_tool(*words: str) -> str:
    command = [sys.executable, "-m", *words]
    process = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert process.returncode == 0, process.stdout + process.stderr
    return process.stdout


@pytest.mark.long
@needs_linux
@pytest.mark.processes
@pytest.mark.slow("starts some thirty commands")
@pytest.mark.parametrize(
    ("words", "least"),
    [("course start,prepare,--every=20", 20), ("mlm_tiny,course hint,--call=read,--every=9", 10)],
)
def test_no_fault_loses_anything(words: str, least: int) -> None:
    out = run_tool("tests.tools.faults", *words.split(","))
    match = re.search(r"^(\d+) faults, 0 problems$", out, re.MULTILINE)
    assert match is not None and int(match[1]) >= least


@pytest.mark.long
@needs_linux
@pytest.mark.processes
@pytest.mark.slow("starts seven commands")
def test_a_power_loss_loses_only_time() -> None:
    assert "6 crashes, 0 problems" in run_tool("tests.tools.power_loss", "prepare", "--crashes", "6")


@needs_linux
@pytest.mark.processes
@pytest.mark.parametrize(("answer", "size"), [(errno.ENOSPC, 0), (SHORT, 4), (None, 8)])
def test_a_fault_reaches_the_program(tmp_path: Path, answer: int | None, size: int) -> None:
    calls: list[Call] = []

    def on_call(call: Call) -> int | None:
        calls.append(call)
        return answer if call.name == "write" else None

    def write() -> None:
        file = os.open(tmp_path / "file", os.O_CREAT | os.O_WRONLY)
        # This write is outside the folder, so it isn't seen.
        os.write(os.open(os.devnull, os.O_WRONLY), b"nothing")
        try:
            code = os.write(file, b"contents")
        except OSError as error:
            code = error.errno
        os._exit(code)

    # Test runners and torch start unrelated child processes like this one.
    with subprocess.Popen(["sleep", "600"]) as other:
        status = trace(write, tmp_path, on_call)
        other.kill()
    assert [(call.name, call.paths, call.data) for call in calls] == [
        ("open", (tmp_path / "file",), b""),
        ("write", (tmp_path / "file",), b"contents"),
    ]
    assert os.waitstatus_to_exitcode(status) == (size or answer)
    assert (tmp_path / "file").read_bytes() == b"contents"[:size]


def test_a_crash_loses_only_what_was_not_flushed() -> None:
    folder, old, new = Path("/f"), Path("/f/old"), Path("/f/new")
    disk = Disk({folder: FOLDER, old: File([b"old"])})
    steps = [
        Call("open", (new,), os.O_CREAT, b"", 0),
        Call("write", (new,), 0, b"new", 0),
        Call("fsync", (new,), 0, b"", 0),
        Call("rename", (new, old), 0, b"", 0),
    ]
    for call in steps:
        disk.follow(call)
    draw = random.Random(0)
    assert disk.crash(draw, 0, 0) == {folder: None, old: b"old"}
    assert disk.crash(draw, 1, 1) == {folder: None, old: b"new"}
    states = {tuple(disk.crash(draw, 0.5, 0.5).items()) for _ in range(100)}
    assert states == {
        ((folder, None), (old, b"old")),
        ((folder, None), (old, b"new")),
        ((folder, None), (new, b"new"), (old, b"old")),
    }
    disk.follow(Call("fsync", (folder,), 0, b"", 0))
    assert disk.crash(draw, 0, 0) == {folder: None, old: b"new"}


def test_a_crash_loses_a_file_with_its_folder() -> None:
    folder, new = Path("/f/new"), Path("/f/new/file")
    disk = Disk({Path("/f"): FOLDER})
    disk.follow(Call("mkdir", (folder,), 0, b"", 0))
    disk.follow(Call("open", (new,), os.O_CREAT, b"", 0))
    disk.follow(Call("fsync", (folder,), 0, b"", 0))
    assert disk.crash(random.Random(0), 0, 0) == {Path("/f"): None}
    disk.follow(Call("rename", (folder, Path("/f/other")), 0, b"", 0))
    disk.follow(Call("fsync", (Path("/f"),), 0, b"", 0))
    assert disk.crash(random.Random(0), 0, 0).keys() == {Path("/f"), Path("/f/other"), Path("/f/other/file")}


def test_a_crash_tears_a_file_that_was_not_flushed() -> None:
    path = Path("/f/file")
    disk = Disk({Path("/f"): FOLDER, path: File([b"ab"])})
    disk.follow(Call("write", (path,), 0, b"cd", 2))
    contents = {disk.crash(random.Random(seed), 1, 0.3)[path] for seed in range(200)}
    assert contents == {b"ab", b"abc", b"abcd", b"abc\0", b"ab\0\0"}
