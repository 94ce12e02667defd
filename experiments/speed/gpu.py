"""
# All GPU measurements in a quarter of an hour

What should you run if you have a GPU for only a short time? `make gpu` runs all of our tests and measurements
that need one:

1. the tests that compare the GPU with the CPU: the same losses and gradients, and a run that resumes;
2. the speed of training steps: [BERT](speed.py) up to the size of BERT base, at lengths 128 and 512, and [the
   modern encoder](speed_modern.py);
3. `mlm_tiny.py` and `mlm_modern.py`, three minutes each.

Each part writes its own record, so an early end loses only the part that was running. The record of this
script says how long each part took, and whether it succeeded.

On an H200, the tests took 18 seconds, the steps of BERT six minutes, and those of the modern encoder half a
minute. You'll find the results on the pages of the scripts, and [the chapter on
cost](../../cost.md#measured-on-one-gpu) explains them. We had the GPU for only 15 minutes, so we had to stop
this script during its last part. In a later session, we ran only `mlm_modern.py`. That's why this script has
no record.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))  # Find the package without installing it.
from labml_bert.run import preflight  # isort: skip

import argparse
import subprocess
import time
from typing import Any

from labml_bert.run.record import check_record, clean_arguments, describe_run, finish
from labml_bert.run.terminal import exit_on_bad_input, header
from labml_bert.stdout import OneLineParser, console
from labml_bert.training.device import choose_device

import torch  # isort: skip

ROOT = Path(__file__).parents[2]
# A model that trains on any machine within seconds, to test this script.
QUICK = ["--steps=4", "--schedule=8", "--batch-tokens=64", "--hidden-size=16", "--num-hidden-layers=1"]
SHAPES = ["characters", "BERT base", "BERT base, batch 128", "BERT base, 512"]
QUICK_SPEED = ["--shapes=characters", "--batch-size=2", "--length=8", "--rounds=1"]
QUICK_MODERN = ["--shapes=characters", "--rounds=1"]


def list_parts(device: str, minutes: float, quick: bool, folder: Path) -> dict[str, list[str]]:
    """Returns the command of each part, without the Python interpreter. Records go to `folder`."""

    def script(name: str, *words: str) -> list[str]:
        record = folder / f"{Path(name).name}-gpu.json"
        path = ROOT / "experiments" / f"{name}.py"
        return [str(path), "--device", device, *words, "--record", str(record)]

    train = QUICK if quick else [f"--minutes={minutes:g}"]
    # Compiling a model takes a minute, so there is time for only some of the shapes.
    speed = QUICK_SPEED if quick else ["--rounds=3", "--shapes", *SHAPES]
    return {
        "tests": ["-m", "pytest", "-m", "device", str(ROOT / "tests" / "training")],
        "speed": script("speed/speed", "--dropout=0.1", *speed),
        "modern": script("speed/speed_modern", *(QUICK_MODERN if quick else ["--rounds=3"])),
        "mlm_tiny": script("mlm_tiny", *train),
        "mlm_modern": script("mlm_modern", *train),
    }


def choose_gpu(name: str) -> torch.device:
    """
    Returns the device. `auto` must be a CUDA GPU.

    Raises `ValueError` if there is none.
    """
    if name == "auto" and not torch.cuda.is_available():
        raise ValueError("this machine has no CUDA GPU that PyTorch can use; run this on a machine with one")
    return choose_device("cuda" if name == "auto" else name)


def main(argv: list[str] | None = None) -> None:
    """Parses the command line, runs all parts, and writes a record."""
    parser = OneLineParser(description="Run all GPU measurements in a quarter of an hour.")
    parser.add_argument("--minutes", type=float, default=3.0, help="minutes per training run (default: 3)")
    parser.add_argument("--quick", action="store_true", help="take seconds, to test this script")
    parser.add_argument("--device", default="auto", help="auto, the first CUDA GPU, or a device such as cpu")
    parser.add_argument(
        "--record",
        type=Path,
        metavar="FOLDER",
        help="folder for the records (default: docs/runs; --quick has no default)",
    )
    options = parser.parse_args(argv)
    with exit_on_bad_input():
        if options.quick and options.record is None:
            raise ValueError("the records of --quick would replace those in docs/runs; add --record FOLDER")
        options.record = options.record or ROOT / "docs" / "runs"
        succeeded = measure(options, clean_arguments(argv))
    raise SystemExit(0 if succeeded else 1)


def measure(options: argparse.Namespace, words: list[str]) -> bool:
    """
    ## The whole measurement

    Returns whether all parts succeeded. A part that fails doesn't stop the others.

    Raises `ValueError` if there is no such device, or if the record can't be written.
    """
    start = time.monotonic()
    device = choose_gpu(options.device)
    if not 0 < options.minutes <= 60:
        raise ValueError(f"minutes is {options.minutes:g}; it must be above 0 and at most 60")
    check_record(options.record / "gpu.json", "speed/gpu")
    parts = list_parts(str(device), options.minutes, options.quick, options.record.resolve())
    # At the start, because later another program could use the GPU too.
    record = describe_run("speed/gpu", words, device)
    header("gpu: all GPU measurements in a quarter of an hour", {"GPU": str(record["hardware"]["name"])})
    rows: list[dict[str, Any]] = []
    for name, command in parts.items():
        console.print(f"  {name}")
        part_start = time.monotonic()
        code = subprocess.run([sys.executable, *command], check=False).returncode
        rows.append({"name": name, "seconds": time.monotonic() - part_start, "succeeded": code == 0})
    console.print()
    for row in rows:
        outcome = "succeeded" if row["succeeded"] else "failed"
        console.print(f"  {row['name']:<11} {outcome} after {row['seconds']:.0f} s")
    configuration = {"minutes": options.minutes, "quick": options.quick}
    finish(options.record / "gpu.json", {**record, "configuration": configuration, "parts": rows}, start)
    return all(row["succeeded"] for row in rows)


if __name__ == "__main__":
    preflight.exit_on_signals()  # Then the part that is running ends too.
    main()
