"""Evaluations during training use a part of the held-out text, but never one without labels."""

import contextlib
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from labml_bert.bert import BertConfig
from labml_bert.mlm import IGNORE, MaskedTokens
from labml_bert.models import BertForMaskedLM, BertForPreTraining
from labml_bert.training.evaluation import evaluate_masked_lm, evaluate_pretraining

N, T, V = 12, 16, 30
CONFIG = BertConfig(V, 16, 1, 2, 16, max_position_embeddings=T)
IDS = torch.randint(V, (N, T), generator=torch.Generator().manual_seed(0))
# Tokens outside the vocabulary are never masked, so a window of them has no labels.
UNLABELED = 5
LABELS = IDS.where(torch.arange(N)[:, None] >= UNLABELED, torch.tensor(IGNORE))


def trainer_of(model: torch.nn.Module) -> Any:
    return SimpleNamespace(model=model, device=torch.device("cpu"), autocast=contextlib.nullcontext)


@pytest.mark.parametrize("tokens", [1, 3 * T, UNLABELED * T])
def test_windows_without_labels_at_the_start(tokens: int) -> None:
    trainer = trainer_of(BertForMaskedLM(CONFIG))
    result = evaluate_masked_lm(trainer, MaskedTokens(IDS, LABELS), tokens)
    first = slice(UNLABELED, UNLABELED + 1)
    assert result == pytest.approx(evaluate_masked_lm(trainer, MaskedTokens(IDS[first], LABELS[first])))
    assert result["loss"] > 1


@pytest.mark.parametrize("batches", [1, UNLABELED])
def test_batches_without_labels_at_the_start(batches: int) -> None:
    trainer = trainer_of(BertForPreTraining(CONFIG))
    held_out = [
        {"input_ids": ids[None], "labels": labels[None], "next_sentence_label": torch.tensor([i % 2])}
        for i, (ids, labels) in enumerate(zip(IDS, LABELS, strict=True))
    ]
    result = evaluate_pretraining(trainer, held_out, batches)
    expected = evaluate_pretraining(trainer, held_out[UNLABELED : UNLABELED + 1])
    assert result["loss"] == pytest.approx(expected["loss"]) and result["loss"] > 1
    assert result["pairs"] == UNLABELED + 1


def test_pairs_without_a_label_do_not_count() -> None:
    trainer = trainer_of(BertForPreTraining(CONFIG))
    labels = torch.tensor([1, IGNORE, 0, IGNORE])
    batch = {"input_ids": IDS[-4:], "labels": LABELS[-4:], "next_sentence_label": labels}
    result = evaluate_pretraining(trainer, [batch])
    is_labeled = labels != IGNORE
    expected = evaluate_pretraining(trainer, [{name: x[is_labeled] for name, x in batch.items()}])
    for name in ("next_sentence_loss", "next_sentence_accuracy", "next_sentence_chance", "pairs"):
        assert result[name] == pytest.approx(expected[name])
    nothing = evaluate_pretraining(trainer, [batch | {"next_sentence_label": labels.fill_(IGNORE)}])
    assert nothing["pairs"] == 0 and nothing["next_sentence_chance"] == 1
