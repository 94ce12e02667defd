"""Six ways to say where a token is: each does what its formula says."""

import math

import pytest
import torch

from experiments.claims.positions import POSITIONS, PositionBias, set_positions, sinusoids
from labml_bert.bert import BertConfig
from labml_bert.models import BertForMaskedLM

CONFIG = BertConfig(
    vocab_size=30,
    hidden_size=16,
    num_hidden_layers=2,
    num_attention_heads=2,
    intermediate_size=32,
    hidden_dropout_prob=0.0,
    attention_probs_dropout_prob=0.0,
    max_position_embeddings=12,
    initializer_range=0.3,
)


def build(positions: str) -> BertForMaskedLM:
    torch.manual_seed(0)
    model = BertForMaskedLM(CONFIG)
    set_positions(model, positions)
    for name, p in model.named_parameters():
        # A learned bias starts at zero, where it would have no effect.
        if name.endswith("bias.embedding.weight"):
            torch.nn.init.normal_(p)
    return model.eval()


@pytest.mark.parametrize("positions", POSITIONS)
def test_every_kind_sees_the_order_of_the_tokens(positions: str) -> None:
    model = build(positions)
    ids = torch.randint(30, (1, 10))
    order = torch.randperm(10)
    difference = (model(ids).logits[:, order] - model(ids[:, order]).logits).abs().max()
    assert difference > 1e-3


def test_without_any_positions_the_order_is_lost() -> None:
    model = build("learned")
    model.bert.embeddings.position_embeddings.weight.data.zero_()
    ids = torch.randint(30, (1, 10))
    order = torch.randperm(10)
    assert torch.allclose(model(ids).logits[:, order], model(ids[:, order]).logits, atol=1e-4)


@pytest.mark.parametrize("positions", POSITIONS)
def test_a_loss_reaches_every_parameter_that_trains(positions: str) -> None:
    model = build(positions).train()
    ids = torch.randint(30, (3, 10))
    output = model(ids, labels=torch.where(torch.arange(10) < 3, ids, -100))
    assert output.loss is not None
    output.loss.backward()
    trainable = {name: p for name, p in model.named_parameters() if p.requires_grad}
    assert all(p.grad is not None and p.grad.isfinite().all() for p in trainable.values())
    has_table = "bert.embeddings.position_embeddings.weight" in trainable
    assert has_table == (positions == "learned")


@pytest.mark.parametrize("positions", ["relative", "alibi", "untied"])
def test_relative_biases_depend_on_the_distance_alone(positions: str) -> None:
    torch.manual_seed(0)
    module = PositionBias(positions, CONFIG)
    for p in module.parameters():
        torch.nn.init.normal_(p)
    bias = module(9)
    assert isinstance(bias, torch.Tensor) and bias.shape == (2, 9, 9)
    assert torch.allclose(bias[:, 1:, 1:], bias[:, :-1, :-1]) == (positions != "untied")


def test_the_linear_bias_is_that_of_the_paper() -> None:
    bias = PositionBias("alibi", CONFIG)(4)
    assert isinstance(bias, torch.Tensor)
    # With two heads, the slopes are 2^-4 and 2^-8.
    assert bias[0, 3].tolist() == pytest.approx([-3 / 16, -2 / 16, -1 / 16, 0])
    assert bias[1, 0, 2] == pytest.approx(-2 / 256)


def test_scores_by_hand() -> None:
    """Computes one row of attention scores in the first block by the definition."""
    for positions in ("untied", "relative", "alibi"):
        model = build(positions)
        ids = torch.randint(30, (1, 7))
        outputs = model.bert(ids, output_attentions=True)
        attention = model.bert.encoder.encoder.layer[0].attention["self"]  # type: ignore[union-attr]
        x = model.bert.embeddings(ids)[0]
        q, k = (
            layer(x).unflatten(-1, (2, 8))[:, 1]
            for layer in (attention.original.query, attention.original.key)
        )
        scores = q @ k.T / math.sqrt(16 if positions == "untied" else 8) + attention.bias(7)[1]
        expected = scores.softmax(-1)
        assert torch.allclose(outputs.attentions[0][0, 1], expected, atol=1e-5)


def test_sinusoids() -> None:
    table = sinusoids(5, 6)
    assert table.shape == (5, 6)
    assert table[0].tolist() == [0, 0, 0, 1, 1, 1]
    assert table[3, 0] == pytest.approx(math.sin(3)) and table[3, 3] == pytest.approx(math.cos(3))
    assert table[3, 2] == pytest.approx(math.sin(3 / 10_000 ** (2 / 3)))


def test_an_unknown_kind_is_refused() -> None:
    with pytest.raises(ValueError, match="positions is 'none'; choose from learned"):
        set_positions(BertForMaskedLM(CONFIG), "none")
