"""Faults, injected for real: a loss or a gradient that is not finite, a full disk, an unwritable log."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
import torch
from torch import Tensor, nn

from labml_bert.data.pair_dataset import build_dataset, open_dataset
from labml_bert.data.pair_shards import DatasetArguments
from labml_bert.data.tokenizers import word_tokenizer
from labml_bert.files import read_tensors, write_whole
from labml_bert.models import BertForMaskedLM
from labml_bert.training.checkpoint import CHECKPOINT, FAILED_STEP, PREVIOUS, load_checkpoint, replay
from labml_bert.training.optimization import TrainingArguments
from labml_bert.training.tracking import METRICS, read_metrics
from labml_bert.training.trainer import NonFiniteLossError, Trainer
from tests.support.pairs import build_small_dataset
from tests.support.runs import small_text
from tests.support.trainers import CONFIG, finish, new_trainer, train

# Numbers that go wrong


def poisoned(path: Path, when: int, poison: object, **options: object) -> tuple[Trainer, list[float], list]:
    """
    A run in which `poison(model)` is called before step `when`, until it stops. Returns the trainer, the
    loss of each step, and the weights that the poison left.
    """
    path.mkdir()
    trainer, draw = new_trainer(path)
    for name, value in options.items():
        setattr(trainer, name, value)
    losses, weights = [], []
    trainer.parallel.register_forward_hook(lambda model, inputs, output: losses.append(output.loss.item()))

    def next_batch() -> dict[str, Tensor]:
        if trainer.step + 1 == when:
            with torch.no_grad():
                poison(trainer.model)
            weights.extend(p.detach().clone() for p in trainer.model.parameters())
        return draw()

    with pytest.raises(NonFiniteLossError, match=f"at step {when}; .*{CHECKPOINT}"):
        train(trainer, next_batch)
    return trainer, losses, weights


def explode(model: nn.Module) -> None:
    model.cls.predictions.bias.copy_(torch.linspace(-300, 300, 30))


def nothing_finite(model: nn.Module) -> None:
    model.bert.encoder.layer[1].output.dense.weight.fill_(float("inf"))


def overflow(model: nn.Module) -> None:
    """Each number fits into bfloat16, the product does not."""
    model.bert.embeddings.LayerNorm.weight.fill_(1e25)
    model.bert.encoder.layer[0].attention.self.value.weight.fill_(1e25)


@pytest.mark.parametrize(
    ("poison", "bfloat16"), [(explode, False), (nothing_finite, False), (overflow, False), (overflow, True)]
)
def test_the_step_that_fails_is_named_not_taken_and_done_again(
    poison: object, bfloat16: bool, tmp_path: Path
) -> None:
    trainer, losses, weights = poisoned(tmp_path / "run", 13, poison, bfloat16=bfloat16)
    assert all(torch.equal(a, b) for a, b in zip(weights, trainer.model.parameters(), strict=True))
    metadata, tensors = load_checkpoint(tmp_path / "run")
    assert metadata["step"] < 13
    assert all(value.isfinite().all() for value in tensors.values() if value.is_floating_point())
    model = BertForMaskedLM(CONFIG)
    loss, norms = replay(tmp_path / "run", model)
    # To the bit, with dropout on.
    assert loss == losses[12] or (loss != loss and losses[12] != losses[12])
    assert norms.keys() == dict(model.named_parameters()).keys()
    if poison is explode:
        assert loss > 100
        assert replay(tmp_path / "run", model) == (loss, norms)
    else:
        assert any(not norm < float("inf") for norm in norms.values())
    with pytest.raises(ValueError, match="of another model"):
        replay(tmp_path / "run", nn.Linear(2, 2))
    with pytest.raises(ValueError, match="no step has failed"):
        replay(tmp_path, model)


class Root(nn.Module):
    """A loss of 0, whose gradient is infinite."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(3))

    def forward(self, x: Tensor) -> object:
        class Output(NamedTuple):
            loss: Tensor

        return Output((self.weight * x).sum().abs().sqrt())


def test_a_finite_loss_with_a_gradient_that_is_not(tmp_path: Path) -> None:
    """Clipping by an infinite norm would make every weight NaN, and then the checkpoint too."""
    generator = torch.Generator()
    arguments = TrainingArguments(steps=9, evaluations=1, checkpoint_seconds=0)
    trainer = Trainer(Root(), arguments, generator, torch.device("cpu"), False, tmp_path)

    def next_batch() -> dict[str, Tensor]:
        return {"x": torch.zeros(3) if trainer.step == 5 else torch.ones(3)}

    with pytest.raises(NonFiniteLossError, match="at step 6"):
        train(trainer, next_batch, lambda: {"loss": 0.0})
    assert trainer.model.weight.isfinite().all()
    assert all(v.isfinite().all() for k, v in load_checkpoint(tmp_path)[1].items() if k.startswith("model"))
    loss, norms = replay(tmp_path, Root())
    assert loss == 0 and not norms["weight"] < float("inf")
    assert json.loads(read_tensors(tmp_path / FAILED_STEP)[1]["about"])["step"] == 6


# A disk that is full


@pytest.fixture()
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of half a megabyte."""
    path = tmp_path / "disk"
    path.mkdir()
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=512k", "tmpfs", str(path)], capture_output=True, text=True
    )
    if done.returncode:
        pytest.skip(f"a disk that is full needs the right to mount one: {done.stderr.strip()}")
    yield path
    subprocess.run(["umount", "--lazy", str(path)], check=True)


def fill_up(disk: Path) -> Path:
    """Leaves nothing."""
    filler = disk / "filler"
    with open(filler, "wb", buffering=0) as file:
        while True:
            try:
                file.write(b"\0" * 4096)
            except OSError:
                return filler


@pytest.mark.processes
def test_a_full_disk_loses_nothing_that_was_there(small_disk: Path) -> None:
    """At a checkpoint, a record, a model and pairs; and when there is room again, all go on."""
    trainer = finish(small_disk / "run")
    model, record, pairs = small_disk / "model", small_disk / "record.json", small_disk / "pairs"
    trainer.model.save_pretrained(model)
    write_whole(record, "{}")
    build_small_dataset(pairs)

    def contents() -> dict[Path, bytes]:
        return {path: path.read_bytes() for path in small_disk.rglob("*") if path.is_file()}

    # Else its room would do for the next.
    (small_disk / "run" / PREVIOUS).unlink()
    filler = fill_up(small_disk)
    before = contents()
    with torch.no_grad():
        for p in trainer.model.parameters():
            p.zero_()
    trainer.step += 1
    texts = [small_text(30, seed) for seed in range(30, 60)]
    works = [
        trainer.save,
        lambda: trainer.model.save_pretrained(model),
        lambda: write_whole(record, "x" * 10_000),
        lambda: build_dataset(texts, word_tokenizer(texts), pairs, DatasetArguments(max_length=32), 1),
    ]
    for work in works:
        with pytest.raises(OSError, match=r"No space left|os error 28"):
            work()
    after = contents()
    assert {path: data for path, data in after.items() if path.name != PREVIOUS} == {
        path: data for path, data in before.items() if path.name != PREVIOUS
    }
    assert load_checkpoint(small_disk / "run")[0]["step"] == 30
    filler.unlink()
    for work in works:
        work()
    assert load_checkpoint(small_disk / "run")[0]["step"] == 31
    assert len(open_dataset(pairs)) > 0


def test_a_log_that_cannot_be_written_stops_the_run(tmp_path: Path) -> None:
    """And not one line in a thread that nobody reads, and a night without metrics."""
    trainer, next_batch = new_trainer(tmp_path)
    log, aside = tmp_path / METRICS, tmp_path / "aside"

    def evaluate() -> dict[str, float]:
        if trainer.step == 18:
            log.rename(aside)
            log.symlink_to("/dev/full")
        return {"loss": 1.0}

    trainer.arguments = TrainingArguments(steps=30, evaluations=5, checkpoint_seconds=0)
    with pytest.raises(OSError, match="No space left"):
        train(trainer, next_batch, evaluate)
    aside.rename(log)
    with open(log, "a") as file:
        file.write('{"step": 18, "loss": 2')
    trainer, next_batch = new_trainer(tmp_path)
    trainer.resume()
    assert trainer.step >= 12
    train(trainer, next_batch)
    # A line that was cut off spoils no other.
    assert {6, 12, 24, 30} <= {step for step, _ in read_metrics(tmp_path)["valid.loss"]}


# The same bits


TWENTY_STEPS = """
import sys, torch
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from tests.support.trainers import finish
finish(Path(sys.argv[2]), steps=20)
"""


@pytest.mark.processes
def test_the_same_seed_gives_the_same_bits_in_another_process(tmp_path: Path) -> None:
    """With dropout on. What is in the hash of a text is drawn anew in each process, so none may matter."""
    for name in ("one", "two"):
        words = [sys.executable, "-c", TWENTY_STEPS, str(Path(__file__).parents[2]), str(tmp_path / name)]
        subprocess.run(words, check=True, env={**os.environ, "PYTHONHASHSEED": str(len(name) * ord(name[0]))})
    (_, one), (_, two) = load_checkpoint(tmp_path / "one"), load_checkpoint(tmp_path / "two")
    assert one.keys() == two.keys()
    assert all(torch.equal(one[key], two[key]) for key in one)
