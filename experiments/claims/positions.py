r"""
# Six ways to say where a token is

BERT adds a learned vector for the position to the vector of the token. Is that why a small masked language
model gets stuck on a plateau? To find out, the claim on positions trains the same BERT with five other
position encodings and changes nothing else in the model. The runs with learned positions get twice as many
tokens as the others. These are the six encodings:

| positions | score of token *j* for token *i* | added to the input |
|---|---|---|
| `learned`, as in BERT | $q_i \cdot k_j / \sqrt d$ | $p_i$, learned |
| `sinusoidal` | the same | $p_i$, fixed |
| `untied` | $(q_i \cdot k_j + p_i U \cdot p_j W) / \sqrt{2d}$ | nothing |
| `relative` | $q_i \cdot k_j / \sqrt d + b_{i-j}$, learned | nothing |
| `alibi` | $q_i \cdot k_j / \sqrt d - m \lvert i - j \rvert$, fixed | nothing |
| `rotary` | $R_i q_i \cdot R_j k_j / \sqrt d$, fixed | nothing |

Here $q_i$ is a head's query for token $i$, $k_j$ is its key for token $j$, $d$ is the width of the head, and
$p_i$ is the vector of position $i$. The matrices $U$ and $W$ are learned projections, $b_{i-j}$ is a bias for
each offset, $m$ is a slope that differs from head to head, and $R_i$ is a rotation by angles proportional to
$i$.

Sources: [Vaswani et al., 2017](https://arxiv.org/abs/1706.03762), section 3.5, for sinusoidal positions;
[TUPE](https://arxiv.org/abs/2006.15595) for untied ones; [T5](https://arxiv.org/abs/1910.10683), section 2.1,
for a learned bias (T5 shares one bias among large distances, and we don't);
[ALiBi](https://arxiv.org/abs/2108.12409); [RoFormer](https://arxiv.org/abs/2104.09864) for rotary ones.

Letters for sizes: `B` sequences in the batch, `T` tokens in a sequence, `H` heads, `D` hidden size, `P`
output positions of a sequence.
"""

import math

import torch
from torch import Tensor, nn

from labml_bert.bert import BertConfig, BertEncoder, BertLayer, BertSelfAttention, select_positions
from labml_bert.models import BertForMaskedLM
from labml_bert.modern import rotary_angles, rotate

POSITIONS = ("learned", "sinusoidal", "untied", "relative", "alibi", "rotary")
THETA = 10_000.0


def sinusoids(length: int, width: int) -> Tensor:
    """Returns a table, `(length, width)`, with sines in the first half of a row and cosines in the second."""
    inverse_wavelengths = THETA ** -(torch.arange(0, width, 2) / width)
    angles = torch.arange(length)[:, None] * inverse_wavelengths
    return torch.cat((angles.sin(), angles.cos()), dim=1)


class PositionBias(nn.Module):
    """
    ## The position bias

    Three of the encodings add a bias to the attention scores. All blocks share one bias, as in T5 and TUPE.
    For rotary positions, the bias is zero.
    """

    slopes: Tensor

    def __init__(self, positions: str, config: BertConfig):
        super().__init__()
        self.positions = positions
        H, D, longest = config.num_attention_heads, config.hidden_size, config.max_position_embeddings
        if positions == "untied":
            self.embedding = nn.Embedding(longest, D)
            self.norm = nn.LayerNorm(D)
            self.query, self.key = nn.Linear(D, D), nn.Linear(D, D)
            for layer in (self.embedding, self.query, self.key):
                nn.init.normal_(layer.weight, std=config.initializer_range)
        elif positions == "relative":
            # Before training, the bias is zero for every offset.
            self.embedding = nn.Embedding(2 * longest - 1, H)
            nn.init.zeros_(self.embedding.weight)
        self.register_buffer("slopes", 2.0 ** (-8 * torch.arange(1, H + 1) / H))

    def forward(self, T: int) -> Tensor | float:
        """Returns the bias for sequences of length `T`, `(H, T, T)`, or 0 for rotary positions."""
        H, indices = len(self.slopes), torch.arange(T, device=self.slopes.device)
        distance = indices[:, None] - indices  # (T, T)
        if self.positions == "untied":
            x = self.norm(self.embedding.weight[:T])  # (T, D)
            q, k = (layer(x).unflatten(-1, (H, -1)).transpose(0, 1) for layer in (self.query, self.key))
            return q @ k.transpose(1, 2) / math.sqrt(2 * q.size(-1))
        if self.positions == "relative":
            longest = (self.embedding.num_embeddings + 1) // 2
            return self.embedding(distance + longest - 1).permute(2, 0, 1)
        if self.positions == "alibi":
            return -self.slopes[:, None, None] * distance.abs()
        return 0.0


class PositionedSelfAttention(nn.Module):
    """
    ## Self-attention with positions

    Takes the place of a `BertSelfAttention` and uses its layers. It also rotates the queries and keys, or
    adds a bias to the scores.
    """

    def __init__(self, original: BertSelfAttention, bias: PositionBias):
        super().__init__()
        self.original, self.bias = original, bias

    def forward(
        self,
        query_states: Tensor,  # (B, T, D)
        hidden_states: Tensor,  # (B, T, D)
        attention_mask: Tensor | None = None,
        output_attentions: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        """Works like `BertSelfAttention.forward`, but computes the queries from `hidden_states`."""
        original, positions = self.original, self.bias.positions
        q, k, v = original.project(hidden_states, original.query, original.key, original.value)
        T, d = q.size(2), q.size(3)
        if positions == "rotary":
            cos, sin = (
                angles[0].to(q.dtype)
                for angles in rotary_angles(
                    torch.arange(T, device=q.device)[None], d, THETA
                )  # (1, 1, 1, T, d)
            )
            q, k = rotate(q, cos, sin), rotate(k, cos, sin)  # (B, H, T, d)
        scale = math.sqrt(2 * d if positions == "untied" else d)
        scores = (q / scale) @ k.transpose(-1, -2) + self.bias(T)  # (B, H, T, T)
        if attention_mask is not None:
            scores = scores.masked_fill(~attention_mask, -math.inf)
        weights = scores.to(q.dtype).softmax(dim=-1)  # (B, H, T, T)
        context = original.dropout(weights) @ v  # (B, H, T, d)
        return context.transpose(1, 2).flatten(2), weights if output_attentions else None


class FullEncoder(nn.Module):
    """
    ## An encoder that computes every position

    The last layer of a `BertEncoder` can skip positions whose output isn't needed. Here it can't: the
    attention above and a causal mask both depend on the position of each query. So this encoder computes all
    positions and then selects those that are needed. With `is_causal`, a position attends only to itself and
    to earlier positions.
    """

    def __init__(self, encoder: BertEncoder, is_causal: bool = False):
        super().__init__()
        self.encoder, self.is_causal = encoder, is_causal

    def forward(
        self,
        hidden_states: Tensor,  # (B, T, D)
        attention_mask: Tensor | None,
        output_attentions: bool,
        output_positions: Tensor | None = None,
    ) -> tuple[Tensor, tuple[Tensor, ...] | None]:
        """Works like `BertEncoder.forward`, but ignores `attention_mask`, so batches can't have padding."""
        mask, T = None, hidden_states.size(1)
        if self.is_causal:
            mask = torch.ones(1, 1, T, T, dtype=torch.bool, device=hidden_states.device).tril()
        x, attentions = self.encoder(hidden_states, mask, output_attentions)  # (B, T, D)
        return x if output_positions is None else select_positions(x, output_positions), attentions


def set_positions(model: BertForMaskedLM, positions: str) -> None:
    """
    ## The same model with another position encoding

    Changes `model` in place. Raises `ValueError` if `positions` isn't one of `POSITIONS`.
    """
    if positions not in POSITIONS:
        raise ValueError(f"positions is {positions!r}; choose from {', '.join(POSITIONS)}")
    if positions == "learned":
        return
    table = model.bert.embeddings.position_embeddings.weight
    table.requires_grad = False
    if positions == "sinusoidal":
        # Scale the sinusoids to about the root mean square that learned vectors have before training.
        table.copy_(model.config.initializer_range * math.sqrt(2) * sinusoids(*table.shape))
        return
    table.zero_()
    bias = PositionBias(positions, model.config)
    for layer in model.bert.encoder.layer:
        assert isinstance(layer, BertLayer)
        attention = layer.attention["self"]
        assert isinstance(attention, BertSelfAttention)
        layer.attention["self"] = PositionedSelfAttention(attention, bias)
    model.bert.encoder = FullEncoder(model.bert.encoder)  # type: ignore[assignment]
