"""The FLOPs that a chapter calculates on paper agree with the package's count, and the tables with both."""

import pytest
from bs4 import BeautifulSoup

from docs.figures import budget, recipe
from docs.figures.claims import Claim
from docs.figures.records import Record
from labml_bert.bert import BertConfig
from labml_bert.run.timing import count_forward_flops


@pytest.mark.parametrize(
    "sizes",
    [
        {},
        {"vocab_size": 100, "hidden_size": 24, "num_hidden_layers": 3, "intermediate_size": 40},
        {"hidden_size": 1024, "num_hidden_layers": 24, "intermediate_size": 4096},
    ],
)
def test_flops_of_a_sequence_match_the_package(sizes: dict[str, int]) -> None:
    config = BertConfig(**sizes, num_attention_heads=4)
    estimate = budget.flops(128, 20, **sizes)
    assert estimate.total == estimate.layers + estimate.attention + estimate.head
    assert estimate.total == 3 * count_forward_flops(config, 1, 128, predictions=20, positions=128)


def test_the_original_pretraining() -> None:
    original = budget.original()
    assert original.steps == 1_000_000
    assert original.tokens_per_step == [32_768, 131_072]
    assert original.tokens == 900_000 * 32_768 + 100_000 * 131_072
    assert original.fraction_of_full_length == original.tokens / (1_000_000 * 256 * 512)
    assert original.warmup_tokens == 327_680_000
    short, long = budget.flops(128, 20).total, budget.flops(512, 76).total
    assert original.exaflops * 1e18 == pytest.approx(256 * (900_000 * short + 100_000 * long))
    # Twelve layers of 12 D^2 weights, with 6 FLOPs per weight and token.
    assert original.rule_of_thumb * 1e18 == pytest.approx(6 * 12 * 12 * 768**2 * original.tokens)
    assert budget.days(original.tokens / 86_400) == 1


def test_tables_of_flops_hours_and_dollars() -> None:
    assert "| **total** | 70 | 301 |" in budget.flops_table()
    seconds = budget.original().exaflops * 1e18 / (989e12 * 0.35)
    assert budget.gpu_hours("H100 SXM", 0.35) == pytest.approx(seconds / 3600)
    assert "| 35% | 19 | 2.4 | $38 | $76 |" in budget.training_cost("H100 SXM")
    assert "| 312 | 106 | 61 | 42 |" in budget.gpu_table()
    texts = [text.string for text in BeautifulSoup(budget.gpu_chart(), "html.parser").select("svg text")]
    assert texts == ["H100 SXM", "19 hours", "A100", "61 hours", "RTX 4090", "115 hours"]


def test_hours_at_the_measured_speed_of_each_length() -> None:
    def entry(shape: str, **speeds: float) -> dict:
        rows = [
            {
                "arm": arm,
                "tokens_per_second": speed,
                "flops_per_second": 1.0,
                "step": {"median": 16_384 / speed},
            }
            for arm, speed in speeds.items()
        ]
        return {"shape": {"name": shape, "length": 128}, "rows": rows}

    short, long = (entry(shape, slow=2e4, fast=4e5) for shape in budget.MEASURED)
    long["rows"][1]["tokens_per_second"] = 2e5
    record = Record("speed", {"speed": [short, long], "peaks": {"float32": 1.0, "bfloat16": 1.0}})
    assert budget.measured_hours(record, "slow") == pytest.approx(budget.original().tokens / 2e4 / 3600)
    hours = (900_000 * 32_768 / 4e5 + 100_000 * 131_072 / 2e5) / 3600
    assert budget.measured_hours(record, "fast") == pytest.approx(hours)
    flops = budget.original().exaflops * 1e18
    assert budget.measured_mfu(record, "fast") == pytest.approx(flops / hours / 3600 / 989e12)
    lines = budget.measured_table(record).splitlines()
    assert lines[2:] == ["| fast | 400,000 | 200,000 | 39 |", "| slow | 20,000 | 20,000 | 592 |"]


def tiny_record() -> Record:
    configuration = {
        "experiment": "tiny",
        "batch_tokens": 64,
        "schedule": "16:3,32",
        "warmup_ratio": 0.1,
        "learning_rate": 2e-3,
    }
    data = {
        "configuration": configuration,
        "corpus": {"train_characters": 3200},
        "result": {"steps": 100},
    }
    return Record("tiny", data)


def test_the_budget_of_a_run() -> None:
    run_budget = budget.run_budget(tiny_record())
    assert (run_budget.tokens, run_budget.warmup_tokens, run_budget.passes, run_budget.sequences) == (
        6400,
        640,
        2.0,
        [4, 2],
    )


def test_learning_rates_of_both_recipes() -> None:
    chart = BeautifulSoup(recipe.learning_rate_chart(tiny_record()), "html.parser")
    assert [cell.string for cell in chart.select("thead th")][1:] == [
        "BERT base, peak 0.0001",
        "tiny, peak 0.002",
    ]
    rows = [[cell.string for cell in row.select("th, td")] for row in chart.select("tbody tr")]
    assert rows == [
        ["0", "0.000", "0.000"],
        ["1", "100.000", "–"],
        ["10", "–", "100.000"],
        ["100", "0.000", "0.000"],
    ]


def test_failed_runs_are_counted_by_learning_rate() -> None:
    rows = [
        {"arm": arm, "seed": seed, "options": {"learning_rate": learning_rate}, "result": {"failed": failed}}
        for arm, learning_rate, failures in (
            ("a", 1e-3, (0.0, 0.0)),
            ("a", 2e-3, (1.0, 0.0)),
            ("b", 1e-3, (1.0, 1.0)),
            ("b", 2e-3, (1.0, 1.0)),
        )
        for seed, failed in enumerate(failures)
    ]
    claim = Claim({"arms": {"a": {}, "b": {}}, "seeds": 2}, Record("claim", {"table": rows}))
    table = recipe.failed_runs(claim)
    assert "| learning rate 0.001 | learning rate 0.002 |" in table
    assert "| a | 0 of 2 | 1 of 2 |" in table and "| b | 2 of 2 | 2 of 2 |" in table
