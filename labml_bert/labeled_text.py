r"""
# Labeled texts and scores for a classifier

What does any classifier need, whether it is a network or counts words? It needs labeled examples, a score for
its predictions, and a way to choose a hyperparameter without looking at the test set.
"""

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
    """The mean F1 over the classes among the labels. A rare class counts as much as a common one."""


def score(logits: Tensor, labels: Tensor) -> Score:
    r"""
    ## Accuracy and macro F1

    Scores `logits`, `(N, K)`, against `labels`, `(N)`. For a class with `tp` true positives, `fp` false
    positives and `fn` false negatives, $F_1 = 2\,tp / (2\,tp + fp + fn)$.
    """
    predictions = logits.argmax(-1)  # (N)
    f1 = []
    for label in labels.unique():
        true_positives = ((predictions == label) & (labels == label)).sum()
        f1.append(2 * true_positives / ((predictions == label).sum() + (labels == label).sum()))
    return Score((predictions == labels).double().mean().item(), torch.stack(f1).double().mean().item())


def choose_hyperparameter(
    candidates: Sequence[float],
    examples: Sequence[Example],
    train_and_predict: Callable[[float, list[Example], list[Example]], Tensor],
    seed: int = 0,
) -> float:
    """
    ## Choosing a hyperparameter without looking at the test set

    Sets a random fifth of the labeled texts aside for validation. `train_and_predict(candidate, train,
    validation)` trains a model on the rest and returns its logits for the validation texts, `(N, K)`.
    Returns the candidate with the highest accuracy; among equals, the one with the lowest loss.

    Raises `ValueError` if there are fewer than five examples.
    """
    if len(examples) < 5:
        raise ValueError(f"{len(examples)} labeled texts cannot be split for validation; use at least 5")
    generator = torch.Generator().manual_seed(seed)
    order = torch.randperm(len(examples), generator=generator).tolist()
    size = len(examples) // 5
    validation, train = ([examples[i] for i in part] for part in (order[:size], order[size:]))
    labels = torch.tensor([example.label for example in validation])  # (N)

    def quality(candidate: float) -> tuple[float, float]:
        logits = train_and_predict(candidate, train, validation)
        return score(logits, labels).accuracy, -F.cross_entropy(logits, labels).item()

    return max(candidates, key=quality)
