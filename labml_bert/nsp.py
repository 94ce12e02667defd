r"""
# Next sentence prediction

Can a model learn how sentences hang together, and not only words? BERT was shown two pieces of text at
a time and asked whether the second follows the first. Half the time it does; else it comes from another
document:

$$
\mathcal L = -\log \operatorname{softmax}(W p + b)_y, \qquad y = 0 \text{ for next}, \; 1 \text{ for random}
$$

with $p$ the pooled vector of the pair. Mind the label: 0 is *next*. It is a class like the other and no
label to pass over.

Later work found the task too easy, since a change of subject gives the answer away, and left it out
([RoBERTa](https://arxiv.org/abs/1907.11692), section 4.2). Making the pairs is still how two texts are
put into one BERT. This file needs only PyTorch, so you can copy it into your own project.

Letters for sizes: `B` pairs in the batch, `T` tokens in the longest, `D` hidden size.
"""

import random
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

# A document is a list of sentences, a sentence a list of token ids.
Sentence = Sequence[int]
Document = Sequence[Sentence]

IS_NEXT, IS_RANDOM = 0, 1


class SentencePair(NamedTuple):
    """`[CLS] A [SEP] B [SEP]` as ids, before padding."""

    input_ids: list[int]
    token_type_ids: list[int]
    """0 up to the first `[SEP]` and with it, 1 after."""
    next_sentence_label: int
    """0 where B follows A, 1 where it is from another document."""


class PairMaker:
    """
    ## Making pairs

    Sentences of a document are collected until they fill a sequence. The pile is cut in two at a
    random sentence. The first part is A; B is the rest of the pile, or as much from another document.

    Source: `create_instances_from_document` in `create_pretraining_data.py` of
    [google-research/bert](https://github.com/google-research/bert).
    """

    def __init__(
        self,
        documents: Sequence[Document],
        cls_token_id: int,
        sep_token_id: int,
        max_length: int = 128,
        short_seq_prob: float = 0.1,
        random_next_prob: float = 0.5,
        lone_sentence_is_random: bool = True,
    ):
        """
        `max_length` counts the three special tokens. In a share `short_seq_prob` of the documents the
        pairs aim at a random shorter length, so that short inputs are not strangers later.

        `lone_sentence_is_random` keeps a habit of the original. A pile of one sentence cannot be cut,
        so its B always comes from elsewhere, and more than `random_next_prob` of all pairs are random.
        With `False` a pile grows to two sentences at least, a lone one at the end of a document is left
        out, and the share is as asked.

        Raises `ValueError` where there is no second document to draw from, or no room for a pair, and for
        probabilities that are none.
        """
        self.documents = [[s for s in document if len(s)] for document in documents]
        self.documents = [document for document in self.documents if document]
        if len(self.documents) < 2:
            raise ValueError(
                f"next sentence prediction needs two documents at least, and there is {len(self.documents)}; "
                "split the text into documents"
            )
        if max_length < 5:
            raise ValueError(f"max_length is {max_length}; two tokens and three special ones need 5")
        for name, p in (("short_seq_prob", short_seq_prob), ("random_next_prob", random_next_prob)):
            if not 0 <= p <= 1:
                raise ValueError(f"{name} is {p}; it must be in [0, 1]")
        self.cls_token_id = cls_token_id
        self.sep_token_id = sep_token_id
        self.max_length = max_length
        self.short_seq_prob = short_seq_prob
        self.random_next_prob = random_next_prob
        self.lone_sentence_is_random = lone_sentence_is_random

    def __call__(self, generator: random.Random) -> Iterator[SentencePair]:
        """One pass over all documents, in their order."""
        for index in range(len(self.documents)):
            yield from self.pairs_of(index, generator)

    def pairs_of(self, index: int, generator: random.Random) -> Iterator[SentencePair]:
        """
        ### One document

        Every sentence of the document is used once as A, or as B after its own A. Where B is
        random, the sentences that would have been B go back on top of those still to come.
        """
        document = self.documents[index]
        fewest = 1 if self.lone_sentence_is_random else 2
        target = self.target_length(generator)
        at = 0
        while at < len(document):
            end, length = at, 0
            while end < len(document) and (length < target or end - at < fewest):
                length += len(document[end])
                end += 1
            if end - at < fewest:
                return
            cut = at + generator.randint(1, max(1, end - at - 1))
            first = [token for sentence in document[at:cut] for token in sentence]
            if cut == end or generator.random() < self.random_next_prob:
                second, label, at = self.elsewhere(index, target - len(first), generator), IS_RANDOM, cut
            else:
                second, label, at = [t for s in document[cut:end] for t in s], IS_NEXT, end
            yield self.assemble(first, second, label, generator)

    def target_length(self, generator: random.Random) -> int:
        """How many tokens of text the pairs of a document aim at; drawn once for each, as in the original."""
        most = self.max_length - 3
        return generator.randint(2, most) if generator.random() < self.short_seq_prob else most

    def elsewhere(self, index: int, length: int, generator: random.Random) -> list[int]:
        """
        Sentences of another document from a random one on, `length` tokens or up to its end. The
        original draws a document ten times and may end with the same; here it is never the same.
        """
        other = generator.randrange(len(self.documents) - 1)
        document = self.documents[other + (other >= index)]
        tokens: list[int] = []
        for sentence in document[generator.randrange(len(document)) :]:
            tokens.extend(sentence)
            if len(tokens) >= length:
                break
        return tokens

    def assemble(
        self, first: list[int], second: list[int], label: int, generator: random.Random
    ) -> SentencePair:
        """
        ### Cutting to length

        Sentences are not cut when they are collected, so a pair can be too long. It loses tokens one
        by one from the longer side, at its beginning or its end by a coin. Always cutting the end
        would teach that texts have beginnings only.
        """
        first, second = list(first), list(second)
        while len(first) + len(second) > self.max_length - 3:
            longer = first if len(first) > len(second) else second
            longer.pop(0 if generator.random() < 0.5 else -1)
        a = [self.cls_token_id, *first, self.sep_token_id]
        b = [*second, self.sep_token_id]
        return SentencePair(a + b, [0] * len(a) + [1] * len(b), label)


def collate(pairs: Sequence[SentencePair], pad_token_id: int = 0) -> dict[str, Tensor]:
    """
    ## Pairs to tensors

    Pads to the longest pair. Returns `input_ids`, `attention_mask` (0 at padding) and
    `token_type_ids`, each `(B, T)`, and `next_sentence_label` `(B,)`; all int64.

    Raises `ValueError` where there is no pair.
    """
    if not pairs:
        raise ValueError("there is no pair to make a batch of; give one at least")
    T = max(len(pair.input_ids) for pair in pairs)

    def rows(values: list[list[int]], fill: int) -> Tensor:
        return torch.tensor([row + [fill] * (T - len(row)) for row in values], dtype=torch.long)  # (B, T)

    return {
        "input_ids": rows([pair.input_ids for pair in pairs], pad_token_id),
        "attention_mask": rows([[1] * len(pair.input_ids) for pair in pairs], 0),
        "token_type_ids": rows([pair.token_type_ids for pair in pairs], 0),
        "next_sentence_label": torch.tensor([pair.next_sentence_label for pair in pairs]),
    }


class BertOnlyNSPHead(nn.Module):
    """
    ## The head

    One linear layer from the pooled vector to two scores: $2D + 2$ numbers. All the work is in the
    pooler before it.
    """

    def __init__(self, hidden_size: int):
        super().__init__()
        self.seq_relationship = nn.Linear(hidden_size, 2)
        nn.init.trunc_normal_(self.seq_relationship.weight, std=0.02, a=-0.04, b=0.04)
        nn.init.zeros_(self.seq_relationship.bias)

    def forward(self, pooled_output: Tensor) -> Tensor:
        """`(B, D)` to `(B, 2)`: the scores of *next* and of *random*."""
        return self.seq_relationship(pooled_output)  # (B, 2)


def next_sentence_loss(logits: Tensor, labels: Tensor, num_pairs_in_batch: Tensor | None = None) -> Tensor:
    """
    ## The loss

    The mean over all pairs, in nats; `logits` is `(B, 2)`, `labels` `(B)`. A loop that shares one
    ignored label 0 between this loss and the masked one never learns that anything is *next*. A pair
    labelled -100 does not count, as in `transformers`; where none counts, the loss is 0 and not 0/0.

    Where these are only some of the pairs of a batch, `num_pairs_in_batch` says how many count in all,
    and the losses of the parts add up to that mean.
    """
    if num_pairs_in_batch is None:
        num_pairs_in_batch = (labels != -100).sum().clamp(min=1)
    return F.cross_entropy(logits.float(), labels, reduction="sum") / num_pairs_in_batch


class TopicEncoder(nn.Module):
    """
    ## Try it

    `python nsp.py` tells next from random on documents with a subject each. The encoder only averages
    each part and compares; it shows what the task asks for, and how little that can be.
    """

    def __init__(self, vocab_size: int, hidden_size: int):
        super().__init__()
        self.token = nn.Embedding(vocab_size, hidden_size)
        self.pooler = nn.Sequential(nn.Linear(hidden_size, hidden_size), nn.Tanh())

    def forward(self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor) -> Tensor:
        """All `(B, T)`. Returns the pooled vector `(B, D)`."""
        x = self.token(input_ids)  # (B, T, D)
        first = (attention_mask * (1 - token_type_ids))[..., None] * x  # (B, T, D)
        second = (attention_mask * token_type_ids)[..., None] * x  # (B, T, D)
        return self.pooler(first.mean(1) * second.mean(1))  # (B, D)


def main() -> None:
    """Each document speaks with five words of its own, and a pair from two documents shares none."""
    torch.manual_seed(0)
    generator = random.Random(0)
    documents = [
        [[2 + 5 * d + generator.randrange(5) for _ in range(6)] for _ in range(20)] for d in range(20)
    ]
    maker = PairMaker(documents, cls_token_id=0, sep_token_id=1, max_length=32)
    encoder, head = TopicEncoder(102, 64), BertOnlyNSPHead(64)
    optimizer = torch.optim.Adam([*encoder.parameters(), *head.parameters()], lr=3e-3)
    for epoch in range(41):
        batch = collate(list(maker(generator)))
        labels = batch.pop("next_sentence_label")
        logits = head(encoder(**batch))
        loss = next_sentence_loss(logits, labels)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if epoch % 10 == 0:
            accuracy = (logits.argmax(-1) == labels).float().mean()
            print(f"epoch {epoch:2}  loss {loss.item():.3f}  accuracy {accuracy.item():.2f}")


if __name__ == "__main__":
    main()
