"""The encoder and its heads in plain Python lists, slow and obvious: the reference for the property tests."""

import math
from functools import cache
from typing import Any

import torch
from torch import Tensor

from labml_bert.bert import BertConfig, BertModel


def cross_entropy_by_hand(logits: list[float], label: int) -> float:
    top = max(logits)
    return top + math.log(sum(math.exp(x - top) for x in logits)) - logits[label]


def randomize_weights(module: Any, generator: torch.Generator) -> Any:
    """Draws double-precision weights with a standard deviation of 1, so that no error hides behind a zero."""
    module = module.double().eval()
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator, dtype=torch.float64))
    return module


def linear(layer: Any, x: list[float]) -> list[float]:
    rows, biases = layer.weight.tolist(), layer.bias.tolist()
    return [sum(w * v for w, v in zip(row, x, strict=True)) + b for row, b in zip(rows, biases, strict=True)]


def layer_norm(layer: Any, x: list[float]) -> list[float]:
    mean = sum(x) / len(x)
    variance = sum((v - mean) ** 2 for v in x) / len(x)
    scale, shift = layer.weight.tolist(), layer.bias.tolist()
    return [
        (v - mean) / math.sqrt(variance + layer.eps) * s + h for v, s, h in zip(x, scale, shift, strict=True)
    ]


def gelu(x: list[float]) -> list[float]:
    return [v * 0.5 * (1 + math.erf(v / math.sqrt(2))) for v in x]


def add(*vectors: list[float]) -> list[float]:
    return [sum(values) for values in zip(*vectors, strict=True)]


def head_by_hand(head: Any, x: list[float], embedding: Tensor) -> list[float]:
    h = layer_norm(head.transform.LayerNorm, gelu(linear(head.transform.dense, x)))
    rows, biases = embedding.tolist(), head.bias.tolist()
    return [sum(e * v for e, v in zip(row, h, strict=True)) + b for row, b in zip(rows, biases, strict=True)]


def bert_by_hand(
    model: BertModel, ids: list[int], keep: list[bool], types: list[int], positions: list[int]
) -> tuple[list[list[float]], list[float], list[list[list[list[float]]]]]:
    """
    For one sequence: the last hidden states, the pooled output, and the attention weights by layer, head,
    query and key.
    """
    e, heads = model.embeddings, model.config.num_attention_heads
    d = model.config.hidden_size // heads
    tables = [
        table.weight.tolist() for table in (e.word_embeddings, e.position_embeddings, e.token_type_embeddings)
    ]
    xs = [
        layer_norm(e.LayerNorm, add(tables[0][i], tables[1][p], tables[2][s]))
        for i, p, s in zip(ids, positions, types, strict=True)
    ]
    attentions = []
    for layer in model.encoder.layer:
        a = layer.attention.self
        qs, ks, vs = ([linear(part, x) for x in xs] for part in (a.query, a.key, a.value))
        weights: list[list[list[float]]] = []
        contexts: list[list[float]] = [[] for _ in xs]
        for h in range(heads):
            cut = slice(h * d, (h + 1) * d)
            weights.append([])
            for t, q in enumerate(qs):
                scores = [sum(a * b for a, b in zip(q[cut], k[cut], strict=True)) / math.sqrt(d) for k in ks]
                top = max(s for s, attended in zip(scores, keep, strict=True) if attended)
                parts = [
                    math.exp(s - top) if attended else 0.0 for s, attended in zip(scores, keep, strict=True)
                ]
                weights[h].append([part / sum(parts) for part in parts])
                columns = zip(*(v[cut] for v in vs), strict=True)
                contexts[t] += [sum(w * v for w, v in zip(weights[h][t], c, strict=True)) for c in columns]
        attentions.append(weights)
        out = layer.attention.output
        xs = [
            layer_norm(out.LayerNorm, add(x, linear(out.dense, c))) for x, c in zip(xs, contexts, strict=True)
        ]
        out = layer.output
        activations = [gelu(linear(layer.intermediate.dense, x)) for x in xs]
        xs = [
            layer_norm(out.LayerNorm, add(x, linear(out.dense, w)))
            for x, w in zip(xs, activations, strict=True)
        ]
    pooled = [math.tanh(v) for v in linear(model.pooler.dense, xs[0])] if model.pooler is not None else []
    return xs, pooled, attentions


def is_close(ours: Tensor, expected: Any) -> bool:
    """Whether the numbers agree within rounding, or are both empty."""
    other = torch.tensor(expected, dtype=torch.float64)
    return other.numel() == ours.numel() and bool(
        (ours.reshape(-1).double() - other.reshape(-1)).abs().le(1e-6).all()
    )


def tiny_config(**sizes: Any) -> BertConfig:
    defaults = {"num_hidden_layers": 1, "num_attention_heads": 1, "intermediate_size": 2}
    return BertConfig(
        **{"vocab_size": 5, "hidden_size": 2, "max_position_embeddings": 4, **defaults, **sizes}
    )


@cache
def tiny_model() -> BertModel:
    return BertModel(tiny_config()).eval()
