"""The first experiment as its users meet it: the terminal, the files, kills and strange places."""

import json
import os
import re
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from labml_bert import fill_mask
from labml_bert.training.checkpoint import CHECKPOINT, load_checkpoint
from labml_bert.training.tracking import read_metrics
from tests.support.runs import ROOT, SMALL, command, run, small_text

pytestmark = pytest.mark.processes

NO_NETWORK = """
import socket
def refuse(*args, **kwargs):
    open("network-was-tried", "a").write(repr(args))
    raise OSError("no network in this test")
socket.socket.connect = socket.socket.connect_ex = refuse
socket.getaddrinfo = socket.create_connection = refuse
"""


def test_a_run_from_text_to_a_filled_mask(corpus_file: Path, tmp_path: Path) -> None:
    """Header, baselines, samples, result, record, and the command it ends with, pasted into a shell."""
    (tmp_path / "sitecustomize.py").write_text(NO_NETWORK)
    out = run(
        "mlm_tiny",
        *SMALL,
        "--corpus",
        corpus_file,
        "--steps",
        800,
        "--record",
        "result.json",
        cwd=tmp_path,
        PYTHONPATH=str(tmp_path),
    )
    assert not (tmp_path / "network-was-tried").exists()
    assert max(map(len, out.splitlines())) <= 80
    assert "\x1b" not in out, "color codes where there is no terminal"
    for words in (
        "two-neighbor n-gram",
        "unigram",
        "after length 8",
        "after length 32",
        "✓",
        "this model",
    ):
        assert words in out

    record = json.loads((tmp_path / "result.json").read_text())
    assert record["result"]["steps"] == 800
    # It beats letter frequencies by far; a loop that did not train could not.
    assert record["result"]["loss"] < record["baselines"][1]["loss"] - 0.25
    assert f"{record['result']['loss']:.3f}" in out
    history = record["history"]
    assert history["loss"][0][1] == pytest.approx(record["baselines"][0]["loss"], rel=0.2)
    assert [step for step, _ in history["valid.loss"]] == [40 * i for i in range(1, 21)]
    assert history["seconds"][-1][1] <= record["result"]["training_seconds"]
    assert str(tmp_path) not in (tmp_path / "result.json").read_text()
    assert record["corpus"]["name"] == "text.txt"
    assert len(record["corpus"]["sha256"]) == 64

    pasted = out[out.index("Try it:") + 7 :]
    filled = subprocess.run(pasted, shell=True, cwd=tmp_path, capture_output=True, text=True)
    assert filled.returncode == 0, filled.stderr
    assert "probability" in filled.stdout

    folder = next((tmp_path / "logs" / "mlm_tiny").iterdir())
    assert read_metrics(folder)["valid.loss"][-1][0] == 800
    model, tokenizer = fill_mask.load_model(folder)
    first, second = fill_mask.fill_mask(model, tokenizer, "the cat see[MASK] t[MASK]e dog today.", top_k=3)
    assert len(first) == len(second) == 3
    assert [g.probability for g in second] == sorted((g.probability for g in second), reverse=True)
    assert second[0].sequence == f"the cat see[MASK] t{second[0].token}e dog today."
    assert sum(g.probability for g in second) <= 1


def test_killed_and_resumed_is_as_if_nothing_happened(corpus_file: Path, tmp_path: Path) -> None:
    """SIGKILL, `--resume`, and every tensor of the end equals that of the uninterrupted run."""
    options = ["--corpus", corpus_file, "--steps", 500, "--hidden-dropout-prob", 0.1]
    run("mlm_tiny", *SMALL, *options, "--runs", "whole", cwd=tmp_path)
    (whole,) = (tmp_path / "whole" / "mlm_tiny").iterdir()
    _, expected = load_checkpoint(whole)
    for delay in (0.0, 1.4):
        runs = tmp_path / f"killed-{delay}"
        process = subprocess.Popen(
            command("mlm_tiny", *SMALL, *options, "--runs", runs, "--checkpoint-seconds", 0),
            cwd=tmp_path,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        while not list(runs.glob(f"*/*/{CHECKPOINT}")):
            assert process.poll() is None
            time.sleep(0.01)
        time.sleep(delay)
        process.kill()
        assert process.wait() == -signal.SIGKILL
        (folder,) = (runs / "mlm_tiny").iterdir()
        assert load_checkpoint(folder)[0]["step"] < 500
        resume = command("mlm_tiny", "--resume", folder)
        run_again = subprocess.run(resume, cwd=tmp_path, capture_output=True, text=True)
        assert run_again.returncode == 0, run_again.stderr
        _, tensors = load_checkpoint(folder)
        assert tensors.keys() == expected.keys()
        assert [key for key in tensors if not torch.equal(tensors[key], expected[key])] == [], delay


def test_a_killed_run_loses_at_most_ten_seconds_of_metrics(corpus_file: Path, tmp_path: Path) -> None:
    process = subprocess.Popen(
        command("mlm_tiny", *SMALL, "--corpus", corpus_file, "--steps", 10**6),
        cwd=tmp_path,
        stdout=subprocess.DEVNULL,
    )
    while not (found := list(tmp_path.glob("logs/*/*/metrics.jsonl"))):
        assert process.poll() is None
        time.sleep(0.1)
    time.sleep(12)
    checkpoint = load_checkpoint(found[0].parent)[0]
    started = (found[0].parent / "tokenizer.json").stat().st_mtime
    ran = time.time() - started
    process.kill()
    process.wait()
    assert checkpoint["step"] == 0, (
        "before the first thirty seconds are over the only checkpoint is the first"
    )
    assert read_metrics(found[0].parent)["seconds"][-1][1] > ran - 10


STRANGE_CLOCK = """
import time
real, start = time.time, time.time()
time.time = lambda: 2 * start - real() - 3600
"""


def test_no_home_no_git_no_utf8_no_terminal_a_clock_that_runs_backwards(tmp_path: Path) -> None:
    """And a path with blanks and foreign letters, all in one run, which is then resumed."""
    place = tmp_path / "ein größerer Ordner"
    place.mkdir()
    (place / "sitecustomize.py").write_text(STRANGE_CLOCK)
    (place / "tëxt ä.txt").write_text(small_text(200).replace("cat", "kät"), encoding="utf-8")
    environment = {
        "PATH": "/nonexistent",
        "HOME": "/proc/nowhere",
        "LC_ALL": "C",
        "PYTHONUTF8": "0",
        "PYTHONCOERCECLOCALE": "0",
        "PYTHONPATH": os.pathsep.join([str(ROOT), str(place)]),
    }
    words = ["--corpus", "tëxt ä.txt", "--steps", "3", "--record", "récord.json"]

    def start(*arguments: str) -> str:
        done = subprocess.run(
            [*command("mlm_tiny", *SMALL), *arguments],
            cwd=place,
            env=environment,
            capture_output=True,
            stdin=subprocess.DEVNULL,
        )
        assert (done.returncode, done.stderr) == (0, b""), done.stderr.decode()
        return done.stdout.decode("ascii")

    out = start(*words)
    assert "t?xt ?.txt" in out and "this model" in out
    record = json.loads((place / "récord.json").read_text(encoding="utf-8"))
    assert record["corpus"]["name"] == "tëxt ä.txt"
    assert record["commit"] is None
    # One report a step at least at the end of each length, though the clock says that no time has passed.
    assert [step for step, _ in record["history"]["loss"]][-1] == 3


@pytest.fixture()
def read_only_disk(tmp_path: Path) -> Iterator[Path]:
    """A run that was stopped, on a disk that cannot be written any more."""
    path = tmp_path / "disk"
    path.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "tmpfs", str(path)], capture_output=True).returncode:
        pytest.skip("a disk that cannot be written needs the right to mount one")
    yield path
    subprocess.run(["umount", "--lazy", str(path)], check=True)


def test_a_run_folder_that_cannot_be_written(corpus_file: Path, read_only_disk: Path, tmp_path: Path) -> None:
    words = ["--corpus", corpus_file, "--steps", 2, "--runs", read_only_disk]
    subprocess.run(command("mlm_tiny", *SMALL, *words), cwd=tmp_path, check=True, capture_output=True)
    (folder,) = read_only_disk.glob("*/*/")
    subprocess.run(["mount", "-o", "remount,ro", str(read_only_disk)], check=True)
    for arguments, line in (
        (command("mlm_tiny", *SMALL, *words), f"error: cannot write runs to {read_only_disk}: Read-only.*\n"),
        (command("mlm_tiny", "--resume", folder), "error: cannot write to .*: Read-only.*\n"),
    ):
        done = subprocess.run(arguments, cwd=tmp_path, capture_output=True, text=True)
        assert done.returncode == 2
        assert re.fullmatch(line, done.stderr)
