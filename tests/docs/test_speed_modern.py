"""The benchmark of the modern step."""

import dataclasses
import json
from pathlib import Path

import pytest
import torch

from docs.figures.records import Record
from docs.figures.speed import modern_steps
from experiments.speed import speed_modern
from experiments.speed.speed_modern import SHAPES, Shape, build_peer, main, measure

SMALL = dataclasses.replace(SHAPES[0], hidden_size=32, num_hidden_layers=2, batch_size=2, length=16)


def test_the_models_have_equal_losses_and_take_turns() -> None:
    pytest.importorskip("transformers", reason="transformers is what this is compared with")
    result = measure(SMALL, torch.device("cpu"), rounds=1)
    assert result["loss_difference"] < 1e-4
    arms = [row["arm"] for row in result["rows"]]
    assert arms == [f"{name}, {p}" for name in ("ours", "transformers") for p in ("float32", "bfloat16")]
    assert all(row["step"]["median"] > 0 for row in result["rows"])


def test_a_different_model_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("transformers", reason="transformers is what this is compared with")

    original = Shape.config
    # Make the weights large, so that the loss depends on the positions.
    monkeypatch.setattr(
        Shape, "config", lambda self: dataclasses.replace(original(self), initializer_range=2.0)
    )
    measure(SMALL, torch.device("cpu"), rounds=1)
    monkeypatch.setattr(
        speed_modern,
        "build_peer",
        lambda config: build_peer(dataclasses.replace(config, global_rope_theta=2.0)),
    )
    with pytest.raises(AssertionError):
        measure(SMALL, torch.device("cpu"), rounds=1)


@pytest.mark.processes
def test_a_record_becomes_a_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("transformers", reason="transformers is what this is compared with")
    monkeypatch.setattr(speed_modern, "SHAPES", [SMALL])
    path = tmp_path / "record.json"
    main(["--rounds", "1", "--device", "cpu", "--record", str(path)])
    table = modern_steps(Record("speed_modern", json.loads(path.read_text())))
    assert "| characters |" in table and "2 × 16" in table and table.count("×") >= 4


def test_bad_input_gets_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main(["--rounds", "0"])
    assert end.value.code == 2
    assert "rounds" in capsys.readouterr().err
