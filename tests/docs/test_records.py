"""Whether the current code reproduces a record, and what the pages say about it."""

import json
import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from docs.figures.records import Record, describe_check, read_records
from docs.figures.runs import recorded_runs
from docs.literate.rows import PageError


def new_fingerprint(date: str = "2026-11-22") -> dict:
    return {"steps": 3, "losses": [3.0, 2.9, 2.8], "evaluation": {}, "checked": {"date": date, "commit": "0"}}


def test_a_checked_fingerprint_is_reported_with_its_date() -> None:
    record = Record("x", {"fingerprint": new_fingerprint()})
    assert (
        describe_check(record) == "Checked on 2026-11-22: that day's code repeated the losses of a short run."
    )
    record = Record("x", {"fingerprints": {"": new_fingerprint()}})
    assert (
        describe_check(record) == "Checked on 2026-11-22: that day's code repeated the losses of a short run."
    )


@pytest.mark.parametrize(
    "data", [{}, {"fingerprint": {}}, {"fingerprint": {"steps": 3}}, {"fingerprints": {}, "table": []}]
)
def test_a_missing_check_is_reported(data: dict) -> None:
    assert describe_check(Record("x", data)) == "Not checked against later code."


@pytest.mark.parametrize("kind", ["speed", "ablation", "growth"])
def test_records_of_times_have_no_check(kind: str) -> None:
    assert describe_check(Record("x", {kind: []})) == ""


def test_the_oldest_check_of_several_arms_counts() -> None:
    rows = [{"arm": "short"}, {"arm": "long"}, {"arm": "shared", "from": "another claim"}]
    fingerprints = {"short": new_fingerprint("2026-11-23"), "long": new_fingerprint("2026-11-22")}
    record = Record("x", {"claim": {}, "table": rows, "fingerprints": fingerprints})
    assert (
        describe_check(record) == "Checked on 2026-11-22: that day's code repeated the losses of a short run."
    )
    del fingerprints["long"]
    assert describe_check(record) == "Not checked against later code."


HEAD = {"experiment": "mlm_tiny", "command": "python x.py", "date": "2026-11-22", "hardware": {}}


TYPES = [json.dumps(HEAD | part) for part in ({"command": None}, {"scripts": None}, {"scripts": 5})]


@pytest.mark.parametrize("text", ["{", "[]", "{}", '"text"', '{"experiment": "mlm_tiny"}', *TYPES])
def test_a_file_that_is_not_a_record_is_named(text: str, tmp_path: Path) -> None:
    (tmp_path / "mlm_tiny.json").write_text(text)
    with pytest.raises(PageError, match=r"mlm_tiny\.json"):
        read_records(tmp_path)


@pytest.mark.parametrize(
    "parts",
    [
        {},
        {"history": {}},
        {"history": []},
        {"history": [{"step": math.inf, "loss": math.inf}]},
        {"result": None},
        {"table": 1},
        {"result": {"loss": "low"}},
    ],
)
def test_a_record_that_lacks_a_part_is_named(parts: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "mine.json").write_text(json.dumps(HEAD | parts))
    page: Any = SimpleNamespace(path="experiments/mlm_tiny.py", is_script=True, page="experiments/mlm_tiny")
    with pytest.raises(PageError, match=r"docs/runs/mine\.json is damaged|the run mine has no"):
        recorded_runs(page, read_records(tmp_path))
