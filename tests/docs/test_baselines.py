"""The table of a run beside its baselines."""

import math

import pytest

from docs.figures.baselines import baseline_table, perplexity
from docs.figures.quotable import fraction, parameters
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


def test_fractions_are_those_of_bert_base() -> None:
    assert fraction("word_embeddings", "bert") == 23_440_896 / 109_482_240
    assert parameters().position_embeddings == 512 * 768 and parameters().token_type_embeddings == 2 * 768
    parts = parameters()
    norm = 2 * 768
    tables = parts.word_embeddings + parts.position_embeddings + parts.token_type_embeddings
    assert tables + norm == parts.embeddings
