"""
# A claim and its results

A claim is an entry in `claims.toml`. Its results are in `FOLDER/claims/NAME.json`, and we rewrite this file
after each run. So you can stop a claim and continue it later: a run that is in the file isn't repeated. A run
whose options are no longer those of the claim is dropped.

The first seeds of a claim are pilots. Then come fresh seeds, only for the two variants of the primary
endpoint: three seeds at first, then five, eight and twelve in total, until [the rule](decision.py) decides. A
claim whose primary endpoint was written before its first run needs no pilots.
"""

import json
import math
import time
import tomllib
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, fields
from functools import cached_property, partial
from itertools import product
from pathlib import Path
from statistics import median
from typing import Any

import torch

from experiments.claims.analysis import Analysis
from experiments.claims.decision import FIRST_SEED, LOOKS, is_fresh
from experiments.claims.options import OptionValues
from experiments.claims.scores import measure_scores
from experiments.claims.training import EVALUATIONS, Run, prepare, take_step, train
from labml_bert.checksums import parse_sealed, read_checked, seal
from labml_bert.files import check_own, lock, make_folder, write_whole
from labml_bert.run.record import describe_run
from labml_bert.run.timing import time_in_turn
from labml_bert.stdout import console
from labml_bert.training.trainer import Step

# The hyperparameter search uses this seed. All other runs use other seeds, so none of them took part in it.
TUNING_SEED = 100


@dataclass
class Claim:
    """
    ## A claim

    The fields of an entry in `claims.toml` or `studies.toml` that the script needs. These files explain them.
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
    primary: str | None = None
    delta: float | None = None
    evaluations: int = EVALUATIONS
    first_fresh_seed: int = FIRST_SEED

    def first_seeds(self) -> range:
        """Returns the seeds that all arms run: the pilots or, without pilots, the first fresh seeds."""
        return range(self.seeds) if self.seeds else self.fresh_seeds(LOOKS[0])

    def fresh_seeds(self, count: int) -> range:
        """Returns the first `count` of the seeds that decide."""
        return range(self.first_fresh_seed, self.first_fresh_seed + count)

    def is_fresh(self, seed: int) -> bool:
        """Whether a run with this seed is one of those that decide."""
        return is_fresh(seed, self.first_fresh_seed)

    def grid_points(self) -> list[OptionValues]:
        """Returns all combinations of the grid's values. Without a grid, this is one empty combination."""
        grid = self.grid or {}
        return [dict(zip(grid, values, strict=True)) for values in product(*grid.values())]

    def count_runs(self) -> int:
        """Returns the number of runs with the first seeds, including the search."""
        points, seeds = len(self.grid_points()), len(self.first_seeds())
        searches = sum("tuned_values_of" not in arm for arm in self.arms.values())
        if self.over_grid:
            return len(self.arms) * seeds * points
        return len(self.arms) * seeds + (searches * points if points > 1 else 0)

    def options_of(self, arm: str, point: OptionValues) -> OptionValues:
        """Merges the options of the claim, the grid point and the arm. In a conflict, the last one wins."""
        arm_options = {key: value for key, value in self.arms[arm].items() if key != "tuned_values_of"}
        return {**(self.options or {}), **point, **arm_options}


def read_claims(path: Path) -> dict[str, Claim]:
    """Returns the claims or the studies in a file, by name."""
    names = {field.name for field in fields(Claim)}
    (entries,) = tomllib.loads(path.read_text("utf-8")).values()
    claims = [Claim(**{key: value for key, value in entry.items() if key in names}) for entry in entries]
    return {claim.name: claim for claim in claims}


class Results:
    """
    ## The results of a claim
    """

    def __init__(self, claim: Claim, folder: Path, device: torch.device, is_read_only: bool = False):
        """Raises `ValueError` if the record is damaged or in use, or if it can't be read or written."""
        self.claim, self.device = claim, device
        self.path = folder / "claims" / f"{claim.name}.json"
        # This dictionary contains the rows that the claim has needed so far, in the order of its runs.
        self.rows: dict[str, dict[str, Any]] = {}
        try:
            if not is_read_only:
                make_folder(self.path.parent)
                self.lock = lock(self.path.parent, name=f".{claim.name}.lock")
            check_own(self.path)
            self.record = (
                parse_sealed(self.path.read_text("utf-8")) if self.path.exists() else self.empty_record()
            )
            self.recorded_rows = {row_key(row): row for row in self.record["table"]}
            self.check()
            name = self.record["claim"].get("name", claim.name)
            if self.record["claim"] and not self.has_same_runs(self.record["claim"]):
                self.recorded_rows = {}
        except BlockingIOError:
            raise ValueError(
                f"another process is running this claim in {self.path}; wait until it ends"
            ) from None
        except OSError as error:
            raise ValueError(
                f"cannot use {self.path}: {error.strerror or error}; choose another --record"
            ) from None
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError, OverflowError) as error:
            reason = f"{self.path} is not a record of a claim ({error})"
            raise ValueError(f"{reason}; move it to start over") from None
        if name != claim.name:
            raise ValueError(
                f"{self.path} is the record of {name}, not of {claim.name}; choose another --record"
            )

    @cached_property
    def source(self) -> dict[str, Any]:
        """The date, commit, versions and hardware of new runs. A record can have runs of several commits."""
        source = describe_run("claims/claims", [self.claim.name], self.device)
        return {key: source[key] for key in ("date", "commit", "versions", "hardware")}

    def empty_record(self) -> dict[str, Any]:
        """Returns a record without results."""
        return {
            **describe_run("claims/claims", [self.claim.name], self.device),
            "claim": {},
            "table": [],
            "step_seconds": {},
        }

    def check(self) -> None:
        """Raises an error if the record is damaged. Without this check, an error could come hours later."""
        if type(self.record["table"]) is not list:
            raise ValueError("the table is no list")
        heads = {"claim", "step_seconds", "commit", "versions", "hardware"}
        if heads - self.record.keys():
            raise ValueError("something is missing")
        for row in self.recorded_rows.values():
            if not all(type(row[key]) is dict for key in ("options", "point", "result")):
                raise ValueError("the options, the point or the result have the wrong type")
            versions = row.get("versions", self.record["versions"])
            steps = [step for step, _ in (*row["lengths"], *row["curve"])]
            integers = [row["seed"], *steps, *(length for _, length in row["lengths"])]
            if type(versions["python"]) is not str or any(type(value) is not int for value in integers):
                raise ValueError("a version, a seed, a step or a length has the wrong type")
            # A run that starts with NaN takes no steps, so it has no lengths.
            if not row["curve"] or bool(row["lengths"]) != (row["curve"][0][1] is not None):
                raise ValueError("the curve is empty, or it doesn't fit the lengths")
            # If the loss of a run isn't finite, the record has `None` for the loss, and no scores.
            losses = [row["result"]["loss"], *row["result"].values(), *(loss for _, loss in row["curve"])]
            numbers = [row["result"]["failed"], *(row[key] for key in ("core_seconds", "unigram_loss"))]
            numbers += [row["batch_tokens"], *(loss for loss in losses if loss is not None)]
            # `isfinite` raises `TypeError` if a value isn't a number.
            if not all(map(math.isfinite, numbers)):
                raise ValueError("a number isn't finite")
        for times in self.record["step_seconds"].values():
            if not all(math.isfinite(seconds) for seconds in times.values()):
                raise ValueError("a time isn't finite")

    def has_same_runs(self, entry: dict[str, Any]) -> bool:
        """Whether the runs of a recorded claim are of the same kind as ours and have as many evaluations."""
        evaluations = entry.get("evaluations", EVALUATIONS)
        return bool(entry.get("job") == self.claim.job and evaluations == self.claim.evaluations)

    def has_scores(self, row: dict[str, Any]) -> bool:
        """Whether a recorded run has the scores that this claim needs, or needs none."""
        needs_scores = row["seed"] != TUNING_SEED and row["result"]["loss"] is not None
        return not needs_scores or {*(self.claim.scores or ())} <= row["result"].keys()

    def write(self, is_finished: bool = False) -> None:
        """
        Writes the record: all rows that the claim has used so far, and the older rows that it may still use.
        If `is_finished` is false, some rows can be from before the claim was edited, so the claims page
        ignores the record.
        """
        table = [*{**self.rows, **self.recorded_rows, **self.rows}.values()]
        self.record |= {"claim": asdict(self.claim), "table": table, "is_finished": is_finished}
        write_whole(self.path, seal(json.dumps(self.record, indent=1)))

    def get_row(self, arm: str, seed: int, point: OptionValues) -> dict[str, Any]:
        """
        Returns the row of a run. Trains it if neither this claim nor another one has recorded it.

        Raises `ValueError` if the recorded runs had another version of the text.
        """
        options = self.claim.options_of(arm, point)
        row: dict[str, Any] = {"arm": arm, "seed": seed, "options": options, "point": point}
        key = row_key(row)
        if key in self.recorded_rows and self.has_scores(self.recorded_rows[key]):
            self.rows[key] = self.recorded_rows[key]
        elif key not in self.rows:
            self.check_python(options.get("corpus", "python-docs"))
            result = self.find_in_other_claims(row) or {**self.run_once(options, seed), **self.source}
            self.rows[key] = {**row, **result}
            if not self.claim.is_fresh(seed) or seed in self.claim.first_seeds():
                # The recorded step times may belong to other options, so `complete` times the steps again.
                self.record["step_seconds"] = {}
            self.write()
            console.print(
                f"  {arm}, seed {seed}{describe_point(point)}: {describe_result(self.rows[key])}",
                soft_wrap=True,
            )
        return self.rows[key]

    def check_python(self, corpus: str) -> None:
        """
        Raises `ValueError` if the text comes with Python and recorded runs used another version of Python,
        which has another text.
        """
        current = self.source["versions"]["python"]
        rows = self.recorded_rows.values()
        others = {row.get("versions", self.record["versions"])["python"] for row in rows} - {current}
        if corpus.startswith("python-") and others:
            raise ValueError(
                f"the runs in {self.path} had the text of Python {min(others)}, and this is {current}; use "
                "that version, or another --record"
            )

    def find_in_other_claims(self, new_row: dict[str, Any]) -> dict[str, Any] | None:
        """
        Looks for the same run in the records of other claims: with the same options, seed, commit, versions
        and hardware, and with the scores that this claim needs. So claims that share a baseline train it only
        once. Returns `None` if there is no such run, or if the commit isn't known. Skips records that can't
        be read.
        """
        if self.source["commit"] is None:
            return None
        for path in sorted(self.path.parent.glob("*.json")):
            if path == self.path:
                continue
            try:
                other = parse_sealed(read_checked(path).decode())
                for row in other["table"]:
                    same = self.has_same_runs(other["claim"]) and all(
                        row.get(key) == self.source[key] for key in ("commit", "versions", "hardware")
                    )
                    same = same and all(row[key] == new_row[key] for key in ("seed", "options"))
                    if same and self.has_scores(row):
                        source = row.get("from", path.stem)
                        return {**row, "arm": new_row["arm"], "point": new_row["point"], "from": source}
            except (OSError, ValueError, KeyError, TypeError, AttributeError):
                continue
        return None

    def run_once(self, options: OptionValues, seed: int) -> dict[str, Any]:
        """Trains one run. Measures its scores, unless it belongs to the search or its loss isn't finite."""
        start = time.process_time()
        run = prepare(self.claim.job, options, seed, self.device)
        outcome = train(run, evaluations=self.claim.evaluations)
        if seed != TUNING_SEED and outcome["result"]["loss"] is not None:
            outcome["result"] |= measure_scores(run, self.claim.scores or [], seed)
        # The CPU time, summed over all cores, depends less on other programs than the wall time does.
        return {**outcome, "core_seconds": time.process_time() - start}

    def best_point(self, arm: str) -> OptionValues:
        """Returns the grid point with the lowest loss in the search of the arm or its `tuned_values_of`."""
        points = self.claim.grid_points()
        arm = self.claim.arms[arm].get("tuned_values_of", arm)
        if len(points) == 1:
            return points[0]
        losses = [self.get_row(arm, TUNING_SEED, point)["result"]["loss"] for point in points]
        return points[min(range(len(points)), key=lambda i: math.inf if losses[i] is None else losses[i])]

    def complete(self) -> None:
        """Does what isn't recorded yet: runs the search and first seeds, times steps, runs fresh seeds."""
        for arm in self.claim.arms:
            self.run_seeds(arm, self.claim.first_seeds())
        pilots = {key for key, row in self.recorded_rows.items() if not self.claim.is_fresh(row["seed"])}
        stale = pilots - self.rows.keys()
        for key in stale:
            del self.recorded_rows[key]
        if stale or {*self.record["step_seconds"]} != {*self.claim.arms} or self.lacks_times():
            self.time_steps()
        if self.claim.primary:
            self.confirm(self.claim.primary)
        if not self.record.get("is_finished", True):
            self.write(is_finished=True)

    def run_seeds(self, arm: str, seeds: range) -> None:
        """Runs an arm with these seeds at its best grid point or, with `over_grid`, at all grid points."""
        for point in self.claim.grid_points() if self.claim.over_grid else [self.best_point(arm)]:
            for seed in seeds:
                self.get_row(arm, seed, point)

    def confirm(self, primary: str) -> None:
        """
        Runs fresh seeds of the two arms of the primary endpoint, until the rule decides or we have taken the
        last look. Then drops recorded runs that the claim no longer needs.
        """
        test = next(test for test in self.claim.tests or [] if test["says"] == primary)
        for look in LOOKS:
            for arm in (test["better"], test["worse"]):
                self.run_seeds(arm, self.claim.fresh_seeds(look))
            if self.lacks_times():
                self.time_steps()
            fresh = [row for row in self.rows.values() if self.claim.is_fresh(row["seed"])]
            decision = Analysis(asdict(self.claim), fresh, self.record["step_seconds"]).decision()
            console.print(f"  after {look} fresh seeds: {decision}")
            if decision != "inconclusive":
                break
        if self.recorded_rows.keys() - self.rows.keys():
            self.recorded_rows = self.rows
            self.write()

    def lacks_times(self) -> bool:
        """Whether a run reached a length at which we haven't timed a step of its arm yet."""
        times = self.record["step_seconds"]
        return any(
            str(length) not in times.get(row["arm"], {})
            for row in self.rows.values()
            for _, length in row["lengths"]
        )

    def time_steps(self, rounds: int = 5, repeats: int = 10) -> None:
        """Times a step of each arm at each of its sequence lengths, in turn, and records the medians."""
        steps: dict[str, Callable[[], object]] = {}
        first = self.claim.first_seeds()[0]
        for arm in self.claim.arms:
            rows = [row for row in self.rows.values() if row["arm"] == arm]
            options = next(row["options"] for row in rows if row["seed"] == first)
            run = prepare(self.claim.job, options, 0, self.device)
            # A run that failed early may not have reached all lengths.
            for length in sorted({length for row in rows for _, length in row["lengths"]}):
                steps[json.dumps([arm, length])] = partial(timed_step, run, length)
        step_seconds: dict[str, dict[str, float]] = {arm: {} for arm in self.claim.arms}
        for name, times in time_in_turn(steps, self.device, rounds, repeats).items():
            arm, length = json.loads(name)
            step_seconds[arm][str(length)] = round(median(times), 6)
        self.record["step_seconds"] = step_seconds
        # Drop the fingerprints of earlier runs. `labml_bert.run.fingerprint --write` takes new ones.
        self.record.pop("fingerprints", None)
        self.write()

    def repeat(self, arms: list[str], seed: int) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
        """
        Repeats the recorded runs of these arms with this seed. Yields each recorded row together with the new
        one.

        Raises `ValueError` if an arm has no such run.
        """
        all_rows = self.recorded_rows.values()
        rows = [row for row in all_rows if row["arm"] in arms and row["seed"] == seed]
        for arm in arms:
            if all(row["arm"] != arm for row in rows):
                names = ", ".join(dict.fromkeys(repr(row["arm"]) for row in all_rows))
                seeds = ", ".join(str(seed) for seed in sorted({row["seed"] for row in all_rows}))
                remedy = (
                    f"choose an arm from {names} and a seed from {seeds}" if names else "run the claim first"
                )
                raise ValueError(f"{self.path} has no run of {arm!r} with seed {seed}; {remedy}")
        for row in rows:
            yield row, {**row, **self.run_once(row["options"], seed)}


def timed_step(run: Run, length: int) -> None:
    """Draws a batch and takes a training step on it. `time_steps` times this function."""
    take_step(run, Step(run.trainer), length)


def row_key(row: dict[str, Any]) -> str:
    """Returns a string that identifies a run within its claim: the arm, the seed and the options."""
    return json.dumps([row["arm"], row["seed"], row["options"]], sort_keys=True)


def describe_point(point: OptionValues) -> str:
    """Formats a grid point for printing."""
    return "".join(f", {key} {value:g}" for key, value in point.items())


def describe_result(row: dict[str, Any]) -> str:
    """Formats the results of a run for printing."""
    numbers = (f"{key} {'none' if value is None else f'{value:.4f}'}" for key, value in row["result"].items())
    return f"{', '.join(numbers)} ({row['core_seconds']:.0f} core seconds)"
