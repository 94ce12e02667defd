"""The first experiment as users run it: the terminal, the files, kills and unusual environments."""

import json
import os
import re
import signal
import subprocess
import time
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
    """Checks the header, the baselines, the samples, the result, the record, and the command at the end."""
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
    assert "\x1b" not in out, "color codes without a terminal"
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
    # A model that didn't learn couldn't be this far below the unigram baseline.
    assert record["result"]["loss"] < record["baselines"][1]["loss"] - 0.25
    assert f"{record['result']['loss']:.3f}" in out
    history = record["history"]
    assert history["loss"][0][1] == pytest.approx(record["baselines"][0]["loss"], rel=0.2)
    assert [step for step, _ in history["valid.loss"]] == [40 * i for i in range(1, 21)]
    assert history["seconds"][-1][1] <= record["result"]["training_seconds"]
    assert str(tmp_path) not in (tmp_path / "result.json").read_text()
    assert record["corpus"]["name"] == "text.txt"
    assert len(record["corpus"]["sha256"]) == 64

    suggested_command = out[out.index("Try it:") + 7 :]
    process = subprocess.run(suggested_command, shell=True, cwd=tmp_path, capture_output=True, text=True)
    assert process.returncode == 0, process.stderr
    assert "probability" in process.stdout

    folder = next((tmp_path / "logs" / "mlm_tiny").iterdir())
    assert read_metrics(folder)["valid.loss"][-1][0] == 800
    model, tokenizer = fill_mask.load_model(folder)
    first, second = fill_mask.fill_mask(model, tokenizer, "the cat see[MASK] t[MASK]e dog today.", top_k=3)
    assert len(first) == len(second) == 3
    assert [g.probability for g in second] == sorted((g.probability for g in second), reverse=True)
    assert second[0].sequence == f"the cat see[MASK] t{second[0].token}e dog today."
    assert sum(g.probability for g in second) <= 1


def test_speeds_count_the_tokens_of_whole_rows(corpus_file: Path, tmp_path: Path) -> None:
    """Of 150 tokens, 18 rows of 8 and 4 rows of 32 leave 6 and 22."""
    out = run("mlm_tiny", *SMALL, "--batch-tokens", 150, "--corpus", corpus_file, "--steps", 40, cwd=tmp_path)
    assert "up to 150 tokens per step" in " ".join(out.split())
    metrics = read_metrics(next((tmp_path / "logs" / "mlm_tiny").iterdir()))
    before, earlier = 1, 0.0  # the clock starts at the end of the first step
    for (step, speed), (_, seconds), (_, length) in zip(
        metrics["tokens_per_second"], metrics["seconds"], metrics["length"], strict=True
    ):
        tokens = (step - before) * (150 // int(length)) * length
        assert speed * (seconds - earlier) == pytest.approx(tokens, rel=1e-6)
        before, earlier = step, seconds
    assert before == 40


@pytest.mark.long
def test_a_killed_and_resumed_run_gives_identical_tensors(corpus_file: Path, tmp_path: Path) -> None:
    """After SIGKILL and `--resume`, every tensor equals that of an uninterrupted run."""
    options = ["--corpus", corpus_file, "--steps", 500, "--hidden-dropout-prob", 0.1]
    run("mlm_tiny", *SMALL, *options, "--runs", "whole", cwd=tmp_path)
    (uninterrupted,) = (tmp_path / "whole" / "mlm_tiny").iterdir()
    _, expected = load_checkpoint(uninterrupted)
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
        resume_process = subprocess.run(resume, cwd=tmp_path, capture_output=True, text=True)
        assert resume_process.returncode == 0, resume_process.stderr
        _, tensors = load_checkpoint(folder)
        assert tensors.keys() == expected.keys()
        assert [key for key in tensors if not torch.equal(tensors[key], expected[key])] == [], delay


@pytest.mark.long
def test_a_killed_run_loses_at_most_ten_seconds_of_metrics(corpus_file: Path, tmp_path: Path) -> None:
    process = subprocess.Popen(
        command("mlm_tiny", *SMALL, "--corpus", corpus_file, "--steps", 10**6),
        cwd=tmp_path,
        stdout=subprocess.DEVNULL,
    )
    while not (metrics_files := list(tmp_path.glob("logs/*/*/metrics.jsonl"))):
        assert process.poll() is None
        time.sleep(0.1)
    time.sleep(12)
    checkpoint = load_checkpoint(metrics_files[0].parent)[0]
    start_time = (metrics_files[0].parent / "tokenizer.json").stat().st_mtime
    elapsed = time.time() - start_time
    process.kill()
    process.wait()
    assert checkpoint["step"] == 0, "within the first thirty seconds, the only checkpoint is the initial one"
    assert read_metrics(metrics_files[0].parent)["seconds"][-1][1] > elapsed - 10


BACKWARD_CLOCK = """
import time
real, start = time.time, time.time()
time.time = lambda: 2 * start - real() - 3600
"""


@pytest.mark.long
def test_a_run_without_home_git_utf8_and_terminal_while_the_clock_runs_backward(tmp_path: Path) -> None:
    """A single run has all of these problems, in a folder whose name has spaces and non-ASCII letters."""
    folder = tmp_path / "ein größerer Ordner"
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(BACKWARD_CLOCK)
    (folder / "tëxt ä.txt").write_text(small_text(200).replace("cat", "kät"), encoding="utf-8")
    environment = {
        "PATH": "/nonexistent",
        "HOME": "/proc/nowhere",
        "LC_ALL": "C",
        "PYTHONUTF8": "0",
        "PYTHONCOERCECLOCALE": "0",
        "PYTHONPATH": os.pathsep.join([str(ROOT), str(folder)]),
    }
    words = ["--corpus", "tëxt ä.txt", "--steps", "3", "--record", "récord.json"]

    def start(*arguments: str) -> str:
        process = subprocess.run(
            [*command("mlm_tiny", *SMALL), *arguments],
            cwd=folder,
            env=environment,
            capture_output=True,
            stdin=subprocess.DEVNULL,
        )
        assert (process.returncode, process.stderr) == (0, b""), process.stderr.decode()
        return process.stdout.decode("ascii")

    out = start(*words)
    assert "t?xt ?.txt" in out and "this model" in out
    record = json.loads((folder / "récord.json").read_text(encoding="utf-8"))
    assert record["corpus"]["name"] == "tëxt ä.txt"
    assert record["commit"] is None
    # The last step of each length is reported, even if no time seems to have passed.
    assert [step for step, _ in record["history"]["loss"]][-1] == 3


@pytest.mark.long
def test_a_read_only_run_folder_is_a_one_line_error(
    corpus_file: Path, remountable_disk: Path, tmp_path: Path
) -> None:
    words = ["--corpus", corpus_file, "--steps", 2, "--runs", remountable_disk]
    subprocess.run(command("mlm_tiny", *SMALL, *words), cwd=tmp_path, check=True, capture_output=True)
    (folder,) = remountable_disk.glob("*/*/")
    subprocess.run(["mount", "-o", "remount,ro", str(remountable_disk)], check=True)
    for arguments, line in (
        (
            command("mlm_tiny", *SMALL, *words),
            f"error: cannot write runs to {remountable_disk}: Read-only.*\n",
        ),
        (command("mlm_tiny", "--resume", folder), "error: cannot write to .*: Read-only.*\n"),
    ):
        process = subprocess.run(arguments, cwd=tmp_path, capture_output=True, text=True)
        assert process.returncode == 2
        assert re.fullmatch(line, process.stderr)
