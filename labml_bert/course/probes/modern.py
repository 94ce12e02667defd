"""
# Checks: a modern encoder

What the steps in `modern.py` must do.
"""

import copy
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from labml_bert.course.compare import Near, Probe
from labml_bert.course.probes.tools import (
    SIZES,
    FixedDropout,
    gradients,
    mask_type,
    numbers,
    raises,
    set_weights,
)


def config(m: Any, **options: Any) -> Any:
    """A small configuration."""
    sizes = SIZES | {"intermediate_size": 10, "local_attention": 6, "pad_token_id": 0}
    return m.ModernBertConfig(**sizes | options)


def probe_angles(m: Any) -> Iterator[tuple[str, Any]]:
    result = m.rotary_angles(torch.tensor([[0, 1, 5]]), 8, 100.0)
    yield "the shapes", [tuple(part.shape) for part in result]
    yield "the cosines of the first pair", result[0][..., 0]
    yield "all cosines", result[0]
    yield "all sines", result[1]
    yield "the result for two rows", m.rotary_angles(torch.tensor([[0, 1, 5], [7, 2, 3]]), 4, 10_000.0)


def probe_rotate(m: Any) -> Iterator[tuple[str, Any]]:
    angles = 3 * numbers(2, 1, 1, 5, 3)
    cos, sin = angles.cos().repeat(1, 1, 1, 1, 2), torch.cat((-angles.sin(), angles.sin()), -1)
    yield "the result", m.rotate(numbers(2, 2, 3, 5, 6, seed=1), cos, sin)


def probe_attend(m: Any) -> Iterator[tuple[str, Any]]:
    q, k, v = numbers(2, 3, 4, 5), numbers(2, 3, 6, 5, seed=1), numbers(2, 3, 6, 5, seed=2)
    mask = (torch.arange(6) < torch.tensor([[6], [4]]))[:, None, None]
    result = m.attend(q, k, v, mask, 0.0)
    yield "the result without a mask", m.attend(q, k, v, None, 0.0)
    yield "the result with a mask", result
    same = m.attend(q.bfloat16(), k.bfloat16(), v.bfloat16(), mask, 0.0)
    yield "the type of the result in bfloat16", str(same.dtype)
    yield "the largest rounding error in bfloat16", Near((same - result).abs().max().item(), 0.05)
    yield (
        "the result in bfloat16 without a mask",
        tuple(m.attend(*[x.bfloat16() for x in (q, k, v)], None, 0.0).shape),
    )
    x = numbers(1, 1, 100, 100)
    weights = m.attend(0 * x, x, torch.eye(100)[None, None], None, 0.3)
    yield (
        "the fraction of weights that dropout sets to 0, at p = 0.3",
        Near((weights == 0).float().mean().item(), 0.03),
    )
    yield "the mean of the weights with dropout, times 100", Near(100 * weights.mean().item(), 0.05)
    sums = m.attend(0 * x, x, torch.ones(1, 1, 100, 4), None, 0.3)
    yield "whether dropout sets a number of the result to 0", bool((sums == 0).any())


def probe_attention(m: Any) -> Iterator[tuple[str, Any]]:
    # Four heads of width 6: with three heads, a mix-up of heads with queries, keys and values wouldn't show.
    sizes = {"hidden_size": 24, "num_attention_heads": 4}
    module = set_weights(m.ModernBertAttention(config(m, attention_dropout=0.5, **sizes)))
    module.out_drop = nn.Identity()
    x, positions = numbers(2, 5, 24), torch.tensor([[0, 3], [4, 1]])
    angles = numbers(1, 1, 1, 5, 3)
    rotary = (angles.cos().repeat(1, 1, 1, 1, 2), torch.cat((-angles.sin(), angles.sin()), -1))
    mask = (torch.arange(5) < torch.tensor([[5], [3]]))[:, None, None]
    is_near = (torch.arange(5)[:, None] - torch.arange(5)).abs() < 3
    result = module(x, rotary, None)
    is_same = torch.equal(result, module(x, rotary, None))
    yield "whether two calls in eval mode have the same result", is_same
    yield "the result", result
    yield "the result with padding", module(x, rotary, mask)
    yield "the result at two output positions", module(x, rotary, None, positions)
    yield "the result at two output positions with padding", module(x, rotary, mask, positions)
    yield "the result at two output positions of a local layer", module(x, rotary, is_near & mask, positions)
    yield "the same without padding", module(x, rotary, is_near[None, None], positions)
    halves = copy.deepcopy(module).bfloat16()
    is_accepted = raises(halves, x.bfloat16(), rotary, None) == "no error"
    yield "whether layers in bfloat16 accept angles in float32", is_accepted
    module.out_drop = FixedDropout()
    yield "the result with dropout of the output", module(x, rotary, None)
    is_same = torch.equal(module.train()(x, rotary, None), module(x, rotary, None))
    yield "whether two calls in training mode have the same result", is_same
    # Without queries and keys, every attention weight is 1/100. The values are the identity matrix, so the
    # result is the matrix of attention weights.
    sizes = {"hidden_size": 100, "num_attention_heads": 1}
    module = m.ModernBertAttention(config(m, attention_dropout=0.3, **sizes)).train()
    module.out_drop = nn.Identity()
    x = torch.eye(100)[None]
    rotary = torch.ones(1, 1, 1, 100, 100), torch.zeros(1, 1, 1, 100, 100)
    with torch.no_grad():
        module.Wqkv.weight.copy_(torch.cat((0 * x[0], 0 * x[0], x[0])))
        module.Wo.weight.copy_(x[0])
        result = module(x, rotary, None)
    name = "the fraction of weights that dropout sets to 0, if attention_dropout is 0.3"
    yield name, Near((result == 0).float().mean().item(), 0.03)


def probe_mlp(m: Any) -> Iterator[tuple[str, Any]]:
    module = set_weights(m.ModernBertMLP(config(m)))
    yield "the result", module(numbers(2, 5, 12))
    module.drop = FixedDropout()
    yield "the result with dropout", module(numbers(2, 5, 12))


def probe_layer(m: Any) -> Iterator[tuple[str, Any]]:
    module = set_weights(m.ModernBertEncoderLayer(config(m), 1))
    x, angles = numbers(2, 5, 12), numbers(1, 1, 1, 5, 2)
    rotary = (angles.cos().repeat(1, 1, 1, 1, 2), torch.cat((-angles.sin(), angles.sin()), -1))
    mask = (torch.arange(5) < torch.tensor([[5], [3]]))[:, None, None]
    yield "the result", module(x, rotary, None)
    yield "the result with a mask", module(x, rotary, mask)
    yield "the result at two output positions", module(x, rotary, None, torch.tensor([[0, 3], [4, 1]]))


def probe_encoder(m: Any) -> Iterator[tuple[str, Any]]:
    model = set_weights(m.ModernBertModel(config(m, num_hidden_layers=3, local_rope_theta=50.0)))
    ids = (numbers(2, 9).abs() * 5).long() % 10 + 1
    mask = (torch.arange(9) < torch.tensor([[9], [6]])).long()
    yield "the result", model(ids)
    # What the vectors at padding are doesn't matter.
    is_token = mask.bool()
    attention = model.layers[0].attn
    yield "the type of the attention mask that the layers get", mask_type(attention, model, ids, mask)
    yield "the vectors of the tokens with a mask", model(ids, mask)[is_token]
    yield "the vectors of the tokens with a mask of floats, 0 and 1", model(ids, mask.float())[is_token]
    yield "the vectors of the tokens of a short sequence", model(ids[:, 4:7], mask[:, 4:7])[is_token[:, 4:7]]
    yield "the vectors of sequences of 4 to 6 tokens", [model(ids[:, :length]) for length in (4, 5, 6)]
    yield "the vectors of the tokens with positions", model(ids, mask, torch.arange(0, 18, 2)[None])[is_token]
    yield "the gradients", gradients(model(ids, mask)[is_token], dict(model.named_parameters()))
    yield "the result at two output positions", model(ids, mask, None, torch.tensor([[0, 3], [4, 1]]))
    yield "the answer to an additive mask", raises(model, ids, (1.0 - mask) * -1e9)
    yield "the answer to a mask of shape (B, 1, 1, T)", raises(model, ids, mask[:, None, None])


def probe_head(m: Any) -> Iterator[tuple[str, Any]]:
    yield "the result", set_weights(m.ModernBertPredictionHead(config(m)))(numbers(2, 3, 12))


def probe_model(m: Any) -> Iterator[tuple[str, Any]]:
    model = set_weights(m.ModernBertForMaskedLM(config(m)))
    ids = torch.tensor([[1, 2, 3, 4, 5], [5, 6, 1, 0, 0]])
    mask = (ids != 0).long()
    labels = torch.tensor([[-100, 0, 1, 2, -100], [-100, 2, -100, -100, -100]])
    yield "the output without labels", model(ids)
    yield "the output without labels, with a mask", model(ids, attention_mask=mask)
    yield "the output with labels", model(ids, labels)
    yield "the output with labels and a mask", model(ids, labels, attention_mask=mask)
    yield "the gradients", gradients(model(ids, labels).logits, dict(model.named_parameters()))
    yield "whether labels of another shape are refused", raises(model, ids, labels[:, :3]) != "no error"
    yield "the output of a micro-batch", model(ids, labels, torch.tensor(9))
    yield "the loss with a single label", model(ids[:1, :2], labels[:1, :2]).loss
    yield "the loss without any label", model(ids, torch.full_like(ids, -100)).loss
    yield "the type of the loss in bfloat16", str(model.bfloat16()(ids, labels).loss.dtype)


PROBES: dict[str, Probe] = {
    "modern.py:rotary_angles": probe_angles,
    "modern.py:rotate": probe_rotate,
    "modern.py:attend": probe_attend,
    "modern.py:ModernBertAttention.forward": probe_attention,
    "modern.py:ModernBertMLP.forward": probe_mlp,
    "modern.py:ModernBertEncoderLayer.forward": probe_layer,
    "modern.py:ModernBertModel.forward": probe_encoder,
    "modern.py:ModernBertPredictionHead.forward": probe_head,
    "modern.py:ModernBertForMaskedLM.forward": probe_model,
}
