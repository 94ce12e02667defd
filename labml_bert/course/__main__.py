"""
# Write it yourself

Do you understand a model before you have written one? In this course you write the functions of this package,
one at a time:

    python -m labml_bert.course start my_bert
    cd my_bert
    python -m labml_bert.course check

`start` writes the source files with the bodies of the steps removed. `check` runs your code and the original
on the same inputs, and says in plain words what is different. `hint` helps, `show` says where to read,
`solve` compares your code with the original, and `watch` checks whenever you save. Once you have written
the functions that training calls, `train` trains your own model.
"""

if __name__ == "__main__":
    from labml_bert.run import preflight

import argparse
import contextlib
import difflib
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

from rich.text import Text

from labml_bert.course.check import check_folder, next_step, read_problem
from labml_bert.course.folder import FILES, read_files, read_progress, write_exercises, write_progress
from labml_bert.course.report import (
    COMMAND,
    heading,
    number,
    print_failure,
    print_report,
    read_step,
    say,
    shell_word,
)
from labml_bert.course.source import function_lines, location, read_reference
from labml_bert.course.step import Step
from labml_bert.course.track import STEPS, STEPS_TO_TRAIN
from labml_bert.course.train import train
from labml_bert.stdout import OneLineParser, console, path_with_name, print_error, print_note


def fail(reason: object) -> NoReturn:
    """Ends the program with one line and exit code 2."""
    print_error(reason)
    raise SystemExit(2) from None


def start_command(options: argparse.Namespace) -> None:
    """Writes the exercises. Raises `ValueError` if the folder isn't empty."""
    folder: Path = options.folder
    write_exercises(folder)
    say(f"Wrote {len(FILES)} files with {len(STEPS)} steps to {folder}. Begin with:")
    console.print(f"\n  cd {shell_word(folder)}\n  {COMMAND} check\n")


def check_command(options: argparse.Namespace) -> bool:
    """Checks the next step and prints what is wrong. Returns whether the checked steps passed."""
    folder: Path = options.folder
    report = check_folder(folder, options.step)
    print_report(report, folder)
    return all(verdict.passed or verdict.mistake == "not written" for verdict in report.verdicts)


def current(options: argparse.Namespace) -> Step:
    """
    The step of the command line, or the next one. Ends the program if all are done, or if a syntax error
    hides which one is next.
    """
    if options.step is not None:
        step: Step = options.step
        return step
    upcoming = next_step(options.folder)
    if upcoming is None:
        say(f"All {len(STEPS)} steps are done. Choose one with --step, from 1 to {len(STEPS)}.")
        raise SystemExit(0)
    problem = read_problem(upcoming, read_files(options.folder)[upcoming.file])
    if problem is not None and problem.mistake == "syntax error":
        print_failure(upcoming, problem, options.folder)
        raise SystemExit(1)
    return upcoming


def hint_command(options: argparse.Namespace) -> None:
    """
    Prints one more hint for a step, or all of them if there are no more. Raises `ValueError` if a file of the
    exercises is missing.
    """
    step = current(options)
    read_files(options.folder)  # Another program's folder may have a `progress.json` of its own.
    progress = read_progress(options.folder)
    count = min(progress.hints.get(step.name, 0) + 1, len(step.hints))
    progress.hints[step.name] = count
    if not write_progress(options.folder, progress):
        print_note("progress.json can't be written, so the next call will show this hint again.")
    heading(step)
    for i, hint in enumerate(step.hints[:count], 1):
        say(f"Hint {i} of {len(step.hints)}: {hint}")
        console.print()
    if count == len(step.hints):
        say("That was the last hint. To compare your code with the original, run solve.", style="dim")
        console.print()


def show_command(options: argparse.Namespace) -> None:
    """Prints where to read about a step."""
    step = current(options)
    base = "http://127.0.0.1:8000/"
    heading(step)
    say("Start the site with `make serve` in the project's folder.")
    say("The chapter, which may show the solution:")
    console.print(f"    {base}{step.chapter}/")
    say("The original, with the solution:")
    console.print(f"    {base}labml_bert/{step.file.removesuffix('.py')}/#{step.function}\n")


def solve_command(options: argparse.Namespace) -> None:
    """Prints the difference between the learner's code and the original."""
    step = current(options)
    original = function_lines(read_reference(step.file), step.function)
    try:
        own = function_lines(read_files(options.folder)[step.file], step.function)
    except SyntaxError as error:
        raise ValueError(f"{step.file} isn't valid Python{location(error)}; mend it first") from None
    except ValueError as error:
        raise ValueError(f"in {step.file}, {error}; put it back where it was") from None
    heading(step)
    lines = [*difflib.unified_diff(own, original, "yours", "the original", lineterm="", n=100)]
    if not lines:
        say("Your code is the same as the original.")
    styles = {"-": "red", "+": "green", "@": "dim"}
    for line in lines:
        console.print(Text(line, style=styles.get(line[:1], "")))
    console.print()


def watch_command(options: argparse.Namespace) -> None:
    """Checks now and after every change of a file, until Ctrl-C."""
    folder: Path = options.folder
    before: dict[str, float] | None = None
    while True:
        times = {}
        for file in FILES:
            with contextlib.suppress(OSError):  # For example, an editor is about to replace the file.
                times[file] = (folder / file).stat().st_mtime
        if times != before:
            if console.is_terminal:
                console.clear()
            try:
                check_command(options)
            except (ValueError, OSError) as error:
                if before is None:
                    raise
                # For example, an editor is writing the file.
                print_error(error)
            before = times
            say("Waiting for you to save a file; Ctrl-C ends.", style="dim")
        time.sleep(0.3)


def train_command(options: argparse.Namespace) -> None:
    """
    Trains the learner's own model. Ends the program if a file isn't valid Python, because training may import
    it. Raises `ValueError` if a step that training needs isn't done, if an extra file has the same name as a
    module of `labml_bert`, or if the arguments include `--record`.
    """
    texts = read_files(options.folder)
    for each in STEPS:
        problem = read_problem(each, texts[each.file])
        if problem is not None and problem.mistake == "syntax error":
            print_failure(each, problem, options.folder)
            raise SystemExit(1)
    step = next_step(options.folder)
    if step in STEPS_TO_TRAIN:
        raise ValueError(f"step {number(step)} ({step.title}) isn't done yet; run check")
    if any(word.partition("=")[0] == "--record" for word in options.arguments):
        # The record would say that the run used the repository's code.
        raise ValueError("a record describes this repository's code, and you train yours; leave out --record")
    raise SystemExit(train(options.folder, options.arguments))


def step_argument(text: str) -> Step:
    """The step with this number. Raises `ArgumentTypeError` if there is none."""
    try:
        return read_step(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def main(argv: list[str] | None = None) -> None:
    """Reads the command line. The exit code of `check` is 1 if a step fails."""
    description = f"Write BERT yourself: {len(STEPS)} functions, each with a check and hints."
    parser = OneLineParser(prog=COMMAND, description=description)
    names = "start|check|hint|show|solve|watch|train"
    commands = parser.add_subparsers(dest="command", required=True, metavar=names)

    def add(name: str, run: Callable[[argparse.Namespace], object], text: str) -> argparse.ArgumentParser:
        command: argparse.ArgumentParser = commands.add_parser(name, help=text)
        command.set_defaults(run=run, step=None)
        if name == "start":
            command.add_argument("folder", type=path_with_name, help="new folder for the exercises")
        else:
            words = "folder of the exercises (default: the current folder)"
            command.add_argument("--folder", type=path_with_name, default=Path(), help=words)
        if name in ("check", "hint", "show", "solve"):
            command.add_argument(
                "--step", type=step_argument, help="number of a step (default: the next one)"
            )
        return command

    add("start", start_command, "write the exercises into a new folder")
    add("check", check_command, "check the next step")
    add("hint", hint_command, "print a hint; repeat for a stronger one")
    add("show", show_command, "print where to read about a step")
    add("solve", solve_command, "compare your code with the original")
    add("watch", watch_command, "check whenever you save a file")
    training = add("train", train_command, "train your own model for three minutes")
    training.add_argument("arguments", nargs="*", help="options of experiments/mlm_tiny.py, after --")
    options = parser.parse_args(argv)
    try:
        if options.run(options) is False:
            raise SystemExit(1)
    except (ValueError, OSError) as error:
        fail(error)
    except KeyboardInterrupt:
        raise SystemExit(130) from None


if __name__ == "__main__":
    preflight.exit_on_signals()  # Then the learner's code ends too, and its temporary folder is deleted.
    if signal.getsignal(signal.SIGINT) is preflight.stop_before_it_began:
        # Loading is over, so Ctrl-C can raise `KeyboardInterrupt` again.
        signal.signal(signal.SIGINT, signal.default_int_handler)
    main()
