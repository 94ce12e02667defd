"""The numbers that chapters derive from records and from models."""

import math

import pytest

from docs.figures.claims import Claim
from docs.figures.derived import (
    accuracy_chart,
    batch_time,
    count,
    fraction_of,
    gain,
    pair_test,
    parameters_table,
    retrieval_gain,
    retrieval_table,
    retrieval_value,
    search_loss,
    seconds_per_run,
    wins_table,
    with_std,
)
from docs.figures.records import Record
from docs.literate.rows import PageError


def test_published_parameter_counts() -> None:
    assert count("base", "bert") == 109_482_240 and count("large", "bert") == 335_141_888
    assert count("base", "both heads") == 110_106_428 and count("large", "both heads") == 336_226_108
    assert count("base", "masked LM") == 109_514_298 and count("thread", "masked LM") == 58_895_648


def test_parameter_counts_of_parts() -> None:
    D, V = 768, 21_128
    assert count("chinese", "transform.dense") == count("base", "pooler") == D * D + D == 590_592
    assert count("chinese", "transform.LayerNorm") == 2 * D and count("chinese", "predictions.bias") == V
    assert count("thread", "layer.0") == 12 * D * D + 13 * D == count("thread", "encoder") // 6
    inside = count("thread", "layer.0.intermediate") + count("thread", "layer.0.output")
    assert count("thread", "layer.0.attention") + inside == count("thread", "layer.0")
    assert count("base", "masked LM, pooler") - count("base", "masked LM") == count("base", "pooler")
    assert count("base", "masked LM, untied") - count("base", "masked LM") == 30_522 * D
    assert count("base", "feed-forward") == count("base", "layer.0") - count("base", "layer.0.attention")
    assert fraction_of("base", "cls") == (590_592 + 1_536 + 30_522 + 1_538) / 110_106_428
    assert fraction_of("base", "word_embeddings", "bert") == 23_440_896 / 109_482_240


@pytest.mark.parametrize(("model", "part"), [("huge", "bert"), ("base", "decoder"), ("base", "embedding")])
def test_unknown_models_and_parts_are_rejected(model: str, part: str) -> None:
    with pytest.raises(PageError, match=r"has no part|no model"):
        count(model, part)


def test_the_time_of_a_batch_and_of_a_step() -> None:
    batches = [
        {"pipeline": "pairs", "tokens": tokens, "batch_seconds": seconds}
        for tokens, seconds in ((10, 0.5), (1000, 0.002), (100, 0.25))
    ]
    points = [{"size": size, "seconds": {"median": size / 100}} for size in (4, 8)]
    growth = [{"letter": "T", "points": points}]
    record = Record("cost", {"feeding": batches, "growth": growth, "configuration": {"base": {"T": 8}}})
    times = batch_time(record, "pairs")
    assert (times.milliseconds, times.step_milliseconds) == (pytest.approx(2), pytest.approx(80))
    assert times.ratio == pytest.approx(1 / 40)
    with pytest.raises(PageError, match="no pipeline 'masked'"):
        batch_time(record, "masked")


def test_standard_errors_above_a_constant_guess() -> None:
    result = {
        "next_sentence_accuracy": 0.8,
        "next_sentence_chance": 0.5,
        "next_sentence_standard_error": 0.02,
        "pairs": 400.0,
    }
    test = pair_test(Record("pairs", {"result": result}))
    assert test.standard_errors == pytest.approx(15) and test.pairs == 400


def comparison() -> Record:
    values = {"pretrained": (0.5, 0.52, 0.54), "from scratch": (0.2, 0.22, 0.24)}
    rows = [
        {"task": "package", "labels": labels, "arm": arm, "seed": seed, "accuracy": value + bonus}
        for labels, bonus in ((100, 0.0), (1000, 0.2))
        for arm, accuracies in values.items()
        for seed, value in enumerate(accuracies)
    ]
    return Record("compared", {"table": rows, "tasks": {"package": {"chance": 0.15}}})


def test_the_difference_between_two_methods() -> None:
    assert with_std(comparison(), "package", 100, "pretrained") == "52.0% ± 2.0"
    # Welch's interval with 4 degrees of freedom: 2.776 times the root of 2 * 0.02 ** 2 / 3.
    half_width = 100 * 2.776 * math.sqrt(2 * 0.02**2 / 3)
    expected = f"30.0 points (95% CI {30 - half_width:.1f} to\N{NO-BREAK SPACE}{30 + half_width:.1f})"
    assert gain(comparison(), "package", 100, "from scratch") == expected
    assert gain(comparison(), "package", 100, "pretrained", "from scratch").startswith("−30.0 points")
    with pytest.raises(PageError, match="no 'bag of words' with 100 labels"):
        gain(comparison(), "package", 100, "bag of words")


def test_the_chart_has_a_line_for_each_method() -> None:
    chart = accuracy_chart(comparison(), "package")
    assert "pretrained goes from 52.00 to 72.00" in chart and "from scratch goes from 22.00 to 42.00" in chart
    assert "always the largest class 15.00" in chart and "mean of 3 seeds" in chart


def test_the_loss_of_a_search() -> None:
    rows = [
        {"arm": "both", "seed": seed, "point": {"learning_rate": learning_rate}, "result": {"loss": loss}}
        for seed, learning_rate, loss in ((0, 0.1, 1.0), (100, 0.1, 2.0), (100, 0.2, 3.0))
    ]
    record = Record("small", {"table": rows})
    claim = Claim({"name": "small", "arms": ["both"], "seeds": 3}, record)
    assert search_loss(claim, "both", 0.1) == 2.0
    with pytest.raises(PageError, match="no 'both' at"):
        search_loss(claim, "both", 0.3)


def test_the_table_of_wins_shows_every_scramble_and_interval() -> None:
    wins = {"fraction": 0.9, "low": 0.85, "high": 0.934}
    data = {"result": {"wins": {"shuffle": {"model": wins, "n-gram": {**wins, "fraction": 0.88}}}}}
    rows = [line for line in wins_table(Record("x", data)).splitlines() if line.startswith("| ")]
    assert rows == [
        "| scramble | model | n-gram |",
        "| shuffle | 90.0% [85.0%, 93.4%] | 88.0% [85.0%, 93.4%] |",
    ]


def test_the_table_of_parameters() -> None:
    rows = [
        {
            "task": task,
            "labels": n,
            "arm": arm,
            "seed": seed,
            "score": 0.5 + seed / 10 + n / 1000,
            "seconds": seed,
        }
        for task in ("tokens", "span")
        for n in (20, 100)
        for arm in ("LoRA", "from scratch")
        for seed in (1, 2)
    ]
    record = Record("finetune_parameters", {"table": rows})
    lines = parameters_table(record, "span").splitlines()
    assert "| method | 20 docstrings | 100 docstrings |" in lines
    assert "| LoRA | 67.0% ± 7.1 | 75.0% ± 7.1 |" in lines
    assert seconds_per_run(record, "span", 20, "LoRA") == 1.5
    with pytest.raises(PageError, match="no 'LoRA' with 30 labels of 'span'"):
        seconds_per_run(record, "span", 30, "LoRA")


def test_the_table_of_a_retrieval() -> None:
    methods = {
        "TF-IDF": {"mrr": [0.5], "recall": [0.75], "mean_cosine": [0.011]},
        "SimCSE": {"mrr": [0.25, 0.75], "recall": [0.5, 0.5], "mean_cosine": [0.2, 0.4]},
    }
    gaps = {"TF-IDF": {"mean": -0.125, "low": -0.25, "high": 0.5}}
    record = Record("retrieval", {"result": {"retrieval": methods, "simcse_minus": gaps}})
    rows = retrieval_table(record).splitlines()
    assert "| TF-IDF | 0.500 | 75.0% | 0.01 |" in rows
    assert "| SimCSE | 0.500 ± 0.354 | 50.0% ± 0.0% | 0.30 |" in rows
    assert retrieval_value(record, "SimCSE", "mean_cosine") == pytest.approx(0.3)
    assert retrieval_gain(record, "TF-IDF") == "−0.125 (95% CI −0.250 to\N{NO-BREAK SPACE}+0.500)"
    with pytest.raises(PageError, match="has no 'CLS'; it has TF-IDF, SimCSE"):
        retrieval_value(record, "CLS", "mrr")
