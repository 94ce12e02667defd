"""
# A claim and its results

A claim is an entry of `claims.toml`. Its results are a file, `FOLDER/claims/NAME.json`, written as a whole
after each run, so a claim that is stopped continues where it was. A run that is in the file is not repeated;
one whose options are no longer those of the claim is dropped.
"""

import json
import math
import time
import tomllib
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, fields
from functools import partial
from itertools import product
from pathlib import Path
from statistics import median
from typing import Any

import torch

from experiments.claims.options import OptionValues
from experiments.claims.scores import measure_scores
from experiments.claims.training import Run, prepare, take_step, train
from labml_bert.files import lock, write_whole
from labml_bert.run.record import record_head
from labml_bert.run.timing import time_in_turn
from labml_bert.stdout import console
from labml_bert.training.trainer import Step

# The seed of the search for a learning rate. No final run has it, so the final runs were not searched among.
TUNING_SEED = 100


@dataclass
class Claim:
    """
    ## A claim

    What the script needs of an entry of `claims.toml`, where the fields are explained.
    """

    name: str
    title: str
    seeds: int
    minutes: int
    arms: dict[str, OptionValues]
    job: str = ""
    options: OptionValues | None = None
    grid: dict[str, list[Any]] | None = None
    over_grid: bool = False
    scores: list[str] | None = None
    tests: list[dict[str, Any]] | None = None
    record: str | None = None
    experiments: list[str] | None = None

    def grid_points(self) -> list[OptionValues]:
        """All combinations of the grid's values; without a grid, one empty combination."""
        grid = self.grid or {}
        return [dict(zip(grid, values, strict=True)) for values in product(*grid.values())]

    def count_runs(self) -> int:
        """How many runs the claim takes, the search included."""
        points = len(self.grid_points())
        searching = sum("rate_of" not in arm for arm in self.arms.values())
        if self.over_grid:
            return len(self.arms) * self.seeds * points
        return len(self.arms) * self.seeds + (searching * points if points > 1 else 0)

    def options_of(self, arm: str, point: OptionValues) -> OptionValues:
        """All options of a run: those of the claim, of the grid point and of the arm."""
        changed = {key: value for key, value in self.arms[arm].items() if key != "rate_of"}
        return {**(self.options or {}), **point, **changed}


def read_claims(path: Path) -> dict[str, Claim]:
    """All claims by name."""
    names = {field.name for field in fields(Claim)}
    entries = tomllib.loads(path.read_text("utf-8"))["claim"]
    claims = [Claim(**{key: value for key, value in entry.items() if key in names}) for entry in entries]
    return {claim.name: claim for claim in claims}


class Results:
    """
    ## The results of a claim
    """

    def __init__(self, claim: Claim, folder: Path, device: torch.device):
        """Raises `ValueError` if the file is no record of a claim or cannot be written."""
        self.claim, self.device = claim, device
        self.path = folder / "claims" / f"{claim.name}.json"
        # The rows that the claim needs, in the order in which they were asked for.
        self.rows: dict[str, dict[str, Any]] = {}
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self.record = (
                json.loads(self.path.read_text("utf-8")) if self.path.exists() else self.empty_record()
            )
            self.recorded = {row_key(row): row for row in self.record["table"]}
            self.check()
            self.lock = lock(self.path.parent, name=f".{claim.name}.lock")
        except BlockingIOError:
            raise ValueError(f"another process runs this claim in {self.path}; wait until it ends") from None
        except OSError as error:
            raise ValueError(f"cannot use {self.path}: {error.strerror}; choose another --record") from None
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            raise ValueError(f"{self.path} is no record of a claim; move it away to start anew") from None

    def empty_record(self) -> dict[str, Any]:
        """A record without a result."""
        return {
            **record_head("claims/claims", [self.claim.name], self.device),
            "claim": {},
            "table": [],
            "step_seconds": {},
        }

    def check(self) -> None:
        """Raises an error if something is missing that would otherwise be missed after an hour of runs."""
        heads = {"claim", "step_seconds", "commit", "versions", "hardware"}
        parts = {"arm", "seed", "options", "result", "core_seconds", "curve", "lengths"}
        if heads - self.record.keys() or any(parts - row.keys() for row in self.recorded.values()):
            raise ValueError("something is missing")
        for row in self.recorded.values():
            # Raises `TypeError` if one is no number.
            for value in (row["result"]["loss"], row["core_seconds"]):
                math.isfinite(0 if value is None else value)
            describe_result(row)
        self.record["step_seconds"].keys()

    def write(self) -> None:
        """Writes the rows needed so far, and those recorded earlier that may still be needed."""
        table = [*{**self.rows, **self.recorded}.values()]
        self.record |= {"claim": asdict(self.claim), "table": table}
        write_whole(self.path, json.dumps(self.record, indent=1))

    def get_row(self, arm: str, seed: int, point: OptionValues) -> dict[str, Any]:
        """The result of a run, which is made now if nobody has made it."""
        options = self.claim.options_of(arm, point)
        row: dict[str, Any] = {"arm": arm, "seed": seed, "options": options, "point": point}
        key = row_key(row)
        if key in self.recorded:
            self.rows[key] = self.recorded[key]
        elif key not in self.rows:
            result = self.find_in_other_claims(row) or self.run_once(options, seed)
            self.rows[key] = {**row, **result}
            self.write()
            console.print(
                f"  {arm}, seed {seed}{describe_point(point)}: {describe_result(self.rows[key])}",
                soft_wrap=True,
            )
        return self.rows[key]

    def find_in_other_claims(self, wanted: dict[str, Any]) -> dict[str, Any] | None:
        """
        The same run in the record of another claim, with the scores of this one. Several claims compare
        something with the same baseline, which is then trained once. Records that cannot be read are skipped.
        """
        scores = set(self.claim.scores or ()) if wanted["seed"] != TUNING_SEED else set()
        for path in sorted(self.path.parent.glob("*.json")):
            if path == self.path:
                continue
            try:
                other = json.loads(path.read_text("utf-8"))
                for row in other["table"]:
                    same = other["claim"]["job"] == self.claim.job
                    same = same and all(
                        other[key] == self.record[key] for key in ("commit", "versions", "hardware")
                    )
                    same = same and all(row[key] == wanted[key] for key in ("seed", "options"))
                    if same and (row["result"]["loss"] is None or scores <= row["result"].keys()):
                        source = row.get("from", path.stem)
                        return {**row, "arm": wanted["arm"], "point": wanted["point"], "from": source}
            except (OSError, ValueError, KeyError, TypeError):
                continue
        return None

    def run_once(self, options: OptionValues, seed: int) -> dict[str, Any]:
        """One run and its scores. The search for a learning rate looks at the loss only."""
        start = time.process_time()
        run = prepare(self.claim.job, options, seed, self.device)
        outcome = train(run)
        if seed != TUNING_SEED and outcome["result"]["loss"] is not None:
            outcome["result"] |= measure_scores(run, self.claim.scores or [], seed)
        # Seconds of all cores added up, which a busy machine changes little.
        return {**outcome, "core_seconds": time.process_time() - start}

    def best_point(self, arm: str) -> OptionValues:
        """The point of the grid with the lowest held-out loss."""
        points = self.claim.grid_points()
        arm = self.claim.arms[arm].get("rate_of", arm)
        if len(points) == 1:
            return points[0]
        losses = [self.get_row(arm, TUNING_SEED, point)["result"]["loss"] for point in points]
        return points[min(range(len(points)), key=lambda i: math.inf if losses[i] is None else losses[i])]

    def complete(self) -> None:
        """Makes all runs that are missing, and then times the steps."""
        for arm in self.claim.arms:
            for point in self.claim.grid_points() if self.claim.over_grid else [self.best_point(arm)]:
                for seed in range(self.claim.seeds):
                    self.get_row(arm, seed, point)
        is_stale = bool(self.recorded.keys() - self.rows.keys())
        self.recorded = self.rows
        if is_stale or {*self.record["step_seconds"]} != {*self.claim.arms}:
            self.time_steps()

    def time_steps(self, rounds: int = 5, repeats: int = 10) -> None:
        """Seconds per step of each arm at each of its lengths, all measured in turn."""
        works: dict[str, Callable[[], object]] = {}
        for arm in self.claim.arms:
            row = next(row for row in self.rows.values() if row["arm"] == arm and row["seed"] == 0)
            run = prepare(self.claim.job, row["options"], 0, self.device)
            for length in sorted({length for _, length in row["lengths"]}):
                works[json.dumps([arm, length])] = partial(timed_step, run, length)
        step_seconds: dict[str, dict[str, float]] = {arm: {} for arm in self.claim.arms}
        for name, times in time_in_turn(works, self.device, rounds, repeats).items():
            arm, length = json.loads(name)
            step_seconds[arm][str(length)] = round(median(times), 6)
        self.record["step_seconds"] = step_seconds
        # They were of other runs, and are taken anew by `python -m labml_bert.run.fingerprint --write`.
        self.record.pop("fingerprints", None)
        self.write()

    def repeat(self, arm: str, seed: int) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
        """
        Yields each recorded row of this arm and seed, and the same run made again.

        Raises `ValueError` if there is none.
        """
        rows = [row for row in self.recorded.values() if (row["arm"], row["seed"]) == (arm, seed)]
        if not rows:
            raise ValueError(f"{self.path} has no run of {arm!r} with seed {seed}; run the claim first")
        for row in rows:
            yield row, {**row, **self.run_once(row["options"], seed)}


def timed_step(run: Run, length: int) -> None:
    """What is timed: drawing a batch, masking it, and a step."""
    take_step(run, Step(run.trainer), length)


def row_key(row: dict[str, Any]) -> str:
    """Everything that decides a result."""
    return json.dumps([row["arm"], row["seed"], row["options"]], sort_keys=True)


def describe_point(point: OptionValues) -> str:
    """A point of the grid, as words to print."""
    return "".join(f", {key} {value:g}" for key, value in point.items())


def describe_result(row: dict[str, Any]) -> str:
    """The numbers of a run, as words to print."""
    numbers = (f"{key} {'none' if value is None else f'{value:.4f}'}" for key, value in row["result"].items())
    return f"{', '.join(numbers)} ({row['core_seconds']:.0f} s of a core)"
