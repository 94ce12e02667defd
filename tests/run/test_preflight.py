"""How a script starts."""

import os
import re
import shutil
import signal
import subprocess
import sys
import sysconfig
import tomllib
import venv
from pathlib import Path

import pytest

from labml_bert.run.preflight import REQUIRED
from tests.support.runs import ROOT, SMALL, script

pytestmark = pytest.mark.processes

INTERRUPT_DURING_IMPORT = """
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
    "acceptability",
    "retrieval",
    "finetune_docstrings",
    "finetune_parameters",
    "live",
    "claims",
    "cost",
    "speed",
    "speed_ablation",
]


@pytest.mark.parametrize(
    ("program", "module"),
    [
        *(([script(name)], "torch") for name in WITH_TORCH),
        ([script("own_language")], "labml_bert.training.trainer"),
        (["-m", "labml_bert.fill_mask", "[MASK]"], "torch"),
        (["-m", "labml_bert.score", "text"], "torch"),
        (["-m", "labml_bert.embed", "query", "text"], "torch"),
        (["-m", "labml_bert.prepare", "text", "--output", "tokens"], "torch"),
        (["-m", "labml_bert.export", ".", "--to", "web"], "torch"),
    ],
)
def test_ctrl_c_during_the_imports_prints_one_line(program: list[str], module: str, tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(INTERRUPT_DURING_IMPORT)
    paths = os.pathsep.join([str(ROOT), str(tmp_path)])
    words = [sys.executable, *program]
    environment = {**os.environ, "HIT_AT": module, "PYTHONPATH": paths}
    process = subprocess.run(words, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert (process.returncode, process.stdout, process.stderr) == (130, "", "\nstopped before it began\n")
    # Nobody reads the line.
    reader, writer = os.pipe()
    os.close(reader)
    silent = subprocess.run(words, cwd=tmp_path, env=environment, stdout=writer, stderr=writer)
    os.close(writer)
    assert silent.returncode == 130
    # A program that only imports the package keeps its own handler.
    code = "assert signal.getsignal(signal.SIGINT) is signal.default_int_handler"
    if module == "labml_bert.training.trainer":
        code = f"import signal, labml_bert, labml_bert.fill_mask, labml_bert.export; {code}"
        subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)


INTERRUPT_AT_EXIT = """
import atexit, os, signal
atexit.register(os.kill, os.getpid(), signal.SIGINT)
"""


def test_ctrl_c_after_the_end_prints_no_traceback(tmp_path: Path) -> None:
    """Libraries still do something at exit, and somebody may press Ctrl-C a second time."""
    (tmp_path / "sitecustomize.py").write_text(INTERRUPT_AT_EXIT)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(tmp_path)])}
    words = [sys.executable, "-m", "labml_bert.runs", "missing"]
    process = subprocess.run(words, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert process.returncode == -signal.SIGINT
    (line,) = process.stderr.splitlines()
    assert line.startswith("error: ")


FAIL_DURING_IMPORT = """
import os, sys
class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == "torch":
            raise eval(os.environ["ERROR"])
sys.meta_path.insert(0, Finder())
"""


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        ('ImportError("libtorch_cpu.so: failed to map\\nsegment")', "libtorch_cpu.so: failed to map segment"),
        ("MemoryError()", "out of memory"),
        ('OSError(12, "Cannot allocate memory")', "[Errno 12] Cannot allocate memory"),
    ],
)
@pytest.mark.parametrize("program", [[script("mlm_tiny")], ["-m", "labml_bert.fill_mask", "[MASK]"]])
def test_a_library_that_cannot_be_loaded_is_one_line(
    program: list[str], error: str, reason: str, tmp_path: Path
) -> None:
    (tmp_path / "sitecustomize.py").write_text(FAIL_DURING_IMPORT)
    environment = {**os.environ, "ERROR": error, "PYTHONPATH": os.pathsep.join([str(ROOT), str(tmp_path)])}
    words = [sys.executable, *program]
    process = subprocess.run(words, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert (process.returncode, process.stdout) == (2, "")
    line = f"error: cannot load a library ({reason}); free some memory, or install the packages again\n"
    assert process.stderr == line


@pytest.mark.parametrize(
    ("name", "content"), [("random", "print(1)\n"), ("tempfile", "import nowhere\n"), ("rich", "x = 1\n")]
)
def test_a_file_with_the_name_of_a_module_is_named(name: str, content: str, tmp_path: Path) -> None:
    """Learners try out their code in small files in the folder of the exercises."""
    (tmp_path / f"{name}.py").write_text(content)
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    words = [sys.executable, "-m", "labml_bert.course", "check"]
    process = subprocess.run(words, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert process.returncode == 2
    line = f"error: {name}.py in the current folder hides Python's module {name}; rename the file\n"
    assert process.stderr == line


def test_a_folder_with_the_name_of_a_library_is_named(tmp_path: Path) -> None:
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").touch()
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    words = [sys.executable, "-m", "labml_bert.runs", "logs"]
    process = subprocess.run(words, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert process.returncode == 2
    line = "error: torch in the current folder hides Python's module torch; rename the folder\n"
    assert process.stderr == line


def test_a_closed_stdin_is_an_empty_one(tmp_path: Path) -> None:
    words = ["sh", "-c", 'exec "$0" -m labml_bert.classify predict nowhere <&-', sys.executable]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    process = subprocess.run(words, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert process.returncode == 2 and re.fullmatch("error: .+\n", process.stderr)


@pytest.mark.parametrize(
    "columns",
    ["0", "²", *(pytest.param(text, marks=pytest.mark.long) for text in ("1", "4", "-80", "", "1" * 5000))],
)
def test_a_terminal_without_columns_still_shows_the_text(columns: str, tmp_path: Path) -> None:
    words = [sys.executable, "-m", "labml_bert.runs", "--help"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": columns, "LINES": columns}
    process = subprocess.run(words, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=60)
    assert process.returncode == 0 and "show this help" in process.stdout


@pytest.mark.long
def test_a_variable_of_torchrun_alone_does_not_make_a_process_of_it(tmp_path: Path) -> None:
    code = "from labml_bert.run import preflight; from labml_bert.training.distributed import rank; rank()"
    environment = {name: value for name, value in os.environ.items() if name != "RANK"}
    environment |= {"PYTHONPATH": str(ROOT), "TORCHELASTIC_RUN_ID": "none"}
    subprocess.run([sys.executable, "-c", code], cwd=tmp_path, env=environment, check=True)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"RANK": "abc"}, "RANK is 'abc'"),
        ({"RANK": "2"}, "WORLD_SIZE is '2'"),
        ({"WORLD_SIZE": ""}, "WORLD_SIZE is ''"),
        ({"LOCAL_WORLD_SIZE": None}, "LOCAL_WORLD_SIZE is 'not set'"),
        ({"LOCAL_RANK": "2"}, "LOCAL_WORLD_SIZE is '2'"),
        ({"MASTER_ADDR": None}, "MASTER_ADDR is 'not set'"),
        ({"MASTER_PORT": "99999999"}, "MASTER_PORT is '99999999'"),
        ({"RANK": "9" * 30, "WORLD_SIZE": "9" * 31}, f"RANK is '{'9' * 30}'"),
        ({"MASTER_PORT": "\x1b[2J"}, r"MASTER_PORT is '\\x1b\[2J'"),
    ],
)
def test_wrong_variables_of_torchrun_are_named(
    changes: dict[str, str | None], message: str, tmp_path: Path
) -> None:
    variables = {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "2"}
    variables |= {"TORCHELASTIC_RUN_ID": "x", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29555"} | changes
    variables = {name: value for name, value in variables.items() if value is not None}
    others = {name: value for name, value in os.environ.items() if name not in (*variables, *changes)}
    words = [sys.executable, "-c", "from labml_bert.run import preflight"]
    process = subprocess.run(
        words, cwd=ROOT, env={**others, **variables}, capture_output=True, text=True, check=False
    )
    remedy = "start several processes with torchrun, or one with TORCHELASTIC_RUN_ID unset"
    assert process.returncode == 2
    assert re.fullmatch(f"error: the environment variable {message}; {remedy}\n", process.stderr)


@pytest.mark.long
def test_a_command_that_does_not_train_ignores_the_variables_of_torchrun(tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "TORCHELASTIC_RUN_ID": "x", "RANK": "1"}
    words = [sys.executable, "-m", "labml_bert.runs", "nowhere"]
    process = subprocess.run(
        words, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert process.returncode == 2 and process.stderr.startswith("error: no run in nowhere")


def test_a_full_disk_before_the_imports_is_a_one_line_error(tmp_path: Path) -> None:
    """The limit `ulimit -f 0` lets no file have any bytes."""
    words = ["sh", "-c", 'ulimit -f 0; exec "$0" -m labml_bert.runs nowhere', sys.executable]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1"}
    process = subprocess.run(words, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert process.returncode == 2 and re.fullmatch(
        "error: .+; set TMPDIR to a folder that you can write to, on a disk with free space\n", process.stderr
    )


def test_a_deleted_current_folder_is_a_one_line_error(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "labml_bert.fill_mask", "[MASK]"]
    words = ["sh", "-c", 'mkdir gone && cd gone && rmdir ../gone && exec "$@"', "sh", *command]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    process = subprocess.run(words, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert process.returncode == 2
    assert process.stderr == "error: the current folder no longer exists; change to another one\n"


def test_all_dependencies_are_checked() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert [re.split(r"[<>=!~ ;\[]", name)[0] for name in project["dependencies"]] == list(REQUIRED)


@pytest.fixture()
def clone(tmp_path: Path) -> Path:
    """A copy of the repository, without files that git ignores."""
    for folder in ("labml_bert", "experiments"):
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / folder, tmp_path / "clone" / folder, ignore=ignored)
    shutil.copy(ROOT / "constraints.txt", tmp_path / "clone")
    return tmp_path / "clone"


def new_environment(folder: Path, *paths: str) -> str:
    """
    Creates a virtual environment that sees the packages in `paths` and no others, and returns its
    interpreter.
    """
    venv.create(folder, symlinks=True)
    (packages,) = folder.glob("lib/python*/site-packages")
    # An editable install is a .pth file. Python ignores those in folders that a .pth file lists.
    (packages / "others.pth").write_text("\n".join(paths) + "\n")
    return str(folder / "bin" / "python")


def run_clean(*command: str | Path, cwd: Path) -> subprocess.CompletedProcess[str]:
    variables = {key: value for key, value in os.environ.items() if not key.startswith("PYTHON")}
    return subprocess.run(command, cwd=cwd, env=variables, capture_output=True, text=True)


def test_a_clone_runs_uninstalled_from_any_directory(clone: Path, tmp_path: Path, corpus_file: Path) -> None:
    """The environment has the dependencies but not the package."""
    paths = sysconfig.get_paths()
    python = new_environment(tmp_path / "environment", *{paths["purelib"], paths["platlib"]})
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    process = run_clean(python, "-c", "import torch, labml_bert", cwd=elsewhere)
    assert process.stderr.endswith("No module named 'labml_bert'\n")
    words = ["--corpus", str(corpus_file), "--steps", "2", *SMALL]
    process = run_clean(python, clone / "experiments" / "mlm_tiny.py", *words, cwd=elsewhere)
    assert (process.returncode, process.stderr) == (0, "")
    assert "this model" in process.stdout
    assert len(list(elsewhere.glob("logs/mlm_tiny/*/model/model.safetensors"))) == 1


@pytest.mark.parametrize("program", ["experiments/mlm_tiny.py", "labml_bert.fill_mask", "labml_bert.export"])
def test_missing_dependencies_are_a_one_line_error(program: str, clone: Path, tmp_path: Path) -> None:
    python = new_environment(tmp_path / "environment")
    command = [program] if program.endswith(".py") else ["-m", program]
    process = run_clean(python, *command, cwd=clone)
    assert (process.returncode, process.stdout) == (2, "")
    assert process.stderr == (
        f"error: not installed: {', '.join(REQUIRED)}; from the top of the clone run: "
        "python -m pip install --constraint constraints.txt --editable .\n"
    )
    if not program.endswith(".py"):
        # An installed package has no clone.
        shutil.copytree(clone / "labml_bert", tmp_path / "installed" / "labml_bert")
        process = run_clean(python, *command, cwd=tmp_path / "installed")
        assert process.stderr.endswith(f" -m pip install {' '.join(REQUIRED)}\n")
