"""What is different on Windows: line ends, byte order marks, code pages, and spaces in names."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from labml_bert.course.folder import write_exercises
from labml_bert.course.source import read_reference, remove_bodies
from labml_bert.course.track import STEPS
from tests.support.runs import ROOT


def run(folder: Path, *words: str, encoding: str = "cp1252") -> tuple[int, str]:
    """Runs the command as a console with this code page does, and returns the exit code and the output."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONIOENCODING": encoding, "COLUMNS": "80"}
    command = [sys.executable, "-m", "labml_bert.course", *words]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, encoding=encoding)
    assert done.stderr == ""
    return done.returncode, done.stdout


@pytest.mark.processes
def test_a_folder_with_a_space_is_printed_in_double_quotes(tmp_path: Path) -> None:
    code, output = run(tmp_path, "start", "my course")
    assert code == 0 and "\n  cd 'my course'\n" in output


@pytest.mark.long
@pytest.mark.processes
@pytest.mark.parametrize("encoding", ["cp1252", "cp437", "cp932"])
def test_files_of_a_windows_editor_on_a_windows_console(tmp_path: Path, encoding: str) -> None:
    folder = tmp_path / "My Documents" / "BERT (Übung)"
    write_exercises(folder)
    others = [step for step in STEPS[1:] if step.file == "mlm.py"]
    text = remove_bodies(read_reference("mlm.py"), others)
    for content in (text, f"\ufeff{text}"):
        (folder / "progress.json").unlink(missing_ok=True)
        (folder / "mlm.py").write_bytes(content.replace("\n", "\r\n").encode())
        code, output = run(folder, "check", encoding=encoding)
        assert code == 0
        assert f"  +  1  {STEPS[0].title}\n" in output
        assert f"Not written yet: {STEPS[1].task}." in " ".join(output.split())
        wrong = content.replace("logits.float(), labels,", "logits.float() + nothing, labels,")
        (folder / "mlm.py").write_bytes(wrong.replace("\n", "\r\n").encode())
        code, output = run(folder, "check", encoding=encoding)
        line = wrong.splitlines().index(next(line for line in wrong.splitlines() if "+ nothing" in line)) + 1
        assert (
            code == 1
            and "  x Your code raises NameError." in output
            and f"in mlm.py, line {line}\n" in output
        )
        # The learner's file hasn't changed by a byte.
        assert (folder / "mlm.py").read_bytes() == wrong.replace("\n", "\r\n").encode()
