"""
# The recorded runs of an experiment

What stands below its code: the curve, the result beside the floors it has to beat, and everything
that somebody needs to doubt it or to repeat it.
"""

from docs.literate import attention
from docs.literate.chart import Line, line_chart
from docs.literate.names import Source
from docs.literate.prose import fenced
from docs.literate.records import Record, age


def results(record: Record) -> str:
    """The result and the floors, as a Markdown table."""
    ours = record.data["result"]
    rows = [(floor["name"], floor["loss"], floor["accuracy"]) for floor in record.data["floors"]]
    rows.append(("**this run**", ours["loss"], ours["accuracy"]))
    body = "".join(f"| {name} | {loss:.3f} | {accuracy:.1%} |\n" for name, loss, accuracy in rows)
    return f"| method | held-out loss, nats | right |\n|---|---:|---:|\n{body}"


def facts(record: Record) -> str:
    """Where, when and with what, as a Markdown table."""
    data = record.data
    versions = ", ".join(f"{name} {number}" for name, number in data["versions"].items())
    corpus = data["corpus"]
    rows = {
        "Date": data["date"],
        "Machine": record.machine(),
        "Training": f"{data['result']['training_seconds']:,.0f} s, {data['result']['steps']:,} steps",
        "Parameters": f"{data['parameters']:,}",
        "Text": f"{corpus['name']}, {corpus['train_characters']:,} characters, "
        f"sha256 `{corpus['sha256'][:12]}…`",
        "Versions": versions,
        "Commit": f"`{(data.get('commit') or 'unknown')[:12]}`",
    }
    return "| what | this run |\n|---|---|\n" + "".join(
        f"| {name} | {value} |\n" for name, value in rows.items()
    )


def curves(record: Record) -> str:
    """Training and held-out loss over the time of the run."""
    lines = [Line("training", record.curve("loss")), Line("held out", record.curve("valid.loss"))]
    floors = [(floor["name"], floor["loss"]) for floor in record.data["floors"]]
    title = f"The loss of the run {record.name}"
    return line_chart(lines, title, "seconds of training", "loss, nats per masked token", floors)


def recorded_runs(source: Source, sources: dict[str, Source], records: dict[str, Record]) -> str:
    """Markdown for the end of an experiment's page; nothing for a file that is no experiment."""
    folder, _, name = source.page.rpartition("/")
    if folder != "experiments":
        return ""
    mine = [record for record in records.values() if record.data["experiment"] == name]
    parts = ["## Recorded runs {#runs}\n\n"]
    if not mine:
        parts.append("None has been recorded yet.\n\n")
    for record in mine:
        stale = age(record, sources)
        mark = f'!!! warning ""\n    {stale}\n\n' if stale else ""
        if "history" in record.data:
            shown = f"{curves(record)}\n\n{results(record)}\n{facts(record)}"
        else:
            shown = f"{attention.filled(record)}\n\n{attention.mask_rows(record)}"
        parts.append(
            f"### {record.name} {{#run-{record.name}}}\n\n{mark}{fenced('sh', record.data['command'])}\n"
            f"{shown}\n"
        )
    return "".join(parts)
