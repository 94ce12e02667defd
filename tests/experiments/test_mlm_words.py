"""The experiment on words."""

import json
from pathlib import Path

import pytest

from labml_bert import fill_mask
from tests.support.runs import SMALL, run

pytestmark = pytest.mark.processes


@pytest.mark.long
def test_a_run_on_words(corpus_file: Path, tmp_path: Path) -> None:
    # With a vocabulary of thirty words, the learning rate for characters works as well.
    options = ["--corpus", corpus_file, "--steps", 800, "--learning-rate", 3e-3, "--record", "r.json"]
    out = run("mlm_words", *SMALL, *options, cwd=tmp_path)
    assert "words" in out
    record = json.loads((tmp_path / "r.json").read_text())
    assert record["configuration"]["model"]["vocab_size"] < 100, "words, not subwords"
    assert record["result"]["loss"] < record["baselines"][1]["loss"] - 0.5
    folder = next((tmp_path / "logs" / "mlm_words").iterdir())
    guesses = fill_mask.fill_mask(*fill_mask.load_model(folder), "the cat sees [MASK] dog", top_k=3)
    assert "the" in [guess.token for guess in guesses[0]]
