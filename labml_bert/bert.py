r"""
# BERT, the encoder

How does a model read a whole sentence at once, both sides of every word, and give each word a
vector that depends on all the others? BERT ([Devlin et al., 2018](https://arxiv.org/abs/1810.04805))
does it with a stack of identical blocks. Each block lets every token look at every other token,
then transforms each token on its own:

$$
\begin{aligned}
a &= \operatorname{LayerNorm}(x + \operatorname{Attention}(x)) \\
x' &= \operatorname{LayerNorm}(a + \operatorname{FeedForward}(a))
\end{aligned}
$$

This file is the encoder alone. It needs only PyTorch, so you can copy it into your own project.
Names of modules and parameters are those of `transformers`, so weights travel between the two.
What the encoder is trained to do stands in its neighbours, `mlm.py` and `nsp.py`.

Letters for sizes, here and in every file: `B` sequences in the batch, `T` tokens in a sequence,
`D` hidden size, `H` attention heads, `I` intermediate size, `V` vocabulary, `P` places of a sequence whose
result is wanted, most often all `T`.
"""

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn


@dataclass
class BertConfig:
    """
    The sizes of a BERT, with the field names of `transformers.BertConfig`. The defaults are BERT base.

    Raises `ValueError`, with the cause and the remedy in one line, where the sizes cannot work.
    """

    vocab_size: int = 30522
    hidden_size: int = 768
    num_hidden_layers: int = 12
    num_attention_heads: int = 12
    # The paper always uses four times the hidden size.
    intermediate_size: int = 3072
    hidden_dropout_prob: float = 0.1
    attention_probs_dropout_prob: float = 0.1
    max_position_embeddings: int = 512
    # Sentence A or sentence B.
    type_vocab_size: int = 2
    initializer_range: float = 0.02
    # Far below PyTorch's 1e-5: the value of the original, and checkpoints were trained with it.
    layer_norm_eps: float = 1e-12
    pad_token_id: int = 0

    def __post_init__(self) -> None:
        sizes = (
            "vocab_size",
            "hidden_size",
            "num_hidden_layers",
            "num_attention_heads",
            "intermediate_size",
            "max_position_embeddings",
            "type_vocab_size",
        )
        for name in (*sizes, "pad_token_id"):
            if type(getattr(self, name)) is not int:
                raise ValueError(f"{name} is {getattr(self, name)!r}; it must be a whole number")
        for name in sizes:
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}; it must be at least 1")
        if self.hidden_size % self.num_attention_heads:
            raise ValueError(
                f"hidden_size {self.hidden_size} is not divisible by num_attention_heads "
                f"{self.num_attention_heads}; choose a multiple of {self.num_attention_heads}"
            )
        for name in ("hidden_dropout_prob", "attention_probs_dropout_prob"):
            if not 0 <= getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}; it must be in [0, 1)")
        for name in ("initializer_range", "layer_norm_eps"):
            if not 0 < getattr(self, name) < math.inf:
                raise ValueError(f"{name} is {getattr(self, name)}; it must be above 0 and finite")
        if not 0 <= self.pad_token_id < self.vocab_size:
            raise ValueError(
                f"pad_token_id {self.pad_token_id} is outside the vocabulary of {self.vocab_size}; "
                f"choose one from 0 to {self.vocab_size - 1}"
            )


class Dropout(nn.Module):
    r"""
    ## Dropout

    In training each number is set to zero with probability $p$, and the others grow by $1 / (1 - p)$, so
    that the sum stays what it was on average. It is what `nn.Dropout` does, which draws one random number
    for each place. On a CPU those draws come one after another and took a third of a whole step. But to
    say yes or no with probability 0.1, 16 bits are enough: a draw of 64 serves four places, and $p$ is
    met to $2^{-17}$. The factor is that of the share that is really met.
    """

    def __init__(self, p: float):
        super().__init__()
        self.p = p

    def extra_repr(self) -> str:
        """What a printed model says in the brackets."""
        return f"p={self.p}"

    def forward(self, x: Tensor) -> Tensor:
        """Any shape, which stays."""
        if x.device.type != "cpu" or not self.training or self.p == 0:
            return F.dropout(x, self.p, self.training)
        draws = torch.empty(-(-x.numel() // 4), dtype=torch.int64).random_(-(2**63), None)
        bits = draws.view(torch.int16)[: x.numel()].view(x.shape)
        # The smallest and the largest p still drop something, and not everything.
        dropped = min(max(round(self.p * 2**16), 1), 2**16 - 1)
        keep = bits >= dropped - 2**15
        # The bytes of a boolean are 0 and 1, and convert five times faster when they are read as numbers.
        return x * keep.view(torch.uint8).to(x.dtype).mul_(2**16 / (2**16 - dropped))


class BertEmbeddings(nn.Module):
    r"""
    ## Embeddings

    Attention sees a set, not a sequence. So a token's vector must say what the token is, where it
    stands, and which sentence it belongs to. BERT learns a table for each and adds the three rows:

    $$
    e_t = \operatorname{LayerNorm}(E_{\text{token}}[w_t] + E_{\text{position}}[p_t] + E_{\text{type}}[s_t])
    $$

    A sum keeps the width at $D$. The three tables share the space and learn to keep out of each
    other's way.

    Source: [paper](https://arxiv.org/abs/1810.04805), section 3 and figure 2.
    """

    def __init__(self, config: BertConfig):
        super().__init__()
        # With `padding_idx` the lookup of a padding token sends no gradient, as in `transformers`.
        self.word_embeddings = nn.Embedding(
            config.vocab_size, config.hidden_size, padding_idx=config.pad_token_id
        )
        self.position_embeddings = nn.Embedding(config.max_position_embeddings, config.hidden_size)
        self.token_type_embeddings = nn.Embedding(config.type_vocab_size, config.hidden_size)
        self.LayerNorm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.dropout = Dropout(config.hidden_dropout_prob)

    def forward(
        self,
        input_ids: Tensor,  # (B, T)
        token_type_ids: Tensor | None = None,
        position_ids: Tensor | None = None,
    ) -> Tensor:
        """
        `input_ids`, `token_type_ids` and `position_ids` are integers of shape `(B, T)`. Types default
        to 0, positions to 0, 1, 2, …. Returns `(B, T, D)`.

        Raises `ValueError` where there are more tokens than positions.
        """
        T = input_ids.size(1)
        limit = self.position_embeddings.num_embeddings
        if limit < T:
            raise ValueError(
                f"{T} tokens but max_position_embeddings is {limit}; cut the text or train more positions"
            )
        # Where no row sets its own, one row of each is added to all.
        if position_ids is None:
            position_ids = torch.arange(T, device=input_ids.device)[None]  # (1, T)
        if token_type_ids is None:
            token_type_ids = input_ids.new_zeros(1, 1)  # (1, 1)
        place = self.position_embeddings(position_ids) + self.token_type_embeddings(token_type_ids)
        x = self.word_embeddings(input_ids) + place  # (B, T, D)
        return self.dropout(self.LayerNorm(x))  # (B, T, D)


class BertSelfAttention(nn.Module):
    r"""
    ## Self-attention

    Each token asks a question (query), offers a label (key) and holds a content (value). How well
    a query fits each key decides how much of each value it takes:

    $$\operatorname{Attention}(Q, K, V) = \operatorname{softmax}\!\left(\frac{Q K^\top}{\sqrt{d}}\right) V$$

    with $d = D/H$ the width of one head. The scores are sums of $d$ products, so their spread grows
    with $\sqrt d$. Dividing by it keeps the softmax away from its flat ends, where no gradient
    flows. There is no causal mask: that every token sees both sides is the point of BERT.

    Source: [Vaswani et al., 2017](https://arxiv.org/abs/1706.03762), section 3.2.
    """

    def __init__(self, config: BertConfig):
        super().__init__()
        self.num_attention_heads = config.num_attention_heads
        self.query = nn.Linear(config.hidden_size, config.hidden_size)
        self.key = nn.Linear(config.hidden_size, config.hidden_size)
        self.value = nn.Linear(config.hidden_size, config.hidden_size)
        self.dropout = Dropout(config.attention_probs_dropout_prob)

    def project(self, x: Tensor, *layers: nn.Linear) -> list[Tensor]:
        """
        What each of the layers makes of `x`, `(B, T, D)`, cut into `H` heads: `(B, H, T, D/H)` each. One
        product with all weights side by side, since one large product is faster than several small ones.
        """
        weight = torch.cat([layer.weight for layer in layers])
        bias = torch.cat([layer.bias for layer in layers])
        parts = F.linear(x, weight, bias).chunk(len(layers), dim=-1)
        return [part.unflatten(-1, (self.num_attention_heads, -1)).transpose(1, 2) for part in parts]

    def forward(
        self,
        asking: Tensor,  # (B, P, D)
        hidden_states: Tensor,  # (B, T, D)
        attention_mask: Tensor | None = None,
        output_attentions: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        """
        `asking` are the vectors of the tokens that ask, most often all of `hidden_states`. `attention_mask`
        is boolean, `(B, 1, 1, T)`, true where a token may be looked at. Returns the new vectors
        `(B, P, D)` and, if wanted, the attention weights `(B, H, P, T)`, else `None`.
        """
        if asking is hidden_states:
            q, k, v = self.project(hidden_states, self.query, self.key, self.value)  # (B, H, P, D/H)
        else:
            (q,) = self.project(asking, self.query)  # (B, H, P, D/H)
            k, v = self.project(hidden_states, self.key, self.value)  # (B, H, T, D/H)
        dropout = self.dropout.p if self.training else 0.0
        # PyTorch's fused kernel never stores the weights, so where they are wanted the two products
        # are written out. The same form is the faster one on a CPU with dropout, which that kernel leaves
        # to a slow path, and with bfloat16, where its backward pass does not use the matrix unit.
        slow = q.device.type == "cpu" and (dropout > 0 or q.dtype == torch.bfloat16)
        if output_attentions or slow:
            scores = (q / math.sqrt(q.size(-1))) @ k.transpose(-1, -2)  # (B, H, P, T)
            if attention_mask is not None:
                # The most negative number, not minus infinity: a row that is all padding then gets
                # an even softmax instead of 0/0.
                scores = scores.masked_fill(~attention_mask, torch.finfo(scores.dtype).min)
            weights = scores.softmax(dim=-1)  # (B, H, P, T)
            context = self.dropout(weights) @ v  # (B, H, P, D/H)
        else:
            weights = None
            context = F.scaled_dot_product_attention(q, k, v, attention_mask, dropout)  # (B, H, P, D/H)
        return context.transpose(1, 2).flatten(2), weights if output_attentions else None


class BertOutput(nn.Module):
    r"""
    ## Dense, dropout, add, norm

    Both halves of a block end in the same way: project back to $D$, drop, add the input that came
    in, normalise. The sum gives the gradient a straight path to the first layer. BERT normalises
    *after* the sum (post-norm), which is why it needs a learning rate that warms up.

    (`transformers` has this class twice, as `BertSelfOutput` and `BertOutput`.)
    """

    def __init__(self, in_features: int, config: BertConfig):
        super().__init__()
        self.dense = nn.Linear(in_features, config.hidden_size)
        self.LayerNorm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.dropout = Dropout(config.hidden_dropout_prob)

    def forward(self, hidden_states: Tensor, residual: Tensor) -> Tensor:
        """`hidden_states` is `(B, P, in_features)`, `residual` `(B, P, D)`. Returns `(B, P, D)`."""
        return self.LayerNorm(residual + self.dropout(self.dense(hidden_states)))  # (B, P, D)


class BertAttention(nn.Module):
    """
    ## Attention with its residual

    `self` below is the name that published checkpoints use (`attention.self.query.weight`).
    """

    def __init__(self, config: BertConfig):
        super().__init__()
        self.self = BertSelfAttention(config)
        self.output = BertOutput(config.hidden_size, config)

    def forward(
        self, asking: Tensor, hidden_states: Tensor, attention_mask: Tensor | None, output_attentions: bool
    ) -> tuple[Tensor, Tensor | None]:
        """Shapes as in `BertSelfAttention.forward`."""
        context, weights = self.self(asking, hidden_states, attention_mask, output_attentions)
        return self.output(context, asking), weights


class BertIntermediate(nn.Module):
    r"""
    ## The wide layer

    Attention only mixes vectors. This layer is where each token's vector meets a nonlinearity, in a
    space four times as wide:

    $$\operatorname{GELU}(x) = x \cdot \tfrac12 \left(1 + \operatorname{erf}\frac{x}{\sqrt 2}\right)$$

    It is the exact form with erf. The tanh approximation that GPT-2 uses differs by up to
    $5 \cdot 10^{-4}$, enough to lose agreement with released weights.
    """

    def __init__(self, config: BertConfig):
        super().__init__()
        self.dense = nn.Linear(config.hidden_size, config.intermediate_size)

    def forward(self, hidden_states: Tensor) -> Tensor:
        """`(B, P, D)` to `(B, P, I)`."""
        return F.gelu(self.dense(hidden_states))  # (B, P, I)


class BertLayer(nn.Module):
    """
    ## One block

    The two lines of the equation at the top of this page.
    """

    def __init__(self, config: BertConfig):
        super().__init__()
        self.attention = BertAttention(config)
        self.intermediate = BertIntermediate(config)
        self.output = BertOutput(config.intermediate_size, config)

    def forward(
        self,
        hidden_states: Tensor,  # (B, T, D)
        attention_mask: Tensor | None,
        output_attentions: bool,
        output_positions: Tensor | None = None,
    ) -> tuple[Tensor, Tensor | None]:
        """
        With `output_positions`, `(B, P)`, the block computes those places only: they ask, all places
        answer. Returns `(B, P, D)`, else `(B, T, D)`, and the weights as `BertSelfAttention.forward`.
        """
        asking = hidden_states
        if output_positions is not None:
            places = output_positions[..., None].expand(-1, -1, hidden_states.size(-1))  # (B, P, D)
            asking = hidden_states.gather(1, places)  # (B, P, D)
        a, weights = self.attention(asking, hidden_states, attention_mask, output_attentions)
        return self.output(self.intermediate(a), a), weights


class BertEncoder(nn.Module):
    """
    ## The stack

    Every block has its own weights. Width and length never change on the way, so a block neither
    knows nor cares how deep it stands.
    """

    def __init__(self, config: BertConfig):
        super().__init__()
        self.layer = nn.ModuleList(BertLayer(config) for _ in range(config.num_hidden_layers))

    def forward(
        self,
        hidden_states: Tensor,  # (B, T, D)
        attention_mask: Tensor | None,
        output_attentions: bool,
        output_positions: Tensor | None = None,
    ) -> tuple[Tensor, tuple[Tensor, ...] | None]:
        """
        Returns `(B, T, D)` and, if asked for, each layer's attention weights `(B, H, T, T)`; with
        `output_positions`, `(B, P)`, only those places of the last layer.
        """
        attentions = []
        for layer in self.layer:
            # Every place of every layer is looked at by the next one. Only after the last does nobody look.
            wanted = output_positions if layer is self.layer[-1] else None
            hidden_states, weights = layer(hidden_states, attention_mask, output_attentions, wanted)
            attentions.append(weights)
        return hidden_states, tuple(attentions) if output_attentions else None


class BertPooler(nn.Module):
    """
    ## The pooler

    One vector for the whole sequence: the first token, `[CLS]`, once more through a dense layer and
    a tanh. It learns only if some loss uses it: next sentence prediction, or a classifier. A
    masked language model alone leaves it untrained, and can leave it out.
    """

    def __init__(self, config: BertConfig):
        super().__init__()
        self.dense = nn.Linear(config.hidden_size, config.hidden_size)

    def forward(self, hidden_states: Tensor) -> Tensor:
        """`(B, T, D)` to `(B, D)`."""
        return torch.tanh(self.dense(hidden_states[:, 0]))  # (B, D)


class BertModelOutput(NamedTuple):
    """What `BertModel` returns, with the names of `transformers`."""

    last_hidden_state: Tensor
    """`(B, T, D)`, one vector a token; `(B, P, D)` where `output_positions` were given."""
    pooler_output: Tensor | None
    """`(B, D)`, one vector a sequence. `None` without a pooler."""
    attentions: tuple[Tensor, ...] | None
    """One `(B, H, T, T)` a layer, if asked for."""


class BertModel(nn.Module):
    """
    ## The whole encoder

    Embeddings, the stack, the pooler. `BertModel(BertConfig())` has 109,482,240 parameters, as
    BERT base has.

    Source: [paper](https://arxiv.org/abs/1810.04805), section 3; `modeling.py` of
    [google-research/bert](https://github.com/google-research/bert).
    """

    def __init__(self, config: BertConfig, add_pooling_layer: bool = True):
        super().__init__()
        self.config = config
        self.embeddings = BertEmbeddings(config)
        self.encoder = BertEncoder(config)
        self.pooler = BertPooler(config) if add_pooling_layer else None
        self.apply(lambda module: init_weights(module, config.initializer_range))

    def forward(
        self,
        input_ids: Tensor,  # (B, T)
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        position_ids: Tensor | None = None,
        output_attentions: bool = False,
        output_positions: Tensor | None = None,
    ) -> BertModelOutput:
        """
        The first four are `(B, T)`. `attention_mask` is 1 for a token and 0 for padding; without it
        every place counts. Who needs the last layer at some places only, as a masked language model
        does, names them in `output_positions`, `(B, P)`, and saves most of that layer.

        Raises `ValueError` for a mask of another shape, and for one that is meant to be added to the scores.
        """
        if attention_mask is not None:
            if attention_mask.shape != input_ids.shape:
                raise ValueError(
                    f"attention_mask is {tuple(attention_mask.shape)} and input_ids "
                    f"{tuple(input_ids.shape)}; give the two one shape"
                )
            # There 0 means a token and a large negative number padding: read as ours, the opposite.
            if attention_mask.is_floating_point() and (attention_mask < 0).any():
                raise ValueError(
                    "attention_mask has numbers below 0, as one that is added to scores; give 1 for a token "
                    "and 0 for padding"
                )
            # Padding is hidden as a *key*. It still asks questions of its own, and what it hears is
            # thrown away by whoever reads the output.
            attention_mask = attention_mask.bool()[:, None, None, :]  # (B, 1, 1, T)
        x = self.embeddings(input_ids, token_type_ids, position_ids)  # (B, T, D)
        if torch.is_autocast_enabled(x.device.type):
            # One cast here saves one in front of every matrix product of the stack: PyTorch's
            # LayerNorm on a CPU returns the type that it is given, float32 unless told otherwise.
            x = x.to(torch.get_autocast_dtype(x.device.type))  # (B, T, D)
        if output_positions is not None and self.pooler is not None:
            # The pooler reads the first token.
            output_positions = F.pad(output_positions, (1, 0))  # (B, P + 1)
        x, attentions = self.encoder(x, attention_mask, output_attentions, output_positions)
        pooled = self.pooler(x) if self.pooler is not None else None
        if output_positions is not None and self.pooler is not None:
            x = x[:, 1:]  # (B, P, D)
        return BertModelOutput(x, pooled, attentions)


def init_weights(module: nn.Module, std: float = 0.02) -> None:
    r"""
    ## Initialisation

    Weights from $\mathcal N(0, 0.02)$ cut at two standard deviations, biases zero, LayerNorm the
    identity. PyTorch would start an embedding at $\mathcal N(0, 1)$. Where the output layer is that
    same matrix, the first loss is then many times $\ln V$, and training starts by undoing it.

    Source: `create_initializer` in `modeling.py` of
    [google-research/bert](https://github.com/google-research/bert).
    """
    if isinstance(module, (nn.Linear, nn.Embedding)):
        nn.init.trunc_normal_(module.weight, std=std, a=-2 * std, b=2 * std)
    if isinstance(module, nn.Linear) and module.bias is not None:
        nn.init.zeros_(module.bias)


def main() -> None:
    """
    ## Try it

    `python bert.py` teaches a small encoder to say whether the first two tokens of a sequence are
    equal. Nothing in one token tells; the answer exists only between two of them, and attention is
    the only road from one place to another.
    """
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=10,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=64,
        max_position_embeddings=8,
    )
    model, classifier = BertModel(config), nn.Linear(config.hidden_size, 2)
    print(f"{sum(p.numel() for p in model.parameters()):,} parameters")
    optimizer = torch.optim.AdamW([*model.parameters(), *classifier.parameters()], lr=1e-3)
    for step in range(401):
        input_ids = torch.randint(10, (64, 8))  # (B, T)
        # Half the batch gets a copy in its second place, so that guessing gives 0.5.
        input_ids[:32, 1] = input_ids[:32, 0]
        equal = (input_ids[:, 0] == input_ids[:, 1]).long()  # (B)
        logits = classifier(model(input_ids).pooler_output)  # (B, 2)
        loss = F.cross_entropy(logits, equal)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if step % 100 == 0:
            accuracy = (logits.argmax(-1) == equal).float().mean()
            print(f"step {step:3}  loss {loss:.3f}  accuracy {accuracy:.2f}")


if __name__ == "__main__":
    main()
