"""How a script begins."""

import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tomllib
import venv
from pathlib import Path

import pytest

from labml_bert.run.script import REQUIRED
from tests.support.runs import ROOT, SMALL, script

pytestmark = pytest.mark.processes

HIT = """
import os, signal, sys
class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == os.environ["HIT_AT"]:
            os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, Finder())
"""

WITH_TORCH = [
    "mlm_tiny",
    "attention_map",
    "finetune_docstrings",
    "live",
    "claims",
    "cost",
    "speed",
    "speed_ledger",
]


@pytest.mark.parametrize(
    ("program", "module"),
    [
        *(([script(name)], "torch") for name in WITH_TORCH),
        ([script("own_language")], "labml_bert.training.trainer"),
        (["-m", "labml_bert.fill_mask", "[MASK]"], "torch"),
        (["-m", "labml_bert.export", ".", "--to", "web"], "torch"),
    ],
)
def test_ctrl_c_among_the_imports_is_one_line(program: list[str], module: str, tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(HIT)
    paths = os.pathsep.join([str(ROOT), str(tmp_path)])
    done = subprocess.run(
        [sys.executable, *program],
        cwd=tmp_path,
        env={**os.environ, "HIT_AT": module, "PYTHONPATH": paths},
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "\nstopped before it began\n")
    # A program of somebody else keeps its own answer.
    code = "assert signal.getsignal(signal.SIGINT) is signal.default_int_handler"
    if module == "labml_bert.training.trainer":
        code = f"import signal, labml_bert, labml_bert.fill_mask, labml_bert.export; {code}"
        subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)


def test_all_dependencies_are_asked_for() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert [re.split(r"[<>=!~ ;\[]", name)[0] for name in project["dependencies"]] == list(REQUIRED)


@pytest.fixture()
def clone(tmp_path: Path) -> Path:
    """A copy of the repository, without what git ignores."""
    for folder in ("labml_bert", "experiments"):
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / folder, tmp_path / "clone" / folder, ignore=ignored)
    return tmp_path / "clone"


def environment(folder: Path, *paths: str) -> str:
    """The interpreter of a new virtual environment that sees the packages in `paths`, and no others."""
    venv.create(folder, symlinks=True)
    (packages,) = folder.glob("lib/python*/site-packages")
    # Of a folder in such a file, the .pth files aren't read, and an editable install is one of those.
    (packages / "others.pth").write_text("\n".join(paths) + "\n")
    return str(folder / "bin" / "python")


def run_clean(*command: str | Path, cwd: Path) -> subprocess.CompletedProcess[str]:
    variables = {key: value for key, value in os.environ.items() if not key.startswith("PYTHON")}
    return subprocess.run(command, cwd=cwd, env=variables, capture_output=True, text=True)


def test_a_clone_runs_without_being_installed_and_from_any_directory(
    clone: Path, tmp_path: Path, corpus_file: Path
) -> None:
    """In an environment that has the dependencies and not the package."""
    paths = sysconfig.get_paths()
    python = environment(tmp_path / "environment", *{paths["purelib"], paths["platlib"]})
    place = tmp_path / "elsewhere"
    place.mkdir()
    done = run_clean(python, "-c", "import torch, labml_bert", cwd=place)
    assert done.stderr.endswith("No module named 'labml_bert'\n")
    words = ["--corpus", str(corpus_file), "--steps", "2", *SMALL]
    done = run_clean(python, clone / "experiments" / "mlm_tiny.py", *words, cwd=place)
    assert (done.returncode, done.stderr) == (0, "")
    assert "this model" in done.stdout
    assert len(list(place.glob("logs/mlm_tiny/*/model/model.safetensors"))) == 1


@pytest.mark.parametrize("program", ["experiments/mlm_tiny.py", "labml_bert.fill_mask", "labml_bert.export"])
def test_a_missing_dependency_is_one_line(program: str, clone: Path, tmp_path: Path) -> None:
    python = environment(tmp_path / "environment")
    command = [program] if program.endswith(".py") else ["-m", program]
    done = run_clean(python, *command, cwd=clone)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == (
        f"error: not installed: {', '.join(REQUIRED)}; from the top of the clone run: "
        "python -m pip install --constraint constraints.txt --editable .\n"
    )
