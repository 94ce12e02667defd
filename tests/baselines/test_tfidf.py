"""The bag-of-words baseline against slow, straightforward implementations."""

import math
import random
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from labml_bert.baselines import tfidf
from labml_bert.baselines.tfidf import PENALTIES, BagOfWords, check_scikit_learn_is_here, tune, words
from labml_bert.classification_report import measure_baselines
from labml_bert.labeled_text import Example, score, split_by_label
from tests.support.runs import small_text

TEXTS = ["the cat sat, the cat ran", "a dog ran", "The dog_2 sat", "a cat", "ran ran ran a"]
EXAMPLES = [Example(text, label) for text, label in zip(TEXTS, [0, 1, 2, 0, 1], strict=True)]


def slow_features(training_texts: list[str], texts: list[str]) -> torch.Tensor:
    """TF-IDF with a loop over every word of every text."""
    split = [re.findall(r"\w+", text.lower()) for text in training_texts]
    vocabulary = sorted({word for row in split for word in row})
    rows = []
    for text in texts:
        row = []
        for word in vocabulary:
            tf = sum(w == word for w in re.findall(r"\w+", text.lower()))
            df = sum(word in other for other in split)
            row.append(
                (1 + math.log(tf)) * (1 + math.log((1 + len(training_texts)) / (1 + df))) if tf else 0.0
            )
        norm = math.sqrt(sum(v * v for v in row))
        rows.append([v / norm if norm else 0.0 for v in row])
    return torch.tensor(rows, dtype=torch.float64)


@pytest.mark.slow("3,000 steps of gradient descent")
@pytest.mark.parametrize("classes", [2, 3])
@pytest.mark.parametrize("penalty", [1e-2, 1e-1])
def test_predictions_match_plain_gradient_descent(penalty: float, classes: int) -> None:
    """The formulas of the page as plain loops. (scikit-learn uses a different formula for two classes.)"""
    examples = [Example(example.text, example.label % classes) for example in EXAMPLES]
    model = BagOfWords(examples, classes, penalty)
    x = slow_features(TEXTS, TEXTS)
    labels = torch.tensor([example.label for example in examples])
    weight = torch.zeros(x.shape[1], classes, dtype=torch.float64)
    bias = torch.zeros(classes, dtype=torch.float64)
    for _ in range(3_000):
        error = (x @ weight + bias).softmax(-1) - torch.nn.functional.one_hot(labels, classes)
        weight -= 1.0 * (x.T @ error / len(x) + penalty * weight)
        bias -= 1.0 * error.mean(0)
    new = ["the the dog", "unknown words", "", "cat"]
    expected = (slow_features(TEXTS, new) @ weight + bias).log_softmax(-1)
    predictions = model.predict([Example(text, 0) for text in new])
    assert (predictions - expected).abs().max() < 5e-3 * expected.abs().max()
    assert torch.allclose(predictions[1], predictions[2]), "unknown words don't change the prediction"


@pytest.mark.parametrize("present", [[0], [3], [1, 4], [0, 2, 4]])
def test_a_class_without_training_examples_is_never_predicted(present: list[int]) -> None:
    examples = [Example(f"word{label} and", label) for label in present * 3]
    predictions = BagOfWords(examples, 5, 1e-3).predict([*examples, Example("never seen", 0)])
    assert predictions.shape == (len(examples) + 1, 5) and predictions.isfinite().all()
    assert (predictions[:, [label for label in range(5) if label not in present]] < -27).all()
    assert predictions[:-1].argmax(-1).tolist() == [example.label for example in examples]
    torch.testing.assert_close(predictions.exp().sum(-1), torch.ones(len(predictions)))


def test_the_error_names_a_missing_scikit_learn(monkeypatch: pytest.MonkeyPatch) -> None:
    check_scikit_learn_is_here()
    monkeypatch.setattr(tfidf, "find_spec", lambda name: None)
    with pytest.raises(ValueError, match="pip install scikit-learn"):
        check_scikit_learn_is_here()


def test_words_of_single_texts_and_pairs() -> None:
    assert words(Example("A b_1 (a)", 0)) == ["a", "b_1", "a"]
    pair = words(Example("the cat the", 0, "cat the dog"))
    assert sorted(pair) == sorted(
        ["1 the", "1 cat", "1 the", "2 cat", "2 the", "2 dog", "both cat", "both the"]
    )


def test_words_in_other_scripts() -> None:
    assert words(Example("কুকুর কাকার", 0)) == ["কুকুর", "কাকার"]
    assert words(Example("Cafe\u0301 noir, x\u0301", 0)) == ["cafe\u0301", "noir", "x\u0301"]
    assert words(Example("很好 OK!", 0)) == ["很", "好", "ok"]
    assert words(Example("^-]\u0301\\", 0)) == ["\u0301"]
    assert words(Example("İstanbul", 0)) == ["i\u0307stanbul"]


def test_it_learns_words_but_not_their_order() -> None:
    r = random.Random(0)
    noise = small_text(50).split()
    topic = [Example(" ".join([*r.choices(noise, k=5), f"word{i % 4}"]), i % 4) for i in range(200)]
    labels = torch.tensor([example.label for example in topic])
    assert score(tune(topic[:100], 4).predict(topic[100:]), labels[100:]).accuracy == 1
    order = [Example("yes no" if i % 2 else "no yes", i % 2) for i in range(100)]
    logits = tune(order, 2).predict(order)
    assert (logits[0] - logits[1]).abs().max() < 1e-5


def test_it_learns_whether_two_texts_share_a_word() -> None:
    r = random.Random(1)
    nouns = [f"noun{i}" for i in range(12)]
    pairs = []
    for i in range(600):
        a, b = r.sample(nouns, 2)
        pairs.append(Example(f"the {a}", i % 2, f"a {a if i % 2 else b}"))
    labels = torch.tensor([example.label for example in pairs])
    assert score(tune(pairs[:400], 2).predict(pairs[400:]), labels[400:]).accuracy > 0.95


def test_a_larger_penalty_gives_smaller_weights() -> None:
    """With random labels, the weights shrink as the penalty grows."""
    r = random.Random(0)
    random_labels = [
        Example(" ".join(r.choices([f"w{i}" for i in range(300)], k=8)), i % 2) for i in range(60)
    ]
    weights = [abs(BagOfWords(random_labels, 2, penalty).pipeline[-1].coef_).sum() for penalty in PENALTIES]
    assert weights == sorted(weights, reverse=True) and weights[-1] < weights[0] / 2


@pytest.mark.parametrize("kind", [bool, np.uint8, np.int8, np.int32, torch.tensor])
def test_labels_can_be_integers_of_other_libraries(kind: Callable[[int], Any]) -> None:
    texts = [f"good film {i}" if i % 2 else f"bad plot {i}" for i in range(20)]
    examples = [Example(text, i % 2) for i, text in enumerate(texts)]
    others = [Example(text, kind(i % 2)) for i, text in enumerate(texts)]
    expected = tune(examples, 2).predict(examples)
    assert torch.equal(tune(others, 2).predict(others), expected)
    assert measure_baselines(others[1:], others, 2) == measure_baselines(examples[1:], examples, 2)
    assert [len(part) for part in split_by_label(others, 0.2)] == [16, 4]
