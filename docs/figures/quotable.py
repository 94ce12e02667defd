"""
# What a chapter may quote

Nobody types a number into a chapter. Between `{{ ` and ` }}` stands an expression over the names
below and nothing else; `quotable` is the whole list.
"""

import math
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any

from markupsafe import Markup

from docs.figures import attention, claims, live
from docs.figures.records import Record, checked, dotted
from docs.figures.speed import best_row, worth
from docs.literate.chart import Line, line_chart
from docs.literate.maths import safe_in_markdown
from docs.literate.names import Sources, relative
from docs.literate.page import excerpt
from docs.literate.prose import cell
from docs.literate.rows import PageError


def parameters(
    vocab_size: int = 30522,
    hidden_size: int = 768,
    num_hidden_layers: int = 12,
    intermediate_size: int | None = None,
    max_position_embeddings: int = 512,
    type_vocab_size: int = 2,
) -> SimpleNamespace:
    """How many numbers each part of a BERT holds. A test counts the real one."""
    V, D = vocab_size, hidden_size
    wide = intermediate_size or 4 * D
    norm = 2 * D
    dense = D * D + D
    embeddings = (V + max_position_embeddings + type_vocab_size) * D + norm
    attention = 4 * dense + norm
    feed_forward = (D * wide + wide) + (wide * D + D) + norm
    block = attention + feed_forward
    encoder = num_hidden_layers * block
    head = dense + norm + V
    return SimpleNamespace(
        word_embeddings=V * D,
        embeddings=embeddings,
        attention=attention,
        feed_forward=feed_forward,
        block=block,
        encoder=encoder,
        pooler=dense,
        bert=embeddings + encoder + dense,
        head_dense=dense,
        head_norm=norm,
        head_bias=V,
        head=head,
        masked_lm=embeddings + encoder + head,
        pretraining=embeddings + encoder + dense + head + 2 * D + 2,
    )


def flops(
    length: int,
    predictions: int,
    vocab_size: int = 30522,
    hidden_size: int = 768,
    num_hidden_layers: int = 12,
    intermediate_size: int | None = None,
) -> SimpleNamespace:
    """
    FLOPs of the matrix multiplications in a training step for one sequence, by part. A test compares them
    with `timing.count_forward_flops`. A backward pass has twice those of a forward pass.
    """
    T, D, wide = length, hidden_size, intermediate_size or 4 * hidden_size
    layers = 3 * num_hidden_layers * T * 2 * (4 * D * D + 2 * D * wide)
    attention = 3 * num_hidden_layers * T * 2 * 2 * T * D
    head = 3 * predictions * 2 * D * (D + vocab_size)
    return SimpleNamespace(layers=layers, attention=attention, head=head, total=layers + attention + head)


def quotable(records: dict[str, Record], sources: Sources, page: str) -> dict[str, Callable[..., Any]]:
    """The names that an expression may use on `page`."""

    def record(name: str) -> Record:
        if name not in records:
            known = ", ".join(records) or "none yet"
            raise PageError(f"docs/runs has no {name}.json; recorded are: {known}")
        return records[name]

    def run(name: str) -> Any:
        """The record: `run("mlm_tiny").result.loss`."""
        return dotted(record(name).data)

    def baseline(name: str, which: str) -> Any:
        """A baseline of a run: `baseline("mlm_tiny", "unigram").loss`."""
        found = {entry["name"]: dotted(entry) for entry in record(name).data["baselines"]}
        if which not in found:
            raise PageError(f"the run {name} has no baseline {which!r}; it has {', '.join(found)}")
        return found[which]

    def value_at(name: str, metric: str, seconds: float) -> float:
        """The last value of a metric that was known at a time."""
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

    def accuracy(name: str, task: str, labels: int, arm: str) -> float:
        """The mean accuracy of a method in a comparison, over the seeds."""
        rows = record(name).data["table"]
        found = [r["accuracy"] for r in rows if (r["task"], r["labels"], r["arm"]) == (task, labels, arm)]
        if not found:
            raise PageError(f"the run {name} has no {arm!r} with {labels} labels of {task!r}")
        return sum(found) / len(found)

    def speed(name: str, shape: str, arm: str) -> Any:
        """A row of a record of speed: `speed("speed", "BERT base", "ours, bfloat16").share`."""
        return dotted(best_row(record(name), shape, arm))

    def speedup(name: str, shape: str, trick: str) -> float:
        """What a trick is worth: `speedup("speed_ledger", "short", "bfloat16")`."""
        return worth(record(name), shape, trick)

    def machine(name: str) -> str:
        """Where it ran."""
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
        """Curves of one metric of some runs. The baselines are those of the first; `kinds` look alike."""
        chosen = [record(name) for name in names]
        lines = [
            Line(label, one.curve(metric, over), kind)
            for label, one, kind in zip(labels or names, chosen, kinds or [""] * len(chosen), strict=True)
        ]
        kind = metric.rpartition(".")[2]
        levels = [(entry["name"], entry[kind]) for entry in chosen[0].data["baselines"]] if baselines else []
        figure = line_chart(lines, title, over if over == "seconds" else "steps", metric, levels, caption)
        return figure.replace("</figcaption>", Markup(" {}</figcaption>").format(provenance_of(chosen)))

    def home_of(one: Record) -> str:
        # The page of the script that made a record, in whichever folder it is.
        name = one.data["experiment"]
        scripts = (source.page for source in sources.values() if source.is_script)
        return next((home for home in scripts if home.endswith(f"/{name}")), f"experiments/{name}")

    def provenance_of(chosen: list[Record]) -> Markup:
        # Runs with one date, machine and commit share one line.
        groups: dict[str, list[tuple[str, str]]] = {}
        for one in chosen:
            target = f"{relative(page, home_of(one))}#run-{one.name}"
            commit = (one.data.get("commit") or "unknown")[:7]
            facts = f"{one.data['date']}, {one.machine()}, commit {commit}. {checked(one)}".strip()
            groups.setdefault(facts, []).append((target, one.name))
        return Markup(safe_in_markdown(attention.render("provenance.html", groups=groups)))

    def provenance(*names: str) -> str:
        """Date, machine and commit of runs, and whether today's code reproduces them."""
        return provenance_of([record(name) for name in names])

    def with_provenance(picture: Callable[[Record], Markup]) -> Callable[[str], str]:
        def draw(name: str) -> str:
            caption = Markup("<figcaption>{}</figcaption></figure>").format(provenance_of([record(name)]))
            return picture(record(name)).replace("</figure>", caption)

        return draw

    return {
        "run": run,
        "baseline": baseline,
        "value_at": value_at,
        "seconds_until": seconds_until,
        "accuracy": accuracy,
        "speed": speed,
        "speedup": speedup,
        "machine": machine,
        "provenance": provenance,
        "chart": chart,
        "source": lambda name: excerpt(name, sources, page),
        "predictions": with_provenance(attention.predictions),
        "mask_rows": lambda name: attention.mask_rows(record(name)),
        "head_map": with_provenance(attention.head_map),
        **{
            f"live_{picture.__name__}": partial(with_provenance(picture), "live")
            for picture in (live.curves, live.attention, live.positions, live.dense_layer, live.neighbors)
        },
        "claim": lambda name: claims.row(claims.read_claim(name)),
        "claim_figure": lambda name: claims.drawing(claims.read_claim(name)),
        "claim_details": lambda name: claims.details(claims.read_claim(name)),
        "verdict": lambda name: claims.read_claim(name).verdict(),
        "measured": lambda name, says: claims.measured(claims.read_claim(name), says),
        "claims_hours": claims.hours,
        "claims_overview": claims.overview,
        "parameters": parameters,
        "flops": flops,
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
