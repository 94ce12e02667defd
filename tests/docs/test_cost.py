"""The tables and charts for a record of how the cost scales."""

import pytest
from bs4 import BeautifulSoup

from docs.figures.cost import cost, describe_exponent
from docs.figures.records import Record


def record(memory: float | None = 2e6) -> Record:
    points = [
        {"size": size, "seconds": {"median": s, "min": s / 2, "max": s * 2}, "memory": memory}
        for size, s in ((4, 0.1), (8, 0.2))
    ]
    fits = {"seconds": {"all": 1.0, "last": 1.5}}
    pipelines = [
        {
            "pipeline": pipeline,
            "characters": size,
            "tokens": size,
            "prepare_seconds": 1.0,
            "batch_seconds": 0.01,
        }
        | ({} if memory is None else {"anonymous": weight * size, "file": 5e5})
        for size in (1_000_000, 3_000_000)
        for pipeline, weight in (("pairs", 0), ("masked", 8))
    ]
    data = {
        "date": "2026-01-01",
        "hardware": {"device": "cpu", "name": "CPU", "cores": 2, "precision": "float32"},
        "configuration": {"base": {"T": 8}, "rounds": 3},
        "growth": [{"letter": "T", "name": "tokens", "points": points, "exponents": fits}],
        "feeding": pipelines,
        "result": {"wall_seconds": 60.0},
    }
    return Record("cost", data)


def test_charts_and_tables() -> None:
    text = cost(record())
    assert "| T, tokens | 8 | 200.0 (100.0–400.0) | 2 |" in text
    assert "| tokens | 1.00 | – | 1.50 | – | 1 to 2 | inside, 0.50 under 2 |" in text
    assert "| 3 | masked windows from memory | 3,000,000 | 1.0 | 10.00 | 24.0 | 0.5 |" in text
    assert "of sentence pairs from disk changes by +0.0 MB, which is +0.00 bytes per additional token" in text
    assert "of masked windows from memory changes by +16.0 MB, which is +8.00 bytes per additional" in text
    figures = BeautifulSoup(text, "html.parser").select("figure")
    assert len(figures) == 2
    cells = [[cell.string for cell in row.select("th, td")] for row in figures[0].select("tbody tr")]
    assert cells == [["0.5", "100.000"], ["1", "200.000"]]


def test_charts_and_tables_without_memory_measurements() -> None:
    text = cost(record(memory=None))
    assert len(BeautifulSoup(text, "html.parser").select("figure")) == 1
    assert "| T, tokens | 8 | 200.0 (100.0–400.0) | – |" in text and "bytes per" not in text
    assert "| 1 | sentence pairs from disk | 1,000,000 | 1.0 | 10.00 | – | – |" in text


@pytest.mark.parametrize(
    ("letter", "last", "verdict"),
    [
        ("T", 0.75, "1 to 2 | 0.25 below the range"),
        ("T", 1.75, "1 to 2 | inside, 0.25 under 2"),
        ("D", 0.5, "at most 2 | inside, 1.50 under 2"),
        ("B", 1.25, "at most 1 | 0.25 above the range"),
        ("V", 1.0, "at most 1 | inside, 0.00 under 1"),
    ],
)
def test_exponent_against_its_prediction(letter: str, last: float, verdict: str) -> None:
    assert (
        describe_exponent({"letter": letter, "exponents": {"seconds": {"all": 3.0, "last": last}}}) == verdict
    )


def test_text_in_a_record_is_escaped() -> None:
    cost_record = record()
    markup = "<img src=x onerror=alert(1)>"
    cost_record.data |= {"date": markup, "commit": f"`{markup}"}
    cost_record.data["hardware"]["name"] = cost_record.data["growth"][0]["name"] = markup
    text = cost(cost_record)
    assert text.count("img src") >= 4 and not BeautifulSoup(text, "html.parser").select("img")
    assert text.count("`") == 2
