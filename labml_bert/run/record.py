"""
# Where does this result come from?

You can check or repeat a result only if you know its command, versions and machine. An experiment can write
its result as a JSON file. All of these files start with the same entries.
"""

import json
import os
import platform
import re
import shlex
import statistics
import subprocess
import sys
import time
from collections.abc import Iterable
from importlib.metadata import version
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch

from labml_bert.checks import LARGEST_SIZE
from labml_bert.checksums import file_state, parse_json, seal
from labml_bert.files import partial_path, write_whole
from labml_bert.run.terminal import script_words
from labml_bert.stdout import as_operand, console, display_path, print_note
from labml_bert.training.device import choose_precision

# The state of the file at each path when `check_record` or `write_record` last looked.
last_seen: dict[Path, tuple[int, int] | None] = {}


def check_record(path: Path, experiment: str) -> None:
    """
    Raises `ValueError` if a record of `experiment` can't be written to `path`, so that a run fails at its
    start and not minutes later. If the record can be written, the run will no longer end early because its
    output can't be printed. A record may replace an earlier record of the same experiment, but no other file.
    `experiment` is the path of the script under `experiments`, without `.py`.
    """
    name = experiment.rpartition("/")[2]
    try:
        if obstacle := find_obstacle(path, name):
            raise ValueError(obstacle)
        part = partial_path(path)
        part.unlink(missing_ok=True)  # A killed process with the same id may have left it.
        part.touch()
        part.unlink()
        last_seen[path.absolute()] = file_state(path)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise ValueError(f"cannot write {str(path)!r}: {reason}; choose another file with --record") from None
    console.keeps_running = True


def find_obstacle(path: Path, name: str) -> str:
    """Returns why a record of the experiment `name` can't replace what is at `path`, or an empty string."""
    if path.is_symlink():
        return "it is a link"
    if not path.exists():
        return ""
    if not path.is_file():
        return "it exists and is not a file"
    earlier = recorded_experiment(path)
    if earlier is None:
        return "it exists and is not a record"
    return "" if earlier == name else f"it is a record of {earlier}, not of {name}"


def write_record(path: Path, record: dict[str, Any]) -> Path:
    """
    Writes a record atomically and returns its path. Never replaces a file that another program has written
    since `check_record`, even if that file is a record of the same experiment. In that case, the name of our
    record ends in `-2`, `-3` and so on.

    Raises `OSError` if the record can't be written.
    """
    base, n = path, 1
    while obstacle := find_obstacle(path, record["experiment"]) or find_change(path):
        print_note(f"{display_path(path)} is left alone ({obstacle}); the record gets another name")
        n += 1
        path = base.with_stem(f"{base.stem}-{n}")
    write_whole(path, seal(json.dumps(record, indent=1)))
    last_seen[path.absolute()] = file_state(path)
    return path


def find_change(path: Path) -> str:
    """
    Returns an empty string if there is no file at `path`, or if it's still the file that `check_record` or
    `write_record` last saw there. Otherwise, says that another run has written it.
    """
    status = file_state(path)
    is_changed = status is not None and status != last_seen.get(path.absolute())
    return "another run has written it" if is_changed else ""


def recorded_experiment(path: Path) -> str | None:
    """
    Returns the experiment of a record, or `None` if the file doesn't start like a record. The rest isn't
    read, because the file may be a corpus of any size.

    Raises `OSError` if the file can't be read.
    """
    with open(path, "rb") as file:
        start = file.read(500)
    match = re.match(rb'\{\s*"experiment":\s*("(?:[^"\\]|\\.)*"),\s*"command":\s*"python ', start)
    try:
        return str(parse_json(match[1])) if match else None
    except ValueError:
        return None


def describe_run(
    experiment: str, words: Iterable[str], device: torch.device, precision: str | None = None
) -> dict[str, Any]:
    """
    ## The start of every record

    Returns the command, the date and commit, the versions and the hardware. `experiment` is the path of the
    script under `experiments`, without `.py`. `words` are the script's arguments on the command line. By
    default, `choose_precision` chooses the `precision`.
    """
    precision = precision or choose_precision(device)
    return {
        "experiment": experiment.rpartition("/")[2],
        "command": shlex.join(["python", *script_words(experiment), *words]),
        **origin(),
        "versions": versions(),
        "hardware": hardware(device, precision),
    }


def describe_training(run_state: dict[str, Any]) -> dict[str, Any]:
    """Returns the entries about the training of a model. `run_state` is from the checkpoint of its run."""
    configuration = run_state["configuration"]
    # Record only the name of the corpus, because a path means nothing on another machine.
    corpus = os.path.basename(configuration.get("corpus") or "")
    return {
        "configuration": {**configuration, "corpus": corpus},
        "trained": {"steps": run_state["step"], "seconds": run_state["seconds"]},
    }


def clean_arguments(argv: list[str] | None) -> list[str]:
    """
    The arguments of a valid command line, without `--record FILE`. The path of a corpus is shortened to its
    last part, because another machine may have different folders.
    """
    arguments = iter(sys.argv[1:] if argv is None else argv)
    words = []
    for word in arguments:
        option, equals_sign, value = word.partition("=")
        if option not in ("--record", "--corpus"):
            words.append(word)
            continue
        value = value if equals_sign else next(arguments)
        if option == "--corpus":
            words += [option, as_operand(Path(value).name)]
    return words


def check_range(options: object, *names: str) -> None:
    """Raises `ValueError` if an option is below 1 or very large. An option that is `None` isn't checked."""
    for name in names:
        value = getattr(options, name)
        if value is not None and value < 1:
            raise ValueError(f"{name} is {value}; it must be at least 1")
        if value is not None and value > LARGEST_SIZE:
            raise ValueError(f"{name} is {value}; it must be at most {LARGEST_SIZE:,}")


def average_losses(losses: list[float], points: int = 20) -> list[float]:
    """Returns the means of `points` equal parts of `losses`, or all losses if there are fewer than that."""
    points = min(points, len(losses))
    edges = [len(losses) * i // max(points, 1) for i in range(points + 1)]
    return [round(statistics.mean(losses[a:b]), 4) for a, b in pairwise(edges)]


def finish(record_path: Path | None, record: dict[str, Any], start_time: float) -> None:
    """Prints the time since `start_time` (from `time.monotonic`), and writes the record to `record_path`."""
    seconds = time.monotonic() - start_time
    console.print(f"  took        {seconds / 60:.1f} minutes")
    if record_path is not None:
        result = {**record.get("result", {}), "wall_seconds": seconds}
        record_path = write_record(record_path, {**record, "result": result})
        console.print(f"  record      {display_path(record_path)}")
    console.print()


def versions() -> dict[str, str]:
    """The versions of Python and of the packages that can change a result."""
    packages = ("torch", "labml", "tokenizers", "safetensors", "numpy")
    return {"python": platform.python_version(), **{name: version(name) for name in packages}}


def hardware(device: torch.device, precision: str) -> dict[str, Any]:
    """The device, its name, the cores and threads, and the precision."""
    gpu = torch.cuda.get_device_name(device) if device.type == "cuda" else None
    return {
        "device": device.type,
        "name": gpu or torch.cpu.get_capabilities().get("cpu_name"),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "precision": precision,
    }


def origin() -> dict[str, str | None]:
    """
    Returns today's date in UTC and the commit. The commit is `None` if the code has uncommitted changes or
    isn't in a repository, or if git fails.
    """
    # In another project's repository, `status` and `rev-parse` would describe that project.
    is_tracked = git("ls-files", "--", __file__)
    is_unchanged = git("status", "--porcelain", "--", "labml_bert/*.py", "experiments/*.py") == ""
    commit = git("rev-parse", "HEAD") if is_tracked and is_unchanged else None
    return {"date": time.strftime("%Y-%m-%d", time.gmtime()), "commit": commit}


def git(*words: str) -> str | None:
    """Returns what git prints in the project's folder, or `None` if it fails or isn't installed."""
    command, folder = ["git", "--no-optional-locks", *words], Path(__file__).parents[2]
    # Git sets such variables for its hooks, and they may name another repository.
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    try:
        result = subprocess.run(
            command, capture_output=True, text=True, errors="replace", check=True, cwd=folder, env=environment
        )
    except (OSError, subprocess.CalledProcessError):
        return None
    return result.stdout.strip()
