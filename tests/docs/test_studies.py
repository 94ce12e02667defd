"""The table and the chart of a study, from a record that the test makes up."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from docs.figures import studies
from docs.figures.studies import (
    final_losses,
    pairs_table,
    read_study,
    study_chart,
    study_curves,
    study_gain,
    study_table,
    study_value,
)
from docs.literate.rows import PageError

ENTRY = """
[[study]]
name = "small"
title = "A small study"
job = "masked"
seeds = 2
minutes = 1
below = 1.0
is_ladder = {is_ladder}
options = {{ tokens = 4_000 }}
grid = {{ learning_rate = [1e-3] }}
[study.arms]
"first" = {{}}
"second" = {{ gated = true }}
"third" = {{ pre_norm = true }}
"""


def one_row(arm: str, seed: int, losses: list[float | None]) -> dict[str, Any]:
    return {
        "arm": arm,
        "seed": seed,
        "point": {"learning_rate": 1e-3},
        "options": {"learning_rate": 1e-3},
        "curve": [[step, loss] for step, loss in enumerate(losses)],
        "curve_tokens": [1000 * step for step in range(len(losses))],
        "probes": [[0.1 * step + seed / 5, 2.0] for step in range(len(losses))],
        "lengths": [[1, 128]],
        "unigram_loss": 3.0,
        "batch_tokens": 1000,
        "result": {"loss": losses[-1], "failed": 0.0},
        "core_seconds": 60.0,
    }


@pytest.fixture()
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    def write_record(is_ladder: bool = True, third: float | None = 1.0) -> None:
        entry = tmp_path / "studies.toml"
        entry.write_text(ENTRY.format(is_ladder=str(is_ladder).lower()))
        curves = {"first": [4.0, 3.5, 3.0], "second": [4.0, 3.0, 1.5], "third": [4.0, 1.0, third]}
        table = [
            one_row(arm, seed, [*losses[:2], losses[2] and losses[2] + seed / 10])
            for arm, losses in curves.items()
            for seed in range(2)
        ]
        data = {
            "experiment": "claims/claims",
            "date": "2026-01-01",
            "commit": "0" * 40,
            "hardware": {"device": "cpu", "name": "Test", "cores": 2, "precision": "float32"},
            "claim": {"arms": {}},
            "table": table,
            "step_seconds": {arm: {"128": 0.5} for arm in curves},
        }
        (tmp_path / "claims").mkdir(exist_ok=True)
        (tmp_path / "claims" / "small.json").write_text(json.dumps(data))
        original = read_study
        monkeypatch.setattr(studies, "read_study", lambda name: original(name, entry, tmp_path))

    return write_record


def test_a_ladder_compares_each_row_with_the_one_above(write: Any) -> None:
    write()
    rows = [line for line in study_table("small").splitlines() if line.startswith("| ")][1:]
    cells = [[cell.strip() for cell in row.strip("|").split("|")] for row in rows]
    assert cells[0][2:4] == ["not reached", "–"] and cells[0][5] == "–"
    # From 1,000 to 2,000 tokens, the loss falls from 3.0 to 1.5 or 1.6. It's 2.0 after 2/3 or 1/1.4 of these.
    assert float(cells[1][2].split()[0]) * 1e6 == pytest.approx(1000 + 1000 * (2 / 3 + 1 / 1.4) / 2, abs=5000)
    assert [row[5].split()[0] for row in cells[1:]] == ["−1.500", "−0.500"]
    assert [row[6] for row in cells] == ["2.0 min"] * 3
    assert "compared with the row above" in study_table("small")


def test_otherwise_each_row_is_compared_with_the_first(write: Any) -> None:
    write(is_ladder=False)
    rows = [line for line in study_table("small").splitlines() if line.startswith("| ")][1:]
    assert [row.split("|")[-3].split()[0] for row in rows[1:]] == ["−1.500", "−2.000"]
    assert "compared with first" in study_table("small")


def test_values_for_the_text(write: Any) -> None:
    write()
    assert study_value("small", "third") == pytest.approx(1.05)
    assert study_value("small", "third", "tokens") == pytest.approx(1000 * 2 / 3)
    assert study_value("small", "third", "seconds") == pytest.approx(2 / 3 * 0.5)
    gain = study_gain("small", "third", "second")
    assert gain.middle == pytest.approx(0.5) and gain.low < 0.5 < gain.high
    with pytest.raises(PageError, match="0 of 2 runs of 'first' reached"):
        study_value("small", "first", "tokens")
    with pytest.raises(PageError, match="no variant 'fourth'; it has first, second, third"):
        study_value("small", "fourth")


def test_a_batch_ramp_has_tokens_but_no_seconds(write: Any, tmp_path: Path) -> None:
    write()
    entry = tmp_path / "studies.toml"
    entry.write_text(entry.read_text().replace("gated = true", "gated = true, batch_ramp = true"))
    rows = [line for line in study_table("small").splitlines() if line.startswith("| ")][1:]
    cells = [[cell.strip() for cell in row.strip("|").split("|")] for row in rows]
    assert cells[1][2].endswith(" M") and cells[1][3] == "–" and cells[2][3] == "0"
    with pytest.raises(PageError, match="the time of 'second' in small wasn't measured: it has a batch ramp"):
        study_value("small", "second", "seconds")


def test_the_chart_has_a_bar_for_each_variant(write: Any) -> None:
    write()
    chart = study_chart("small", "What the bars are.")
    assert (
        all(f">{name}<" in chart for name in ("first", "second", "third")) and "What the bars are." in chart
    )


def test_curves_are_means_over_the_seeds(write: Any) -> None:
    write()
    rows = {}
    for what in ("loss", "attention", "order"):
        text = study_curves("small", what, "A title", "A caption.")
        assert "A caption." in text and "thousands of training tokens" in text
        cells = re.findall(r"<tr><th[^>]*>([\d.]+)</th>((?:<td>[^<]*</td>)+)</tr>", text)
        rows[what] = {float(head): re.findall(r"<td>([^<]*)</td>", rest) for head, rest in cells}
    assert rows["loss"][2.0] == ["3.050", "1.550", "1.050"]
    assert rows["attention"][1.0] == ["0.200"] * 3 and rows["order"][0.0] == ["2.000"] * 3
    with pytest.raises(KeyError):
        study_curves("small", "accuracy", "A title", "A caption.")


def test_pairs_are_rows_with_two_columns(write: Any, tmp_path: Path) -> None:
    write()
    for file in (tmp_path / "studies.toml", tmp_path / "claims" / "small.json"):
        text = file.read_text()
        for arm, name in (("first", "words: old"), ("second", "words: new"), ("third", "letters: old")):
            text = text.replace(f'"{arm}"', f'"{name}"')
        file.write_text(text)
    data = json.loads((tmp_path / "claims" / "small.json").read_text())
    data["table"] += [{**row, "arm": "letters: new"} for row in data["table"] if row["arm"] == "words: new"]
    data["step_seconds"]["letters: new"] = {"128": 0.5}
    (tmp_path / "claims" / "small.json").write_text(json.dumps(data))
    entry = (tmp_path / "studies.toml").read_text() + '"letters: new" = { gated = true }\n'
    (tmp_path / "studies.toml").write_text(entry)
    lines = [line for line in pairs_table("small", "tokens").splitlines() if line.startswith("| ")]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    assert cells[0] == ["tokens", "unigram baseline", "old", "new", "gain, 95% CI"]
    assert [row[0] for row in cells[1:]] == ["words", "letters"]
    assert cells[1][1] == "3.00" and cells[1][2].startswith("3.05") and cells[1][3].startswith("1.55")
    assert cells[1][4].startswith("+1.50 [") and cells[2][4].startswith("−0.50 [")


def test_an_incomplete_study_is_an_error(write: Any, tmp_path: Path) -> None:
    write(third=None)
    with pytest.raises(PageError, match="a run of 'third' in the study small ended in NaN"):
        study_table("small")
    (tmp_path / "claims" / "small.json").unlink()
    with pytest.raises(PageError, match="the study small is not finished"):
        study_table("small")


@pytest.mark.parametrize(
    ("name", "setting", "least", "most"),
    [
        ("positions-by-length", "64", 0.7, 0.1),
        ("positions-by-length", "256", 0.3, 0.1),
        ("positions-by-text", "words", 0.9, 0.3),
        ("positions-by-text", "word pieces", 0.9, 0.3),
        ("positions-by-text", "characters of tiny Shakespeare", 0.9, 0.1),
        ("positions-by-text", "characters of Python source code", 0.9, 0.1),
    ],
)
def test_rotary_positions_leave_the_plateau_in_every_setting(
    name: str, setting: str, least: float, most: float
) -> None:
    """
    `stuck.md` says in words how much lower every rotary run ends than every other run, and how little the
    loss of the other runs falls in their second half.
    """
    study = read_study(name)
    learned, rotary = (final_losses(study, f"{setting}: {kind}") for kind in ("learned", "rotary"))
    assert max(rotary) < min(learned) - least
    for row in study.of(f"{setting}: learned"):
        assert row["curve"][len(row["curve"]) // 2][1] - row["curve"][-1][1] < most
