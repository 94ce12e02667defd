"""
Kills every experiment at random moments and looks at what is left. It takes a quarter of an hour, so it isn't
part of the suite, which has a few of these kills in tests/experiments.

    python -m tests.tools.kill_trials                    # 20 kills for each experiment
    python -m tests.tools.kill_trials mlm_tiny --kills 5

An experiment with checkpoints is killed, resumed, killed again, until it comes to its end. It survived if
every tensor of the end equals that of a run that nobody disturbed. One without checkpoints has a record of an
earlier run in the place of its own; it survived if that is as it was, or whole and new. The ledger of claims
is killed and started again until it is full; it survived if its rows are those that nobody disturbed.
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
    "own_language": ["--corpus=text.txt", "--steps=600", "--vocab-size=120"],
    "bert_tiny": ["--corpus=texts", "--steps=200", "--vocab-size=120"],
}
# What a kill meets is the work; where it meets the writing of the record, only the last moments count, so the
# sizes are as small as they can be.
WITHOUT = {
    "attention_map": ["--run=model", "the cat [MASK] the dog"],
    "speed": ["--shapes=characters", "--dropout=0", "--rounds=1", "--batch-size=2", "--length=16"],
    "speed_ledger": ["--shapes=short", "--rounds=1", "--repeats=1"],
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
# Seconds. Nothing here takes so long; where it does, something holds the output open that should have ended.
LONGEST = 900
# `claims.py` reads the file beside it.
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
# How many ended in a traceback where one line would do, by signal.
tracebacks: Counter[str] = Counter()


def start(experiment: str, *arguments: str, folder: Path) -> subprocess.Popen[str]:
    # The claims have a copy in the folder.
    path, *_ = (p for top in (folder, ROOT) for p in top.glob(f"experiments/**/{experiment}.py"))
    return subprocess.Popen(
        [sys.executable, str(path), *arguments],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "XDG_CACHE_HOME": str(folder / "cache")},
    )


def finish(experiment: str, *arguments: str, folder: Path) -> float:
    """Runs it undisturbed. Returns the seconds."""
    began = time.monotonic()
    process = start(experiment, *arguments, folder=folder)
    out, _ = process.communicate(timeout=LONGEST)
    assert process.returncode == 0, out
    return time.monotonic() - began


def disturbed(process: subprocess.Popen[str], number: signal.Signals, delay: float) -> bool:
    """Sends the signal after `delay` seconds. Returns whether the process was still there to get it."""
    try:
        process.communicate(timeout=delay)
        return False
    except subprocess.TimeoutExpired:
        process.send_signal(number)
        out, _ = process.communicate(timeout=LONGEST)
        tracebacks[number.name] += "Traceback" in out
        return True


def checkpoints(experiment: str, folder: Path, kills: int, draw: random.Random) -> Counter[tuple[str, bool]]:
    """Kills and resumes, run after run, until there were so many kills. Counts by signal and survival."""
    options = [*COMMON, *WITH_CHECKPOINTS[experiment]]
    seconds = finish(experiment, *options, "--runs=whole", folder=folder)
    (whole,) = folder.glob(f"whole/{experiment}/*/")
    expected = load_checkpoint(whole)[1]
    counted: Counter[tuple[str, bool]] = Counter()
    done = attempt = 0
    while done < kills:
        attempt += 1
        met: list[str] = []
        run: Path | None = None
        step = 0
        ended = False
        while not ended:
            words = [*options, f"--runs=killed{attempt}"]
            if run is not None:
                words = ["--checkpoint-seconds=0", f"--resume={run}"]
            process = start(experiment, *words, folder=folder)
            if done + len(met) < kills:
                number = SIGNALS[(done + len(met)) % len(SIGNALS)]
                if disturbed(process, number, draw.uniform(0, seconds)):
                    met.append(number.name)
                else:
                    ended = process.returncode == 0
            else:
                process.communicate(timeout=LONGEST)
                ended = process.returncode == 0
                if not ended:
                    break
            found = [path.parent for path in folder.glob(f"killed{attempt}/*/*/{CHECKPOINT}")]
            if found:
                run = found[0]
                now = load_checkpoint(run)[0]["step"]
                assert now >= step, "a checkpoint went back"
                step = now
        got = load_checkpoint(run)[1] if run is not None and ended else {}
        same = got.keys() == expected.keys() and all(torch.equal(got[key], expected[key]) for key in got)
        if run is not None and same:
            # The folder for `transformers` is whole too, and of the same model.
            model = read_tensors(run / "model" / "model.safetensors")[0]
            same = all(torch.equal(value, got[f"model.{key}"]) for key, value in model.items())
        for name in met:
            counted[name, same] += 1
        done += len(met)
    return counted


def records(experiment: str, folder: Path, kills: int, draw: random.Random) -> Counter[tuple[str, bool]]:
    """Kills it again and again over the record of an earlier run."""
    record = folder / RECORD
    options = [*WITHOUT[experiment], f"--record={RECORD}"]
    seconds = finish(experiment, *options, folder=folder)
    older = record.read_bytes()
    counted: Counter[tuple[str, bool]] = Counter()
    while counted.total() < kills:
        record.write_bytes(older)
        number = SIGNALS[counted.total() % len(SIGNALS)]
        process = start(experiment, *options, folder=folder)
        if not disturbed(process, number, draw.uniform(0.3 * seconds, 1.05 * seconds)):
            continue
        left = record.read_bytes()
        whole = left == older or json.loads(left)["experiment"] == experiment
        counted[number.name, whole] += 1
    return counted


def rows(path: Path) -> list[dict[str, Any]]:
    """What a ledger found; how long it took is another matter."""
    table = json.loads(path.read_text("utf-8"))["table"]
    return [{key: value for key, value in row.items() if key != "core_seconds"} for row in table]


def ledger(experiment: str, folder: Path, kills: int, draw: random.Random) -> Counter[tuple[str, bool]]:
    """Kills a small claim and starts it again until its ledger is full, with new ledgers up to `kills`."""
    shutil.copytree(ROOT / "experiments" / "claims", folder / "experiments" / "claims")
    (folder / "experiments" / "claims" / "claims.toml").write_text(CLAIM)
    seconds = finish(experiment, "head", "--record=whole", folder=folder)
    expected = rows(folder / "whole" / "claims" / "head.json")
    counted: Counter[tuple[str, bool]] = Counter()
    attempt = 0
    while counted.total() < kills:
        attempt += 1
        record = folder / f"killed{attempt}" / "claims" / "head.json"
        met: list[str] = []
        there: list[dict[str, Any]] = []
        kept, ended = True, False
        while not ended:
            process = start(experiment, "head", f"--record=killed{attempt}", folder=folder)
            if counted.total() + len(met) == kills:
                process.communicate(timeout=LONGEST)
                ended = True
            elif disturbed(process, SIGNALS[len(met) % len(SIGNALS)], draw.uniform(0, seconds)):
                met.append(SIGNALS[len(met) % len(SIGNALS)].name)
            else:
                ended = True
            now = rows(record) if record.exists() else []
            kept = kept and all(row in now for row in there)
            there = now
        for name in met:
            counted[name, kept and there == expected] += 1
    return counted


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("experiments", nargs="*", default=[*WITH_CHECKPOINTS, *WITHOUT, "claims"])
    parser.add_argument("--kills", type=int, default=20, help="for each experiment (default: 20)")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    print(
        f"{'experiment':<22}{'fault':<10}{'tries':>6}{'survived':>10}{'lost':>6}{'tracebacks':>12}",
        flush=True,
    )
    for experiment in given.experiments:
        draw = random.Random(f"{experiment} {given.seed}")
        tracebacks.clear()
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            (folder / "text.txt").write_text(small_text(1000))
            (folder / "texts").mkdir()
            for i in range(20):
                (folder / "texts" / f"{i}.txt").write_text(small_text(40, seed=i))
            if experiment in WITHOUT:
                model = ["--steps=1", "--runs=model", *COMMON, "--corpus=texts", "--vocab-size=120"]
                finish("bert_tiny", *model, folder=folder)
                (made,) = folder.glob("model/bert_tiny/*/")
                made.rename(folder / "made")
                (folder / "model" / "bert_tiny").rmdir()
                (folder / "model").rmdir()
                (folder / "made").rename(folder / "model")
            trial = checkpoints if experiment in WITH_CHECKPOINTS else records
            counted = (ledger if experiment == "claims" else trial)(experiment, folder, given.kills, draw)
        for number in SIGNALS:
            survived, lost = counted[number.name, True], counted[number.name, False]
            line = f"{experiment:<22}{number.name:<10}{survived + lost:>6}{survived:>10}{lost:>6}"
            line += f"{tracebacks[number.name]:>12}"
            print(line, flush=True)


if __name__ == "__main__":
    main()
