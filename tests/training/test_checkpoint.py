"""A damaged checkpoint, and the one before it."""

import os
from pathlib import Path

import pytest
import torch
from torch import Tensor

from labml_bert.training.checkpoint import CHECKPOINT, PREVIOUS, load_checkpoint
from tests.support.damage import flip_bit
from tests.support.trainers import finish, new_trainer, train


def test_a_damaged_checkpoint_names_the_one_before_and_it_goes_on_to_the_same_end(tmp_path: Path) -> None:
    finish(tmp_path / "whole")
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
    with pytest.raises(ValueError, match=f"sha256.*of step .*, is intact: rename {PREVIOUS} to {CHECKPOINT}"):
        new_trainer(path)[0].resume()
    os.replace(path / PREVIOUS, path / CHECKPOINT)
    trainer, next_batch = new_trainer(path)
    trainer.resume()
    assert trainer.step <= 20
    train(trainer, next_batch)
    expected, found = load_checkpoint(tmp_path / "whole")[1], load_checkpoint(path)[1]
    assert all(torch.equal(expected[key], found[key]) for key in expected)
    for name in (CHECKPOINT, PREVIOUS):
        (path / name).write_bytes(b"")
    with pytest.raises(ValueError, match="start a new run"):
        load_checkpoint(path)
