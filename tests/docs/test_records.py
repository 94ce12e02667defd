"""Whether today's code reproduces a record: what the pages say about it."""

import pytest

from docs.figures.records import Record, checked


def fingerprint(date: str = "2026-11-22") -> dict:
    return {"steps": 3, "losses": [3.0, 2.9, 2.8], "evaluation": {}, "checked": {"date": date, "commit": "0"}}


def test_a_record_whose_fingerprint_was_checked_says_when() -> None:
    record = Record("x", {"fingerprint": fingerprint()})
    assert checked(record) == "Reproduced by today's code (2026-11-22)."
    record = Record("x", {"fingerprints": {"": fingerprint()}})
    assert checked(record) == "Reproduced by today's code (2026-11-22)."


@pytest.mark.parametrize(
    "data", [{}, {"fingerprint": {}}, {"fingerprint": {"steps": 3}}, {"fingerprints": {}, "table": []}]
)
def test_a_record_without_a_check_says_so(data: dict) -> None:
    assert checked(Record("x", data)) == "Not checked against today's code."


@pytest.mark.parametrize("kind", ["speed", "ledger", "growth"])
def test_nothing_is_said_of_times(kind: str) -> None:
    assert checked(Record("x", {kind: []})) == ""


def test_of_several_arms_the_earliest_check_counts() -> None:
    rows = [{"arm": "short"}, {"arm": "long"}, {"arm": "shared", "from": "another claim"}]
    prints = {"short": fingerprint("2026-11-23"), "long": fingerprint("2026-11-22")}
    record = Record("x", {"claim": {}, "table": rows, "fingerprints": prints})
    assert checked(record) == "Reproduced by today's code (2026-11-22)."
    del prints["long"]
    assert checked(record) == "Not checked against today's code."
