"""
# Train your own model

`python -m labml_bert.course.train FOLDER` runs `experiments/mlm_tiny.py` with the files in `FOLDER` in place
of those in `labml_bert`. Python looks for a module of a package in the folders of the package's path, in
order, so it's enough to put the learner's folder in front.
"""

if __name__ == "__main__":
    from labml_bert.run import preflight  # noqa: F401

import importlib
import os
import runpy
import signal
import subprocess
import sys
from pathlib import Path

from labml_bert.course.folder import FILES
from labml_bert.course.source import PACKAGE

# The learner's folder has the same subfolders.
PACKAGES = ("", "data", "training")
EXPERIMENT = Path(__file__).parents[2] / "experiments" / "mlm_tiny.py"


def train(folder: Path, arguments: list[str]) -> int:
    """
    Trains the model in another process. On Windows, waits for it and returns its exit code. On other systems,
    the new process replaces this one, so a signal to this process reaches the training.

    Raises `ValueError` if this isn't a clone of the repository, or if a file that isn't an exercise would
    replace one of our files.
    """
    for path in sorted(path for name in PACKAGES for path in (folder / name).glob("*")):
        # A folder, or a compiled module such as `mlm.so`, would replace `mlm.py` too.
        stem = path.name.partition(".")[0]
        name = (path.parent / stem).relative_to(folder).as_posix()
        is_module = path.is_dir() or path.suffix in (".py", ".so", ".pyd")
        if not is_module or path.relative_to(folder).as_posix() in FILES:
            continue
        replaceable = [f"{name}.py"]
        if path.is_file() or (path / "__init__.py").is_file():
            replaceable.append(f"{name}/__init__.py")
        for ours in replaceable:
            if stem and (PACKAGE / ours).is_file():
                raise ValueError(f"{path} would replace labml_bert/{ours}; rename it")
    if not EXPERIMENT.is_file():
        raise ValueError(f"{EXPERIMENT} is missing; training needs a clone of the repository")
    words = [sys.executable, "-m", "labml_bert.course.train", str(folder.resolve()), *arguments]
    if os.name == "posix":
        sys.stdout.flush()
        os.execv(sys.executable, words)
    with subprocess.Popen(words) as process:
        # On Ctrl-C, the run saves a checkpoint and prints how to go on. Wait for that.
        before = signal.signal(signal.SIGINT, signal.SIG_IGN)
        try:
            return process.wait()
        finally:
            signal.signal(signal.SIGINT, before)


def main(folder: Path, arguments: list[str]) -> None:
    """Imports from `folder` first, and runs the experiment as a script."""
    for name in PACKAGES:
        package = importlib.import_module(f"labml_bert.{name}".rstrip("."))
        package.__path__.insert(0, str(folder / name))
    from labml_bert.run import terminal

    # If the learner resumed with `mlm_tiny.py`, the run would use our code instead of the learner's.
    other_folder = [] if folder == Path.cwd() else ["--folder", str(folder)]
    terminal.start_words[:] = ["-m", "labml_bert.course", "train", *other_folder, "--"]
    sys.argv = [str(EXPERIMENT), *arguments]
    runpy.run_path(str(EXPERIMENT), run_name="__main__")


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
