"""The changes from BERT to ModernBERT: each does what it says, and together they compute the modern block."""

import pytest
import torch
from torch import Tensor

from experiments.claims.blocks import GatedIntermediate, PreNormLayer, change_blocks
from experiments.claims.positions import FullEncoder, set_positions
from labml_bert.bert import BertConfig, BertLayer
from labml_bert.models import BertForMaskedLM
from labml_bert.modern import ModernBertConfig, ModernBertForMaskedLM

CONFIG = BertConfig(
    vocab_size=30,
    hidden_size=16,
    num_hidden_layers=4,
    num_attention_heads=2,
    intermediate_size=48,
    hidden_dropout_prob=0.0,
    attention_probs_dropout_prob=0.0,
    max_position_embeddings=12,
    initializer_range=0.3,
)
NONE = {"pre_norm": False, "gated": False, "biases": True, "local_attention": None}


def build(positions: str = "learned", **changes: object) -> BertForMaskedLM:
    torch.manual_seed(0)
    model = BertForMaskedLM(CONFIG)
    set_positions(model, positions)
    change_blocks(model, **{**NONE, **changes})  # type: ignore[arg-type]
    return model.eval()


def layers_of(model: BertForMaskedLM) -> list[torch.nn.Module]:
    assert isinstance(model.bert.encoder, FullEncoder)
    return list(model.bert.encoder.encoder.layer)


def test_without_a_change_the_model_computes_the_same() -> None:
    torch.manual_seed(0)
    ids, original = torch.arange(10)[None], BertForMaskedLM(CONFIG).eval()
    assert torch.allclose(build()(ids).logits, original(ids).logits, atol=1e-6)


def test_a_gated_network_keeps_its_parameters() -> None:
    wide, gated = layers_of(build()), layers_of(build(gated=True))
    assert isinstance(gated[0].intermediate, GatedIntermediate)
    matrices = [sum(p.numel() for p in layer.parameters() if p.dim() == 2) for layer in (wide[0], gated[0])]
    assert matrices[0] == matrices[1]
    std = gated[0].intermediate.dense.weight.std()
    assert 0.7 * CONFIG.initializer_range < std < CONFIG.initializer_range


def test_a_gate_of_zeros_blocks_everything() -> None:
    network = GatedIntermediate(4, 6)
    with torch.no_grad():
        network.dense.weight[6:].zero_()
        network.dense.bias[6:].zero_()
    assert not network(torch.randn(2, 3, 4)).any()


def test_pre_norm_leaves_the_residual_stream_alone() -> None:
    """If both sublayers output zero, a block returns its input, however large the values are."""
    layer = PreNormLayer(BertLayer(CONFIG), CONFIG, is_first=False, is_last=False).eval()
    for part in (layer.attention["output"], layer.output):
        torch.nn.init.zeros_(part.dense.weight)
        torch.nn.init.zeros_(part.dense.bias)
    x = 100 * torch.randn(2, 5, 16)
    assert torch.equal(layer(x, None, False)[0], x)


def test_all_changes_together_are_the_blocks_of_modern() -> None:
    """With the weights of a `ModernBertForMaskedLM`, the changed encoder gives the same hidden states."""
    torch.manual_seed(1)
    sizes = {"vocab_size": 30, "hidden_size": 16, "num_hidden_layers": 4, "num_attention_heads": 2}
    modern = ModernBertForMaskedLM(
        ModernBertConfig(
            **sizes,
            intermediate_size=32,
            local_attention=4,
            global_rope_theta=10_000.0,
            norm_eps=1e-12,
            initializer_range=0.3,
            pad_token_id=0,
        )
    ).eval()
    model = build("rotary", pre_norm=True, gated=True, biases=False, local_attention=4)
    with torch.no_grad():
        for i, (ours, theirs) in enumerate(zip(layers_of(model), modern.model.layers, strict=True)):
            block = ours.layer if hasattr(ours, "layer") else ours
            attention = block.attention["self"].original
            for part, weight in zip(
                (attention.query, attention.key, attention.value),
                theirs.attn.Wqkv.weight.chunk(3),
                strict=True,
            ):
                part.weight.copy_(weight)
            block.attention["output"].dense.weight.copy_(theirs.attn.Wo.weight)
            block.intermediate.dense.weight.copy_(theirs.mlp.Wi.weight)
            block.output.dense.weight.copy_(theirs.mlp.Wo.weight)
            assert hasattr(ours, "layer") != modern.config.is_global(i)
    ids = torch.randint(1, 30, (2, 12))
    x = modern.model.embeddings(ids)  # (B, T, D)
    hidden, _ = model.bert.encoder(x, None, False)
    assert torch.allclose(hidden, modern.model(ids), atol=1e-4)


def test_biases_that_are_left_out_stay_at_zero() -> None:
    model = build(biases=False, gated=True, pre_norm=True).train()
    ids = torch.randint(30, (3, 10))
    loss = model(ids, labels=torch.where(torch.arange(10) < 3, ids, -100)).loss
    assert loss is not None
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=1.0)
    loss.backward()
    optimizer.step()
    biases = {name: p for name, p in model.bert.encoder.named_parameters() if name.endswith(".bias")}
    assert biases and not any(p.any() for p in biases.values())


@pytest.mark.parametrize("positions", ["learned", "rotary"])
def test_local_layers_see_only_their_window(positions: str) -> None:
    model = build(positions, local_attention=4)

    def first_vector(x: Tensor, layer: int) -> Tensor:
        output, _ = layers_of(model)[layer](x, None, False)
        return output[0, 0]

    x = torch.randn(1, 12, 16)
    near, far = x.clone(), x.clone()
    near[0, 2] += 1
    far[0, 3:] += 1
    for layer in range(4):
        is_global = layer % 3 == 0
        assert not torch.equal(first_vector(x, layer), first_vector(near, layer))
        assert torch.equal(first_vector(x, layer), first_vector(far, layer)) != is_global
