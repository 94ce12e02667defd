r"""
# Masked language modelling

How does a model that sees both sides of every word learn anything, when the word to predict is in
plain view? Hide it. Some tokens of a text are covered, and the model is asked what stood there:

$$\mathcal L = - \frac{1}{|M|} \sum_{t \in M} \log p(w_t \mid \tilde w_1, \dots, \tilde w_T)$$

with $M$ the places that were chosen, about 15% of all, and $\tilde w$ the text after the covering.

Three parts follow: choosing and covering the tokens, the head that turns a hidden vector into a
distribution over the vocabulary, and the model that joins an encoder to both. The encoder can be
any: the one in `bert.py`, one of `transformers`, your own. This file needs only PyTorch.

Letters for sizes: `B` sequences in the batch, `T` tokens in a sequence, `D` hidden size,
`V` vocabulary, `M` masked positions in the whole batch.
"""

from collections.abc import Collection
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

# The label of every place that takes no part in the loss; the default of `F.cross_entropy`.
IGNORE = -100


class MaskedTokens(NamedTuple):
    """A covered batch."""

    input_ids: Tensor
    """`(B, T)`, what the model sees."""
    labels: Tensor
    """`(B, T)`, the true token at each chosen place, -100 everywhere else."""


class TokenMasker:
    r"""
    ## Covering tokens

    Of the candidates, 15% are chosen, and each chosen token meets one of three fates:

    | share | what the model sees | why |
    |---|---|---|
    | 80% | `[MASK]` | the task itself |
    | 10% | a random token | any token may be wrong, so each one must be checked against its context |
    | 10% | the token itself | fine-tuning never shows `[MASK]`, so real tokens must get good vectors too |

    The rule is about these three only. A token that was not chosen has no label and no loss.

    Source: [paper](https://arxiv.org/abs/1810.04805), section 3.1 and appendix A.1;
    `create_masked_lm_predictions` of [google-research/bert](https://github.com/google-research/bert).
    """

    def __init__(
        self,
        vocab_size: int,
        mask_token_id: int,
        special_token_ids: Collection[int],
        mlm_probability: float = 0.15,
        mask_replace_prob: float = 0.8,
        random_replace_prob: float = 0.1,
        max_predictions_per_seq: int | None = None,
        generator: torch.Generator | None = None,
    ):
        """
        `special_token_ids` are never chosen and never drawn as the random token; give all of them,
        `[MASK]` included. With `max_predictions_per_seq` each row gets a fixed count instead of a
        coin for each token: 0.15 of its candidates, rounded, at least one, at most this many, as
        the original has it. Rows of one length then give tensors of one shape.

        `generator` makes the choice repeatable apart from all other random numbers of the program.
        It lives on the device of the batches.

        Raises `ValueError` for probabilities that are none, ids that are none or outside the vocabulary,
        and a vocabulary of special tokens only.
        """
        if not 0 <= mlm_probability <= 1:
            raise ValueError(f"mlm_probability is {mlm_probability}; it must be in [0, 1]")
        # Asked this way round, a NaN is refused too.
        if not (
            min(mask_replace_prob, random_replace_prob) >= 0 and mask_replace_prob + random_replace_prob <= 1
        ):
            raise ValueError(
                f"mask_replace_prob {mask_replace_prob} and random_replace_prob {random_replace_prob} "
                "must not be negative, nor above 1 together"
            )
        specials = {mask_token_id, *special_token_ids}
        if None in specials:
            raise ValueError(
                "a special token has no id; give a tokenizer that has [MASK] and all of the others"
            )
        if min(specials) < 0 or max(specials) >= vocab_size:
            raise ValueError(
                f"special token ids {sorted(specials)} are not all inside the vocabulary of {vocab_size}"
            )
        if len(specials) == vocab_size:
            raise ValueError("every token of the vocabulary is special; there is nothing to mask")
        if max_predictions_per_seq is not None and max_predictions_per_seq < 1:
            raise ValueError(f"max_predictions_per_seq is {max_predictions_per_seq}; it must be at least 1")
        self.mask_token_id = mask_token_id
        self.mlm_probability = mlm_probability
        self.mask_replace_prob = mask_replace_prob
        self.random_replace_prob = random_replace_prob
        self.max_predictions_per_seq = max_predictions_per_seq
        self.generator = generator
        self.is_special = torch.zeros(vocab_size, dtype=torch.bool)
        self.is_special[list(specials)] = True
        self.ordinary_ids = (~self.is_special).nonzero().flatten()

    def __call__(
        self,
        input_ids: Tensor,  # (B, T)
        attention_mask: Tensor | None = None,
        word_ids: Tensor | None = None,
    ) -> MaskedTokens:
        """
        All inputs are `(B, T)`. `attention_mask` is 0 at padding, which is never chosen. `word_ids`
        asks for whole words: places with the same number in a row are chosen or left together
        (numbers from 0 to `T - 1`; -1 belongs to no word and is never chosen). `input_ids` is not changed.

        Raises `ValueError` where a number is no token, and for a mask of another shape or one that is
        meant to be added to the scores of attention.
        """
        self.check(input_ids, attention_mask)
        candidates = ~self.is_special.to(input_ids.device)[input_ids]  # (B, T)
        if attention_mask is not None:
            candidates = candidates & attention_mask.bool()  # (B, T)
        if word_ids is not None:
            candidates = candidates & (word_ids >= 0)  # (B, T)
        chosen = self.choose(candidates, word_ids)  # (B, T)
        # As int64, which is what `F.cross_entropy` takes, also where the ids are int32.
        labels = input_ids.long().masked_fill(~chosen, IGNORE)  # (B, T)

        # One draw decides between the three fates, so they cannot overlap. Drawing once for the
        # mask and again for the random token lets the second overwrite the first: 81, 9 and 10%.
        fate = self.rand(input_ids)  # (B, T)
        masked = chosen & (fate < self.mask_replace_prob)  # (B, T)
        replaced = chosen & ~masked & (fate < self.mask_replace_prob + self.random_replace_prob)  # (B, T)
        pick = torch.randint(
            len(self.ordinary_ids), input_ids.shape, generator=self.generator, device=input_ids.device
        )  # (B, T)
        random_ids = self.ordinary_ids.to(input_ids)[pick]  # (B, T)
        covered = input_ids.masked_fill(masked, self.mask_token_id)  # (B, T)
        return MaskedTokens(torch.where(replaced, random_ids, covered), labels)

    def check(self, input_ids: Tensor, attention_mask: Tensor | None) -> None:
        """Refuses what would be covered without an error, and wrongly."""
        # PyTorch takes bool and uint8 for masks where ids are meant, and -1 for the last token.
        if input_ids.dtype not in (torch.int32, torch.int64) or input_ids.dim() != 2:
            raise ValueError(
                f"input_ids is {input_ids.dtype} of shape {tuple(input_ids.shape)}; "
                "give int64 or int32 of shape (B, T)"
            )
        if input_ids.numel() and (input_ids.min() < 0 or input_ids.max() >= len(self.is_special)):
            raise ValueError(
                f"input_ids goes from {input_ids.min()} to {input_ids.max()} and the vocabulary from 0 to "
                f"{len(self.is_special) - 1}; give the ids of one tokenizer, and not the labels"
            )
        if attention_mask is None:
            return
        if attention_mask.shape != input_ids.shape:
            raise ValueError(
                f"attention_mask is {tuple(attention_mask.shape)} and input_ids {tuple(input_ids.shape)}; "
                "give the two one shape"
            )
        if (attention_mask < 0).any():
            raise ValueError(
                "attention_mask has numbers below 0, as one that is added to scores; give 1 for a token and "
                "0 for padding"
            )

    def rand(self, like: Tensor) -> Tensor:
        """Uniform numbers in [0, 1), of the shape and on the device of `like`."""
        return torch.rand(like.shape, generator=self.generator, device=like.device)

    def choose(self, candidates: Tensor, word_ids: Tensor | None = None) -> Tensor:
        """
        ### Which tokens

        Returns a boolean `(B, T)`, a subset of `candidates`. Every token draws a number, and the
        lowest are chosen: those below 0.15, or a fixed count of them.
        """
        draw = self.rand(candidates)  # (B, T)
        if word_ids is not None:
            # The tokens of a word all use the number drawn at the place that bears the word's
            # number, so they stand or fall together.
            draw = draw.gather(1, word_ids.clamp(min=0))  # (B, T)
        if self.max_predictions_per_seq is None:
            return candidates & (draw < self.mlm_probability)  # (B, T)
        available = candidates.sum(1)  # (B)
        count = (available * self.mlm_probability).round().clamp(1, self.max_predictions_per_seq)  # (B)
        if word_ids is not None:
            return self.choose_words(candidates, word_ids, draw, count)
        order = draw.masked_fill(~candidates, 2.0).argsort(dim=1)  # (B, T)
        rank = order.argsort(dim=1)  # (B, T)
        return candidates & (rank < count[:, None])  # (B, T)

    def choose_words(self, candidates: Tensor, word_ids: Tensor, draw: Tensor, count: Tensor) -> Tensor:
        """
        ### Which words, up to a count

        The words of each row are visited in random order. A word is taken if all its tokens still
        fit under the row's `count`, else passed over, and a shorter one may fit later. So a row can
        end a little below its count, never above.
        """
        words = word_ids.masked_fill(~candidates, 0)  # (B, T)
        size = torch.zeros_like(words).scatter_add(1, words, candidates.long())  # (B, T)
        # Word number w draws at place w; a number that no word bears has size 0 and changes nothing.
        word_draw = torch.full_like(draw, 2.0).scatter_reduce(
            1, words, draw.masked_fill(~candidates, 2.0), "amin"
        )  # (B, T)
        taken = torch.zeros_like(candidates)  # (B, T)
        room = count.long()[:, None]  # (B, 1)
        for word in word_draw.argsort(dim=1).split(1, dim=1):
            fits = size.gather(1, word) <= room  # (B, 1)
            taken = taken.scatter(1, word, fits)  # (B, T)
            room = room - size.gather(1, word) * fits  # (B, 1)
        return candidates & taken.gather(1, words)  # (B, T)


class BertPredictionHeadTransform(nn.Module):
    """
    ## From the encoder's space to the embeddings'

    The vector at a masked place left the encoder after many layers, in a space shaped by what the *next*
    layer could use. This dense layer turns it into the space of the token embeddings, so that the encoder
    need not end there. A fine-tuned task takes the vector before it and throws all of this away.
    """

    def __init__(self, hidden_size: int, layer_norm_eps: float = 1e-12):
        super().__init__()
        self.dense = nn.Linear(hidden_size, hidden_size)
        self.LayerNorm = nn.LayerNorm(hidden_size, eps=layer_norm_eps)
        nn.init.trunc_normal_(self.dense.weight, std=0.02, a=-0.04, b=0.04)
        nn.init.zeros_(self.dense.bias)

    def forward(self, hidden_states: Tensor) -> Tensor:
        """`(..., D)` to `(..., D)`."""
        return self.LayerNorm(F.gelu(self.dense(hidden_states)))


class BertLMPredictionHead(nn.Module):
    r"""
    ## The head

    A hidden vector is $D$ wide, and the answer is one of $V$ tokens. The matrix that goes from one
    to the other is already there: the token embedding $E$, $(V, D)$, read the other way. The score
    of a token is the product of the hidden vector with that token's own embedding:

    $$z = E\, \operatorname{LayerNorm}(\operatorname{GELU}(W h + b_1)) + b_2$$

    This is weight tying. Nothing is inverted; each row of $E$ is used as a direction to compare with.
    The head so adds only $D^2 + D$ numbers for the dense layer, $2D$ for the norm and $V$ for the
    bias $b_2$: at $D = 768$, 590,592 and 1,536 and $V$.

    The name in `transformers` is kept. A "decoder" there is this product with $E$, not a second
    transformer.

    Source: `get_masked_lm_output` in `run_pretraining.py` of
    [google-research/bert](https://github.com/google-research/bert).
    """

    def __init__(self, hidden_size: int, vocab_size: int, layer_norm_eps: float = 1e-12):
        super().__init__()
        self.transform = BertPredictionHeadTransform(hidden_size, layer_norm_eps)
        self.bias = nn.Parameter(torch.zeros(vocab_size))

    def forward(self, hidden_states: Tensor, embedding: Tensor) -> Tensor:
        """
        `hidden_states` is `(..., D)` and `embedding` the token embedding's weight, `(V, D)`. It is
        an argument, not a member, so that there is one owner and tying cannot come undone. Returns
        the logits `(..., V)`.
        """
        return F.linear(self.transform(hidden_states), embedding, self.bias)


def masked_lm_loss(logits: Tensor, labels: Tensor, num_items_in_batch: Tensor | None = None) -> Tensor:
    r"""
    ## The loss

    The mean of $-\log p$ over the places that have a label, in nats. `logits` is `(M, V)`, `labels`
    `(M)`, and places labelled -100 do not count. Where nothing was chosen the sum is empty, and the
    loss is 0 with a gradient of zeros; a plain mean would be 0/0 and one such batch would end a run.

    These may be the places of only a part of a batch. `num_items_in_batch` is then the number of places with
    a label in the whole of it, and the losses of the parts add up to the loss of the batch.
    """
    count = (labels != IGNORE).sum() if num_items_in_batch is None else num_items_in_batch
    # In float32 whatever the logits are: a bfloat16 holds a loss near 2 only to the nearest 1/128.
    total = F.cross_entropy(logits.float(), labels, ignore_index=IGNORE, reduction="sum")
    return total / count.clamp(min=1)


def masked_accuracy(logits: Tensor, labels: Tensor, num_items_in_batch: Tensor | None = None) -> Tensor:
    """The share of labelled places where the first guess is right. All as in `masked_lm_loss`."""
    right = (logits.argmax(-1) == labels) & (labels != IGNORE)
    count = (labels != IGNORE).sum() if num_items_in_batch is None else num_items_in_batch
    return right.sum() / count.clamp(min=1)


class MaskedLMOutput(NamedTuple):
    """What `MaskedLM` returns."""

    loss: Tensor | None
    """A scalar, nats per masked token. `None` without labels."""
    logits: Tensor
    """`(M, V)` at the labelled places in reading order; without labels `(B, T, V)` at every place."""
    labels: Tensor | None
    """`(M)`, the true tokens that belong to `logits`. `None` without labels."""


def masked_lm_output(
    head: BertLMPredictionHead,
    hidden_states: Tensor,
    embedding: Tensor,
    labels: Tensor | None,
    num_items_in_batch: Tensor | None = None,
) -> MaskedLMOutput:
    """
    ## Only where there is a label

    At 15% this saves five sixths of the head's work, and with a vocabulary of tens of thousands the
    head is most of the model's work. `hidden_states` is `(B, T, D)`, `embedding` `(V, D)`, `labels` `(B, T)`.
    """
    if labels is None:
        return MaskedLMOutput(None, head(hidden_states, embedding), None)
    chosen = labels != IGNORE  # (B, T)
    labels = labels[chosen]  # (M)
    logits = head(hidden_states[chosen], embedding)  # (M, V)
    return MaskedLMOutput(masked_lm_loss(logits, labels, num_items_in_batch), logits, labels)


def masked_lm_positions(labels: Tensor) -> Tensor:
    """
    ## Where the labels are

    The same thought one block earlier: nobody looks at the encoder's last layer but the head, so an encoder
    that can be told where to look need not compute the rest of it. From `labels` `(B, T)` come the places
    of each row that have one, in reading order, `(B, P)` with `P` their number in the fullest row. Rows that
    have fewer are filled up with places that have no label.
    """
    chosen = labels != IGNORE  # (B, T)
    most = int(chosen.sum(1).max()) if len(labels) else 0
    return (~chosen).byte().argsort(dim=1, stable=True)[:, :most]  # (B, P)


class MaskedLM(nn.Module):
    """
    ## Encoder and head

    `encoder(input_ids, ...)` returns `(B, T, D)`, or a tuple that begins with it. `embedding` is
    the encoder's own token embedding, which the head reads the other way.
    """

    def __init__(self, encoder: nn.Module, embedding: nn.Embedding, layer_norm_eps: float = 1e-12):
        super().__init__()
        self.encoder = encoder
        self.head = BertLMPredictionHead(embedding.embedding_dim, embedding.num_embeddings, layer_norm_eps)
        # A list hides the module from PyTorch, which would else count and save its weight twice.
        self._embedding = [embedding]

    def forward(
        self,
        input_ids: Tensor,  # (B, T)
        labels: Tensor | None = None,
        num_items_in_batch: Tensor | None = None,
        **encoder_inputs: Any,
    ) -> MaskedLMOutput:
        """
        `input_ids` and `labels` are `(B, T)`, as `TokenMasker` makes them; `num_items_in_batch` is that of
        `masked_lm_loss`. All else goes to the encoder.
        """
        hidden = self.encoder(input_ids, **encoder_inputs)
        if not isinstance(hidden, Tensor):
            hidden = hidden[0]  # (B, T, D)
        embedding = self._embedding[0].weight  # (V, D)
        return masked_lm_output(self.head, hidden, embedding, labels, num_items_in_batch)


class SmallEncoder(nn.Module):
    """
    ## Try it

    `python mlm.py` trains a masked language model with PyTorch's own encoder, to show what this file
    asks of one: tokens in, one vector a token out.
    """

    def __init__(self, vocab_size: int, hidden_size: int, length: int):
        super().__init__()
        self.token = nn.Embedding(vocab_size, hidden_size)
        self.position = nn.Embedding(length, hidden_size)
        # A tied embedding is also the output layer, and a product of D terms of size 1 would start
        # the loss far above ln V.
        nn.init.normal_(self.token.weight, std=0.02)
        nn.init.normal_(self.position.weight, std=0.02)
        self.norm = nn.LayerNorm(hidden_size)
        block = nn.TransformerEncoderLayer(hidden_size, 4, 4 * hidden_size, dropout=0.0, batch_first=True)
        self.blocks = nn.TransformerEncoder(block, 2)

    def forward(self, input_ids: Tensor) -> Tensor:
        """`(B, T)` to `(B, T, D)`."""
        x = self.norm(self.token(input_ids) + self.position.weight)  # (B, T, D)
        return self.blocks(x)


def main() -> None:
    """
    The text counts: a row starts at any number and goes up by one, so a covered number is known
    from any neighbour that is in view.
    """
    torch.manual_seed(0)
    V, T, mask = 50, 16, 0
    encoder = SmallEncoder(V, 64, T)
    model = MaskedLM(encoder, encoder.token)
    masker = TokenMasker(V, mask_token_id=mask, special_token_ids=[mask])
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for step in range(401):
        start = torch.randint(V - 1, (64, 1))  # (B, 1)
        text = 1 + (start + torch.arange(T)) % (V - 1)  # (B, T)
        output = model(*masker(text))
        assert output.loss is not None and output.labels is not None
        output.loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if step % 100 == 0:
            accuracy = masked_accuracy(output.logits, output.labels)
            print(f"step {step:3}  loss {output.loss.item():.3f}  accuracy {accuracy.item():.2f}")


if __name__ == "__main__":
    main()
