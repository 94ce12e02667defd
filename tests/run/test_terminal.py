"""What a run shows on a terminal, and how it says that it stops."""

import fcntl
import os
import pty
import re
import shlex
import struct
import subprocess
import termios
from pathlib import Path

import pytest

from labml_bert import files
from labml_bert.run.terminal import run_ends_well
from labml_bert.training.checkpoint import load_checkpoint
from tests.support.runs import SMALL, command, run, stopped_by_ctrl_c


@pytest.mark.processes
def test_brackets_are_no_markup(tmp_path: Path) -> None:
    """A text and a path of brackets are printed as they are."""
    (tmp_path / "text.txt").write_text("[b]cat[/b] [red]dog[/i] [/x]\n" * 300)
    out = run(
        "mlm_words",
        *SMALL,
        "--corpus=text.txt",
        "--steps=2",
        "--runs=d[bold]",
        "--record=r[red].json",
        cwd=tmp_path,
    )
    assert "d[bold]/mlm_words" in out and "r[red].json" in out and (tmp_path / "r[red].json").is_file()


@pytest.mark.processes
def test_ctrl_c_saves_and_says_how_to_go_on(corpus_file: Path, tmp_path: Path) -> None:
    out = stopped_by_ctrl_c(command("mlm_tiny", *SMALL, "--corpus", corpus_file, "--minutes", 5), tmp_path)
    again = shlex.split(out.splitlines()[-1])
    assert again[-2] == "--resume"
    assert load_checkpoint(tmp_path / again[-1])[0]["step"] > 0


@pytest.mark.parametrize(("resumable", "words"), [(True, "resume with --resume"), (False, "start over")])
def test_a_full_disk_promises_only_what_can_be_done(
    resumable: bool, words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stopped, run_ends_well(lambda: tmp_path, lambda: resumable):
        raise OSError(28, "No space left on device", "metrics.jsonl")
    assert stopped.value.code == 2
    error = capsys.readouterr().err
    assert re.fullmatch("error: No space left on device .*\n", error)
    assert words in error and ("--resume" in error) == resumable


def screen(text: str, width: int = 80) -> list[str]:
    """What a terminal shows after `text`, line by line."""
    lines: list[list[str]] = [[]]
    row = column = 0
    for piece in re.findall(r"\x1b\[\??([\d;]*)([A-Za-z])|(.)", text, re.DOTALL):
        number, letter, sign = piece
        if letter == "A":
            row -= int(number or 1)
        elif letter == "K":
            lines[row] = [] if number == "2" else lines[row][:column]
        elif sign == "\r":
            column = 0
        elif sign == "\n":
            row += 1
        elif sign:
            if column == width:
                row, column = row + 1, 0
            while len(lines) <= row:
                lines.append([])
            lines[row] += [" "] * (column + 1 - len(lines[row]))
            lines[row][column] = sign
            column += 1
        while len(lines) <= row:
            lines.append([])
    return ["".join(line).rstrip() for line in lines]


@pytest.mark.processes
def test_a_terminal_shows_one_bar_and_a_second_run_in_the_folder_is_refused(
    corpus_file: Path, tmp_path: Path
) -> None:
    """Ctrl-C as a terminal sends it, with the `^C` that it writes."""
    words = command("mlm_tiny", *SMALL, "--corpus", corpus_file, "--minutes", 5)
    pid, terminal = pty.fork()
    if pid == 0:
        os.chdir(tmp_path)
        os.execve(words[0], words, {**os.environ, "TERM": "xterm", "COLUMNS": "80"})
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    shown = ""
    folder: Path | None = None
    while True:
        try:
            piece = os.read(terminal, 4096).decode(errors="replace")
        except OSError:
            break
        shown += piece
        if folder is None and "k/s" in shown:
            (folder,) = (tmp_path / "logs" / "mlm_tiny").iterdir()
            second = subprocess.run(
                command("mlm_tiny", "--resume", folder),
                capture_output=True,
                text=True,
                cwd=tmp_path,
            )
            assert second.returncode == 2
            assert re.fullmatch("error: another process is training in .*\n", second.stderr)
            os.write(terminal, b"\x03")
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 130
    os.close(terminal)
    lines = screen(shown)
    assert "^C" in shown
    assert len([line for line in lines if "k/s" in line]) == 1, "\n".join(lines)
    # The folder's name can be long, and a terminal breaks a line in the middle of a word.
    assert "--resume" in "".join(lines)
    assert folder is not None and load_checkpoint(folder)[0]["step"] > 0
    # The lock went with the process.
    with files.lock(folder):
        pass
