"""Damaged files are rejected, and only one process holds a lock. For full disks see `test_faults.py`."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from labml_bert.files import lock, read_tensors, write_tensors
from tests.support.damage import flip_bit


def test_flipped_bits_and_truncation_are_detected(tmp_path: Path) -> None:
    """
    Every byte of a small file is flipped, header included. A flip may pass only if it changes nothing that is
    read.
    """
    tensors = {"a": torch.arange(6.0).view(2, 3), "b": torch.tensor([1, 2]), "c": torch.tensor(0.5)}
    path = tmp_path / "x.safetensors"
    write_tensors(path, tensors, {"about": "{}"})
    intact = path.read_bytes()
    harmless = 0
    for offset in range(len(intact)):
        path.write_bytes(flip_bit(intact, offset))
        try:
            loaded, metadata = read_tensors(path)
        except ValueError as error:
            assert "damaged" in str(error)
            continue
        harmless += 1
        assert metadata["about"] == "{}" and loaded.keys() == tensors.keys()
        assert all(torch.equal(loaded[key], tensors[key]) for key in tensors)
    assert harmless < 10
    for size in range(0, len(intact), 7):
        path.write_bytes(intact[:size])
        with pytest.raises(ValueError, match="damaged"):
            read_tensors(path)


# Locks

ROOT = Path(__file__).parents[1]

HOLD_LOCK = """
import sys
from pathlib import Path
from labml_bert.files import lock
with lock(Path(sys.argv[1])):
    print("locked", flush=True)
    sys.stdin.read()
"""


def start_lock_holder(folder: Path) -> subprocess.Popen[str]:
    """Starts a process that holds the lock of the folder until it is killed or its input ends."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD_LOCK, folder],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None and process.stdout.readline() == "locked\n"
    return process


@pytest.mark.processes
def test_a_second_process_fails_or_waits(tmp_path: Path) -> None:
    with start_lock_holder(tmp_path) as process:
        with pytest.raises(BlockingIOError, match="locked by another process"):
            lock(tmp_path)
        # A lock with another name in the same folder is free.
        with lock(tmp_path, name=".other.lock"):
            pass
        polls = []

        def on_wait() -> None:
            polls.append(process.poll())
            assert process.stdin is not None
            process.stdin.close()

        with lock(tmp_path, on_wait):
            assert polls == [None]
            assert process.wait() == 0


@pytest.mark.processes
def test_a_killed_process_leaves_no_lock(tmp_path: Path) -> None:
    with start_lock_holder(tmp_path) as process:
        process.kill()
    with lock(tmp_path):
        pass


def test_a_lock_is_released_with_its_block_or_its_object(tmp_path: Path) -> None:
    for _ in range(2):
        with lock(tmp_path), pytest.raises(BlockingIOError):
            lock(tmp_path)
    lock(tmp_path)
    lock_object = lock(tmp_path)
    with pytest.raises(BlockingIOError):
        lock(tmp_path)
    del lock_object
    with lock(tmp_path):
        pass


def test_a_lock_never_follows_a_symbolic_link(tmp_path: Path) -> None:
    target = tmp_path / "precious"
    target.write_text("kept")
    (tmp_path / ".lock").symlink_to(target)
    with pytest.raises(OSError, match="symbolic link"):
        lock(tmp_path)
    assert target.read_text() == "kept"
    (tmp_path / ".lock").unlink()
    (tmp_path / ".lock").write_text("kept")
    with lock(tmp_path):
        pass
    assert (tmp_path / ".lock").read_text() == "kept"
