"""Properties of models of any size, of any model folder, and of any file of weights."""

import dataclasses
import json
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import torch
from hypothesis import assume, example, given
from hypothesis import strategies as st
from safetensors.torch import load_file, save
from torch import Tensor

from labml_bert.bert import BertConfig
from labml_bert.mlm import IGNORE
from labml_bert.model_folder import read_config, read_tensors
from labml_bert.models import BertForMaskedLM, BertForPreTraining, parameter_table
from tests.support.by_hand import randomize_weights, tiny_config
from tests.support.strategies import draw_ids


@st.composite
def models(draw: st.DrawFn) -> BertForMaskedLM | BertForPreTraining:
    heads = draw(st.integers(1, 2))
    config = tiny_config(
        vocab_size=draw(st.integers(1, 6)),
        hidden_size=heads * draw(st.integers(1, 2)),
        num_attention_heads=heads,
        num_hidden_layers=draw(st.integers(1, 2)),
    )
    model = draw(st.sampled_from([BertForMaskedLM, BertForPreTraining]))(config)
    return randomize_weights(model, torch.Generator().manual_seed(draw(st.integers(0, 99)))).float()


@given(models())
def test_a_saved_model_is_loaded_unchanged(model: BertForMaskedLM | BertForPreTraining) -> None:
    with TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        reloaded = type(model).from_pretrained(folder)
        tensors = load_file(Path(folder) / "model.safetensors")
    assert reloaded.config == model.config
    assert not reloaded.training
    parameters = dict(model.named_parameters())
    assert parameters.keys() == tensors.keys() == dict(reloaded.named_parameters()).keys()
    for name, p in reloaded.named_parameters():
        assert torch.equal(p, parameters[name])
    other = type(model)(model.config)
    other.load_state_dict(model.state_dict())
    assert all(torch.equal(p, parameters[name]) for name, p in other.named_parameters())
    table = parameter_table(model)
    assert table[-1] == ("together", sum(p.numel() for p in model.parameters()))
    assert sum(count for _, count in table[:-1]) == table[-1][1]


@given(models(), st.integers(-1, 9))
def test_resizing_the_vocabulary(model: BertForMaskedLM | BertForPreTraining, size: int) -> None:
    """Old tokens keep their row, bias and logit. New rows start small, and the sizes agree everywhere."""
    model.eval()
    if size < 1:
        with pytest.raises(ValueError, match="no room for the padding token"):
            model.resize_token_embeddings(size)
        return
    rows = min(size, model.config.vocab_size)
    ids = torch.arange(rows)[None, :4]
    old_weight = model.bert.embeddings.word_embeddings.weight.detach().clone()
    old_bias = model.cls.predictions.bias.detach().clone()
    old_logits = model(ids).logits if isinstance(model, BertForMaskedLM) else model(ids).prediction_logits
    model.resize_token_embeddings(size)
    new_logits = model(ids).logits if isinstance(model, BertForMaskedLM) else model(ids).prediction_logits
    table = model.bert.embeddings.word_embeddings
    assert model.config.vocab_size == table.num_embeddings == len(table.weight) == size
    assert table.padding_idx == model.config.pad_token_id
    assert torch.equal(table.weight[:rows], old_weight[:rows])
    assert (table.weight[rows:].abs() <= 2 * model.config.initializer_range).all()
    assert torch.equal(model.cls.predictions.bias[:rows], old_bias[:rows])
    assert not model.cls.predictions.bias[rows:].any()
    assert new_logits.shape == (*ids.shape, size)
    assert torch.allclose(new_logits[..., :rows], old_logits[..., :rows], atol=1e-5)
    assert table.weight.requires_grad
    assert model.cls.predictions.bias.requires_grad


@given(models(), st.data())
def test_the_loss_is_the_sum_of_its_parts(
    model: BertForMaskedLM | BertForPreTraining, data: st.DataObject
) -> None:
    assume(isinstance(model, BertForPreTraining))
    B, T = data.draw(st.integers(0, 3)), data.draw(st.integers(1, 4))
    V = model.config.vocab_size
    ids = draw_ids(data.draw, B, T, st.integers(0, V - 1))
    labels = data.draw(
        st.sampled_from([None, draw_ids(data.draw, B, T, st.sampled_from([IGNORE, 0, V - 1]))])
    )
    pairs = data.draw(st.sampled_from([None, draw_ids(data.draw, 1, B, st.integers(0, 1))[0]]))
    output = model.eval()(ids, labels, pairs)
    assert (output.masked_lm_loss is None) == (labels is None)
    assert (output.next_sentence_loss is None) == (pairs is None)
    parts = [loss.item() for loss in (output.masked_lm_loss, output.next_sentence_loss) if loss is not None]
    assert (output.loss is None) == (not parts)
    if output.loss is not None:
        assert output.loss.item() == pytest.approx(sum(parts), abs=1e-5)
        assert output.loss.isfinite()
    assert output.seq_relationship_logits.shape == (B, 2)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 9) | st.floats() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
    max_leaves=4,
)
FIELDS = [field.name for field in dataclasses.fields(BertConfig)]


@given(
    JSON
    | st.dictionaries(st.sampled_from([*FIELDS, "model_type", "hidden_act"]), JSON)
    | st.binary(max_size=9)
)
def test_any_config_is_read_or_rejected(content: Any) -> None:
    data = content if isinstance(content, bytes) else json.dumps(content).encode()
    with TemporaryDirectory() as folder:
        (Path(folder) / "config.json").write_bytes(data)
        try:
            config = read_config(Path(folder))
        except ValueError as error:
            assert "config.json" in str(error)
        else:
            assert all(value == content[name] for name, value in vars(config).items() if content.get(name))


@given(st.binary(max_size=40), st.integers(0, 200), st.booleans())
@example(b"", 0, True)
def test_any_weights_are_read_or_rejected(noise: bytes, offset: int, truncate: bool) -> None:
    """Noise, an intact file with some bytes overwritten, and a truncated file."""
    intact = save({"bert.x": torch.ones(3), "cls.predictions.bias": torch.zeros(2)})
    with TemporaryDirectory() as folder:
        for data in (
            noise,
            intact[:offset] + noise + intact[offset + len(noise) :],
            intact[: offset if truncate else None],
        ):
            (Path(folder) / "model.safetensors").write_bytes(data)
            try:
                tensors = read_tensors(Path(folder))
            except ValueError as error:
                assert "model.safetensors" in str(error)
            else:
                assert all(isinstance(tensor, Tensor) for tensor in tensors.values())
