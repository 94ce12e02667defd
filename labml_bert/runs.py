"""
# Your runs, side by side

Which of your runs was the best, and what was different about it? By default, this command lists all runs
under `logs`, newest first, with their results and with the options in which they differ:

    python -m labml_bert.runs
    python -m labml_bert.runs logs/mlm_tiny/20261121-120000 logs/mlm_tiny/20261121-123000 --html curves.html

With `--html`, the command also writes a page with the curves of the listed runs: the loss and the accuracy,
the learning rate, the sequence length, the norm of the gradient and the speed. The page is a single,
self-contained file. `--open` shows the page in your browser.
"""

if __name__ == "__main__":
    from labml_bert.run import preflight  # noqa: F401

import errno
import os
import tempfile
import webbrowser
from collections.abc import Iterator, Sequence
from html import escape
from math import isfinite
from pathlib import Path
from textwrap import wrap
from typing import Any, NamedTuple

from labml_bert.files import is_unreadable_folder, unreadable, write_whole
from labml_bert.run.terminal import exit_on_bad_input
from labml_bert.stdout import OneLineParser, console, display_path, print_note, printable
from labml_bert.training.checkpoint import find_run_folders, load_checkpoint
from labml_bert.training.tracking import METRICS, read_metrics

# The page has a chart for each of these metrics that at least one run has.
CHARTS = {
    "valid.loss": "held-out loss, nats",
    "valid.accuracy": "held-out accuracy",
    "loss": "training loss, nats",
    "learning_rate": "learning rate",
    "length": "sequence length, tokens",
    "gradient_norm": "norm of the gradient",
    "tokens_per_second": "tokens per second",
}
# The comparison leaves out these options. The table has columns for the steps and the time, only runs of the
# same experiment are compared, and the model usually follows from options that are compared.
NOT_COMPARED = {"experiment", "model", "steps", "minutes"}
# Each hash, and the option that names what was hashed. Compare hashes only if the option is the same.
HASHES = {"corpus_sha256": "corpus", "old_corpus_sha256": "old_corpus", "start_sha256": "from_"}
# A file that starts differently isn't a page of ours, so we don't overwrite it.
PAGE_START = '<!doctype html><html lang="en"><meta charset="utf-8"><title>Runs</title>'
# The size of a chart and its margin on the left, in units of the SVG.
WIDTH, HEIGHT, MARGIN = 480, 240, 64


class RunFolder(NamedTuple):
    """A run, as read from its folder, up to its last checkpoint."""

    path: Path
    configuration: dict[str, Any]
    steps: int
    seconds: float
    is_finished: bool
    metrics: dict[str, list[tuple[int, float]]]

    def last(self, metric: str) -> float | None:
        """The last value of a metric, if there is one."""
        points = self.metrics.get(metric)
        return points[-1][1] if points else None

    def result(self, metric: str) -> float | None:
        """The metric on the whole held-out text, after training, or else that of the last evaluation."""
        result = self.last(f"result.{metric}")
        return self.last(f"valid.{metric}") if result is None else result


def read_run(path: Path) -> RunFolder:
    """Reads a run's folder. Raises `ValueError` if there is no run, or if it's damaged or can't be read."""
    metadata = load_checkpoint(path)[0]
    try:
        metrics = read_metrics(path, metadata["step"])
        is_finished = (path / "model" / "config.json").is_file()
    except OSError as error:
        raise unreadable(error.filename or path / METRICS, error.strerror) from None
    configuration, step, seconds = (metadata[name] for name in ("configuration", "step", "seconds"))
    return RunFolder(path, configuration, step, seconds, is_finished, metrics)


def find_runs(paths: Sequence[Path]) -> list[RunFolder]:
    """
    Returns the runs in `paths`, the one with the newest checkpoint first. Each path is the folder of a run,
    or a folder that contains runs up to two levels down. Prints a note for each run that is damaged or can't
    be read, and leaves it out.

    Raises `ValueError` if there are no runs, if no run can be read or one of `paths` is such a run, if a path
    is a file or can't be read, or if one of several paths doesn't exist.
    """
    for path in paths:
        if path.exists() and not path.is_dir():
            raise ValueError(f"{path} is not a folder; name the folder of a run")
        if is_unreadable_folder(path):
            raise unreadable(path, os.strerror(errno.EACCES))
        if not path.exists() and len(paths) > 1:
            raise ValueError(f"there is no folder {path}; check the name")
    folders = find_run_folders(paths, ["", "*/", "*/*/"])
    if not folders:
        raise ValueError(
            f"no run in {' '.join(map(str, paths))}; train a model, for example with experiments/mlm_tiny.py"
        )
    runs = []
    for folder in folders:
        try:
            runs.append(read_run(folder))
        except ValueError as error:
            if folder in paths or len(folders) == 1:
                raise
            print_note(f"left out: {error}")
    if not runs:
        raise ValueError(f"none of the {len(folders)} runs can be read; see the notes above")
    return runs


def differences(runs: Sequence[RunFolder]) -> list[dict[str, Any]]:
    """
    Returns, for each run, the options whose values differ between the runs of the same experiment. If two of
    these runs read different texts from the same path, returns the first 8 digits of each sha256 as well.
    """

    def differs(name: str, run: RunFolder, other: RunFolder) -> bool:
        names = (name, "experiment", *([HASHES[name]] if name in HASHES else []))
        is_equal, *are_comparable = (other.configuration.get(n) == run.configuration.get(n) for n in names)
        return not is_equal and all(are_comparable)

    return [
        {
            name.rstrip("_"): str(value)[:8] if name in HASHES else value
            for name, value in run.configuration.items()
            if name not in NOT_COMPARED and any(differs(name, run, other) for other in runs)
        }
        for run in runs
    ]


def print_runs(runs: Sequence[RunFolder]) -> None:
    """Prints a line for each run, and below that line the run's options from `differences`."""
    names = [printable(display_path(run.path).removeprefix("logs/")) for run in runs]
    width = max(map(len, names))
    console.print(f"\n  {'run':{width}}  {'steps':>8}  {'time':>9}  {'loss':>6}  accuracy", style="dim")
    for name, run, options in zip(names, runs, differences(runs), strict=True):
        loss, accuracy = (run.result(metric) for metric in ("loss", "accuracy"))
        console.print(
            f"  {name:{width}}  {run.steps:8,}  {run.seconds / 60:5.1f} min  "
            f"{'' if loss is None else f'{loss:.3f}':>6}  {'' if accuracy is None else f'{accuracy:.1%}':>8}"
        )
        words = [f"{option} {value}" for option, value in options.items() if value is not None]
        text = printable(", ".join([*words, *["not finished"] * (not run.is_finished)]))
        for line in wrap(text, 74):
            console.print(f"    {line}", style="dim")
    console.print()


def draw_chart(title: str, curves: Sequence[tuple[int, list[tuple[int, float]]]]) -> str:
    """
    Returns a figure with the curves as an SVG. Each curve consists of the number of its run and its points,
    `(step, value)`. The axes are labeled with the smallest and the largest step and value.
    """
    xs = [step for _, points in curves for step, _ in points]
    ys = [value for _, points in curves for _, value in points]
    left, right, low, high = min(xs), max(xs), min(ys), max(ys)

    def coordinates(step: float, value: float) -> str:
        x = MARGIN + (WIDTH - MARGIN - 8) * (step - left) / max(right - left, 1)
        y = HEIGHT - 24 - (HEIGHT - 48) * (value - low) / ((high - low) or 1)
        return f"{x:.1f},{y:.1f}"

    lines = "".join(
        f'<polyline class="run{number % 6}" points="{" ".join(coordinates(*point) for point in points)}"/>'
        for number, points in curves
    )
    labels = "".join(
        f'<text x="{x}" y="{y}" text-anchor="{anchor}">{label}</text>'
        for x, y, anchor, label in (
            (MARGIN - 6, HEIGHT - 22, "end", f"{low:.3g}"),
            (MARGIN - 6, 30, "end", f"{high:.3g}"),
            (MARGIN, HEIGHT - 6, "start", f"step {left:,}"),
            (WIDTH - 8, HEIGHT - 6, "end", f"{right:,}"),
        )
    )
    return (
        f'<figure><figcaption>{escape(title)}</figcaption><svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" '
        f'aria-label="{escape(title)} by step, from {low:.3g} to {high:.3g}">'
        f'<path d="M{MARGIN} 20V{HEIGHT - 24}H{WIDTH - 8}"/>{lines}{labels}</svg></figure>'
    )


STYLE = """
:root { color-scheme: light dark; --run0: #0b6bcb; --run1: #c2410c; --run2: #15803d; --run3: #9333ea;
  --run4: #b45309; --run5: #be185d; }
@media (prefers-color-scheme: dark) { :root { --run0: #6cb6ff; --run1: #ff9b6a; --run2: #6fdd8b;
  --run3: #d2a8ff; --run4: #f2cc60; --run5: #ff8fc0; } }
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 62rem; padding: 0 1rem; }
main { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(100%, 24rem), 1fr)); gap: 1.5rem; }
figure { margin: 0; } figcaption { font-weight: 600; } svg { width: 100%; } text { font-size: 12px;
  fill: currentColor; } path { fill: none; stroke: currentColor; opacity: 0.4; }
polyline { fill: none; stroke-width: 1.5; } li { overflow-wrap: anywhere; }
"""
STYLE += "".join(
    f".run{n} {{ stroke: var(--run{n}); }} li.run{n} {{ color: var(--run{n}); }}\n" for n in range(6)
)


def draw_page(runs: Sequence[RunFolder]) -> str:
    """Returns a page with a list of the runs and a chart for each metric in `CHARTS` that any run has."""

    def list_items() -> Iterator[str]:
        for number, (run, options) in enumerate(zip(runs, differences(runs), strict=True)):
            words = "".join(f", {name} {value}" for name, value in options.items() if value is not None)
            yield f'<li class="run{number % 6}">{escape(printable(display_path(run.path) + words))}</li>'

    charts = []
    for metric, title in CHARTS.items():
        # A chart can't show NaN or infinity, so leave these values out.
        curves = []
        for number, run in enumerate(runs):
            if points := [point for point in run.metrics.get(metric, []) if isfinite(point[1])]:
                curves.append((number, points))
        if curves:
            charts.append(draw_chart(title, curves))
    return (
        f'{PAGE_START}<meta name="viewport" content="width=device-width">'
        f"<style>{STYLE}</style><h1>Runs</h1><ol>{''.join(list_items())}</ol><main>{''.join(charts)}</main></html>"
    )


def is_our_page(path: Path) -> bool:
    """Whether a file starts like a page from `draw_page`."""
    if not path.is_file():
        return False
    with path.open("rb") as file:
        return file.read(len(PAGE_START)) == PAGE_START.encode()


def main(argv: list[str] | None = None) -> None:
    """Reads the command line, prints the runs, and writes and shows the page if the options say so."""
    parser = OneLineParser(
        prog="python -m labml_bert.runs", description="List runs, and compare their curves."
    )
    parser.add_argument("folder", nargs="*", type=Path, help="runs, or folders with runs (default: logs)")
    parser.add_argument("--html", metavar="FILE", type=Path, help="write a page with the curves to this file")
    parser.add_argument("--open", action="store_true", help="show the page with the curves in your browser")
    options = parser.parse_args(argv)
    with exit_on_bad_input():
        runs = find_runs(options.folder or [Path("logs")])
        if options.html is not None and os.path.lexists(options.html) and not is_our_page(options.html):
            raise ValueError(f"{options.html} exists and is not a page of curves; choose another name")
        print_runs(runs)
        page = options.html
        if options.open and page is None:
            page = Path(tempfile.mkdtemp(prefix="labml_bert-")) / "runs.html"
        if page is not None:
            write_whole(page, draw_page(runs))
            is_shown = options.open and webbrowser.open(page.absolute().as_uri())
            remedy = "" if is_shown else "; open it in a browser"
            console.print(f"  curves in {display_path(page)}{remedy}\n")


if __name__ == "__main__":
    main()
