"""The cell magic of the course, called as IPython calls it."""

import errno
from pathlib import Path

import pytest

from labml_bert.course.notebook import check_cell, load_ipython_extension
from labml_bert.course.source import read_reference, replace_function, whole_function
from labml_bert.course.track import STEPS


class Shell:
    """The only method of IPython's shell that the extension uses."""

    def register_magic_function(self, function: object, kind: str, name: str) -> None:
        self.registered = (function, kind, name)


@pytest.fixture()
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    shell = Shell()
    load_ipython_extension(shell)
    assert shell.registered == (check_cell, "cell", "step")
    return tmp_path / "my_bert"


def test_loading_again_keeps_the_files(folder: Path) -> None:
    (folder / "mlm.py").write_text("# mine\n")
    load_ipython_extension(Shell())
    assert (folder / "mlm.py").read_text() == "# mine\n"


def test_loading_again_completes_the_files(folder: Path) -> None:
    (folder / "mlm.py").unlink()
    load_ipython_extension(Shell())
    assert (folder / "mlm.py").is_file()


def test_a_folder_that_cannot_be_made_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("my_bert").symlink_to("nowhere")
    shell = Shell()
    load_ipython_extension(shell)
    assert shell.registered == (check_cell, "cell", "step")
    output = capsys.readouterr().out
    assert output.startswith("error: ") and "my_bert" in output and output.count("\n") == 1


def test_a_folder_with_other_files_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("my_bert").mkdir()
    Path("my_bert", "notes.txt").write_text("mine")
    load_ipython_extension(Shell())
    assert capsys.readouterr().out == (
        "error: my_bert has other files; rename that folder, and run this cell again\n"
    )
    Path("my_bert").rename("notes")
    load_ipython_extension(Shell())
    assert capsys.readouterr().out == "" and Path("my_bert", "mlm.py").is_file()


@pytest.mark.processes
@pytest.mark.parametrize(
    "number", [1, *(pytest.param(number, marks=pytest.mark.long) for number in (4, len(STEPS)))]
)
def test_a_cell_is_saved_and_checked(folder: Path, number: int, capsys: pytest.CaptureFixture[str]) -> None:
    """The three steps are a function, a method and an exercise of a chapter."""
    step = STEPS[number - 1]
    code = whole_function(read_reference(step.file), step.function)
    assert code.startswith("def ")
    check_cell(str(number), code)
    assert f"✓ {number:2}  {step.title}" in capsys.readouterr().out
    assert whole_function((folder / step.file).read_text("utf-8"), step.function) == code
    check_cell(f" {number}\n", code.replace("return", "raise ValueError #"))
    assert "✗ Your code raises ValueError." in capsys.readouterr().out
    assert "raise ValueError" in (folder / step.file).read_text("utf-8")


@pytest.mark.processes
def test_a_cell_without_code_keeps_the_code_in_the_file(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Whoever works in an editor too may open the notebook again and run all of its cells."""
    step = STEPS[0]
    path = folder / step.file
    empty = whole_function(path.read_text("utf-8"), step.function)
    code = whole_function(read_reference(step.file), step.function)
    path.write_text(replace_function(path.read_text("utf-8"), step.function, code), "utf-8")
    before = path.read_bytes()
    check_cell("1", empty)
    output = capsys.readouterr().out
    assert "no code yet, so your code in my_bert/mlm.py stays" in output and "✓  1" in output
    assert path.read_bytes() == before


def test_a_mistake_in_the_file_is_not_reported_for_the_cell(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "mlm.py").write_text("def x(:\n")
    check_cell("1", whole_function(read_reference("mlm.py"), STEPS[0].function))
    assert capsys.readouterr().out == "error: my_bert/mlm.py isn't valid Python (line 1): invalid syntax\n"
    assert (folder / "mlm.py").read_text() == "def x(:\n"


@pytest.mark.processes
def test_a_link_to_a_file_stays_a_link(folder: Path) -> None:
    target = (folder / "mlm.py").rename(folder.parent / "own.py")
    (folder / "mlm.py").symlink_to(target)
    check_cell("1", whole_function(read_reference("mlm.py"), STEPS[0].function))
    assert (folder / "mlm.py").is_symlink() and STEPS[0].task not in target.read_text()


def test_a_full_disk_is_one_line_and_changes_nothing(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(path: Path, *_: object, **__: object) -> None:
        path.touch()
        raise OSError(errno.ENOSPC, "No space left on device")

    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    monkeypatch.setattr(Path, "write_text", fail)
    check_cell("1", whole_function(read_reference(STEPS[0].file), STEPS[0].function))
    assert "No space left on device" in capsys.readouterr().out
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before


@pytest.mark.parametrize(
    ("line", "cell", "message"),
    [
        ("", "", "there is no step ; use a number from 1 to"),
        ("99", "", "there is no step 99; use a number from 1 to"),
        ("1", "def (", "the cell isn't valid Python (line 1)"),
        ("1", "x = 1", "the cell must have the function masked_lm_loss, and nothing else"),
        ("1", "async def masked_lm_loss(): ...", "the cell must have the function masked_lm_loss, and"),
        ("1", "class masked_lm_loss: ...", "the cell must have the function masked_lm_loss, and"),
        ("1", "def masked_lm_loss(): ...\nx = 1", "the cell must have the function masked_lm_loss, and"),
        ("1", "def masked_lm_loss(x): return " + "+".join("x" * 400), "valid Python: an expression is too"),
        ("1", "def masked_lm_loss(): return 0x" + "f" * 6000, "valid Python: an expression is too long, or"),
    ],
)
def test_a_bad_cell_is_one_line_and_changes_nothing(
    folder: Path, line: str, cell: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    before = (folder / "mlm.py").read_bytes()
    check_cell(line, cell)
    output = capsys.readouterr().out
    assert output.startswith("error: ") and message in output and output.count("\n") == 1
    assert (folder / "mlm.py").read_bytes() == before


@pytest.mark.parametrize("step", STEPS, ids=[step.name for step in STEPS])
def test_a_function_replaced_by_itself_changes_nothing(step) -> None:
    text = read_reference(step.file)
    assert replace_function(text, step.function, whole_function(text, step.function)) == text


def test_comments_around_a_function_are_left_out() -> None:
    """Otherwise, each run of the cell would add them again."""
    cell = "# above\n@cache\ndef f(x):\n    # inside\n    return 1  # behind\n    # below\n\n# at the end\n"
    text = "import math\n\n\ndef f(x):\n    pass\n\n\ny = 1\n"
    once = replace_function(text, "f", cell)
    assert once == ("import math\n\n\n@cache\ndef f(x):\n    # inside\n    return 1  # behind\n\n\ny = 1\n")
    assert replace_function(once, "f", cell) == once


def test_a_string_of_several_lines_keeps_its_value() -> None:
    text = 'class A:\n    def f(self):\n        """One.\n\n        Two."""\n\ny = 1\n'
    cell = 'def f(self):\n    """One.\n\n    Two."""\n    x = (\n        1)\n    return """\na\n  b{x}\n"""\n'
    whole = replace_function(text, "A.f", cell)
    assert whole == (
        'class A:\n    def f(self):\n        """One.\n\n        Two."""\n        x = (\n            1)\n'
        '        return """\na\n  b{x}\n"""\n\ny = 1\n'
    )
    assert replace_function(whole, "A.f", cell) == whole
