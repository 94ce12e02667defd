"""Real faults: a loss or gradient that isn't finite, a full disk, an unwritable log."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from io import FileIO
from pathlib import Path
from typing import NamedTuple

import pytest
import torch
from torch import Tensor, nn

from labml_bert.data.pair_dataset import build_dataset, open_dataset
from labml_bert.data.pair_shards import DatasetArguments
from labml_bert.data.tokenizers import word_tokenizer
from labml_bert.files import read_tensors, write_tensors, write_whole
from labml_bert.models import BertForMaskedLM
from labml_bert.training import checkpoint, tracking
from labml_bert.training.checkpoint import CHECKPOINT, FAILED_STEP, PREVIOUS, load_checkpoint, replay
from labml_bert.training.device import Precision
from labml_bert.training.optimization import TrainingArguments
from labml_bert.training.tracking import METRICS, read_metrics
from labml_bert.training.trainer import NonFiniteLossError, Trainer
from tests.support.pairs import build_small_dataset
from tests.support.runs import small_text
from tests.support.trainers import CONFIG, new_trainer, train, train_to_end

# Non-finite numbers


def train_with_poison(
    path: Path, poison_step: int, poison: object, precision: Precision = "float32", **options: object
) -> tuple[Trainer, list[float], list]:
    """
    Trains and calls `poison(model)` before step `poison_step`, which must stop the run. Returns the trainer,
    the loss of each step, and the weights right after the poison.
    """
    path.mkdir()
    trainer, draw = new_trainer(path, precision=precision)
    for name, value in options.items():
        setattr(trainer, name, value)
    losses, weights = [], []
    trainer.parallel.register_forward_hook(lambda model, inputs, output: losses.append(output.loss.item()))

    def next_batch() -> dict[str, Tensor]:
        if trainer.step + 1 == poison_step:
            with torch.no_grad():
                poison(trainer.model)
            weights.extend(p.detach().clone() for p in trainer.model.parameters())
        return draw()

    with pytest.raises(NonFiniteLossError, match=f"at step {poison_step}; .*{CHECKPOINT}"):
        train(trainer, next_batch)
    return trainer, losses, weights


def explode(model: nn.Module) -> None:
    model.cls.predictions.bias.copy_(torch.linspace(-300, 300, 30))


def set_infinite_weights(model: nn.Module) -> None:
    model.bert.encoder.layer[1].output.dense.weight.fill_(float("inf"))


def cause_overflow(model: nn.Module) -> None:
    """Sets weights that fit into bfloat16, although their product doesn't."""
    model.bert.embeddings.LayerNorm.weight.fill_(1e25)
    model.bert.encoder.layer[0].attention.self.value.weight.fill_(1e25)


@pytest.mark.parametrize(
    ("poison", "precision"),
    [
        (explode, "float32"),
        (explode, "float16"),
        (set_infinite_weights, "float32"),
        (cause_overflow, "float32"),
        (cause_overflow, "bfloat16"),
    ],
)
def test_a_failed_step_is_reported_skipped_and_replayed(
    poison: object, precision: Precision, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer, losses, weights = train_with_poison(tmp_path / "run", 13, poison, precision=precision)
    assert all(torch.equal(a, b) for a, b in zip(weights, trainer.model.parameters(), strict=True))
    metadata, tensors = load_checkpoint(tmp_path / "run")
    assert metadata["step"] < 13
    assert all(value.isfinite().all() for value in tensors.values() if value.is_floating_point())
    saved = json.loads(read_tensors(tmp_path / "run" / FAILED_STEP)[1]["about"])
    assert saved == {"step": 13, "precision": precision, "configuration": metadata["configuration"]}
    model = BertForMaskedLM(CONFIG)
    calls: list[tuple] = []
    monkeypatch.setattr(checkpoint, "set_device_random_state", lambda *arguments: calls.append(arguments))
    loss, norms = replay(tmp_path / "run", model)
    ((device, tensors, number),) = calls
    assert (device.type, number) == ("cpu", 0) and "random.torch" in tensors
    # The loss is the same bit for bit, even with dropout on.
    assert loss == losses[12] or (loss != loss and losses[12] != losses[12])
    assert norms.keys() == dict(model.named_parameters()).keys()
    assert all(p.grad is None for p in model.parameters()), (
        "the model can be trained as if nothing had happened"
    )
    if poison is explode:
        assert loss > 100
        assert replay(tmp_path / "run", model) == (loss, norms)
    else:
        assert any(not norm < float("inf") for norm in norms.values())
    with pytest.raises(ValueError, match="of another model"):
        replay(tmp_path / "run", nn.Linear(2, 2))
    with pytest.raises(ValueError, match="no step has failed"):
        replay(tmp_path, model)
    # The file of another step has no precision.
    tensors, metadata = read_tensors(tmp_path / "run" / FAILED_STEP)
    write_tensors(tmp_path / FAILED_STEP, tensors, metadata | {"about": "{}"})
    with pytest.raises(ValueError, match="isn't a failed step"):
        replay(tmp_path, model)


class InfiniteGradient(nn.Module):
    """A model whose loss is 0 with an infinite gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(3))

    def forward(self, x: Tensor) -> object:
        class Output(NamedTuple):
            loss: Tensor

        return Output((self.weight * x).sum().abs().sqrt())


def test_a_finite_loss_with_an_infinite_gradient(tmp_path: Path) -> None:
    """Clipping with an infinite norm would turn every weight into NaN, and the checkpoint would save that."""
    generator = torch.Generator()
    arguments = TrainingArguments(steps=9, evaluations=1, checkpoint_seconds=0)
    trainer = Trainer(InfiniteGradient(), arguments, generator, torch.device("cpu"), "float32", tmp_path)

    def next_batch() -> dict[str, Tensor]:
        return {"x": torch.zeros(3) if trainer.step == 5 else torch.ones(3)}

    with pytest.raises(NonFiniteLossError, match="at step 6"):
        train(trainer, next_batch, lambda: {"loss": 0.0})
    assert trainer.model.weight.isfinite().all()
    assert all(v.isfinite().all() for k, v in load_checkpoint(tmp_path)[1].items() if k.startswith("model"))
    loss, norms = replay(tmp_path, InfiniteGradient())
    assert loss == 0 and not norms["weight"] < float("inf")
    assert json.loads(read_tensors(tmp_path / FAILED_STEP)[1]["about"])["step"] == 6


# A full disk


@pytest.fixture()
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of half a megabyte."""
    path = tmp_path / "disk"
    path.mkdir()
    process = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=512k", "tmpfs", str(path)], capture_output=True, text=True
    )
    if process.returncode:
        pytest.skip(f"mounting a small disk needs privileges: {process.stderr.strip()}")
    yield path
    subprocess.run(["umount", "--lazy", str(path)], check=True)


def fill_up(disk: Path) -> Path:
    """Fills the disk completely and returns the path of the filler."""
    filler = disk / "filler"
    with open(filler, "wb", buffering=0) as file:
        while True:
            try:
                file.write(b"\0" * 4096)
            except OSError:
                return filler


@pytest.mark.processes
def test_a_full_disk_damages_no_existing_file(small_disk: Path) -> None:
    """Saves a checkpoint, a record, a model and pairs on a full disk, and again once there is space."""
    trainer = train_to_end(small_disk / "run")
    model, record, pairs = small_disk / "model", small_disk / "record.json", small_disk / "pairs"
    trainer.model.save_pretrained(model)
    write_whole(record, "{}")
    build_small_dataset(pairs)

    def contents() -> dict[Path, bytes]:
        return {path: path.read_bytes() for path in small_disk.rglob("*") if path.is_file()}

    # Without this, the new checkpoint could use the space of the previous one.
    (small_disk / "run" / PREVIOUS).unlink()
    filler = fill_up(small_disk)
    files_before = contents()
    with torch.no_grad():
        for p in trainer.model.parameters():
            p.zero_()
    trainer.step += 1
    texts = [small_text(30, seed) for seed in range(30, 60)]
    save_functions = [
        trainer.save,
        lambda: trainer.model.save_pretrained(model),
        lambda: write_whole(record, "x" * 10_000),
        lambda: build_dataset(texts, word_tokenizer(texts), pairs, DatasetArguments(max_length=32), 1),
    ]
    for save in save_functions:
        with pytest.raises(OSError, match=r"No space left|os error 28"):
            save()
    files_after = contents()
    assert {path: data for path, data in files_after.items() if path.name != PREVIOUS} == {
        path: data for path, data in files_before.items() if path.name != PREVIOUS
    }
    assert load_checkpoint(small_disk / "run")[0]["step"] == 30
    filler.unlink()
    for save in save_functions:
        save()
    assert load_checkpoint(small_disk / "run")[0]["step"] == 31
    assert len(open_dataset(pairs)) > 0


def test_an_unwritable_log_stops_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If it didn't stop, a run could continue all night without metrics."""
    trainer, next_batch = new_trainer(tmp_path)

    def evaluate() -> dict[str, float]:
        if trainer.step == 18:
            monkeypatch.setattr(tracking, "open_to_append", lambda path: FileIO("/dev/full", "a"))
        return {"loss": 1.0}

    trainer.arguments = TrainingArguments(steps=30, evaluations=5, checkpoint_seconds=0)
    with pytest.raises(OSError, match="No space left"):
        train(trainer, next_batch, evaluate)
    monkeypatch.undo()
    with open(tmp_path / METRICS, "a") as file:
        file.write('{"step": 18, "loss": 2')
    trainer, next_batch = new_trainer(tmp_path)
    trainer.resume()
    assert trainer.step >= 12
    train(trainer, next_batch)
    # A truncated line doesn't affect the others.
    assert {6, 12, 24, 30} <= {step for step, _ in read_metrics(tmp_path)["valid.loss"]}


# Identical bits


TWENTY_STEPS = """
import sys, torch
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from tests.support.trainers import train_to_end
train_to_end(Path(sys.argv[2]), steps=20)
"""


@pytest.mark.long
@pytest.mark.processes
def test_the_same_seed_gives_identical_tensors_in_another_process(tmp_path: Path) -> None:
    """Dropout is on. Hashes of strings differ between processes, so nothing may depend on them."""
    for name in ("one", "two"):
        words = [sys.executable, "-c", TWENTY_STEPS, str(Path(__file__).parents[2]), str(tmp_path / name)]
        subprocess.run(words, check=True, env={**os.environ, "PYTHONHASHSEED": str(len(name) * ord(name[0]))})
    (_, first), (_, second) = load_checkpoint(tmp_path / "one"), load_checkpoint(tmp_path / "two")
    assert first.keys() == second.keys()
    assert all(torch.equal(first[key], second[key]) for key in first)
