"""A small run with dropout, for the tests of whatever happens to a run."""

from pathlib import Path

import torch

from labml_bert.bert import BertConfig
from labml_bert.mlm import TokenMasker, masked_accuracy
from labml_bert.models import BertForMaskedLM
from labml_bert.training.optimization import TrainingArguments
from labml_bert.training.trainer import Trainer, tracked

CONFIG = BertConfig(
    vocab_size=30,
    hidden_size=16,
    num_hidden_layers=2,
    num_attention_heads=2,
    intermediate_size=32,
    max_position_embeddings=16,
)


def trainer_at(path: Path, steps: int = 30, **configuration: object) -> tuple[Trainer, dict]:
    """A small run with dropout, and what `Trainer.train` needs."""
    torch.manual_seed(0)
    generator = torch.Generator().manual_seed(0)
    masker = TokenMasker(30, 4, range(5), generator=generator)
    arguments = TrainingArguments(steps=steps, learning_rate=1e-3, evaluations=5, checkpoint_seconds=0)
    trainer = Trainer(
        BertForMaskedLM(CONFIG),
        arguments,
        path,
        configuration,
        generator,
        torch.device("cpu"),
        bfloat16=False,
    )

    def next_batch(progress: float) -> dict[str, torch.Tensor]:
        ids = 5 + (torch.randint(25, (8, 1), generator=generator) + torch.arange(16)) % 25
        return masker(ids)._asdict()

    def metrics(output, batch) -> dict[str, torch.Tensor]:
        return {"accuracy": masked_accuracy(output.logits, output.labels)}

    return trainer, {"next_batch": next_batch, "metrics": metrics, "evaluate": lambda: {"loss": 1.0}}


def finish(path: Path, **options) -> Trainer:
    path.mkdir()
    trainer, parts = trainer_at(path, **options)
    with tracked(path, {}):
        list(trainer.train(**parts))
    return trainer
