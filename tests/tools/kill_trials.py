"""
Kills most experiments at random moments and checks what is left. It takes a quarter of an hour, so it isn't
part of the test suite, which repeats a few of these kills in tests/experiments.

    python -m tests.tools.kill_trials                    # 20 kills for each experiment
    python -m tests.tools.kill_trials mlm_tiny --kills 5

An experiment with checkpoints is killed and resumed until it finishes. It survived if every tensor at the end
equals that of an uninterrupted run. An experiment without checkpoints starts with a record of an earlier run
in its folder; it survived if that record is unchanged, or has been replaced by a complete new one. A claim is
killed and restarted until its record is complete; it survived if its rows equal those of an uninterrupted
run.
"""

import argparse
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import torch

from labml_bert.files import read_tensors
from labml_bert.training.checkpoint import CHECKPOINT, load_checkpoint
from tests.support.runs import ROOT, small_text

SIGNALS = [signal.SIGKILL, signal.SIGTERM, signal.SIGINT]
SIZES = ["--hidden-size=32", "--num-attention-heads=2", "--num-hidden-layers=2", "--batch-tokens=512"]
COMMON = [*SIZES, "--schedule=16:3,32:1", "--hidden-dropout-prob=0.1", "--checkpoint-seconds=0"]
WITH_CHECKPOINTS = {
    "mlm_tiny": ["--corpus=text.txt", "--steps=600"],
    "mlm_words": ["--corpus=text.txt", "--steps=600"],
    "mlm_modern": ["--corpus=text.txt", "--steps=600", "--intermediate-size=48"],
    "own_language": ["--corpus=text.txt", "--steps=600", "--vocab-size=120"],
    "bert_tiny": ["--corpus=texts", "--steps=200", "--vocab-size=120"],
}
# Most kills happen during the computation, but only those during the writing of the record, at the very end,
# matter. So the sizes are as small as possible.
WITHOUT_CHECKPOINTS = {
    "attention_map": ["--run=model", "the cat [MASK] the dog"],
    "speed": ["--shapes=characters", "--dropout=0", "--rounds=1", "--batch-size=2", "--length=16"],
    "speed_ablation": ["--shapes=short", "--rounds=1", "--repeats=1"],
    "cost": ["--letters=B", "--rounds=1", "--batches=2", "--megabytes=0.2"],
    "live": [
        "--corpus=text.txt",
        *SIZES,
        "--schedule=16:3,32:1",
        "--max-position-embeddings=32",
        "--steps=40",
    ],
    "finetune_docstrings": ["--model=model/model", "--labels=20", "--pairs=20", "--seeds=1", "--steps=2"],
}
RECORD = "record.json"
# Seconds. No process takes this long, unless a child that should have ended keeps the output pipe open.
TIMEOUT = 900
# This replaces claims.toml, which `claims.py` reads from its own folder.
CLAIM = """
[[claim]]
name = "head"
title = "A small claim"
job = "masked"
seeds = 3
minutes = 1
options = { tokens = 51_200, corpus = "text.txt", hidden_size = 32, num_hidden_layers = 2 }
grid = { learning_rate = [1e-3, 2e-3] }
[claim.arms]
"both" = {}
"no dense layer" = { head_dense = false }
"""
# The number of processes that ended in a traceback instead of one line, by signal.
tracebacks: Counter[str] = Counter()


def start(experiment: str, *arguments: str, folder: Path) -> subprocess.Popen[str]:
    # The folder has a copy of the scripts for claims. All others run from the repository.
    path, *_ = (p for top in (folder, ROOT) for p in top.glob(f"experiments/**/{experiment}.py"))
    return subprocess.Popen(
        [sys.executable, str(path), *arguments],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "XDG_CACHE_HOME": str(folder / "cache")},
    )


def run_uninterrupted(experiment: str, *arguments: str, folder: Path) -> float:
    """Runs an experiment without interruption and returns the seconds it took."""
    start_time = time.monotonic()
    process = start(experiment, *arguments, folder=folder)
    out, _ = process.communicate(timeout=TIMEOUT)
    assert process.returncode == 0, out
    return time.monotonic() - start_time


def interrupt(process: subprocess.Popen[str], number: signal.Signals, delay: float) -> bool:
    """Sends the signal after `delay` seconds. Returns whether the process was still running then."""
    try:
        process.communicate(timeout=delay)
        return False
    except subprocess.TimeoutExpired:
        process.send_signal(number)
        out, _ = process.communicate(timeout=TIMEOUT)
        tracebacks[number.name] += "Traceback" in out
        return True


def try_checkpoints(
    experiment: str, folder: Path, kills: int, draw: random.Random
) -> Counter[tuple[str, bool]]:
    """
    Kills and resumes one run after another, until there were `kills` kills. Counts them by signal and
    survival.
    """
    options = [*COMMON, *WITH_CHECKPOINTS[experiment]]
    seconds = run_uninterrupted(experiment, *options, "--runs=whole", folder=folder)
    (uninterrupted,) = folder.glob(f"whole/{experiment}/*/")
    expected = load_checkpoint(uninterrupted)[1]
    outcomes: Counter[tuple[str, bool]] = Counter()
    kill_count = attempt = 0
    while kill_count < kills:
        attempt += 1
        signals_sent: list[str] = []
        run: Path | None = None
        step = 0
        is_finished = False
        while not is_finished:
            words = [*options, f"--runs=killed{attempt}"]
            if run is not None:
                words = ["--checkpoint-seconds=0", f"--resume={run}"]
            process = start(experiment, *words, folder=folder)
            if kill_count + len(signals_sent) < kills:
                number = SIGNALS[(kill_count + len(signals_sent)) % len(SIGNALS)]
                if interrupt(process, number, draw.uniform(0, seconds)):
                    signals_sent.append(number.name)
                else:
                    is_finished = process.returncode == 0
            else:
                process.communicate(timeout=TIMEOUT)
                is_finished = process.returncode == 0
                if not is_finished:
                    break
            run_folders = [path.parent for path in folder.glob(f"killed{attempt}/*/*/{CHECKPOINT}")]
            if run_folders:
                run = run_folders[0]
                checkpoint_step = load_checkpoint(run)[0]["step"]
                assert checkpoint_step >= step, "the step of a checkpoint decreased"
                step = checkpoint_step
        tensors = load_checkpoint(run)[1] if run is not None and is_finished else {}
        is_same = tensors.keys() == expected.keys() and all(
            torch.equal(tensors[key], expected[key]) for key in tensors
        )
        if run is not None and is_same:
            # The folder for `transformers` must be complete as well, with the same model.
            model = read_tensors(run / "model" / "model.safetensors")[0]
            is_same = all(torch.equal(value, tensors[f"model.{key}"]) for key, value in model.items())
        for name in signals_sent:
            outcomes[name, is_same] += 1
        kill_count += len(signals_sent)
    return outcomes


def try_records(experiment: str, folder: Path, kills: int, draw: random.Random) -> Counter[tuple[str, bool]]:
    """Kills an experiment again and again while the record of an earlier run is in place."""
    record = folder / RECORD
    options = [*WITHOUT_CHECKPOINTS[experiment], f"--record={RECORD}"]
    seconds = run_uninterrupted(experiment, *options, folder=folder)
    earlier_record = record.read_bytes()
    outcomes: Counter[tuple[str, bool]] = Counter()
    while outcomes.total() < kills:
        record.write_bytes(earlier_record)
        number = SIGNALS[outcomes.total() % len(SIGNALS)]
        process = start(experiment, *options, folder=folder)
        if not interrupt(process, number, draw.uniform(0.3 * seconds, 1.05 * seconds)):
            continue
        remaining_record = record.read_bytes()
        is_intact = (
            remaining_record == earlier_record or json.loads(remaining_record)["experiment"] == experiment
        )
        outcomes[number.name, is_intact] += 1
    return outcomes


def rows(path: Path) -> list[dict[str, Any]]:
    """The results in a claim's record, without the times."""
    table = json.loads(path.read_text("utf-8"))["table"]
    return [{key: value for key, value in row.items() if key != "core_seconds"} for row in table]


def try_claim(experiment: str, folder: Path, kills: int, draw: random.Random) -> Counter[tuple[str, bool]]:
    """
    Kills a small claim and restarts it until its record is complete, and repeats this until there were
    `kills` kills.
    """
    shutil.copytree(ROOT / "experiments" / "claims", folder / "experiments" / "claims")
    (folder / "experiments" / "claims" / "claims.toml").write_text(CLAIM)
    seconds = run_uninterrupted(experiment, "head", "--record=whole", folder=folder)
    expected = rows(folder / "whole" / "claims" / "head.json")
    outcomes: Counter[tuple[str, bool]] = Counter()
    attempt = 0
    while outcomes.total() < kills:
        attempt += 1
        record = folder / f"killed{attempt}" / "claims" / "head.json"
        signals_sent: list[str] = []
        rows_before: list[dict[str, Any]] = []
        rows_stay, is_finished = True, False
        while not is_finished:
            process = start(experiment, "head", f"--record=killed{attempt}", folder=folder)
            if outcomes.total() + len(signals_sent) == kills:
                process.communicate(timeout=TIMEOUT)
                is_finished = True
            elif interrupt(process, SIGNALS[len(signals_sent) % len(SIGNALS)], draw.uniform(0, seconds)):
                signals_sent.append(SIGNALS[len(signals_sent) % len(SIGNALS)].name)
            else:
                is_finished = True
            rows_now = rows(record) if record.exists() else []
            rows_stay = rows_stay and all(row in rows_now for row in rows_before)
            rows_before = rows_now
        for name in signals_sent:
            outcomes[name, rows_stay and rows_before == expected] += 1
    return outcomes


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("experiments", nargs="*", default=[*WITH_CHECKPOINTS, *WITHOUT_CHECKPOINTS, "claims"])
    parser.add_argument("--kills", type=int, default=20, help="for each experiment (default: 20)")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    print(
        f"{'experiment':<22}{'fault':<10}{'tries':>6}{'survived':>10}{'lost':>6}{'tracebacks':>12}",
        flush=True,
    )
    for experiment in options.experiments:
        draw = random.Random(f"{experiment} {options.seed}")
        tracebacks.clear()
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            (folder / "text.txt").write_text(small_text(1000))
            (folder / "texts").mkdir()
            for i in range(20):
                (folder / "texts" / f"{i}.txt").write_text(small_text(40, seed=i))
            if experiment in WITHOUT_CHECKPOINTS:
                model = ["--steps=1", "--runs=model", *COMMON, "--corpus=texts", "--vocab-size=120"]
                run_uninterrupted("bert_tiny", *model, folder=folder)
                (run,) = folder.glob("model/bert_tiny/*/")
                run.rename(folder / "made")
                (folder / "model" / "bert_tiny").rmdir()
                (folder / "model").rmdir()
                (folder / "made").rename(folder / "model")
            try_experiment = try_checkpoints if experiment in WITH_CHECKPOINTS else try_records
            outcomes = (try_claim if experiment == "claims" else try_experiment)(
                experiment, folder, options.kills, draw
            )
        for number in SIGNALS:
            survived, lost = outcomes[number.name, True], outcomes[number.name, False]
            line = f"{experiment:<22}{number.name:<10}{survived + lost:>6}{survived:>10}{lost:>6}"
            line += f"{tracebacks[number.name]:>12}"
            print(line, flush=True)


if __name__ == "__main__":
    main()
