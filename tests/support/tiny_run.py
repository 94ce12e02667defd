"""A tiny run for other scripts, and a check of their error for a run or an option that they can't use."""

import runpy
from collections.abc import Callable
from pathlib import Path

import pytest

from labml_bert.run.launch import launch
from tests.support.runs import ROOT


def train_tiny(folder: Path, text: str, layers: int, positions: int) -> Path:
    """Trains `mlm_tiny.py` on `text` for two steps in this process, and returns the folder of the run."""
    (folder / "text.txt").write_text(text)
    training = runpy.run_path(str(ROOT / "experiments" / "mlm_tiny.py"))
    sizes = f"--num-hidden-layers {layers} --max-position-embeddings {positions} "
    sizes += "--schedule 8 --steps 2 --batch-tokens 64 --hidden-size 16 --num-attention-heads 2"
    folders = ["--corpus", str(folder / "text.txt"), "--runs", str(folder / "logs")]
    launch(training["main"], training["Options"], [*sizes.split(), *folders])
    return next((folder / "logs").glob("*/*"))


def assert_fails(
    main: Callable[[list[str]], None],
    arguments: list[str],
    message: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Checks that a script ends with one line that contains `message`, and with exit code 2."""
    with pytest.raises(SystemExit) as exit_info:
        main(arguments)
    assert exit_info.value.code == 2
    error = capsys.readouterr().err
    assert error.startswith("error: ") and error.count("\n") == 1 and message in error
