"""How a script begins."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.runs import ROOT, script

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
    code = "import signal, labml_bert; assert signal.getsignal(signal.SIGINT) is signal.default_int_handler"
    if module == "labml_bert.training.trainer":
        subprocess.run([sys.executable, "-c", code], check=True)
