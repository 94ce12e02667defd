"""The command as a learner types it, and what it says to bad input."""

import contextlib
import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

from labml_bert.course.__main__ import main
from labml_bert.course.folder import FILES, Progress, write_exercises, write_progress
from labml_bert.course.source import read_reference, remove_bodies
from labml_bert.course.track import STEPS, STEPS_TO_TRAIN
from labml_bert.files import PART, lock
from tests.support.runs import ROOT, SMALL, wait_until


@pytest.fixture()
def course(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    write_exercises(tmp_path / "course")
    monkeypatch.chdir(tmp_path / "course")
    return tmp_path / "course"


def output(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    main([*words])
    captured = capsys.readouterr()
    assert captured.err == ""
    return captured.out


@pytest.mark.processes
def test_the_first_minutes_of_a_learner(tmp_path: Path) -> None:
    def run(*words: str) -> tuple[int, str]:
        words = (sys.executable, "-m", "labml_bert.course", *words)
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": "80"}
        done = subprocess.run(words, cwd=tmp_path, env=environment, capture_output=True, text=True)
        assert done.stderr == ""
        # The original code has lines of up to 110 characters.
        assert words[3] == "solve" or max(map(len, done.stdout.splitlines())) <= 80
        return done.returncode, done.stdout

    assert run("start", "mine") == (
        0,
        f"  Wrote {len(FILES)} files with {len(STEPS)} steps to mine. Begin with:\n\n"
        "  cd mine\n  python -m labml_bert.course check\n\n",
    )
    folder = ("--folder", "mine")
    assert "is shown only if a step\nfails." in (tmp_path / "mine/README.md").read_text("utf-8")
    code, text = run("check", *folder)
    assert code == 0 and "Not written yet: the mean of -log p over the labeled positions." in text
    assert "Hint 1 of 3" in run("hint", *folder)[1]
    assert "Hint 2 of 3" in run("hint", *folder)[1]
    path = tmp_path / "mine/mlm.py"
    task = f'raise NotImplementedError("write this: {STEPS[0].task}")'
    wrong = path.read_text("utf-8").replace(task, "return F.cross_entropy(logits, labels)")
    path.write_text(wrong, "utf-8")
    code, text = run("check", *folder)
    assert code == 1 and "✗ Without any label, your loss is 0/0" in text and "found     nan" in text
    path.write_text(read_reference("mlm.py"), "utf-8")
    code, text = run("check", *folder)
    assert code == 0 and "✓  1  The loss" in text and "Not written yet" in text
    assert "+        if position_ids is None:" in run("solve", *folder)[1]
    assert "/embeddings/" in run("show", *folder)[1]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "the following arguments are required"),
        (["nonsense"], "invalid choice: 'nonsense'"),
        (["check", "--step", "0"], "there is no step 0; use a number from 1 to"),
        (["check", "--folder", "nowhere"], "nowhere has no exercises; write them with:"),
        (["watch", "--folder", "nowhere"], "nowhere has no exercises; write them with:"),
        (["hint", "--step", "x"], "there is no step x"),
        (["start", ""], "the name is empty"),
        (["check", "--folder", ""], "the name is empty"),
        (["check", "--folder", "\x1b[31mX"], "?[31mX has no exercises"),
        (["start", "."], ". exists and is not empty; choose a new folder"),
        (["start", "mlm.py"], "mlm.py exists and is not empty"),
        (["start", "mlm.py/x"], "Not a directory"),
        (["start", "pipe"], ".lock must be a file of its own, but is something else; remove it"),
    ],
)
def test_bad_input_is_one_line(
    course: Path, capsys: pytest.CaptureFixture[str], words: list[str], message: str
) -> None:
    (course / "notes.txt").touch()
    (course / "pipe").mkdir()
    os.mkfifo(course / "pipe" / ".lock")
    with pytest.raises(SystemExit) as end:
        main(words)
    error = capsys.readouterr().err
    assert end.value.code == 2
    assert error.startswith("error: ") and error.count("\n") == 1
    assert message in error


def test_a_folder_whose_name_begins_with_a_dash(course: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`cd -` would go to the previous folder."""
    assert "\n  cd ./-\n" in output(capsys, "start", "-")


@pytest.mark.processes
def test_an_exception_shows_its_line(course: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = course / "mlm.py"
    task = f'raise NotImplementedError("write this: {STEPS[0].task}")'
    text = path.read_text("utf-8").replace(task, "return logits + undefined")
    path.write_text(text, "utf-8")
    with pytest.raises(SystemExit):
        main(["check"])
    line = text.splitlines().index("    return logits + undefined") + 1
    assert f"\n    Line {line}:\n      return logits + undefined\n" in capsys.readouterr().out


@pytest.mark.long
@pytest.mark.processes
def test_a_failure_after_the_steps_to_train_does_not_end_with_praise(
    course: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for step in STEPS:
        (course / step.file).write_text(read_reference(step.file), "utf-8")
    path = course / STEPS[27].file
    text = remove_bodies(read_reference(STEPS[27].file), [STEPS[27]])
    for content, has_praise in ((text, True), (text.replace("write this: ", ""), False)):
        path.write_text(content, "utf-8")
        with contextlib.suppress(SystemExit):
            main(["check"])
        assert ("You have written everything" in capsys.readouterr().out) == has_praise


def test_a_missing_file_and_a_file_that_is_not_utf8(course: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (course / "bert.py").write_bytes(b"\xff")
    with pytest.raises(SystemExit):
        main(["check"])
    assert "bert.py is not UTF-8; save it as UTF-8" in capsys.readouterr().err
    (course / "bert.py").unlink()
    with pytest.raises(SystemExit):
        main(["check"])
    assert "bert.py is missing; write the exercises into a new folder" in capsys.readouterr().err


def test_a_hint_in_a_folder_without_exercises_writes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The file is another program's."""
    (tmp_path / "progress.json").write_text('{"mine": [1, 2]}')
    monkeypatch.chdir(tmp_path)
    for words in (["--step", "3"], ["--step", "3", "--folder", str(tmp_path / "missing")]):
        with pytest.raises(SystemExit) as exit_info:
            main(["hint", *words])
        assert exit_info.value.code == 2
        assert "has no exercises; write them with: " in capsys.readouterr().err
    assert [path.read_text() for path in tmp_path.iterdir()] == ['{"mine": [1, 2]}']


def test_progress_that_cannot_be_read_is_kept(
    course: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = course / "progress.json"
    write_progress(course, Progress({"a": "1"}, {"a": 2}))
    content, read_text = path.read_bytes(), Path.read_text

    def read_unless_progress(file: Path, *words: object, **named: object) -> str:
        if file.name == path.name:
            raise OSError(errno.EIO, "Input/output error")
        return read_text(file, *words, **named)

    monkeypatch.setattr(Path, "read_text", read_unless_progress)
    with pytest.raises(SystemExit):
        main(["hint", "--step", "1"])
    assert "progress.json: Input/output error; make it readable" in capsys.readouterr().err
    assert path.read_bytes() == content


def test_a_hint_that_cannot_be_counted_is_given_with_a_note(
    course: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # A file can't replace a folder of its name. (Permissions wouldn't stop a test that runs as root.)
    (course / "progress.json").mkdir()
    main(["hint"])
    captured = capsys.readouterr()
    assert "Hint 1 of " in captured.out
    assert captured.err == "progress.json can't be written, so the next call will show this hint again.\n"


@pytest.mark.slow("runs four commands for each of the 48 steps")
def test_each_step_can_be_read_about(course: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for number, step in enumerate(STEPS, 1):
        text = output(capsys, "show", "--step", str(number))
        assert f"/{step.chapter}/" in text and f"#{step.function}\n" in text
        for i in range(1, len(step.hints) + 2):
            text = output(capsys, "hint", "--step", str(number))
            assert text.count("Hint ") == min(i, len(step.hints))
            assert ("That was the last hint." in text) == (i >= len(step.hints))
        assert step.title in output(capsys, "solve", "--step", str(number))
        assert step.title in output(capsys, "check", "--step", str(number))


def test_the_original_solves_itself(course: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (course / "mlm.py").write_text(read_reference("mlm.py"), "utf-8")
    assert "Your code is the same as the original." in output(capsys, "solve", "--step", "1")
    (course / "mlm.py").write_text("def (", "utf-8")
    with pytest.raises(SystemExit):
        main(["solve", "--step", "1"])
    assert "mlm.py isn't valid Python (line 1); mend it first" in capsys.readouterr().err
    (course / "mlm.py").write_text(read_reference("mlm.py").replace("masked_lm_loss", "my_loss"), "utf-8")
    with pytest.raises(SystemExit):
        main(["solve", "--step", "1"])
    line = "in mlm.py, there is no function masked_lm_loss; put it back where it was"
    assert line in capsys.readouterr().err


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("x = " + "(" * 100_000 + ")" * 100_000, "too many nested parentheses"),
        ("x = " + "-" * 100_000 + "1", "too deeply nested for Python's parser."),
        ("x = '\0'", "source code string cannot contain null bytes."),
    ],
)
def test_code_that_the_parser_gives_up_on(
    course: Path, capsys: pytest.CaptureFixture[str], line: str, message: str
) -> None:
    (course / "mlm.py").write_text(f"{read_reference('mlm.py')}\n{line}\n", "utf-8")
    with pytest.raises(SystemExit) as end:
        main(["check"])
    answer = capsys.readouterr().out
    assert end.value.code == 1 and message in answer and "None" not in answer and len(answer) < 1000
    with pytest.raises(SystemExit) as end:
        main(["solve", "--step", "1"])
    assert end.value.code == 2 and "mlm.py isn't valid Python" in capsys.readouterr().err


@pytest.mark.parametrize("line", ["x = " + "+".join("y" * 400), "x = 0x" + "f" * 6000])
@pytest.mark.parametrize("command", ["check", "hint", "show"])
def test_code_that_is_too_long_to_write_down_again(
    course: Path, capsys: pytest.CaptureFixture[str], line: str, command: str
) -> None:
    (course / "mlm.py").write_text(f"{read_reference('mlm.py')}\n{line}\n", "utf-8")
    with pytest.raises(SystemExit) as end:
        main([command])
    answer = capsys.readouterr().out
    assert end.value.code == 1 and len(answer) < 1000
    assert "an expression is too long, or a number has too many digits." in answer


@pytest.mark.processes
def test_hint_shows_a_syntax_error_as_check_does(course: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Without a syntax tree, all steps of a file look undone, and a hint for the first one would be wrong."""
    text = remove_bodies(read_reference("mlm.py"), [STEPS[4]])
    (course / "mlm.py").write_text(text, "utf-8")
    assert "Three cases" in output(capsys, "hint")
    (course / "mlm.py").write_text(text + "def (", "utf-8")
    texts = []
    for command in ("check", "hint", "show"):
        with pytest.raises(SystemExit) as end:
            main([command])
        assert end.value.code == 1
        texts.append(capsys.readouterr().out)
    assert "mlm.py isn't valid Python." in texts[0] and "Hint" not in texts[0]
    assert texts[0] == texts[1] == texts[2]
    assert "Hint 1 of" in output(capsys, "hint", "--step", "7")


@pytest.mark.long
@pytest.mark.processes
def test_hint_after_the_last_step(course: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for step in STEPS:
        (course / step.file).write_text(read_reference(step.file), "utf-8")
    with pytest.raises(SystemExit) as end:
        main(["hint"])
    words = f"  All {len(STEPS)} steps are done. Choose one with --step, from 1 to {len(STEPS)}.\n"
    assert (end.value.code, *capsys.readouterr()) == (0, words, "")


def test_training_needs_the_steps_that_it_uses(course: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["train"])
    assert "step 1 (The loss) isn't done yet; run check" in capsys.readouterr().err


def test_training_needs_files_that_are_valid_python(course: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Training imports them, even those that need no step."""
    with open(course / "modern.py", "a", encoding="utf-8") as text:
        text.write("\nx = (((\n")
    with pytest.raises(SystemExit) as end:
        main(["train"])
    output = " ".join(capsys.readouterr().out.split())
    assert end.value.code == 1 and "modern.py isn't valid Python" in output


@pytest.mark.parametrize("name", ["models.py", "data/corpora.py"])
def test_training_refuses_a_file_that_would_replace_one_of_ours(
    name: str, course: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("labml_bert.course.__main__.next_step", lambda folder: None)
    (course / name).parent.mkdir(exist_ok=True)
    (course / name).write_text("x = 1\n")
    (course / "notes.py").write_text("x = 1\n")
    with pytest.raises(SystemExit) as end:
        main(["train"])
    assert end.value.code == 2
    assert f"{name} would replace labml_bert/{name}; rename it" in capsys.readouterr().err
    (course / name).unlink()
    for package in ("baselines", "data", "training"):
        (course / f"{package}.py").write_text("x = 1\n")
        with pytest.raises(SystemExit):
            main(["train"])
        assert f"{package}.py would replace labml_bert/{package}/__init__.py" in capsys.readouterr().err
        (course / f"{package}.py").unlink()
    (course / "baselines").mkdir()
    (course / "baselines" / "__init__.py").touch()
    with pytest.raises(SystemExit):
        main(["train"])
    assert "baselines would replace labml_bert/baselines/__init__.py" in capsys.readouterr().err
    (course / "baselines" / "__init__.py").unlink()
    for other in (name.removesuffix(".py"), name.replace(".py", ".cpython-311-x86_64-linux-gnu.so")):
        (course / other).mkdir()
        with pytest.raises(SystemExit):
            main(["train"])
        assert f"{other} would replace labml_bert/{name}; rename it" in capsys.readouterr().err
        (course / other).rmdir()


@pytest.mark.parametrize("words", [["--record", "record.json"], ["--record=record.json"]])
def test_a_training_of_the_learners_code_writes_no_record(
    words: list[str], course: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("labml_bert.course.__main__.next_step", lambda folder: None)
    with pytest.raises(SystemExit) as end:
        main(["train", "--", *words])
    assert end.value.code == 2 and "leave out --record" in capsys.readouterr().err


@pytest.mark.long
@pytest.mark.processes
def test_the_learners_model_is_trained(course: Path, corpus_file: Path, tmp_path: Path) -> None:
    """Training uses the files in the folder, not those of the package."""
    for step in STEPS_TO_TRAIN:
        (course / step.file).write_text(read_reference(step.file), "utf-8")
    for file in {step.file for step in STEPS_TO_TRAIN}:
        with open(course / file, "a", encoding="utf-8") as text:
            text.write(f"\nprint('mine: {file}')\n")
    words = ["--corpus", str(corpus_file), "--steps", "3", "--runs", str(tmp_path / "runs"), *SMALL]
    done = subprocess.run(
        [sys.executable, "-m", "labml_bert.course", "train", "--", *words],
        cwd=course,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert all(f"mine: {step.file}" in done.stdout for step in STEPS_TO_TRAIN)
    (folder,) = (tmp_path / "runs").glob("*/*/")
    assert (folder / "checkpoint.safetensors").exists()
    command = f"python -m labml_bert.course train -- --corpus {corpus_file.name} --steps 3"
    assert f"\n## Train it again\n\n`{command} " in (folder / "model" / "README.md").read_text("utf-8")


@pytest.mark.skipif(sys.platform == "win32", reason="on Windows, `terminate` ends a process without a signal")
@pytest.mark.long
@pytest.mark.processes
def test_a_signal_to_a_training_stops_it(course: Path, corpus_file: Path, tmp_path: Path) -> None:
    for step in STEPS_TO_TRAIN:
        (course / step.file).write_text(read_reference(step.file), "utf-8")
    words = ["--corpus", str(corpus_file), "--steps", "100000", "--runs", str(tmp_path / "runs"), *SMALL]
    with subprocess.Popen(
        [sys.executable, "-m", "labml_bert.course", "train", "--", *words, "--checkpoint-seconds", "0"],
        cwd=course,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        wait_until(lambda: [*(tmp_path / "runs").glob("*/*/checkpoint.safetensors")])
        process.terminate()
        out, errors = process.communicate(timeout=60)
    assert process.returncode == 130 and "stopped and saved; resume with:" in out and not errors


@pytest.mark.processes
def test_watch_checks_again_when_a_file_changes(course: Path) -> None:
    words = [sys.executable, "-u", "-m", "labml_bert.course", "watch"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(words, env=environment, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None

        def read_until(words: str) -> None:
            for line in process.stdout:
                if words in line:
                    return
            raise AssertionError(words)

        read_until("Waiting for you to save a file")
        (course / "mlm.py").write_text("def (", "utf-8")
        read_until("mlm.py isn't valid Python")
        read_until("Waiting for you to save a file")
        (course / "mlm.py").unlink()
        read_until("Waiting for you to save a file")
        (course / "mlm.py").write_text("def (", "utf-8")
        read_until("mlm.py isn't valid Python")
        process.terminate()


def test_a_start_that_was_stopped_is_completed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A second `start` is refused only if the learner has changed a file."""
    whole, stopped = tmp_path / "whole", tmp_path / "stopped"
    main(["start", str(whole)])
    main(["start", str(stopped)])
    (stopped / "README.md").unlink()
    (stopped / FILES[-1]).unlink()
    (stopped / f"{FILES[-1]}.1{PART}").touch()
    main(["start", str(stopped)])
    names = {path.relative_to(whole) for path in whole.rglob("*")}
    assert {path.relative_to(stopped) for path in stopped.rglob("*")} == names
    assert all((stopped / file).read_bytes() == (whole / file).read_bytes() for file in (*FILES, "README.md"))
    (stopped / FILES[0]).unlink()
    (tmp_path / "mine").mkdir()
    (stopped / "data").rename(tmp_path / "data")
    (stopped / "data").symlink_to(tmp_path / "mine")
    with pytest.raises(SystemExit):
        main(["start", str(stopped)])
    assert "is not empty" in capsys.readouterr().err
    assert not [*(tmp_path / "mine").iterdir()], "it has written through the link"
    (stopped / "data").unlink()
    (stopped / FILES[0]).write_text("mine")
    with pytest.raises(SystemExit):
        main(["start", str(stopped)])
    assert "is not empty" in capsys.readouterr().err
    assert (stopped / FILES[0]).read_text() == "mine"


def test_only_one_start_writes_to_a_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "new").mkdir()
    with lock(tmp_path / "new"), pytest.raises(SystemExit):
        main(["start", str(tmp_path / "new")])
    assert "another program is writing to" in capsys.readouterr().err
    main(["start", str(tmp_path / "new")])
    assert not (tmp_path / "new" / ".lock").exists()
