"""The figures for the live page."""

import re

import pytest
from bs4 import BeautifulSoup, Tag

from docs.figures import live
from docs.figures.quotable import quotable
from docs.figures.records import Record, read_records
from docs.figures.runs import recorded_runs
from docs.literate.rows import PageError
from docs.literate.site import read_sources
from docs.site import SITE

HOSTILE = "</svg><script>alert(1)</script>"


def small() -> Record:
    """Three tokens, one layer, two heads: one looks at itself, the other to the left. Four positions."""
    itself = [[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]]
    left = [[1.0, 0.0, 0.0], [0.75, 0.25, 0.0], [0.0, 0.75, 0.25]]
    arm = {
        "ranks": [25, 50, 15, 10],
        "median_rank": 2,
        "entropy": 3.5,
        "cosine_correct": 0.25,
        "cosine_all": -0.5,
    }
    pictures = {
        "attention": {"tokens": ["a", "[MASK]", HOSTILE], "masks": [1], "attentions": [[itself, left]]},
        "positions": {
            "cosines": [[1.0, -0.25], [-0.25, 1.0]],
            "by_distance": [1.0, 0.5, -0.25, 0.125],
        },
        "dense_layer": {
            "positions": 100,
            "rank_bounds": [[1, 1], [2, 3], [4, 10], [11, 1000000]],
            "without": {**arm, "accuracy": 0.25},
            "with": {**arm, "accuracy": 0.8, "ranks": [80, 10, 6, 4]},
        },
        "neighbors": [
            {"token": "a", "nearest": [[HOSTILE, 0.5], ["\n", -0.1]]},
            {"token": " ", "nearest": [["b", 1.0], ["c", 0.25]]},
        ],
    }
    return Record("small", {"pictures": pictures})


def parse_figure(figure: str) -> Tag:
    """Parses a figure, and checks what every figure must have."""
    page = BeautifulSoup(figure, "html.parser")
    assert "\n" not in figure and page.find("script") is None
    svg = page.find("svg", role="img")
    assert isinstance(svg, Tag)
    for name in svg["aria-labelledby"].split():
        assert svg.find(id=name).get_text()
    assert page.find("table") is not None and page.find("figcaption").get_text()
    return page


def cells(page: Tag) -> list[list[str]]:
    return [[cell.get_text() for cell in row.find_all(["th", "td"])] for row in page.find_all("tr")][1:]


def squares(path: Tag) -> list[float]:
    """The sides of the squares in a path."""
    return [float(side) for side in re.findall(r"h([\d.]+)v", path["d"])]


def test_each_head_has_a_map() -> None:
    page = parse_figure(live.attention(small()))
    heads = page.select("path.weight")
    assert len(heads) == 2
    cell = squares(heads[0])[0]
    assert squares(heads[0]) == [cell] * 3, "a weight of 1 fills its cell"
    assert squares(heads[1]) == pytest.approx(
        [cell, 0.866 * cell, cell / 2, 0.866 * cell, cell / 2], abs=0.06
    )
    assert cells(page) == [
        ["layer 1, head 1", "itself, 3 of 3", "▁, itself: 100%"],
        ["layer 1, head 2", "1 to the left, 2 of 3", "a, 1 to the left: 75%"],
    ]


def test_negative_cosines_are_hollow() -> None:
    page = parse_figure(live.positions(small()))
    (full,), (hollow,) = page.select("path.weight"), page.select("path.point")
    assert len(squares(full)) == len(squares(hollow)) == 2
    assert max(squares(hollow)) < max(squares(full)) / 1.9
    assert cells(page) == [["1", "+0.50"], ["2", "-0.25"]]
    assert "the first 2 of 4 positions" in page.find("figcaption").get_text()


def test_what_the_dense_layer_does() -> None:
    page = parse_figure(live.dense_layer(small()))
    bars = page.select("path.bar")
    assert len(bars) == 8
    lengths = [float(re.search(r"h([\d.]+)v", bar["d"])[1]) for bar in bars]
    assert lengths[1] / lengths[0] == pytest.approx(80 / 25, rel=0.01)
    assert (
        "The accuracy is 25% without these two parts and 80% with them." in page.find("figcaption").get_text()
    )
    assert ["accuracy of the best guess", "25.0%", "80.0%"] in cells(page)


def test_a_neighbor_is_as_long_as_its_cosine() -> None:
    page = parse_figure(live.neighbors(small()))
    lengths = [float(re.search(r"h([\d.]+)v", bar["d"])[1]) for bar in page.select("path.bar")]
    assert lengths == pytest.approx([lengths[2] / 2, 0, lengths[2], lengths[2] / 4], abs=0.1)
    assert cells(page)[1] == ["·", "b 1.00", "c 0.25"]
    assert cells(page)[0][1].startswith("</svg>") and cells(page)[0][2] == "↵ -0.10"


def test_a_record_without_pictures_is_refused() -> None:
    with pytest.raises(PageError, match="the run other has no picture 'attention'"):
        live.attention(Record("other", {"result": {}}))


def test_the_recorded_run_is_shown_beside_the_full_model() -> None:
    records, sources = read_records(), read_sources(SITE.root, SITE.folders)
    page = recorded_runs(sources["experiments.live.live"], records)
    assert page.count("<svg viewBox") >= 5
    full = records["mlm_tiny"].data
    assert f"| `mlm_tiny.py`, {full['parameters']:,} parameters |" in page
    for entry in records["live"].data["checkpoints"]:
        assert (
            f"| {entry['arm']} | {entry['seconds']:.0f} | {entry['steps']:,} | {entry['loss']:.3f} |" in page
        )
    names = quotable(records, sources, "live")
    for name in ("curves", "attention", "positions", "dense_layer", "neighbors"):
        figure = names[f"live_{name}"]()
        assert (
            'href="experiments/live/' in figure
            or "../experiments/live" in figure
            or "experiments/live.md" in figure
        )
        parse_figure(figure)
