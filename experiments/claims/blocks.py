r"""
# From BERT to ModernBERT, one change at a time

What separates the blocks of `bert.py` from those of `modern.py`? This file makes four of the changes to a
BERT, so that the ladder can measure them one by one: pre-norm, GeGLU, no biases and local attention. The
position encodings are in `positions.py`. Dropout, the mask rate and Muon are plain options.

Letters for sizes: `B` sequences in the batch, `T` tokens in a sequence, `D` hidden size, `I` width of the
feed-forward network.
"""

from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from experiments.claims.positions import FullEncoder
from labml_bert.bert import BertConfig, BertLayer, init_weights
from labml_bert.models import BertForMaskedLM

# With local attention, every third layer stays global, starting with the first, as in ModernBERT.
GLOBAL_EVERY = 3


class GatedIntermediate(nn.Module):
    """
    ## GeGLU instead of GELU

    Takes the place of a `BertIntermediate`.
    """

    def __init__(self, hidden_size: int, width: int):
        super().__init__()
        self.dense = nn.Linear(hidden_size, 2 * width)

    def forward(self, hidden_states: Tensor) -> Tensor:
        """Maps `(B, T, D)` to `(B, T, I)`."""
        value, gate = self.dense(hidden_states).chunk(2, dim=-1)  # (B, T, I)
        return F.gelu(value) * gate


class PreNormLayer(nn.Module):
    """
    ## Pre-norm instead of post-norm

    Takes the place of a `BertLayer` and uses its parts, except for its LayerNorms. The first block has no
    LayerNorm before its attention, because the embeddings end in one. The last block ends in an additional
    LayerNorm.
    """

    def __init__(self, layer: BertLayer, config: BertConfig, is_first: bool, is_last: bool):
        super().__init__()
        self.attention, self.intermediate, self.output = layer.attention, layer.intermediate, layer.output
        D, eps = config.hidden_size, config.layer_norm_eps
        self.attention_norm = nn.Identity() if is_first else nn.LayerNorm(D, eps=eps)
        self.mlp_norm = nn.LayerNorm(D, eps=eps)
        self.final_norm = nn.LayerNorm(D, eps=eps) if is_last else nn.Identity()
        for part in (self.attention["output"], self.output):
            part.LayerNorm = nn.Identity()

    def forward(
        self,
        hidden_states: Tensor,  # (B, T, D)
        attention_mask: Tensor | None,
        output_attentions: bool,
        query_states: Tensor | None = None,
    ) -> tuple[Tensor, Tensor | None]:
        """Works like `BertLayer.forward`, but ignores `query_states` and computes all positions."""
        x = self.attention_norm(hidden_states)  # (B, T, D)
        context, weights = self.attention["self"](x, x, attention_mask, output_attentions)
        a = self.attention["output"](context, hidden_states)  # (B, T, D)
        return self.final_norm(self.output(self.intermediate(self.mlp_norm(a)), a)), weights


class LocalLayer(nn.Module):
    """
    ## Local attention

    Wraps a block. Each token attends only to itself and to tokens at most `window // 2` positions away.
    """

    def __init__(self, layer: nn.Module, window: int):
        super().__init__()
        self.layer, self.window = layer, window

    def forward(
        self,
        hidden_states: Tensor,  # (B, T, D)
        attention_mask: Tensor | None,
        output_attentions: bool,
        query_states: Tensor | None = None,
    ) -> tuple[Tensor, Tensor | None]:
        """Works like the block's `forward`, but replaces `attention_mask` with the local mask."""
        indices = torch.arange(hidden_states.size(1), device=hidden_states.device)
        mask = (indices[:, None] - indices).abs() <= self.window // 2  # (T, T)
        return self.layer(hidden_states, mask[None, None], output_attentions, query_states)


def change_blocks(
    model: BertForMaskedLM, pre_norm: bool, gated: bool, biases: bool, local_attention: int | None
) -> None:
    """
    ## All changes

    Changes `model` in place. With `gated`, the feed-forward network gets two thirds of its width, rounded to
    a multiple of 8, so that it has about as many parameters as before. Without `biases`, all biases in the
    blocks stay at 0. With `local_attention`, all but every third layer get a window of about this size.
    """
    if not isinstance(model.bert.encoder, FullEncoder):
        model.bert.encoder = FullEncoder(model.bert.encoder)  # type: ignore[assignment]
    encoder = model.bert.encoder
    assert isinstance(encoder, FullEncoder)
    layers, config = encoder.encoder.layer, model.config
    for i, layer in enumerate(layers):
        assert isinstance(layer, BertLayer)
        if gated:
            width = round(config.intermediate_size * 2 / 3 / 8) * 8
            layer.intermediate = GatedIntermediate(config.hidden_size, width)  # type: ignore[assignment]
            layer.output.dense = nn.Linear(width, config.hidden_size)
            for part in (layer.intermediate, layer.output.dense):
                part.apply(partial(init_weights, std=config.initializer_range))
        if pre_norm:
            layers[i] = PreNormLayer(layer, config, is_first=i == 0, is_last=i == len(layers) - 1)
        if local_attention is not None and i % GLOBAL_EVERY:
            layers[i] = LocalLayer(layers[i], local_attention)
    if not biases:
        for name, parameter in encoder.named_parameters():
            if name.endswith(".bias"):
                parameter.requires_grad = False
