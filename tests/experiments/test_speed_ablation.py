"""Each trick in the benchmark changes what its name says, and nothing but the speed of a step."""

import copy
import dataclasses
import json
from pathlib import Path

import pytest
import torch

from experiments.speed import speed_ablation, tricks
from experiments.speed.speed_ablation import Shape, build_step, main, measure_tricks
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
def test_every_trick_computes_the_same_losses(trick: Trick) -> None:
    """Masking a random number of tokens changes the losses, and approximating GELU changes them slightly."""
    baseline = losses(Trick("ours", True))
    with_trick = losses(trick)
    if not trick.fixed_mask_count:
        assert with_trick != baseline
    else:
        # The tanh form of GELU differs by less than 1e-3; the other tricks agree up to rounding.
        tolerance = 1e-3 if trick.name == "gelu by tanh" else 1e-5
        assert with_trick == pytest.approx(baseline, abs=tolerance)


@pytest.mark.parametrize("trick", TRICKS, ids=lambda trick: trick.name)
def test_every_trick_changes_the_step(trick: Trick) -> None:
    """The benchmark would compare a trick that changes nothing with the same step."""
    model = models.BertForMaskedLM(dataclasses.replace(SHAPE, dropout=0.1).config())
    types_before = [type(module) for module in model.modules()]
    weights = {id(p) for p in model.parameters()}
    replace_modules(model, trick.replacements)
    assert (types_before != [type(module) for module in model.modules()]) == bool(trick.replacements)
    # The model keeps all of its parameters.
    assert {id(p) for p in model.parameters()} == weights
    assert not any(type(module) in trick.replacements for module in model.modules())
    defaults = Trick(trick.name, trick.kept)
    assert trick != defaults


def current_functions() -> list[object]:
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


def test_a_trick_changes_nothing_outside_its_own_model() -> None:
    ours = Trick("ours", True)
    functions_before, losses_before = current_functions(), losses(ours)
    for trick in TRICKS:
        losses(trick)
    assert all(a is b for a, b in zip(functions_before, current_functions(), strict=True))
    assert losses(ours) == losses_before


@pytest.mark.parametrize("bfloat16", [False, True])
def test_the_rebuilt_model_equals_the_original(bfloat16: bool) -> None:
    """The gradients agree as well, so the benchmark measures the named trick and nothing else."""
    shape = dataclasses.replace(SHAPE, dropout=0.1)
    model = models.BertForMaskedLM(shape.config())
    rebuilt = copy.deepcopy(model)
    replace_modules(rebuilt, {bert.BertSelfAttention: tricks.SelfAttention})
    input_ids, masker = speed_ablation.draw_text(shape)
    masked_ids, labels = masker(input_ids)
    results = []
    for tested_model, loss in ((model, tricks.model_loss), (rebuilt, loss_from_parts)):
        torch.manual_seed(1)
        with torch.autocast("cpu", torch.bfloat16, enabled=bfloat16):
            result = loss(tested_model, masked_ids, labels)
        result.backward()
        results.append([result.detach(), *(p.grad for p in tested_model.parameters())])
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))


def test_the_slow_dropout_is_really_used() -> None:
    """With dropout on, the two implementations draw different random numbers, so their losses differ."""
    shape = dataclasses.replace(SHAPE, dropout=0.5)
    trick = next(trick for trick in TRICKS if trick.name.startswith("dropout"))
    assert losses(trick, shape) != losses(Trick("ours", True), shape)


def test_bfloat16_is_really_used() -> None:
    step = build_step(SHAPE, Trick("bfloat16", True, bfloat16=True), CPU)
    assert step() != pytest.approx(losses(TRICKS[0])[0], abs=1e-6)


@pytest.mark.slow("times every trick")
def test_each_trick_has_a_positive_speedup() -> None:
    results = measure_tricks(SHAPE, CPU, rounds=1, repeats=1)
    assert [row["name"] for row in results["rows"]] == [trick.name for trick in TRICKS]
    assert all(0 < row["least"] <= row["worth"] <= row["most"] for row in results["rows"])
    assert 0 < results["drawing"] < results["seconds"] * 10


@pytest.mark.processes
def test_the_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(speed_ablation, "SHAPES", [SHAPE])
    path = tmp_path / "ablation.json"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    texts = tmp_path / "texts"
    texts.mkdir()
    for i in range(20):
        (texts / f"{i}.txt").write_text(small_text(40, seed=i))
    main(["--rounds=1", "--repeats=1", f"--corpus={texts}", "--record", str(path)])
    record = json.loads(path.read_text())
    command = "python experiments/speed/speed_ablation.py --rounds=1 --repeats=1 --corpus texts"
    assert record["command"] == command
    # One pair in ten is short on purpose, and few pairs fill their length exactly.
    assert all(0 < fraction < 0.9 for fraction in record["padding"].values())
    assert record["ablation"][0]["shape"]["name"] == "small"
    assert (record["hardware"]["precision"] == "bfloat16") == has_fast_bfloat16(CPU)


@pytest.mark.parametrize(
    "words", [["--rounds", "0"], ["--repeats", "0"], ["--record", "/"], ["--corpus", "no such text"]]
)
def test_bad_options_give_a_one_line_error(
    words: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    # All options are checked before anything is timed.
    monkeypatch.setattr(speed_ablation, "measure_tricks", None)
    with pytest.raises(SystemExit) as exit_info:
        main(words)
    assert exit_info.value.code == 2
    assert capsys.readouterr().err.count("\n") == 1
