"""LoRA: the parameters that it trains, those that stay unchanged, and models after merging."""

from copy import deepcopy
from pathlib import Path

import pytest
import torch
from torch import Tensor
from transformers import BertForTokenClassification as TheirTokenClassifier

from labml_bert.bert import BertConfig, BertModel
from labml_bert.finetuning import Row, fine_tune
from labml_bert.heads import BertForTokenClassification
from labml_bert.lora import add_lora, merge_lora
from tests.support.parity import TOLERANCE

CONFIG = BertConfig(
    vocab_size=30, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32
)
ROWS = [Row([2, i, i + 1, 3], [0] * 4, {"labels": [-100, i % 2, 1, -100]}) for i in range(5, 25)]
IDS = torch.tensor([[2, 7, 9, 11, 3]])


def make_model() -> BertForTokenClassification:
    torch.manual_seed(0)
    return BertForTokenClassification(CONFIG, ["a", "b"])


def weights(model: torch.nn.Module) -> dict[str, Tensor]:
    return {name: p.detach().clone() for name, p in model.named_parameters()}


def test_how_much_of_bert_base_is_trained() -> None:
    with torch.device("meta"):
        model = BertModel(BertConfig())
        total = sum(p.numel() for p in model.parameters())
        add_lora(model, r=8)
    count = sum(p.numel() for p in model.parameters() if p.requires_grad)
    assert count == 12 * 2 * 2 * 8 * 768
    assert f"{count / total:.2%}" == "0.27%"


def test_the_model_is_unchanged_at_first_and_only_the_products_and_the_head_learn() -> None:
    model = make_model().eval()
    expected = model(IDS).logits
    before = weights(model)
    add_lora(model.bert, r=2)
    torch.testing.assert_close(model(IDS).logits, expected)
    losses = fine_tune(model, ROWS, 1e-2, epochs=20, batch_size=10)
    assert losses[-1] < 0.8 * losses[0]
    after = {
        name.replace(".parametrizations.weight.original", ".weight"): w for name, w in weights(model).items()
    }
    for name, weight in before.items():
        assert torch.equal(after[name], weight) == name.startswith("bert."), name
    assert {name.rpartition(".")[2] for name in after.keys() - before.keys()} == {"lora_A", "lora_B"}


def test_a_merged_model_computes_the_same_and_is_an_ordinary_one(tmp_path: Path) -> None:
    model = make_model()
    names = [*weights(model)]
    add_lora(model.bert, r=2, alpha=4)
    fine_tune(model, ROWS, 1e-2, epochs=5, batch_size=10)
    expected = model(IDS).logits
    assert not torch.allclose(expected, make_model().eval()(IDS).logits, atol=0.01)
    merge_lora(model.bert)
    assert sorted(weights(model)) == sorted(names)
    assert all(p.requires_grad for p in model.parameters())
    torch.testing.assert_close(model(IDS).logits, expected)
    model.save_pretrained(tmp_path)
    theirs = TheirTokenClassifier.from_pretrained(tmp_path).eval()
    torch.testing.assert_close(theirs(IDS).logits, expected, atol=TOLERANCE, rtol=0)


def test_a_copy_can_be_merged_while_the_original_trains_on() -> None:
    model = make_model()
    add_lora(model.bert, r=2)
    fine_tune(model, ROWS, 1e-2, epochs=1, batch_size=10)
    copy, expected = deepcopy(model), model(IDS).logits
    merge_lora(copy.bert)
    torch.testing.assert_close(copy(IDS).logits, expected)
    fine_tune(model, ROWS, 1e-2, epochs=1, batch_size=10)
    torch.testing.assert_close(copy(IDS).logits, expected)
    assert not torch.allclose(model(IDS).logits, expected, atol=1e-3)
    merge_lora(model.bert)


def test_the_sum_is_scaled_by_alpha_over_r() -> None:
    model = BertModel(CONFIG)
    linear = model.encoder.layer[0].attention["self"].query
    before = linear.weight.detach().clone()
    add_lora(model, r=4, alpha=8)
    lora = linear.parametrizations.weight[0]
    with torch.no_grad():
        lora.lora_B.normal_()
    torch.testing.assert_close(linear.weight, before + 2 * lora.lora_B @ lora.lora_A)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_matrices_are_like_the_weights(dtype: torch.dtype) -> None:
    with torch.device("meta"):
        model = BertModel(CONFIG).to(dtype)
    add_lora(model, r=2)
    assert {(p.dtype, p.device.type) for p in model.parameters()} == {(dtype, "meta")}


def test_a_rank_below_one_is_refused() -> None:
    with pytest.raises(ValueError, match="r is 0; it must be at least 1"):
        add_lora(BertModel(CONFIG), r=0)


def test_merging_and_saving_at_the_wrong_time_are_refused(tmp_path: Path) -> None:
    """If the weights were saved with LoRA, no model could load them."""
    model = make_model()
    with pytest.raises(ValueError, match="the encoder has no LoRA; call add_lora first"):
        merge_lora(model.bert)
    add_lora(model.bert, r=2)
    with pytest.raises(ValueError, match="a layer has LoRA or another parametrization; call merge_lora"):
        model.save_pretrained(tmp_path / "model")
    assert not (tmp_path / "model").exists()
