"""Properties of the encoder for any configuration and any input, compared with loops over Python lists."""

import dataclasses
import math

import pytest
import torch
from hypothesis import assume, example, given
from hypothesis import strategies as st
from torch import Tensor

from labml_bert.bert import BertConfig, BertModel, Dropout
from labml_bert.checks import check_config
from tests.support.by_hand import bert_by_hand, is_close, randomize_weights, tiny_config, tiny_model
from tests.support.strategies import DTYPES, ID_DTYPES, draw_ids


@given(st.floats(0, 1, exclude_max=True), st.integers(0, 2**32), st.integers(0, 5))
@example(7e-6, 0, 0)
@example(0.999995, 0, 0)
def test_dropout_zeroes_a_fraction_and_rescales_the_rest(p: float, seed: int, dims: int) -> None:
    torch.manual_seed(seed)
    x = torch.full((4,) * dims + (4**6,), 3.0) if dims < 2 else torch.full((2,) * dims + (3,), 3.0)
    original = x.clone()
    y = Dropout(p).train()(x)
    assert y.shape == x.shape and torch.equal(x, original)
    if p == 0:
        assert torch.equal(y, x)
        return
    survivors = y[y != 0].double() / 3
    if len(survivors):
        # The factor follows from the fraction that is dropped, which is close to p but never 0 or 1.
        fraction = 1 - 1 / survivors[0].item()
        assert bool((survivors == survivors[0]).all())
        assert 0 < fraction < 1 and abs(fraction - p) < 1.1 / 2**16
    n, dropped = x.numel(), x.numel() - len(survivors)
    expected = min(max(p, 2**-16), 1 - 2**-16)
    assert abs(dropped - n * expected) < 7 * math.sqrt(n * expected * (1 - expected)) + n * 2**-16 + 7


@given(st.data())
def test_the_encoder_matches_loops_over_lists(data: st.DataObject) -> None:
    """Compares the last hidden states, the pooled output, and the attention weights."""
    draw = data.draw
    heads = draw(st.integers(1, 2))
    config = tiny_config(
        vocab_size=draw(st.integers(1, 4)),
        hidden_size=heads * draw(st.integers(2, 3)),
        num_hidden_layers=draw(st.integers(1, 2)),
        num_attention_heads=heads,
        intermediate_size=draw(st.integers(1, 3)),
        max_position_embeddings=draw(st.integers(1, 5)),
        type_vocab_size=draw(st.integers(1, 3)),
        layer_norm_eps=draw(st.sampled_from([1e-12, 1e-5, 1.0])),
    )
    model = randomize_weights(
        BertModel(config, add_pooling_layer=draw(st.booleans())),
        torch.Generator().manual_seed(draw(st.integers(0, 999))),
    )
    B, T = draw(st.integers(0, 2)), draw(st.integers(1, config.max_position_embeddings))
    ids = draw_ids(draw, B, T, st.integers(0, config.vocab_size - 1))
    inputs: dict[str, Tensor] = {}
    if draw(st.booleans()):
        inputs["attention_mask"] = draw_ids(draw, B, T, st.integers(0, 1)).to(draw(st.sampled_from(DTYPES)))
    if draw(st.booleans()):
        inputs["token_type_ids"] = draw_ids(draw, B, T, st.integers(0, config.type_vocab_size - 1))
    if draw(st.booleans()):
        inputs["position_ids"] = draw_ids(draw, B, T, st.integers(0, config.max_position_embeddings - 1))
    output_attentions = draw(st.booleans())
    output = model(ids.to(draw(st.sampled_from(ID_DTYPES))), **inputs, output_attentions=output_attentions)
    assert (output.attentions is None) != output_attentions
    assert (output.pooler_output is None) == (model.pooler is None)
    assert output.last_hidden_state.isfinite().all()
    for b, row in enumerate(ids.tolist()):
        attention_row = (
            inputs["attention_mask"][b].bool().tolist() if "attention_mask" in inputs else [True] * T
        )
        if not any(attention_row):
            continue
        types = inputs["token_type_ids"][b].tolist() if "token_type_ids" in inputs else [0] * T
        positions = inputs["position_ids"][b].tolist() if "position_ids" in inputs else [*range(T)]
        xs, pooled, attentions = bert_by_hand(model, row, attention_row, types, positions)
        assert is_close(output.last_hidden_state[b], xs)
        assert output.pooler_output is None or is_close(output.pooler_output[b], pooled)
        if output_attentions:
            assert is_close(torch.stack([layer[b] for layer in output.attentions]), attentions)


@given(st.sampled_from(DTYPES), st.integers(-2, 6), st.integers(0, 6))
def test_ids_outside_the_vocabulary_or_beyond_the_positions_are_rejected(
    dtype: torch.dtype, value: int, T: int
) -> None:
    ids = torch.full((1, T), value).to(dtype)
    if T and T <= 4 and dtype in ID_DTYPES and 0 <= value < 5:
        assert tiny_model()(ids).last_hidden_state.shape == (1, T, 2)
    else:
        with pytest.raises((IndexError, RuntimeError)):
            tiny_model()(ids)


COUNT = st.integers(-1, 4) | st.sampled_from([2.0, True, None, "2", math.nan])
FRACTION = st.sampled_from([0.0, 0.1, 1.0, math.nan, math.inf, -0.1]) | st.floats(allow_nan=True)


@given(st.data())
def test_a_config_builds_a_model_or_is_rejected(data: st.DataObject) -> None:
    counts = {
        field.name: data.draw(st.integers(1, 4) | COUNT if data.draw(st.booleans()) else st.integers(1, 4))
        for field in dataclasses.fields(BertConfig)
        if field.type is int
    }
    counts["pad_token_id"] = data.draw(st.integers(-1, 4))
    fractions = {
        field.name: data.draw(FRACTION if data.draw(st.booleans()) else st.just(0.01))
        for field in dataclasses.fields(BertConfig)
        if field.type is float
    }
    all_integers = all(type(value) is int for value in counts.values())
    is_valid = (
        all_integers
        and all(value >= 1 for name, value in counts.items() if name != "pad_token_id")
        and counts["hidden_size"] % counts["num_attention_heads"] == 0
        and 0 <= counts["pad_token_id"] < counts["vocab_size"]
        and all(0 <= value < 1 for name, value in fractions.items() if name.endswith("prob"))
        and all(0 < value < math.inf for name, value in fractions.items() if not name.endswith("prob"))
    )
    if not is_valid:
        with pytest.raises(ValueError, match=r"is|must|not"):
            check_config(BertConfig(**counts, **fractions))
        return
    config = BertConfig(**counts, **fractions)
    check_config(config)
    assume(1e-30 < config.initializer_range < 1e30)
    model = BertModel(config)
    sizes = [
        (config.vocab_size + config.max_position_embeddings + config.type_vocab_size) * config.hidden_size,
        2 * config.hidden_size,
        config.num_hidden_layers
        * (
            4 * config.hidden_size * (config.hidden_size + 1)
            + 4 * config.hidden_size
            + 2 * config.hidden_size * config.intermediate_size
            + config.intermediate_size
            + config.hidden_size
        ),
        config.hidden_size * (config.hidden_size + 1),
    ]
    assert sum(p.numel() for p in model.parameters()) == sum(sizes)
    for name, p in model.named_parameters():
        if name.endswith("LayerNorm.weight"):
            assert (p == 1).all()
        elif name.endswith("bias"):
            assert not p.any()
        else:
            assert p.abs().max() <= 2 * config.initializer_range * (1 + 1e-6)


@given(st.sampled_from(DTYPES), st.lists(st.integers(0, 3), max_size=3), st.sampled_from([0, 1, -1, -10_000]))
@example(torch.float32, [2, 3], -10_000)
@example(torch.float32, [2, 3], -1)
@example(torch.int64, [2, 1, 3], 1)
@example(torch.int64, [2, 1, 1, 3], 1)
@example(torch.int64, [2, 1], 1)
def test_an_attention_mask_fits_the_ids_or_is_rejected(
    dtype: torch.dtype, shape: list[int], value: int
) -> None:
    """An additive mask, with large negative values, would otherwise hide the tokens and show the padding."""
    ids, attention_mask = torch.ones(2, 3, dtype=torch.long), torch.ones(shape).to(dtype)
    if attention_mask.numel() and (value >= 0 or dtype.is_floating_point):
        attention_mask.view(-1)[0] = value
    if shape == [2, 3] and (attention_mask >= 0).all():
        tiny_model()(ids, attention_mask)
    else:
        message = r"^attention_mask must be \(B, T\), with 1 for a token and 0 for padding$"
        with pytest.raises(ValueError, match=message):
            tiny_model()(ids, attention_mask)
