r"""
# What the runs of a claim say

A claim has one or more tests, and each test compares two variants by one metric. One test, the primary
endpoint, decides. This file turns the recorded runs into the effect of each test, with its confidence
interval, and applies [the rule](decision.py) to the primary endpoint. The runner needs the decision to know
whether it can stop. The claims page shows all effects.
"""

import math
import statistics
from itertools import pairwise
from typing import Any, NamedTuple

from experiments.claims.decision import (
    LEVEL,
    RULE_LEVEL,
    Interval,
    decide,
    difference,
    proportion_difference,
    ratio_lower_bound,
    seeds_needed,
)

COUNTED = ("tokens", "seconds")
# For these metrics, the effect is a ratio. For all others, it's a difference.
RATIOS = (*COUNTED, "stable_learning_rate")
# These metrics are fractions of the runs. With three seeds, the rule would be wrong too often for them.
FRACTIONS, FEWEST_FOR_FRACTIONS = ("failed", "reached"), 5
HIGHER_IS_BETTER = ("probe", "package", "summary")

Row = dict[str, Any]


class Effect(NamedTuple):
    """The result of a test."""

    gain: Interval | None
    """How much better: a ratio for metrics in `RATIOS`, else a difference. `None` if a value is missing."""
    at_least: bool = False
    """Whether the ratio is a lower bound, for example because a run of `worse` never reached the loss."""
    at_most: bool = False
    """Whether the ratio is an upper bound. If `at_least` is set too, the ratio is unknown."""

    @property
    def is_unknown(self) -> bool:
        """Whether nothing bounds the ratio, as when runs of both variants never reached the loss."""
        return self.at_least and self.at_most


class Arrival(NamedTuple):
    """The tokens or seconds that a run took to reach a loss, or all that it took if it never did."""

    value: float
    has_arrived: bool


class Analysis:
    """
    ## The analysis of a claim

    `entry` is an entry of `claims.toml`, and `rows` are the recorded runs to analyze. `step_seconds` contains
    the seconds per training step for each variant and sequence length.
    """

    def __init__(self, entry: dict[str, Any], rows: list[Row], step_seconds: dict[str, dict[str, float]]):
        self.entry, self.rows, self.step_seconds = entry, rows, step_seconds

    def count_seeds(self) -> int:
        """Returns the number of seeds of the primary endpoint's variants, the smaller one if they differ."""
        arms = (self.primary()["better"], self.primary()["worse"])
        return min(len({row["seed"] for row in self.of(arm)}) for arm in arms)

    def of(self, arm: str) -> list[Row]:
        """Returns the runs of a variant."""
        return [row for row in self.rows if row["arm"] == arm]

    def values(self, arm: str, metric: str) -> list[float | None]:
        """
        Returns one number per seed: the metric, averaged over the grid if each seed runs a whole grid. It's
        `None` if a run has no value. The metric `a - b` is the difference of the metrics `a` and `b`.
        """
        if " - " in metric:
            pairs = zip(*(self.values(arm, part) for part in metric.split(" - ")), strict=True)
            return [None if a is None or b is None else a - b for a, b in pairs]
        by_seed: dict[int, list[float | None]] = {}
        for row in self.of(arm):
            first = row["curve"][0][1] if metric == "first_loss" else None
            by_seed.setdefault(row["seed"], []).append(
                first if metric == "first_loss" else row["result"].get(metric)
            )
        return [
            None if None in numbers else statistics.mean(value for value in numbers if value is not None)
            for numbers in by_seed.values()
        ]

    def stable_learning_rates(self, arm: str) -> list[float]:
        """
        Returns, for each seed, the largest learning rate of the grid up to which no run failed, or 0 if the
        run at the lowest learning rate failed.
        """
        by_seed: dict[int, dict[float, float]] = {}
        for row in self.of(arm):
            by_seed.setdefault(row["seed"], {})[row["point"]["learning_rate"]] = row["result"]["failed"]
        largest = []
        for failed in by_seed.values():
            first_failure = min((value for value in failed if failed[value]), default=math.inf)
            largest.append(max((value for value in failed if value < first_failure), default=0.0))
        return largest

    def compare_stable_learning_rates(self, test: dict[str, Any], level: float) -> Effect:
        """
        Returns the ratio of the geometric means of the largest stable learning rates. The grid is coarse: the
        true value lies anywhere from the largest stable point to the next one. So each end of the interval
        moves outward by the largest ratio of neighboring points. If, with any seed, a variant was stable at
        all points or at none, an end is unknown.
        """
        grid = sorted({row["point"]["learning_rate"] for row in self.rows})
        gap = max(high / low for low, high in pairwise(grid))
        better, worse = (self.stable_learning_rates(test[side]) for side in ("better", "worse"))
        x, y = ([math.log(value or grid[0] / gap) for value in side] for side in (better, worse))
        middle, low, high = map(math.exp, difference(x, y, level))
        unknown_low = 0.0 in better or grid[-1] in worse
        unknown_high = 0.0 in worse or grid[-1] in better
        # If only one end is unknown, `middle` becomes a bound too, so it moves by the same factor.
        if unknown_high != unknown_low:
            middle = middle / gap if unknown_high else middle * gap
        gain = Interval(middle, 0.0 if unknown_low else low / gap, math.inf if unknown_high else high * gap)
        return Effect(gain, at_least=unknown_high, at_most=unknown_low)

    def cost_at(self, row: Row, step: float, metric: str) -> float:
        """Returns the tokens or seconds up to a step. The seconds come from the measured times per step."""
        if metric == "tokens":
            return float(step * row["batch_tokens"])
        times = self.step_seconds[row["arm"]]
        starts = [start for start, _ in row["lengths"]]
        ends = [*starts, math.inf][1:]
        return sum(
            times[str(length)] * max(0.0, min(step, end) - start)
            for (start, length), end in zip(row["lengths"], ends, strict=True)
        )

    def arrival(self, row: Row, goal: float, metric: str) -> Arrival:
        """Returns a run's arrival at the loss `goal`. Interpolates linearly between two evaluations."""
        before: tuple[float, float] | None = None
        for step, loss in row["curve"]:
            if loss is not None and loss <= goal:
                if before is not None:
                    step = before[0] + (step - before[0]) * (before[1] - goal) / (before[1] - loss)
                return Arrival(max(self.cost_at(row, step, metric), 1e-9), True)
            before = None if loss is None else (step, loss)
        return Arrival(max(self.cost_at(row, row["curve"][-1][0], metric), 1e-9), False)

    def times(self, test: dict[str, Any]) -> tuple[list[Arrival], list[Arrival]]:
        """Returns the arrivals of the better and of the worse variant's runs at the loss of a test."""
        goal = self.rows[0]["unigram_loss"] - test["below"]
        better, worse = (
            [self.arrival(row, goal, test["metric"]) for row in self.of(test[side])]
            for side in ("better", "worse")
        )
        return better, worse

    def samples(self, test: dict[str, Any]) -> tuple[list[float], list[float]] | None:
        """
        Returns two samples. If the mean of the first is larger, the variant called `better` is ahead. For
        times and tokens, the samples contain logarithms. Returns `None` if a value is missing.
        """
        if test["metric"] in COUNTED:
            x, y = ([math.log(arrival.value) for arrival in side] for side in self.times(test))
            return y, x
        if test["metric"] == "reached":
            better, worse = self.times(test | {"metric": "tokens"})
            x, y = ([float(arrival.has_arrived) for arrival in side] for side in (better, worse))
            return x, y
        if test["metric"] == "failed":
            # Count each run by itself, without averaging over the grid.
            x, y = ([row["result"]["failed"] for row in self.of(test[side])] for side in ("worse", "better"))
            return x, y
        values = [self.values(test[side], test["metric"]) for side in ("better", "worse")]
        x, y = ([value for value in side if value is not None] for side in values)
        if len(x) + len(y) < sum(map(len, values)) or not x or not y:
            return None
        return (x, y) if test["metric"].split()[0] in HIGHER_IS_BETTER else (y, x)

    def effect(self, test: dict[str, Any], level: float = LEVEL) -> Effect:
        """
        Returns the result of one test, with an interval at this confidence level. If a run never reached the
        loss, it would have taken longer than it lasted, so the ratio is a bound.
        """
        if test["metric"] == "stable_learning_rate":
            return self.compare_stable_learning_rates(test, level)
        samples = self.samples(test)
        if samples is None:
            return Effect(None)
        if test["metric"] in FRACTIONS:
            return Effect(proportion_difference(*samples, level))
        gain = difference(*samples, level)
        if test["metric"] not in COUNTED:
            return Effect(gain)
        better, worse = self.times(test)
        at_least, at_most = (not all(arrival.has_arrived for arrival in side) for side in (worse, better))
        gain = Interval(*map(math.exp, gain))
        slow, fast = ([arrival.value for arrival in side] for side in (worse, better))
        # For the rule, a one-sided bound must be wrong as seldom as one end of a two-sided interval.
        bound_level = level if level == LEVEL else (1 + level) / 2
        if at_least:
            gain = Interval(gain.middle, ratio_lower_bound(slow, fast, bound_level), math.inf)
        if at_most:
            high = 1 / max(ratio_lower_bound(fast, slow, bound_level), 1e-9)
            gain = Interval(gain.middle, 0.0 if not at_least else gain.low, high)
        return Effect(gain, at_least, at_most)

    def primary(self) -> dict[str, Any]:
        """Returns the test that decides the claim."""
        return next(test for test in self.entry["tests"] if test["says"] == self.entry["primary"])

    def delta(self) -> float:
        """Returns the difference below which an effect doesn't matter. For a ratio, returns the log."""
        delta = float(self.entry["delta"])
        return math.log(delta) if self.primary()["metric"] in RATIOS else delta

    def primary_interval(self, level: float = RULE_LEVEL) -> Interval | None:
        """
        Returns the interval of the primary endpoint in the unit of `delta()`. The one at the level of the
        rule decides. Returns `None` if a value is missing.
        """
        gain = self.effect(self.primary(), level).gain
        if gain is None or self.primary()["metric"] not in RATIOS:
            return gain
        return Interval(*(math.log(max(value, 1e-9)) for value in gain))

    def decision(self) -> str:
        """Returns what the rule says about these runs."""
        interval, effect = self.primary_interval(), self.effect(self.primary())
        if interval is None or effect.is_unknown:
            return "inconclusive"
        if self.primary()["metric"] in FRACTIONS and self.count_seeds() < FEWEST_FOR_FRACTIONS:
            return "inconclusive"
        return decide(interval, self.delta())

    def needed_seeds(self) -> float | None:
        """
        Estimates how many fresh seeds per variant would decide the claim, including any fresh seeds among
        these runs. Returns infinity if even infinitely many seeds with the same mean wouldn't be enough,
        because the grid is too coarse. Returns `None` if we have no estimate, or if it's above `MOST_SEEDS`.
        """
        test, effect = self.primary(), self.effect(self.primary())
        if test["metric"] == "stable_learning_rate" and not effect.is_unknown:
            # With more seeds, the interval shrinks to the one at level 0, which is as wide as the gaps.
            narrowest = self.primary_interval(level=0.0)
            is_too_coarse = narrowest is not None and decide(narrowest, self.delta()) == "inconclusive"
            return math.inf if is_too_coarse else None
        if test["metric"] in (*FRACTIONS, "stable_learning_rate"):
            return None
        samples = self.samples(test)
        if samples is None or effect.at_least or effect.at_most:
            return None
        needed = seeds_needed(*samples, self.delta())
        return None if needed is None else max(needed, len(samples[0]) + 1)
