r"""
# A modern encoder

What would BERT look like if you designed it today? ModernBERT ([Warner et al.,
2024](https://arxiv.org/abs/2412.13663)) combines changes that have become common since 2018. Like BERT,
ModernBERT is a stack of blocks in which every token sees tokens on both sides. The main differences are:

| part | BERT (2018) | ModernBERT |
|---|---|---|
| positions | learned embeddings, added to the token embeddings | a rotation of queries and keys (RoPE) |
| LayerNorm | after each residual addition (post-norm) | before each sublayer (pre-norm) |
| feed-forward network | with GELU | gated (GeGLU) |
| attention | to all tokens in every layer | only to nearby tokens in two of every three layers |
| biases | in all linear layers and LayerNorms | only in the output layer |
| segments | an embedding for sentence A or B | none, because there's no next sentence prediction |

Each block computes:

$$
\begin{aligned}
a &= x + \operatorname{Attention}(\operatorname{LayerNorm}(x)) \\
x' &= a + \operatorname{GeGLU}(\operatorname{LayerNorm}(a))
\end{aligned}
$$

This file needs only PyTorch, so you can copy it into your own project. The parameters have the same names as
in `transformers`, so `modern_folder.py` can load `transformers` checkpoints.

Letters stand for sizes: `B` (sequences in the batch), `T` (tokens in a sequence), `D` (hidden size), `H`
(attention heads), `d` (width of a head), `I` (intermediate size), `V` (vocabulary size), `P` (output
positions per sequence; by default, all `T`) and `M` (labeled positions in all `B` sequences).
"""

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn


@dataclass
class ModernBertConfig:
    """The settings, named as in ModernBERT's `config.json`. The defaults give ModernBERT base."""

    vocab_size: int = 50368  # a multiple of 64, which makes matmuls faster on GPUs
    hidden_size: int = 768  # a multiple of the number of heads
    num_hidden_layers: int = 22  # BERT base has 12, with wider feed-forward networks
    num_attention_heads: int = 12
    intermediate_size: int = 1152  # the width of each of the two GeGLU projections
    max_position_embeddings: int = 8192  # the longest sequence in training; no parameter has this size
    global_attn_every_n_layers: int = 3
    local_attention: int = 128  # in local layers, a token sees up to 64 tokens on each side
    global_rope_theta: float = 160_000.0
    local_rope_theta: float = 10_000.0
    embedding_dropout: float = 0.0
    attention_dropout: float = 0.0
    mlp_dropout: float = 0.0
    initializer_range: float = 0.02
    norm_eps: float = 1e-5
    pad_token_id: int = 50283

    def is_global(self, layer: int) -> bool:
        """Whether every token sees the whole sequence in this layer. The first layer is layer 0."""
        return layer % self.global_attn_every_n_layers == 0


class ModernBertEmbeddings(nn.Module):
    """
    ## Embeddings

    BERT has three embedding tables, but ModernBERT has only one. The attention layers encode the positions,
    and there are no segments. A LayerNorm gives all token vectors a similar norm before the first block."""

    def __init__(self, config: ModernBertConfig):
        super().__init__()
        V, D = config.vocab_size, config.hidden_size
        self.tok_embeddings = nn.Embedding(V, D, padding_idx=config.pad_token_id)
        self.norm = nn.LayerNorm(D, eps=config.norm_eps, bias=False)
        self.drop = nn.Dropout(config.embedding_dropout)

    def forward(self, input_ids: Tensor) -> Tensor:
        """Maps `(B, T)` to `(B, T, D)`."""
        return self.drop(self.norm(self.tok_embeddings(input_ids)))  # (B, T, D)


def rotary_angles(position_ids: Tensor, head_dim: int, theta: float) -> tuple[Tensor, Tensor]:
    r"""
    ## Rotary position embeddings (RoPE)

    BERT adds a position's vector to a token's vector, so the two are mixed from the start. RoPE adds nothing
    to the token's vector. Instead, RoPE splits each query into pairs of numbers and rotates each pair, seen
    as a point in the plane, by an angle proportional to the position. RoPE rotates keys in the same way. Let
    $R_p$ be the rotation at position $p$. For a query $q$ at position $p$ and a key $k$ at position $s$:

    $$\langle R_p\, q,\; R_s\, k \rangle = \langle R_{p-s}\, q,\; k \rangle$$

    So for given $q$ and $k$, the attention score depends only on the offset $p - s$. Pair $i$ of the $d/2$
    pairs, counted from 0, rotates by $\theta^{-2i/d}$ radians per position. The first pair rotates by one
    radian per position, enough to tell nearby positions apart. The last pair hardly rotates. Layers that
    attend over long distances use a larger $\theta$, so all pairs but the first rotate more slowly. RoPE
    has no parameters. It costs two multiplications and an addition for each element of a query or key.

    `position_ids` is `(B, T)` or `(1, T)`. Returns the cosines and the sines that `rotate` needs, each of
    shape `(B or 1, 1, 1, T, d)`. Each cosine appears twice, once for each element of a pair, and so does each
    sine. The sine for the first element of a pair is negated.

    Source: [Su et al., 2021](https://arxiv.org/abs/2104.09864), section 3.2.
    """
    pairs = torch.arange(0, head_dim, 2, dtype=torch.float32, device=position_ids.device) / head_dim
    angles = position_ids[:, None, None, :, None].float() * theta**-pairs  # (B, 1, 1, T, d/2)
    cos, sin = angles.cos(), angles.sin()  # (B, 1, 1, T, d/2)
    return torch.cat((cos, cos), dim=-1), torch.cat((-sin, sin), dim=-1)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    r"""
    Rotates the queries and keys in `x`, `(B, 2, H, T, d)`. Element $i$ is paired with element $i + d/2$, as
    in `transformers`, so rolling by $d/2$ swaps the two. The RoPE paper pairs neighboring elements instead.
    To convert from one layout to the other, permute the rows of the query and key weights."""
    return x * cos + x.roll(x.size(-1) // 2, dims=-1) * sin


class ModernBertAttention(nn.Module):
    """
    ## Attention

    ModernBERT's attention differs from BERT's in four ways: queries and keys are rotated; there are no
    biases; one matrix computes queries, keys and values; and most layers are local. In a local layer, a token
    sees only tokens up to 64 positions away. In every third layer, called global, a token sees the whole
    sequence. Local layers could save work on long sequences, but this file computes even the masked scores.

    Source: [paper](https://arxiv.org/abs/2412.13663), section 2.1.
    """

    def __init__(self, config: ModernBertConfig):
        super().__init__()
        self.num_attention_heads = config.num_attention_heads
        self.attention_dropout = config.attention_dropout
        self.Wqkv = nn.Linear(config.hidden_size, 3 * config.hidden_size, bias=False)
        self.Wo = nn.Linear(config.hidden_size, config.hidden_size, bias=False)
        self.out_drop = nn.Dropout(config.attention_dropout)

    def forward(
        self,
        x: Tensor,  # (B, T, D)
        rotary: tuple[Tensor, Tensor],
        attention_mask: Tensor | None,
        output_positions: Tensor | None = None,
    ) -> Tensor:
        """
        `rotary` comes from `rotary_angles`. The boolean `attention_mask`, `(B or 1, 1, T or 1, T)`, is true
        where a query may attend to a key. Returns `(B, T, D)`, or `(B, P, D)` with `output_positions`.
        """
        qkv = self.Wqkv(x).unflatten(-1, (3, self.num_attention_heads, -1))  # (B, T, 3, H, d)
        cos, sin = (angles.to(qkv.dtype) for angles in rotary)
        qk, v = qkv.permute(0, 2, 3, 1, 4).split((2, 1), dim=1)  # (B, 2, H, T, d) and (B, 1, H, T, d)
        q, k = rotate(qk, cos, sin).unbind(1)  # (B, H, T, d)
        if output_positions is not None:
            q = q.take_along_dim(output_positions[:, None, :, None], dim=2)  # (B, H, P, d)
            if attention_mask is not None and attention_mask.size(2) > 1:
                mask = attention_mask[:, 0].expand(len(q), -1, -1)  # (B, T, T)
                attention_mask = select_positions(mask, output_positions)[:, None]  # (B, 1, P, T)
        dropout_prob = self.attention_dropout if self.training else 0.0
        context = attend(q, k, v.squeeze(1), attention_mask, dropout_prob)  # (B, H, P, d)
        return self.out_drop(self.Wo(context.transpose(1, 2).flatten(2)))


class ModernBertMLP(nn.Module):
    r"""
    ## The gated feed-forward network (GeGLU)

    BERT applies a GELU to a projection of $x$. GeGLU then multiplies the result, element by element, by a
    second projection of $x$. Each of the two factors can scale the other up or down:

    $$\operatorname{GeGLU}(x) = W_o\,\bigl(\operatorname{GELU}(W_1 x) \odot W_2 x\bigr)$$

    At the same $I$, this network has $3DI$ weights and BERT's has $2DI$. But in ModernBERT base, $I$ is only
    $1.5 D$, compared with $4 D$ in BERT base. The smaller networks leave room for more layers.

    Source: [Shazeer, 2020](https://arxiv.org/abs/2002.05202).
    """

    def __init__(self, config: ModernBertConfig):
        super().__init__()
        # One matrix holds both projections, because one large matmul can be faster than two small ones.
        self.Wi = nn.Linear(config.hidden_size, 2 * config.intermediate_size, bias=False)
        self.Wo = nn.Linear(config.intermediate_size, config.hidden_size, bias=False)
        self.drop = nn.Dropout(config.mlp_dropout)

    def forward(self, x: Tensor) -> Tensor:
        """Maps `(B, P, D)` to `(B, P, D)`."""
        value, gate = self.Wi(x).chunk(2, dim=-1)  # (B, P, I)
        return self.Wo(self.drop(F.gelu(value) * gate))  # (B, P, D)


class ModernBertEncoderLayer(nn.Module):
    """
    ## One block, pre-norm

    BERT normalizes after each residual addition. ModernBERT normalizes each sublayer's input instead. The
    residual stream (the sum that every sublayer adds to) bypasses the LayerNorms in the blocks, so gradients
    can pass back along the stream unchanged. Pre-norm models are often stable at learning rates too high for
    post-norm models. But the stream can grow from block to block, so the encoder ends with another LayerNorm.

    The first block has no LayerNorm before its attention, because the embeddings already end in a LayerNorm.

    Source: [Xiong et al., 2020](https://arxiv.org/abs/2002.04745).
    """

    def __init__(self, config: ModernBertConfig, layer: int):
        super().__init__()
        D, eps = config.hidden_size, config.norm_eps
        self.attn_norm = nn.LayerNorm(D, eps=eps, bias=False) if layer > 0 else nn.Identity()
        self.attn = ModernBertAttention(config)
        self.mlp_norm = nn.LayerNorm(D, eps=eps, bias=False)
        self.mlp = ModernBertMLP(config)

    def forward(
        self,
        x: Tensor,  # (B, T, D)
        rotary: tuple[Tensor, Tensor],
        attention_mask: Tensor | None,
        output_positions: Tensor | None = None,
    ) -> Tensor:
        """The shapes are as in `ModernBertAttention.forward`."""
        context = self.attn(self.attn_norm(x), rotary, attention_mask, output_positions)  # (B, P, D)
        if output_positions is not None:
            x = select_positions(x, output_positions)  # (B, P, D)
        x = x + context  # (B, P, D)
        return x + self.mlp(self.mlp_norm(x))


class ModernBertModel(nn.Module):
    """
    ## The whole encoder

    Combines the embeddings, the blocks and a final LayerNorm. There's no pooler. If you need one vector per
    sequence, take the vector of `[CLS]` or the mean of the tokens' vectors. With the default sizes, those of
    ModernBERT base, the encoder has 149,014,272 parameters.

    Source: [paper](https://arxiv.org/abs/2412.13663), section 2 and table 4.
    """

    def __init__(self, config: ModernBertConfig):
        super().__init__()
        self.config = config
        self.embeddings = ModernBertEmbeddings(config)
        layers = range(config.num_hidden_layers)
        self.layers = nn.ModuleList(ModernBertEncoderLayer(config, layer) for layer in layers)
        self.final_norm = nn.LayerNorm(config.hidden_size, eps=config.norm_eps, bias=False)
        init_weights(self, config)

    def forward(
        self,
        input_ids: Tensor,  # (B, T)
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        output_positions: Tensor | None = None,
    ) -> Tensor:
        """
        The first three arguments are `(B, T)`. `attention_mask` is 1 for a token and 0 for padding. Without a
        mask, every position counts as a token. `position_ids` default to 0, 1, 2, …, and only their
        differences matter. But the window of a local layer ignores `position_ids`. `output_positions`,
        `(B, P)`, lists the positions whose vectors you need (by default, all). Returns these vectors,
        `(B, P, D)`. Raises `ValueError` if the mask isn't `(B, T)` or contains negative floats."""
        config, T = self.config, input_ids.size(1)
        if attention_mask is not None:
            # An additive mask is 0 for a token and a large negative number for padding.
            is_additive = attention_mask.is_floating_point() and (attention_mask < 0).any()
            if is_additive or attention_mask.shape != input_ids.shape:
                raise ValueError("attention_mask must be (B, T), with 1 for a token and 0 for padding")
            attention_mask = attention_mask.bool()[:, None, None, :]  # (B, 1, 1, T)
        indices = torch.arange(T, device=input_ids.device)
        positions = indices[None] if position_ids is None else position_ids
        head_dim = config.hidden_size // config.num_attention_heads
        thetas = {True: config.global_rope_theta, False: config.local_rope_theta}
        rotary = {kind: rotary_angles(positions, head_dim, theta) for kind, theta in thetas.items()}
        masks, reach = {True: attention_mask, False: attention_mask}, config.local_attention // 2
        if reach + 1 < T:
            is_near = (indices[:, None] - indices).abs() <= reach  # (T, T)
            masks[False] = is_near[None, None] if attention_mask is None else is_near & attention_mask
        x = self.embeddings(input_ids)  # (B, T, D)
        if torch.is_autocast_enabled(x.device.type):  # One cast for all layers.
            x = x.to(torch.get_autocast_dtype(x.device.type))
        for i, layer in enumerate(self.layers):
            is_last, is_global = i == config.num_hidden_layers - 1, config.is_global(i)
            x = layer(x, rotary[is_global], masks[is_global], output_positions if is_last else None)
        return self.final_norm(x)


class ModernBertPredictionHead(nn.Module):
    """
    ## The masked LM head

    The head consists of a dense layer, a GELU and a LayerNorm, as in BERT but without biases. The decoder
    that follows does have a bias for each token in the vocabulary."""

    def __init__(self, config: ModernBertConfig):
        super().__init__()
        self.dense = nn.Linear(config.hidden_size, config.hidden_size, bias=False)
        self.norm = nn.LayerNorm(config.hidden_size, eps=config.norm_eps, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Maps `(..., D)` to `(..., D)`."""
        return self.norm(F.gelu(self.dense(x)))


class MaskedLMOutput(NamedTuple):
    """The output of `ModernBertForMaskedLM`."""

    loss: Tensor | None
    """A scalar, in nats per labeled position. `None` without labels."""
    logits: Tensor
    """`(M, V)` at the labeled positions, in reading order. Without labels, `(B, T, V)` at all positions."""
    labels: Tensor | None
    """`(M)`, the true tokens at the positions of `logits`. `None` without labels."""


class ModernBertForMaskedLM(nn.Module):
    """
    ## Encoder and masked LM head

    As in BERT, the decoder's weight *is* the token embedding: one parameter with two names, unless you load a
    state with `assign=True` or call `to_empty`. With the default sizes, it has 149,655,232 parameters.

    Source: `modeling_modernbert.py` in [transformers](https://github.com/huggingface/transformers)."""

    def __init__(self, config: ModernBertConfig):
        super().__init__()
        self.config = config
        self.model = ModernBertModel(config)
        self.head = ModernBertPredictionHead(config)
        self.decoder = nn.Linear(config.hidden_size, config.vocab_size)
        self.decoder.weight = self.model.embeddings.tok_embeddings.weight
        nn.init.zeros_(self.decoder.bias)
        scale = math.sqrt(2 * config.num_hidden_layers)
        init_normal(self.head.dense.weight, config.initializer_range / scale)

    def forward(
        self,
        input_ids: Tensor,  # (B, T)
        labels: Tensor | None = None,
        num_items_in_batch: Tensor | None = None,
        **inputs: Tensor,
    ) -> MaskedLMOutput:
        """
        `labels`, `(B, T)`, holds the true token at each position to predict and -100 elsewhere. For a
        micro-batch, pass the number of labeled positions in the whole batch as `num_items_in_batch`. Other
        arguments go to `ModernBertModel.forward`. Raises `ValueError` if `labels` isn't `(B, T)`."""
        if labels is None:
            x = self.model(input_ids, **inputs)  # (B, T, D)
            return MaskedLMOutput(None, self.decoder(self.head(x)), None)
        if labels.shape != input_ids.shape:
            raise ValueError("labels must be (B, T), like input_ids")
        positions = labeled_positions(labels)  # (B, P)
        x = self.model(input_ids, output_positions=positions, **inputs)  # (B, P, D)
        labels = labels.gather(1, positions)  # (B, P)
        is_labeled = labels != -100  # (B, P)
        logits, labels = self.decoder(self.head(x[is_labeled])), labels[is_labeled]  # (M, V)
        count = torch.tensor(len(labels)) if num_items_in_batch is None else num_items_in_batch
        # Compute the loss in float32: bfloat16 would round a loss between 2 and 4 to a multiple of 1/64.
        loss = F.cross_entropy(logits.float(), labels, reduction="sum") / count.clamp(min=1)
        return MaskedLMOutput(loss, logits, labels)


def init_normal(weight: Tensor, std: float) -> None:
    """Initializes `weight` from a normal distribution truncated at two standard deviations."""
    nn.init.trunc_normal_(weight, std=std, a=-2 * std, b=2 * std)


def init_weights(model: ModernBertModel, config: ModernBertConfig) -> None:
    r"""
    ## Initialization

    Each block adds two outputs to the residual stream, so $L$ blocks add $2L$ outputs. If the outputs are
    independent, their variances add up. To keep the variance of the sum from growing with $L$, we divide the
    initial standard deviation of the matrices that compute the outputs by $\sqrt{2L}$.

    Source: section 2.3 of the GPT-2 [paper](https://cdn.openai.com/better-language-models/language_models_are_unsupervised_multitask_learners.pdf)."""
    for name, weight in model.named_parameters():
        if weight.dim() == 2:
            is_output = name.endswith("Wo.weight")
            scale = math.sqrt(2 * config.num_hidden_layers) if is_output else 1.0
            init_normal(weight, config.initializer_range / scale)


def main() -> None:
    """
    ## Try it

    `python modern.py` teaches a small encoder to predict the token two positions to the left. The encoder
    trains at length 16 and is tested at lengths 16 and 64. RoPE encodes only offsets, and the offset that
    matters for this task occurs at both lengths. So what the encoder learns at length 16 can also work at
    length 64. In BERT, training at length 16 would leave the position embeddings after the first 16
    untrained."""
    torch.manual_seed(0)
    config = ModernBertConfig(20, 32, 2, 4, 48, local_attention=8, pad_token_id=0, initializer_range=0.1)
    model = ModernBertForMaskedLM(config)
    print(f"{sum(p.numel() for p in model.parameters()):,} parameters")
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for step in range(201):
        results = []
        for length in (16, 64):
            input_ids = torch.randint(1, 20, (32, length))
            labels = input_ids.roll(2, dims=1)
            labels[:, :2] = -100
            loss, logits, targets = model(input_ids, labels)
            results.append((loss, (logits.argmax(-1) == targets).float().mean()))
            if length == 16:
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()
        if step % 50 == 0:
            (loss, short), (_, long) = results
            print(f"step {step:3}  loss {loss:.3f}  accuracy {short:.2f} at length 16, {long:.2f} at 64")


def attend(q: Tensor, k: Tensor, v: Tensor, attention_mask: Tensor | None, dropout_prob: float) -> Tensor:
    """
    ## Code that only makes the model faster

    Computes attention from queries, `(B, H, P, d)`, and from keys and values, each `(B, H, T, d)`. On a CPU,
    PyTorch's fused kernel can't apply dropout and is slow in bfloat16, so we avoid it in those cases."""
    if q.device.type != "cpu" or (dropout_prob == 0 and q.dtype != torch.bfloat16):
        return F.scaled_dot_product_attention(q, k, v, attention_mask, dropout_prob)
    scores = (q / math.sqrt(q.size(-1))) @ k.transpose(-1, -2)  # (B, H, P, T)
    if attention_mask is not None:
        scores = scores + (~attention_mask).to(scores.dtype) * torch.finfo(scores.dtype).min
    return F.dropout(scores.softmax(dim=-1), dropout_prob) @ v


def labeled_positions(labels: Tensor) -> Tensor:
    """
    Returns each row's labeled positions, `(B, P)`, in reading order. `P` is the largest number of labeled
    positions in any row. Rows with fewer labeled positions are padded with unlabeled positions. The last
    layer computes vectors only at the positions returned here."""
    is_labeled = labels != -100  # (B, T)
    most = int(is_labeled.sum(1).max()) if len(labels) else 0
    return (~is_labeled).byte().argsort(dim=1, stable=True)[:, :most]  # (B, P)


def select_positions(x: Tensor, positions: Tensor) -> Tensor:
    """Picks `positions`, `(B, P)`, along the second dimension of `x`, `(B, T, D)`."""
    return x.take_along_dim(positions[:, :, None], dim=1)


if __name__ == "__main__":
    main()
