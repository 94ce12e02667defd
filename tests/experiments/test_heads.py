"""Heads on the plateau: the measurements, and the heads that are set by hand."""

import pytest
import torch

from experiments.claims.heads import attend_to_neighbors, neighbor_attention, order_gain
from labml_bert.bert import BertConfig
from labml_bert.mlm import IGNORE, MaskedTokens
from labml_bert.models import BertForMaskedLM
from labml_bert.training.optimization import TrainingArguments
from labml_bert.training.trainer import Trainer

CONFIG = BertConfig(
    vocab_size=30,
    hidden_size=128,
    num_hidden_layers=2,
    num_attention_heads=4,
    intermediate_size=64,
    hidden_dropout_prob=0.0,
    attention_probs_dropout_prob=0.0,
    max_position_embeddings=128,
    initializer_range=0.04,
)


def build(heads: int | None = None) -> BertForMaskedLM:
    torch.manual_seed(0)
    model = BertForMaskedLM(CONFIG).eval()
    if heads is not None:
        attend_to_neighbors(model, heads)
    return model


def test_an_untrained_head_attends_to_all_positions_alike() -> None:
    ids = torch.randint(30, (4, 64))
    assert neighbor_attention(build(), ids) == pytest.approx(1 / 64, rel=0.2)


def test_heads_that_are_set_by_hand_attend_to_their_neighbors() -> None:
    ids = torch.randint(30, (4, 128))
    model = build(2)
    attentions = model.bert(ids, output_attentions=True).attentions
    assert attentions is not None
    for head, offset in enumerate((-1, 1)):
        weights = attentions[0][:, head].diagonal(offset, -2, -1)
        assert weights.mean() > 0.9 and weights.min() > 0.5
    assert attentions[0][:, 2:].max() < 0.1, "the other heads are as they were"
    assert neighbor_attention(model, ids) > 0.9
    assert attentions[1].max() < 0.1
    one = build(1).bert(ids, output_attentions=True).attentions
    assert one is not None and torch.allclose(one[0][:, 0], attentions[0][:, 0], atol=1e-3)
    assert one[0][:, 1].max() < 0.1


def test_the_control_changes_only_the_embeddings() -> None:
    before, after = (dict(build(heads).named_parameters()) for heads in (None, 0))
    changes = {name for name in before if not torch.equal(before[name], after[name])}
    assert changes == {
        f"bert.embeddings.{kind}_embeddings.weight" for kind in ("word", "position", "token_type")
    }
    ids = torch.randint(30, (4, 64))
    assert neighbor_attention(build(0), ids) == pytest.approx(1 / 64, rel=0.5)


def test_other_numbers_of_heads_are_rejected() -> None:
    with pytest.raises(ValueError, match="neighbor_heads is 3; it must be 0, 1 or 2"):
        attend_to_neighbors(build(), 3)


@pytest.mark.slow("trains a model")
def test_the_order_helps_only_a_model_that_uses_it() -> None:
    """In a text of runs of four equal tokens, most masked tokens equal their left neighbor."""
    generator = torch.Generator().manual_seed(1)
    rows = torch.randint(6, 30, (400, 8), generator=generator).repeat_interleave(4, dim=1)  # (B, T)
    is_masked = torch.rand(rows.shape, generator=generator) < 0.15
    text = MaskedTokens(rows.masked_fill(is_masked, 4), rows.masked_fill(~is_masked, IGNORE))
    model = build(1)
    trainer = Trainer(
        model,
        TrainingArguments(steps=60, learning_rate=3e-3),
        generator,
        torch.device("cpu"),
        precision="float32",
    )
    assert abs(order_gain(trainer, text, 4096)) < 0.02
    for step in trainer.steps():
        rows_of_batch = torch.randint(len(rows), (16,), generator=generator)
        labels = text.labels[rows_of_batch]
        batch = {
            "input_ids": text.input_ids[rows_of_batch],
            "labels": labels,
            "num_items_in_batch": (labels != IGNORE).sum(),
        }
        for part in step.micro_batches(batch):
            step.backward(trainer.parallel(**part).loss)
        step.update()
    assert order_gain(trainer, text, 4096) > 0.3
