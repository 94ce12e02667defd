"""The experiment with the modern encoder."""

import json
import signal
import subprocess
import time
from pathlib import Path

import pytest
import torch

from labml_bert import fill_mask
from labml_bert.modern import ModernBertForMaskedLM
from labml_bert.training.checkpoint import CHECKPOINT, load_checkpoint
from tests.support.runs import SMALL, command, run

pytestmark = pytest.mark.processes
OPTIONS = [*SMALL, "--intermediate-size=48"]


@pytest.mark.long
def test_a_modern_run_from_text_to_a_filled_mask(corpus_file: Path, tmp_path: Path) -> None:
    out = run(
        "mlm_modern", *OPTIONS, "--corpus", corpus_file, "--steps", 400, "--record", "r.json", cwd=tmp_path
    )
    record = json.loads((tmp_path / "r.json").read_text())
    assert record["configuration"]["optimizer"] == "muon"
    assert record["result"]["loss"] < record["baselines"][1]["loss"] - 0.5
    suggested_command = out[out.index("Try it:") + 7 :]
    process = subprocess.run(suggested_command, shell=True, cwd=tmp_path, capture_output=True, text=True)
    assert process.returncode == 0, process.stderr
    folder = next((tmp_path / "logs" / "mlm_modern").iterdir())
    from_run, tokenizer = fill_mask.load_model(folder)
    from_folder, _ = fill_mask.load_model(folder / "model")
    assert isinstance(from_run, ModernBertForMaskedLM) and isinstance(from_folder, ModernBertForMaskedLM)
    text = "the cat see[MASK] t[MASK]e dog today."
    first, second = (fill_mask.fill_mask(model, tokenizer, text) for model in (from_run, from_folder))
    assert first == second
    assert "h" in [guess.token for guess in first[1][:3]]


@pytest.mark.long
def test_a_killed_modern_run_resumes_to_identical_tensors(corpus_file: Path, tmp_path: Path) -> None:
    options = ["--corpus", corpus_file, "--steps", 200]
    run("mlm_modern", *OPTIONS, *options, "--runs", "whole", cwd=tmp_path)
    (whole,) = (tmp_path / "whole" / "mlm_modern").iterdir()
    expected = load_checkpoint(whole)[1]
    words = command("mlm_modern", *OPTIONS, *options, "--runs", "killed", "--checkpoint-seconds", 0)
    process = subprocess.Popen(words, cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    while not list(tmp_path.glob(f"killed/*/*/{CHECKPOINT}")):
        assert process.poll() is None
        time.sleep(0.01)
    time.sleep(1)
    process.kill()
    assert process.wait() == -signal.SIGKILL
    (folder,) = (tmp_path / "killed" / "mlm_modern").iterdir()
    assert load_checkpoint(folder)[0]["step"] < 200
    resumed = subprocess.run(
        command("mlm_modern", "--resume", folder), cwd=tmp_path, capture_output=True, text=True
    )
    assert resumed.returncode == 0, resumed.stderr
    tensors = load_checkpoint(folder)[1]
    assert tensors.keys() == expected.keys()
    assert [key for key in tensors if not torch.equal(tensors[key], expected[key])] == []


@pytest.mark.long
def test_export_and_attention_map_refuse_a_modern_model(corpus_file: Path, tmp_path: Path) -> None:
    run("mlm_modern", *OPTIONS, "--corpus", corpus_file, "--steps", 2, cwd=tmp_path)
    folder = next((tmp_path / "logs" / "mlm_modern").iterdir())
    exporting = [command("attention_map")[0], "-m", "labml_bert.export", folder, "--to", "onnx"]
    for words in (exporting, command("attention_map", "--run", folder)):
        process = subprocess.run(map(str, words), cwd=tmp_path, capture_output=True, text=True)
        assert process.returncode == 2
        assert "has a modern model" in process.stderr and len(process.stderr.splitlines()) == 1
