"""The chapter on the course: its table, its numbers, and the sample of what the command prints."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from docs.figures.course import course_mistakes, course_notes, course_steps, course_table
from docs.literate.page import source_page
from docs.literate.site import read_sources
from labml_bert.course.folder import write_exercises
from labml_bert.course.track import STEPS, STEPS_TO_TRAIN
from tests.support.runs import ROOT

CHAPTER = (ROOT / "docs/pages/course.md").read_text("utf-8")


def test_the_table_lists_every_step() -> None:
    rows = [row for row in course_table().splitlines() if row.startswith("|")][2:]
    assert len(rows) == course_steps() == len(STEPS)
    assert all(f"`{step.function}`" in row for step, row in zip(STEPS, rows, strict=True))
    assert sum(int(row.rstrip("| ").rpartition(" ")[2]) for row in rows) == course_mistakes()


def test_the_numbers_in_the_text() -> None:
    assert f"the first {len(STEPS_TO_TRAIN)} steps are done" in CHAPTER
    assert f"After step {len(STEPS_TO_TRAIN)}, " in CHAPTER
    assert re.findall(r"1 of (\d+)", CHAPTER) == [str(len(STEPS))]
    readme = " ".join((ROOT / "README.md").read_text("utf-8").split())
    assert f"the bodies of {len(STEPS)} functions removed" in readme
    assert f"After the first {len(STEPS_TO_TRAIN)} functions, you can train" in readme


def test_each_definition_that_is_a_step_links_to_the_chapter() -> None:
    sources = read_sources(ROOT, ("labml_bert",))
    # Rendering a page takes a while, and most files have several steps.
    paths = {f"labml_bert/{step.file}" for step in STEPS}
    by_path = {source.path: source for source in sources.values() if source.path in paths}
    pages = {path: source_page(s, sources, notes=course_notes(s)) for path, s in by_path.items()}
    for number, step in enumerate(STEPS, 1):
        source = by_path[f"labml_bert/{step.file}"]
        notes, page = course_notes(source), pages[source.path]
        assert step.function in {row.name for row in source.rows}
        depth = "../" * source.page.count("/")
        assert (
            notes[step.function] == f"[Write this yourself]({depth}course.md) (step {number} of the course)."
        )
        assert page.count(f"(step {number} of the course)") == 1
    assert course_notes(sources["labml_bert.files"]) == {}


@pytest.mark.processes
def test_the_sample_is_what_the_command_prints(tmp_path: Path) -> None:
    write_exercises(tmp_path / "my_bert")
    path = tmp_path / "my_bert/mlm.py"
    task = f'raise NotImplementedError("write this: {STEPS[0].task}")'
    text = path.read_text("utf-8")
    assert task in text and " ".join(re.findall(r'"(write this: .*)"', CHAPTER)) in task
    path.write_text(text.replace(task, "return F.cross_entropy(logits, labels)"), "utf-8")
    words = [sys.executable, "-m", "labml_bert.course", "check"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": "80", "PYTHONIOENCODING": "utf-8"}
    done = subprocess.run(words, cwd=path.parent, env=environment, capture_output=True, encoding="utf-8")
    sample = re.search(r"```text \{ \.check \}\n(.*?)```", CHAPTER, re.S)
    assert sample is not None
    assert sample[1].strip() == done.stdout.strip()
