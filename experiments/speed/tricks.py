r"""
# Our model without its speed tricks

`speed_ablation.py` measures what each speed trick is worth. It needs models that differ from ours in one
trick and compute the same result. Our code knows nothing about them. We build our model, and then replace
some of its modules with others that contain the same layers, or combine its parts in another way.
"""

import contextlib
import ctypes
import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from labml_bert.bert import (
    BertIntermediate,
    BertOutput,
    BertSelfAttention,
    Dropout,
    apply_all,
    cast_once,
    written_out_is_faster,
)
from labml_bert.mlm import IGNORE, BertPredictionHeadTransform, masked_lm_loss, masked_lm_positions
from labml_bert.models import BertForMaskedLM

Replacements = Mapping[type[nn.Module], Callable[[Any], nn.Module]]
Heads = list[Tensor]
"""Each `(B, H, T, D/H)`."""


def replace_modules(model: nn.Module, replacements: Replacements) -> None:
    """
    ## Replacing modules

    Replaces every module whose class is in `replacements`. The function for that class takes the original
    module and returns another one with the same layers.
    """
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if type(child) in replacements:
                parent.register_module(name, replacements[type(child)](child))


def project_separately(x: Tensor, num_heads: int, *layers: nn.Linear) -> Heads:
    """Projects with a separate matmul for query, key and value."""
    return [layer(x).unflatten(-1, (num_heads, -1)).transpose(1, 2) for layer in layers]


def project_together(x: Tensor, num_heads: int, *layers: nn.Linear) -> Heads:
    """Projects with one matmul for all three, as our model does."""
    return [y.unflatten(-1, (num_heads, -1)).transpose(1, 2) for y in apply_all(layers, x)]


def project_contiguous(x: Tensor, num_heads: int, *layers: nn.Linear) -> Heads:
    """Projects with one matmul for all three, and copies once to the layout that attention needs."""
    weight = torch.cat([layer.weight for layer in layers])  # (n * D, D)
    bias = torch.cat([layer.bias for layer in layers])  # (n * D)
    heads = F.linear(x, weight, bias).unflatten(-1, (len(layers), num_heads, -1))  # (B, T, n, H, D/H)
    return list(heads.permute(2, 0, 3, 1, 4).contiguous().unbind())


def attend_fused(q: Tensor, k: Tensor, v: Tensor, dropout: float) -> Tensor:
    """Attends with PyTorch's fused kernel, in every precision."""
    return F.scaled_dot_product_attention(q, k, v, dropout_p=dropout)


class SelfAttention(nn.Module):
    """Uses the layers of a `BertSelfAttention`, but projects or attends in another way."""

    def __init__(
        self,
        original: BertSelfAttention,
        project: Callable[..., Heads] = project_together,
        attend: Callable[[Tensor, Tensor, Tensor, float], Tensor] | None = None,
    ):
        super().__init__()
        self.num_heads = original.num_attention_heads
        self.query, self.key, self.value = original.query, original.key, original.value
        self.dropout = original.dropout
        self.project, self.attend = project, attend or self.attend_like_the_original

    def attend_like_the_original(self, q: Tensor, k: Tensor, v: Tensor, dropout: float) -> Tensor:
        """Attends with two matmuls if they are faster, otherwise with the fused kernel."""
        if written_out_is_faster(q, dropout):
            scores = (q / math.sqrt(q.size(-1))) @ k.transpose(-1, -2)  # (B, H, P, T)
            return self.dropout(scores.softmax(dim=-1)) @ v  # (B, H, P, D/H)
        return attend_fused(q, k, v, dropout)

    def forward(self, query_states: Tensor, hidden_states: Tensor, *_: object) -> tuple[Tensor, None]:
        """`(B, P, D)` and `(B, T, D)` to `(B, P, D)`. Ignores the attention mask: there is no padding."""
        if query_states is hidden_states:
            q, k, v = self.project(hidden_states, self.num_heads, self.query, self.key, self.value)
        else:
            (q,) = self.project(query_states, self.num_heads, self.query)
            k, v = self.project(hidden_states, self.num_heads, self.key, self.value)
        context = self.attend(q, k, v, self.dropout.p if self.training else 0.0)  # (B, H, P, D/H)
        return context.transpose(1, 2).flatten(2), None


class InPlaceOutput(nn.Module):
    """Uses the layers of a `BertOutput`, but adds the residual in place."""

    def __init__(self, original: BertOutput):
        super().__init__()
        self.dense, self.dropout, self.LayerNorm = original.dense, original.dropout, original.LayerNorm

    def forward(self, hidden_states: Tensor, residual: Tensor) -> Tensor:
        """`(B, P, in_features)` and `(B, P, D)` to `(B, P, D)`."""
        return self.LayerNorm(self.dropout(self.dense(hidden_states)).add_(residual))


TANH_GELU: Replacements = {
    BertIntermediate: lambda original: nn.Sequential(original.dense, nn.GELU("tanh")),
    BertPredictionHeadTransform: lambda original: nn.Sequential(
        original.dense, nn.GELU("tanh"), original.LayerNorm
    ),
}


def model_loss(model: BertForMaskedLM, input_ids: Tensor, labels: Tensor) -> Tensor:
    """
    ## Computing the loss

    The loss as our model computes it. `input_ids` and `labels` are `(B, T)`.
    """
    loss = model(input_ids, labels).loss
    assert loss is not None
    return loss


def loss_from_parts(
    model: BertForMaskedLM,
    input_ids: Tensor,  # (B, T)
    labels: Tensor,  # (B, T)
    casts_once: bool = True,
    whole_last_layer: bool = False,
    all_logits: bool = False,
    in_chunks: bool = False,
) -> Tensor:
    """
    Does the same forward pass with the model's parts. With the defaults, it does exactly what the model does.

    - `casts_once`: one cast to bfloat16 after the embeddings.
    - `whole_last_layer`: the last layer computes all positions.
    - `all_logits`: the head computes all positions too, as in most code.
    - `in_chunks`: one function does the last matmul and the cross-entropy, with the logits in chunks.
    """
    x = model.bert.embeddings(input_ids)  # (B, T, D)
    if casts_once:
        x = cast_once(x)  # (B, T, D)
    positions = None
    if not (whole_last_layer or all_logits):
        positions = masked_lm_positions(labels)  # (B, P)
        labels = labels.gather(1, positions)  # (B, P)
    x, _ = model.bert.encoder(x, None, False, positions)  # (B, P, D)
    head, embedding = model.cls.predictions, model.bert.embeddings.word_embeddings.weight
    if all_logits:
        return masked_lm_loss(head(x, embedding).flatten(0, 1), labels.flatten())
    is_labeled = labels != IGNORE  # (B, P)
    x, labels = x[is_labeled], labels[is_labeled]  # (M, D) and (M)
    if in_chunks:
        x = head.transform(x)  # (M, D)
        weight, bias = embedding.to(x.dtype), head.bias.to(x.dtype)
        return F.linear_cross_entropy(x, weight, labels, linear_bias=bias)
    return masked_lm_loss(head(x, embedding), labels)


@contextlib.contextmanager
def keep_memory() -> Iterator[None]:
    """
    ## Another allocator

    In this block, the C library of Linux returns no memory to the system, and requests memory in large
    blocks.
    """
    trim_threshold, top_pad, mmap_max = -1, -2, -4
    mallopt = ctypes.CDLL(None).mallopt
    mallopt(mmap_max, 0)
    mallopt(trim_threshold, 2**31 - 1)
    mallopt(top_pad, 2**28)
    try:
        yield
    finally:
        mallopt(mmap_max, 65536)
        mallopt(trim_threshold, 2**17)
        mallopt(top_pad, 0)


@dataclass(frozen=True)
class Trick:
    """
    ## The list of tricks

    Each entry says how a training step differs from ours. If we `kept` the trick, the step does without it;
    otherwise the step has a trick that we left out. With the defaults, there is no difference.
    """

    name: str
    kept: bool
    replacements: Replacements = field(default_factory=dict)
    loss: Callable[..., Tensor] = model_loss
    bfloat16: bool | None = None
    """`None` means bfloat16 if the device has fast instructions for it."""
    fixed_mask_count: bool = True
    """Whether all rows have the same number of masks. Otherwise there is a coin flip per token."""
    fused_adamw: bool = True
    around: Callable[[], AbstractContextManager[None]] = contextlib.nullcontext
    """A context manager around each step. It can change a setting of the process."""


TRICKS = [
    Trick("bfloat16", True, bfloat16=False),
    Trick(
        "logits only where a label is, and the last layer too",
        True,
        loss=partial(loss_from_parts, all_logits=True),
    ),
    Trick("last layer only where a label is", True, loss=partial(loss_from_parts, whole_last_layer=True)),
    Trick("dropout by 16 bits", True, {Dropout: lambda original: nn.Dropout(original.p)}),
    Trick(
        "one matmul for query, key and value",
        True,
        {BertSelfAttention: partial(SelfAttention, project=project_separately)},
    ),
    Trick("attention in two matmuls", True, {BertSelfAttention: partial(SelfAttention, attend=attend_fused)}),
    Trick("one cast after the embeddings", True, loss=partial(loss_from_parts, casts_once=False)),
    Trick("as many masks in every row", True, fixed_mask_count=False),
    Trick("fused AdamW", True, fused_adamw=False),
    Trick("sum in place", False, {BertOutput: InPlaceOutput}),
    Trick(
        "heads laid out in advance",
        False,
        {BertSelfAttention: partial(SelfAttention, project=project_contiguous)},
    ),
    Trick("linear and cross entropy in one", False, loss=partial(loss_from_parts, in_chunks=True)),
    Trick("memory is kept", False, around=keep_memory),
    Trick("gelu by tanh", False, TANH_GELU),
]
