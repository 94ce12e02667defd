"""The notebooks run from their first cell to their last, where nothing of the project is installed."""

import shutil
import textwrap
from dataclasses import replace
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient
from nbformat.v4 import new_code_cell

from docs.figures.course import course_notebook
from docs.literate.page import chapter_notebook, notebook
from docs.literate.samples import SAMPLE
from docs.literate.site import read_sources
from docs.project import PROJECT, ROOT, clone_cell
from docs.site import SITE, notebooks
from labml_bert.course.source import read_reference, whole_function
from labml_bert.course.track import STEPS, STEPS_TO_TRAIN
from tests.support.runs import SIZES, SMALL, small_text

SOURCES = {source.path: source for source in read_sources(ROOT, SITE.folders).values()}
FILES = notebooks(replace(PROJECT, repo_url="https://example.org/repository"))
STAND_ALONE = [path for path in FILES if path.startswith("labml_bert/")]
EXPERIMENTS = [path for path in FILES if path.startswith("experiments/")]
CHAPTERS = [path for path in FILES if path.startswith("docs/pages/")]
# Hides the installed project from Python. A copy in the current folder is still found.
UNINSTALLED = "import sys; sys.meta_path = [f for f in sys.meta_path if 'editable' not in f'{f}{type(f)}']"


def shortest_now(paths: list[str]) -> list[Any]:
    """`make test-site` runs the notebook of the shortest file, and `make test-long` the others."""
    shortest = min(paths, key=lambda path: (ROOT / path).stat().st_size)
    return [path if path == shortest else pytest.param(path, marks=pytest.mark.long) for path in paths]


@pytest.fixture(autouse=True)
def no_path_to_the_clone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PYTHONPATH", raising=False)


def run_notebook(book: nbformat.NotebookNode, folder: Path) -> str:
    """Returns what the cells print to stdout. Raises `CellExecutionError` if one of them fails."""
    book.cells.insert(0, new_code_cell(UNINSTALLED))
    NotebookClient(book, timeout=120, resources={"metadata": {"path": str(folder)}}).execute()
    outputs = [output for cell in book.cells if cell.cell_type == "code" for output in cell.outputs]
    outputs = [output for output in outputs if output.get("name") != "stderr"]
    return "".join(output.get("text") or output.get("data", {}).get("text/plain", "") for output in outputs)


def copy_project(folder: Path) -> None:
    """Copies what the first cell of a notebook would clone and install."""
    for name in SITE.folders:
        shutil.copytree(ROOT / name, folder / name)


def test_a_page_has_a_notebook_only_if_the_notebook_can_get_the_project() -> None:
    assert EXPERIMENTS and CHAPTERS and [*notebooks(replace(PROJECT, repo_url=""))] == STAND_ALONE


@pytest.mark.parametrize("path", shortest_now(STAND_ALONE))
def test_the_notebook_of_a_stand_alone_file_runs(path: str, tmp_path: Path) -> None:
    book = nbformat.reads(notebook(SOURCES[path], FILES[path]), as_version=4)
    book.cells.insert(0, new_code_cell("import torch"))
    book.cells.append(new_code_cell("import labml_bert"))
    with pytest.raises(Exception, match="No module named 'labml_bert'"):
        run_notebook(book, tmp_path)
    assert all(cell.execution_count for cell in book.cells if cell.cell_type == "code")


@pytest.mark.long
@pytest.mark.parametrize("path", EXPERIMENTS)
def test_the_notebook_of_an_experiment_trains(
    path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    setup = FILES[path]
    copy_project(tmp_path / "project")
    clone, _, install, rest = setup.split("\n", 3)
    assert clone.startswith("!git clone") and install.startswith("%pip install")
    texts = tmp_path / "project" / "texts"
    texts.mkdir()
    for i in range(20):
        (texts / f"{i}.txt").write_text(small_text(40, seed=i))
    sizes = [*SIZES, "--schedule=16,32", "--vocab-size=200"] if "bert_tiny" in path else SMALL
    options = [*sizes, "--corpus", "texts", "--steps", "4"]
    rest = rest.replace(f'["{path}"]', repr([path, *options]))
    book = nbformat.reads(notebook(SOURCES[path], f"%cd -q project\n{rest}"), as_version=4)
    output = run_notebook(book, tmp_path)
    assert "held-out" in output and "failed" not in output
    assert list((tmp_path / "project" / "logs" / Path(path).stem).glob("*/checkpoint.safetensors"))


@pytest.mark.parametrize("path", shortest_now(CHAPTERS))
def test_the_notebook_of_a_chapter_prints_what_the_chapter_says(
    path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    copy_project(tmp_path / "project")
    clone, _, install = FILES[path].strip().split("\n")
    assert clone.startswith("!git clone") and install.startswith("%pip install")
    text = (ROOT / path).read_text("utf-8")
    book = nbformat.reads(chapter_notebook(text, "%cd -q project"), as_version=4)
    output = run_notebook(book, tmp_path)
    assert output == "".join(textwrap.dedent(match["output"] or "") for match in SAMPLE.finditer(text))


def course_book() -> nbformat.NotebookNode:
    """The notebook of the course, as the site offers it if the repository's address isn't known."""
    book = nbformat.reads(course_notebook(""), as_version=4)
    assert book.cells[1].source == "%load_ext labml_bert.course.notebook"
    published = clone_cell(replace(PROJECT, repo_url="https://example.org/repository"))
    assert published in nbformat.reads(course_notebook(published), as_version=4).cells[1].source
    return book


def test_the_notebook_of_the_course_has_each_step_and_no_answer() -> None:
    cells = {cell.source for cell in course_book().cells}
    for number, step in enumerate(STEPS, 1):
        name = step.function.rpartition(".")[2]
        [cell] = [source for source in cells if source.startswith(f"%%step {number}\n")]
        assert f"def {name}(" in cell and f'raise NotImplementedError("write this: {step.task}")' in cell
        assert any(source.startswith(f"## {number}. {step.title}\n") for source in cells)


@pytest.mark.long
def test_the_notebook_of_the_course_checks_and_trains(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    corpus = tmp_path / "text.txt"
    corpus.write_text(small_text(400))
    book = course_book()
    for cell in book.cells:
        first, _, rest = cell.source.partition("\n")
        if first.startswith("%%step "):
            step = STEPS[int(first.split()[1]) - 1]
            if step in STEPS_TO_TRAIN:
                cell.source = f"{first}\n{whole_function(read_reference(step.file), step.function)}"
        elif "course train" in cell.source:
            options = " ".join([*SMALL, "--corpus", str(corpus), "--steps", "4"])
            cell.source = cell.source.replace("course train", f"course train -- {options}")
    NotebookClient(book, timeout=120, resources={"metadata": {"path": str(tmp_path)}}).execute()
    outputs = [
        "".join(output.get("text") or output["data"]["text/plain"] for output in cell.outputs)
        for cell in book.cells
        if cell.cell_type == "code" and cell.outputs
    ]
    checks = outputs[: len(STEPS_TO_TRAIN)]
    assert all(f"✓ {number:2}  {STEPS[number - 1].title}" in text for number, text in enumerate(checks, 1))
    assert "held-out" in outputs[len(STEPS_TO_TRAIN)]
    rest = outputs[len(STEPS_TO_TRAIN) + 1 :]
    assert len(rest) == len(STEPS) - len(STEPS_TO_TRAIN)
    assert all("Not written yet: " in text for text in rest)
