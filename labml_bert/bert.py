r"""
# BERT, the encoder

How can a model read a whole sentence at once and give each word a vector that depends on all words before and
after it? BERT ([Devlin et al., 2018](https://arxiv.org/abs/1810.04805)) uses a stack of blocks. Each block
uses attention to mix the tokens' vectors and then passes each vector through a feed-forward network:

$$
\begin{aligned}
a &= \operatorname{LayerNorm}(x + \operatorname{Attention}(x)) \\
x' &= \operatorname{LayerNorm}(a + \operatorname{FeedForward}(a))
\end{aligned}
$$

This file contains only the encoder. The file needs only PyTorch, so you can copy it into your own project.
The parameters have the same names as in `transformers`, so `models.py` can load `transformers` checkpoints.
The pretraining tasks are in `mlm.py` and `nsp.py`. The last section only makes the encoder faster.

Letters stand for sizes: `B` (batch size), `T` (tokens per sequence), `D` (hidden size), `H` (attention
heads), `I` (intermediate size), `V` (vocabulary size) and `P` (output vectors per sequence; by default, `T`).
"""

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn


@dataclass
class BertConfig:
    """The settings of a BERT model, named as in `transformers`. The defaults give BERT base."""

    vocab_size: int = 30522
    hidden_size: int = 768  # a multiple of the number of heads
    num_hidden_layers: int = 12
    num_attention_heads: int = 12
    intermediate_size: int = 3072  # in the paper, four times the hidden size
    hidden_dropout_prob: float = 0.1
    attention_probs_dropout_prob: float = 0.1
    max_position_embeddings: int = 512
    type_vocab_size: int = 2  # sentence A or sentence B
    initializer_range: float = 0.02
    layer_norm_eps: float = 1e-12  # as in Google's BERT; PyTorch's default is 1e-5
    pad_token_id: int = 0


class BertEmbeddings(nn.Module):
    r"""
    ## Embeddings

    Attention ignores the order of its input vectors, so each vector must encode its token's position. The
    vector also encodes the token itself and its segment (text A or B). BERT learns three embedding tables.
    For each token, BERT adds up one row from each table and normalizes the sum:

    $$
    e_t = \operatorname{LayerNorm}(E_{\text{token}}[w_t] + E_{\text{position}}[p_t] + E_{\text{type}}[s_t])
    $$

    All rows have $D$ elements.

    Source: [paper](https://arxiv.org/abs/1810.04805), section 3 and figure 2."""

    def __init__(self, config: BertConfig):
        super().__init__()
        V, D = config.vocab_size, config.hidden_size
        # With `padding_idx`, the `[PAD]` embedding gets no gradient from lookups, as in `transformers`.
        self.word_embeddings = nn.Embedding(V, D, padding_idx=config.pad_token_id)
        self.position_embeddings = nn.Embedding(config.max_position_embeddings, D)
        self.token_type_embeddings = nn.Embedding(config.type_vocab_size, D)
        self.LayerNorm = nn.LayerNorm(D, eps=config.layer_norm_eps)
        self.dropout = Dropout(config.hidden_dropout_prob)

    def forward(
        self, input_ids: Tensor, token_type_ids: Tensor | None = None, position_ids: Tensor | None = None
    ) -> Tensor:
        """Maps `(B, T)` to `(B, T, D)`. Token types default to 0, and positions to 0, 1, …, `T - 1`."""
        # The default ids are the same for every sequence, so a single row is broadcast over the batch.
        if position_ids is None:
            position_ids = torch.arange(input_ids.size(1), device=input_ids.device)[None]  # (1, T)
        if token_type_ids is None:
            token_type_ids = input_ids.new_zeros(1, 1)  # (1, 1)
        position_and_type = self.position_embeddings(position_ids)
        position_and_type = position_and_type + self.token_type_embeddings(token_type_ids)
        x = self.word_embeddings(input_ids) + position_and_type  # (B, T, D)
        return self.dropout(self.LayerNorm(x))  # (B, T, D)


class BertSelfAttention(nn.Module):
    r"""
    ## Self-attention

    Each token has a query (what it looks for), a key (what queries are compared with) and a value (what it
    passes on). The better a query matches a token's key, the larger the weight of that token's value:

    $$\operatorname{Attention}(Q, K, V) = \operatorname{softmax}\!\left(\frac{Q K^\top}{\sqrt{d}}\right) V$$

    Here $d = D/H$ is the width of one head. Each score in $Q K^\top$ is a sum of $d$ products. If the
    products are independent and have the same variance, the score's standard deviation grows as $\sqrt d$.
    Large scores can saturate the softmax and leave almost no gradient, so we divide the scores by $\sqrt d$.
    BERT has no causal mask, so every token sees the tokens on both sides.

    Source: [Vaswani et al., 2017](https://arxiv.org/abs/1706.03762), section 3.2."""

    def __init__(self, config: BertConfig):
        super().__init__()
        self.num_attention_heads = config.num_attention_heads
        self.query = nn.Linear(config.hidden_size, config.hidden_size)
        self.key = nn.Linear(config.hidden_size, config.hidden_size)
        self.value = nn.Linear(config.hidden_size, config.hidden_size)
        self.dropout = Dropout(config.attention_probs_dropout_prob)

    def project(self, x: Tensor, *layers: nn.Linear) -> list[Tensor]:
        """Applies each layer to `x`, `(B, T, D)`, and splits each output into heads, `(B, H, T, D/H)`."""
        return [y.unflatten(-1, (self.num_attention_heads, -1)).transpose(1, 2) for y in apply_all(layers, x)]

    def forward(
        self,
        query_states: Tensor,  # (B, P, D)
        hidden_states: Tensor,  # (B, T, D)
        attention_mask: Tensor | None = None,
        output_attentions: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        """
        Computes queries from `query_states`, and keys and values from `hidden_states`. The two arguments are
        usually the same tensor. The boolean `attention_mask`, `(B, 1, 1, T)`, is true where a query may
        attend to a key. Returns the context, `(B, P, D)`, and the attention weights, `(B, H, P, T)`, before
        dropout. Without `output_attentions`, returns `None` instead of the weights."""
        if query_states is hidden_states:
            q, k, v = self.project(hidden_states, self.query, self.key, self.value)  # (B, H, P, D/H)
        else:
            (q,) = self.project(query_states, self.query)  # (B, H, P, D/H)
            k, v = self.project(hidden_states, self.key, self.value)  # (B, H, T, D/H)
        weights, dropout_prob = None, self.dropout.p if self.dropout.training else 0.0
        if output_attentions or written_out_is_faster(q, dropout_prob):
            scores = (q / math.sqrt(q.size(-1))) @ k.transpose(-1, -2)  # (B, H, P, T)
            if attention_mask is not None:
                # If a whole sequence is padding, masking with minus infinity would turn the softmax into NaN.
                # The most negative finite number gives a uniform softmax instead.
                scores = scores.masked_fill(~attention_mask, torch.finfo(scores.dtype).min)
            weights = scores.softmax(dim=-1)  # (B, H, P, T)
            context = self.dropout(weights) @ v  # (B, H, P, D/H)
        else:
            context = F.scaled_dot_product_attention(q, k, v, attention_mask, dropout_prob)  # (B, H, P, D/H)
        return context.transpose(1, 2).flatten(2), weights if output_attentions else None


class BertOutput(nn.Module):
    r"""
    ## Dense, dropout, add, norm

    Attention and the feed-forward network end with the same steps: project to width $D$, apply dropout, add
    the sublayer's input, and normalize. The addition lets gradients bypass the sublayer. Normalizing the
    sum is called post-norm. For attention, `transformers` calls this class `BertSelfOutput`."""

    def __init__(self, in_features: int, config: BertConfig):
        super().__init__()
        self.dense = nn.Linear(in_features, config.hidden_size)
        self.LayerNorm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.dropout = Dropout(config.hidden_dropout_prob)

    def forward(self, hidden_states: Tensor, residual: Tensor) -> Tensor:
        """`hidden_states` is `(B, P, in_features)`; `residual` and the result are `(B, P, D)`."""
        return self.LayerNorm(residual + self.dropout(self.dense(hidden_states)))  # (B, P, D)


class BertIntermediate(nn.Module):
    r"""
    ## The feed-forward network

    After attention, this layer projects each token's vector to width $I$ and applies a GELU:

    $$\operatorname{GELU}(x) = x \cdot \tfrac12 \left(1 + \operatorname{erf}\frac{x}{\sqrt 2}\right)$$

    Like BERT in `transformers`, we compute it exactly. GPT-2 and Google's current BERT code use a tanh
    approximation, which is off by up to $5 \cdot 10^{-4}$. `BertOutput` projects the result to width $D$."""

    def __init__(self, config: BertConfig):
        super().__init__()
        self.dense = nn.Linear(config.hidden_size, config.intermediate_size)

    def forward(self, hidden_states: Tensor) -> Tensor:
        """Maps `(B, P, D)` to `(B, P, I)`."""
        return F.gelu(self.dense(hidden_states))  # (B, P, I)


class BertLayer(nn.Module):
    """
    ## One block

    A block implements the two equations at the top of this page. The keys of `parts` appear in parameter
    names such as `attention.self.query.weight`. These names must match the names in checkpoints."""

    def __init__(self, config: BertConfig):
        super().__init__()
        parts = {"self": BertSelfAttention(config), "output": BertOutput(config.hidden_size, config)}
        self.attention = nn.ModuleDict(parts)
        self.intermediate = BertIntermediate(config)
        self.output = BertOutput(config.intermediate_size, config)

    def forward(
        self,
        hidden_states: Tensor,  # (B, T, D)
        attention_mask: Tensor | None,
        output_attentions: bool,
        query_states: Tensor | None = None,
    ) -> tuple[Tensor, Tensor | None]:
        """The shapes are as in `BertSelfAttention.forward`. `query_states` defaults to `hidden_states`."""
        x = hidden_states if query_states is None else query_states  # (B, P, D)
        context, weights = self.attention["self"](x, hidden_states, attention_mask, output_attentions)
        a = self.attention["output"](context, x)  # (B, P, D)
        return self.output(self.intermediate(a), a), weights


class BertEncoder(nn.Module):
    """
    ## The stack

    All blocks have the same structure, but each has its own weights. A block's output has the same shape as
    its input, so the output of one block can be the input of the next."""

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
        """Returns the vectors, `(B, P, D)`, and each layer's attention weights (`None` if not requested)."""
        attentions = []
        for i, layer in enumerate(self.layer, 1):
            query_states = None
            if output_positions is not None and i == len(self.layer):
                query_states = select_positions(hidden_states, output_positions)  # (B, P, D)
            hidden_states, weights = layer(hidden_states, attention_mask, output_attentions, query_states)
            attentions.append(weights)
        return hidden_states, tuple(attentions) if output_attentions else None


class BertPooler(nn.Module):
    """
    ## The pooler

    The pooler applies a dense layer and a tanh to the vector of the first token, `[CLS]`. The result is one
    vector for the whole sequence. The pooler learns only from losses that use its output, such as the next
    sentence prediction loss. A model trained only with the masked LM loss needs no pooler."""

    def __init__(self, config: BertConfig):
        super().__init__()
        self.dense = nn.Linear(config.hidden_size, config.hidden_size)

    def forward(self, hidden_states: Tensor) -> Tensor:
        """Maps `(B, T, D)` to `(B, D)`."""
        return torch.tanh(self.dense(hidden_states[:, 0]))  # (B, D)


class BertModelOutput(NamedTuple):
    """The output of `BertModel`, with the field names of `transformers`."""

    last_hidden_state: Tensor
    """One vector per token, `(B, T, D)`, or per output position, `(B, P, D)`."""
    pooler_output: Tensor | None
    """One vector per sequence, `(B, D)`. `None` if the model has no pooler."""
    attentions: tuple[Tensor, ...] | None
    """Each layer's attention weights, `(B, H, T, T)`, if requested. With `output_positions`, the last layer's
    weights have only the rows of these positions, after that of `[CLS]` if there is a pooler."""


class BertModel(nn.Module):
    """
    ## The whole encoder

    Combines the embeddings, the stack and the pooler. BERT base, the default, has 109,482,240 parameters.

    Source: [paper](https://arxiv.org/abs/1810.04805), section 3, and `modeling.py`, linked below."""

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
        The first four arguments are `(B, T)`. `attention_mask` is 1 for a token and 0 for padding. Without a
        mask, every position counts as a token. `output_positions`, `(B, P)`, lists the positions whose
        vectors you need (by default, all). The pooler reads position 0 even if it isn't listed. Raises
        `ValueError` if the mask isn't `(B, T)` or contains negative floats."""
        if attention_mask is not None:
            # An additive mask is 0 for a token and far below 0 for padding.
            is_additive = attention_mask.is_floating_point() and (attention_mask < 0).any()
            if is_additive or attention_mask.shape != input_ids.shape:
                raise ValueError("attention_mask must be (B, T), with 1 for a token and 0 for padding")
            # Tokens don't attend to padding. Padding still gets output vectors, but they're meaningless.
            attention_mask = attention_mask.bool()[:, None, None, :]  # (B, 1, 1, T)
        x = self.embeddings(input_ids, token_type_ids, position_ids)  # (B, T, D)
        if output_positions is not None and self.pooler is not None:
            output_positions = F.pad(output_positions, (1, 0))  # (B, P + 1), with [CLS] for the pooler
        x, attentions = self.encoder(cast_once(x), attention_mask, output_attentions, output_positions)
        if self.pooler is None:
            return BertModelOutput(x, None, attentions)
        return BertModelOutput(x if output_positions is None else x[:, 1:], self.pooler(x), attentions)


def init_weights(module: nn.Module, std: float = 0.02) -> None:
    r"""
    ## Initialization

    Linear layers and embeddings get weights from a normal distribution with a standard deviation of `std`,
    truncated at twice `std`. Biases start at 0. LayerNorms keep PyTorch's defaults, a weight of 1 and a bias
    of 0. PyTorch would initialize embeddings with a standard deviation of 1. If the output layer is tied to
    such embeddings, the loss could start many times higher than $\ln V$, the loss of a uniform prediction.

    Source: `create_initializer` in `modeling.py`, in
    [google-research/bert](https://github.com/google-research/bert)."""
    if isinstance(module, (nn.Linear, nn.Embedding)):
        nn.init.trunc_normal_(module.weight, std=std, a=-2 * std, b=2 * std)
    if isinstance(module, nn.Linear) and module.bias is not None:
        nn.init.zeros_(module.bias)


def main() -> None:
    """
    ## Try it

    `python bert.py` teaches a small encoder to tell whether the first two tokens of a sequence are equal. The
    encoder needs attention for this comparison: no other layer moves information between positions."""
    torch.manual_seed(0)
    model = BertModel(BertConfig(10, 32, 2, 4, 64, max_position_embeddings=8))
    classifier = nn.Linear(32, 2)
    print(f"{sum(p.numel() for p in model.parameters()):,} parameters")
    optimizer = torch.optim.AdamW([*model.parameters(), *classifier.parameters()], lr=1e-3)
    for step in range(401):
        input_ids = torch.randint(10, (64, 8))  # (B, T)
        # Half the pairs match by design and about a tenth of the rest by chance, so about 55% are equal.
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


class Dropout(nn.Dropout):
    r"""
    ## Code that only makes the encoder faster

    The model works without the five tricks below. A trick's speedup is the time of a training step without
    the trick, divided by the time with all tricks. We measured the speedups with 4 layers of width 256 and 32
    sequences of 128 characters, in bfloat16 on two CPU cores (`docs/runs/speed_ablation.json`).

    | trick | speedup |
    |---|---|
    | dropout from 16 bits per element: `Dropout` | 1.47 |
    | one matmul for query, key and value: `apply_all` | 1.02, within the noise |
    | attention written out instead of fused: `written_out_is_faster` | 1.61 |
    | the last layer only at the positions you need: `select_positions` | 1.20 |
    | one cast for all layers: `cast_once` | 1.08 |

    Dropout sets each element to zero with probability $p$ and multiplies the others by $1 / (1 - p)$ to
    preserve the mean. On a CPU, `nn.Dropout` draws a random number for each element. But 16 random bits per
    element are enough, so we use one 64-bit draw for four elements. The actual probability then differs from
    $p$ by at most $2^{-16}$. The scaling factor uses the actual probability, so the mean stays the same."""

    def forward(self, x: Tensor) -> Tensor:
        """The input can have any shape, and the output has the same shape."""
        if x.device.type != "cpu" or not self.training or self.p in (0, 1):
            return F.dropout(x, self.p, self.training)
        draws = torch.empty(-(-x.numel() // 4), dtype=torch.int64).random_(-(2**63), None)
        bits = draws.view(torch.int16)[: x.numel()].view(x.shape)
        # Rounding must not turn a small p into 0 or a large p into 1.
        threshold = min(max(round(self.p * 2**16), 1), 2**16 - 1)
        keep = bits >= threshold - 2**15
        # A boolean is stored as the byte 0 or 1. On a CPU, uint8 converts to float faster than bool does.
        return x * keep.view(torch.uint8).to(x.dtype).mul_(2**16 / (2**16 - threshold))


def apply_all(layers: tuple[nn.Linear, ...], x: Tensor) -> tuple[Tensor, ...]:
    """Applies all layers to `x`, plain ones in one matmul. The gradient of `x` then takes only one, too."""
    if not all(map(is_plain, layers)):
        return tuple(layer(x) for layer in layers)
    weight = torch.cat([layer.weight for layer in layers])
    return F.linear(x, weight, torch.cat([layer.bias for layer in layers])).chunk(len(layers), dim=-1)


def is_plain(layer: nn.Linear) -> bool:
    """Whether the layer only does what `nn.Linear` does. LoRA, quantization and hooks change that."""
    hooks = (layer._forward_pre_hooks, layer._forward_hooks, layer._backward_pre_hooks, layer._backward_hooks)
    has_hook = any(hooks) or nn.modules.module._has_any_global_hook()
    is_linear = getattr(layer.forward, "__func__", None) is nn.Linear.forward and layer.bias is not None
    return is_linear and not has_hook and type(layer.weight) in (Tensor, nn.Parameter)


def written_out_is_faster(q: Tensor, dropout_prob: float) -> bool:
    """Whether to avoid the fused kernel. On a CPU, the kernel can't apply dropout and is slow in bfloat16."""
    return q.device.type == "cpu" and (dropout_prob > 0 or q.dtype == torch.bfloat16)


def select_positions(hidden_states: Tensor, positions: Tensor) -> Tensor:
    """Returns the vectors, `(B, P, D)`, at `positions`, `(B, P)`, as query states for the last layer."""
    return hidden_states.take_along_dim(positions[..., None], dim=1)


def cast_once(x: Tensor) -> Tensor:
    """Casts `x` to the autocast dtype. On a CPU, every LayerNorm keeps that dtype, so we cast only once."""
    return x.to(torch.get_autocast_dtype(x.device.type)) if torch.is_autocast_enabled(x.device.type) else x


if __name__ == "__main__":
    main()
