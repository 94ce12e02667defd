"""
# Does the current code still give this result?

A record is up to date if the current code reproduces its run, however old the record is. Repeating every
recorded run would take hours, and a different processor would round differently. So most records of training
runs have a *fingerprint* from a short run with the same configuration: a few dozen steps in float32 on one
thread. The fingerprint consists of the loss of each step and the final evaluation. The schedule is compressed
into these steps, so the short run goes through every stage.

    python -m labml_bert.run.fingerprint                # checks all records in docs/runs
    python -m labml_bert.run.fingerprint mlm_tiny       # checks one

On the same processor with the same versions, the losses must be equal bit for bit. Elsewhere, they must agree
within a tolerance. A code change that matters usually shows up in the first steps, for example as a different
mask, initial weight or learning rate."""

if __name__ == "__main__":
    from labml_bert.run import preflight  # noqa: F401

import contextlib
import importlib.util
import json
import math
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import fields, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from types import ModuleType
from typing import Any

import torch

from labml_bert.checksums import parse_sealed, seal
from labml_bert.data.corpora import TINY_SHAKESPEARE_SHA256, WIKITEXT, cache_folder, load_corpus
from labml_bert.files import write_whole
from labml_bert.run.experiment import Run
from labml_bert.run.options import RunOptions
from labml_bert.run.record import hardware, origin, versions
from labml_bert.run.terminal import exit_on_bad_input
from labml_bert.stdout import OneLineParser, console
from labml_bert.training.trainer import Report, Step

ROOT = Path(__file__).parents[2]
RUNS = ROOT / "docs" / "runs"
STEPS = 32
# Losses from two processors or versions may differ by this many nats. Rounding changes the losses of the
# first steps by less than 1e-5, and different random numbers change them by more than 1e-2.
TOLERANCE = 1e-3

Fingerprint = dict[str, Any]


class FingerprintComplete(Exception):
    """Ends a run after the last step that a fingerprint needs."""


def take_fingerprint(
    main: Callable[[Run, Any], object], options: RunOptions, experiment: str, steps: int = STEPS
) -> Fingerprint:
    """
    ## Taking a fingerprint

    Runs `main` for a few steps, silently and in a temporary folder. Returns the number of `steps`, the
    `losses` in nats, the `evaluation` after the last step, the processor and versions, and the sha256 of each
    of the `inputs`, such as the text."""
    losses: list[float] = []
    evaluation: dict[str, float] = {}

    def record_step(step: Step) -> None:
        losses.append(step.loss.item())

    def record_report(report: Report) -> None:
        if report.progress >= 1:
            evaluation.update(report.evaluation or {})
            raise FingerprintComplete

    with TemporaryDirectory() as folder, single_thread(), quiet():
        options = replace(
            options,
            steps=steps,
            minutes=None,
            precision="float32",
            device="cpu",
            threads="default",
            gradient_accumulation_steps=1,
            torch_compile=False,
            runs=Path(folder),
            record=None,
            resume=None,
        )
        run = Run(options, experiment, is_alone=True)
        run.on_step, run.on_report = record_step, record_report
        with contextlib.suppress(FingerprintComplete), run.resources:
            main(run, options)
    inputs = {name: value for name, value in run.configuration.items() if name.endswith("_sha256")}
    return make_fingerprint(losses, evaluation) | {"inputs": inputs}


def make_fingerprint(losses: list[float], evaluation: dict[str, float]) -> Fingerprint:
    """
    Builds a fingerprint from the losses and the evaluation. JSON has no NaN and no infinity, so these values
    become `None`. The evaluation is rounded to six decimals, as in a record.
    """
    return {
        "steps": len(losses),
        "losses": [loss if math.isfinite(loss) else None for loss in losses],
        "evaluation": {k: round(v, 6) if math.isfinite(v) else None for k, v in evaluation.items()},
        **machine(),
    }


def machine() -> dict[str, Any]:
    """
    Returns what determines the last bits of a result: the processor, its vector instructions, and the
    versions. Processors with the same name can have different instructions.
    """
    name = hardware(torch.device("cpu"), "float32")["name"]
    instructions = torch.backends.cpu.get_cpu_capability()
    return {"processor": name, "instructions": instructions, "versions": versions()}


@contextlib.contextmanager
def single_thread() -> Iterator[None]:
    """Runs the block with one thread, which adds numbers in the same order on any number of cores."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Silences the console in the block."""
    before, console.quiet = console.quiet, True
    try:
        yield
    finally:
        console.quiet = before


def difference(reference: Fingerprint, today: Fingerprint) -> str:
    """
    ## Comparing two fingerprints

    Returns the first difference as one line, or an empty string if there is none.
    """
    same_machine = all(reference.get(key) == today[key] for key in machine())
    tolerance = 0.0 if same_machine else TOLERANCE
    for step, (before, now) in enumerate(zip(reference["losses"], today["losses"], strict=True), 1):
        if not is_close(before, now, tolerance):
            return f"the loss of step {step} was {before} and is {now}"
    for name, before in reference["evaluation"].items():
        now = today["evaluation"].get(name)
        if not is_close(before, now, tolerance * max(1.0, abs(before or 0.0))):
            return f"{name} of the evaluation was {before} and is {now}"
    return ""


def is_close(before: float | None, now: float | None, tolerance: float) -> bool:
    """Whether both numbers agree within the tolerance, or both are `None`."""
    return before is now if before is None or now is None else abs(before - now) <= tolerance


def load_script(experiment: str) -> ModuleType:
    """
    Imports the script of an experiment, which may be anywhere under `experiments`.

    Raises `ValueError` if there is no such script.
    """
    path = next((ROOT / "experiments").rglob(f"{experiment}.py"), None)
    if path is None:
        raise ValueError(
            f"no script {experiment}.py under experiments; if it was renamed, rename it in its records"
        )
    name = ".".join(path.relative_to(ROOT).with_suffix("").parts)
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, path)
        assert spec is not None and spec.loader is not None
        sys.modules[name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules[name])
    return sys.modules[name]


def fingerprints_of(record: dict[str, Any]) -> dict[str, Callable[[], Fingerprint]]:
    """
    Returns the functions that take a record's fingerprints, by name. A script with several runs in one
    record, or with its own training loop, can define `fingerprints(record)`, which returns these functions.
    For any other script with `Options`, one function runs `main`. If the record is about a trained model,
    this is the `main` that trained the model. For all other records, there is no function.
    """
    script = load_script(record["experiment"])
    if hasattr(script, "fingerprints"):
        own: dict[str, Callable[[], Fingerprint]] = script.fingerprints(record)
        return own
    experiment = record["configuration"].get("experiment", record["experiment"])
    script = load_script(experiment)
    if not hasattr(script, "Options"):
        return {}
    names = {f.name for f in fields(script.Options)}
    values = {key: value for key, value in record["configuration"].items() if key in names}
    options = replace(script.Options(), **values)
    return {"": lambda: take_fingerprint(script.main, options, experiment)}


def explain_skip(record: dict[str, Any], part: str) -> str:
    """
    Says why this machine can't check the fingerprint `part` of a record, for example because the machine
    lacks the text. Returns an empty string if the machine can check it.
    """
    corpus = record.get("corpus", {})
    # The record of a claim has no corpus of its own, but each arm of the claim may name one.
    arm = record.get("claim", {}).get("arms", {}).get(part, {})
    name = arm.get("corpus", corpus.get("name", "python-docs"))
    if name.startswith("python-") and "sha256" not in corpus:
        python = record["versions"]["python"]
        is_same = python == versions()["python"]
        return "" if is_same else f"its text comes with Python {python}"
    if name == "tiny-shakespeare" and not (cache_folder() / TINY_SHAKESPEARE_SHA256).is_file():
        # A check shouldn't download anything.
        return f"{name} has not been downloaded"
    if name in WIKITEXT:
        return f"a check might download {name}"
    try:
        text = load_corpus(name)
    except ValueError as error:
        return str(error)
    is_same = text.sha256 == corpus.get("sha256", text.sha256)
    return "" if is_same else f"{text.name} is a different text here"


def records(names: list[str]) -> Iterator[tuple[Path, dict[str, Any]]]:
    """
    Yields each record in `docs/runs` with its path, or only those in `names`, such as `claims/head`.

    Raises `ValueError` if there are no records or none with one of the names, or if a record isn't JSON.
    """
    paths = {path.relative_to(RUNS).with_suffix("").as_posix(): path for path in sorted(RUNS.rglob("*.json"))}
    if not paths:
        raise ValueError(f"there are no records in {RUNS}; run this command in a clone of the repository")
    for name in names:
        if name not in paths:
            raise ValueError(f"no record {name!r}; choose from {', '.join(paths)}")
    for name, path in paths.items():
        if not names or name in names:
            try:
                record = parse_sealed(path.read_text("utf-8"))
            except ValueError as error:
                raise ValueError(f"{path} is no record: {error}") from None
            yield path, record


def main(argv: list[str] | None = None) -> None:
    """
    Checks the fingerprints of the records named on the command line, or of all records. `--write` also saves
    the date of each successful check, and takes missing fingerprints. A new fingerprint is valid only if the
    current code has produced the record.
    """
    parser = OneLineParser(
        prog="python -m labml_bert.run.fingerprint",
        description="Check whether today's code gives the same results.",
    )
    parser.add_argument("record", nargs="*", help="such as mlm_tiny or claims/head (default: all records)")
    parser.add_argument(
        "--write", action="store_true", help="save the dates of the checks, and new fingerprints"
    )
    options = parser.parse_args(argv)
    failures = count = 0
    start = time.monotonic()
    with exit_on_bad_input():
        for path, record in records(options.record):
            name = path.relative_to(RUNS).with_suffix("").as_posix()
            fingerprints: dict[str, Fingerprint] = record.get("fingerprints", {})
            for part, take in fingerprints_of(record).items():
                label = f"{name}  {part}".rstrip()
                if reason := explain_skip(record, part):
                    console.print(f"  {label}: cannot be checked here ({reason})")
                    continue
                if part not in fingerprints and not options.write:
                    trained_by = record.get("configuration", {}).get("experiment", record["experiment"])
                    if trained_by == record["experiment"]:
                        console.print(f"  {label}: no fingerprint; repeat the run with --record")
                        failures += 1
                    else:
                        # The record describes a trained model, and its own run trained nothing.
                        console.print(f"  {label}: no fingerprint of the training; --write takes one")
                    continue
                try:
                    today = take()
                except ValueError as error:
                    console.print(f"  {label}: cannot be checked here ({error})")
                    continue
                count += 1
                if part not in fingerprints:
                    fingerprints[part] = today | {"checked": origin()}
                    console.print(f"  {label}: written")
                elif reason := difference(fingerprints[part], today):
                    failures += 1
                    console.print(f"  {label}: not reproduced, {reason}")
                else:
                    fingerprints[part]["checked"] = origin()
                    console.print(f"  {label}: reproduced")
            if options.write and fingerprints:
                # Another program may have added rows in the meantime.
                record = parse_sealed(path.read_text("utf-8"))
                write_whole(path, seal(json.dumps({**record, "fingerprints": fingerprints}, indent=1)))
    console.print(f"  {count} fingerprints in {time.monotonic() - start:.0f} s, {failures} not reproduced")
    if failures:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
