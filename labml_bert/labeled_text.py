r"""
# Labeled texts and scores for a classifier

What does every classifier need, whether it's a neural network or a word counter? It needs labeled examples, a
score for its predictions, and a way to choose hyperparameters without looking at the test set.
"""

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor


class Example(NamedTuple):
    """A labeled text, or a labeled pair of texts. `label` is an index into the names of the classes."""

    text: str
    label: int
    pair: str | None = None


class Score(NamedTuple):
    """How good the predictions are. A prediction is the class with the largest logit."""

    accuracy: float
    macro_f1: float
    """The mean F1 over the classes that occur in the labels. A rare class counts as much as a common one."""


def score(logits: Tensor, labels: Tensor) -> Score:
    r"""
    ## Accuracy and macro F1

    Scores `logits`, `(N, K)`, against `labels`, `(N)`. For a class with `tp` true positives, `fp` false
    positives and `fn` false negatives, $F_1 = 2\,tp / (2\,tp + fp + fn)$.

    Raises `ValueError` if there are no labels, if they don't fit the logits, or if a logit is NaN.
    """
    labels = check_shapes(logits, labels)
    predictions = logits.argmax(-1)  # (N)
    f1 = []
    for label in labels.unique():
        true_positives = ((predictions == label) & (labels == label)).sum()
        f1.append(2 * true_positives.double() / ((predictions == label).sum() + (labels == label).sum()))
    return Score((predictions == labels).double().mean().item(), torch.stack(f1).double().mean().item())


def check_shapes(logits: Tensor, labels: Tensor) -> Tensor:
    """
    Returns the labels as int64. Raises `ValueError` unless `logits` is `(N, K)`, without NaN, and `labels` is
    `(N)`, with at least one label, and each is the number of a class.
    """
    if logits.dim() != 2 or labels.shape != logits.shape[:1] or not len(labels):
        raise ValueError(
            f"logits are {tuple(logits.shape)} and labels are {tuple(labels.shape)}; "
            "they must be (N, K) and (N), and N must be at least 1"
        )
    if logits.isnan().any():
        raise ValueError("a logit is NaN, so it predicts nothing; try a lower learning rate")
    labels, K = labels.long(), logits.size(-1)
    if labels.min() < 0 or labels.max() >= K:
        raise ValueError(
            f"labels are from {labels.min()} to {labels.max()}; use only those from 0 to {K - 1}"
        )
    return labels


def confusion_matrix(logits: Tensor, labels: Tensor) -> Tensor:
    """
    ## Which classes are confused

    Returns the counts, `(K, K)`: the entry in row `i` and column `j` is the number of texts with label `i`
    whose prediction is `j`. The diagonal counts the correct predictions.

    Raises `ValueError` if there are no labels, if they don't fit the logits, or if a logit is NaN.
    """
    labels, K = check_shapes(logits, labels), logits.size(-1)
    return torch.bincount(labels * K + logits.argmax(-1), minlength=K * K).view(K, K)  # (K, K)


def choose_hyperparameter(
    candidates: Sequence[float],
    examples: Sequence[Example],
    train_and_predict: Callable[[float, list[Example], list[Example]], Tensor],
    seed: int = 0,
) -> float:
    """
    ## Choosing a hyperparameter without looking at the test set

    Sets aside a random fifth of the labeled texts for validation. `train_and_predict(candidate, train,
    validation)` must train a model on the rest and return its logits for the validation texts, `(N, K)`.
    Returns the candidate with the highest accuracy on these texts or, in a tie, with the lowest loss.

    Raises `ValueError` if there are fewer than five examples, or no candidates.
    """
    if not candidates:
        raise ValueError("there are no candidates; pass at least one")
    if len(examples) < 5:
        raise ValueError(f"{len(examples)} labeled texts cannot be split for validation; use at least 5")
    generator = torch.Generator().manual_seed(seed)
    order = torch.randperm(len(examples), generator=generator).tolist()
    size = len(examples) // 5
    validation, train = ([examples[i] for i in part] for part in (order[:size], order[size:]))
    labels = torch.tensor([example.label for example in validation], dtype=torch.long)  # (N)

    def rank_candidate(candidate: float) -> tuple[float, float]:
        return quality(train_and_predict(candidate, train, validation), labels)

    return max(candidates, key=rank_candidate)


def quality(logits: Tensor, labels: Tensor) -> tuple[float, float]:
    """
    Returns the accuracy and the negative loss. Comparing two such tuples chooses the better candidate: the
    higher accuracy wins, and in a tie, the lower loss. If the loss is NaN, returns the worst tuple.
    """
    loss = F.cross_entropy(logits.float(), labels.long()).item()
    if math.isnan(loss):
        return 0.0, -math.inf
    return score(logits, labels).accuracy, -loss


def split_by_label(
    examples: Sequence[Example], fraction: float, seed: int = 0
) -> tuple[list[Example], list[Example]]:
    """
    ## Holding examples out

    Splits the examples into two random parts, and shuffles each part. The second part has about `fraction` of
    the examples of each label, and each part has at least one. In a plain random split, a rare label could be
    missing from one of the parts.

    Raises `ValueError` if `fraction` isn't between 0 and 1, or if a label has only one example.
    """
    if not 0 < fraction < 1:
        raise ValueError(f"fraction is {fraction}; it must be between 0 and 1")
    generator = torch.Generator().manual_seed(seed)
    by_label: dict[int, list[Example]] = {}
    for i in torch.randperm(len(examples), generator=generator).tolist():
        by_label.setdefault(int(examples[i].label), []).append(examples[i])
    parts: tuple[list[Example], list[Example]] = ([], [])
    for label, group in by_label.items():
        if len(group) < 2:
            raise ValueError(f"label {label} has only one example; a split needs two")
        size = min(max(1, round(fraction * len(group))), len(group) - 1)
        parts[1].extend(group[:size])
        parts[0].extend(group[size:])
    for part in parts:
        order = torch.randperm(len(part), generator=generator).tolist()
        part[:] = [part[i] for i in order]
    return parts
