"""What a record of growth says on its page."""

import pytest
from bs4 import BeautifulSoup

from docs.figures.cost import cost, expected
from docs.figures.records import Record


def record(memory: float | None = 2e6) -> Record:
    points = [
        {"size": size, "seconds": {"median": s, "min": s / 2, "max": s * 2}, "memory": memory}
        for size, s in ((4, 0.1), (8, 0.2))
    ]
    fits = {"seconds": {"all": 1.0, "last": 1.5}}
    fed = [
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
        "feeding": fed,
        "result": {"wall_seconds": 60.0},
    }
    return Record("cost", data)


def test_what_grows_and_what_does_not() -> None:
    text = cost(record())
    assert "| T, tokens | 8 | 200.0 (100.0–400.0) | 2 |" in text
    assert "| tokens | 1.00 | – | 1.50 | – | 1 to 2 | 0.50 under 2 |" in text
    assert "| 3 | tokens in memory | 3,000,000 | 1.0 | 10.00 | 24.0 | 0.5 |" in text
    assert "pairs from disk take +0.0 MB of anonymous memory, +0.00 bytes for each further token" in text
    assert "tokens in memory take +16.0 MB of anonymous memory, +8.00 bytes for each further token" in text
    figures = BeautifulSoup(text, "html.parser").select("figure")
    assert len(figures) == 2
    cells = [[cell.string for cell in row.select("th, td")] for row in figures[0].select("tbody tr")]
    assert cells == [["0.5", "100.000"], ["1", "200.000"]]


def test_where_memory_is_not_known() -> None:
    text = cost(record(memory=None))
    assert len(BeautifulSoup(text, "html.parser").select("figure")) == 1
    assert "| T, tokens | 8 | 200.0 (100.0–400.0) | – |" in text and "bytes for each" not in text
    assert "| 1 | pairs from disk | 1,000,000 | 1.0 | 10.00 | – | – |" in text


@pytest.mark.parametrize(
    ("letter", "last", "says"),
    [
        ("T", 0.75, "1 to 2 | 0.25 too low"),
        ("T", 1.75, "1 to 2 | 0.25 under 2"),
        ("D", 0.5, "at most 2 | 1.50 under 2"),
        ("B", 1.25, "at most 1 | 0.25 too high"),
        ("V", 1.0, "at most 1 | 0.00 under 1"),
    ],
)
def test_how_far_an_exponent_is_from_what_counting_says(letter: str, last: float, says: str) -> None:
    assert expected({"letter": letter, "exponents": {"seconds": {"all": 3.0, "last": last}}}) == says


def test_text_of_a_record_is_text() -> None:
    one = record()
    bad = "<img src=x onerror=alert(1)>"
    one.data |= {"date": bad, "commit": f"`{bad}"}
    one.data["hardware"]["name"] = one.data["growth"][0]["name"] = bad
    text = cost(one)
    assert text.count("img src") >= 4 and not BeautifulSoup(text, "html.parser").select("img")
    assert text.count("`") == 2
