"""
# The settings of this site

Everything the renderer in `docs/literate` needs to know about this project: which folders to read, how to
order the navigation, which names a chapter may use, and what follows the code of a source file.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from docs.figures.quotable import quotable
from docs.figures.records import read_records
from docs.figures.runs import recorded_runs
from docs.literate.names import Source, Sources
from docs.literate.site import Site


class RecordedContents:
    """What the records in `docs/runs` add to the pages."""

    def __init__(self, sources: Sources):
        self.sources, self.records = sources, read_records()

    def names(self, page: str) -> dict[str, Callable[..., Any]]:
        """The names that an expression on a page may use."""
        return quotable(self.records, self.sources, page)

    def after(self, source: Source) -> str:
        """The recorded runs of an experiment."""
        return recorded_runs(source, self.records)


SITE = Site(
    root=Path(__file__).parents[1],
    contents=RecordedContents,
    folders=("labml_bert", "experiments"),
    package="labml_bert",
    programs=("experiments",),
    scripts=("docs/live/bert.js", "docs/live/modern.js"),
    copied=("docs/live",),
    # The chapters say what these experiments found; the scripts repeat what the Python files say.
    unsearched=("docs/live", "experiments/claims", "experiments/live", "experiments/speed"),
    watched=("docs/runs",),
    titles={
        "labml_bert": "The package",
        "labml_bert/run": "Running and recording",
        "docs/live": "In the browser",
    },
    first=(
        # The stand-alone files first, then what combines them.
        "labml_bert/bert",
        "labml_bert/mlm",
        "labml_bert/nsp",
        "labml_bert/modern",
        "labml_bert/models",
        "labml_bert/data",
        "labml_bert/training",
        "labml_bert/baselines",
        "labml_bert/run",
        "experiments/mlm_tiny",
        "experiments/mlm_modern",
        "experiments/mlm_words",
        "experiments/bert_tiny",
        "experiments/own_language",
    ),
)
