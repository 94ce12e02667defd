"""
# What the course prints

A check ends in one answer: the steps that pass, and what is wrong with the first that doesn't. It has to fit
into 80 columns.
"""

import os
import shlex
import subprocess
import textwrap
from pathlib import Path

from rich.text import Text

from labml_bert.course.check import Report
from labml_bert.course.folder import read_files
from labml_bert.course.source import first_line
from labml_bert.course.step import Step, Verdict
from labml_bert.course.track import STEPS, STEPS_TO_TRAIN
from labml_bert.stdout import as_operand, console, is_ascii_only

COMMAND = "python -m labml_bert.course"
# A message can contain a value of any length. At most this many characters of a paragraph are printed.
LONGEST_PARAGRAPH = 1000


def shell_word(folder: Path) -> str:
    """The name of a folder as a word of a command line. The shell of Windows knows only double quotes."""
    name = as_operand(str(folder))
    return subprocess.list2cmdline([name]) if os.name == "nt" else shlex.quote(name)


def command_line(name: str, folder: Path, step: int | None = None) -> str:
    """A command line of the course for the exercises in `folder`. `step` is the number of a step."""
    where = f" --folder {shell_word(folder)}" if folder != Path() else ""
    return f"{COMMAND} {name}{where}" + (f" --step {step}" if step else "")


def read_step(text: str) -> Step:
    """The step with this number. Raises `ValueError` if there is none."""
    if not text.isdecimal() or not 1 <= int(text) <= len(STEPS):
        raise ValueError(f"there is no step {text}; use a number from 1 to {len(STEPS)}")
    return STEPS[int(text) - 1]


def say(text: str, indent: int = 2, style: str = "") -> None:
    """Prints a paragraph that fits into 80 columns, without its end if it's very long."""
    text = text if len(text) <= LONGEST_PARAGRAPH else text[:LONGEST_PARAGRAPH] + "…"
    width = max(40, min(console.width, 80) - 2)
    prefix = " " * indent
    console.print(Text(textwrap.fill(text, width, initial_indent=prefix, subsequent_indent=prefix), style))


def number(step: Step) -> int:
    """The number of a step, counted from 1."""
    return STEPS.index(step) + 1


def pass_and_fail() -> tuple[str, str]:
    """The marks of a step that passes and of one that fails."""
    return ("+", "x") if is_ascii_only() else ("✓", "✗")


def heading(step: Step, line: int | None = None) -> None:
    """Prints the number and the title of a step, and where it is."""
    console.print(Text(f"\n  {number(step)} of {len(STEPS)}  {step.title}", style="bold"))
    location = f"{step.file}, line {line}" if line else step.file
    console.print(Text(f"  {step.function} in {location}\n", style="dim"))


def print_report(report: Report, folder: Path) -> None:
    """Prints what a check found out: the steps that pass, and then the first that doesn't."""
    by_name = {step.name: step for step in STEPS}
    for verdict in report.verdicts:
        step = by_name[verdict.step]
        if verdict.passed:
            console.print(Text(f"  {pass_and_fail()[0]} {number(step):2}  {step.title}", style="green"))
    if report.verdicts and not report.verdicts[-1].passed:
        step = by_name[report.verdicts[-1].step]
        print_failure(step, report.verdicts[-1], folder, is_next=step == report.next_step)
        if report.output.strip() and report.verdicts[-1].mistake != "not written":
            say("Your code printed:")
            lines = report.output.strip().splitlines()[:10]
            console.print("\n".join(f"    {line[:74]}" for line in lines) + "\n")
    elif report.next_step is None:
        console.print()
        say(f"All {len(STEPS)} steps are done. Now train your own model, for three minutes:")
        console.print(f"\n  {command_line('train', folder)}\n")
    else:
        say(f"Next is step {number(report.next_step)}: {report.next_step.title}.")
        console.print()
    has_failed = any(not v.passed and v.mistake != "not written" for v in report.verdicts)
    if report.next_step == STEPS[len(STEPS_TO_TRAIN)] and not has_failed:
        say("You have written everything that you need to train your own model, in three minutes:")
        console.print(f"\n  {command_line('train', folder)}\n")
    for file, name in report.restored.items():
        say(f"{file} was deleted or emptied during the check. Its text is in {name}.", style="bold")
    if not report.is_saved:
        say("progress.json can't be written, so the next check will run these steps again.", style="dim")


def print_failure(step: Step, verdict: Verdict, folder: Path, is_next: bool = True) -> None:
    """Prints what is wrong with a step, what was expected and found, and the command for a hint."""
    is_unwritten = verdict.mistake == "not written"
    if verdict.mistake == "syntax error":
        line = f", line {verdict.line}" if verdict.line else ""
        console.print(Text(f"\n  {step.file}{line}\n", style="bold"))
    else:
        heading(step, verdict.line or first_line(read_files(folder)[step.file], step.function))
    say(
        verdict.message if is_unwritten else f"{pass_and_fail()[1]} {verdict.message}",
        style="" if is_unwritten else "bold red",
    )
    if verdict.details:
        console.print()
    for line in verdict.details:
        say(line.strip(), 4 + len(line) - len(line.lstrip()))
    if verdict.mistake == "syntax error":
        console.print()
        return
    lines = read_files(folder)[step.file].split("\n")
    if verdict.line and verdict.line <= len(lines):
        console.print()
        say(f"Line {verdict.line}:", 4)
        say(lines[verdict.line - 1].strip(), 6)
    hint = command_line("hint", folder, None if is_next else number(step))
    console.print(Text(f"\n  {hint}\n", style="dim"))
