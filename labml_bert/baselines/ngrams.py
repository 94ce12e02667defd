r"""
# N-gram baselines

Is a loss of 3.1 good? You can only tell if you know what simpler methods reach on the same text. Three of
them only need counts, and each one shows something that a model may or may not have learned:

| baseline | what it knows |
|---|---|
| uniform | nothing: its loss is $\ln V$ |
| unigram | how often each token occurs |
| two-neighbor n-gram, a table of counts | which tokens occurred between the same two neighbors in training |

A masked language model whose loss stays near the unigram baseline has learned the frequencies, but it doesn't
use the neighbors yet. The n-gram model always sees both neighbors, but a masked language model may find them
masked too. So the n-gram model is harder to beat than it looks.

Letters for sizes: `N` tokens of training text, `M` tokens of held-out text to predict, `K` different keys,
`V` vocabulary.
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor


class Baseline(NamedTuple):
    """What a method reaches on held-out text."""

    name: str
    loss: float
    """Nats per token."""
    accuracy: float
    """The fraction of tokens for which the most probable prediction is right."""


class Counts:
    """Counts keys. A table of all triples would be mostly zeros, so this stores only the keys that occur."""

    def __init__(self, keys: Tensor):
        """`keys` is `(N,)`, int64."""
        self.keys, self.counts = keys.unique(return_counts=True)

    def __call__(self, keys: Tensor) -> Tensor:
        """Returns the count of each key as float64, or 0 if it doesn't occur. `keys` can have any shape."""
        index = torch.searchsorted(self.keys, keys).clamp(max=len(self.keys) - 1)
        return torch.where(self.keys[index] == keys, self.counts[index], 0).double()


def best_words(keys: Tensor, p: Tensor, vocab_size: int, contexts: Tensor, default: Tensor) -> Tensor:
    """
    Returns the word with the largest `p` in each of `contexts`, which is `(M,)`. The `keys`, `(K,)`, are
    `context * vocab_size + word`. For a context without keys, returns `default`.
    """
    by_p = p.argsort(stable=True)  # (K)
    # A stable sort keeps the order of `p` within each context, so the largest comes last.
    keys = keys[by_p[(keys[by_p] // vocab_size).argsort(stable=True)]]  # (K)
    last = torch.searchsorted(keys // vocab_size, contexts, right=True) - 1  # (M)
    key = keys[last.clamp(min=0)]  # (M)
    return torch.where(key // vocab_size == contexts, key % vocab_size, default)  # (M)


def ordinary_triples(name: str, ids: Tensor, special_ids: list[int]) -> tuple[Tensor, Tensor, Tensor]:
    """
    Returns the left neighbors, the tokens and the right neighbors of ordinary tokens that have both. Raises
    `ValueError` if there is no such token in the text called `name`.
    """
    ids = ids.long()  # The index of a triple can be too large for the type of the ids.
    is_ordinary = ~torch.isin(ids[1:-1], torch.tensor(special_ids, dtype=ids.dtype))
    if not is_ordinary.any():
        reason = "shorter than three tokens" if len(ids) < 3 else "almost nothing but special tokens"
        raise ValueError(f"the {name} text is {reason}; use more text, or text that the tokenizer knows")
    return ids[:-2][is_ordinary], ids[1:-1][is_ordinary], ids[2:][is_ordinary]


class NgramModel:
    r"""
    ## The two-neighbor n-gram model

    If a context is rare, the model backs off to the left neighbor alone, and then to the unigram frequencies.
    Witten-Bell smoothing decides how much, from the number $t$ of *different* tokens that occurred in a
    context:

    $$p(w \mid l, r) = \frac{n(l, w, r) + t(l, r)\, p(w \mid l)}{n(l, r) + t(l, r)}, \qquad
      p(w \mid l) = \frac{n(l, w) + t(l)\, p(w)}{n(l) + t(l)}$$

    where $n(l, r)$ is how often $l$ and $r$ occurred with one token between them. `train` is a
    one-dimensional tensor of ids. A special token can be a neighbor, but only ordinary tokens are predicted.

    Raises `ValueError` if the vocabulary is so large that the index of a triple doesn't fit into an int64.

    Source: [Chen and Goodman, 1996](https://arxiv.org/abs/cmp-lg/9606011), who compare smoothing methods.
    """

    def __init__(self, train: Tensor, vocab_size: int, special_ids: list[int]):
        V = self.vocab_size = vocab_size
        if V**3 > 2**63:
            raise ValueError(f"the vocabulary has {V:,} tokens; use at most {2**21:,}")
        left, word, right = ordinary_triples("training", train, special_ids)  # (N)
        n_w = torch.bincount(train.long(), minlength=V).double()
        n_w[special_ids] = 0
        self.p_w = (n_w + 1e-3) / (n_w + 1e-3).sum()
        self.pairs = Counts(left * V + word)
        self.triples = Counts((left * V + right) * V + word)
        self.n_l = torch.bincount(left, minlength=V).double()
        self.t_l = torch.bincount(self.pairs.keys // V, minlength=V).double()
        self.n_lr, self.t_lr = Counts(left * V + right), Counts(self.triples.keys // V)

    def backoff(self, left: Tensor, word: Tensor) -> Tensor:
        """Returns the probability of each `word` after its left neighbor alone. All are `(M,)`."""
        # For a context that never occurred, the formula is 0/0. With t = 1, it gives the lower-order
        # distribution.
        t = self.t_l[left].clamp(min=1)  # (M)
        return (self.pairs(left * self.vocab_size + word) + t * self.p_w[word]) / (self.n_l[left] + t)  # (M)

    def probabilities(self, left: Tensor, word: Tensor, right: Tensor) -> Tensor:
        """Returns the probability of each `word` between its neighbors. All are `(M,)`."""
        context = left * self.vocab_size + right  # (M)
        t = self.t_lr(context).clamp(min=1)  # (M)
        n = self.triples(context * self.vocab_size + word)  # (M)
        return (n + t * self.backoff(left, word)) / (self.n_lr(context) + t)  # (M)

    def predict(self, left: Tensor, right: Tensor) -> Tensor:
        """
        Returns the most probable token between these neighbors, `(M,)`. Backing off keeps the order of the
        tokens that never occurred in a context. So there are only three candidates: the best of the tokens
        that occurred between the neighbors, of those that occurred after `left`, and of all.
        """
        V = self.vocab_size
        default = self.p_w.argmax()
        pairs, triples = self.pairs.keys, self.triples.keys
        p_pairs = self.backoff(pairs // V, pairs % V)
        p_triples = self.probabilities(triples // V**2, triples % V, triples // V % V)
        candidates = [
            default.expand_as(left),
            best_words(pairs, p_pairs, V, left, default),
            best_words(triples, p_triples, V, left * V + right, default),
        ]
        p = torch.stack([self.probabilities(left, word, right) for word in candidates])  # (3, M)
        return torch.stack(candidates).gather(0, p.argmax(0, keepdim=True))[0]  # (M)


def ngram_baselines(train: Tensor, valid: Tensor, vocab_size: int, special_ids: list[int]) -> list[Baseline]:
    """
    ## Three baselines

    `train` and `valid` are one-dimensional token ids. The baselines are counted on `train` and evaluated on
    the tokens of `valid` that aren't special.

    Raises `ValueError` if one of the texts has no ordinary token with a neighbor on both sides.
    """
    model = NgramModel(train, vocab_size, special_ids)
    left, word, right = ordinary_triples("held-out", valid, special_ids)  # (M)
    p_w, p_both = model.p_w[word], model.probabilities(left, word, right)  # (M)
    is_most_frequent, is_predicted = word == model.p_w.argmax(), word == model.predict(left, right)  # (M)

    def baseline(name: str, p: Tensor, is_right: Tensor) -> Baseline:
        return Baseline(name, -p.log().mean().item(), is_right.double().mean().item())

    return [
        Baseline("uniform", math.log(vocab_size), 1 / vocab_size),
        baseline("unigram", p_w, is_most_frequent),
        baseline("two-neighbor n-gram", p_both, is_predicted),
    ]
