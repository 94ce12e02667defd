"""The figures for a record of the speed benchmark."""

import math
import re
from itertools import combinations, pairwise

import pytest
from bs4 import BeautifulSoup

from docs.figures.records import Record, read_records
from docs.figures.speed import REFERENCE, ablation, best_row, roofline, speed, worth
from docs.literate.chart import Bar, Line, bar_chart, fill_gaps, line_chart, powers, value_at
from docs.literate.rows import PageError


def row(arm: str, seconds: float, memory: float | None = 5e6) -> dict:
    return {
        "arm": arm,
        "step": {"median": seconds, "min": seconds / 2, "max": seconds * 2},
        "tokens_per_second": 100 / seconds,
        "flops_per_second": 1e9 / seconds,
        "memory": memory,
    }


def record(arms: list[str]) -> Record:
    """One small model. The machine reaches 8 and 4 GFLOP/s in a large matmul and moves 1 GB/s."""
    rows = [row(arm, 0.5 * (i + 1), None if i else 5e6) for i, arm in enumerate(arms)]
    kernels = [("a matmul", 2e9, 1e8, 1.0), ("GELU & co", 1e9, 1e9, 2.0)]
    measurements = [
        {"name": name, "precision": precision, "flops": count, "bytes": size, "seconds": seconds}
        for precision in ("bfloat16", "float32")
        for name, count, size, seconds in kernels
    ]
    shape = {"name": "small", "vocab_size": 9, "hidden_size": 4, "num_hidden_layers": 2}
    table = {
        "shape": {**shape, "batch_size": 10, "length": 10},
        "dropout": 0.1,
        "parameters": 1234,
        "loss_difference": 2e-7,
        "rows": rows,
        "profile": {
            "arm": arms[0],
            "fractions": {"GELU": 0.2, "matrix multiplications": 0.798, "softmax": 0.002},
        },
    }
    data = {
        "date": "2026-01-01",
        "commit": "0" * 40,
        "hardware": {"device": "cpu", "name": "CPU", "cores": 2, "precision": "both"},
        "configuration": {"rounds": 5, "peers": {"transformers": "5.0"}},
        "versions": {"torch": "2.0"},
        "result": {"wall_seconds": 90.0},
        "peaks": {"bfloat16": 8e9, "float32": 4e9},
        "bytes_per_second": 1e9,
        "speed": [table],
        "pieces": [{"shape": "small", "rows": measurements}],
    }
    return Record("speed", data)


ARMS = ["ours, bfloat16", "transformers sdpa, float32"]


def test_the_table_compares_each_row_with_the_reference() -> None:
    text = speed(record(ARMS))
    assert "| ours, bfloat16 | 500.0 (250.0–1,000.0) | 200 | 25% | 5 | 2.00 |" in text
    assert "| transformers sdpa, float32 | 1,000.0 (500.0–2,000.0) | 100 | 25% | – | 1.00 |" in text
    assert "differ by at most 2e-07" in text and "transformers 5.0" in text and "1.5 minutes" in text


def test_without_the_reference_there_is_no_speedup() -> None:
    text = speed(record(["ours, float32"]))
    assert "| ours, float32 | 500.0 (250.0–1,000.0) | 200 | 50% | 5 | – |" in text


def test_bars_are_as_long_as_their_values() -> None:
    figure = bar_chart([Bar("a & b", 8.0, "8 of it", least=6.0, most=10.0), Bar("c", 5.0, "5", 2)], "Title <")
    lengths = [float(length) for length in re.findall(r"h([\d.]+)v", figure)]
    assert lengths[1] / lengths[0] == pytest.approx(5 / 8, rel=1e-3)
    start, end = re.search(r'class="range" d="M([\d.]+),[\d.]+H([\d.]+)v', figure).groups()
    assert float(start) / float(end) == pytest.approx(0.6, rel=1e-3)
    svg = BeautifulSoup(figure, "html.parser")
    assert svg.svg["role"] == "img" and svg.title.string == "Title <"
    assert svg.desc.string == "a & b: 8 of it; c: 5." and "\n" not in figure


def test_the_profile_is_sorted_and_complete() -> None:
    figures = BeautifulSoup(speed(record(ARMS)), "html.parser").select("figure")
    profile = figures[1]
    labels = [text.string for text in profile.select("svg text")]
    assert labels == ["matrix multiplications", "80%", "GELU", "20%"]
    cells = [[cell.string for cell in line.select("th, td")] for line in profile.select("tbody tr")]
    assert cells == [["matrix multiplications", "79.8%"], ["GELU", "20.0%"], ["softmax", "0.2%"]]


def test_points_and_roofs_of_the_roofline() -> None:
    speed_record = record(ARMS)
    chart = BeautifulSoup(roofline(speed_record, speed_record.data["pieces"][0]), "html.parser")
    circles = [(float(c["cx"]), float(c["cy"])) for c in chart.select("circle")]
    roofs = [re.findall(r"([\d.]+),([\d.]+)", p["d"]) for p in chart.select("svg[role] path.line")]
    assert len(circles) == 4 and [len(roof) for roof in roofs] == [3, 3]
    bfloat16, float32 = ([(float(x), float(y)) for x, y in roof] for roof in roofs)
    assert bfloat16[0] == float32[0], "both share the memory bandwidth"
    assert bfloat16[2][1] < float32[2][1], "the faster roof is higher"
    # On logarithmic axes, equal factors are equal distances. The roofs are a factor of 2 apart (8 and 4), the
    # points a factor of 4 (2 and 0.5).
    octave = float32[2][1] - bfloat16[2][1]
    assert circles[1][1] - circles[0][1] == pytest.approx(2 * octave, abs=0.3)
    assert circles[0][0] > bfloat16[1][0], "20 FLOPs per byte is right of the ridge at 8"
    cells = [cell.string for cell in chart.select("tbody tr")[0].select("th, td")]
    assert cells == ["a matmul, bfloat16", "20.0", "2", "25%", "1000.00"]
    assert [cell.string for cell in chart.select("tbody tr")[1].select("td")][2] == "50%"


ROOFLINES = {
    f"{record.name}, {entry['shape']}": roofline(record, entry)
    for record in read_records().values()
    for entry in record.data.get("pieces", [])
}


@pytest.mark.parametrize("name", ROOFLINES)
def test_a_letter_of_the_roofline_overlaps_nothing(name: str) -> None:
    """On a phone, a letter is at most 12 units wide and 16 high."""
    chart = BeautifulSoup(ROOFLINES[name], "html.parser").select_one("svg[role]")
    points = [(float(circle["cx"]), float(circle["cy"])) for circle in chart.select("circle")]
    letters = [(float(text["x"]), float(text["y"])) for text in chart.select("text[dy]")]
    assert len(letters) == len(points) > 0
    for (x, y), (other_x, other_y) in combinations(letters, 2):
        assert abs(x - other_x) >= 12 or abs(y - other_y) >= 15.8
    roofs = [re.findall(r"([\d.]+),([\d.]+)", line["d"]) for line in chart.select("path.line")]
    curves = [[(float(x), float(y)) for x, y in roof] for roof in roofs]
    for x, y in letters:
        assert all(math.dist((x, y), point) > 15 for point in points)
        assert not [point for curve in curves for point in fill_gaps(curve) if math.dist((x, y), point) < 15]


def test_the_best_row_of_an_arm() -> None:
    best = best_row(record(ARMS), "small", "ours, bfloat16")
    assert best["mfu"] == 0.25 and best["length"] == 10
    with pytest.raises(PageError, match="no 'theirs' at the shape 'small'"):
        best_row(record(ARMS), "small", "theirs")


def test_a_power_law_is_a_straight_line_on_logarithmic_axes() -> None:
    points = [(float(x), 0.01 * x**2) for x in (1, 2, 4, 8, 16)]
    figure = line_chart([Line("square", points)], "Title", "x", "y", log=True)
    path = re.search(r'class="line n1" d="M([^"]+)"', figure.split("<desc")[1])[1]
    corners = [tuple(map(float, pair.split(","))) for pair in path.split("L")]
    steps = {(round(b[0] - a[0]), round(b[1] - a[1])) for a, b in pairwise(corners)}
    assert len(steps) == 1
    assert "<td>0.010</td>" in figure and "<td>2.560</td>" in figure


def test_round_numbers_on_a_logarithmic_axis() -> None:
    assert powers(0.03, 1.0) == [0.05, 0.1, 0.2, 0.5, 1.0]
    assert powers(1, 1e4) == [1, 10, 100, 1000, 10000]


MARKUP = "<img src=x onerror=alert(1)>"


def tricks_record() -> Record:
    """One trick at one shape."""
    shape_results = {
        "shape": record(ARMS).data["speed"][0]["shape"] | {"dropout": 0.1},
        "seconds": 0.1,
        "drawing": 0.001,
        "rows": [{"name": "a trick", "kept": True, "worth": 1.5, "least": 1.4, "most": 1.6}],
    }
    return Record("ablation", record(ARMS).data | {"ablation": [shape_results], "padding": {"128": 0.2}})


def test_the_speedup_of_a_trick() -> None:
    assert worth(tricks_record(), "small", "a trick") == 1.5
    assert "| a trick | kept | 1.50 × | 1.40 to 1.60 |" in ablation(tricks_record())
    with pytest.raises(PageError, match="no 'a trick' at the shape 'large'"):
        worth(tricks_record(), "large", "a trick")


def test_text_in_a_record_is_escaped() -> None:
    speed_record, tricks = record([MARKUP, REFERENCE]), tricks_record()
    for data in (speed_record.data, tricks.data):
        data |= {
            "date": MARKUP,
            "commit": f"`{MARKUP}",
            "versions": {"torch": MARKUP},
            "padding": {MARKUP: 0.2},
        }
        data["hardware"]["name"] = MARKUP
    speed_record.data["configuration"]["peers"] = {MARKUP: "1"}
    speed_record.data["speed"][0]["shape"]["name"] = speed_record.data["speed"][0]["profile"]["arm"] = MARKUP
    speed_record.data["pieces"][0]["shape"] = speed_record.data["pieces"][0]["rows"][0]["name"] = MARKUP
    tricks.data["ablation"][0]["shape"]["name"] = tricks.data["ablation"][0]["rows"][0]["name"] = MARKUP
    for text, times in ((speed(speed_record), 10), (ablation(tricks), 6)):
        assert text.count("img src") >= times and not BeautifulSoup(text, "html.parser").select("img")
    assert speed(speed_record).count("`") == 2 and ablation(tricks).count("`") == 4


def test_a_number_between_two_points_is_on_the_line_as_drawn() -> None:
    line = Line("loss", [(0, 4.0), (10, 2.0), (30, 1.0)])
    values = {0: "4.000", 5: "3.000", 10: "2.000", 20: "1.500", 30: "1.000", 31: "–"}
    assert {x: value_at(line, x) for x in values} == values
