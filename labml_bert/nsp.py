r"""
# Next sentence prediction

Can a model learn how sentences hang together, and not only words? BERT was shown two pieces of text at a time
and asked whether the second follows the first. Half the time it does; else it comes from another document:

$$\mathcal L = -\log \operatorname{softmax}(W p + b)_y$$

Here $p$ is the pooled vector of the pair, and $y$ its label: 0 for *next*, 1 for *random*. Mind the 0: it is
a class like the other, not a label to ignore.

Later work found the task too easy, since a change of subject gives the answer away, and left it out
([RoBERTa](https://arxiv.org/abs/1907.11692), section 4.2). But two texts are still given to a BERT in pairs
like these. This file needs only PyTorch, so you can copy it into your own project.

Letters for sizes: `B` pairs in the batch, `T` tokens in the longest, `D` hidden size.
"""

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Sentence = Sequence[int]  # token ids
Document = Sequence[Sentence]
IS_NEXT, IS_RANDOM = 0, 1


class SentencePair(NamedTuple):
    """`[CLS] A [SEP] B [SEP]` as ids, before padding."""

    input_ids: list[int]
    token_type_ids: list[int]
    """0 up to and including the first `[SEP]`, 1 after it."""
    next_sentence_label: int
    """0 if B follows A, 1 if it comes from another document."""


@dataclass
class PairMaker:
    """
    ## Making pairs

    Sentences of a document are collected until they fill a sequence. This chunk is cut in two at a random
    sentence. The first part is A; B is the rest of the chunk, or as much text from another document. Source:
    `create_instances_from_document` in [google-research/bert](https://github.com/google-research/bert).
    """

    documents: Sequence[Document]
    cls_token_id: int
    sep_token_id: int
    max_length: int = 128
    """Tokens in a pair, with the three special tokens."""
    short_seq_prob: float = 0.1
    """Fraction of documents whose pairs aim at a random shorter length, so that short inputs are familiar."""
    random_next_prob: float = 0.5
    lone_sentence_is_random: bool = True
    """
    As in the original: a chunk of one sentence cannot be cut, so its B is random, and more than
    `random_next_prob` of all pairs are. With `False` a chunk has two sentences or more, and a lone one at the
    end of a document is left out.
    """

    def __post_init__(self) -> None:
        documents = [[s for s in document if len(s)] for document in self.documents]
        self.documents = [document for document in documents if document]
        # Text from the same document, labeled random, could be the very text that follows A.
        if (n := len(self.documents)) < 2:
            raise ValueError(f"PairMaker needs two documents at least, and there is {n}; split the text")

    def __call__(self, generator: random.Random) -> Iterator[SentencePair]:
        """One pass over all documents, in their order."""
        for index in range(len(self.documents)):
            yield from self.pairs_of(index, generator)

    def pairs_of(self, index: int, generator: random.Random) -> Iterator[SentencePair]:
        """
        ### One document

        Every sentence of the document is used once as A, or as B after its own A. If B is random, the
        sentences that would have been B are the beginning of the next chunk.
        """
        document = self.documents[index]
        fewest = 1 if self.lone_sentence_is_random else 2
        target, start = self.target_length(generator), 0
        while start < len(document):
            end, length = start, 0
            while end < len(document) and (length < target or end - start < fewest):
                length += len(document[end])
                end += 1
            if end - start < fewest:
                return
            cut = start + generator.randint(1, max(1, end - start - 1))
            a = [token for sentence in document[start:cut] for token in sentence]
            if cut == end or generator.random() < self.random_next_prob:
                b, label, start = self.elsewhere(index, target - len(a), generator), IS_RANDOM, cut
            else:
                b, label, start = [t for s in document[cut:end] for t in s], IS_NEXT, end
            yield self.assemble(a, b, label, generator)

    def target_length(self, generator: random.Random) -> int:
        """Draws how many tokens of text the pairs of a document aim at, once for each, as in the original."""
        most = self.max_length - 3
        return generator.randint(2, most) if generator.random() < self.short_seq_prob else most

    def elsewhere(self, index: int, length: int, generator: random.Random) -> list[int]:
        """
        Sentences of another document, from a random one on: `length` tokens, or up to the document's end. The
        original draws a document up to ten times and may still get the same one; this function never does.
        """
        other = generator.randrange(len(self.documents) - 1)
        document = self.documents[other + (other >= index)]
        tokens: list[int] = []
        for sentence in document[generator.randrange(len(document)) :]:
            tokens.extend(sentence)
            if len(tokens) >= length:
                break
        return tokens

    def assemble(self, a: Sentence, b: Sentence, label: int, generator: random.Random) -> SentencePair:
        """
        ### Cutting to length

        Sentences are collected whole, so a pair can be too long. It loses tokens one by one from the longer
        side, and a coin decides at which end. Always cutting the end would teach that texts only ever begin.
        """
        first, second = list(a), list(b)
        while len(first) + len(second) > self.max_length - 3:
            longer = first if len(first) > len(second) else second
            longer.pop(0 if generator.random() < 0.5 else -1)
        first, second = [self.cls_token_id, *first, self.sep_token_id], [*second, self.sep_token_id]
        return SentencePair(first + second, [0] * len(first) + [1] * len(second), label)


def collate(pairs: Sequence[SentencePair], pad_token_id: int = 0) -> dict[str, Tensor]:
    """
    ## Pairs to tensors

    Pads to the longest pair. Returns `input_ids`, `attention_mask` (0 at padding) and `token_type_ids`, each
    `(B, T)`, and `next_sentence_label` `(B,)`; all int64.
    """
    T = max(len(pair.input_ids) for pair in pairs)

    def pad(rows: list[list[int]], value: int) -> Tensor:
        return torch.tensor([row + [value] * (T - len(row)) for row in rows], dtype=torch.long)  # (B, T)

    return {
        "input_ids": pad([pair.input_ids for pair in pairs], pad_token_id),
        "attention_mask": pad([[1] * len(pair.input_ids) for pair in pairs], 0),
        "token_type_ids": pad([pair.token_type_ids for pair in pairs], 0),
        "next_sentence_label": torch.tensor([pair.next_sentence_label for pair in pairs]),
    }


class BertOnlyNSPHead(nn.Module):
    """
    ## The head

    One linear layer from the pooled vector to two scores: $2D + 2$ numbers. The pooler does the work.
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

    The mean over all pairs, in nats; `logits` is `(B, 2)`, `labels` `(B)`. If you ignore label 0 here because
    your masked loss does, the model never learns that anything is *next*. A pair labeled -100 does not count,
    as in `transformers`; if none counts, the loss is 0, not 0/0. For one micro-batch of several,
    `num_pairs_in_batch` counts the whole batch's pairs, and the micro-batches' losses add up to its loss.
    """
    if num_pairs_in_batch is None:
        num_pairs_in_batch = (labels != -100).sum().clamp(min=1)
    return F.cross_entropy(logits.float(), labels, reduction="sum") / num_pairs_in_batch


def main() -> None:
    """
    ## Try it

    `python nsp.py` tells next from random. Each document has five words of its own, so a random pair shares
    none. The encoder only averages each part and compares. It shows how little the task may ask for.
    """
    torch.manual_seed(0)
    rng = random.Random(0)
    documents = [[[2 + 5 * d + rng.randrange(5) for _ in range(6)] for _ in range(20)] for d in range(20)]
    maker = PairMaker(documents, cls_token_id=0, sep_token_id=1, max_length=32)
    token, pooler, head = nn.Embedding(102, 64), nn.Linear(64, 64), BertOnlyNSPHead(64)
    optimizer = torch.optim.Adam([*token.parameters(), *pooler.parameters(), *head.parameters()], lr=3e-3)
    for epoch in range(41):
        input_ids, attention_mask, token_type_ids, labels = collate(list(maker(rng))).values()
        x = token(input_ids)
        first = (attention_mask * (1 - token_type_ids))[..., None] * x
        second = (attention_mask * token_type_ids)[..., None] * x
        logits = head(torch.tanh(pooler(first.mean(1) * second.mean(1))))
        loss = next_sentence_loss(logits, labels)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if epoch % 10 == 0:
            accuracy = (logits.argmax(-1) == labels).float().mean()
            print(f"epoch {epoch:2}  loss {loss:.3f}  accuracy {accuracy:.2f}")


if __name__ == "__main__":
    main()
