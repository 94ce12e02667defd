"""
# Running the probes

`python -m labml_bert.course.run_probes FOLDER` checks steps. It runs in a process of its own, because a
learner's code can do anything: print, loop forever, or end the process. The input is `job.json` in `FOLDER`.
The verdicts go to `verdicts.jsonl`, one line each, and the first step that fails is the last one to be
checked. If a step takes too long, the traceback goes to `trace.txt` and the process ends.
"""

import ast
import contextlib
import faulthandler
import json
import os
import sys
from dataclasses import asdict
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from labml_bert.course.compare import (
    Observation,
    Raised,
    describe_difference,
    describe_exception,
    first_difference,
    observe,
)
from labml_bert.course.probes.track import PROBES
from labml_bert.course.source import make_mistake, read_reference, restore_others
from labml_bert.course.step import Mistake, Step, Verdict
from labml_bert.course.track import STEPS


def load(code: str | ast.Module, step: Step, filename: str) -> ModuleType:
    """
    Runs the code of a module, which may raise any exception, and returns the module. While the code runs,
    the module is in `sys.modules`, where dataclasses look up the names in their annotations.
    """
    name = "labml_bert." + step.file.removesuffix(".py").replace("/", ".")
    module = ModuleType(name)
    module.__file__ = filename
    before = sys.modules.get(name)
    sys.modules[name] = module
    try:
        exec(compile(code, filename, "exec"), vars(module))
    finally:
        del sys.modules[name]
        if before is not None:
            sys.modules[name] = before
    return module


@cache
def observe_reference(step: Step) -> list[Observation]:
    """What the probe of a step observes in the original."""
    return observe(PROBES[step.name], load(read_reference(step.file), step, "<reference>"))


@cache
def observe_mistakes(step: Step) -> list[tuple[Mistake, list[Observation]]]:
    """What the probe of a step observes in the original with each known mistake."""
    modules = [(mistake, load(make_mistake(step, mistake), step, "<mistake>")) for mistake in step.mistakes]
    return [(mistake, observe(PROBES[step.name], module)) for mistake, module in modules]


def run_probe(step: Step, tree: ast.Module) -> Verdict:
    """
    ## One step

    Compares what a probe observes in the learner's code with what it observes in the reference. If they
    differ, looks for a known mistake with the same observations, or else with the same first difference.
    """
    expected = observe_reference(step)
    try:
        module = load(tree, step, step.file)
    except BaseException as error:
        raised = describe_exception(error)
        line = line_of(raised, step)
        return Verdict(step.name, False, "The file can't be imported.", (str(raised),), line)
    actual = observe(PROBES[step.name], module)
    try:
        return judge(step, expected, actual)
    except BaseException as error:
        # An object of the learner's own class can raise anything, for example in `__repr__`.
        raised = describe_exception(error)
        message = f"The check can't compare or print your result ({raised.kind})."
        return Verdict(step.name, False, message, (str(raised),), line_of(raised, step))


def judge(step: Step, expected: list[Observation], actual: list[Observation]) -> Verdict:
    """Compares the observations, and describes the first difference."""
    i = first_difference(expected, actual)
    if i is None:
        return Verdict(step.name, True)
    value = actual[i].value
    if isinstance(value, Raised):
        message, line = explain_error(value, step), line_of(value, step)
        details = [value.message] if value.message and value.message not in message else []
        details += [f"while checking {observation.name}" for observation in expected[i : i + 1]]
    else:
        name = expected[i].name
        message = "Something is wrong" + ("." if name.startswith("whether") else f" with {name}.")
        line = None
        if value is None:
            message += " Does your function return its result?"
        details = [f"{expected[i].name}:", *describe_difference(expected[i].value, value)]
    outcomes = observe_mistakes(step)
    matches = [m for m, outcome in outcomes if first_difference(outcome, actual) is None]
    matches += [
        m
        for m, outcome in outcomes
        if first_difference(expected, outcome) == i and not describe_difference(outcome[i].value, value)
    ]
    if matches:
        return Verdict(step.name, False, matches[0].message, tuple(details), line, matches[0].name)
    return Verdict(step.name, False, message, tuple(details), line)


def explain_error(raised: Raised, step: Step) -> str:
    """Says who raised an exception: the learner's code, or the check while it read the result."""
    if raised.kind in ("BdbQuit", "EOFError"):
        return f"Your code raises {raised.kind}. A check has no keyboard; use print."
    traceback = raised.traceback
    while traceback is not None:
        if traceback.tb_frame.f_code.co_filename == step.file:
            return f"Your code raises {raised.kind}."
        traceback = traceback.tb_next
    if raised.kind == "KeyError":
        return f"Your result lacks the key {raised.message}."
    if "NoneType" in raised.message:
        return "Your result is None, or a part of it is. Does your function return its result?"
    if raised.kind == "AttributeError":
        return "Your result lacks an attribute that the check reads."
    return f"The check can't call your function, or can't use its result ({raised.kind})."


def line_of(raised: Raised, step: Step) -> int | None:
    """The innermost line of the learner's code in a traceback, or `None` if it's in none of its lines."""
    line, traceback = None, raised.traceback
    others = {name for other in STEPS for name in (other.function, *other.twins)} - {step.function}
    while traceback is not None:
        code = traceback.tb_frame.f_code
        # The other steps are original code, with the line numbers of the original file.
        if code.co_filename == step.file and code.co_qualname not in others:
            line = traceback.tb_lineno
        traceback = traceback.tb_next
    return line


def main(folder: Path) -> None:
    """Checks the steps of a job."""
    torch.set_num_threads(1)
    own = os.getpid()
    job: dict[str, Any] = json.loads((folder / "job.json").read_text("utf-8"))
    steps = {step.name: step for step in STEPS}
    with open(folder / "trace.txt", "w", encoding="utf-8") as trace:
        for name in job["steps"]:
            step = steps[name]
            tree = restore_others(job["files"][step.file], step, STEPS)
            faulthandler.dump_traceback_later(job["limit"], exit=True, file=trace)
            verdict = run_probe(step, tree)
            if os.getpid() != own:
                return  # The learner's code has called `os.fork`, and this is the child process.
            faulthandler.cancel_dump_traceback_later()
            # The learner's code can write to any open file, so don't keep this one open.
            with open(folder / "verdicts.jsonl", "a", encoding="utf-8") as verdicts:
                print(json.dumps(asdict(verdict)), file=verdicts)
            if not verdict.passed:
                return


if __name__ == "__main__":
    main(Path(sys.argv[1]))
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):  # The learner's code may have closed it.
            stream.flush()
    # At its normal end, Python would wait for threads that the learner's code has started.
    os._exit(0)
