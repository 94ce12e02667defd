"""
# What a chapter may quote

A chapter needn't repeat the numbers in a record: an expression between `{{ ` and ` }}` computes them, and may
use only the names that `quotable` returns.
"""

import math
import re
import statistics
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any

from markupsafe import Markup

from docs.figures import attention, budget, claims, continued, course, derived, live, recipe, studies
from docs.figures.baselines import baseline_table, perplexity
from docs.figures.diagrams import diagram
from docs.figures.example import example, example_value
from docs.figures.records import Record, describe_check, to_namespace
from docs.figures.speed import best_row, worth
from docs.figures.timeline import timeline
from docs.literate.chart import Line, line_chart
from docs.literate.maths import safe_in_markdown
from docs.literate.names import Sources, relative
from docs.literate.page import excerpt
from docs.literate.prose import cell
from docs.literate.rows import PageError
from docs.project import bibtex, license_text, quick_start, where_the_code_is


def quotable(records: dict[str, Record], sources: Sources, page: str) -> dict[str, Callable[..., Any]]:
    """The names that an expression may use on `page`."""

    def record(name: str) -> Record:
        if name not in records:
            choices = ", ".join(records) or "none yet"
            raise PageError(f"docs/runs has no {name}.json; recorded are: {choices}")
        return records[name]

    def run(name: str) -> Any:
        """The record: `run("mlm_tiny").result.loss`."""
        return to_namespace(record(name).data)

    def baseline(name: str, which: str) -> Any:
        """A baseline of a run: `baseline("mlm_tiny", "unigram").loss`."""
        baselines = {entry["name"]: to_namespace(entry) for entry in record(name).data["baselines"]}
        if which not in baselines:
            raise PageError(f"the run {name} has no baseline {which!r}; it has {', '.join(baselines)}")
        return baselines[which]

    def value_at(name: str, metric: str, seconds: float) -> float:
        """The last value of a metric in the first `seconds` of a run."""
        before = [y for x, y in record(name).curve(metric) if x <= seconds]
        if not before:
            raise PageError(f"the run {name} has no {metric} in its first {seconds} seconds")
        return before[-1]

    def seconds_until(name: str, metric: str, below: float) -> float:
        """When a metric first fell below a value, in seconds."""
        for x, y in record(name).curve(metric):
            if y < below:
                return x
        raise PageError(f"in the run {name}, {metric} never falls below {below}")

    def steps_until(name: str, metric: str, below: float) -> int:
        """The step of the first evaluation at which a metric is below a value."""
        for step, value in record(name).curve(metric, "step"):
            if value < below:
                return int(step)
        raise PageError(f"in the run {name}, {metric} never falls below {below}")

    def seeds_of(name: str) -> list[str]:
        """`small-*` as `small-0`, `small-1` and so on: the runs that differ only in their seed."""
        if not name.endswith("-*"):
            return [name]
        seeds = [one for one in records if re.fullmatch(rf"{re.escape(name[:-1])}\d+", one)]
        if not seeds:
            raise PageError(f"docs/runs has no seed of {name}")
        return sorted(seeds, key=lambda one: int(one.rpartition("-")[2]))

    def all_seeds(names: tuple[str, ...]) -> list[str]:
        return [one for name in names for one in seeds_of(name)]

    def over_seeds(name: str, metric: str) -> SimpleNamespace:
        """The `mean`, `min` and `max` of a final result: `over_seeds("small-*", "loss").mean`."""
        values = [record(one).data["result"][metric] for one in seeds_of(name)]
        return SimpleNamespace(mean=statistics.mean(values), min=min(values), max=max(values))

    def seed_table(*names: str, labels: list[str], steps_below: float | None = None) -> str:
        """
        The final loss and accuracy of each seed and their mean, as a Markdown table. With `steps_below`, also
        the step of the first evaluation with a held-out loss below that value.
        """
        runs = [[record(one) for one in seeds_of(name)] for name in names]
        seeds = [one.data["configuration"]["seed"] for one in runs[0]]
        table = f"| result | {' | '.join(f'seed {cell(seed)}' for seed in seeds)} | mean |\n"
        table += f"|---|{'---:|' * (len(seeds) + 1)}\n"
        for metric, title, form in (("loss", "held-out loss, nats", ".3f"), ("accuracy", "accuracy", ".1%")):
            for label, group in zip(labels, runs, strict=True):
                values = [one.data["result"][metric] for one in group]
                cells = (format(value, form) for value in (*values, statistics.mean(values)))
                table += f"| {label}: {title} | {' | '.join(cells)} |\n"
        if steps_below is not None:
            for label, group in zip(labels, runs, strict=True):
                curves = (one.curve("valid.loss", "step") for one in group)
                below = [next((step for step, loss in curve if loss < steps_below), None) for curve in curves]
                cells = ("never" if step is None else f"{step:,.0f}" for step in below)
                table += f"| {label}: first step below {steps_below:g} nats | {' | '.join(cells)} | |\n"
        return table

    def accuracy(name: str, task: str, labels: int, arm: str) -> float:
        """The mean accuracy of a method in a comparison, over the seeds."""
        rows = record(name).data["table"]
        values = [r["accuracy"] for r in rows if (r["task"], r["labels"], r["arm"]) == (task, labels, arm)]
        if not values:
            raise PageError(f"the run {name} has no {arm!r} with {labels} labels of {task!r}")
        return sum(values) / len(values)

    def speed(name: str, shape: str, arm: str) -> Any:
        """A row of a record of speed: `speed("speed", "BERT base", "ours, bfloat16").mfu`."""
        return to_namespace(best_row(record(name), shape, arm))

    def pretraining_days(name: str, shape: str, arm: str) -> float:
        """Days to train on as many tokens as BERT base was trained on, at the measured speed."""
        return budget.days(best_row(record(name), shape, arm)["tokens_per_second"])

    def speedup(name: str, shape: str, trick: str) -> float:
        """The speedup of a step by one trick: `speedup("speed_ablation", "short", "bfloat16")`."""
        return worth(record(name), shape, trick)

    def machine(name: str) -> str:
        """The machine and the precision of a run."""
        return cell(record(name).machine())

    def chart(
        *names: str,
        title: str,
        metric: str = "valid.loss",
        over: str = "seconds",
        labels: list[str] | None = None,
        kinds: list[str] | None = None,
        baselines: bool = True,
        caption: str = "",
    ) -> str:
        """
        Curves of one metric of some runs. The baselines are those of the first run, and runs of one kind look
        alike. A name that ends in `-*` stands for all of its seeds, which look alike and share a label.
        """
        selection = [record(name) for name in all_seeds(names)]
        lines = []
        for name, label, kind in zip(names, labels or names, kinds or [""] * len(names), strict=True):
            for one in seeds_of(name):
                several = name.endswith("-*")
                line_name = f"{label}, seed {one.rpartition('-')[2]}" if several else label
                lines.append(Line(line_name, record(one).curve(metric, over), label if several else kind))
        kind = metric.rpartition(".")[2]
        levels = (
            [(entry["name"], entry[kind]) for entry in selection[0].data["baselines"]] if baselines else []
        )
        if metric == "valid.loss" and any(one.has_partial_curve for one in selection):
            caption = caption or f"{title}."
            caption += " The curves were computed on part of the held-out text, the baselines on all of it."
        figure = line_chart(lines, title, over if over == "seconds" else "steps", metric, levels, caption)
        return figure.replace("</figcaption>", Markup(" {}</figcaption>").format(provenance_of(selection)))

    def short_to_long() -> str:
        """The plateau, and a run that leaves it early, for the front page."""
        return chart(
            "mlm_tiny-shakespeare-fixed-0",
            "mlm_tiny-shakespeare-0",
            labels=["length 128 throughout", "16, 32, 64, then 128"],
            over="steps",
            title="Held-out loss by training steps, fixed length against short to long",
            caption="Held-out loss on Shakespeare, in nats, for one seed. The model, the text and the "
            "number of tokens per step are the same.",
        )

    def home_of(one: Record) -> str:
        # The page of the script that made a record, in whichever folder it is.
        name = one.data["experiment"]
        scripts = (source.page for source in sources.values() if source.is_script)
        return next((home for home in scripts if home.endswith(f"/{name}")), f"experiments/{name}")

    def provenance_of(selection: list[Record]) -> Markup:
        # Runs with one date, machine and commit share one line.
        groups: dict[str, list[tuple[str, str]]] = {}
        for one in selection:
            target = f"{relative(page, home_of(one))}#run-{one.name}"
            commit = (one.data.get("commit") or "unknown")[:7]
            facts = f"{one.data['date']}, {one.machine()}, commit {commit}. {describe_check(one)}".strip()
            groups.setdefault(facts, []).append((target, one.name))
        return Markup(safe_in_markdown(attention.render("provenance.html", groups=groups)))

    def provenance(*names: str) -> str:
        """Date, machine and commit of runs, and whether the current code reproduces them."""
        return provenance_of([record(name) for name in all_seeds(names)])

    def continued_chart(*which: str, **options: str) -> str:
        """Curves of continued pretraining: `continued_chart("loss", "from scratch", title="…")`."""
        one = record("continue-pretraining")
        figure = continued.chart(one, *which, **options)
        return figure.replace("</figcaption>", Markup(" {}</figcaption>").format(provenance_of([one])))

    def with_provenance(picture: Callable[[Record], Markup]) -> Callable[[str], str]:
        def draw(name: str) -> str:
            runs = [record(name)]
            if picture is live.curves:  # The modern encoder was trained on another day.
                runs.append(runs[0].modern)
            caption = Markup("<figcaption>{}</figcaption></figure>").format(provenance_of(runs))
            return picture(record(name)).replace("</figure>", caption)

        return draw

    return {
        "run": run,
        "baseline": baseline,
        "value_at": value_at,
        "seconds_until": seconds_until,
        "steps_until": steps_until,
        "over_seeds": over_seeds,
        "seed_table": seed_table,
        "accuracy": accuracy,
        "speed": speed,
        "speedup": speedup,
        "pretraining_days": pretraining_days,
        "measured_table": lambda name: budget.measured_table(record(name)),
        "measured_hours": lambda name, arm: budget.measured_hours(record(name), arm),
        "measured_mfu": lambda name, arm: budget.measured_mfu(record(name), arm),
        "machine": machine,
        "provenance": provenance,
        "chart": chart,
        "short_to_long": short_to_long,
        "baseline_table": lambda name: baseline_table(record(name)),
        "perplexity": lambda name, which="": perplexity(record(name), which),
        "live_megabytes": lambda: record("live").data["checkpoints"][-1]["bytes"] / 1e6,
        "source": lambda name: excerpt(name, sources, page),
        "predictions": with_provenance(attention.predictions),
        "mask_rows": lambda name: attention.mask_rows(record(name)),
        "head_map": with_provenance(attention.head_map),
        "diagram": diagram,
        **{
            f"live_{picture.__name__}": partial(with_provenance(picture), "live")
            for picture in (live.curves, live.attention, live.positions, live.dense_layer, live.neighbors)
        },
        "claim": lambda name: claims.row(claims.read_claim(name)),
        "claim_figure": lambda name: claims.drawing(claims.read_claim(name)),
        "claim_details": lambda name: claims.details(claims.read_claim(name)),
        "verdict": lambda name: claims.read_claim(name).verdict(),
        "measured": lambda name, says, unit="": claims.describe_gain(
            claims.read_claim(name), says, unit=unit
        ),
        "increase": lambda name, says: claims.describe_gain(claims.read_claim(name), says, opposite=True),
        "primary": lambda name: claims.describe_gain(claims.read_claim(name)),
        "claims_hours": claims.hours,
        "verdict_hours": claims.verdict_hours,
        "studies_hours": lambda: claims.hours(studies.STUDIES),
        "timeline": timeline,
        "search_loss": lambda name, *which: derived.search_loss(claims.read_claim(name), *which),
        "course_exercise": course.course_exercise,
        "course_table": course.course_table,
        "course_steps": course.course_steps,
        "course_mistakes": course.course_mistakes,
        "count": derived.count,
        "fraction_of": derived.fraction_of,
        "batch_time": lambda pipeline: derived.batch_time(record("cost"), pipeline),
        "wins_table": lambda name: derived.wins_table(record(name)),
        "retrieval_table": lambda name: derived.retrieval_table(record(name)),
        "retrieval": lambda *which: derived.retrieval_value(record("retrieval"), *which),
        "retrieval_gain": lambda over: derived.retrieval_gain(record("retrieval"), over),
        "pair_test": lambda name: derived.pair_test(record(name)),
        "continued": lambda *which: continued.value(record("continue-pretraining"), *which),
        "continued_gap": lambda *which, **options: continued.gap(
            record("continue-pretraining"), *which, **options
        ),
        "continued_tokens": lambda *which: continued.first_below(record("continue-pretraining"), *which),
        "continued_example": lambda index: continued.example(record("continue-pretraining"), index),
        "continued_shorter": lambda: continued.shorter(record("continue-pretraining")),
        "continued_table": lambda: continued.table(record("continue-pretraining")),
        "continued_chart": continued_chart,
        "docstrings": lambda *which: derived.with_std(record("finetune_docstrings"), *which),
        "docstrings_gain": lambda *which: derived.gain(record("finetune_docstrings"), *which),
        "docstrings_chart": lambda task: derived.accuracy_chart(record("finetune_docstrings"), task),
        "parameters": lambda *which: derived.with_std(record("finetune_parameters"), *which),
        "parameters_gain": lambda *which: derived.gain(record("finetune_parameters"), *which),
        "parameters_table": lambda task: derived.parameters_table(record("finetune_parameters"), task),
        "parameters_seconds": lambda *which: derived.seconds_per_run(record("finetune_parameters"), *which),
        "flops": budget.flops,
        "original": budget.original,
        "flops_table": budget.flops_table,
        "gpu_hours": budget.gpu_hours,
        "gpu_chart": budget.gpu_chart,
        "gpu_table": budget.gpu_table,
        "training_cost": budget.training_cost,
        "run_budget": lambda name: budget.run_budget(record(name)),
        "learning_rate_chart": lambda name: recipe.learning_rate_chart(record(name)),
        "failed_runs": lambda name: recipe.failed_runs(studies.read_study(name)),
        "example": example,
        "example_value": example_value,
        "claims_overview": claims.overview,
        "study_table": studies.study_table,
        "study_chart": studies.study_chart,
        "study_curves": studies.study_curves,
        "pairs_table": studies.pairs_table,
        "study_value": studies.study_value,
        "study_gain": studies.study_gain,
        "bibtex": bibtex,
        "license_text": license_text,
        "quick_start": quick_start,
        "where_the_code_is": where_the_code_is,
        "ln": math.log,
        "exp": math.exp,
        "sqrt": math.sqrt,
        "min": min,
        "max": max,
        "sum": sum,
        "abs": abs,
        "round": round,
        "len": len,
    }
