r"""
# Verdicts on the claims

The page *Claims* shows what is in `experiments/claims/claims.toml` and in the records under
`docs/runs/claims`. The verdicts come from `experiments/claims/analysis.py`. They rest on the primary endpoint
of each claim, measured with fresh seeds as soon as there are three. All other comparisons are exploratory:
the page shows their effects, by fresh seeds if both variants have them, but the verdict ignores them.
"""

import copy
import functools
import json
import math
import re
import statistics
import tomllib
from pathlib import Path
from typing import Any

from docs.figures.records import RUNS, Record, describe_check
from docs.literate.chart import Bar, Line, bar_chart, figure, line_chart, numbers, text
from docs.literate.prose import cell, wide
from docs.literate.rows import PageError
from docs.project import ROOT
from experiments.claims.analysis import COUNTED, FRACTIONS, HIGHER_IS_BETTER, RATIOS, Analysis, Effect, Row
from experiments.claims.decision import FIRST_SEED, LEVEL, LOOKS, RULE_LEVEL, Interval, is_fresh, mean
from experiments.claims.training import EVALUATIONS
from labml_bert.checksums import parse_sealed

CLAIMS = ROOT / "experiments" / "claims" / "claims.toml"
# Metrics shown as percentages; their differences are in percentage points.
PERCENTAGES = (*FRACTIONS, *HIGHER_IS_BETTER)
NAMES = {
    "loss": "held-out loss",
    "first_loss": "loss before the first step",
    "seen_loss": "loss with nothing masked",
    "failed": "failed runs",
    "stable_learning_rate": "largest stable learning rate",
    "probe": "accuracy of a linear probe",
    "package": "accuracy on the one-text task",
    "summary": "accuracy on the two-text task",
    "package 100": "accuracy with 100 labels",
    "package 1000": "accuracy with 1,000 labels",
    "package 100 - package 1000": "accuracy with 100 labels minus accuracy with 1,000",
}


class Claim(Analysis):
    """
    ## One claim

    An entry of `claims.toml` and its record, if there is one. `rows` are the pilot runs, or all runs if the
    claim needs no pilots. `confirmation` is the analysis of the runs with fresh seeds, if there are enough of
    them for the rule.
    """

    def __init__(self, entry: dict[str, Any], record: Record | None):
        self.record = record
        self.arms: list[str] = list(entry["arms"])
        self.first_fresh_seed: int = entry.get("first_fresh_seed", FIRST_SEED)
        rows: list[Row] = []
        step_seconds = {}
        self.confirmation: Analysis | None = None
        if record is not None and record.data.get("is_finished", True):
            # The search for a learning rate has its own seed, above all others.
            step_seconds = record.data.get("step_seconds", {})
            fresh_rows = [row for row in record.data["table"] if self.is_fresh(row)]
            pilots = [row for row in record.data["table"] if row["seed"] < entry["seeds"]]
            rows = pilots if entry["seeds"] else fresh_rows
            fresh = Analysis(entry, fresh_rows, step_seconds)
            if "primary" in entry and fresh.count_seeds() >= LOOKS[0]:
                self.confirmation = fresh
        super().__init__(entry, rows, step_seconds)

    def is_fresh(self, row: Row) -> bool:
        """Whether a run has one of the seeds that decide."""
        return is_fresh(row["seed"], self.first_fresh_seed)

    def own_rows(self) -> list[Row]:
        """All recorded runs, including the search, except those that another claim trained."""
        return [row for row in self.record.data["table"] if "from" not in row] if self.record else []

    def count_expected_runs(self) -> int:
        """How many runs a variant has when the claim is finished."""
        points = math.prod(len(values) for values in self.entry.get("grid", {}).values())
        return (self.entry["seeds"] or LOOKS[0]) * (points if self.entry.get("over_grid") else 1)

    def label(self, arm: str) -> str:
        """What the page calls a variant; its name in the record is fixed."""
        return str(self.entry.get("labels", {}).get(arm, arm))

    def is_finished(self) -> bool:
        """Whether all runs and the times of their steps are recorded."""
        return bool(self.step_seconds) and all(
            len(self.of(arm)) >= self.count_expected_runs() for arm in self.arms
        )

    def evidence(self) -> Analysis:
        """The runs that decide: those with fresh seeds, and as long as there are none, the pilots."""
        return self.confirmation or self

    def evidence_of(self, test: dict[str, Any]) -> Analysis:
        """The runs that a test rests on: only the variants of the primary endpoint get fresh seeds."""
        primary = self.primary()
        has_fresh_seeds = {test["better"], test["worse"]} == {primary["better"], primary["worse"]}
        return self.evidence() if has_fresh_seeds else self

    def describe_seeds(self, test: dict[str, Any] | None = None) -> str:
        """The number of seeds behind a test, by default the primary endpoint."""
        evidence = self.evidence_of(test or self.primary())
        is_fresh = evidence is self.confirmation or not self.entry["seeds"]
        return f"{evidence.count_seeds()} {'fresh' if is_fresh else 'pilot'} seeds"

    def effect_of(self, test: dict[str, Any], level: float = LEVEL) -> Effect:
        """The effect of a test on its evidence."""
        return self.evidence_of(test).effect(test, level)

    def verdict(self, with_estimate: bool = True) -> str:
        """The verdict, or the state of the runs. The estimate is the number of seeds needed to decide."""
        if not self.rows:
            return "not run yet"
        if not self.is_finished():
            return "not finished yet"
        evidence = self.evidence()
        decision = evidence.decision()
        if decision == "no difference":
            return f"no difference larger than {delta_with_unit(self)}"
        needed = evidence.needed_seeds() if with_estimate and decision == "inconclusive" else None
        if needed == math.inf:
            return f"{decision}; with this grid, more seeds would hardly help"
        return decision if needed is None else f"{decision}, about {needed} fresh seeds needed"


@functools.lru_cache
def parse_entries(text: str) -> dict[str, dict[str, Any]]:
    """The claims or studies in a TOML file, by name. Parsing takes a while, and pages ask for them often."""
    (entries,) = tomllib.loads(text).values()
    return {entry["name"]: entry for entry in entries}


def read_claim(name: str, claims: Path | None = None, runs: Path = RUNS) -> Claim:
    """Raises `PageError` if there is no such claim, or if its record isn't one."""
    path = claims or CLAIMS
    entries = parse_entries(path.read_text("utf-8"))
    if name not in entries:
        raise PageError(f"{path.name} has no entry {name!r}; it has {', '.join(entries)}")
    entry = copy.deepcopy(entries[name])
    record = runs / "claims" / f"{name}.json"
    if not record.is_file():
        return Claim(entry, None)
    try:
        return Claim(entry, Record(record.stem, parse_sealed(record.read_text("utf-8"))))
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


def ratio_digits(ratio: float) -> int:
    """Two decimals for a ratio near 1: one may not show on which side of 1 an end of an interval is."""
    return 2 if 0.5 < ratio < 2 else 1


def gain_and_interval(effect: Effect, metric: str) -> tuple[str, str]:
    """The gain with its unit, and its confidence interval."""
    if effect.gain is None:
        return "a run ended in NaN", "–"
    middle, low, high = effect.gain
    if metric not in RATIOS:
        scale, digits, unit = (100, 1, "points") if is_percentage(metric) else (1, 3, "nats")
        ends = [format_signed(scale * value, digits) for value in (low, high)]
        return f"{format_signed(scale * middle, digits)} {unit}", f"{ends[0]} to\N{NO-BREAK SPACE}{ends[1]}"
    if effect.is_unknown:
        return "some runs of both never got there", "–"
    if effect.at_least:
        return f"≥ {middle:.1f} ×", f"{low:.1f} × or more" if low else "no bound: too few seeds"
    if effect.at_most:
        return f"≤ {middle:.1f} ×", f"{high:.1f} × or less"
    digits = ratio_digits(middle)
    return f"{middle:.{digits}f} ×", f"{low:.{digits}f} × to\N{NO-BREAK SPACE}{high:.{digits}f} ×"


def in_words(effect: Effect, metric: str, unit: str = "") -> str:
    """
    The gain of a test as prose quotes it: a factor, percentage points, or nats. It has no plus sign, because
    a sentence says "improves the loss by 0.2 nats". `unit` follows the factor, as in "2.5 times as many
    tokens (95% CI 1.5 to 4.0)".
    """
    gain, interval = gain_and_interval(effect, metric)
    if effect.gain is None or effect.is_unknown:
        return gain
    if metric not in RATIOS:
        return f"{gain} (95% CI {interval})".replace("+", "")
    middle, low, high = effect.gain
    # The bound on a time is one-sided. For a learning rate, it's an end of the two-sided interval.
    bound = "end of the 95% CI" if metric == "stable_learning_rate" else "95% bound"
    if effect.at_least:
        return f"at least {low:.1f} times{unit} ({bound}; the mean ratio is at least {middle:.1f})"
    if effect.at_most:
        return f"at most {high:.1f} times{unit} ({bound}; the mean ratio is at most {middle:.1f})"
    digits = ratio_digits(middle)
    return f"{middle:.{digits}f} times{unit} (95% CI {low:.{digits}f} to {high:.{digits}f})"


def describe_gain(claim: Claim, says: str | None = None, opposite: bool = False, unit: str = "") -> str:
    """
    The gain of one test, for the prose of a chapter. `says` is the name of the test in `claims.toml`; by
    default, it's the primary endpoint. With `opposite`, the text says how much higher a loss is, not how much
    lower. `unit` is what a factor counts.

    Raises `PageError` if the claim has no such test.
    """
    says = says or claim.entry["primary"]
    for test in claim.entry["tests"]:
        if test["says"] == says:
            if not claim.is_finished():
                return "not measured yet"
            effect = claim.effect_of(test)
            if opposite and effect.gain is not None:
                middle, low, high = effect.gain
                effect = effect._replace(gain=Interval(-middle, -high, -low))
            return in_words(effect, test["metric"], f" {unit}" if unit else "")
    names = "; ".join(test["says"] for test in claim.entry["tests"])
    raise PageError(f"the claim {claim.entry['name']!r} has no test {says!r}; it has {names}")


def row(claim: Claim) -> str:
    """The sentence of the claim, as Markdown."""
    return f"**The claim.** {claim.entry['sentence']}"


def metric_name(test: dict[str, Any]) -> str:
    """What a test compares, in words."""
    if test["metric"] == "reached":
        return f"fraction of runs that get {below_unigram(test['below'])}"
    if test["metric"] not in COUNTED:
        return NAMES[test["metric"]]
    what = "time" if test["metric"] == "seconds" else "tokens"
    return f"{what} to {below_unigram(test['below'])}"


def below_unigram(nats: float) -> str:
    """A loss, described by its distance from the unigram baseline."""
    return f"{nats:g} nat{'' if nats == 1 else 's'} below the unigram baseline"


def delta_with_unit(claim: Claim) -> str:
    """The largest difference that doesn't matter, with its unit."""
    delta, metric = claim.entry["delta"], claim.primary()["metric"]
    if metric in RATIOS:
        return f"a factor of {delta:g}"
    value, unit = (100 * delta, "point") if is_percentage(metric) else (delta, "nat")
    return f"{value:g} {unit}{'' if value == 1 else 's'}"


def tests_table(claim: Claim, tests: list[dict[str, Any]], level: float = LEVEL) -> str:
    """The results of some tests, as a Markdown table."""
    table = f"| variant | compared with | metric | gain | {100 * level:g}% CI | evidence |\n"
    table += "|---|---|---|---:|---:|---|\n"
    for test in tests:
        cells = [
            *(cell(claim.label(test[side])) for side in ("better", "worse")),
            metric_name(test),
            *gain_and_interval(claim.effect_of(test, level), test["metric"]),
            claim.describe_seeds(test),
        ]
        table += f"| {' | '.join(cells)} |\n"
    return wide(table)


# The values of the keys that an entry of `claims.toml` may leave out.
DEFAULTS: dict[str, Any] = {
    **{key: {} for key in ("arms", "options", "grid")},
    "scores": [],
    "job": "",
    "seeds": 0,
    "over_grid": False,
    "evaluations": EVALUATIONS,
}


def has_changed(claim: Claim) -> bool:
    """Whether the claim has been edited since its runs."""
    if claim.record is None:
        return False
    old_entry = claim.record.data["claim"]
    if any(old_entry.get(key) not in (None, claim.entry.get(key)) for key in ("primary", "delta")):
        return True
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
    # Only the pilot seeds ran every variant, so the figure shows them. If there are fresh seeds, those decide
    # the verdict.
    has_other_seeds = claim.confirmation is not None and entry["seeds"] > 0
    seeds = "the pilot seeds" if has_other_seeds else "the seeds"
    note = (
        " The verdict rests on other, fresh seeds, so its numbers differ from these."
        if has_other_seeds
        else ""
    )
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
            f"{NAMES[metric].capitalize()}{unit}. {better} is better. A bar shows the mean over {seeds}; "
            f"the thin line runs from the lowest result to the highest.{note}",
        )
    assert claim.record is not None
    over = "seconds" if claim.is_finished() else "tokens"
    lines = [Line(claim.label(arm), mean_curve(claim, claim.of(arm), over)) for arm in arms]
    title = f"{claim_text}: held-out loss by {over} of training"
    baselines = [("unigram", claim.rows[0]["unigram_loss"])]
    caption = (
        f"Held-out loss by {over} of training, averaged over {seeds}. Lower is better. The dotted line is "
        f"the unigram baseline.{note}"
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


# The forest plot shows effects from -SPAN to SPAN, in units of the largest difference that doesn't matter. On
# both sides, an arrow has room beyond that.
SPAN, ROOM, ARROW = 8.0, 620.0, 30.0


def forest_row(claim: Claim, y: float) -> str:
    """The interval of a claim's primary endpoint, as SVG. An end outside the plot becomes an arrow."""
    interval = claim.evidence().primary_interval()
    if interval is None:
        return ""
    ends = [value / claim.delta() for value in interval]
    limit = (ROOM / 2 - ARROW) / SPAN
    middle, low, high = (ROOM / 2 + limit * max(-SPAN, min(SPAN, end)) for end in ends)
    parts = [f'<path class="zero" d="M{ROOM / 2:g},{y - 11:g}V{y + 11:g}"/>']
    for x in (ROOM / 2 - limit, ROOM / 2 + limit):
        parts.append(f'<path class="level" d="M{x:g},{y - 11:g}V{y + 11:g}"/>')
    if claim.effect_of(claim.primary()).is_unknown:
        return "".join(parts)
    parts.append(f'<path class="line n1" d="M{low:.1f},{y:g}H{high:.1f}"/>')
    for x, is_outside, side in ((low, ends[1] < -SPAN, -1), (high, ends[2] > SPAN, 1)):
        if is_outside:
            tip = f"m{-8 * side},-5l{8 * side},5l{-8 * side},5"
            parts.append(f'<path class="line n1" d="M{x:.1f},{y:g}h{side * ARROW:g}{tip}"/>')
    if abs(ends[0]) <= SPAN:
        parts.append(f'<circle class="point" cx="{middle:.1f}" cy="{y:g}" r="5"/>')
    return "".join(parts)


def overview(claims: Path | None = None, runs: Path = RUNS) -> str:
    """
    ## All claims at once

    A forest plot of the primary endpoints, grouped by verdict, with the effect of each in its unit.
    """
    order = ("holds", "fails", "no difference", "inconclusive")
    entries = [read_claim(name, claims, runs) for name in names(claims)]
    finished = [claim for claim in entries if claim.is_finished()]
    finished.sort(key=lambda claim: order.index(claim.evidence().decision()))
    parts, table, sentences = list[str](), list[list[str]](), list[str]()
    for i, claim in enumerate(finished):
        title, verdict, y = claim.entry["title"].replace("`", ""), claim.verdict(), i * 90
        short = claim.verdict(with_estimate=False)  # the whole verdict is too long for a phone
        test = claim.primary()
        effect = claim.effect_of(test, RULE_LEVEL)
        gain, interval = gain_and_interval(effect, test["metric"])
        parts.append(text(0, y + 20, title))
        measured = gain if effect.gain is None or effect.is_unknown else f"{gain} ({interval})"
        parts.append(text(0, y + 43, f"{short}: {measured}", _class="level"))
        parts.append(forest_row(claim, y + 66))
        table.append([title, verdict, gain, interval, delta_with_unit(claim), claim.describe_seeds()])
        sentences.append(f"{title}: {verdict}")
    return figure(
        "".join(parts),
        90 * len(finished),
        "The main result for each claim",
        "; ".join(sentences) + ".",
        "The measured effect for each claim, with its 98.2% confidence interval, or with a bound "
        "if some runs never reached the loss or never failed. An effect to the right of "
        "the middle line supports the claim. An effect between the dotted lines is too small to matter. The "
        "unit and the smallest effect that matters differ from claim to claim. An arrow means that the "
        "interval continues beyond the plot.",
        [],
        numbers(["claim", "verdict", "gain", "98.2% CI", "too small to matter", "seeds"], table),
    )


def details(claim: Claim) -> str:
    """
    The evidence, as Markdown: the test of the claim and its main result, followed by a fold with all other
    comparisons, the variants, the cost and the command.
    """
    entry = claim.entry
    parts = [f"**Source.** {entry['source']}", f"**How we tested it.** {entry['question']}"]
    folded = [variants(claim)]
    if claim.is_finished():
        parts.append(
            f"**The primary endpoint.** A gain of less than {delta_with_unit(claim)} is too small to matter."
        )
        parts.append(tests_table(claim, [claim.primary()], RULE_LEVEL))
        if others := [test for test in entry["tests"] if test["says"] != entry["primary"]]:
            exploratory = "**Exploratory.** The verdict ignores these comparisons."
            folded = [exploratory, tests_table(claim, others), *folded]
    elif claim.rows:
        count, total = len(claim.rows), claim.count_expected_runs() * len(claim.arms)
        missing = "the rest" if count < total else "the times of their steps"
        parts.append(f"{count} of {total} runs are recorded. The verdict waits for {missing}.")
    if has_changed(claim):
        parts.append("*The claim was changed after these runs, so they tested an earlier version.*")
    # A table and a fence within HTML need `markdown` on each element around them.
    parts.append(
        "<details markdown data-search-exclude>\n"
        "<summary>All comparisons and variants, the cost, and the command to repeat it</summary>\n\n"
        + "\n\n".join(folded)
        + "\n\n</details>"
    )
    return "\n\n".join(parts)


def variants(claim: Claim) -> str:
    """Variants, seeds, budget, cost and command, as Markdown."""
    entry = claim.entry
    grid = ", ".join(
        f"`{key}` {' or '.join(f'{v:g}' for v in values)}" for key, values in entry.get("grid", {}).items()
    )
    search = "Every seed runs at every point of the grid:" if entry.get("over_grid") else "Search grid:"
    exceptions = any("tokens" in options for options in entry["arms"].values())
    unless = ", unless the table says otherwise" if exceptions else ""
    pilots = f"{entry['seeds']} pilot seeds per variant, " if entry["seeds"] else ""
    budget = f"{pilots}{entry['options']['tokens']:,} tokens per run{unless}"
    if grid:
        budget += f". {search} {grid}"
    metrics = list(dict.fromkeys(test["metric"] for test in entry["tests"] if test["metric"] in NAMES))
    metrics = [metric for metric in metrics if " - " not in metric and metric != "stable_learning_rate"]
    head = "".join(f" {NAMES[metric]} |" for metric in metrics)
    table = f"| variant |{head} seeds | changed options | tuned values |\n"
    table += f"|---|{'---:|' * len(metrics)}---:|---|---|\n"
    for arm, options in entry["arms"].items():
        rows = claim.of(arm)
        changes = ", ".join(
            f"`{key} = {json.dumps(value)}`" for key, value in options.items() if key != "tuned_values_of"
        )
        points = [] if entry.get("over_grid") else [row["point"] for row in rows[:1] if "point" in row]
        tuning = ", ".join(f"{name_of(key)} {value:g}" for point in points for key, value in point.items())
        if "tuned_values_of" in options:
            tuning += f"{', ' if tuning else ''}taken from “{cell(claim.label(options['tuned_values_of']))}”"
        cells = "".join(f" {mean_with_interval(claim.values(arm, metric), metric)} |" for metric in metrics)
        seeds = len({row["seed"] for row in rows})
        count = f"{seeds} of {entry['seeds']}" if entry["seeds"] else str(seeds)
        table += f"| {cell(claim.label(arm))} |{cells} {count} |"
        table += f" {changes or '–'} | {tuning or '–'} |\n"
    note = "" if claim.record is None else f" {describe_check(claim.record)}"
    command = f"python experiments/claims/claims.py {entry['name']}"
    return (
        f"{wide(table)}\n{arrivals(claim)}{budget[0].upper()}{budget[1:]}. Cost: {cost(claim)}.{note}"
        f"\n\n```sh\n{command}\n```"
    )


def name_of(text: str, template: str = "`{0}`") -> str:
    """A name from a record, as code or as a link. Any other text is escaped instead."""
    return template.format(text) if re.fullmatch(r"[\w-]+", text) else cell(text)


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
    seeds = " in the pilot seeds" if claim.confirmation and claim.entry["seeds"] else ""
    return (
        f"The next table shows how many tokens and seconds each variant needed{seeds} to get this far below "
        "the unigram baseline, averaged over the runs that did. If some runs never did, the entry says how "
        "many did.\n\n"
        f"{wide(table)}\n"
    )


def minutes(claim: Claim) -> float:
    """Minutes on two cores: measured, or estimated if runs are missing."""
    if claim.record is None or not claim.is_finished():
        return float(claim.entry["minutes"])
    return sum(row["core_seconds"] for row in claim.own_rows()) / 120


def describe_origins(record: Record, rows: list[Row]) -> str:
    """The machines on which some runs were made, each with the dates and the commits of its runs."""
    by_machine: dict[str, tuple[set[str], set[str]]] = {}
    for row in rows:
        # A row has these values only if they differ from those of the record.
        data = record.data | {name: row[name] for name in ("hardware", "date", "commit") if name in row}
        dates, commits = by_machine.setdefault(Record(record.name, data).machine(), (set(), set()))
        dates.add(data["date"])
        commits.add((data.get("commit") or "unknown")[:7])
    return "; ".join(
        cell(
            f"{machine}, {' to '.join(dict.fromkeys((min(dates), max(dates))))}, "
            f"commit{'s' * (len(commits) > 1)} {', '.join(sorted(commits))}"
        )
        for machine, (dates, commits) in by_machine.items()
    )


def cost(claim: Claim) -> str:
    """The cost of the runs with machines, dates and commits, or an estimate if there are no runs yet."""
    estimate = f"about {minutes(claim):.0f} minutes on two cores"
    if claim.record is None or not claim.rows:
        return estimate
    table = claim.own_rows()
    fresh = [row for row in table if claim.is_fresh(row)]
    others = [row for row in table if not claim.is_fresh(row)]
    where = describe_origins(claim.record, table)
    # The pilots often ran on another machine than the runs that decide.
    before, after = (describe_origins(claim.record, rows) for rows in (others, fresh))
    if before and after and before != after:
        kinds = sorted({"pilots" if row["seed"] < FIRST_SEED else "search" for row in others})
        where = f"{' and '.join(kinds)}: {before}; fresh seeds: {after}"
    result = f"{estimate} ({where})" if where else estimate
    shared = sorted({row["from"] for row in claim.rows if "from" in row})
    if shared:
        # All claims are sections of one page, so a claim can link to another; a study is on another page.
        template = "[{0}](#{0})" if "primary" in claim.entry else "`{0}`"
        links = ", ".join(name_of(name, template) for name in shared)
        result += f", not counting the runs that are also part of {links}"
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
    return [*parse_entries((claims or CLAIMS).read_text("utf-8"))]


def hours(claims: Path | None = None) -> float:
    """How many hours all recorded claims took."""
    entries = (read_claim(name, claims) for name in names(claims))
    return sum(minutes(claim) for claim in entries if claim.record) / 60


def verdict_hours() -> float:
    """Hours on two cores for the runs that decide the verdicts, and for the searches before them."""
    seconds = 0.0
    for claim in map(read_claim, names()):
        arms = {claim.primary()["better"], claim.primary()["worse"]}
        rows = [row for row in claim.own_rows() if row["arm"] in arms and row["seed"] >= claim.entry["seeds"]]
        seconds += sum(row["core_seconds"] for row in rows)
    return seconds / 7200
