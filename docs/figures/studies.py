"""
# Studies

A study in `experiments/claims/studies.toml` compares variants as a claim does, but it has no tests and so no
verdict. A page shows its table and its chart, computed from the record under `docs/runs/claims`.
"""

import statistics
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from docs.figures.claims import CLAIMS, Claim, cost, format_signed, read_claim
from docs.figures.records import RUNS, describe_check
from docs.literate.chart import Bar, Line, bar_chart, line_chart
from docs.literate.prose import cell, wide
from docs.literate.rows import PageError
from experiments.claims.analysis import Row
from experiments.claims.decision import Interval, difference, mean

STUDIES = CLAIMS.with_name("studies.toml")


def read_study(name: str, studies: Path = STUDIES, runs: Path = RUNS) -> Claim:
    """Raises `PageError` if there is no such study, if its record isn't one, or if runs are missing."""
    study = read_claim(name, studies, runs)
    if not study.is_finished():
        raise PageError(f"the study {name} is not finished; run python experiments/claims/claims.py {name}")
    return study


class Arrivals(NamedTuple):
    """When the runs of a variant reached the loss of the study, averaged over the runs that did."""

    runs: int
    tokens: float
    seconds: float | None  # None with a batch ramp: only a step at full batch size was timed


def tokens_until(row: Row, goal: float) -> float | None:
    """Tokens until the held-out loss of a run reached `goal`, interpolated between two evaluations."""
    points = [(tokens, loss) for tokens, (_, loss) in zip(row["curve_tokens"], row["curve"], strict=True)]
    for (x, above), (y, below) in pairwise(points):
        if above is None or below is None:
            return None
        if below <= goal:
            return float(x + (y - x) * (above - goal) / (above - below))
    return None


def arrivals(study: Claim, arm: str) -> Arrivals:
    """
    When a variant reached the loss of the study. The time is the number of tokens times the time per token of
    a step. Smaller batches take more time per token, so there is no time for a variant with a batch ramp.
    """
    assert study.record is not None
    rows = study.of(arm)
    goal = rows[0]["unigram_loss"] - study.entry["below"]
    tokens = [value for row in rows if (value := tokens_until(row, goal)) is not None]
    if not tokens:
        return Arrivals(0, 0.0, None)
    (per_step,) = study.record.data["step_seconds"][arm].values()
    middle = statistics.mean(tokens)
    ramps = study.entry["arms"][arm].get("batch_ramp", False)
    return Arrivals(len(tokens), middle, None if ramps else middle / rows[0]["batch_tokens"] * per_step)


def final_losses(study: Claim, arm: str) -> list[float]:
    """The held-out losses of a variant after its last step. Raises `PageError` if one of them is NaN."""
    losses = study.values(arm, "loss")
    if None in losses:
        raise PageError(f"a run of {arm!r} in the study {study.entry['name']} ended in NaN")
    return [loss for loss in losses if loss is not None]


def with_interval(interval: Interval, digits: int = 3) -> str:
    """A mean and half the width of its 95% interval."""
    return f"{interval.middle:.{digits}f} ± {interval.high - interval.middle:.{digits}f}"


def signed(interval: Interval, digits: int = 3) -> str:
    """A difference and its 95% interval, with their signs."""
    middle, low, high = (format_signed(value, digits) for value in interval)
    return f"{middle} [{low}, {high}]"


def core_minutes(study: Claim, arm: str) -> float:
    """Minutes on one core for all runs of a variant, its search for a learning rate included."""
    assert study.record is not None
    rows = [row for row in study.record.data["table"] if row["arm"] == arm]
    return sum(row["core_seconds"] for row in rows) / 60


def compared_with(study: Claim, arm: str) -> str | None:
    """The variant that this one is compared with: the one before it in a ladder, or else the first."""
    arms = list(study.arms)
    i = arms.index(arm)
    return None if i == 0 else arms[i - 1] if study.entry["is_ladder"] else arms[0]


def study_table(name: str) -> str:
    """The variants of a study, with the tokens and seconds to its loss and the final loss, as Markdown."""
    study = read_study(name)
    other = "the row above" if study.entry["is_ladder"] else study.label(study.arms[0])
    table = (
        f"| variant | learning rate | tokens to the goal | seconds to the goal | final loss | "
        f"compared with {other} | cost |\n|---|---:|---:|---:|---:|---:|---:|\n"
    )
    for arm in study.arms:
        rows, at, losses = study.of(arm), arrivals(study, arm), final_losses(study, arm)
        before = compared_with(study, arm)
        gain = "–"
        if before is not None:
            gain = signed(difference(losses, final_losses(study, before)))
        few = "" if at.runs in (0, len(rows)) else f" ({at.runs} of {len(rows)} runs)"
        table += f"| {cell(study.label(arm))} | {rows[0]['options']['learning_rate']:g} |"
        tokens = f"{at.tokens / 1e6:.2f} M{few}" if at.runs else "not reached"
        seconds = "–" if at.seconds is None else f"{at.seconds:.0f}"
        table += f" {tokens} | {seconds} |"
        table += f" {with_interval(mean(losses))} | {gain} | {core_minutes(study, arm):.1f} min |\n"
    return f"{wide(table)}\n{footnote(study)}"


def footnote(study: Claim) -> str:
    """Seeds, budget, cost and command of a study, as Markdown."""
    assert study.record is not None
    tokens = study.entry["options"]["tokens"]
    budgets = sorted({arm.get("tokens", tokens) for arm in study.entry["arms"].values()})
    budget = " or ".join(f"{n:,}" for n in budgets)
    return (
        f"{len(study.of(study.arms[0]))} seeds per variant, {budget} tokens per run. "
        f"Cost: {cost(study)}. {describe_check(study.record)}\n\n"
        f"```sh\npython experiments/claims/claims.py {study.entry['name']}\n```"
    )


def study_chart(name: str, caption: str) -> str:
    """A bar for the final loss of each variant."""
    study = read_study(name)
    bars = []
    for arm in study.arms:
        losses = final_losses(study, arm)
        middle = statistics.mean(losses)
        bars.append(Bar(study.label(arm), middle, f"{middle:.2f}", 1, min(losses), max(losses)))
    return bar_chart(bars, study.entry["title"], caption)


# The curves that `study_curves` can draw: the label of the axis, and the value at evaluation `i` of a run.
# `probe_order` in `experiments/claims/training.py` measures the last two.
CURVES: dict[str, tuple[str, Callable[[Row, int], float]]] = {
    "loss": ("loss, nats", lambda row, i: row["curve"][i][1]),
    "attention": ("attention weight", lambda row, i: row["probes"][i][0]),
    "order": ("gain from the order, nats", lambda row, i: row["probes"][i][1]),
}


def study_curves(name: str, what: str, title: str, caption: str) -> str:
    """A line for each variant, by tokens, averaged over the seeds. `what` is a key of `CURVES`."""
    study = read_study(name)
    y_label, value = CURVES[what]
    lines = []
    for arm in study.arms:
        rows = study.of(arm)
        points = [
            (tokens / 1000, statistics.mean(value(row, i) for row in rows))
            for i, tokens in enumerate(rows[0]["curve_tokens"])
        ]
        lines.append(Line(study.label(arm), points))
    return line_chart(lines, title, "thousands of training tokens", y_label, [], caption)


def pairs_table(name: str, setting_name: str) -> str:
    """
    The final losses of a study whose variants are called `SETTING: KIND`, with two kinds, as Markdown: a row
    for each setting and a column for each kind. `setting_name` is the header of the settings.
    """
    study = read_study(name)
    settings, kinds = (list(dict.fromkeys(arm.split(": ")[i] for arm in study.arms)) for i in range(2))
    table = f"| {setting_name} | unigram baseline | {' | '.join(kinds)} | gain, 95% CI |\n"
    table += "|---|---:|---:|---:|---:|\n"
    for setting in settings:
        arms = [f"{setting}: {kind}" for kind in kinds]
        first, second = (final_losses(study, arm) for arm in arms)
        cells = [
            cell(setting),
            f"{study.of(arms[0])[0]['unigram_loss']:.2f}",
            *(with_interval(mean(losses), 2) for losses in (first, second)),
            signed(difference(first, second), 2),
        ]
        table += f"| {' | '.join(cells)} |\n"
    return f"{wide(table)}\n{footnote(study)}"


def study_value(name: str, arm: str, what: str = "loss") -> float:
    """The mean final `loss`, or the mean number of `tokens` or `seconds` to the study's loss."""
    study = read_study(name)
    if arm not in study.arms:
        raise PageError(f"the study {name} has no variant {arm!r}; it has {', '.join(study.arms)}")
    if what == "loss":
        return statistics.mean(final_losses(study, arm))
    at = arrivals(study, arm)
    if at.runs < len(study.of(arm)):
        raise PageError(f"{at.runs} of {len(study.of(arm))} runs of {arm!r} reached the loss of {name}")
    value = {"tokens": at.tokens, "seconds": at.seconds}[what]
    if value is None:
        raise PageError(f"the time of {arm!r} in {name} wasn't measured: it has a batch ramp")
    return value


def study_gain(name: str, arm: str, than: str) -> Interval:
    """How much lower the final loss of `arm` is: the difference of the means, with its 95% interval."""
    study = read_study(name)
    return difference(final_losses(study, than), final_losses(study, arm))
