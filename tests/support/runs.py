"""A small text that a model can learn, and experiments started as from a shell."""

import os
import random
import runpy
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
# With these sizes, a step takes about a millisecond.
SIZES = ["--hidden-size=32", "--num-attention-heads=2", "--num-hidden-layers=2", "--batch-tokens=512"]
SMALL = [*SIZES, "--schedule=8,32", "--max-position-embeddings=32"]


def small_text(sentences: int, seed: int = 0) -> str:
    """Sentences from a small grammar, one per line."""
    r = random.Random(seed)
    nouns = ["cat", "dog", "bird", "horse", "child", "teacher", "river", "mountain", "garden", "letter"]
    verbs = ["sees", "follows", "finds", "remembers", "paints", "likes"]
    ends = ["today.", "again.", "in the morning.", "near the old house."]
    return "\n".join(
        f"the {r.choice(nouns)} {r.choice(verbs)} the {r.choice(nouns)} {r.choice(ends)}"
        for _ in range(sentences)
    )


def script(experiment: str) -> str:
    """The path of the experiment, whichever folder it is in."""
    (path,) = (ROOT / "experiments").rglob(f"{experiment}.py")
    return str(path)


def command(experiment: str, *arguments: object) -> list[str]:
    return [sys.executable, script(experiment), *map(str, arguments)]


def start(experiment: str, *arguments: object, cwd: Path, **environment: str) -> subprocess.Popen[str]:
    """Starts the experiment in the folder `cwd`, and puts its cache there as well."""
    return subprocess.Popen(
        command(experiment, *arguments),
        cwd=cwd,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "XDG_CACHE_HOME": str(cwd / "cache"), **environment},
    )


def run(experiment: str, *arguments: object, cwd: Path, **environment: str) -> str:
    """Runs the experiment to its end and returns what it printed."""
    process = start(experiment, *arguments, cwd=cwd, **environment)
    out, errors = process.communicate()
    assert process.returncode == 0, errors
    assert errors == ""
    assert max(map(len, out.splitlines())) <= 80
    return out


def main_in_process(
    monkeypatch: pytest.MonkeyPatch, cwd: Path, *arguments: object, experiment: str = "mlm_tiny"
) -> None:
    """Runs the experiment in the folder `cwd` as from a shell, but in this process."""
    monkeypatch.chdir(cwd)
    monkeypatch.setattr(sys, "argv", command(experiment, *arguments)[1:])
    runpy.run_path(script(experiment), run_name="__main__")


def wait_until(condition: Callable[[], object], seconds: float = 60) -> None:
    """Waits until `condition` returns something true. Fails after `seconds`."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def stop_with_ctrl_c(command: list[str], cwd: Path) -> str:
    """Starts an experiment, interrupts it as soon as it trains, and returns what it printed."""
    process = subprocess.Popen(command, cwd=cwd, stdout=subprocess.PIPE, text=True)
    while not list(cwd.glob("logs/*/*/metrics.jsonl")):
        assert process.poll() is None
        time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    out, _ = process.communicate(timeout=60)
    assert process.returncode == 130
    return out
