"""The table that compares a run with its baselines."""

import math

import pytest

from docs.figures.baselines import baseline_table, perplexity
from docs.figures.records import Record
from docs.literate.rows import PageError

RECORD = Record(
    "small",
    {
        "baselines": [
            {"name": "uniform", "loss": math.log(50), "accuracy": 0.02},
            {"name": "another", "loss": math.log(4), "accuracy": 0.3},
        ],
        "result": {"loss": math.log(2), "accuracy": 0.805},
    },
)


def test_each_method_has_a_row() -> None:
    rows = baseline_table(RECORD).splitlines()
    assert rows[2:] == [
        "| uniform: all tokens equally likely | 3.91 | 50.0 | 2% |",
        "| another | 1.39 | 4.0 | 30% |",
        "| **the model** | 0.69 | 2.0 | 80% |",
    ]


def test_perplexity_is_the_exponential_of_the_loss() -> None:
    assert perplexity(RECORD) == pytest.approx(2)
    assert perplexity(RECORD, "uniform") == pytest.approx(50)
    with pytest.raises(PageError, match="has no baseline 'none'; it has uniform, another"):
        perplexity(RECORD, "none")
