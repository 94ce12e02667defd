"""Damaged files are refused, and a lock is for one process. Full disks are in `training/test_faults.py`."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from labml_bert.files import lock, read_tensors, write_tensors
from tests.support.damage import flip_bit


def test_no_flipped_bit_and_no_cut_gets_through(tmp_path: Path) -> None:
    """Of a small file every byte, its header too; a flip that changes nothing that is read may pass."""
    tensors = {"a": torch.arange(6.0).view(2, 3), "b": torch.tensor([1, 2]), "c": torch.tensor(0.5)}
    path = tmp_path / "x.safetensors"
    write_tensors(path, tensors, {"about": "{}"})
    whole = path.read_bytes()
    harmless = 0
    for at in range(len(whole)):
        path.write_bytes(flip_bit(whole, at))
        try:
            found, metadata = read_tensors(path)
        except ValueError as error:
            assert "damaged" in str(error)
            continue
        harmless += 1
        assert metadata["about"] == "{}" and found.keys() == tensors.keys()
        assert all(torch.equal(found[key], tensors[key]) for key in tensors)
    assert harmless < 10
    for size in range(0, len(whole), 7):
        path.write_bytes(whole[:size])
        with pytest.raises(ValueError, match="damaged"):
            read_tensors(path)


# Locks

ROOT = Path(__file__).parents[1]

HOLD = """
import sys
from pathlib import Path
from labml_bert.files import lock
with lock(Path(sys.argv[1])):
    print("locked", flush=True)
    sys.stdin.read()
"""


def holder(folder: Path) -> subprocess.Popen[str]:
    """Another process that has the lock of the folder until it is killed or its input ends."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, folder],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None and process.stdout.readline() == "locked\n"
    return process


@pytest.mark.processes
def test_another_process_is_refused_or_waits(tmp_path: Path) -> None:
    with holder(tmp_path) as process:
        with pytest.raises(BlockingIOError, match="locked by another process"):
            lock(tmp_path)
        # Another thing in the same folder is free.
        with lock(tmp_path, name=".other.lock"):
            pass
        waits = []

        def on_wait() -> None:
            waits.append(process.poll())
            assert process.stdin is not None
            process.stdin.close()

        with lock(tmp_path, on_wait):
            assert waits == [None]
            assert process.wait() == 0


@pytest.mark.processes
def test_a_killed_process_leaves_no_lock(tmp_path: Path) -> None:
    with holder(tmp_path) as process:
        process.kill()
    with lock(tmp_path):
        pass


def test_a_lock_is_free_after_its_block_and_after_its_object(tmp_path: Path) -> None:
    for _ in range(2):
        with lock(tmp_path), pytest.raises(BlockingIOError):
            lock(tmp_path)
    lock(tmp_path)
    held = lock(tmp_path)
    with pytest.raises(BlockingIOError):
        lock(tmp_path)
    del held
    with lock(tmp_path):
        pass


def test_the_target_of_a_link_is_left_alone(tmp_path: Path) -> None:
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
