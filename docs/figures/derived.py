"""
# Derived numbers

Numbers that the chapters quote and no record holds directly: parameter counts of models that people compare,
the time to draw a batch beside the time of a training step, and the accuracy of one method minus that of
another.
"""

import statistics
from functools import cache
from types import SimpleNamespace
from typing import Any

import torch
from markupsafe import Markup

from docs.figures.claims import Claim
from docs.figures.records import Record
from docs.literate.chart import Line, line_chart
from docs.literate.prose import cell, wide
from docs.literate.rows import PageError
from experiments.claims.decision import difference
from experiments.claims.results import TUNING_SEED
from labml_bert.bert import BertConfig
from labml_bert.models import BertForPreTraining

MODELS: dict[str, dict[str, int]] = {
    "base": {},
    "large": {
        "hidden_size": 1024,
        "num_hidden_layers": 24,
        "num_attention_heads": 16,
        "intermediate_size": 4096,
    },
    # The model of the forum thread that the chapter on the decoder answers, and the Chinese BERT base.
    "thread": {"vocab_size": 20_000, "num_hidden_layers": 6},
    "chinese": {"vocab_size": 21_128},
}
TOTALS = {
    "both heads": ["bert", "cls"],
    "masked LM": ["embeddings", "encoder", "predictions"],
    "masked LM, pooler": ["embeddings", "encoder", "predictions", "pooler"],
    # An untied head would have a matrix as large as the table of token embeddings.
    "masked LM, untied": ["embeddings", "encoder", "predictions", "word_embeddings"],
    "feed-forward": ["layer.0.intermediate", "layer.0.output"],
}


@cache
def parameter_counts(model: str) -> dict[str, int]:
    """The size of each parameter of a model with both heads. Raises `PageError` for an unknown model."""
    if model not in MODELS:
        raise PageError(f"no model {model!r}; known are {', '.join(MODELS)}")
    # Tensors on this device have a shape and no memory.
    with torch.device("meta"):
        bert = BertForPreTraining(BertConfig(**MODELS[model]))
    return {name: parameter.numel() for name, parameter in bert.named_parameters()}


def count(model: str, part: str) -> int:
    """
    The parameters of one part of a model, by the names in its path or by an entry of `TOTALS`:
    `count("base", "layer.0.attention")`, `count("base", "masked LM")`. A tied matrix counts once.

    Raises `PageError` if the model has no such part.
    """
    counts = parameter_counts(model)
    numbers = [
        number
        for one in TOTALS.get(part, [part])
        for name, number in counts.items()
        if f".{one}." in f".{name}."
    ]
    if not numbers:
        raise PageError(f"the model {model!r} has no part {part!r}")
    return sum(numbers)


def fraction_of(model: str, part: str, whole: str = "both heads") -> float:
    """The parameters of a part over those of another, by default of the model with both heads."""
    return count(model, part) / count(model, whole)


def batch_time(record: Record, pipeline: str) -> SimpleNamespace:
    """
    The time to draw one batch from the largest text in a record of costs, in `milliseconds`; the time of a
    training step with as many sequences and tokens, in `step_milliseconds`; and the ratio of the two.
    """
    rows = [row for row in record.data["feeding"] if row["pipeline"] == pipeline]
    if not rows:
        raise PageError(f"the run {record.name} has no pipeline {pipeline!r}")
    seconds = max(rows, key=lambda row: row["tokens"])["batch_seconds"]
    length = record.data["configuration"]["base"]["T"]
    points = next(one["points"] for one in record.data["growth"] if one["letter"] == "T")
    step = next(point["seconds"]["median"] for point in points if point["size"] == length)
    return SimpleNamespace(milliseconds=1e3 * seconds, step_milliseconds=1e3 * step, ratio=seconds / step)


def pair_test(record: Record) -> SimpleNamespace:
    """
    Next sentence prediction on held-out pairs: the model's `accuracy`, the `baseline` that always chooses the
    more frequent class, the number of `pairs`, and the distance of the two accuracies in `standard_errors`.
    """
    result = record.data["result"]
    accuracy, baseline = result["next_sentence_accuracy"], result["next_sentence_chance"]
    return SimpleNamespace(
        accuracy=accuracy,
        baseline=baseline,
        pairs=round(result["pairs"]),
        standard_errors=(accuracy - baseline) / result["next_sentence_standard_error"],
    )


def accuracies(record: Record, task: str, labels: int, arm: str) -> list[float]:
    """
    The accuracy of a method with so many labels, or the metric of its task, for each seed.

    Raises `PageError` if there is none.
    """
    rows = rows_of(record, task, labels, arm)
    return [row["accuracy"] if "accuracy" in row else row["score"] for row in rows]


def rows_of(record: Record, task: str, labels: int, arm: str) -> list[dict[str, Any]]:
    """The rows of a method with so many labels, one for each seed. Raises `PageError` if there is none."""
    rows = [
        row for row in record.data["table"] if (row["task"], row["labels"], row["arm"]) == (task, labels, arm)
    ]
    if not rows:
        raise PageError(f"the run {record.name} has no {arm!r} with {labels} labels of {task!r}")
    return rows


def with_std(record: Record, task: str, labels: int, arm: str) -> str:
    """Mean and standard deviation of an accuracy over the seeds: `47.8% ± 2.7`."""
    values = accuracies(record, task, labels, arm)
    return f"{statistics.mean(values):.1%} ± {100 * statistics.stdev(values):.1f}"


def gain(record: Record, task: str, labels: int, over: str, arm: str = "pretrained") -> str:
    """The mean accuracy of a method minus that of another, in percentage points, with its 95% interval."""
    interval = difference(accuracies(record, task, labels, arm), accuracies(record, task, labels, over))
    middle, low, high = (f"{100 * value:.1f}".replace("-", "−") for value in interval)
    return f"{middle} points (95% CI {low} to\N{NO-BREAK SPACE}{high})"


def parameters_table(record: Record, task: str) -> str:
    """The methods of `finetune_parameters.py` on one task, as Markdown, by the number of labels."""
    rows = [row for row in record.data["table"] if row["task"] == task]
    counts = sorted({row["labels"] for row in rows})
    table = f"| method | {' | '.join(f'{n:,} docstrings' for n in counts)} |\n|---|{'---:|' * len(counts)}\n"
    for arm in dict.fromkeys(row["arm"] for row in rows):
        table += f"| {cell(arm)} | {' | '.join(with_std(record, task, n, arm) for n in counts)} |\n"
    return wide(table)


def seconds_per_run(record: Record, task: str, labels: int, arm: str) -> float:
    """The mean seconds of training and testing, without the search for the hyperparameter."""
    return statistics.mean(row["seconds"] for row in rows_of(record, task, labels, arm))


def accuracy_chart(record: Record, task: str) -> Markup:
    """The mean accuracy of each method over the number of labels, and that of always choosing one class."""
    rows = [row for row in record.data["table"] if row["task"] == task]
    labels = sorted({row["labels"] for row in rows})
    lines = [
        Line(arm, [(float(n), 100 * statistics.mean(accuracies(record, task, n, arm))) for n in labels])
        for arm in dict.fromkeys(row["arm"] for row in rows)
    ]
    seeds = len({row["seed"] for row in rows})
    title = f"Accuracy on held-out texts (percent) by number of labeled texts; mean of {seeds} seeds"
    levels = [("always the largest class", 100 * record.data["tasks"][task]["chance"])]
    return line_chart(lines, title, "labeled texts", "accuracy, percent", levels)


def search_loss(claim: Claim, arm: str, learning_rate: float) -> float:
    """The held-out loss of a variant at one learning rate of its search, which has a seed of its own."""
    table: list[dict[str, Any]] = claim.record.data["table"] if claim.record else []
    for row in table:
        is_search = row["seed"] == TUNING_SEED
        if is_search and (row["arm"], row["point"].get("learning_rate")) == (arm, learning_rate):
            return float(row["result"]["loss"])
    raise PageError(f"the search of {claim.entry['name']!r} has no {arm!r} at {learning_rate}")


def retrieval_value(record: Record, method: str, field: str) -> float:
    """
    The mean over the seeds of one column of `retrieval.py`: `mrr`, `recall` or `mean_cosine`.

    Raises `PageError` if the record has no such method.
    """
    methods = record.data["result"]["retrieval"]
    if method not in methods:
        raise PageError(f"the run {record.name} has no {method!r}; it has {', '.join(methods)}")
    return statistics.mean(methods[method][field])


def retrieval_gain(record: Record, over: str) -> str:
    """The MRR of SimCSE minus that of another method, with its 95% interval over the queries."""
    gap = record.data["result"]["simcse_minus"][over]
    mean, low, high = (f"{gap[key]:+.3f}".replace("-", "−") for key in ("mean", "low", "high"))
    return f"{mean} (95% CI {low} to\N{NO-BREAK SPACE}{high})"


def retrieval_table(record: Record) -> str:
    """The methods of `retrieval.py` and how well each finds the summaries, as Markdown."""
    table = "| method | MRR | recall at 10 | mean cosine |\n|---|---:|---:|---:|\n"
    for method, columns in record.data["result"]["retrieval"].items():
        mrr, recall = columns["mrr"], columns["recall"]
        cells = [f"{statistics.mean(mrr):.3f}", f"{statistics.mean(recall):.1%}"]
        if len(mrr) > 1:
            cells = [
                f"{cells[0]} ± {statistics.stdev(mrr):.3f}",
                f"{cells[1]} ± {statistics.stdev(recall):.1%}",
            ]
        cosine = statistics.mean(columns["mean_cosine"])
        table += f"| {cell(method)} | {' | '.join(cells)} | {cosine:.2f} |\n"
    return wide(table)


def wins_table(record: Record) -> str:
    """How often the original beats its scrambles, from a record of `acceptability.py`, as Markdown."""
    wins = record.data["result"]["wins"]
    scorers = list(next(iter(wins.values())))
    table = f"| scramble | {' | '.join(scorers)} |\n|---|{'---:|' * len(scorers)}\n"
    for scramble, row in wins.items():
        cells = [f"{w['fraction']:.1%} [{w['low']:.1%}, {w['high']:.1%}]" for w in row.values()]
        table += f"| {cell(scramble)} | {' | '.join(cells)} |\n"
    return wide(table)
