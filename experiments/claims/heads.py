r"""
# What a head does on the plateau

Early in training, the loss often stays on a plateau: the model doesn't use the neighbors of a mask yet. Does
the plateau end when a head starts to attend to the neighbors? During training, `neighbor_attention` measures
this attention, and `order_gain` how much the model uses the order of the tokens. Is learning such a head what
takes so long? To find out, `attend_to_neighbors` sets the weights of one or two heads by hand.

Letters for sizes: `B` sequences in the batch, `T` tokens in a sequence, `H` heads, `D` hidden size, `d` width
of a head.
"""

import math

import torch
from torch import Tensor

from labml_bert.bert import BertLayer, BertSelfAttention
from labml_bert.mlm import MaskedTokens
from labml_bert.models import BertForMaskedLM
from labml_bert.training.evaluation import evaluate_masked_lm
from labml_bert.training.trainer import Trainer

# We measure attention on at most this many sequences.
SEQUENCES = 64
# In a head that is set by hand, the neighbor's score is about this high. All other scores are much lower.
SCORE = 9.0


@torch.no_grad()
def neighbor_attention(model: BertForMaskedLM, input_ids: Tensor) -> float:
    """
    ## How much a head attends to a neighbor

    For each head, averages the attention weights of all left neighbors and those of all right neighbors in
    `input_ids`, `(B, T)`. Returns the largest of these means, and leaves the model in eval mode.
    """
    model.eval()
    ids = input_ids[:SEQUENCES].to(next(model.parameters()).device)  # (B, T)
    attentions = model.bert(ids, output_attentions=True).attentions
    assert attentions is not None
    weights = torch.stack(attentions).float()  # (layers, B, H, T, T)
    left, right = (weights.diagonal(offset, -2, -1).mean((1, 3)) for offset in (-1, 1))  # (layers, H)
    return torch.maximum(left, right).max().item()


def order_gain(trainer: Trainer, held_out: MaskedTokens, tokens: int) -> float:
    """
    ## How much the order of the tokens helps

    Returns by how many nats the loss on the first `tokens` held-out tokens rises if all sequences are
    shuffled in the same way. The gain is 0 as long as the model ignores the order of the tokens.
    """
    order = torch.randperm(held_out.input_ids.size(1), generator=torch.Generator().manual_seed(0))
    shuffled = MaskedTokens(held_out.input_ids[:, order], held_out.labels[:, order])
    before, after = (evaluate_masked_lm(trainer, text, tokens)["loss"] for text in (held_out, shuffled))
    return after - before


@torch.no_grad()
def attend_to_neighbors(model: BertForMaskedLM, heads: int) -> None:
    r"""
    ## Heads that are set by hand

    Changes the embeddings and the first block of `model` in place. The first head attends to the left
    neighbor and, with 2 `heads`, the second to the right. All other weights start at random. Training may
    change all weights, these heads included. With 0 `heads`, only the embeddings change, as a control.

    The first $d$ dimensions of the embeddings hold only the position $p$, as $\sin \omega_k p$ and
    $\cos \omega_k p$ for $d/2$ frequencies from 0 to $\pi$. The query of a head selects these dimensions. Its
    key selects them too and rotates them by one position. So in the first head, the score of position $s$ for
    position $p$ is roughly proportional to $\sum_k \cos \omega_k (p - 1 - s)$, which is largest for
    $s = p - 1$.

    Raises `ValueError` unless `heads` is 0, 1 or 2.
    """
    if heads not in (0, 1, 2):
        raise ValueError(f"neighbor_heads is {heads}; it must be 0, 1 or 2")
    embeddings, layer = model.bert.embeddings, model.bert.encoder.layer[0]
    assert isinstance(layer, BertLayer)
    attention = layer.attention["self"]
    assert isinstance(attention, BertSelfAttention)
    d = model.config.hidden_size // model.config.num_attention_heads
    k = d // 2
    table = embeddings.position_embeddings.weight  # (longest, D)
    # With even steps between d/2 = 16 frequencies, a distance of 64 would score as high as a distance of 0.
    omega = math.pi * ((torch.arange(k) + 0.5) / k) ** 1.3  # (d/2)
    angles = torch.arange(len(table))[:, None] * omega  # (longest, d/2)
    # Scale these dimensions to about the root mean square that the random position vectors have.
    table[:, :d] = model.config.initializer_range * math.sqrt(2) * torch.cat((angles.sin(), angles.cos()), 1)
    for other in (embeddings.word_embeddings, embeddings.token_type_embeddings):
        other.weight[:, :d] = 0
    x = embeddings(torch.zeros(1, len(table), dtype=torch.long))[0, :, :d]  # (longest, d)
    scale = math.sqrt(SCORE * math.sqrt(d) / x.square().sum(1).mean().item())
    for head in range(heads):
        rows = slice(head * d, (head + 1) * d)
        turn = omega if head == 0 else -omega  # (d/2)
        for projection in (attention.query, attention.key):
            projection.weight[rows] = 0
            projection.weight[rows, :d] = scale * torch.eye(d)
        rotation = torch.zeros(d, d)
        rotation[:k, :k] = rotation[k:, k:] = turn.cos().diag()
        rotation[:k, k:], rotation[k:, :k] = turn.sin().diag(), -turn.sin().diag()
        attention.key.weight[rows, :d] = scale * rotation
