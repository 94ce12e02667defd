"""
# The settings of this site

Everything the renderer in `docs/literate` needs to know about this project: which folders to read, how to
order the navigation, which names a chapter may use, and what follows the code of a source file.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from markupsafe import Markup

from docs.figures.course import course_notebook, course_notes
from docs.figures.diagrams import diagrams_beside
from docs.figures.quotable import quotable
from docs.figures.records import read_records
from docs.figures.runs import recorded_runs
from docs.literate.names import Source, Sources
from docs.literate.rows import find_files
from docs.literate.samples import SAMPLE
from docs.literate.site import Site
from docs.project import PROJECT, ROOT, Project, clone_cell, notebook_links


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

    def notes(self, source: Source) -> dict[str, str]:
        """A link to the course at each definition that is one of its steps."""
        return course_notes(source)

    def pictures(self, source: Source) -> dict[str, Markup]:
        """The diagrams next to the code."""
        return diagrams_beside(source.path)

    def files(self) -> dict[str, str]:
        """The steps of the course as a notebook."""
        return {"course.ipynb": course_notebook(clone_cell(PROJECT))}


# Files that run as a notebook: those that can be copied, the experiments that need no trained model, and the
# chapters that have code.
STAND_ALONE = ("bert", "mlm", "nsp", "modern")
TRAINING = ("mlm_tiny", "mlm_modern", "mlm_words", "bert_tiny", "own_language")


def notebooks(project: Project) -> dict[str, str]:
    """
    The files that get a notebook, each with its first cell. An experiment or a chapter needs the rest of the
    project, so it gets one only if the address of the repository is known.
    """
    files = {f"labml_bert/{name}.py": "%pip install --quiet torch" for name in STAND_ALONE}
    if project.repo_url:
        for name in TRAINING:
            path = f"experiments/{name}.py"
            files[path] = (
                f"{clone_cell(project)}# The script finds its folder and its options here.\n"
                "import sys\n\n"
                f'__file__, sys.argv = "{path}", ["{path}"]\n'
            )
        for chapter in find_files(ROOT / "docs" / "pages", "*.md"):
            if SAMPLE.search(chapter.read_text("utf-8", "replace")):
                files[f"docs/pages/{chapter.name}"] = clone_cell(project)
    return files


SITE = Site(
    root=Path(__file__).parents[1],
    contents=RecordedContents,
    folders=("labml_bert", "experiments"),
    package="labml_bert",
    notebooks=notebooks(PROJECT),
    notebook_hosts=notebook_links,
    scripts=("docs/live/bert.js", "docs/live/modern.js"),
    copied=("docs/live",),
    # The chapters say what these files find or do, and the JavaScript repeats what the Python files say.
    unsearched=(
        "docs/live/",
        "experiments/acceptability",
        "experiments/attention_map",
        "experiments/claims/",
        "experiments/compare_continued",
        "experiments/continue_pretraining",
        "experiments/finetune_docstrings",
        "experiments/live/",
        "experiments/parameters/",
        "experiments/retrieval",
        "experiments/speed/",
        "labml_bert/__init__",
        "labml_bert/attention_map",
        "labml_bert/backbone",
        "labml_bert/checks",
        "labml_bert/classification_report",
        "labml_bert/course/",
        "labml_bert/data/docstring_tasks",
        "labml_bert/data/held_out",
        "labml_bert/data/pair_shards",
        "labml_bert/data/text_files",
        "labml_bert/data/token_files",
        "labml_bert/files",
        "labml_bert/labeled_",
        "labml_bert/model_card",
        "labml_bert/run/",
        "labml_bert/runs",
        "labml_bert/stdout",
        "labml_bert/training/signals",
    ),
    watched=("docs/runs",),
    titles={
        "labml_bert": "The package",
        "labml_bert/course": "The course",
        "labml_bert/course/probes": "The checks of the course",
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
        "labml_bert/course",
        "experiments/mlm_tiny",
        "experiments/mlm_modern",
        "experiments/mlm_words",
        "experiments/bert_tiny",
        "experiments/own_language",
        "experiments/continue_pretraining",
    ),
)
