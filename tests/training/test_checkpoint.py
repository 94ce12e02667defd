"""Damaged checkpoints, and the previous checkpoint that replaces them."""

import errno
import json
import os
import re
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from labml_bert.checksums import SUMS, write_checked
from labml_bert.data.tokenizers import character_tokenizer, load_tokenizer, save_tokenizer
from labml_bert.files import read_tensors, write_tensors
from labml_bert.training import checkpoint
from labml_bert.training.checkpoint import (
    CHECKPOINT,
    PREVIOUS,
    enumerate_parameters,
    find_run_folders,
    load_checkpoint,
    load_named_weights,
    named_weights,
    newest_first,
    other_value_error,
    random_states,
    restore,
    save_checkpoint,
    set_device_random_state,
)
from tests.support.damage import flip_bit
from tests.support.mutations import read_as_commands_do
from tests.support.trainers import edit_checkpoint, new_trainer, train, train_to_end

SCALER_STATE = torch.amp.GradScaler("cpu").state_dict()


@pytest.mark.parametrize(
    "changes",
    [
        {"scaler": {"x": 1}},
        {"scaler": "x"},
        {"scaler": {**SCALER_STATE, "growth_factor": "u"}},
        {"scaler": {**SCALER_STATE, "_growth_tracker": 10**30}},
        {"configuration": {"experiment": []}},
        {"configuration": {"corpus": 5}},
    ],
)
def test_values_that_make_no_sense_are_damage(tmp_path: Path, changes: dict[str, Any]) -> None:
    """Each of them once ended a command in a traceback."""
    path = tmp_path / "run"
    train_to_end(path)
    (path / PREVIOUS).unlink(missing_ok=True)
    edit_checkpoint(path, **changes)
    with pytest.raises(ValueError, match="is damaged"):
        load_checkpoint(path)


def test_after_damage_the_previous_checkpoint_leads_to_the_same_end(tmp_path: Path) -> None:
    train_to_end(tmp_path / "whole")
    path = tmp_path / "run"
    path.mkdir()
    trainer, draw = new_trainer(path)

    def next_batch() -> dict[str, Tensor]:
        if trainer.step in (10, 20):
            trainer.save()
        if trainer.step == 25:
            raise KeyboardInterrupt
        return draw()

    with pytest.raises(KeyboardInterrupt):
        train(trainer, next_batch)
    assert not (path / "run.pid").exists()
    data = (path / CHECKPOINT).read_bytes()
    (path / CHECKPOINT).write_bytes(flip_bit(data, len(data) // 2))
    with pytest.raises(
        ValueError,
        match=f"sha256.*of step .*, is intact: move {CHECKPOINT} away and rename {PREVIOUS} to {CHECKPOINT}",
    ):
        new_trainer(path)[0].resume()
    (path / CHECKPOINT).unlink()
    with pytest.raises(ValueError, match=f"is missing, .* rename {PREVIOUS} to {CHECKPOINT}"):
        load_checkpoint(path)
    os.replace(path / PREVIOUS, path / CHECKPOINT)
    trainer, next_batch = new_trainer(path)
    trainer.resume()
    assert trainer.step <= 20
    train(trainer, next_batch)
    expected, resumed = load_checkpoint(tmp_path / "whole")[1], load_checkpoint(path)[1]
    assert all(torch.equal(expected[key], resumed[key]) for key in expected)
    for name in (CHECKPOINT, PREVIOUS):
        (path / name).write_bytes(b"")
    with pytest.raises(ValueError, match="start a new run"):
        load_checkpoint(path)


def test_the_checkpoint_of_another_run_is_refused(tmp_path: Path) -> None:
    """Its weights have the right shapes, but were trained with other ids for the same tokens."""
    for name, letters in (("a", "abc"), ("b", "xyz")):
        (tmp_path / name).mkdir()
        write_checked(tmp_path / name / "tokenizer.json", character_tokenizer([letters]).to_str())
        train(*new_trainer(tmp_path / name))
        assert load_checkpoint(tmp_path / name)[0]["step"] == 30
    shutil.copy(tmp_path / "a" / CHECKPOINT, tmp_path / "b")
    with pytest.raises(
        ValueError,
        match=r"is not from the same run as tokenizer.json .*put it and SHA256SUMS back as they were\)",
    ):
        load_checkpoint(tmp_path / "b")
    (tmp_path / "b" / SUMS).write_text("damaged\n")
    with pytest.raises(ValueError, match=f"{SUMS} is damaged .*; replace or remove it$"):
        load_checkpoint(tmp_path / "b")
    (tmp_path / "b" / SUMS).unlink()
    assert load_checkpoint(tmp_path / "b")[0]["step"] == 30


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="Windows has no named pipes")
@pytest.mark.parametrize("names", [(CHECKPOINT,), (CHECKPOINT, PREVIOUS)])
def test_a_pipe_in_place_of_a_checkpoint_is_not_read(tmp_path: Path, names: tuple[str, ...]) -> None:
    """Nobody writes to the pipe, so reading it would wait forever."""
    (tmp_path / CHECKPOINT).write_bytes(b"damaged")
    os.mkfifo(tmp_path / "pipe")
    os.replace(tmp_path / "pipe", tmp_path / names[-1])
    assert read_as_commands_do(lambda: load_checkpoint(tmp_path), str(tmp_path)) is None


def test_a_folder_in_place_of_a_checkpoint_is_named(tmp_path: Path) -> None:
    """`mv` would put the previous checkpoint into the folder instead of replacing it."""
    (tmp_path / CHECKPOINT).mkdir()
    (tmp_path / PREVIOUS).write_bytes(b"12345678")
    with pytest.raises(ValueError, match=f"{CHECKPOINT} is not a file; move it away"):
        load_checkpoint(tmp_path)


def test_a_file_that_cannot_be_opened_is_not_called_damaged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise, a user might replace a good checkpoint by the previous one. (Root may open any file.)"""
    path = tmp_path / "run"
    train_to_end(path)
    save_tokenizer(character_tokenizer(["abc"]), path)
    monkeypatch.setattr("builtins.open", refuse)
    monkeypatch.setattr(Path, "read_bytes", refuse)
    tokenizer_json = path / "tokenizer.json"
    reads = {
        path / CHECKPOINT: partial(load_checkpoint, path),
        tokenizer_json: partial(load_tokenizer, tokenizer_json),
    }
    for file, read in reads.items():
        with pytest.raises(ValueError) as caught:
            read()
        assert str(caught.value) == f"cannot read {file}: Permission denied; make it readable"


def refuse(path: Path, *arguments: object) -> None:
    raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))


NUMBERS = [
    ("step", -1, "step is -1"),
    ("step", 2**53, "step is 9007199254740992"),
    ("step", 1.0, "step is 1.0"),
    ("step", True, "step is True"),
    ("step", None, "step is None"),
    ("step", ..., "'step'"),
    ("seconds", float("nan"), "seconds is nan"),
    ("seconds", "x" * 30, f"seconds is {'x' * 20}"),
    ("seconds", ..., "'seconds'"),
    ("threads", 1.0, "threads is 1.0"),
    ("gradient_accumulation_steps", -1, "gradient_accumulation_steps is -1"),
    ("torch_compile", 1, "torch_compile is not a truth value"),
    ("configuration", [], "'list' object has no attribute 'items'"),
]


@pytest.mark.parametrize(("key", "value", "words"), NUMBERS)
def test_a_number_that_cannot_be_right_is_refused(tmp_path: Path, key: str, value: Any, words: str) -> None:
    state = {"step": 3, "seconds": 1.5, "configuration": {}}
    write_tensors(tmp_path / CHECKPOINT, {}, {"about": json.dumps(state)})
    assert load_checkpoint(tmp_path)[0] == state
    edit_checkpoint(tmp_path, **{key: value})
    with pytest.raises(ValueError, match=r"is damaged \(.*\); start a new run$") as caught:
        load_checkpoint(tmp_path)
    assert f"({words}" in str(caught.value)


@pytest.mark.parametrize(
    ("name", "largest"),
    [("_growth_tracker", 2**31 - 1), ("scale", 2**53 - 1), ("growth_interval", 2**53 - 1)],
)
def test_the_numbers_of_the_gradient_scaler_have_limits(tmp_path: Path, name: str, largest: int) -> None:
    for value in (0, 1.5, largest, -1, largest + 1, float("nan"), True, None):
        scaler = {**SCALER_STATE, name: value}
        state = {"step": 3, "seconds": 1.5, "configuration": {}, "scaler": scaler}
        write_tensors(tmp_path / CHECKPOINT, {}, {"about": json.dumps(state)})
        if value in (0, 1.5, largest):
            assert load_checkpoint(tmp_path)[0]["scaler"] == scaler
            continue
        with pytest.raises(ValueError, match=f"{name} of the gradient scaler is out of range"):
            load_checkpoint(tmp_path)


@pytest.mark.parametrize("name", ["experiment", "corpus"])
def test_a_name_in_the_configuration_is_a_string(tmp_path: Path, name: str) -> None:
    state = {"step": 3, "seconds": 1.5, "configuration": {name: 7}}
    write_tensors(tmp_path / CHECKPOINT, {}, {"about": json.dumps(state)})
    with pytest.raises(ValueError, match=f"is damaged .{name} is not a string.; start a new run"):
        load_checkpoint(tmp_path)


@pytest.mark.parametrize(
    ("step", "scaler", "lacking", "resumes"),
    [
        (0, {}, "optimizer.", True),
        (3, {}, "optimizer.", False),
        (3, SCALER_STATE, "optimizer.", True),  # Until the scale fits, float16 takes no step.
        (0, {}, "optimizer.0.exp_avg", False),
    ],
)
def test_only_before_the_first_update_there_are_no_moments(
    tmp_path: Path, step: int, scaler: dict[str, float], lacking: str, resumes: bool
) -> None:
    train(*new_trainer(tmp_path, steps=3))
    tensors, metadata = read_tensors(tmp_path / CHECKPOINT)
    kept = {name: tensor for name, tensor in tensors.items() if not name.startswith(lacking)}
    assert len(kept) < len(tensors)
    write_tensors(tmp_path / CHECKPOINT, kept, metadata)
    edit_checkpoint(tmp_path, step=step, scaler=scaler)
    trainer, _ = new_trainer(tmp_path, steps=3)
    if resumes:
        trainer.resume()
        assert trainer.step == step
    else:
        with pytest.raises(
            ValueError, match=r"is incomplete, or from another model or optimizer; .* or start a new run$"
        ):
            trainer.resume()


@pytest.mark.parametrize(
    "make_optimizer",
    [
        torch.optim.Adam,
        torch.optim.SGD,
        torch.optim.Adagrad,
        torch.optim.RMSprop,
        torch.optim.NAdam,
        torch.optim.Adafactor,
    ],
)
def test_other_optimizers_are_saved_and_restored(
    make_optimizer: Callable[..., torch.optim.Optimizer], tmp_path: Path
) -> None:
    def train_a_step(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        model(torch.ones(1, 3)).square().sum().backward()
        optimizer.step()
        optimizer.zero_grad()

    model, other = nn.Linear(3, 2), nn.Linear(3, 2)
    optimizer, other_optimizer = (make_optimizer(m.parameters(), lr=0.1) for m in (model, other))
    generator, device = torch.Generator(), torch.device("cpu")
    train_a_step(model, optimizer)
    metadata: dict[str, Any] = {"step": 1, "seconds": 0.0, "configuration": {}}
    save_checkpoint(tmp_path, model, [optimizer], generator, device, metadata)
    metadata, tensors = load_checkpoint(tmp_path)
    restore(tmp_path, tensors, metadata, other, [other_optimizer], generator, device)
    for pair in ((model, optimizer), (other, other_optimizer)):
        train_a_step(*pair)
    assert torch.equal(model.weight, other.weight)


def test_a_checkpoint_that_is_replaced_while_it_is_read_is_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The header of one checkpoint, read with the tensors of the next, looks like damage."""
    trainer, next_batch = new_trainer(tmp_path, steps=3)
    train(trainer, next_batch)
    read, reads = checkpoint.read_checkpoint, 0

    def read_beside_a_run(path: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
        nonlocal reads
        reads += 1
        if reads == 1:
            trainer.save()
            raise ValueError("the sha256 differs")
        return read(path)

    monkeypatch.setattr(checkpoint, "read_checkpoint", read_beside_a_run)
    assert load_checkpoint(tmp_path)[0]["step"] == 3
    assert reads == 2


def test_weights_that_do_not_fit_are_named() -> None:
    model = torch.nn.Linear(2, 3)
    weights = {name: weight.clone() for name, weight in named_weights(model).items()}
    with pytest.raises(KeyError, match="bias"):
        load_named_weights(model, {"weight": weights["weight"]})
    with pytest.raises(KeyError, match="another"):
        load_named_weights(model, {**weights, "another": torch.ones(1)})
    for other in (torch.ones(2), torch.ones(3).long()):
        message = f"bias is ({len(other)},), {other.dtype}, not (3,)"
        with pytest.raises(RuntimeError, match=f"^{re.escape(message)}$"):
            load_named_weights(model, {**weights, "bias": other})


@pytest.mark.parametrize("kind", ["cuda", "mps"])
def test_a_gpu_keeps_its_random_state(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The functions of PyTorch that need a GPU are replaced."""
    first, second, restored = torch.tensor([1]), torch.tensor([2]), []
    module, device = getattr(torch, kind), torch.device(kind, 0)
    monkeypatch.setattr(module, "get_rng_state", lambda *own: first if own in ((), (device,)) else None)
    monkeypatch.setattr(module, "set_rng_state", lambda *arguments: restored.append(arguments))
    assert random_states(device)[kind] is first
    assert random_states(torch.device("cpu")).keys() == {"torch"}
    tensors = {f"random.{kind}": first, f"random.{kind}.1": second, "random.cpu": first}
    for number, state in enumerate((first, second)):
        set_device_random_state(device, tensors, number)
        assert restored.pop() == ((state, device) if kind == "cuda" else (state,))
    set_device_random_state(device, tensors, 2)
    set_device_random_state(torch.device("cpu"), tensors, 0)
    assert restored == []


def test_a_resumed_run_restores_the_random_state_of_its_gpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer = train_to_end(tmp_path / "run", steps=2)
    tensors, calls = load_checkpoint(tmp_path / "run")[1], []
    monkeypatch.setattr(checkpoint, "set_device_random_state", lambda *arguments: calls.append(arguments))
    new_trainer(tmp_path / "run", steps=2)[0].resume()
    device, restored, number = calls.pop()
    assert (device, restored.keys(), number) == (trainer.device, tensors.keys(), 0)


def test_the_first_parameter_of_each_optimizer() -> None:
    """Each has two groups."""
    parameters = iter(nn.Parameter(torch.zeros(1)) for _ in range(9))
    optimizers = [
        torch.optim.SGD([{"params": [next(parameters) for _ in range(count)]} for count in counts], lr=1.0)
        for counts in ((1, 2), (3, 1), (1, 1))
    ]
    assert [*enumerate_parameters(optimizers)] == [*zip((0, 3, 7), optimizers, strict=True)]


def test_the_newest_run_is_found_first(tmp_path: Path) -> None:
    """A run that has only its previous checkpoint counts, and each run once."""
    names = "b/old/checkpoint b/old/previous a/new/previous b/middle/checkpoint c/x/deep/checkpoint"
    for name, age in zip(names.split(), (30, 40, 10, 20, 0), strict=True):
        path = tmp_path / f"{name}.safetensors"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
        os.utime(path, (1e9 - age, 1e9 - age))
    folders = [tmp_path / "a", tmp_path / "b", tmp_path / "c"]
    expected = [tmp_path / name for name in ("a/new", "b/middle", "b/old")]
    assert find_run_folders(folders, ["", "*/"]) == expected
    assert find_run_folders([tmp_path], ["*/x/*/"]) == [tmp_path / "c/x/deep"]
    # Another program may delete a run while we list them.
    old, new = tmp_path / "b/old/previous.safetensors", tmp_path / "a/new/previous.safetensors"
    assert newest_first([old, tmp_path / "gone", new]) == [new, old]


def test_a_name_that_is_not_utf8_is_refused() -> None:
    with pytest.raises(ValueError, match="is not UTF-8; use another folder, or rename it"):
        load_checkpoint(Path("\udcff"))


def test_a_folder_that_cannot_be_read_is_mentioned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("a/run", "b/run", "c/runs/run"):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / CHECKPOINT).touch()
    # The superuser can read every folder, so pretend.
    monkeypatch.setattr(os, "access", lambda path, mode: path.name not in ("b", "runs"))
    find_run_folders([tmp_path], ["*/*/"])
    lines = [
        f"{tmp_path / name} can't be read, so it's left out; make it readable" for name in ("b", "c/runs")
    ]
    assert capsys.readouterr().err.splitlines() == lines


def test_an_option_is_named_as_on_the_command_line() -> None:
    """In Python, an option such as `from` needs an underscore at the end of its name."""
    error = other_value_error(Path("run"), "from_", 1, 2)
    assert str(error).startswith("run was started with from = 1, not 2; leave that option out")


def test_a_checkpoint_without_its_checksum_is_refused(tmp_path: Path) -> None:
    """Two damaged bytes could hide each other: one in the name of the checksum, and one in a value."""
    train_to_end(tmp_path / "run")
    path = tmp_path / "run" / CHECKPOINT
    data = path.read_bytes()
    assert data.count(b'"sha256": "') == 1
    path.write_bytes(data.replace(b'"sha256": "', b'"sha257": "'))
    with pytest.raises(ValueError, match="is damaged"):
        load_checkpoint(tmp_path / "run")
