r"""
# Is the classifier any good?

An accuracy of 80% is good if you have twenty classes, and poor if 80% of the texts have the same label. So
this report compares the classifier with two baselines on the same texts. It also shows which labels the
classifier confuses.

Letters for sizes: `N` texts, `K` classes.
"""

from collections import Counter
from collections.abc import Sequence
from importlib.util import find_spec

import torch
import torch.nn.functional as F
from rich.cells import cell_len, set_cell_size
from rich.table import Table
from rich.text import Text
from torch import Tensor

from labml_bert.baselines.tfidf import tune
from labml_bert.labeled_text import Example, Score, confusion_matrix, score
from labml_bert.stdout import console, printable

# If two methods reach this accuracy, the test rows say little about which of them is better.
NEARLY_PERFECT = 0.99
# The name of the baseline that always predicts one label.
MOST_FREQUENT = "most frequent label"


def measure_scores(
    logits: Tensor, labels: Sequence[str], train: Sequence[Example], test: Sequence[Example]
) -> dict[str, Score | None]:
    """
    Returns the scores on `test` by name: those of the baselines, which learn from `train`, and of the
    predictions `logits`, `(N, K)`. `labels` are the names of the classes.
    """
    numbers = torch.tensor([example.label for example in test], dtype=torch.long)  # (N)
    return {**measure_baselines(train, test, len(labels)), "fine-tuned model": score(logits, numbers)}


def print_report(
    scores: dict[str, Score | None], logits: Tensor, labels: Sequence[str], test: Sequence[Example]
) -> None:
    """
    Prints the result of `measure_scores`, and then the confusion matrix of the predictions `logits`,
    `(N, K)`, for `test`. `labels` are the names of the classes.
    """
    table = Table(box=None, padding=(0, 2), header_style="dim")
    table.add_column("test rows", min_width=24)
    table.add_column("accuracy", justify="right")
    table.add_column("macro F1", justify="right")
    for name, result in scores.items():
        table.add_row(name, *(f"{value:.1%}" for value in result or ()))
    console.print()
    console.print(table)
    accuracies = {name: result.accuracy for name, result in scores.items() if result}
    best = max(accuracies, key=lambda name: accuracies[name])
    gap = round(100 * (accuracies[best] - accuracies["fine-tuned model"]))
    if gap > 0:
        remedy = "Pretrain the encoder longer or on text of this kind"
        if best != MOST_FREQUENT:
            remedy += ", or use the bag of words\n  (docs/pages/heads.md shows how)"
        console.print(
            f"\n  On these rows, the {best} is {gap} point{'s' * (gap > 1)} better than the model.\n"
            f"  {remedy}."
        )
    if len(accuracies) > 2 and sorted(accuracies.values())[-2] >= NEARLY_PERFECT:
        console.print(
            "\n  Two methods are nearly perfect. Perhaps some test rows are near-copies of\n"
            "  training rows: try a few texts that you write yourself."
        )
    console.print("\n  true labels in rows, predictions in columns:\n", style="dim")
    numbers = torch.tensor([example.label for example in test], dtype=torch.long)  # (N)
    for line in confusion_lines(confusion_matrix(logits, numbers), labels):
        console.print(f"  {line}")


def measure_baselines(train: Sequence[Example], test: Sequence[Example], K: int) -> dict[str, Score | None]:
    """
    ## What is there to beat?

    Returns the scores of two baselines by name. The first always predicts the label that is most frequent in
    `train`. The second is a [bag of words](baselines/tfidf.md), and its score is `None` if scikit-learn
    can't be imported, if there are fewer than five training texts, if they have no words, or if there isn't
    enough memory.

    Raises `ValueError` if there are no training texts, or no test texts.
    """
    if not train:
        raise ValueError("there are no training texts; pass a list with at least one")
    numbers = torch.tensor([example.label for example in test], dtype=torch.long)  # (N)
    most_frequent = Counter(int(example.label) for example in train).most_common(1)[0][0]
    constant = F.one_hot(torch.full_like(numbers, most_frequent), K).float()  # (N, K)
    scores: dict[str, Score | None] = {MOST_FREQUENT: score(constant, numbers)}
    if find_spec("sklearn") is None:
        return {**scores, "TF-IDF (pip install scikit-learn)": None}
    try:
        import sklearn.linear_model  # noqa: F401
    except Exception:  # An outdated NumPy, for example, raises a `ValueError`.
        return {**scores, "TF-IDF (scikit-learn is broken)": None}
    if len(train) < 5:
        return {**scores, "bag of words (needs five texts)": None}
    try:
        return {**scores, "bag of words (TF-IDF)": score(tune(train, K).predict(test), numbers)}
    except ValueError:
        return {**scores, "bag of words (no words found)": None}
    except MemoryError:
        return {**scores, "bag of words (out of memory)": None}


def confusion_lines(matrix: Tensor, labels: Sequence[str], width: int = 78) -> list[str]:
    """
    ## Which labels are confused?

    Returns the confusion matrix, `(K, K)`, as lines that fit in a terminal with `width` columns. The matrix
    has a row for each true label, and a numbered column for each predicted label. If the names of the labels
    don't fit beside the counts, a numbered list of the names comes first. If there are too many labels for a
    matrix, returns up to ten of the most frequent mistakes instead.
    """
    K, counts = len(labels), matrix.tolist()
    names = [printable(label) for label in labels]
    index_width = len(str(K))
    cell_width = max(len(str(matrix.max().item())), index_width) + 1
    room = width - K * cell_width - index_width
    if room < 0:
        mistakes = [(counts[i][j], i, j) for i in range(K) for j in range(K) if i != j and counts[i][j]]
        return [
            line
            for count, i, j in sorted(mistakes, key=lambda mistake: -mistake[0])[:10]
            for line in wrap(f"{count:5}  ", f"{names[i]} predicted as {names[j]}", width)
        ]
    lines = []
    name_width = max(map(cell_len, names)) + 1
    if name_width > room:
        for i, name in enumerate(names, 1):
            lines += wrap(f"{i:{index_width}} ", name, width)
        lines.append("")
        names, name_width = [""] * K, 0
    lines.append(" " * (index_width + name_width) + "".join(f"{i:{cell_width}}" for i in range(1, K + 1)))
    for i, (name, row) in enumerate(zip(names, counts, strict=True), 1):
        cells = "".join(f"{count or '.':>{cell_width}}" for count in row)
        lines.append(f"{i:{index_width}}{set_cell_size(' ' * bool(name) + name, name_width)}{cells}")
    return lines


def wrap(start: str, text: str, width: int) -> list[str]:
    """Wraps a text into lines of up to `width` columns. `start` begins the first. Spaces indent the rest."""
    parts = [part.plain.rstrip() for part in Text(text).wrap(console, width - len(start))]
    return [(" " * len(start) if i else start) + part for i, part in enumerate(parts)]
