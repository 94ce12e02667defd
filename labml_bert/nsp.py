r"""
# Next sentence prediction

Can a model learn how sentences, not just words, fit together? BERT reads two pieces of text, A and B, and
predicts whether B follows A. In about half of the training pairs, B is the text that follows A. In the
others, B comes from a different document. The loss of a pair is the cross-entropy:

$$\mathcal L = -\log \operatorname{softmax}(W p + b)_y$$

Here $p$ is BERT's vector for the pair; $y$ is the label (0: *next*, 1: *random*); $W$ and $b$ are learned.

Many later models drop the task. [RoBERTa](https://arxiv.org/abs/1907.11692) does no worse without it (section
4.2). The [ALBERT](https://arxiv.org/abs/1909.11942) paper argues that it's too easy: a change of topic gives
the answer away. But encoders that read two texts still use much the same layout, `[CLS] A [SEP] B [SEP]`.

This file needs only PyTorch, so you can copy it into your own project. In tensor shapes,
`B` is the number of pairs (not text B), `T` is the length of the longest pair, and `D` is the hidden size.
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
    """One pair, `[CLS] A [SEP] B [SEP]`, before padding."""

    input_ids: list[int]
    token_type_ids: list[int]
    """0 up to and including the first `[SEP]`, 1 after it."""
    next_sentence_label: int
    """0 if B follows A, 1 if B comes from a different document."""


@dataclass
class PairMaker:
    """
    ## Making pairs

    Collects a chunk of sentences from a document and cuts it in two after a random sentence. A is the first
    part. B is the rest of the chunk, or as much text from a different document as fits. Source:
    `create_instances_from_document` in [google-research/bert](https://github.com/google-research/bert)."""

    documents: Sequence[Document]
    cls_token_id: int
    sep_token_id: int
    max_length: int = 128
    """Maximum number of tokens in a pair, including the three special tokens."""
    short_seq_prob: float = 0.1
    """Probability that a document's pairs get a random target length instead of the maximum."""
    random_next_prob: float = 0.5
    lone_sentence_is_random: bool = True
    """
    If `True`, as in Google's code, a chunk can be a single sentence. That sentence becomes A and gets a
    random B, so the fraction of random pairs can exceed `random_next_prob`. If `False`, every chunk has at
    least two sentences, and a single sentence that's left over at the end of a document never becomes A.
    """

    def __post_init__(self) -> None:
        documents = [[s for s in document if len(s)] for document in self.documents]
        self.documents = [document for document in documents if document]
        # With only one document, a *random* B could be the text that really follows A.
        if (n := len(self.documents)) < 2:
            raise ValueError(f"PairMaker needs at least two documents, not {n}; split the text")

    def __call__(self, generator: random.Random) -> Iterator[SentencePair]:
        """Goes through all documents once, in order, and yields their pairs."""
        for index in range(len(self.documents)):
            yield from self.pairs_of(index, generator)

    def pairs_of(self, index: int, generator: random.Random) -> Iterator[SentencePair]:
        """
        ### One document

        Yields the pairs whose A comes from document `index`. After a random B, the next chunk starts with the
        sentences that B replaced.
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
            a_end = start + generator.randint(1, max(1, end - start - 1))
            a = [token for sentence in document[start:a_end] for token in sentence]
            if a_end == end or generator.random() < self.random_next_prob:
                b, label, start = self.elsewhere(index, target - len(a), generator), IS_RANDOM, a_end
            else:
                b, label, start = [t for s in document[a_end:end] for t in s], IS_NEXT, end
            yield self.assemble(a, b, label, generator)

    def target_length(self, generator: random.Random) -> int:
        """Draws a target length for A and B together. As in Google's code, a document's pairs share it."""
        most = self.max_length - 3
        return generator.randint(2, most) if generator.random() < self.short_seq_prob else most

    def elsewhere(self, index: int, length: int, generator: random.Random) -> list[int]:
        """
        Takes sentences from a different document, starting at a random sentence, until they have `length`
        tokens or the document ends.
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

        A and B consist of whole sentences, so a pair can be too long. Until it fits, we drop the first or the
        last token of the longer text. A coin flip decides which, so we don't always lose the last tokens.
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

    Pads all pairs to the length of the longest one and returns int64 tensors. `input_ids`, `attention_mask`
    (0 at padding) and `token_type_ids` are `(B, T)`, and `next_sentence_label` is `(B)`.
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

    A linear layer ($2D + 2$ parameters) maps the pooled vector $p$ to two logits. The pooler is in `bert.py`.
    """

    def __init__(self, hidden_size: int):
        super().__init__()
        self.seq_relationship = nn.Linear(hidden_size, 2)
        nn.init.trunc_normal_(self.seq_relationship.weight, std=0.02, a=-0.04, b=0.04)
        nn.init.zeros_(self.seq_relationship.bias)

    def forward(self, pooled_output: Tensor) -> Tensor:
        """Maps pooled vectors, `(B, D)`, to the logits of *next* and *random*, `(B, 2)`."""
        return self.seq_relationship(pooled_output)  # (B, 2)


def next_sentence_loss(logits: Tensor, labels: Tensor, num_pairs_in_batch: Tensor | None = None) -> Tensor:
    """
    ## The loss

    Returns the mean cross-entropy of the labeled pairs, in nats. `logits` is `(B, 2)`, and `labels` is `(B)`.
    As in `transformers`, -100 marks an unlabeled pair. For a micro-batch, pass the number of labeled pairs in
    the whole batch as `num_pairs_in_batch`, so that the micro-batch losses add up to the batch loss.
    Without `num_pairs_in_batch`, the loss of a batch with no labeled pair is 0, not NaN.
    """
    if num_pairs_in_batch is None:
        num_pairs_in_batch = (labels != -100).sum().clamp(min=1)
    return F.cross_entropy(logits.float(), labels, reduction="sum") / num_pairs_in_batch


def main() -> None:
    """
    ## Try it

    `python nsp.py` trains a toy model to tell *next* from *random*. Each document has its own five words, so
    A and a random B have no words in common. The model only has to compare the mean vectors of A and B.
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
