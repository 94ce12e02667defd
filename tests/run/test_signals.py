"""Every signal that stops a run, with every kind of output, in every phase of the run."""

import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

from labml_bert.files import PART, list_below
from labml_bert.training.checkpoint import CHECKPOINT, load_checkpoint
from tests.support.runs import SMALL, command, run

# Each phase begins when a file exists.
PHASES = {
    "loading": "",
    "before the first step": CHECKPOINT,
    "training": "metrics.jsonl",
    "end": "model/*.json",
}


@pytest.mark.long
@pytest.mark.processes
@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize("output", ["is read", "nobody reads"])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP], ids=lambda one: one.name)
def test_a_signal_loses_nothing(
    number: signal.Signals, output: str, phase: str, corpus_file: Path, tmp_path: Path
) -> None:
    words = command("mlm_tiny", *SMALL, "--corpus", corpus_file, "--steps", 200)
    reader, writer = os.pipe()
    os.close(reader)
    with open(tmp_path / "errors", "w") as errors, open(tmp_path / "output", "w") as file:
        streams = (file, errors) if output == "is read" else (writer, writer)
        process = subprocess.Popen(words, cwd=tmp_path, stdout=streams[0], stderr=streams[1])
    os.close(writer)
    if phase == "loading":
        time.sleep(0.3)
    while phase != "loading" and not [*tmp_path.glob(f"logs/*/*/{PHASES[phase]}")]:
        # If nobody reads its output, the run stops by itself, perhaps before this phase.
        assert process.poll() is None or output == "nobody reads"
        if process.poll() is not None:
            break
        time.sleep(0.005)
    process.send_signal(number)
    exit_code = process.wait(timeout=60)
    assert exit_code in (0, 130, -number)
    lines = (tmp_path / "errors").read_text().splitlines()
    assert len(lines) <= 2 and not any("Traceback" in line for line in lines), lines
    assert not [path for path in list_below(tmp_path) if path.name.endswith(PART)]
    if phase == "loading":
        assert not (tmp_path / "logs").exists()
        return
    (folder,) = (tmp_path / "logs" / "mlm_tiny").iterdir()
    assert load_checkpoint(folder)[0]["step"] >= (0 if phase == "before the first step" else 1)
    assert "this model" in run("mlm_tiny", "--resume", folder, cwd=tmp_path)
    assert load_checkpoint(folder)[0]["step"] == 200
