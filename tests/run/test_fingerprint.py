"""
A record is current if today's code reproduces its fingerprint: every record is checked, and so is the
check.
"""

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from experiments import mlm_tiny
from labml_bert import mlm
from labml_bert.run.fingerprint import (
    RUNS,
    difference,
    fingerprints_of,
    load_script,
    machine,
    take_fingerprint,
    why_not_here,
)

SAVED = {
    (path.relative_to(RUNS).with_suffix("").as_posix(), part): path
    for path in sorted(RUNS.rglob("*.json"))
    for part in json.loads(path.read_text("utf-8")).get("fingerprints", {})
}


@pytest.mark.slow("each reads a whole text and trains for 32 steps")
@pytest.mark.parametrize(("name", "part"), SAVED)
def test_todays_code_reproduces_the_record(name: str, part: str) -> None:
    record = json.loads(SAVED[name, part].read_text("utf-8"))
    if reason := why_not_here(record):
        pytest.skip(f"{name} is checked where its text is: {reason}")
    assert difference(record["fingerprints"][part], fingerprints_of(record)[part]()) == ""


@pytest.fixture()
def options(corpus_file: Path) -> mlm_tiny.Options:
    return mlm_tiny.Options(
        corpus=str(corpus_file),
        schedule="8,32",
        batch_tokens=256,
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        max_position_embeddings=32,
    )


def take(options: mlm_tiny.Options) -> dict[str, Any]:
    return take_fingerprint(mlm_tiny.main, options, "mlm_tiny", steps=6)


def test_the_same_run_has_the_same_fingerprint(options: mlm_tiny.Options, tmp_path: Path) -> None:
    first, second = take(options), take(options)
    assert difference(first, second) == ""
    assert len(first["losses"]) == first["steps"] == 6
    assert {"loss", "accuracy"} == first["evaluation"].keys()
    assert not (tmp_path / "logs").exists()
    other = take(dataclasses.replace(options, seed=1))
    assert "the loss of step 1 was" in difference(first, other)


def test_one_constant_in_mlm_py_shows(options: mlm_tiny.Options, monkeypatch: pytest.MonkeyPatch) -> None:
    before = take(options)
    call = mlm.TokenMasker.__call__

    def masks_less(self: mlm.TokenMasker, *arguments: Any) -> mlm.MaskedTokens:
        self.mask_replace_prob = 0.7
        return call(self, *arguments)

    monkeypatch.setattr(mlm.TokenMasker, "__call__", masks_less)
    assert difference(before, take(options)) != ""
    # Also on another machine, where only a tolerance holds.
    assert difference({**before, "processor": "another"}, take(options)) != ""


def test_rounding_is_tolerated_on_another_machine_only() -> None:
    one = {"losses": [4.0, None], "evaluation": {"loss": 3.0}, **machine()}
    other = {**one, "losses": [4.00001, None]}
    assert "step 1" in difference(one, other)
    assert difference({**one, "processor": "another"}, other) == ""
    assert "step 2" in difference(one, {**one, "losses": [4.0, 1.0]})
    assert "evaluation" in difference({**one, "processor": "another"}, {**other, "evaluation": {"loss": 3.1}})


def test_a_file_that_moves_changes_nothing() -> None:
    """A script is found by its name, wherever under `experiments` it is."""
    assert load_script("claims").__name__.endswith("claims")
    with pytest.raises(ValueError, match="no experiment 'nothing'"):
        load_script("nothing")
