"""The report on a classifier: its confusion matrix, and the baselines."""

import math
import sys

import pytest
import torch
from rich.cells import cell_len
from torch import Tensor

from labml_bert import classification_report
from labml_bert.classification_report import (
    confusion_lines,
    measure_baselines,
    measure_scores,
    print_report,
)
from labml_bert.labeled_text import Example, Score, choose_hyperparameter, confusion_matrix, quality, score


def report(logits: torch.Tensor, examples: list[Example]) -> dict[str, Score | None]:
    scores = measure_scores(logits, ["a", "b"], examples, examples)
    print_report(scores, logits, ["a", "b"], examples)
    return scores


def test_the_confusion_matrix_by_hand() -> None:
    logits = torch.nn.functional.one_hot(torch.tensor([0, 1, 1, 2, 0]), 3).float()
    matrix = confusion_matrix(logits, torch.tensor([0, 0, 1, 2, 2]))
    assert matrix.tolist() == [[1, 1, 0], [0, 1, 0], [1, 0, 1]]
    lines = confusion_lines(matrix, ["good", "bad\x1b[1m", "漢字" * 14])
    assert [line.split()[-3:] for line in lines] == [
        ["1", "2", "3"],
        ["1", "1", "."],
        [".", "1", "."],
        ["1", ".", "1"],
    ]
    assert lines[1].startswith("1 good ") and lines[2].startswith("2 bad?[1m ")
    assert lines[3].startswith("3 " + "漢字" * 14), "a name that fits isn't cut"


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8, torch.int16])
def test_labels_of_small_integers_are_counted_in_the_right_cells(dtype: torch.dtype) -> None:
    labels = torch.arange(100).repeat(2)
    logits = torch.eye(100)[labels].roll(1, 0)
    expected = confusion_matrix(logits, labels)
    assert torch.equal(confusion_matrix(logits, labels.to(dtype)), expected)
    assert quality(logits, labels.to(dtype)) == quality(logits, labels)


@pytest.mark.parametrize("K", [2, 9, 10, 19, 40, 150])
@pytest.mark.parametrize("largest", [0, 7, 12_345])
def test_the_confusion_matrix_fits_80_columns(K: int, largest: int) -> None:
    matrix = torch.full((K, K), min(largest, 3))
    matrix[1, 0] = largest
    names = [f"{'漢字' * 30}{i}" for i in range(K)]
    lines = confusion_lines(matrix, names)
    assert max(map(cell_len, lines), default=0) <= 78
    # Each name is there in full, in a numbered list above the matrix or in the most frequent mistake.
    text = "".join(line.strip() for line in lines)
    assert all(name in text for name in (names if "" in lines else names[:2] if largest else []))


@pytest.mark.parametrize("K", [4, 18, 25])
def test_labels_with_the_same_beginning_can_be_told_apart(K: int) -> None:
    """A matrix of many labels has no room for names beside its counts, so a list above it has the names."""
    names = [f"customer service, department {i} of our company in Geneva" for i in range(1, K + 1)]
    lines = confusion_lines(3 * torch.eye(K).long(), names)
    matrix = lines[-K:]
    if K == 4:
        assert [line.split(maxsplit=1)[1][: len(names[0])] for line in matrix] == names
    else:
        assert [line.split(maxsplit=1) for line in lines[:K]] == [
            [str(i + 1), n] for i, n in enumerate(names)
        ]
        assert lines[K] == "" and [line.split()[0] for line in matrix] == [str(i + 1) for i in range(K)]


def test_a_baseline_that_wins_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    examples = [Example(f"text {'no' if i % 2 else 'yes'}", i % 2) for i in range(40)]
    labels = torch.tensor([example.label for example in examples])
    right, wrong = (torch.nn.functional.one_hot(x, 2).float() for x in (labels, torch.zeros_like(labels)))
    scores = report(wrong, examples)
    out = capsys.readouterr().out
    assert "the bag of words (TF-IDF) is 50 points better than the model." in out
    assert "docs/pages/heads.md shows how" in out
    model = scores["fine-tuned model"]
    assert model is not None and model.accuracy == 0.5
    report(right, examples)
    assert "better than" not in capsys.readouterr().out
    many = examples * 3
    logits = torch.cat([right, right, right])
    logits[0] = logits[0].flip(0)
    report(logits, many)
    assert "is 1 point better than the model." in capsys.readouterr().out


def test_the_most_frequent_label_is_no_advice(capsys: pytest.CaptureFixture[str]) -> None:
    """If always predicting one label beats the model, the report suggests only more pretraining."""
    examples = [Example(".", int(i % 4 == 0)) for i in range(40)]
    report(torch.tensor([[0.0, 1.0]]).expand(len(examples), 2), examples)
    out = capsys.readouterr().out
    assert "the most frequent label is 50 points better than the model." in out
    assert "Pretrain the encoder longer or on text of this kind.\n" in out


def test_test_rows_that_are_too_easy_are_mentioned(capsys: pytest.CaptureFixture[str]) -> None:
    """If two methods are nearly perfect, the test rows can't tell which one is better."""
    examples = [Example(f"text {'no' if i % 2 else 'yes'}", i % 2) for i in range(40)]
    labels = torch.tensor([example.label for example in examples])
    logits = torch.nn.functional.one_hot(labels, 2).float()
    report(logits, examples)
    assert "Two methods are nearly perfect." in capsys.readouterr().out
    report(logits.flip(1), examples)
    assert "nearly perfect" not in capsys.readouterr().out


def test_the_baselines_are_scored_on_the_test_rows() -> None:
    examples = [Example(f"text {i} {'no' if i % 3 else 'yes'}", int(i % 3 > 0)) for i in range(60)]
    scores = measure_baselines(examples[:40], examples[40:], 2)
    constant, words = scores["most frequent label"], scores["bag of words (TF-IDF)"]
    assert constant is not None and words is not None
    assert constant.accuracy == sum(example.label for example in examples[40:]) / 20
    assert words.accuracy == 1
    emoji = [Example("😀" * (i + 1), i % 2) for i in range(30)]
    assert measure_baselines(emoji, emoji, 2)["bag of words (no words found)"] is None
    assert measure_baselines(examples[:4], examples, 2)["bag of words (needs five texts)"] is None
    with pytest.raises(ValueError, match="there are no training texts"):
        measure_baselines([], examples, 2)


def test_a_baseline_that_fails_has_no_score(monkeypatch: pytest.MonkeyPatch) -> None:
    """The trained model must not be lost."""
    examples = [Example(f"text {i}", i % 2) for i in range(10)]

    def fail(*_: object) -> None:
        raise MemoryError

    monkeypatch.setattr(classification_report, "tune", fail)
    assert measure_baselines(examples, examples, 2)["bag of words (out of memory)"] is None
    # With this entry, an import fails.
    monkeypatch.setitem(sys.modules, "sklearn.linear_model", None)
    assert measure_baselines(examples, examples, 2)["TF-IDF (scikit-learn is broken)"] is None


def test_a_model_that_predicts_nan_is_never_chosen() -> None:
    examples = [Example(str(i), 0) for i in range(20)]

    def train_and_predict(learning_rate: float, train: list[Example], validation: list[Example]) -> Tensor:
        logits = torch.full((len(validation), 2), math.nan if learning_rate > 1 else 0.0)
        return logits - torch.tensor([1.0, 0.0])

    for candidates in ([10.0, 0.1], [0.1, 10.0]):
        assert choose_hyperparameter(candidates, examples, train_and_predict) == 0.1
    assert quality(torch.tensor([[math.inf, 0.0]]), torch.tensor([0])) == (0.0, -math.inf)
    for measure in (score, confusion_matrix):
        with pytest.raises(ValueError, match="a logit is NaN"):
            measure(torch.full((3, 2), math.nan), torch.zeros(3).long())
        for label in (-100, 2):
            with pytest.raises(ValueError, match="use only those from 0 to 1"):
                measure(torch.zeros(3, 2), torch.tensor([0, label, 1]))
