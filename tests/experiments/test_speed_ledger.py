"""What the ledger takes out or puts in is what it says, and changes the time alone."""

import dataclasses
import importlib.util
import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from labml_bert import bert
from labml_bert.training.device import has_fast_bfloat16
from tests.support.runs import small_text

path = Path(__file__).parents[2] / "experiments" / "speed" / "speed_ledger.py"
spec = importlib.util.spec_from_file_location("speed_ledger", path)
assert spec is not None and spec.loader is not None
speed_ledger = importlib.util.module_from_spec(spec)
# A dataclass looks its module up by name.
sys.modules["speed_ledger"] = speed_ledger
spec.loader.exec_module(speed_ledger)
Shape, Trick, TRICKS = speed_ledger.Shape, speed_ledger.Trick, speed_ledger.TRICKS
ledger, main, stepper = speed_ledger.ledger, speed_ledger.main, speed_ledger.stepper

SHAPE = Shape("small", 60, 16, 6, 12, 0.0)
CPU = torch.device("cpu")


def losses(trick: Any, shape: Any = SHAPE) -> list[float]:
    step = stepper(shape, dataclasses.replace(trick, bfloat16=False), CPU)
    return [step() for _ in range(3)]


@pytest.mark.parametrize("trick", TRICKS, ids=lambda trick: trick.name)
def test_every_trick_computes_the_same(trick: Any) -> None:
    """Other masks give other losses, and another GELU is another model; all else agrees over three steps."""
    now = losses(Trick("as it is", True))
    changed = losses(trick)
    if trick.coin:
        assert changed != now
    else:
        # The tanh form differs by less than this at the start, and the numbers are the same elsewhere.
        tolerance = 1e-3 if trick.name == "gelu by tanh" else 1e-5
        assert changed == pytest.approx(now, abs=tolerance)


def in_force() -> list[object]:
    return [
        bert.Dropout.forward,
        bert.BertSelfAttention.forward,
        bert.BertSelfAttention.project,
        bert.BertOutput.forward,
        torch.nn.functional.gelu,
        torch.is_autocast_enabled,
        speed_ledger.pretraining.masked_lm_output,
        speed_ledger.pretraining.BertPreTrainedModel.encode,
    ]


def test_every_trick_is_undone_after_its_step() -> None:
    before = in_force()
    for trick in TRICKS:
        losses(trick)
    assert all(a is b for a, b in zip(before, in_force(), strict=True))


def test_the_slow_dropout_is_really_put_in() -> None:
    """With dropout on, the two draw other random numbers, so the losses part."""
    shape = dataclasses.replace(SHAPE, dropout=0.5)
    trick = next(trick for trick in TRICKS if trick.name.startswith("dropout"))
    assert losses(trick, shape) != losses(Trick("as it is", True), shape)


def test_the_precision_is_really_changed() -> None:
    now = stepper(SHAPE, Trick("bfloat16", True, bfloat16=True), CPU)
    assert now() != pytest.approx(losses(TRICKS[0])[0], abs=1e-6)


def test_a_gain_is_a_number_above_one() -> None:
    found = ledger(SHAPE, CPU, rounds=1, repeats=1)
    assert [row["name"] for row in found["rows"]] == [trick.name for trick in TRICKS]
    assert all(0 < row["least"] <= row["worth"] <= row["most"] for row in found["rows"])
    assert 0 < found["drawing"] < found["seconds"] * 10


def test_the_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(speed_ledger, "SHAPES", [SHAPE])
    path = tmp_path / "ledger.json"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    texts = tmp_path / "texts"
    texts.mkdir()
    for i in range(20):
        (texts / f"{i}.txt").write_text(small_text(40, seed=i))
    main(["--rounds=1", "--repeats=1", f"--corpus={texts}", "--record", str(path)])
    record = json.loads(path.read_text())
    command = "python experiments/speed/speed_ledger.py --rounds=1 --repeats=1 --corpus texts"
    assert record["command"] == command
    # One pair in ten is cut short on purpose, and few fill their length to the last token.
    assert all(0 < share < 0.9 for share in record["padding"].values())
    assert record["ledger"][0]["shape"]["name"] == "small"
    assert (record["hardware"]["precision"] == "bfloat16") == has_fast_bfloat16(CPU)


@pytest.mark.parametrize(
    "words", [["--rounds", "0"], ["--repeats", "0"], ["--record", "/"], ["--corpus", "no such text"]]
)
def test_bad_options(
    words: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    # Nothing is timed before all options are looked at.
    monkeypatch.setattr(speed_ledger, "ledger", None)
    with pytest.raises(SystemExit) as ended:
        main(words)
    assert ended.value.code == 2
    assert capsys.readouterr().err.count("\n") == 1
