"""
# Recorded runs

Each file in `docs/runs` is the record of one result, and every number on the site comes from one of them. A
record is up to date if the current code reproduces its fingerprint, however much the code has changed since.
"""

import json
import re
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from docs.literate.prose import cell
from docs.literate.rows import PageError, find_files
from docs.project import ROOT
from labml_bert.checksums import parse_sealed

RUNS = ROOT / "docs" / "runs"


@dataclass
class Record:
    """One file in `docs/runs`."""

    name: str
    """The name of the file, without the extension."""
    data: dict[str, Any]

    @property
    def modern(self) -> "Record":
        """The run of the modern encoder, which the record for the live page holds beside those of BERT."""
        return Record(self.name, self.data | self.data["modern"])

    def curve(self, metric: str, over: str = "seconds") -> list[tuple[float, float]]:
        """The points of a metric over `seconds` or `step`. Raises `PageError` for an unknown metric."""
        history = self.data["history"]
        if metric not in history:
            names = ", ".join(name for name in history if name != "seconds")
            raise PageError(f"the run {self.name} has no metric {metric!r}; it has {names}")
        seconds = dict(history["seconds"])
        return [(seconds[step] if over == "seconds" else step, value) for step, value in history[metric]]

    @property
    def has_partial_curve(self) -> bool:
        """Whether the curve of the held-out loss was computed on only part of the held-out text."""
        # The final loss is always computed on all of it.
        return abs(self.data["history"]["valid.loss"][-1][1] - self.data["result"]["loss"]) > 0.005

    def machine(self) -> str:
        """The machine and the precision, in a few words."""
        hardware = self.data["hardware"]
        name = hardware.get("name") or hardware["device"]
        cores = f", {hardware['cores']} cores" if hardware["device"] == "cpu" else ""
        return f"{name}{cores}, {hardware['precision']}"


def provenance(record: Record) -> str:
    """Date, machine, duration and commit, as a sentence in Markdown."""
    data = record.data
    return (
        f"{cell(data['date'])}, {cell(record.machine())}, {data['result']['wall_seconds'] / 60:.1f} minutes, "
        f"commit `{cell((data.get('commit') or 'unknown')[:12])}`."
    )


def read_records(folder: Path = RUNS) -> dict[str, Record]:
    """
    All records by name. Raises `PageError` for a file that isn't the record of an experiment, and for a name
    that would have to be escaped in links and headings.
    """
    records = {}
    for path in find_files(folder, "*.json"):
        if not re.fullmatch(r"[\w.-]+", path.stem):
            raise PageError(f"{path}: use only letters, digits, dots and dashes in the name of a record")
        try:
            data = parse_sealed(path.read_text("utf-8"))
        except ValueError as error:
            raise PageError(f"{path}: not JSON: {error}") from None
        is_record = isinstance(data, dict) and data.keys() >= {"experiment", "command", "date", "hardware"}
        if not (is_record and isinstance(data["command"], str) and isinstance(data.get("scripts", []), list)):
            raise PageError(f"{path} is not a record of an experiment; remove it from docs/runs")
        records[path.stem] = Record(path.stem, data)
    return records


def to_namespace(value: Any) -> Any:
    """A copy of JSON data that is read with dots: `result.loss`."""
    return json.loads(json.dumps(value), object_hook=lambda pairs: SimpleNamespace(**pairs))


# A timing can't be reproduced exactly, so its record shows only the date and the machine.
TIMINGS = {"speed", "ablation", "growth", "modern_steps", "parts"}
NOT_CHECKED = "Not checked against later code."


def describe_check(record: Record) -> str:
    """
    A sentence that says whether the current code reproduces the record, or nothing for a record of timings.

    A *fingerprint* holds the losses of a short run with the same configuration. Its entry `checked` has the
    latest date on which the code gave the same losses. A record of several runs has several fingerprints,
    and the sentence then gives the earliest of their dates.
    """
    data = record.data
    if data.keys() & TIMINGS:
        return ""
    fingerprints = dict(data.get("fingerprints", {}))
    if "fingerprint" in data:
        fingerprints[""] = data["fingerprint"]
    # Each variant of a claim needs a fingerprint, but runs from another claim are checked there.
    arms = {row["arm"] for row in data["table"] if "from" not in row} if "claim" in data else set()
    dates = [fingerprint.get("checked", {}).get("date") for fingerprint in fingerprints.values()]
    if not dates or None in dates or arms - fingerprints.keys():
        return NOT_CHECKED
    return f"Checked on {cell(min(dates))}: that day's code repeated the losses of a short run."
