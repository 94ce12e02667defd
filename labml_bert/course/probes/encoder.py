"""
# Checks: the encoder

What the steps in `bert.py` must do. The weights are large, so that every part of a sum shows in the result.
Attention weights are observed first: they come before everything that uses them.
"""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

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
    return m.BertConfig(**SIZES | {"intermediate_size": 20, "max_position_embeddings": 9} | options)


def probe_embeddings(m: Any) -> Iterator[tuple[str, Any]]:
    module = set_weights(m.BertEmbeddings(config(m)))
    ids = torch.tensor([[1, 2, 3, 4], [5, 6, 1, 1]])
    types = torch.tensor([[0, 0, 1, 1], [0, 1, 1, 1]])
    yield "the embeddings with default positions and token types", module(ids)
    yield "the embeddings with token types", module(ids, types)
    yield "the embeddings with positions", module(ids, None, torch.tensor([[4, 5, 6, 7], [0, 1, 2, 3]]))
    module.dropout = FixedDropout()
    yield "the embeddings with dropout", module(ids, types)


def probe_project(m: Any) -> Iterator[tuple[str, Any]]:
    module = set_weights(m.BertSelfAttention(config(m)))
    x = numbers(2, 5, 12)
    yield "the queries, as heads", module.project(x, module.query)[0]
    yield "the keys and values, as heads", module.project(x, module.key, module.value)


def probe_attention(m: Any) -> Iterator[tuple[str, Any]]:
    module = set_weights(m.BertSelfAttention(config(m)))
    x, queries = numbers(2, 5, 12), numbers(2, 2, 12, seed=1)
    mask = (torch.arange(5) < torch.tensor([[5], [3]]))[:, None, None]
    context, weights = module(x, x, None, True)
    yield "the attention weights", weights
    yield "the attention weights with padding", module(x, x, mask, True)[1]
    yield "the attention weights if a row is all padding", module(x, x, mask & False, True)[1]
    yield "the context vectors", context
    yield "the context vectors without output_attentions", module(x, x, mask)
    yield "the result for two query states", module(queries, x, mask, True)
    yield "the result for two query states without output_attentions", module(queries, x, mask)
    context = module(x.requires_grad_(), x, mask, True)[0]
    yield "the gradients", gradients(context, {"hidden_states": x, **dict(module.named_parameters())})
    module.dropout = FixedDropout()
    context, weights = module(x, x, mask, True)
    yield "the context vectors with dropout", context
    yield "the attention weights with dropout, which come before it", weights
    module.dropout = nn.Dropout(0.5)
    is_same = torch.equal(module.train()(x, x, mask)[0], module(x, x, mask)[0])
    yield "whether two calls in training mode have the same result without output_attentions", is_same
    yield "whether these calls return None instead of the weights", module(x, x, mask)[1] is None
    # On a GPU, the fused kernel applies dropout itself.
    m.written_out_is_faster = lambda q, dropout_prob: False
    yield "the context vectors in eval mode with the fused kernel", module.eval()(x, x, mask)[0]
    # Without queries and keys, every attention weight is 1/100. The values are first the identity matrix, so
    # the context is the matrix of attention weights. Then they are all 1, so the context contains sums.
    module = m.BertSelfAttention(config(m, hidden_size=100, num_attention_heads=1)).train()
    module.dropout = nn.Dropout(0.3)
    x = torch.eye(100)[None]
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.zero_()
        module.value.weight.copy_(x[0])
        context = module(x, x)[0]
        name = "the fraction of weights that dropout sets to 0, at p = 0.3, without output_attentions"
        yield name, Near((context == 0).float().mean().item(), 0.03)
        yield "the mean of these weights, times 100", Near(100 * context.mean().item(), 0.05)
        module.value.weight.fill_(1.0)
        yield "whether dropout sets a number of the context to 0", bool((module(x, x)[0] == 0).any())


def probe_output(m: Any) -> Iterator[tuple[str, Any]]:
    module = set_weights(m.BertOutput(7, config(m)))
    x, residual = numbers(2, 5, 7), numbers(2, 5, 12, seed=1)
    yield "the result", module(x, residual)
    module.dropout = FixedDropout()
    yield "the result with dropout", module(x, residual)


def probe_intermediate(m: Any) -> Iterator[tuple[str, Any]]:
    yield "the result", set_weights(m.BertIntermediate(config(m)))(numbers(2, 5, 12))


def probe_layer(m: Any) -> Iterator[tuple[str, Any]]:
    module = set_weights(m.BertLayer(config(m)))
    x = numbers(2, 5, 12)
    mask = (torch.arange(5) < torch.tensor([[5], [3]]))[:, None, None]
    yield "the result", module(x, None, False)
    yield "the result with a mask and attention weights", module(x, mask, True)
    yield "the result for two query states", module(x, None, True, x[:, 1:3])


def probe_stack(m: Any) -> Iterator[tuple[str, Any]]:
    module = set_weights(m.BertEncoder(config(m, num_hidden_layers=3)))
    x = numbers(2, 5, 12)
    mask = (torch.arange(5) < torch.tensor([[5], [3]]))[:, None, None]
    positions = torch.tensor([[0, 3], [4, 1]])
    yield "the result of three blocks", module(x, None, False)
    yield "the result with a mask", module(x, mask, False)
    yield "the result with attention weights", module(x, None, True)
    yield "the result at two output positions", module(x, None, False, positions)


def probe_pooler(m: Any) -> Iterator[tuple[str, Any]]:
    pooler, x = set_weights(m.BertPooler(config(m))), numbers(2, 5, 12).requires_grad_()
    yield "the result", pooler(x)
    yield "the gradients", gradients(pooler(x), {"hidden_states": x, **dict(pooler.named_parameters())})


def probe_model(m: Any) -> Iterator[tuple[str, Any]]:
    module = set_weights(m.BertModel(config(m)))
    ids = torch.tensor([[1, 2, 3, 4, 5], [5, 6, 1, 0, 0]])
    mask, types = (ids != 0).long(), (torch.arange(5) > 2).long().expand(2, 5)
    yield "the result without a mask", module(ids)
    attention = module.encoder.layer[0].attention["self"]
    yield "the type of the attention mask that the blocks get", mask_type(attention, module, ids, mask)
    yield "the result with a mask", module(ids, mask)
    yield "the result with a mask of floats, 0 and 1", module(ids, mask.float())
    yield "the result with token types", module(ids, mask, types)
    yield "the result with positions", module(ids, mask, types, torch.arange(5)[None] + 3)
    yield "the result with attention weights", module(ids, mask, output_attentions=True)
    parameters = dict(module.named_parameters())
    yield "the gradients", gradients(module(ids, mask, types).last_hidden_state, parameters)
    positions = torch.tensor([[1, 3], [2, 1]])
    yield "the pooled vector with output positions", module(ids, mask, output_positions=positions)[1]
    yield "the vectors at the output positions", module(ids, mask, output_positions=positions)[0]
    alone = set_weights(m.BertModel(config(m), add_pooling_layer=False))
    options = {"output_positions": positions, "output_attentions": True}
    yield "the result without a pooler", alone(ids, mask, **options)
    yield "the answer to an additive mask", raises(module, ids, (1.0 - mask) * -1e9)
    yield "the answer to a mask of shape (B, 1, 1, T)", raises(module, ids, mask[:, None, None])


def normal_facts(weight: Tensor, words: str, std: float = 0.02) -> Iterator[tuple[str, Any]]:
    """The standard deviation of weights in units of `std`, and whether they're truncated at two of them."""
    is_truncated = bool((weight.abs() <= 2.001 * std).all())
    yield f"whether {words} are at most two standard deviations from 0", is_truncated
    yield f"the standard deviation of {words}, divided by {std}", Near(weight.std().item() / std, 0.03)
    yield f"the mean of {words}, divided by {std}", Near(weight.mean().item() / std, 0.05)
    is_small = (weight.abs() <= std).float().mean().item()
    yield f"the fraction of {words} within one standard deviation from 0", Near(is_small, 0.02)


def probe_init(m: Any) -> Iterator[tuple[str, Any]]:
    linear, embedding, norm = nn.Linear(200, 100), nn.Embedding(100, 200), nn.LayerNorm(50)
    for module in (linear, embedding, norm):
        m.init_weights(module)
    yield from normal_facts(embedding.weight, "the weights of an embedding")
    yield from normal_facts(linear.weight, "the weights of a linear layer")
    yield "the biases of a linear layer", linear.bias
    yield "the weights of a LayerNorm", norm.weight
    yield "the biases of a LayerNorm", norm.bias
    without_bias = nn.Linear(3, 3, bias=False)
    m.init_weights(without_bias)
    yield "the bias of a linear layer without one", without_bias.bias
    m.init_weights(embedding, 0.5)
    yield from normal_facts(embedding.weight, "the weights of an embedding with std=0.5", 0.5)


PROBES: dict[str, Probe] = {
    "bert.py:BertEmbeddings.forward": probe_embeddings,
    "bert.py:BertSelfAttention.project": probe_project,
    "bert.py:BertSelfAttention.forward": probe_attention,
    "bert.py:BertOutput.forward": probe_output,
    "bert.py:BertIntermediate.forward": probe_intermediate,
    "bert.py:BertLayer.forward": probe_layer,
    "bert.py:BertEncoder.forward": probe_stack,
    "bert.py:BertPooler.forward": probe_pooler,
    "bert.py:BertModel.forward": probe_model,
    "bert.py:init_weights": probe_init,
}
