"""No text from a record becomes HTML on a page, wherever in the record it is."""

import copy
import re
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from docs.figures.records import Record, read_records
from docs.figures.runs import recorded_runs

MARKUP = '<b id="x">'
RECORDS = read_records()
# One record of each kind is enough: records that differ only in their number have the same keys.
NAMES = [name for name in RECORDS if not re.search(r"-\d$", name)]
# Only the long mode renders these, which take longest, and records with a dash, which are similar to others.
LONG = ("attention_map", "bert_tiny", "live", "mlm_modern", "speed")


def leaves(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The paths of all values that aren't lists or objects. In a list, only those of its first two items."""
    items: list[Any] = []
    if isinstance(value, dict):
        items = list(value)
    elif isinstance(value, list):
        items = list(range(min(2, len(value))))
    else:
        yield path
    for item in items:
        yield from leaves(value[item], (*path, item))


def with_markup(record: Record, path: tuple[Any, ...], is_name: bool) -> Record:
    """A copy of the record with markup in one value or, if `is_name`, in the name of that value."""
    data = copy.deepcopy(record.data)
    parent = data
    for key in path[:-1]:
        parent = parent[key]
    if is_name:
        parent[MARKUP] = parent.pop(path[-1])
    else:
        parent[path[-1]] = MARKUP
    return Record(record.name, data)


@pytest.mark.slow(reason="renders the page of a record once for each value in it")
@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=pytest.mark.long) if n in LONG or "-" in n else n for n in NAMES]
)
def test_markup_in_a_record_stays_text(name: str) -> None:
    record = RECORDS[name]
    source: Any = SimpleNamespace(
        path="experiments/x.py", is_script=True, page=f"experiments/{record.data['experiment']}"
    )
    built, raw = 0, []
    for path in leaves({key: value for key, value in record.data.items() if key != "fingerprint"}):
        for is_name in (False, True):
            if is_name and not isinstance(path[-1], str):
                continue
            try:
                page = recorded_runs(source, {name: with_markup(record, path, is_name)})
            except Exception:
                # With text instead of a number, the page can't be built, so it shows no markup either.
                continue
            outside_code = re.sub(r"^( *)(`{3,}).*?^\1\2$", "", page, flags=re.MULTILINE | re.DOTALL)
            built += 1
            raw += [path] * (MARKUP in outside_code)
    assert built > 20 and raw == []
