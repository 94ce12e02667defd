r"""
# Verdicts on the claims

The page *Claims* shows what is in `experiments/claims/claims.toml` and in the records under
`docs/runs/claims`. The verdicts are computed here, from the records and from the tests in that file.

Each test compares two variants. It takes the mean of each over the seeds, and Welch's 95% confidence interval
of the difference:

$$\bar x - \bar y \pm t_\nu \sqrt{\frac{s_x^2}{n_x} + \frac{s_y^2}{n_y}}$$

For times and numbers of tokens it uses their logarithms, so the interval is one of a ratio. The answer is
*yes* if the whole interval is above the margin, *no* if the whole interval is below it, and *inconclusive*
otherwise.

Two cases need another interval. If some runs never reached a loss, their standard deviation is unknown, so
the ratio gets a lower bound from a rank test. Failed runs are counted, and the difference of two proportions
has Newcombe's interval.
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

from docs.figures.records import ROOT, RUNS, Record, describe_check
from docs.literate.chart import Bar, Line, bar_chart, figure, line_chart, numbers, text
from docs.literate.prose import cell, wide
from docs.literate.rows import PageError

CLAIMS = ROOT / "experiments" / "claims" / "claims.toml"
COUNTED = ("tokens", "seconds")
HIGHER_IS_BETTER = ("probe", "package", "summary")
# Shown as percentages; a difference of two is in percentage points.
PERCENTAGES = ("failed", *HIGHER_IS_BETTER)
NAMES = {
    "loss": "held-out loss",
    "first_loss": "loss before the first step",
    "seen_loss": "loss with nothing masked",
    "failed": "failed runs",
    "probe": "accuracy of a linear probe",
    "package": "accuracy on one text",
    "summary": "accuracy on two texts",
    "package 100": "accuracy with 100 labels",
    "package 1000": "accuracy with 1,000 labels",
    "package 100 - package 3202": "accuracy with 100 labels minus accuracy with 3,202",
}

Row = dict[str, Any]


class Interval(NamedTuple):
    """A mean, or the difference of two, and the ends of its 95% interval."""

    middle: float
    low: float
    high: float


def student(freedom: float) -> float:
    """
    The 97.5% quantile of Student's t as in a printed table: to four digits, and for whole degrees of freedom
    up to ten. A fraction is rounded down, and more than ten count as ten, so the intervals are a little too
    wide.
    """
    return float(f"{stats.t.ppf(0.975, min(max(int(freedom), 1), 10)):.4g}")


def mean(values: Sequence[float]) -> Interval:
    """The mean of one variant. A single seed has no interval."""
    middle = statistics.mean(values)
    if len(values) < 2:
        return Interval(middle, -math.inf, math.inf)
    half = student(len(values) - 1) * statistics.stdev(values) / math.sqrt(len(values))
    return Interval(middle, middle - half, middle + half)


def difference(x: Sequence[float], y: Sequence[float]) -> Interval:
    """The difference of two means, with the degrees of freedom of Welch and Satterthwaite."""
    middle = statistics.mean(x) - statistics.mean(y)
    if min(len(x), len(y)) < 2:
        return Interval(middle, -math.inf, math.inf)
    parts = [(statistics.variance(values) / len(values), len(values) - 1) for values in (x, y)]
    square = sum(part for part, _ in parts)
    if square == 0:
        return Interval(middle, middle, middle)
    half = student(square**2 / sum(part**2 / n for part, n in parts)) * math.sqrt(square)
    return Interval(middle, middle - half, middle + half)


def ratio_lower_bound(worse: Sequence[float], better: Sequence[float]) -> float:
    """
    A lower bound, at 95% confidence, of the ratio of the times in `worse` to those in `better`, or 0 if there
    are too few runs for a bound.

    The bound is one of the observed ratios, and the Mann-Whitney rank test says which: the smallest of 3 x 3,
    the fifth of 5 x 5. A run that never reached the loss counts with the time it lasted. Had it lasted
    longer, the bound could only rise.
    """
    n, m = len(worse), len(better)
    # For every order in which the runs could have come: how many of the ratios are below one.
    below = [sum(ranks) - n * (n - 1) // 2 for ranks in combinations(range(n + m), n)]
    rank = 0
    while sum(count <= rank for count in below) <= 0.05 * len(below):
        rank += 1
    ratios = sorted(x / y for x in worse for y in better)
    return ratios[rank - 1] if rank else 0.0


def proportion_difference(x: Sequence[float], y: Sequence[float]) -> Interval:
    """
    The difference of two proportions of runs, each run being 0 or 1. Newcombe's interval combines Wilson's
    two (Newcombe 1998, method 10). It has a width even if all runs of a variant ended alike.
    """

    p, q = statistics.mean(x), statistics.mean(y)
    (p_low, p_high), (q_low, q_high) = (
        stats.binomtest(round(sum(runs)), len(runs)).proportion_ci(0.95, "wilson") for runs in (x, y)
    )
    low = p - q - math.hypot(p - p_low, q_high - q)
    return Interval(p - q, low, p - q + math.hypot(p_high - p, q - q_low))


class Answer(NamedTuple):
    """The result of a test."""

    says: str
    """`yes`, `no` or `inconclusive`."""
    gain: Interval | None
    """How much better: a ratio for times and tokens, otherwise a difference. `None` if a loss is NaN."""
    at_least: bool = False
    """Whether a run of the variant that should be worse never reached the loss: the true ratio is larger."""
    at_most: bool = False
    """Whether a run of the other variant never did: the true ratio is smaller. If both, it is unknown."""


def says(gain: Interval, margin: float) -> str:
    """Whether an interval is above a margin, below it, or neither."""
    return "yes" if gain.low > margin else "no" if gain.high < margin else "inconclusive"


def verdict(answers: Sequence[str]) -> str:
    """
    ## The rule

    A claim `holds` if all of its tests say yes, and it `fails` if all say no. It `depends` if some say yes
    and some no. Otherwise it is `inconclusive`: at this size, and with so few seeds, the runs can't tell.
    """
    if {"yes", "no"} <= {*answers}:
        return "depends"
    if {*answers} == {"yes"}:
        return "holds"
    return "fails" if {*answers} == {"no"} else "inconclusive"


class Arrival(NamedTuple):
    """The tokens or seconds that a run took to reach a loss, or that it lasted if it never did."""

    value: float
    has_arrived: bool


class Claim:
    """
    ## One claim

    An entry of `claims.toml` and its record, if there is one.
    """

    def __init__(self, entry: dict[str, Any], record: Record | None):
        self.entry, self.record = entry, record
        self.arms: list[str] = list(entry["arms"])
        self.rows: list[Row] = []
        if record is not None and "record" in entry:
            self.rows = rows_of_comparison(record)
        elif record is not None:
            # The search for a learning rate has its own seed, above all others.
            self.rows = [row for row in record.data["table"] if row["seed"] < entry["seeds"]]

    def count_expected_runs(self) -> int:
        """How many runs a variant has when the claim is finished."""
        points = math.prod(len(values) for values in self.entry.get("grid", {}).values())
        return self.entry["seeds"] * (points if self.entry.get("over_grid") else 1)

    def label(self, arm: str) -> str:
        """What the page calls a variant; its name in the record is fixed."""
        return str(self.entry.get("labels", {}).get(arm, arm))

    def of(self, arm: str) -> list[Row]:
        """The runs of a variant."""
        return [row for row in self.rows if row["arm"] == arm]

    def is_finished(self) -> bool:
        """Whether all runs and the times of their steps are recorded."""
        has_times = self.record is not None and ("record" in self.entry or self.record.data["step_seconds"])
        return bool(has_times) and all(len(self.of(arm)) >= self.count_expected_runs() for arm in self.arms)

    def values(self, arm: str, metric: str) -> list[float | None]:
        """
        One number per seed; if each seed runs a whole grid, the mean over the grid. `a - b` is the difference
        of two metrics.
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

    def cost_at(self, row: Row, step: float, metric: str) -> float:
        """Tokens or seconds up to a step."""
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
        """When a run reached a loss, interpolated linearly between two evaluations."""
        before: tuple[float, float] | None = None
        for step, loss in row["curve"]:
            if loss is not None and loss <= goal:
                if before is not None:
                    step = before[0] + (step - before[0]) * (before[1] - goal) / (before[1] - loss)
                return Arrival(max(self.cost_at(row, step, metric), 1e-9), True)
            before = None if loss is None else (step, loss)
        return Arrival(self.cost_at(row, row["curve"][-1][0], metric), False)

    def answer(self, test: dict[str, Any]) -> Answer:
        """
        The result of one test. A run that never reached the loss would take longer than it lasted, so it can
        count in one direction only.
        """
        metric, margin = test["metric"], test["margin"]
        if metric in COUNTED:
            goal = self.rows[0]["unigram_loss"] - test["below"]
            better, worse = (
                [self.arrival(row, goal, metric) for row in self.of(test[side])]
                for side in ("better", "worse")
            )
            at_least, at_most = (not all(arrival.has_arrived for arrival in side) for side in (worse, better))
            times = [[arrival.value for arrival in side] for side in (worse, better)]
            gain = Interval(*map(math.exp, difference(*(list(map(math.log, side)) for side in times))))
            if at_least:
                gain = Interval(gain.middle, ratio_lower_bound(*times), math.inf)
            if at_most:
                gain = Interval(gain.middle, 0.0, 1 / max(ratio_lower_bound(times[1], times[0]), 1e-9))
            yes = gain.low > margin and not at_most
            no = gain.high < margin and not at_least
            return Answer("yes" if yes else "no" if no else "inconclusive", gain, at_least, at_most)
        if metric == "failed":
            failures = [
                [row["result"]["failed"] for row in self.of(test[side])] for side in ("worse", "better")
            ]
            gain = proportion_difference(*failures)
            return Answer(says(gain, margin), gain)
        samples = [self.values(test[side], metric) for side in ("better", "worse")]
        x, y = ([value for value in values if value is not None] for values in samples)
        if len(x) + len(y) < sum(map(len, samples)) or not x or not y:
            return Answer("inconclusive", None)
        higher = metric.split()[0] in HIGHER_IS_BETTER
        gain = difference(x, y) if higher else difference(y, x)
        return Answer(says(gain, margin), gain)

    def verdict(self) -> str:
        """The verdict, or how far the runs are."""
        if not self.rows:
            return "not run yet"
        if not self.is_finished():
            return "not finished yet"
        return verdict(self.answers())

    def answers(self) -> list[str]:
        """The answers of the tests that count for the verdict, once the claim is finished."""
        tests = [test for test in self.entry["tests"] if not test.get("aside")]
        return [self.answer(test).says for test in tests] if self.is_finished() else []


def rows_of_comparison(record: Record) -> list[Row]:
    """The table of `finetune_docstrings.py` as rows of a claim: one for each variant and seed."""
    rows: dict[tuple[str, int], Row] = {}
    for row in record.data["table"]:
        one = rows.setdefault(
            (row["arm"], row["seed"]), {"arm": row["arm"], "seed": row["seed"], "result": {}}
        )
        one["result"][f"{row['task']} {row['labels']}"] = row["accuracy"]
    return list(rows.values())


def read_claim(name: str, claims: Path | None = None, runs: Path = RUNS) -> Claim:
    """Raises `PageError` if there is no such claim, or if its record isn't one."""
    path = claims or CLAIMS
    (entries,) = tomllib.loads(path.read_text("utf-8")).values()
    named = {entry["name"]: entry for entry in entries}
    if name not in named:
        raise PageError(f"{path.name} has no entry {name!r}; it has {', '.join(named)}")
    entry = named[name]
    record = runs / (f"{entry['record']}.json" if "record" in entry else f"claims/{name}.json")
    if not record.is_file():
        return Claim(entry, None)
    try:
        return Claim(entry, Record(record.stem, json.loads(record.read_text("utf-8"))))
    except (ValueError, KeyError) as error:
        raise PageError(f"{record} is not the record of a claim: {error}") from None


def format_signed(value: float, digits: int = 3) -> str:
    """A difference, with its sign. A difference that is rounded to zero has none."""
    if math.isinf(value):
        return "–"
    rounded = round(value, digits)
    return f"{'+' if rounded > 0 else '−' if rounded < 0 else ''}{abs(rounded):.{digits}f}"


def is_percentage(metric: str) -> bool:
    """Whether a metric is an accuracy or another proportion."""
    return metric.split()[0] in PERCENTAGES


def gain_and_interval(answer: Answer, metric: str) -> tuple[str, str]:
    """How much better, and the confidence interval, with their unit."""
    if answer.gain is None:
        return "a run ended in NaN", "–"
    middle, low, high = answer.gain
    if metric not in COUNTED:
        scale, digits, unit = (100, 1, "points") if is_percentage(metric) else (1, 3, "nats")
        ends = [format_signed(scale * value, digits) for value in (low, high)]
        return f"{format_signed(scale * middle, digits)} {unit}", f"{ends[0]} to\N{NO-BREAK SPACE}{ends[1]}"
    if answer.at_least and answer.at_most:
        return "unknown: both variants have runs that never got there", "–"
    if answer.at_least:
        return f"≥ {middle:.1f} ×", f"{low:.1f} × or more"
    if answer.at_most:
        return f"≤ {middle:.1f} ×", f"{high:.1f} × or less"
    return f"{middle:.1f} ×", f"{low:.1f} × to\N{NO-BREAK SPACE}{high:.1f} ×"


def in_words(answer: Answer, metric: str) -> str:
    """
    The gain of a test as prose quotes it: a number of times, percentage points, or nats. It has no plus sign,
    because a sentence says "improves the loss by 0.2 nats".
    """
    gain, interval = gain_and_interval(answer, metric)
    if answer.gain is None or (answer.at_least and answer.at_most):
        return gain
    if metric not in COUNTED:
        return f"{gain} (95% CI {interval})".replace("+", "")
    middle, low, high = answer.gain
    if answer.at_least:
        return f"at least {middle:.1f} times (95% confidence: {low:.1f} or more)"
    if answer.at_most:
        return f"at most {middle:.1f} times (95% confidence: {high:.1f} or less)"
    return f"{middle:.1f} times (95% CI {low:.1f} to {high:.1f})"


def describe_gain(claim: Claim, says: str) -> str:
    """
    The gain of one test, for the prose of a chapter. `says` is the name of the test in `claims.toml`.

    Raises `PageError` if the claim has no such test.
    """
    for test in claim.entry["tests"]:
        if test["says"] == says:
            return in_words(claim.answer(test), test["metric"]) if claim.is_finished() else "not measured yet"
    names = "; ".join(test["says"] for test in claim.entry["tests"])
    raise PageError(f"the claim {claim.entry['name']!r} has no test {says!r}; it has {names}")


def row(claim: Claim) -> str:
    """What is claimed, and who says so, as Markdown."""
    return f"**The claim.** {claim.entry['sentence']} *Source:* {claim.entry['source']}"


def metric_name(test: dict[str, Any]) -> str:
    """What a test compares, in words."""
    if test["metric"] not in COUNTED:
        return NAMES[test["metric"]]
    what = "time" if test["metric"] == "seconds" else "tokens"
    return f"{what} to {below_unigram(test['below'])}"


def below_unigram(nats: float) -> str:
    """A loss, by its distance to the unigram baseline."""
    return f"{nats:g} nat{'' if nats == 1 else 's'} below the unigram baseline"


def margin_with_unit(test: dict[str, Any]) -> str:
    """By how much a variant must be better."""
    margin, metric = test["margin"], test["metric"]
    if metric in COUNTED:
        return f"{margin:g} ×"
    if not margin:
        return "0"
    value, unit = (100 * margin, "point") if is_percentage(metric) else (margin, "nat")
    return f"{value:g} {unit}{'' if abs(value) == 1 else 's'}".replace("-", "−")


def tests_table(claim: Claim, tests: list[dict[str, Any]]) -> str:
    """The results of some tests, as a Markdown table."""
    table = "| variant | compared with | metric | gain | 95% CI | margin | answer |\n"
    table += "|---|---|---|---:|---:|---:|---|\n"
    for test in tests:
        answer = claim.answer(test)
        cells = [
            *(cell(claim.label(test[side])) for side in ("better", "worse")),
            metric_name(test),
            *gain_and_interval(answer, test["metric"]),
            margin_with_unit(test),
            answer.says,
        ]
        table += f"| {' | '.join(cells)} |\n"
    return wide(table)


# What a claim has that leaves a part out.
DEFAULTS: dict[str, Any] = {
    **{key: {} for key in ("arms", "options", "grid")},
    **{key: [] for key in ("scores", "tests")},
    "job": "",
    "seeds": 0,
    "over_grid": False,
}


def has_changed(claim: Claim) -> bool:
    """Whether the claim has been edited since its runs."""
    if claim.record is None or "record" in claim.entry:
        return False
    old_entry = claim.record.data["claim"]
    return any(
        claim.entry.get(key, default) != (old_entry.get(key) or default) for key, default in DEFAULTS.items()
    )


def drawing(claim: Claim) -> str:
    """The figure of a claim: the mean curve of each variant, or a bar for each."""
    entry = claim.entry
    claim_text = entry["title"].replace("`", "")
    arms = [arm for arm in claim.arms if claim.of(arm)]
    if not arms:
        return "<!-- no figure yet -->"
    metric = entry["figure"]
    if metric != "curves":
        bars = []
        for arm in arms:
            values = [value for value in claim.values(arm, metric) if value is not None]
            if values:
                middle = statistics.mean(values)
                words = f"{middle:.1%}" if is_percentage(metric) else f"{middle:.3f}"
                bars.append(Bar(claim.label(arm), middle, words, 1, min(values), max(values)))
        if not bars:
            return "<!-- no figure yet -->"
        title = f"{claim_text}: {NAMES[metric]}"
        unit = " in nats" if metric.endswith("loss") else ""
        better = "Longer" if metric.split()[0] in HIGHER_IS_BETTER else "Shorter"
        return bar_chart(
            bars,
            title,
            f"{NAMES[metric].capitalize()}{unit}. {better} is better. A bar is the mean over the seeds, and "
            "the thin line runs from the lowest seed to the highest.",
        )
    assert claim.record is not None
    over = "seconds" if claim.is_finished() else "tokens"
    lines = [Line(claim.label(arm), mean_curve(claim, claim.of(arm), over)) for arm in arms]
    title = f"{claim_text}: held-out loss by {over} of training"
    baselines = [("unigram", claim.rows[0]["unigram_loss"])]
    caption = (
        f"Held-out loss by {over} of training, averaged over the seeds. Lower is better. The dotted line is "
        "the unigram baseline."
    )
    return line_chart(lines, title, f"{over} of training", "loss, nats", baselines, caption)


def mean_curve(claim: Claim, rows: list[Row], over: str) -> list[tuple[float, float]]:
    """The mean over the runs, at the evaluations that all of them have."""
    points = []
    for evaluations in zip(*(row["curve"] for row in rows), strict=False):
        losses = [loss for _, loss in evaluations]
        if None not in losses:
            xs = [claim.cost_at(row, step, over) for row, (step, _) in zip(rows, evaluations, strict=True)]
            points.append((statistics.mean(xs), statistics.mean(losses)))
    return points


# A symbol for each answer, drawn around (0, 0).
SYMBOLS = {
    "yes": '<circle class="point" r="6"/>',
    "inconclusive": '<circle class="point n2" r="6"/>',
    "no": '<path class="spread" d="M-6,-6L6,6M-6,6L6,-6"/>',
}


def overview(claims: Path | None = None, runs: Path = RUNS) -> str:
    """
    ## All claims at once

    A figure with the verdict on each claim, and a mark for the answer of each test that counts.
    """
    parts, table, sentences = list[str](), list[list[str]](), list[str]()
    for i, name in enumerate(names(claims)):
        claim = read_claim(name, claims, runs)
        title, verdict, y = claim.entry["title"].replace("`", ""), claim.verdict(), i * 58
        answers = claim.answers()
        symbols = (
            f'<g transform="translate({8 + 22 * n},{y + 40})">{SYMBOLS[answer]}</g>'
            for n, answer in enumerate(answers)
        )
        parts += [text(0, y + 19, title), *symbols]
        parts.append(text(12 + 22 * len(answers), y + 46, verdict, _class="level"))
        table.append([title, verdict, *(f"{answers.count(answer)}" for answer in SYMBOLS)])
        sentences.append(f"{title}: {verdict}")
    return figure(
        "".join(parts),
        58 * len(table),
        "The verdict on every claim",
        "; ".join(sentences) + ".",
        "Every claim with its verdict. Each mark is one test of the claim.",
        [
            (f'<svg viewBox="-16 -8 32 16" aria-hidden="true">{mark}</svg>', answer)
            for answer, mark in SYMBOLS.items()
        ],
        numbers(["claim", "verdict", *SYMBOLS], table),
    )


def details(claim: Claim) -> str:
    """
    The evidence, as Markdown: how the claim was tested and with which results, and in a fold the variants,
    the cost and the command.
    """
    entry = claim.entry
    parts = [f"**How we tested it.** {entry['question']}"]
    if claim.is_finished():
        parts.append(tests_table(claim, [test for test in entry["tests"] if not test.get("aside")]))
        if asides := [test for test in entry["tests"] if test.get("aside")]:
            parts += [
                "We also measured the following, which doesn't count toward the verdict.",
                tests_table(claim, asides),
            ]
    elif claim.rows:
        count, total = len(claim.rows), claim.count_expected_runs() * len(claim.arms)
        missing = "the rest" if count < total else "the times of their steps"
        parts.append(f"{count} of {total} runs are recorded. The verdict waits for {missing}.")
    if has_changed(claim):
        parts.append("*The claim was changed after these runs, so they tested an earlier version.*")
    # A table and a fence within HTML need `markdown` on each element around them.
    parts.append(
        "<details markdown>\n<summary>Variants, cost, and the command to repeat it</summary>\n\n"
        f"{variants(claim)}\n\n</details>"
    )
    return "\n\n".join(parts)


def variants(claim: Claim) -> str:
    """Variants, seeds, budget, cost and command, as Markdown."""
    entry = claim.entry
    if "record" in entry:
        command = f"python experiments/{entry['record']}.py"
        budget = f"{entry['seeds']} seeds per variant"
    else:
        command = f"python experiments/claims/claims.py {entry['name']}"
        grid = "; ".join(
            f"`{key}` {', '.join(f'{v:g}' for v in values)}" for key, values in entry["grid"].items()
        )
        search = "every seed runs all of" if entry.get("over_grid") else "searched over"
        tokens = f"{entry['options']['tokens']:,} tokens per run"
        budget = f"{entry['seeds']} seeds per variant, {tokens}; {search} {grid}"
    metrics = list(dict.fromkeys(test["metric"] for test in entry["tests"] if test["metric"] in NAMES))
    metrics = [metric for metric in metrics if " - " not in metric]
    head = "".join(f" {NAMES[metric]} |" for metric in metrics)
    table = f"| variant |{head} seeds | changed options | tuned values |\n"
    table += f"|---|{'---:|' * len(metrics)}---:|---|---|\n"
    for arm, options in entry["arms"].items():
        rows = claim.of(arm)
        changes = ", ".join(
            f"`{key} = {json.dumps(value)}`" for key, value in options.items() if key != "rate_of"
        )
        points = [] if entry.get("over_grid") else [row["point"] for row in rows[:1] if "point" in row]
        tuning = ", ".join(f"`{key}` {value:g}" for point in points for key, value in point.items())
        if "rate_of" in options:
            tuning += f"{', ' if tuning else ''}taken from “{cell(claim.label(options['rate_of']))}”"
        cells = "".join(f" {mean_with_interval(claim.values(arm, metric), metric)} |" for metric in metrics)
        seeds = len({row["seed"] for row in rows})
        table += f"| {cell(claim.label(arm))} |{cells} {seeds} of {entry['seeds']} |"
        table += f" {changes or '–'} | {tuning or '–'} |\n"
    note = "" if claim.record is None else f" {describe_check(claim.record)}"
    return (
        f"{wide(table)}\n{arrivals(claim)}{budget[0].upper()}{budget[1:]}. Cost: {cost(claim)}.{note}"
        f"\n\n```sh\n{command}\n```"
    )


def arrivals(claim: Claim) -> str:
    """When each variant reached the losses of the tests, as a table: the mean over the runs that did."""
    levels = sorted({test["below"] for test in claim.entry["tests"] if test["metric"] in COUNTED})
    if not levels or not claim.is_finished():
        return ""
    head = "".join(f" {below_unigram(level)} |" for level in levels)
    table = f"| variant |{head}\n|---|{'---:|' * len(levels)}\n"
    for arm in claim.arms:
        table += f"| {cell(claim.label(arm))} |"
        for level in levels:
            rows = [(row, row["unigram_loss"] - level) for row in claim.of(arm)]
            there = [
                row_and_goal for row_and_goal in rows if claim.arrival(*row_and_goal, "tokens").has_arrived
            ]
            tokens, seconds = (
                [claim.arrival(*row_and_goal, metric).value for row_and_goal in there] for metric in COUNTED
            )
            few = f", {len(there)} of {len(rows)} runs" if len(there) < len(rows) else ""
            if there:
                table += f" {statistics.mean(tokens) / 1e6:.1f} M, {statistics.mean(seconds):.0f} s{few} |"
            else:
                table += " no run |"
        table += "\n"
    return (
        "The next table shows when each variant reached these losses, in tokens and seconds. Each entry is "
        "the mean over the runs that got there. If some never did, the entry says how many did.\n\n"
        f"{wide(table)}\n"
    )


def minutes(claim: Claim) -> float:
    """Minutes on two cores: measured, or estimated if runs are missing or belong to another experiment."""
    if claim.record is None or "record" in claim.entry or not claim.is_finished():
        return float(claim.entry["minutes"])
    return sum(row["core_seconds"] for row in claim.record.data["table"] if "from" not in row) / 120


def cost(claim: Claim) -> str:
    """What the runs took, where, when and with which commit; before the runs, what they will take."""
    estimate = f"about {minutes(claim):.0f} minutes on two cores"
    if claim.record is None or not claim.rows:
        return estimate
    where = f"{cell(claim.record.machine())}, {cell(claim.record.data['date'])}"
    result = f"{estimate} ({where}, commit {cell(claim.record.data.get('commit') or 'unknown')[:7]})"
    shared = sorted({row["from"] for row in claim.rows if "from" in row})
    if shared:
        links = ", ".join(f"[{name}](#{name})" for name in shared)
        result += f", not counting the runs that it shares with {links}"
    return result


def mean_with_interval(values: list[float | None], metric: str) -> str:
    """The mean, and half the width of its 95% confidence interval."""
    numbers = [value for value in values if value is not None]
    if not numbers:
        return "–"
    interval = mean(numbers)
    scale, digits, unit = (100, 1, "%") if is_percentage(metric) else (1, 3, "")
    half = "" if math.isinf(interval.high) else f" ± {scale * (interval.high - interval.middle):.{digits}f}"
    note = f", {len(values) - len(numbers)} ended in NaN" if len(numbers) < len(values) else ""
    return f"{scale * interval.middle:.{digits}f}{half}{unit}{note}"


def names(claims: Path | None = None) -> list[str]:
    """The names of all claims, in their order."""
    path = claims or CLAIMS
    return [entry["name"] for entry in tomllib.loads(path.read_text("utf-8"))["claim"]]


def hours(claims: Path | None = None) -> float:
    """How many hours all claims take."""
    return sum(minutes(read_claim(name, claims)) for name in names(claims)) / 60
