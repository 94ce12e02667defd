r"""
# What a bag of words knows

Does a classifier need to read at all? For many tasks it is enough to know which words occur. A linear
model on counts of words knows nothing of order or of meaning, and is often hard to beat with few labels.
So it is the bar for `finetuning.py`, and it is given a fair chance: its one number is tuned as the
network's is.

A word counts the less, the more texts it occurs in, and the more slowly, the more often it is repeated
(`tf` times in a text, in `df` of `N` texts):

$$x_w = (1 + \ln tf_w) \left(1 + \ln \frac{1 + N}{1 + df_w}\right), \qquad x \leftarrow x / \lVert x \rVert$$

This is TF-IDF. On top is a multinomial logistic regression, whose weights are kept small:

$$
\min_{W, b} \; -\frac1N \sum_i \log \operatorname{softmax}(W x_i + b)_{y_i}
  + \frac{\lambda}{2} \lVert W \rVert^2
$$

Letters for sizes: `N` texts, `W` words, `K` classes.
"""

import math
import re
from collections import Counter
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from labml_bert.finetuning import Example, choose_hyperparameter

PENALTIES = (1e-6, 1e-5, 1e-4, 1e-3)


def words(example: Example) -> list[str]:
    """
    ## The words

    Runs of letters, digits and underscores, in lower case. Of two texts the words of each are marked,
    and those that both have are counted a third time: what two bags share is the only thing that they
    say of each other.
    """
    first = re.findall(r"\w+", example.text.lower())
    if example.pair is None:
        return first
    second = re.findall(r"\w+", example.pair.lower())
    both = Counter(first) & Counter(second)
    return [f"1 {w}" for w in first] + [f"2 {w}" for w in second] + [f"both {w}" for w in both.elements()]


class BagOfWords:
    """
    ## The whole method

    Fitted to `examples` when it is made. `classes` is their number, `penalty` the $\\lambda$ above.
    Words that no example had are passed over in others.
    """

    def __init__(self, examples: Sequence[Example], classes: int, penalty: float):
        counts = [Counter(words(example)) for example in examples]
        seen = Counter(word for count in counts for word in count)
        self.columns = {word: i for i, word in enumerate(sorted(seen))}
        self.idf = {word: 1 + math.log((1 + len(examples)) / (1 + df)) for word, df in seen.items()}
        # Twice the precision, for an optimum that does not depend on the order of a sum.
        self.weight = torch.zeros(
            len(self.columns), classes, dtype=torch.float64, requires_grad=True
        )  # (W, K)
        self.bias = torch.zeros(classes, dtype=torch.float64, requires_grad=True)  # (K)
        labels = torch.tensor([example.label for example in examples])  # (N)
        x = self.features(counts)  # (N, W)
        # The problem is convex: a method that looks at all texts at each step and needs no rate.
        optimizer = torch.optim.LBFGS(
            [self.weight, self.bias],
            max_iter=100,
            tolerance_grad=1e-5,
            history_size=10,
            line_search_fn="strong_wolfe",
        )

        def closure() -> Tensor:
            optimizer.zero_grad()
            loss = F.cross_entropy(x @ self.weight + self.bias, labels)
            loss = loss + penalty / 2 * self.weight.square().sum()
            loss.backward()
            return loss

        optimizer.step(closure)

    def features(self, counts: Sequence[Counter[str]]) -> Tensor:
        """The rows $x$ of texts with these counts of words, `(N, W)`; sparse, as nearly all is 0."""
        rows, columns, values = [], [], []
        for row, count in enumerate(counts):
            found = {w: (1 + math.log(tf)) * self.idf[w] for w, tf in count.items() if w in self.columns}
            norm = math.hypot(*found.values())
            for word, value in found.items():
                rows.append(row)
                columns.append(self.columns[word])
                values.append(value / norm)
        size = (len(counts), len(self.columns))
        indices = torch.tensor([rows, columns], dtype=torch.int64).reshape(2, -1)
        return torch.sparse_coo_tensor(
            indices, values, size, dtype=torch.float64, check_invariants=True
        ).coalesce()  # (N, W)

    @torch.no_grad()
    def predict(self, examples: Sequence[Example]) -> Tensor:
        """The scores of each example, `(N, K)`."""
        x = self.features([Counter(words(example)) for example in examples])  # (N, W)
        return (x @ self.weight + self.bias).float()  # (N, K)


def tuned(examples: Sequence[Example], classes: int, seed: int = 0) -> BagOfWords:
    """A bag of words whose penalty was chosen on a fifth of the examples, then fitted to all of them."""

    def attempt(penalty: float, rest: list[Example], fifth: list[Example]) -> Tensor:
        return BagOfWords(rest, classes, penalty).predict(fifth)

    return BagOfWords(examples, classes, choose_hyperparameter(PENALTIES, examples, attempt, seed))
