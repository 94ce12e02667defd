r"""
# Masked language modeling

How can a model learn to predict words if it sees the whole text, answers included? We mask some tokens, and
the model predicts the original ones. The loss is the mean negative log-probability of the original tokens:

$$\mathcal L = - \frac{1}{M} \sum_{t \in \mathcal M} \log p(w_t \mid \tilde w_1, \dots, \tilde w_T)$$

Here $w$ is the original text, $\tilde w$ is the masked text, and $\mathcal M$ is the set of the $M$
positions chosen for prediction. BERT chooses 15% of the tokens.

This file contains the masking, the head that turns a hidden state into a score for each token in the
vocabulary, the loss, and a model that connects an encoder to the head. The encoder can come from `bert.py`,
`transformers` or your own code. The file needs only PyTorch. The last section only makes training faster.

Letters stand for sizes: `B` (sequences in the batch), `T` (tokens in a sequence), `D` (hidden size), `V`
(vocabulary size), `M` (labeled positions in the batch) and `P` (output vectors per sequence).
"""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

IGNORE = -100  # the label of positions that the loss ignores, as in `F.cross_entropy`


class MaskedTokens(NamedTuple):
    """A masked batch."""

    input_ids: Tensor
    """`(B, T)`, what the model sees."""
    labels: Tensor
    """`(B, T)`, int64: the true token at each chosen position and -100 everywhere else."""


@dataclass
class TokenMasker:
    r"""
    ## Masking tokens

    The masker chooses about 15% of the ordinary tokens (no special tokens or padding). There are three cases
    for a chosen token:

    | fraction | what the model sees | why |
    |---|---|---|
    | 80% | `[MASK]` | the model learns to fill in masks |
    | 10% | a random token | any token may be wrong, so the model must check each one against its context |
    | 10% | the token itself | fine-tuning texts have no `[MASK]`, so real tokens need good vectors too |

    Only the chosen tokens have labels and count toward the loss.

    Source: [paper](https://arxiv.org/abs/1810.04805), section 3.1 and appendix A.1;
    `create_masked_lm_predictions` in [google-research/bert](https://github.com/google-research/bert)."""

    vocab_size: int
    mask_token_id: int
    special_token_ids: Collection[int]
    """These tokens are never chosen and never used as random tokens. `[MASK]` always counts as special."""
    mlm_probability: float = 0.15
    mask_replace_prob: float = 0.8
    random_replace_prob: float = 0.1
    max_predictions_per_seq: int | None = None
    """If you set this limit, the number of tokens chosen from each row isn't random: it's `mlm_probability`
    times the number of ordinary tokens, rounded, but at least 1 and at most the limit. (The original code
    counts special tokens, too.) With `word_ids`, fewer tokens can be chosen, because a word's tokens are
    chosen together or not at all."""
    generator: torch.Generator | None = None
    """Keeps the masks independent of other random draws. It must be on the batch's device. Don't
    set it in a `DataLoader` with workers, because all workers would draw the same masks."""

    def __post_init__(self) -> None:
        self.is_special = torch.zeros(self.vocab_size, dtype=torch.bool)
        self.is_special[[self.mask_token_id, *self.special_token_ids]] = True
        self.ordinary_ids = (~self.is_special).nonzero().flatten()

    def __call__(
        self, input_ids: Tensor, attention_mask: Tensor | None = None, word_ids: Tensor | None = None
    ) -> MaskedTokens:
        """
        All inputs are `(B, T)`. `attention_mask` is 0 at padding, which is never chosen. `word_ids` holds
        each token's word number, from 0 to `T - 1`. A word's tokens are chosen together, and tokens with a
        word number of -1 are never chosen. Raises `ValueError` if `input_ids` isn't a `(B, T)` tensor of ids
        from the vocabulary, or if `attention_mask` has another shape or a negative value."""
        is_token = (input_ids >= 0) & (input_ids < self.vocab_size)  # (B, T)
        if input_ids.dtype not in (torch.int32, torch.int64) or input_ids.dim() != 2 or not is_token.all():
            raise ValueError(f"input_ids must be (B, T), ids from 0 to {self.vocab_size - 1}, and not labels")
        is_candidate = ~self.is_special.to(input_ids.device)[input_ids]  # (B, T)
        if attention_mask is not None:
            if attention_mask.shape != input_ids.shape or (attention_mask < 0).any():
                raise ValueError("attention_mask must be (B, T), with 1 for a token and 0 for padding")
            is_candidate = is_candidate & attention_mask.bool()  # (B, T)
        if word_ids is not None:
            is_candidate = is_candidate & (word_ids >= 0)  # (B, T)
        is_chosen = self.choose(is_candidate, word_ids)  # (B, T)
        labels = input_ids.long().masked_fill(~is_chosen, IGNORE)  # (B, T), int64 for `F.cross_entropy`

        # One draw decides each token's case, so the cases can't overlap. If we first masked 80% and then made
        # 10% of all chosen tokens random, masks included, we'd get 72% masked, 10% random and 18% kept.
        draw = self.rand(input_ids)  # (B, T)
        is_masked = is_chosen & (draw < self.mask_replace_prob)  # (B, T)
        is_random = is_chosen & ~is_masked & (draw < self.mask_replace_prob + self.random_replace_prob)
        ordinary_ids = self.ordinary_ids.to(input_ids)
        index = torch.randint(len(ordinary_ids), draw.shape, generator=self.generator, device=draw.device)
        random_ids = ordinary_ids[index]  # (B, T)
        masked_ids = input_ids.masked_fill(is_masked, self.mask_token_id)  # (B, T)
        return MaskedTokens(torch.where(is_random, random_ids, masked_ids), labels)

    def rand(self, like: Tensor) -> Tensor:
        """Draws uniform numbers in [0, 1), with the shape and device of `like`."""
        return torch.rand(like.shape, generator=self.generator, dtype=torch.float32, device=like.device)

    def choose(self, is_candidate: Tensor, word_ids: Tensor | None = None) -> Tensor:
        """
        ### Which tokens

        Draws a random number for each token and chooses the candidates with numbers below `mlm_probability`.
        With `max_predictions_per_seq`, the number of tokens to choose isn't random, and the candidates with
        the smallest numbers are chosen. Returns a boolean tensor, `(B, T)`, true for the chosen tokens.
        """
        draw = self.rand(is_candidate)  # (B, T)
        if word_ids is not None:
            # All tokens of word w use the draw at index w.
            draw = draw.take_along_dim(word_ids.clamp(min=0), dim=1)  # (B, T)
        if self.max_predictions_per_seq is None:
            return is_candidate & (draw < self.mlm_probability)  # (B, T)
        count = is_candidate.sum(1).float() * self.mlm_probability  # (B)
        count = count.round().clamp(1, self.max_predictions_per_seq)  # (B)
        if word_ids is not None:
            return self.choose_words(is_candidate, word_ids, draw, count)
        rank = draw.masked_fill(~is_candidate, 2.0).argsort(dim=1).argsort(dim=1)  # (B, T)
        return is_candidate & (rank < count[:, None])  # (B, T)

    def choose_words(self, is_candidate: Tensor, word_ids: Tensor, draw: Tensor, count: Tensor) -> Tensor:
        """
        ### Which words

        Goes through the words of each row, smallest `draw` first, and chooses a word if all of its tokens
        still fit within the row's `count`. A word's tokens must share a draw: if each token had its own and
        the word used the smallest, long words would be favored.
        """
        words = word_ids.masked_fill(~is_candidate, 0)  # (B, T)
        size = torch.zeros_like(words).scatter_add(1, words, is_candidate.long())  # (B, T)
        # `size` and `word_draw` are indexed by word number. An unused number has size 0 and does no harm.
        draw = draw.masked_fill(~is_candidate, 2.0)  # (B, T)
        word_draw = torch.full_like(draw, 2.0).scatter_reduce(1, words, draw, "amin")  # (B, T)
        is_chosen = torch.zeros_like(is_candidate)  # (B, T)
        room = count.long()[:, None]  # (B, 1)
        for word in word_draw.argsort(dim=1).split(1, dim=1):
            fits = size.gather(1, word) <= room  # (B, 1)
            is_chosen = is_chosen.scatter(1, word, fits)  # (B, T)
            room = room - size.gather(1, word) * fits  # (B, 1)
        return is_candidate & is_chosen.gather(1, words)  # (B, T)


class BertPredictionHeadTransform(nn.Module):
    """
    ## From hidden states to the embedding space

    The head compares hidden states with token embeddings. This transform maps hidden states to the embedding
    space, so the encoder's last layer doesn't have to. Fine-tuning usually drops the whole masked LM head,
    including the transform, and uses the encoder's hidden states."""

    def __init__(self, hidden_size: int, layer_norm_eps: float = 1e-12):
        super().__init__()
        self.dense = nn.Linear(hidden_size, hidden_size)
        self.LayerNorm = nn.LayerNorm(hidden_size, eps=layer_norm_eps)
        nn.init.trunc_normal_(self.dense.weight, std=0.02, a=-0.04, b=0.04)
        nn.init.zeros_(self.dense.bias)

    def forward(self, hidden_states: Tensor) -> Tensor:
        """Maps `(..., D)` to `(..., D)`."""
        return self.LayerNorm(F.gelu(self.dense(hidden_states)))


class BertLMPredictionHead(nn.Module):
    r"""
    ## The head

    The head turns a hidden state $h$ of $D$ numbers into $V$ scores, one for each token in the vocabulary.
    The matrix of token embeddings, $E$, has shape $(V, D)$. A token's score is the dot product of its
    embedding and the transformed state, plus a bias:

    $$z = E\, \operatorname{LayerNorm}(\operatorname{GELU}(W h + b_1)) + b_2$$

    Using $E$ both as the input embedding and as the output matrix is called weight tying. The head adds
    $D^2 + D$ parameters for the dense layer, $2D$ for the LayerNorm and $V$ for $b_2$. At $D = 768$, the
    dense layer has 590,592 parameters and the LayerNorm 1,536. The "decoder" in `transformers` consists of
    $E$ and $b_2$.

    Source: `get_masked_lm_output` in [run_pretraining.py](https://github.com/google-research/bert)."""

    def __init__(self, hidden_size: int, vocab_size: int, layer_norm_eps: float = 1e-12):
        super().__init__()
        self.transform = BertPredictionHeadTransform(hidden_size, layer_norm_eps)
        self.bias = nn.Parameter(torch.zeros(vocab_size))

    def forward(self, hidden_states: Tensor, embedding: Tensor) -> Tensor:
        """
        Maps `(..., D)` to logits, `(..., V)`. `embedding`, `(V, D)`, is the weight of the token embedding.
        The head gets the embedding as an argument and stores no copy, so the weights stay tied.
        """
        return F.linear(self.transform(hidden_states), embedding, self.bias)


def masked_lm_loss(logits: Tensor, labels: Tensor, num_items_in_batch: Tensor | None = None) -> Tensor:
    r"""
    ## The loss

    Returns the mean of $-\log p$ over the labeled positions, in nats, as float32. For `N` positions,
    `logits` is `(N, V)` and `labels` is `(N)`, with -100 at positions that don't count. If no position is
    labeled, the loss and its gradients are 0. A plain mean would be NaN (0/0), and a NaN can ruin a run.

    If you split a batch into micro-batches, pass the number of labeled positions in the whole batch as
    `num_items_in_batch`. The losses of the micro-batches then add up to the loss of the batch.
    """
    count = (labels != IGNORE).sum() if num_items_in_batch is None else num_items_in_batch
    # Compute the loss in float32: bfloat16 would round a loss between 2 and 4 to a multiple of 1/64.
    total = F.cross_entropy(logits.float(), labels, ignore_index=IGNORE, reduction="sum")
    return total / count.clamp(min=1)


def masked_accuracy(logits: Tensor, labels: Tensor, num_items_in_batch: Tensor | None = None) -> Tensor:
    """Returns the fraction of labeled positions at which the true token has the highest logit."""
    is_right = (logits.argmax(-1) == labels) & (labels != IGNORE)
    count = (labels != IGNORE).sum() if num_items_in_batch is None else num_items_in_batch
    return is_right.sum().float() / count.clamp(min=1)


class MaskedLMOutput(NamedTuple):
    """The output of `MaskedLM`."""

    loss: Tensor | None
    """A scalar, in nats per labeled position. `None` without labels."""
    logits: Tensor
    """`(M, V)` at the labeled positions, in reading order. Without labels, `(B, T, V)` at all positions."""
    labels: Tensor | None
    """`(M)`, the true tokens at the positions of `logits`. `None` without labels."""


class MaskedLM(nn.Module):
    """
    ## Encoder and head

    `encoder(input_ids, ...)` must return hidden states, `(B, T, D)`, or an output that begins with them.
    `embedding` is the encoder's token embedding, which the head reuses as its output matrix.
    """

    def __init__(self, encoder: nn.Module, embedding: nn.Embedding, layer_norm_eps: float = 1e-12):
        super().__init__()
        self.encoder = encoder
        self.head = BertLMPredictionHead(embedding.embedding_dim, embedding.num_embeddings, layer_norm_eps)
        # Keep the embedding in a list, so that PyTorch doesn't register it again under a second name.
        self._embedding = [embedding]

    def forward(
        self,
        input_ids: Tensor,  # (B, T)
        labels: Tensor | None = None,
        num_items_in_batch: Tensor | None = None,
        **encoder_inputs: Any,
    ) -> MaskedLMOutput:
        """`labels` is `(B, T)`, or `(B, P)` if the encoder returns only `P` vectors per sequence."""
        output = self.encoder(input_ids, **encoder_inputs)
        hidden_states = output if isinstance(output, Tensor) else output[0]  # (B, T, D)
        hidden_states, labels = select_labeled(hidden_states, labels)
        logits = self.head(hidden_states, self._embedding[0].weight)
        loss = None if labels is None else masked_lm_loss(logits, labels, num_items_in_batch)
        return MaskedLMOutput(loss, logits, labels)


def main() -> None:
    """
    ## Try it

    `python mlm.py` trains a model on rows of numbers that count up from a random start, so an unmasked
    neighbor usually gives a masked number away. The encoder is a recurrent network, but any model will do if
    it returns one vector per token, with the same width as a token embedding.
    """
    torch.manual_seed(0)
    V, T, mask = 50, 16, 0
    embedding = nn.Embedding(V, 64)
    # The embedding is also the output layer. With PyTorch's std of 1, the loss would start far above ln V.
    nn.init.normal_(embedding.weight, std=0.02)
    encoder = nn.Sequential(embedding, nn.GRU(64, 32, batch_first=True, bidirectional=True))
    model = MaskedLM(encoder, embedding)
    masker = TokenMasker(V, mask_token_id=mask, special_token_ids=[mask])
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for step in range(401):
        start = torch.randint(V - 1, (64, 1))  # (B, 1)
        text = 1 + (start + torch.arange(T)) % (V - 1)  # (B, T)
        loss, logits, labels = model(*masker(text))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if step % 100 == 0:
            print(f"step {step:3}  loss {loss:.3f}  accuracy {masked_accuracy(logits, labels):.2f}")


def select_labeled(hidden_states: Tensor, labels: Tensor | None) -> tuple[Tensor, Tensor | None]:
    """
    ## Code that only makes training faster

    Keeps only the hidden states, `(M, D)`, and labels, `(M)`, at the labeled positions. With a large
    vocabulary, much of the model's work is in the head. If 15% of positions are labeled, we save 85% of that
    work. If the head and the last layer ran at all positions, a training step would take 2.01 times as long
    with a vocabulary of 8,192 tokens, and 1.24 times as long with 100. We measured this with 4 layers of
    width 256 and 32 sequences of 128 tokens, in bfloat16 on 2 CPU cores (`docs/runs/speed_ablation.json`)."""
    if labels is None:
        return hidden_states, None
    is_labeled = labels != IGNORE  # (B, T)
    return hidden_states[is_labeled], labels[is_labeled]


def masked_lm_positions(labels: Tensor) -> Tensor:
    """
    Returns each row's labeled positions, `(B, P)`, in reading order. `P` is the largest number of labeled
    positions in a row. Rows with fewer also get unlabeled positions. If you pass the result to our encoders
    as `output_positions`, their last layer computes output vectors only at these positions."""
    is_labeled = labels != IGNORE  # (B, T)
    most = int(is_labeled.sum(1).max()) if len(labels) else 0
    return (~is_labeled).byte().argsort(dim=1, stable=True)[:, :most]  # (B, P)


if __name__ == "__main__":
    main()
