"""The loop: learning rates, parameter groups, checkpoints that are whole or absent, and the metrics file."""

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch

from labml_bert import files
from labml_bert.files import write_tensors
from labml_bert.model_folder import ALIASES
from labml_bert.models import BertForMaskedLM
from labml_bert.training.checkpoint import CHECKPOINT, load_checkpoint
from labml_bert.training.device import choose_device
from labml_bert.training.optimization import TrainingArguments, parameter_groups
from labml_bert.training.tracking import METRICS, read_metrics
from labml_bert.training.trainer import NonFiniteLossError, Trainer
from tests.support.trainers import CONFIG, finish, new_trainer, train, train_on


def test_the_rate_rises_and_falls() -> None:
    arguments = TrainingArguments(steps=1, learning_rate=2.0, warmup_ratio=0.1)
    assert [arguments.learning_rate_at(p) for p in (0, 0.05, 0.1, 0.55, 1)] == pytest.approx([0, 1, 2, 1, 0])
    assert TrainingArguments(steps=1, learning_rate=2.0, warmup_ratio=0).learning_rate_at(0) == 2


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({}, "set a budget"),
        ({"steps": 1, "minutes": 1}, "set a budget"),
        ({"steps": 0}, "steps is 0"),
        ({"minutes": -1}, "minutes is -1"),
        ({"minutes": float("nan")}, "minutes is nan"),
        ({"steps": 1, "learning_rate": 0}, "learning_rate is 0"),
        ({"steps": 1, "warmup_ratio": 1}, "warmup_ratio is 1"),
    ],
)
def test_arguments_that_make_no_sense_are_refused(values: dict, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        TrainingArguments(**values)


def test_every_parameter_is_in_one_group_and_no_bias_decays() -> None:
    model = BertForMaskedLM(CONFIG)
    decayed, spared = parameter_groups(model, 0.1)
    names = {id(p): name for name, p in model.named_parameters()}
    assert decayed["weight_decay"] == 0.1
    assert spared["weight_decay"] == 0
    for p in spared["params"]:
        assert names.pop(id(p)).endswith(("bias", "LayerNorm.weight"))
    for p in decayed["params"]:
        assert names.pop(id(p)).endswith("weight")
    assert not names


def test_a_device_that_is_not_there_is_refused() -> None:
    with pytest.raises(ValueError, match="not available here"):
        choose_device("cuda:99")
    with pytest.raises(ValueError, match="'nonsense' is not available"):
        choose_device("nonsense")


def test_stopping_and_going_on_changes_nothing(tmp_path: Path) -> None:
    """To the bit, with dropout on: weights, both moments, and the random states."""
    finish(tmp_path / "whole")
    path = tmp_path / "parts"
    path.mkdir()
    for stop in (7, 19, None):
        trainer, draw = new_trainer(path)
        if stop != 7:
            trainer.resume()

        def next_batch(trainer=trainer, stop=stop, draw=draw):
            if trainer.step == stop:
                os.kill(os.getpid(), signal.SIGTERM)
            return draw()

        if stop:
            with pytest.raises(KeyboardInterrupt):
                train(trainer, next_batch)
            assert load_checkpoint(path)[0]["step"] == stop + 1
        else:
            train(trainer, next_batch)
    (about_a, a), (about_b, b) = load_checkpoint(tmp_path / "whole"), load_checkpoint(path)
    assert about_a["step"] == about_b["step"] == 30
    assert a.keys() == b.keys()
    assert all(torch.equal(a[key], b[key]) for key in a)
    # And the metrics of all three pieces are there, each step once.
    steps = [step for step, _ in read_metrics(path)["loss"]]
    assert steps == sorted(set(steps))
    assert steps[-1] == 30
    assert {7 + 1, 19 + 1} <= set(steps)


def test_resume_of_another_configuration_is_refused(tmp_path: Path) -> None:
    finish(tmp_path / "run", width=16)
    trainer, _ = new_trainer(tmp_path / "run", width=32)
    with pytest.raises(ValueError, match="started with width = 16, not 32"):
        trainer.resume()


def test_resume_of_nothing_and_of_rubbish_is_refused(tmp_path: Path) -> None:
    trainer, _ = new_trainer(tmp_path)
    with pytest.raises(ValueError, match="there is no run at"):
        trainer.resume()
    for rubbish in (b"", b"not a checkpoint at all", b"\x00" * 100):
        (tmp_path / CHECKPOINT).write_bytes(rubbish)
        with pytest.raises(ValueError, match="is damaged"):
            trainer.resume()


def test_a_checkpoint_that_lacks_a_part_is_refused(tmp_path: Path) -> None:
    finish(tmp_path / "run")
    metadata, tensors = load_checkpoint(tmp_path / "run")
    path = tmp_path / "run" / CHECKPOINT
    for part in ("model.", "optimizer.", "random.torch", "random.data"):
        kept = {key: value for key, value in tensors.items() if not key.startswith(part)}
        write_tensors(path, kept, {"about": json.dumps(metadata)})
        with pytest.raises(ValueError, match="is incomplete"):
            new_trainer(tmp_path / "run")[0].resume()
    for wrong in ([], None, {}, {**metadata, "configuration": "x"}, {**metadata, "step": "many"}):
        write_tensors(path, tensors, {"about": json.dumps(wrong)})
        with pytest.raises(ValueError, match="is damaged"):
            new_trainer(tmp_path / "run")[0].resume()


def test_the_last_metrics_are_on_disk_when_the_run_is_over(tmp_path: Path) -> None:
    finish(tmp_path / "run")
    assert [step for step, _ in read_metrics(tmp_path / "run")["valid.loss"]] == [6, 12, 18, 24, 30]


def test_a_checkpoint_half_written_is_not_the_one_that_is_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer = finish(tmp_path / "run")
    before = (tmp_path / "run" / CHECKPOINT).read_bytes()

    def half(tensors, path, metadata) -> None:
        Path(path).write_bytes(before[: len(before) // 2])
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(files, "save_file", half)
    trainer.step = 31
    with pytest.raises(OSError, match="No space left"):
        trainer.save()
    assert (tmp_path / "run" / CHECKPOINT).read_bytes() == before
    assert load_checkpoint(tmp_path / "run")[0]["step"] == 30


# A child for each line that comes, so that what takes long is imported once.
SAVE_FOR_EVER = """
import os, sys, torch
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from tests.support.trainers import new_trainer
trainer, _ = new_trainer(Path(sys.argv[2]))
for line in sys.stdin:
    child = os.fork()
    while not child:
        trainer.step += 1
        with torch.no_grad():
            for p in trainer.model.parameters():
                p.fill_(trainer.step)
        trainer.save()
        print(os.getpid(), trainer.step, flush=True)
    os.waitpid(child, 0)
    print(child, 0, flush=True)
"""


@pytest.mark.processes
def test_killed_while_saving(tmp_path: Path) -> None:
    """SIGKILL at any moment leaves a checkpoint whose parts belong together."""
    process = subprocess.Popen(
        [sys.executable, "-c", SAVE_FOR_EVER, str(Path(__file__).parents[2]), str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with process:
        assert process.stdin is not None and process.stdout is not None
        for attempt in range(20):
            process.stdin.write("go\n")
            process.stdin.flush()
            last = 0
            while last < 3:
                child, last = map(int, process.stdout.readline().split())
            time.sleep(0.0005 * attempt)
            os.kill(child, signal.SIGKILL)
            while (saved := int(process.stdout.readline().split()[1])) > 0:
                last = saved
            metadata, tensors = load_checkpoint(tmp_path)
            # Each child counts anew, so what an earlier one left would not do.
            assert metadata["step"] in (last, last + 1)
            assert all(
                (value == metadata["step"]).all()
                for key, value in tensors.items()
                if key.startswith("model.")
            )
        process.stdin.close()


def test_a_loss_that_is_no_number_stops_the_run_and_spares_the_checkpoint(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    trainer, draw = new_trainer(tmp_path / "run")

    def poisoned() -> dict[str, torch.Tensor]:
        if trainer.step == 12:
            with torch.no_grad():
                next(trainer.model.parameters()).fill_(float("nan"))
        return draw()

    with pytest.raises(NonFiniteLossError, match="lower learning rate"):
        train(trainer, poisoned)
    metadata, tensors = load_checkpoint(tmp_path / "run")
    assert metadata["step"] <= 12
    assert all(value.isfinite().all() for key, value in tensors.items() if key.startswith("model."))
    # No JSON reader takes NaN.
    for line in (tmp_path / "run" / METRICS).read_text().splitlines():
        json.loads(line, parse_constant=lambda word: pytest.fail(f"{word} in the log"))


def test_a_torn_last_line_of_the_log_is_passed_over(tmp_path: Path) -> None:
    finish(tmp_path / "run")
    before = read_metrics(tmp_path / "run")
    assert {"loss", "accuracy", "seconds", "valid.loss"} <= set(before)
    assert [step for step, _ in before["valid.loss"]] == [6, 12, 18, 24, 30]
    with open(tmp_path / "run" / METRICS, "a") as file:
        file.write('{"step": 31, "loss": 2')
    assert read_metrics(tmp_path / "run") == before
    assert read_metrics(tmp_path) == {}


@pytest.mark.parametrize("corrected", [True, False])
def test_adam_is_the_published_one(tmp_path: Path, corrected: bool) -> None:
    """Against the update written out, with the decay of matrices only and one norm to clip."""
    steps = 12
    trainer, next_batch = new_trainer(None)
    trainer.arguments = TrainingArguments(
        steps=steps,
        learning_rate=1e-2,
        weight_decay=0.3,
        warmup_ratio=0.25,
        max_grad_norm=0.5,
        adam_bias_correction=corrected,
    )
    trainer.model.eval()
    slow = {name: p.detach().clone().double() for name, p in trainer.model.named_parameters()}
    m = {name: torch.zeros_like(p) for name, p in slow.items()}
    v = {name: torch.zeros_like(p) for name, p in slow.items()}
    for step, taken in enumerate(trainer.steps()):
        batch = next_batch()
        trainer.model(**batch).loss.backward()
        grads = {name: p.grad.double() for name, p in trainer.model.named_parameters()}
        norm = torch.stack([g.square().sum() for g in grads.values()]).sum().sqrt()
        trainer.optimizer.zero_grad()
        rate = 1e-2 * min(step / steps / 0.25, (1 - step / steps) / 0.75)
        for name, g in grads.items():
            g = g * min(1.0, 0.5 / (norm + 1e-6))
            m[name] = 0.9 * m[name] + 0.1 * g
            v[name] = 0.999 * v[name] + 0.001 * g * g
            mean, square = m[name], v[name]
            if corrected:
                mean, square = mean / (1 - 0.9 ** (step + 1)), square / (1 - 0.999 ** (step + 1))
            decay = 0.3 * slow[name] if slow[name].dim() > 1 else 0.0
            slow[name] = slow[name] - rate * (mean / (square.sqrt() + 1e-6) + decay)
        train_on(taken, batch)
        for name, p in trainer.model.named_parameters():
            assert torch.allclose(p.double(), slow[name], atol=2e-6), (step, name)


@pytest.mark.slow("the compiler traces the model anew for every number of masked tokens")
def test_a_compiled_run_takes_the_same_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a graph, but not as machine code: for that a test would need a C++ compiler."""
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="eager"))
    ends = []
    for compiled in (False, True):
        path = tmp_path / str(compiled)
        path.mkdir()
        first, next_batch = new_trainer(path, 3)
        arguments = replace(first.arguments, torch_compile=compiled)
        trainer = Trainer(first.model, arguments, first.generator, first.device, False, path)
        assert (trainer.parallel is trainer.model) is not compiled
        train(trainer, next_batch)
        ends.append(trainer.model.state_dict())
    assert ends[0].keys() == ends[1].keys() == load_names(tmp_path / "True")
    for name, value in ends[0].items():
        torch.testing.assert_close(ends[1][name], value)


def load_names(path: Path) -> set[str]:
    """The parameters of a checkpoint, and the second names of the tied ones."""
    names = {key.removeprefix("model.") for key in load_checkpoint(path)[1] if key.startswith("model.")}
    return names | set(ALIASES)
