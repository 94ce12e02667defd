"""
# Who made this result, and with what?

A number without its machine, its versions and its command can be neither doubted nor repeated. Each
experiment writes its result as JSON, and all files begin alike.
"""

import json
import os
import platform
import shlex
import subprocess
import sys
import time
from collections.abc import Iterable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from labml_bert.files import write_whole
from labml_bert.stdout import console, display_path
from labml_bert.training.device import has_fast_bfloat16


def check_record(path: Path) -> None:
    """
    Raises `ValueError` where a record cannot be written to `path`, minutes before it is needed. A device or
    a folder is no place for one.
    """
    try:
        if path.exists() and not path.is_file():
            raise ValueError("it is there and is no file")
        part = path.with_name(f"{path.name}.{os.getpid()}.part")
        part.touch(exist_ok=False)
        part.unlink()
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise ValueError(f"cannot write {str(path)!r}: {reason}; choose another file with --record") from None


def record_head(
    experiment: str, words: Iterable[str], device: torch.device, precision: str | None = None
) -> dict[str, Any]:
    """
    ## What every record begins with

    `experiment` is the path of the script under `experiments`, without its ending; `words` are what follows
    it on the command line. Without a `precision` it is the one that suits the device.
    """
    if precision is None:
        precision = "bfloat16" if has_fast_bfloat16(device) else "float32"
    return {
        "experiment": experiment.rpartition("/")[2],
        "command": shlex.join(["python", f"experiments/{experiment}.py", *words]),
        **origin(),
        "versions": versions(),
        "hardware": hardware(device, precision),
    }


def words_of(argv: list[str] | None) -> list[str]:
    """
    The words of a valid command line, without `--record FILE`. Of the path of a corpus only the file's name
    stays: the folders say where it was on somebody's machine.
    """
    words = iter(sys.argv[1:] if argv is None else argv)
    kept_words = []
    for word in words:
        option, sign, value = word.partition("=")
        if option not in ("--record", "--corpus"):
            kept_words.append(word)
            continue
        value = value if sign else next(words)
        if option == "--corpus":
            kept_words += [option, Path(value).name]
    return kept_words


def at_least_one(options: object, *names: str) -> None:
    """Raises `ValueError` where one of the options is below 1. `None` was not given."""
    for name in names:
        value = getattr(options, name)
        if value is not None and value < 1:
            raise ValueError(f"{name} is {value}; it must be at least 1")


def finish(record_path: Path | None, record: dict[str, Any], began: float) -> None:
    """Prints the time since `began`, from `time.monotonic`, and writes the record to `record_path`."""
    seconds = time.monotonic() - began
    console.print(f"  took        {seconds / 60:.1f} minutes")
    if record_path is not None:
        result = {**record.get("result", {}), "wall_seconds": seconds}
        write_whole(record_path, json.dumps({**record, "result": result}, indent=1))
        console.print(f"  record      {display_path(record_path)}")
    console.print()


def versions() -> dict[str, str]:
    """Of Python and of the packages that decide a result."""
    packages = ("torch", "labml", "tokenizers", "safetensors", "numpy")
    return {"python": platform.python_version(), **{name: version(name) for name in packages}}


def hardware(device: torch.device, precision: str) -> dict[str, Any]:
    """What a run was made on."""
    gpu = torch.cuda.get_device_name(device) if device.type == "cuda" else None
    return {
        "device": device.type,
        "name": gpu or torch.cpu.get_capabilities().get("cpu_name"),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "precision": precision,
    }


def origin() -> dict[str, str | None]:
    """When a record is made, and from which commit, if git knows."""
    try:
        command = ["git", "rev-parse", "HEAD"]
        done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=Path(__file__).parent)
        commit = done.stdout.strip()
    except OSError:
        # There is no git.
        commit = ""
    return {"date": time.strftime("%Y-%m-%d", time.gmtime()), "commit": commit or None}
