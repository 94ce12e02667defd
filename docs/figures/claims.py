r"""
# The ledger of claims

What the page of claims shows of `experiments/claims/claims.toml` and of the records in `docs/runs/claims`.
A verdict is worked out here, from the numbers and the tests that were written down before them.

Each test compares the seeds of two arms. Its interval is Welch's, at 95%:

$$\bar x - \bar y \pm t_\nu \sqrt{\frac{s_x^2}{n_x} + \frac{s_y^2}{n_y}}$$

and of a time or a count the logarithms are taken, so that it is an interval for a factor. The test says *yes*
if all of the interval is above the margin, *no* if all of it is below, and *open* otherwise.

Two kinds of number have no such interval. Of runs that never arrived the spread is unknown, so a factor is
then bounded by ranks, and runs that failed are counted, so their shares have Newcombe's interval.
"""

import json
import math
import statistics
import tomllib
from collections.abc import Sequence
from itertools import combinations
from pathlib import Path
from typing import Any, NamedTuple

from scipy import stats

from docs.figures.records import ROOT, RUNS, Record, checked
from docs.literate.chart import Bar, Line, bar_chart, line_chart
from docs.literate.prose import cell, wide
from docs.literate.rows import PageError

CLAIMS = ROOT / "experiments" / "claims" / "claims.toml"
COUNTED = ("tokens", "seconds")
HIGHER_IS_BETTER = ("probe", "package", "summary")
NAMES = {
    "loss": "held-out loss",
    "first_loss": "loss before the first step",
    "seen_loss": "loss with nothing covered",
    "failed": "share of failed runs",
    "probe": "right, linear layer",
    "package": "right, one text",
    "summary": "right, two texts",
    "package 100": "right, 100 labels",
    "package 1000": "right, 1,000 labels",
}

Row = dict[str, Any]


class Interval(NamedTuple):
    """A mean, or the difference of two, and the ends of its 95% interval."""

    middle: float
    low: float
    high: float


def student(freedom: float) -> float:
    """
    The 97.5% point of Student's t as printed tables have it, to four digits and for whole degrees of freedom:
    a fraction is rounded down, and more than ten count as ten. That makes the intervals a little too wide.
    """
    return float(f"{stats.t.ppf(0.975, min(max(int(freedom), 1), 10)):.4g}")


def mean(values: Sequence[float]) -> Interval:
    """Of one arm. One seed has no interval."""
    middle = statistics.mean(values)
    if len(values) < 2:
        return Interval(middle, -math.inf, math.inf)
    half = student(len(values) - 1) * statistics.stdev(values) / math.sqrt(len(values))
    return Interval(middle, middle - half, middle + half)


def difference(x: Sequence[float], y: Sequence[float]) -> Interval:
    """Of the means of `x` and `y`. The degrees of freedom are those of Welch and Satterthwaite."""
    middle = statistics.mean(x) - statistics.mean(y)
    if min(len(x), len(y)) < 2:
        return Interval(middle, -math.inf, math.inf)
    parts = [(statistics.variance(values) / len(values), len(values) - 1) for values in (x, y)]
    square = sum(part for part, _ in parts)
    if square == 0:
        return Interval(middle, middle, middle)
    half = student(square**2 / sum(part**2 / n for part, n in parts)) * math.sqrt(square)
    return Interval(middle, middle - half, middle + half)


def least_factor(worse: Sequence[float], better: Sequence[float]) -> float:
    """
    A factor that the true one exceeds at 95%, of times in `worse` over times in `better`. It is one of all
    the ratios, the one whose place the rank test of Mann and Whitney gives: the smallest of 3 times 3, the
    fifth of 5 times 5. So it does not fall where a run of `worse` lasts longer than was seen. Zero where the
    runs are too few for any bound.
    """
    n, m = len(worse), len(better)
    # How many ratios are below one, over all orders in which the runs could have come.
    below = [sum(places) - n * (n - 1) // 2 for places in combinations(range(n + m), n)]
    place = 0
    while sum(count <= place for count in below) <= 0.05 * len(below):
        place += 1
    ratios = sorted(x / y for x in worse for y in better)
    return ratios[place - 1] if place else 0.0


def share_difference(x: Sequence[float], y: Sequence[float]) -> Interval:
    """
    Of two shares of runs, each 0 or 1: Newcombe's interval from Wilson's two. It has a width where all runs
    of an arm ended alike. (Newcombe 1998, method 10.)
    """

    p, q = statistics.mean(x), statistics.mean(y)
    (p_low, p_high), (q_low, q_high) = (
        stats.binomtest(round(sum(runs)), len(runs)).proportion_ci(0.95, "wilson") for runs in (x, y)
    )
    low = p - q - math.hypot(p - p_low, q_high - q)
    return Interval(p - q, low, p - q + math.hypot(p_high - p, q - q_low))


class Answer(NamedTuple):
    """What a test says."""

    says: str
    """`yes`, `no` or `open`."""
    gain: Interval | None
    """How much better: a factor for what is counted, else a difference. `None` where a run has no number."""
    at_least: bool = False
    """Whether a run of the worse arm had not arrived when it ended, so that the factor is larger."""
    at_most: bool = False
    """Whether one of the better arm had not, so that it is smaller. Where both hold, nobody knows it."""


def says(gain: Interval, margin: float) -> str:
    """What an interval says of a margin."""
    return "yes" if gain.low > margin else "no" if gain.high < margin else "open"


def verdict(answers: Sequence[str]) -> str:
    """
    ## The rule

    `holds` if all tests of the claim say yes, `fails` if all say no, `depends` if some say yes and some no,
    and `undecided` otherwise: at this size, with so many seeds, the numbers do not say.
    """
    if {"yes", "no"} <= {*answers}:
        return "depends"
    if {*answers} == {"yes"}:
        return "holds"
    return "fails" if {*answers} == {"no"} else "undecided"


class Arrival(NamedTuple):
    """How far a run was when its loss was low enough, or at its end."""

    value: float
    arrived: bool


class Claim:
    """
    ## One claim

    An entry of `claims.toml` and its record, if there is one.
    """

    def __init__(self, about: dict[str, Any], record: Record | None):
        self.about, self.record = about, record
        self.arms: list[str] = list(about["arms"])
        self.rows: list[Row] = []
        if record is not None and "record" in about:
            self.rows = rows_of_comparison(record)
        elif record is not None:
            # The search for a rate has a seed of its own, above all others.
            self.rows = [row for row in record.data["table"] if row["seed"] < about["seeds"]]

    def expected(self) -> int:
        """How many runs each arm has in the end."""
        points = math.prod(len(values) for values in self.about.get("grid", {}).values())
        return self.about["seeds"] * (points if self.about.get("over_grid") else 1)

    def of(self, arm: str) -> list[Row]:
        """The runs of an arm."""
        return [row for row in self.rows if row["arm"] == arm]

    def finished(self) -> bool:
        """Whether all runs are there, and the times of their steps."""
        timed = self.record is not None and ("record" in self.about or self.record.data["step_seconds"])
        return bool(timed) and all(len(self.of(arm)) >= self.expected() for arm in self.arms)

    def values(self, arm: str, metric: str) -> list[float | None]:
        """A number for each seed; over a grid its mean. `a - b` is the difference of two."""
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
            None if None in found else statistics.mean(value for value in found if value is not None)
            for found in by_seed.values()
        ]

    def spent(self, row: Row, step: float, metric: str) -> float:
        """Tokens or seconds until a step."""
        if metric == "tokens":
            return float(step * row["batch_tokens"])
        assert self.record is not None
        times = self.record.data["step_seconds"][row["arm"]]
        starts = [start for start, _ in row["lengths"]]
        ends = [*starts[1:], math.inf]
        return sum(
            times[str(length)] * max(0.0, min(step, end) - start)
            for (start, length), end in zip(row["lengths"], ends, strict=True)
        )

    def arrival(self, row: Row, goal: float, metric: str) -> Arrival:
        """On the straight line between two evaluations."""
        before: tuple[float, float] | None = None
        for step, loss in row["curve"]:
            if loss is not None and loss <= goal:
                if before is not None:
                    step = before[0] + (step - before[0]) * (before[1] - goal) / (before[1] - loss)
                return Arrival(max(self.spent(row, step, metric), 1e-9), True)
            before = None if loss is None else (step, loss)
        return Arrival(self.spent(row, row["curve"][-1][0], metric), False)

    def answer(self, test: dict[str, Any]) -> Answer:
        """One test. A run that did not arrive took longer than it lasted, so it can support one side only."""
        metric, margin = test["metric"], test["margin"]
        if metric in COUNTED:
            goal = self.rows[0]["unigram_loss"] - test["below"]
            better, worse = (
                [self.arrival(row, goal, metric) for row in self.of(test[side])]
                for side in ("better", "worse")
            )
            at_least, at_most = (not all(arrival.arrived for arrival in side) for side in (worse, better))
            times = [[arrival.value for arrival in side] for side in (worse, better)]
            gain = Interval(*map(math.exp, difference(*(list(map(math.log, side)) for side in times))))
            if at_least:
                gain = Interval(gain.middle, least_factor(*times), math.inf)
            if at_most:
                gain = Interval(gain.middle, 0.0, 1 / max(least_factor(times[1], times[0]), 1e-9))
            yes = gain.low > margin and not at_most
            no = gain.high < margin and not at_least
            return Answer("yes" if yes else "no" if no else "open", gain, at_least, at_most)
        if metric == "failed":
            failed = [
                [row["result"]["failed"] for row in self.of(test[side])] for side in ("worse", "better")
            ]
            gain = share_difference(*failed)
            return Answer(says(gain, margin), gain)
        found = [self.values(test[side], metric) for side in ("better", "worse")]
        x, y = ([value for value in values if value is not None] for values in found)
        if len(x) + len(y) < sum(map(len, found)) or not x or not y:
            return Answer("open", None)
        higher = metric.split()[0] in HIGHER_IS_BETTER
        gain = difference(x, y) if higher else difference(y, x)
        return Answer(says(gain, margin), gain)

    def verdict(self) -> str:
        """By the rule, or how far it is."""
        if not self.rows:
            return "not run yet"
        if not self.finished():
            return "not finished yet"
        return verdict([self.answer(test).says for test in self.about["tests"] if not test.get("aside")])


def rows_of_comparison(record: Record) -> list[Row]:
    """The table of `finetune_docstrings.py` as rows of a claim: one for each arm and seed."""
    found: dict[tuple[str, int], Row] = {}
    for row in record.data["table"]:
        one = found.setdefault(
            (row["arm"], row["seed"]), {"arm": row["arm"], "seed": row["seed"], "result": {}}
        )
        one["result"][f"{row['task']} {row['labels']}"] = row["accuracy"]
    return list(found.values())


def read_claim(name: str, claims: Path | None = None, runs: Path = RUNS) -> Claim:
    """Raises `PageError` where there is no such claim, or its record is none."""
    path = claims or CLAIMS
    found = {entry["name"]: entry for entry in tomllib.loads(path.read_text("utf-8"))["claim"]}
    if name not in found:
        raise PageError(f"{path.name} has no claim {name!r}; it has {', '.join(found)}")
    about = found[name]
    home = runs / (f"{about['record']}.json" if "record" in about else f"claims/{name}.json")
    if not home.is_file():
        return Claim(about, None)
    try:
        return Claim(about, Record(home.stem, json.loads(home.read_text("utf-8"))))
    except (ValueError, KeyError) as error:
        raise PageError(f"{home}: no record of a claim: {error}") from None


def signed(value: float) -> str:
    """A difference."""
    return "–" if math.isinf(value) else f"{value:+.3f}".replace("-", "−")


def shown_gain(answer: Answer, metric: str) -> tuple[str, str]:
    """The gain and its interval, in words."""
    if answer.gain is None:
        return "a run ended without a number", "–"
    middle, low, high = answer.gain
    if metric not in COUNTED:
        return signed(middle), f"{signed(low)} to\N{NO-BREAK SPACE}{signed(high)}"
    if answer.at_least and answer.at_most:
        return "neither arrived in all runs", "–"
    if answer.at_least:
        return f"≥ {middle:.2f} ×", f"{low:.2f} × or more"
    if answer.at_most:
        return f"≤ {middle:.2f} ×", f"{high:.2f} × or less"
    return f"{middle:.2f} ×", f"{low:.2f} × to\N{NO-BREAK SPACE}{high:.2f} ×"


def in_words(answer: Answer, metric: str) -> str:
    """The gain of a test as a chapter says it: so many times, points of a hundred, or nats."""
    if answer.gain is None or (answer.at_least and answer.at_most):
        return shown_gain(answer, metric)[0]
    middle, low, high = answer.gain
    if metric not in COUNTED:
        share = metric == "failed" or metric.split()[0] in HIGHER_IS_BETTER
        said = [f"{100 * value:+.1f}".replace("-", "−") if share else signed(value) for value in answer.gain]
        unit = "points" if share else "nats"
        return f"{said[0]} {unit} (95% interval {said[1]} to\N{NO-BREAK SPACE}{said[2]})"
    if answer.at_least:
        return f"at least {middle:.1f} times (at 95%: {low:.1f} or more)"
    if answer.at_most:
        return f"at most {middle:.1f} times (at 95%: {high:.1f} or less)"
    return f"{middle:.1f} times (95% interval {low:.1f} to {high:.1f})"


def measured(claim: Claim, says: str) -> str:
    """
    The gain of one test, for the prose of a chapter. It is asked for by what the test says.

    Raises `PageError` where the claim has no such test.
    """
    for test in claim.about["tests"]:
        if test["says"] == says:
            return in_words(claim.answer(test), test["metric"]) if claim.finished() else "not measured yet"
    known = "; ".join(test["says"] for test in claim.about["tests"])
    raise PageError(f"the claim {claim.about['name']!r} has no test {says!r}; it has {known}")


def row(claim: Claim) -> str:
    """The claim, its verdict and its tests, as Markdown."""
    about = claim.about
    parts = [
        f"## {about['title']} {{#{about['name']}}}",
        f"*{about['sentence']}* {about['source']}",
        f"**Asked here.** {about['question']}",
        f"**Verdict: {claim.verdict()}.**",
    ]
    if not claim.rows:
        return "\n\n".join(parts)
    assert claim.record is not None
    if claim.finished():
        table = "| the claim says | answer | by | 95% interval | margin |\n|---|---|---:|---:|---:|\n"
        for test in about["tests"]:
            found = claim.answer(test)
            unit = " ×" if test["metric"] in COUNTED else ""
            margin = f"{test['margin']:g}{unit}".replace("-", "−")
            says = f"*beside the verdict:* {test['says']}" if test.get("aside") else test["says"]
            table += (
                f"| {says} | {found.says} | {' | '.join(shown_gain(found, test['metric']))} | {margin} |\n"
            )
        parts.append(wide(table))
    else:
        there, wanted = len(claim.rows), claim.expected() * len(claim.arms)
        missing = "the others" if there < wanted else "the times of their steps"
        parts.append(f"{there} of {wanted} runs are there, and the verdict waits for {missing}.")
    if changed(claim):
        parts.append("*The claim was changed after these runs; they answer the question as it was before.*")
    parts.append(f"*{checked(claim.record)}*")
    return "\n\n".join(parts)


# What a claim has that leaves a part out.
DEFAULTS: dict[str, Any] = {
    **{key: {} for key in ("arms", "options", "grid")},
    **{key: [] for key in ("scores", "tests")},
    "job": "",
    "seeds": 0,
    "over_grid": False,
}


def changed(claim: Claim) -> bool:
    """Whether the record was made for another question."""
    if claim.record is None or "record" in claim.about:
        return False
    ran = claim.record.data["claim"]
    return any(
        claim.about.get(key, default) != (ran.get(key) or default) for key, default in DEFAULTS.items()
    )


def drawing(claim: Claim) -> str:
    """The figure of a claim: the mean curve of each arm, or a bar for each."""
    about = claim.about
    claimed = about["title"].replace("`", "")
    arms = [arm for arm in claim.arms if claim.of(arm)]
    if not arms:
        return "<!-- no figure yet -->"
    if about["figure"] != "curves":
        bars = []
        for arm in arms:
            values = [value for value in claim.values(arm, about["figure"]) if value is not None]
            if values:
                words = f"{statistics.mean(values):.3f}"
                bars.append(Bar(arm, statistics.mean(values), words, 1, min(values), max(values)))
        if not bars:
            return "<!-- no figure yet -->"
        title = f"{claimed}: {NAMES[about['figure']]}"
        return bar_chart(
            bars, title, f"{title}. Means; the thin line goes from the lowest seed to the highest."
        )
    assert claim.record is not None
    over = "seconds" if claim.finished() else "tokens"
    lines = [Line(arm, mean_curve(claim, claim.of(arm), over)) for arm in arms]
    title = f"{claimed}: held-out loss by {over}"
    baselines = [("unigram", claim.rows[0]["unigram_loss"])]
    return line_chart(lines, title, over, "loss, nats", baselines, f"{title}, the mean of the seeds.")


def mean_curve(claim: Claim, rows: list[Row], over: str) -> list[tuple[float, float]]:
    """Over the evaluations that every seed has."""
    points = []
    for found in zip(*(row["curve"] for row in rows), strict=False):
        losses = [loss for _, loss in found]
        if None not in losses:
            xs = [claim.spent(row, step, over) for row, (step, _) in zip(rows, found, strict=True)]
            points.append((statistics.mean(xs), statistics.mean(losses)))
    return points


def details(claim: Claim) -> str:
    """Arms, seeds, budget, cost and command, as Markdown."""
    about = claim.about
    if "record" in about:
        command = f"python experiments/{about['record']}.py"
        budget = f"{about['seeds']} seeds an arm"
    else:
        command = f"python experiments/claims/claims.py {about['name']}"
        grid = "; ".join(
            f"{key} {', '.join(f'{v:g}' for v in values)}" for key, values in about["grid"].items()
        )
        search = "each seed runs all of" if about.get("over_grid") else "searched over"
        budget = (
            f"{about['seeds']} seeds an arm, {about['options']['tokens']:,} tokens a run; {search} {grid}"
        )
    metrics = list(dict.fromkeys(test["metric"] for test in about["tests"] if test["metric"] in NAMES))
    head = "".join(f" {NAMES[metric]} |" for metric in metrics)
    table = f"| arm |{head} seeds | what it changes | values taken |\n"
    table += f"|---|{'---:|' * len(metrics)}---:|---|---|\n"
    for arm, options in about["arms"].items():
        rows = claim.of(arm)
        changes = ", ".join(
            f"`{key} = {json.dumps(value)}`" for key, value in options.items() if key != "rate_of"
        )
        points = [] if about.get("over_grid") else [row["point"] for row in rows[:1] if "point" in row]
        taken = ", ".join(f"{key} {value:g}" for point in points for key, value in point.items())
        if "rate_of" in options:
            taken += f"{', ' if taken else ''}chosen for {cell(options['rate_of'])}"
        cells = "".join(f" {shown_mean(claim.values(arm, metric))} |" for metric in metrics)
        seeds = len({row["seed"] for row in rows})
        table += f"| {cell(arm)} |{cells} {seeds} of {about['seeds']} |"
        table += f" {changes or '–'} | {taken or '–'} |\n"
    return f"{wide(table)}\n{arrivals(claim)}{budget}. Cost: {cost(claim)}.\n\n```sh\n{command}\n```"


def arrivals(claim: Claim) -> str:
    """When each arm reached the losses that are asked for, as a table: the mean of the runs that did."""
    levels = sorted({test["below"] for test in claim.about["tests"] if test["metric"] in COUNTED})
    if not levels or not claim.finished():
        return ""
    head = "".join(f" {level:g} {'nat' if level == 1 else 'nats'} below |" for level in levels)
    table = f"| arm |{head}\n|---|{'---:|' * len(levels)}\n"
    for arm in claim.arms:
        table += f"| {cell(arm)} |"
        for level in levels:
            rows = [(row, row["unigram_loss"] - level) for row in claim.of(arm)]
            there = [row_and_goal for row_and_goal in rows if claim.arrival(*row_and_goal, "tokens").arrived]
            tokens, seconds = (
                [claim.arrival(*row_and_goal, metric).value for row_and_goal in there] for metric in COUNTED
            )
            few = f", {len(there)} of {len(rows)}" if len(there) < len(rows) else ""
            said = (
                f"{statistics.mean(tokens) / 1e6:.1f} M, {statistics.mean(seconds):.0f} s" if there else "–"
            )
            table += f" {said}{few} |"
        table += "\n"
    says = (
        "When the runs were so far below the entropy of the frequencies, in tokens and seconds. Where not all"
    )
    return f"{says} arrived, it says how many did, and their mean:\n\n{wide(table)}\n"


def minutes(claim: Claim) -> float:
    """On two cores: as measured, or as reckoned where runs are missing or are those of another experiment."""
    if claim.record is None or "record" in claim.about or not claim.finished():
        return float(claim.about["minutes"])
    return sum(row["core_seconds"] for row in claim.record.data["table"] if "from" not in row) / 120


def cost(claim: Claim) -> str:
    """What it took, where and from which commit; before that, what it will take."""
    about = f"about {minutes(claim):.0f} minutes on two cores"
    if claim.record is None or not claim.rows:
        return about
    where = f"{cell(claim.record.machine())}, {cell(claim.record.data['date'])}"
    text = f"{about}; {where}, commit {cell(claim.record.data.get('commit') or 'unknown')[:7]}"
    shared = sorted({row["from"] for row in claim.rows if "from" in row})
    if shared:
        links = ", ".join(f"[{name}](#{name})" for name in shared)
        text += f"; the runs that it shares with {links} are counted there"
    return text


def shown_mean(values: list[float | None]) -> str:
    """Mean and half of the 95% interval."""
    known = [value for value in values if value is not None]
    if not known:
        return "–"
    found = mean(known)
    half = "" if math.isinf(found.high) else f" ± {found.high - found.middle:.3f}"
    lost = f", {len(values) - len(known)} without a number" if len(known) < len(values) else ""
    return f"{found.middle:.3f}{half}{lost}"


def hours(claims: Path | None = None) -> float:
    """What the whole ledger takes."""
    path = claims or CLAIMS
    names = [entry["name"] for entry in tomllib.loads(path.read_text("utf-8"))["claim"]]
    return sum(minutes(read_claim(name, claims)) for name in names) / 60
