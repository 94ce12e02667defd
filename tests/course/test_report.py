"""What `check` prints for each kind of result, and `watch`, which checks again whenever a file is saved."""

import argparse
from pathlib import Path

import pytest

from labml_bert.course import __main__ as course_main
from labml_bert.course.__main__ import watch_command
from labml_bert.course.check import Report
from labml_bert.course.folder import write_exercises
from labml_bert.course.report import print_report, say
from labml_bert.course.step import Verdict
from labml_bert.course.track import STEPS, STEPS_TO_TRAIN

FIRST = STEPS[0]
PASSED = Verdict(FIRST.name, True)
FAILED = Verdict(FIRST.name, False, "The mean is wrong.", ("expected 1.0", "  got 2.0"), 30, "mean")
BROKEN = Verdict(FIRST.name, False, "Python can't read this line.", (), 12, "syntax error")


@pytest.fixture()
def course(tmp_path: Path) -> Path:
    write_exercises(tmp_path / "course")
    return tmp_path / "course"


@pytest.mark.parametrize(
    ("report", "present", "absent"),
    [
        (
            Report([PASSED], STEPS[1], "", {}, True),
            [f"Next is step 2: {STEPS[1].title}."],
            ["hint", "Your code printed", "train"],
        ),
        (
            Report([FAILED], FIRST, "one\ntwo\n", {}, True),
            [
                "The mean is wrong.",
                "expected 1.0",
                "Line 30:",
                "course hint --folder my_bert\n",
                "Your code printed:\n    one\n    two",
            ],
            ["Next is step"],
        ),
        (
            # A check with `--step`: the hint is for this step, not for the next one.
            Report([FAILED], STEPS[1], "", {}, True),
            ["course hint --folder my_bert --step 1\n"],
            [],
        ),
        (
            Report([BROKEN], FIRST, "", {}, True),
            [f"\n  {FIRST.file}, line 12\n", "Python can't read this line."],
            ["course hint", "Line 12:"],
        ),
        (
            Report([PASSED], None, "", {}, True),
            [f"All {len(STEPS)} steps are done.", "course train --folder my_bert\n"],
            ["Next is step", "You have written everything"],
        ),
        (
            Report([PASSED], STEPS[len(STEPS_TO_TRAIN)], "", {}, True),
            ["You have written everything", "course train --folder my_bert\n"],
            ["steps are done"],
        ),
        (
            Report([PASSED], STEPS[1], "", {FIRST.file: "mlm.py.before-1"}, False),
            [
                f"{FIRST.file} was deleted or emptied during the check. Its text is in mlm.py.before-1.",
                "progress.json can't be written",
            ],
            [],
        ),
    ],
    ids=["next", "wrong", "wrong, not the next", "broken", "all done", "ready to train", "deleted"],
)
def test_what_a_check_prints(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    report: Report,
    present: list[str],
    absent: list[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    write_exercises(Path("my_bert"))
    print_report(report, Path("my_bert"))
    out = capsys.readouterr().out
    # Sentences are wrapped at the width of the terminal.
    words = " ".join(out.split())
    for text in present:
        assert text in out or text in words, out
    for text in absent:
        assert text not in out
    assert max(map(len, out.splitlines())) <= 80


def test_a_long_message_loses_its_end(capsys: pytest.CaptureFixture[str]) -> None:
    say("word " * 100_000)
    assert len(capsys.readouterr().out) < 1500


def test_watch_checks_again_when_a_file_changes(
    course: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    checks = 0
    sleeps = 0

    def check(options: argparse.Namespace) -> None:
        nonlocal checks
        checks += 1

    def sleep(seconds: float) -> None:
        nonlocal sleeps
        sleeps += 1
        if sleeps == 3:
            (course / FIRST.file).write_text("# saved\n")
        if sleeps == 6:
            raise KeyboardInterrupt

    monkeypatch.setattr(course_main, "check_command", check)
    monkeypatch.setattr(course_main.time, "sleep", sleep)
    with pytest.raises(KeyboardInterrupt):
        watch_command(argparse.Namespace(folder=course))
    assert checks == 2
    assert capsys.readouterr().out.count("Waiting for you to save a file") == 2
