"""What the ledger takes out or puts in is what it says, and changes the time alone."""

import copy
import dataclasses
import json
from pathlib import Path

import pytest
import torch

from experiments.speed import speed_ledger, tricks
from experiments.speed.speed_ledger import Shape, build_step, main, measure_tricks
from experiments.speed.tricks import TRICKS, Trick, loss_from_parts, replace_modules
from labml_bert import bert, models
from labml_bert.training.device import has_fast_bfloat16
from tests.support.runs import small_text

SHAPE = Shape("small", 60, 16, 6, 12, 0.0)
CPU = torch.device("cpu")


def losses(trick: Trick, shape: Shape = SHAPE) -> list[float]:
    step = build_step(shape, dataclasses.replace(trick, bfloat16=False), CPU)
    return [step() for _ in range(3)]


@pytest.mark.parametrize("trick", TRICKS, ids=lambda trick: trick.name)
def test_every_trick_computes_the_same(trick: Trick) -> None:
    """Other masks give other losses, and another GELU is another model; all else agrees over three steps."""
    now = losses(Trick("ours", True))
    changed = losses(trick)
    if not trick.fixed_mask_count:
        assert changed != now
    else:
        # The tanh form differs by less than this at the start, and the numbers are the same elsewhere.
        tolerance = 1e-3 if trick.name == "gelu by tanh" else 1e-5
        assert changed == pytest.approx(now, abs=tolerance)


@pytest.mark.parametrize("trick", TRICKS, ids=lambda trick: trick.name)
def test_every_trick_changes_the_step(trick: Trick) -> None:
    """One that changed nothing would be timed against itself."""
    model = models.BertForMaskedLM(dataclasses.replace(SHAPE, dropout=0.1).config())
    before = [type(module) for module in model.modules()]
    weights = {id(p) for p in model.parameters()}
    replace_modules(model, trick.replacements)
    assert (before != [type(module) for module in model.modules()]) == bool(trick.replacements)
    # The layers that learn are the same, and none is left out.
    assert {id(p) for p in model.parameters()} == weights
    assert not any(type(module) in trick.replacements for module in model.modules())
    defaults = Trick(trick.name, trick.kept)
    assert trick != defaults


def in_force() -> list[object]:
    return [
        bert.Dropout.forward,
        bert.BertSelfAttention.forward,
        bert.BertOutput.forward,
        bert.BertIntermediate.forward,
        bert.apply_all,
        bert.cast_once,
        bert.written_out_is_faster,
        torch.nn.functional.gelu,
        torch.is_autocast_enabled,
        models.select_labeled,
        models.BertForMaskedLM.forward,
        models.BertPreTrainedModel.encode,
    ]


def test_no_trick_reaches_beyond_its_own_model() -> None:
    ours = Trick("ours", True)
    before, unchanged = in_force(), losses(ours)
    for trick in TRICKS:
        losses(trick)
    assert all(a is b for a, b in zip(before, in_force(), strict=True))
    assert losses(ours) == unchanged


@pytest.mark.parametrize("bfloat16", [False, True])
def test_parts_put_together_are_the_model(bfloat16: bool) -> None:
    """The gradients are equal too, so what is measured is the named trick and nothing else."""
    shape = dataclasses.replace(SHAPE, dropout=0.1)
    model = models.BertForMaskedLM(shape.config())
    parts = copy.deepcopy(model)
    replace_modules(parts, {bert.BertSelfAttention: tricks.SelfAttention})
    input_ids, masker = speed_ledger.draw_text(shape)
    masked_ids, labels = masker(input_ids)
    found = []
    for one, loss in ((model, tricks.model_loss), (parts, loss_from_parts)):
        torch.manual_seed(1)
        with torch.autocast("cpu", torch.bfloat16, enabled=bfloat16):
            result = loss(one, masked_ids, labels)
        result.backward()
        found.append([result.detach(), *(p.grad for p in one.parameters())])
    assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))


def test_the_slow_dropout_is_really_put_in() -> None:
    """With dropout on, the two draw other random numbers, so the losses part."""
    shape = dataclasses.replace(SHAPE, dropout=0.5)
    trick = next(trick for trick in TRICKS if trick.name.startswith("dropout"))
    assert losses(trick, shape) != losses(Trick("ours", True), shape)


def test_the_precision_is_really_changed() -> None:
    now = build_step(SHAPE, Trick("bfloat16", True, bfloat16=True), CPU)
    assert now() != pytest.approx(losses(TRICKS[0])[0], abs=1e-6)


def test_a_gain_is_a_number_above_one() -> None:
    found = measure_tricks(SHAPE, CPU, rounds=1, repeats=1)
    assert [row["name"] for row in found["rows"]] == [trick.name for trick in TRICKS]
    assert all(0 < row["least"] <= row["worth"] <= row["most"] for row in found["rows"])
    assert 0 < found["drawing"] < found["seconds"] * 10


@pytest.mark.processes
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
    monkeypatch.setattr(speed_ledger, "measure_tricks", None)
    with pytest.raises(SystemExit) as ended:
        main(words)
    assert ended.value.code == 2
    assert capsys.readouterr().err.count("\n") == 1
