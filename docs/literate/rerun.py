"""
# Running old records again

`make records` repeats each recorded run whose code has changed since, the cheapest first, so that
stopping early leaves as few old ones as can be. A run that fails leaves its old record.
"""

import os
import shlex
import subprocess
import sys
from pathlib import Path

from docs.literate.names import Source
from docs.literate.records import ROOT, RUNS, Record, age, read_records
from docs.literate.site import read_sources


def outdated(records: dict[str, Record], sources: dict[str, Source]) -> list[Record]:
    """The records that are older than their code, in the order of what they cost."""
    old = [record for record in records.values() if age(record, sources)]
    return sorted(old, key=lambda record: record.data["result"]["wall_seconds"])


def run_again(record: Record, folder: Path = RUNS) -> None:
    """
    Repeats the command of a record in its own name.

    Raises `CalledProcessError` where it fails.
    """
    _, *words = shlex.split(record.data["command"])
    part = folder / f"{record.name}.json.new"
    subprocess.run([sys.executable, *words, "--record", str(part)], cwd=ROOT, check=True)
    os.replace(part, folder / f"{record.name}.json")


if __name__ == "__main__":
    waiting = outdated(read_records(), read_sources())
    if not waiting:
        print("every record is as new as its code")
    for number, record in enumerate(waiting, 1):
        minutes = record.data["result"]["wall_seconds"] / 60
        print(
            f"\n{record.name}: {number} of {len(waiting)}, took {minutes:.1f} minutes last time", flush=True
        )
        try:
            run_again(record)
        except subprocess.CalledProcessError as error:
            sys.exit(f"error: {record.name} failed with code {error.returncode}; its old record stands")
