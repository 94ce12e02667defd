"""
# Recorded runs

A result in `docs/runs` is one JSON file, as `labml_bert.run.job.run_record` leaves it. Pages quote
these and nothing else. A record says at which commit it was made; where the code it depends on has
changed since, the page says so.
"""

import ast
import json
import subprocess
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from docs.literate.names import Source
from docs.literate.prose import cell
from docs.literate.rows import PageError

ROOT = Path(__file__).parents[2]
RUNS = ROOT / "docs" / "runs"


@dataclass
class Record:
    """One file of `docs/runs`."""

    name: str
    """The name of the file, without its ending."""
    data: dict[str, Any]

    def curve(self, metric: str, over: str = "seconds") -> list[tuple[float, float]]:
        """The points of a metric over `seconds` or `step`. Raises `PageError` for an unknown metric."""
        history = self.data["history"]
        if metric not in history:
            known = ", ".join(name for name in history if name != "seconds")
            raise PageError(f"the run {self.name} has no metric {metric!r}; it has {known}")
        seconds = dict(history["seconds"])
        return [(seconds[step] if over == "seconds" else step, value) for step, value in history[metric]]

    def machine(self) -> str:
        """Where it ran, in a few words."""
        hardware = self.data["hardware"]
        name = hardware.get("name") or hardware["device"]
        cores = f", {hardware['cores']} cores" if hardware["device"] == "cpu" else ""
        return f"{name}{cores}, {hardware['precision']}"


def made(record: Record) -> str:
    """Date, machine, duration and commit, as a sentence in Markdown."""
    data = record.data
    return (
        f"{cell(data['date'])}, {cell(record.machine())}, {data['result']['wall_seconds'] / 60:.1f} minutes, "
        f"commit `{cell((data.get('commit') or 'unknown')[:12])}`."
    )


def read_records(folder: Path = RUNS) -> dict[str, Record]:
    """All records by name. Raises `PageError` for a file that is not one."""
    found = {}
    for path in sorted(folder.glob("*.json")):
        try:
            found[path.stem] = Record(path.stem, json.loads(path.read_text("utf-8")))
        except ValueError as error:
            raise PageError(f"{path}: not JSON: {error}") from None
    return found


def dotted(value: Any) -> Any:
    """JSON whose objects are read with dots: `result.loss`."""
    return json.loads(json.dumps(value), object_hook=lambda pairs: SimpleNamespace(**pairs))


def code_of(experiment: str, sources: dict[str, Source]) -> list[str]:
    """The files that a run of the experiment goes through: its own and all they import."""
    found: dict[str, None] = {}
    names = (name for name in sources if name.startswith("experiments."))
    waiting = [name for name in names if name.rpartition(".")[2] == experiment]
    while waiting:
        source = sources.get(waiting.pop())
        if source is None or source.path in found:
            continue
        found[source.path] = None
        waiting += source.imports
    return sorted(found)


@cache
def changed_since(commit: str, paths: tuple[str, ...], root: Path = ROOT) -> tuple[str, ...] | None:
    """
    Which of the files do something else than they did at the commit, or `None` where git cannot tell.
    Better words in a comment or a docstring change no result.
    """
    try:
        # With a letter for each: `A` is a file that is new since.
        lines = git(root, "diff", "--name-status", "--no-renames", commit, "--", *paths).splitlines()
        found = [(line[0], line[1:].strip()) for line in lines]
        return tuple(
            name
            for letter, name in found
            if letter == "A"
            or statements(git(root, "show", f"{commit}:{name}"))
            != statements((root / name).read_text("utf-8"))
        )
    except (OSError, subprocess.CalledProcessError):
        return None


def git(root: Path, *words: str) -> str:
    """What git answers. Raises `CalledProcessError` where it fails, as for a file that is new."""
    return subprocess.run(["git", *words], cwd=root, capture_output=True, text=True, check=True).stdout


@cache
def statements(source: str) -> str:
    """The code of a source file without comments, docstrings and layout."""
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and ast.get_docstring(node):
            node.body = node.body[1:]
    return ast.dump(tree)


def age(record: Record, sources: dict[str, Source]) -> str:
    """What to say about the age of a record: nothing where its code is as it was."""
    paths = tuple(code_of(record.data["experiment"], sources))
    commit = record.data.get("commit")
    changed = changed_since(commit, paths) if commit and paths else None
    if changed is None:
        return "It is not known which code made this run."
    if changed:
        names = ", ".join(f"`{path}`" for path in changed)
        return f"Older than its code: {names} changed since this run."
    return ""
