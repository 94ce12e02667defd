"""The figures of continued pretraining, and the sentences of its chapter that depend on the record."""

from typing import Any

import pytest

from docs.figures.continued import chart, example, first_below, gap, results, shorter, table, value, variants
from docs.figures.records import Record, read_records
from docs.literate.rows import PageError
from experiments.claims.decision import difference


def row(variant: str, loss: float, steps: int, words: float) -> dict[str, Any]:
    points = [[0, 6.0], [steps // 2, loss + 1], [steps, loss]]
    old = [[0, 2.0], [steps, 2.5]]
    return {
        "variant": variant,
        "learning_rate": 0.003,
        "steps": steps,
        "tokens": 10 * steps,
        "seconds": 7.0,
        "before": {"loss": 6.0, "old_loss": 2.0},
        "loss": loss,
        "old_loss": 2.5,
        "word_accuracy": words,
        "curves": {"loss": points, "old_loss": old},
    }


def small_record() -> Record:
    seeds = [
        {
            "seed": seed,
            "pretrained": {"loss": 2.0, "word_accuracy": 0.125, "seconds": 100.0},
            "variants": [row("from scratch", 4.0 + seed, 8, 0.25), row("continued", 3.0, 4, 0.5 + seed / 10)],
            "words": 5,
            "new_tokens": {"hat": ["h", "##at"], "chats": ["c", "##hat", "##s"]},
            "held_out_tokens": [200, 150],
        }
        for seed in (0, 2)
    ]
    data = {"result": {"continued": seeds, "wall_seconds": 9}, "date": "2026-11-23", "hardware": {}}
    return Record("continue-pretraining", data)


def test_values_and_differences() -> None:
    record = small_record()
    assert variants(record) == ["from scratch", "continued"]
    assert value(record, "from scratch", "loss") == 5 and value(record, "pretrained", "seconds") == 100
    assert results(record, "continued")[0]["forgotten"] == 0.5
    # −1 and −3 have a mean of −2, and a standard error of 1. Student's t with one degree of freedom is 12.71.
    text = gap(record, "loss", "continued", "from scratch")
    assert text == "−2.00 nats (95% CI −14.71 to\N{NO-BREAK SPACE}+10.71), which is inconclusive"
    # Both seeds have the same difference.
    for seed in record.data["result"]["continued"]:
        seed["variants"][1]["word_accuracy"] = 0.5
    text = gap(record, "word_accuracy", "continued", "from scratch", percent=True)
    assert text == "+25.0 points (95% CI +25.0 to\N{NO-BREAK SPACE}+25.0)"
    with pytest.raises(PageError, match="has no 'other'"):
        value(record, "other", "loss")


def test_when_a_variant_passes_another() -> None:
    record = small_record()
    # After 20 tokens, the loss is 4, which is below 6 but not below 4.
    assert first_below(record, "continued", "from scratch") == [40, 20]
    with pytest.raises(PageError, match="never has a lower loss"):
        first_below(record, "from scratch", "continued")


def test_the_chapter_says_what_the_record_shows() -> None:
    """With half the tokens, continued pretraining ends lower; a higher learning rate forgets more."""
    record = read_records()["continue-pretraining"]
    assert value(record, "continued", "tokens") * 2 == value(record, "from scratch", "tokens")
    for less, more in (
        (("loss", "continued"), ("loss", "from scratch")),
        (("loss", "continued, high learning rate"), ("loss", "continued")),
        (("forgotten", "continued"), ("forgotten", "continued, high learning rate")),
    ):
        for row, other in zip(results(record, less[1]), results(record, more[1]), strict=True):
            assert row[less[0]] < other[more[0]]
    assert "inconclusive" not in gap(record, "word_log_prob", "continued, new tokens", "continued")
    losses = [[row["loss"] for row in results(record, name)] for name in ("continued", "from scratch")]
    assert "inconclusive" in gap(record, "loss", "continued", "from scratch"), "paired"
    assert difference(*losses).high < 0, "unpaired"
    for continued, scratch in zip(results(record, "continued"), results(record, "from scratch"), strict=True):
        above = [step for step, loss in scratch["curves"]["loss"] if loss > continued["before"]["loss"]]
        assert above[-1] * scratch["tokens"] / scratch["steps"] > 350_000


def test_the_table_the_examples_and_the_chart() -> None:
    record = small_record()
    lines = table(record).splitlines()
    assert "| pretrained, not continued | – | – | – | 6.00 | 2.00 | 12.5% |" in lines
    assert "| from scratch | 0.003 | 80 | 7 | 5.00 | 2.50 | 25.0% |" in lines
    assert example(record, 1) == "`chats` into `c`, `##hat` and `##s`"
    assert shorter(record) == 0.25
    figure = chart(record, "old_loss", "continued", title="Old")
    assert "continued, seed 1" in figure and "2.00 to 2.50" in figure
