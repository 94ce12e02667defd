"""A small text that can be learned, and experiments as they are started from a shell."""

import random
import runpy
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

EXPERIMENTS = Path(__file__).parents[2] / "experiments"


def small_text(sentences: int, seed: int = 0) -> str:
    """Sentences of a little grammar, one a line."""
    r = random.Random(seed)
    nouns = ["cat", "dog", "bird", "horse", "child", "teacher", "river", "mountain", "garden", "letter"]
    verbs = ["sees", "follows", "finds", "remembers", "paints", "likes"]
    ends = ["today.", "again.", "in the morning.", "near the old house."]
    return "\n".join(
        f"the {r.choice(nouns)} {r.choice(verbs)} the {r.choice(nouns)} {r.choice(ends)}"
        for _ in range(sentences)
    )


def main_in_process(
    monkeypatch: pytest.MonkeyPatch, cwd: Path, *arguments: object, experiment: str = "mlm_tiny"
) -> None:
    """The experiment, started in the folder `cwd` as from a shell, but in this process."""
    monkeypatch.chdir(cwd)
    script = str(EXPERIMENTS / f"{experiment}.py")
    monkeypatch.setattr(sys, "argv", [script, *map(str, arguments)])
    runpy.run_path(script, run_name="__main__")


def stopped_by_ctrl_c(command: list[str], cwd: Path) -> str:
    """Starts an experiment, stops it as soon as it trains, and returns what it printed."""
    process = subprocess.Popen(command, cwd=cwd, stdout=subprocess.PIPE, text=True)
    while not list(cwd.glob("logs/*/*/log.jsonl")):
        assert process.poll() is None
        time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    out, _ = process.communicate(timeout=60)
    assert process.returncode == 130
    return out
