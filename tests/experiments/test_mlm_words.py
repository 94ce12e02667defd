"""The experiment on words."""

import json
from pathlib import Path

import pytest

from labml_bert import fill_mask
from tests.support.runs import SMALL, run

pytestmark = pytest.mark.processes


def test_words(corpus_file: Path, tmp_path: Path) -> None:
    # A vocabulary of thirty words can take the rate of characters.
    options = ["--corpus", corpus_file, "--steps", 800, "--learning-rate", 3e-3, "--record", "r.json"]
    out = run("mlm_words", *SMALL, *options, cwd=tmp_path)
    assert "words" in out
    record = json.loads((tmp_path / "r.json").read_text())
    assert record["configuration"]["model"]["vocab_size"] < 100, "words, and not pieces of them"
    assert record["result"]["loss"] < record["baselines"][1]["loss"] - 0.5
    folder = next((tmp_path / "logs" / "mlm_words").iterdir())
    guesses = fill_mask.fill_mask(*fill_mask.load_model(folder), "the cat sees [MASK] dog", top_k=3)
    assert "the" in [guess.token for guess in guesses[0]]
