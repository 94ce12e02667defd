r"""
# What needs no learning

Is a loss of 3.1 good? Nobody can say without knowing what less clever methods reach on the same text.
Three of them need only counting, and each names a thing that a model has or has not learned:

| method | what it knows |
|---|---|
| all tokens equally likely | nothing: $\ln V$ |
| frequencies | how often each token occurs: the unigram entropy |
| two-neighbour table | what stood between the same two neighbours in the training text |

A masked model that stays at the second line is on the plateau: it has learned the frequencies and
does not yet look at its neighbours. The tables see clean neighbours, a masked model sometimes does
not, so the third line is harder to pass than it looks.

Letters for sizes: `N` tokens of training text, `M` of held-out text, `K` different keys that were
counted.
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
    """The share of tokens for which its first guess is right."""


class Counts:
    """How often each key occurs. A table of all triples would be mostly zeros, so only seen keys are kept."""

    def __init__(self, keys: Tensor):
        """`keys` is `(N,)`, int64."""
        self.keys, self.counts = keys.unique(return_counts=True)

    def __call__(self, keys: Tensor) -> Tensor:
        """The count of each key as float64, 0 for one that was not seen; any shape."""
        place = torch.searchsorted(self.keys, keys).clamp(max=len(self.keys) - 1)
        return torch.where(self.keys[place] == keys, self.counts[place], 0).double()

    def most_frequent(self, context: Tensor, keys: Tensor, default: Tensor) -> Tensor:
        """
        For each of `keys` the index of its most frequent entry, where `context` `(K,)` says to which of
        them each counted key belongs; `default` for one that has none.
        """
        by_count = self.counts.argsort(stable=True)  # (K)
        # A stable sort by context keeps the counts growing inside each, so the last is the largest.
        order = by_count[context[by_count].argsort(stable=True)]  # (K)
        ordered = context[order]  # (K)
        last = torch.searchsorted(ordered, keys, right=True) - 1
        last = last.clamp(min=0)
        return torch.where(ordered[last] == keys, order[last], default)


def ngram_baselines(train: Tensor, valid: Tensor, vocab_size: int, special_ids: list[int]) -> list[Baseline]:
    r"""
    ## Three floors

    `train` and `valid` are one-dimensional token ids. Tables are counted on `train` and judged on the
    tokens of `valid`, special ones excepted. The two-neighbour table leans on the left neighbour where
    it has seen little, and that one on the frequencies. Witten and Bell's rule says how much: by the
    number of *different* tokens $t$ that were seen in a context,

    $$p(w \mid l, r) = \frac{n(l, w, r) + t(l, r)\, p(w \mid l)}{n(l, r) + t(l, r)}, \qquad
      p(w \mid l) = \frac{n(l, w) + t(l)\, p(w)}{n(l) + t(l)}$$

    with $n(l, r)$ the number of times that anything stood between the two.

    Source: [Chen and Goodman, 1996](https://arxiv.org/abs/cmp-lg/9606011), who compare such rules.

    Raises `ValueError` where `valid` has no token with a neighbour on both sides.
    """
    V = vocab_size
    left, word, right = train[:-2], train[1:-1], train[2:]  # (N)
    n_w = torch.bincount(train, minlength=V).double()
    n_w[special_ids] = 0
    p_w = (n_w + 1e-3) / (n_w + 1e-3).sum()
    pairs = Counts(left * V + word)
    triples = Counts((left * V + right) * V + word)
    n_l = torch.bincount(left, minlength=V).double()
    t_l = torch.bincount(pairs.keys // V, minlength=V).double()
    n_lr, t_lr = Counts(left * V + right), Counts(triples.keys // V)

    ordinary = torch.ones(V, dtype=torch.bool)
    ordinary[special_ids] = False
    at = ordinary[valid[1:-1]]
    left, word, right = valid[:-2][at], valid[1:-1][at], valid[2:][at]  # (M)
    if len(word) == 0:
        raise ValueError("the held-out text is shorter than three tokens; give more text")
    # Before any token a context was seen nowhere: 0/0. One imagined sighting leaves the rule as it is.
    t = t_l[left].clamp(min=1)  # (M)
    p_left = (pairs(left * V + word) + t * p_w[word]) / (n_l[left] + t)  # (M)
    context = left * V + right  # (M)
    t = t_lr(context).clamp(min=1)  # (M)
    p_both = (triples(context * V + word) + t * p_left) / (n_lr(context) + t)  # (M)

    frequent = p_w.argmax()
    # Where the two neighbours were never seen around anything, the most frequent token is the guess.
    best = triples.most_frequent(triples.keys // V, context, torch.tensor(-1))  # (M)
    guess = torch.where(best >= 0, triples.keys[best] % V, frequent)  # (M)
    return [
        Baseline("all tokens equally likely", math.log(V), 1 / V),
        Baseline("frequencies", -p_w[word].log().mean().item(), (word == frequent).double().mean().item()),
        Baseline("two-neighbour table", -p_both.log().mean().item(), (word == guess).double().mean().item()),
    ]
