"""A short training run with dropout, which other tests interrupt, resume and distribute."""

import contextlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from labml_bert.bert import BertConfig
from labml_bert.files import write_tensors
from labml_bert.mlm import TokenMasker, masked_accuracy
from labml_bert.models import BertForMaskedLM
from labml_bert.training.checkpoint import CHECKPOINT, load_checkpoint
from labml_bert.training.device import Precision
from labml_bert.training.distributed import rank
from labml_bert.training.optimization import OptimizerName, TrainingArguments
from labml_bert.training.tracking import Tracker
from labml_bert.training.trainer import Report, Step, Trainer

NextBatch = Callable[[], dict[str, torch.Tensor]]

CONFIG = BertConfig(
    vocab_size=30,
    hidden_size=16,
    num_hidden_layers=2,
    num_attention_heads=2,
    intermediate_size=32,
    max_position_embeddings=16,
)


def new_trainer(
    path: Path | None,
    steps: int = 30,
    optimizer: OptimizerName = "adamw",
    precision: Precision = "float32",
    **configuration: object,
) -> tuple[Trainer, NextBatch]:
    """A small training run with dropout, and the function that draws its batches."""
    torch.manual_seed(0)
    generator = torch.Generator().manual_seed(0)
    masker = TokenMasker(30, 4, range(5), generator=generator)
    arguments = TrainingArguments(
        steps=steps, optimizer=optimizer, learning_rate=1e-3, evaluations=5, checkpoint_seconds=0
    )
    model, device = BertForMaskedLM(CONFIG), torch.device("cpu")
    trainer = Trainer(model, arguments, generator, device, precision, path, configuration)

    def next_batch() -> dict[str, torch.Tensor]:
        ids = 5 + (torch.randint(25, (8, 1), generator=generator) + torch.arange(16)) % 25
        return masker(ids)._asdict()

    return trainer, next_batch


def edit_checkpoint(path: Path, **changes: Any) -> None:
    """Changes values in the metadata of the checkpoint in a run's folder. `...` removes a value."""
    metadata, tensors = load_checkpoint(path)
    state = {key: value for key, value in {**metadata, **changes}.items() if value is not ...}
    write_tensors(path / CHECKPOINT, tensors, {"about": json.dumps(state)})


def train_on(step: Step, batch: dict[str, torch.Tensor]) -> None:
    """One step on a batch."""
    for part in step.micro_batches(batch):
        with step.autocast():
            output = step.trainer.parallel(**part)
        accuracy = {}
        if "labels" in part:
            count = part.get("num_items_in_batch")
            accuracy = {"accuracy": masked_accuracy(output.logits, output.labels, count)}
        step.backward(output.loss, **accuracy)
    step.update()


def train(
    trainer: Trainer, next_batch: NextBatch, evaluate: Callable[[], dict[str, float]] = lambda: {"loss": 1.0}
) -> None:
    """Runs all steps, and tracks them if the trainer has a folder."""
    with contextlib.ExitStack() as stack:
        if trainer.run_path is not None and rank() == 0:
            tracker = stack.enter_context(Tracker(trainer.run_path, {}))

            def track(report: Report) -> None:
                evaluation = {f"valid.{key}": value for key, value in (report.evaluation or {}).items()}
                tracker.save(report.step, {"seconds": report.seconds, **report.metrics, **evaluation})

            trainer.on_report = track
        for step in trainer.steps():
            train_on(step, next_batch())
            if step.evaluation_due:
                step.evaluation = evaluate()


def train_to_end(path: Path, **options: Any) -> Trainer:
    """A complete run in a new folder."""
    path.mkdir()
    trainer, next_batch = new_trainer(path, **options)
    train(trainer, next_batch)
    return trainer
