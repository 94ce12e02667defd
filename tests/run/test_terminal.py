"""What a run prints on a terminal, and how it ends."""

import contextlib
import errno
import io
import os
import re
import shlex
import signal
import struct
import subprocess
import sys
import time
import types
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path

import pytest
import torch
from rich.table import Table
from rich.text import Text
from tokenizers import Regex, Tokenizer, models, pre_tokenizers

from labml_bert import files
from labml_bert.run import terminal
from labml_bert.run.record import describe_run
from labml_bert.run.terminal import (
    ProgressLine,
    exit_cleanly,
    exit_on_bad_input,
    fail,
    print_last,
    read_standard_input,
)
from labml_bert.stdout import OneLineParser, PersistentConsole, console, display_path, print_note, printable
from labml_bert.training.checkpoint import CHECKPOINT, load_checkpoint
from labml_bert.training.trainer import Report
from tests.support.runs import ROOT, SMALL, command, run, stop_with_ctrl_c

# Windows has no pseudo-terminals.
fcntl, pty, termios = map(pytest.importorskip, ("fcntl", "pty", "termios"))


@pytest.mark.processes
@pytest.mark.long
def test_brackets_are_printed_literally(tmp_path: Path) -> None:
    """Rich must not interpret brackets in a text or a path as markup."""
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


def test_a_name_cannot_control_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    name = "a\x1b[2J\x1b]0;title\x07\u202eb"
    table = Table()
    table.add_column(name)
    with console.capture() as capture:
        console.print(name, Text(name), table)
    with pytest.raises(SystemExit):
        fail(f"{name} is damaged\n{'x' * 5000}")
    error = capsys.readouterr().err
    assert len(error) < 1100 and error.startswith("error: a?[2J?]0;title??b is damaged x")
    print_note(f"  skipped {name}")
    note = capsys.readouterr().err
    assert note == "  skipped a?[2J?]0;title??b\n"
    with pytest.raises(SystemExit):
        fail(OSError(errno.ENOENT, "No such file", "a\nerror: b"))
    print_note("c\nerror: d")
    assert len(capsys.readouterr().err.splitlines()) == 2
    for text in (capture.get(), error, note):
        assert not {"\x1b", "\x07", "\u202e"} & {*text}


def test_words_and_spaces_of_other_languages_are_printed() -> None:
    """Persian and Hindi join letters with characters that Python doesn't call printable, and so do emoji."""
    for text in ("می\u200cخواهم", "क्\u200dष", "👩\u200d💻", "Ça va\u202f?", "そう\u3000か"):
        assert printable(text) == text
    assert printable("a\x1b\u200e\xad\nb") == "a???⏎b"
    assert printable("\u200c") == printable("\xa0") == "?", "alone, they would be invisible"


@pytest.mark.processes
def test_ctrl_c_saves_a_checkpoint_and_prints_how_to_resume(corpus_file: Path, tmp_path: Path) -> None:
    """The printed command has the number of micro-batches, which changes the last bits of a result."""
    options = ["--corpus", corpus_file, "--minutes", 5, "--gradient-accumulation-steps", 2]
    out = stop_with_ctrl_c(command("mlm_tiny", *SMALL, *options), tmp_path)
    *_, resume, folder, name, value = shlex.split(out.splitlines()[-1])
    assert [resume, name, value] == ["--resume", "--gradient-accumulation-steps", "2"]
    assert load_checkpoint(tmp_path / folder)[0]["step"] > 0


def wait_for_training(process: subprocess.Popen[str], folder: Path) -> None:
    while not list(folder.glob("logs/*/*/metrics.jsonl")):
        assert process.poll() is None
        time.sleep(0.1)


@pytest.mark.processes
@pytest.mark.parametrize("number", [pytest.param(signal.SIGINT, marks=pytest.mark.long), None])
@pytest.mark.parametrize("stderr", [subprocess.PIPE, pytest.param(subprocess.STDOUT, marks=pytest.mark.long)])
def test_a_run_is_saved_if_nobody_reads_its_output(
    number: int | None, stderr: int, corpus_file: Path, tmp_path: Path
) -> None:
    """
    On Ctrl-C, a `tee` that reads the output ends before the run; `head` ends by itself. With `2>&1`, nobody
    reads stderr either.
    """
    words = command("mlm_tiny", *SMALL, "--corpus", corpus_file, "--minutes", 5)
    process = subprocess.Popen(words, cwd=tmp_path, stdout=subprocess.PIPE, stderr=stderr, text=True)
    assert process.stdout is not None
    process.stdout.readline()
    if number:
        wait_for_training(process, tmp_path)
    process.stdout.close()
    if number:
        process.send_signal(number)
    error = process.stderr.read() if process.stderr else ""
    assert process.wait(timeout=60) == 130
    if process.stderr:
        assert re.fullmatch("stopped and saved; resume with: .* --resume .*\n", error)
        process.stderr.close()
    (folder,) = (tmp_path / "logs" / "mlm_tiny").iterdir()
    assert load_checkpoint(folder)[0]["step"] > 0


@pytest.mark.processes
@pytest.mark.parametrize("phase", ["loading", "training"])
def test_a_signal_ends_a_run_whose_output_waits_for_a_reader(
    phase: str, corpus_file: Path, tmp_path: Path
) -> None:
    """The pipe is open and full. A write to it waits for a reader, whatever signals arrive."""
    reader, writer = os.pipe()
    # A description of its own, because the run must not share the flag.
    filler = os.open(f"/proc/self/fd/{writer}", os.O_WRONLY | os.O_NONBLOCK)

    def write_until_full() -> None:
        with contextlib.suppress(BlockingIOError):
            while os.write(filler, bytes(4096)):
                pass

    if phase == "loading":
        write_until_full()
    words = command("mlm_tiny", *SMALL, "--corpus", corpus_file, "--minutes", 5)
    process = subprocess.Popen(words, cwd=tmp_path, stdout=writer, stderr=subprocess.PIPE, text=True)
    name = "tokenizer.json" if phase == "loading" else "metrics.jsonl"
    while not list(tmp_path.glob(f"logs/*/*/{name}")):
        assert process.poll() is None
        time.sleep(0.1)
    write_until_full()
    time.sleep(0.5)
    process.send_signal(signal.SIGINT)
    _, error = process.communicate(timeout=60)
    assert (process.returncode, error) == (130, "")
    for descriptor in (reader, writer, filler):
        os.close(descriptor)
    if phase == "training":
        (folder,) = (tmp_path / "logs" / "mlm_tiny").iterdir()
        assert load_checkpoint(folder)[0]["step"] > 0


def test_a_path_is_never_printed_as_an_option(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert display_path(Path("-r", "a")) == display_path(tmp_path / "-r" / "a") == "./-r/a"
    assert display_path(Path("r-")) == "r-" and display_path(tmp_path.parent) == str(tmp_path.parent)


@pytest.mark.processes
@pytest.mark.parametrize(("keeps_running", "exit_code"), [(False, 2), (True, 0)])
def test_output_that_cannot_be_written_ends_no_run(
    keeps_running: bool, exit_code: int, tmp_path: Path
) -> None:
    """A run continues and can be saved; any other command ends with a one-line message."""
    code = f"""
import resource
from labml_bert.stdout import console
# From now on, this process can't write to any file.
resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
console.keeps_running = {keeps_running}
console.print("1")
console.print("2")
"""
    words = [sys.executable, "-c", code]
    with open(tmp_path / "output", "w") as file:
        done = subprocess.run(words, stdout=file, stderr=subprocess.PIPE, text=True)
        both = subprocess.run(words, stdout=file, stderr=file)
    assert (done.returncode, done.stderr) == (exit_code, "error: cannot print: File too large\n")
    assert both.returncode == exit_code


@pytest.mark.processes
@pytest.mark.parametrize("module", ["labml_bert.classify", "labml_bert.course"])
def test_nobody_needs_to_read_the_help(module: str) -> None:
    """Without this variable, Python buffers its output and writes it at the end."""
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONUNBUFFERED"}
    reader, writer = os.pipe()
    os.close(reader)
    words = [sys.executable, "-m", module, "--help"]
    process = subprocess.run(
        words, cwd=ROOT, env=environment, stdout=writer, stderr=subprocess.PIPE, text=True
    )
    os.close(writer)
    assert process.stderr == "" and process.returncode in (0, 1)


def test_no_option_has_two_dashes_as_its_value(capsys: pytest.CaptureFixture[str]) -> None:
    """`argparse` would replace them by an empty list."""
    parser = OneLineParser()
    parser.add_argument("--run", type=Path)
    parser.add_argument("texts", nargs="+")
    with pytest.raises(SystemExit) as exit_info:
        parser.parse_args(["--run=--", "a"])
    assert exit_info.value.code == 2
    assert capsys.readouterr().err == "error: --run can't be --; see --help\n"
    # After `--` there are only texts.
    options = parser.parse_args(["--run=x=--", "--", "--run=--"])
    assert options.run == Path("x=--") and options.texts == ["--run=--"]


def test_every_command_has_this_parser() -> None:
    paths = [path for name in ("labml_bert", "experiments") for path in (ROOT / name).rglob("*.py")]
    parsers = {path.name: re.findall(r"\b(\w*Parser)\(", path.read_text()) for path in paths}
    assert {name for names in parsers.values() for name in names} == {"OneLineParser"}
    assert len([names for names in parsers.values() if names]) > 10


def test_the_last_line_cannot_control_the_terminal_either(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """If nobody reads stdout, the last line goes to stderr, without rich."""
    monkeypatch.setattr(console, "quiet", True)
    print_last("\nresume with:\n  --resume a\x1b[2Jb")
    assert capfd.readouterr().err == "resume with:  --resume a?[2Jb\n"


@pytest.mark.parametrize(("progress", "state"), [(0.0, "starting"), (0.6, "starting"), (1.0, "finished")])
def test_the_bar_of_a_resumed_run_starts_where_the_run_stopped(progress: float, state: str) -> None:
    line = ProgressLine(3.0)
    with line.live(progress):
        (task,) = line.progress.tasks
        assert (task.completed, task.description) == (progress, state)


@pytest.mark.parametrize("step", [0, 40])
def test_the_speed_counts_only_steps_that_were_timed(step: int) -> None:
    """The clock starts at the end of the first step, and so it does again after a resume."""
    line = ProgressLine(None)
    reports = [Report(step + n, 0.5, 6.0 + n, {"loss": 1.0, "accuracy": 0.5}, None, 8) for n in (1, 3, 4)]
    with line.live(0.5, step, 7.0):
        assert [line.speed(report, 100) for report in reports] == [{}, *[{"tokens_per_second": 100.0}] * 2]
        line.show(reports[0])
        assert "tok/s" not in line.progress.tasks[0].description
        line.show(reports[1], 1300.0)
        assert "1.3k tok/s" in line.progress.tasks[0].description


@pytest.mark.parametrize(("term", "is_terminal"), [("xterm", True), ("dumb", False), ("unknown", False)])
def test_a_terminal_that_cannot_move_its_cursor_is_like_a_file(
    term: str, is_terminal: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rich draws no bar there, so the lines of a file are printed."""
    monkeypatch.setenv("TERM", term)
    assert PersistentConsole(force_terminal=True).is_terminal is is_terminal


@pytest.mark.processes
def test_closing_the_terminal_saves_the_run(corpus_file: Path, tmp_path: Path) -> None:
    words = command("mlm_tiny", *SMALL, "--corpus", corpus_file, "--minutes", 5)
    pid, terminal = pty.fork()
    if pid == 0:
        os.chdir(tmp_path)
        os.execve(words[0], words, {**os.environ, "TERM": "xterm"})
    output = b""
    while b"tok/s" not in output:
        output += os.read(terminal, 4096)
    # The system sends SIGHUP. From now on, printing fails.
    os.close(terminal)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 130
    (folder,) = (tmp_path / "logs" / "mlm_tiny").iterdir()
    assert load_checkpoint(folder)[0]["step"] > 0


@pytest.mark.processes
def test_no_file_gets_the_number_of_a_closed_stream(tmp_path: Path) -> None:
    """If a checkpoint got such a number, warnings of C code would end up in it."""
    code = "from labml_bert.run import preflight; raise SystemExit(open('file', 'w').fileno())"
    words = ["sh", "-c", 'exec "$0" -c "$1" >&- 2>&-', sys.executable, code]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    assert subprocess.run(words, cwd=tmp_path, env=environment).returncode > 2


@pytest.mark.processes
@pytest.mark.long
def test_bad_input_gets_no_traceback_without_a_stderr(tmp_path: Path) -> None:
    words = ["sh", "-c", 'exec "$0" -m labml_bert.runs missing 2>&-', sys.executable]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    process = subprocess.run(words, cwd=tmp_path, env=environment, stdout=subprocess.PIPE, text=True)
    assert process.returncode == 2 and "Traceback" not in process.stdout


@pytest.mark.parametrize(("resumable", "words"), [(True, "resume with --resume"), (False, "start over")])
def test_a_folder_that_cannot_be_read_any_more_ends_the_run_with_one_line(
    resumable: bool, words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # The superuser can read every folder, but not one whose name is too long.
    path = tmp_path / ("x" * 300)
    with pytest.raises(SystemExit) as exit_info, exit_cleanly(lambda: path, lambda: resumable):
        raise PermissionError(errno.EACCES, "Permission denied", "checkpoint")
    error = capsys.readouterr().err
    assert exit_info.value.code == 2 and words in error and error.startswith("error: ")


@pytest.mark.parametrize(
    ("resumable", "has_checkpoint", "words"),
    [(True, True, "resume with --resume"), (True, False, "start over"), (False, True, "start over")],
)
def test_after_a_full_disk_resume_is_only_suggested_if_possible(
    resumable: bool,
    has_checkpoint: bool,
    words: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    if has_checkpoint:
        (tmp_path / CHECKPOINT).touch()
    with pytest.raises(SystemExit) as exit_info, exit_cleanly(lambda: tmp_path, lambda: resumable):
        raise OSError(28, "No space left on device", "metrics.jsonl")
    assert exit_info.value.code == 2
    error = capsys.readouterr().err
    assert re.fullmatch("error: No space left on device .*\n", error)
    assert words in error and ("--resume" in error) == (resumable and has_checkpoint)


@pytest.mark.parametrize(
    ("number", "remedy"),
    [
        (errno.EEXIST, "choose another name"),
        (errno.EACCES, "change the permissions, .*"),
        (errno.EFBIG, "raise .*"),
    ],
)
def test_an_error_of_the_system_names_the_remedy(
    number: int, remedy: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit), exit_on_bad_input():
        raise OSError(number, os.strerror(number), "file")
    assert re.fullmatch(rf"error: {os.strerror(number)} \(file\); {remedy}\n", capsys.readouterr().err)


def test_a_library_that_cannot_be_loaded_ends_a_program_in_one_line(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit) as exit_info, exit_on_bad_input():
        raise ImportError("libtorch_cpu.so: failed to map segment\nfrom shared object")
    assert exit_info.value.code == 2
    assert re.fullmatch(
        "error: cannot load a library .*map segment from shared.*; free .*\n", capsys.readouterr().err
    )


def test_a_limit_of_the_shell_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit), exit_cleanly(lambda: tmp_path, lambda: False):
        raise OSError(errno.EFBIG, "File too large", "a")
    assert capsys.readouterr().err == (
        "error: File too large (a); raise the limit with ulimit -f; once this is fixed, start over\n"
    )


def test_standard_input_is_read_up_to_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"12345")))
    assert read_standard_input(5) == b"12345"
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"123456")))
    with pytest.raises(ValueError, match=r"^standard input has more than 5 bytes; divide it into parts$"):
        read_standard_input(5)


def test_endless_standard_input_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with open("/dev/zero") as zeros:
        monkeypatch.setattr(sys, "stdin", zeros)
        with pytest.raises(ValueError, match="standard input has more than 100,000 bytes"):
            read_standard_input(100_000)


def test_a_terminal_as_standard_input_is_announced(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Terminal(io.TextIOWrapper):
        def isatty(self) -> bool:
            return True

    monkeypatch.setattr(sys, "stdin", Terminal(io.BytesIO(b"one\n")))
    assert read_standard_input() == b"one\n"
    message = "reading texts from the terminal, one per line; Ctrl-D ends the input\n"
    assert capsys.readouterr().err == message


def test_standard_input_that_cannot_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As with `score < FILE` if the shell has opened the file for writing only."""
    descriptor = os.open(tmp_path / "out", os.O_CREAT | os.O_WRONLY)
    with open(descriptor, encoding="utf-8", closefd=True) as file:
        monkeypatch.setattr(sys, "stdin", file)
        with pytest.raises(ValueError, match="cannot read standard input: Bad file descriptor; pass a text"):
            read_standard_input()


def test_a_narrow_terminal_gets_whole_columns() -> None:
    narrow = PersistentConsole(width=20, height=10, file=io.StringIO())
    assert narrow.size == (40, 10)
    narrow.size = (60, 12)
    assert narrow.size == (60, 12)


@pytest.mark.processes
@pytest.mark.long
def test_an_error_that_cannot_be_printed_keeps_its_exit_code(tmp_path: Path) -> None:
    words = ["sh", "-c", '"$0" -m labml_bert.embed --run nowhere a b 2>/dev/full', sys.executable]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    assert subprocess.run(words, cwd=tmp_path, env=environment, check=False).returncode == 2


def test_paths_and_commands_without_a_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    assert display_path(tmp_path / "run") == str(tmp_path / "run")
    assert terminal.command("a b").endswith("python 'a b'")


def test_after_a_full_disk_the_resumed_run_gets_the_same_record(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / CHECKPOINT).touch()
    with (
        pytest.raises(SystemExit),
        exit_cleanly(lambda: tmp_path, lambda: True, ["--record", "my record.json"]),
    ):
        raise OSError(28, "No space left on device", "metrics.jsonl")
    assert capsys.readouterr().err.endswith(f"resume with --resume {tmp_path} --record 'my record.json'\n")


def test_an_empty_name_is_not_the_current_folder(capsys: pytest.CaptureFixture[str]) -> None:
    parser = OneLineParser(prog="command")
    parser.add_argument("folder", type=Path)
    assert parser.parse_args(["."]).folder == Path()
    with pytest.raises(SystemExit):
        parser.parse_args([""])
    assert capsys.readouterr().err == "error: argument folder: the name is empty; see --help\n"


def screen(text: str, width: int = 80) -> list[str]:
    """The lines that a terminal displays after printing `text`."""
    lines: list[list[str]] = [[]]
    row = column = 0
    for match in re.findall(r"\x1b\[\??([\d;]*)([A-Za-z])|(.)", text, re.DOTALL):
        number, letter, character = match
        if letter == "A":
            row -= int(number or 1)
        elif letter == "K":
            lines[row] = [] if number == "2" else lines[row][:column]
        elif character == "\r":
            column = 0
        elif character == "\n":
            row += 1
        elif character:
            if column == width:
                row, column = row + 1, 0
            while len(lines) <= row:
                lines.append([])
            lines[row] += [" "] * (column + 1 - len(lines[row]))
            lines[row][column] = character
            column += 1
        while len(lines) <= row:
            lines.append([])
    return ["".join(line).rstrip() for line in lines]


@pytest.mark.long
@pytest.mark.processes
def test_a_terminal_shows_one_bar_and_a_second_process_is_rejected(corpus_file: Path, tmp_path: Path) -> None:
    """The test ends the run by typing Ctrl-C into the terminal, which echoes `^C`."""
    words = command("mlm_tiny", *SMALL, "--corpus", corpus_file, "--minutes", 5)
    pid, terminal = pty.fork()
    if pid == 0:
        os.chdir(tmp_path)
        os.execve(words[0], words, {**os.environ, "TERM": "xterm", "COLUMNS": "80"})
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    output = ""
    folder: Path | None = None
    while True:
        try:
            chunk = os.read(terminal, 4096).decode(errors="replace")
        except OSError:
            break
        output += chunk
        if folder is None and "tok/s" in output:
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
    lines = screen(output)
    assert "^C" in output
    assert len([line for line in lines if "tok/s" in line]) == 1, "\n".join(lines)
    # The folder's name can be long, and a terminal wraps lines in the middle of a word.
    assert "--resume" in "".join(lines)
    assert folder is not None and load_checkpoint(folder)[0]["step"] > 0
    # The lock was released when the process ended.
    with files.lock(folder):
        pass


@pytest.mark.parametrize("block", [exit_on_bad_input, partial(exit_cleanly, lambda: None, lambda: False)])
def test_a_text_that_a_tokenizer_cannot_encode_gets_one_line(
    block: Callable[[], AbstractContextManager[None]], capfd: pytest.CaptureFixture[str]
) -> None:
    """The library raises a bare `Exception`. Its panics aren't even an `Exception`."""
    without_unk = Tokenizer(models.WordPiece({"a": 0}, unk_token="[UNK]"))
    slow_regex = Tokenizer(models.WordPiece({"[UNK]": 0}, unk_token="[UNK]"))
    slow_regex.pre_tokenizer = pre_tokenizers.Split(Regex("(q+q+)+y| "), "removed")
    for tokenizer in (without_unk, slow_regex):
        with pytest.raises(SystemExit) as exit_info, block():
            tokenizer.encode("q" * 40)
        assert exit_info.value.code == 2
        # The library's own message about a panic comes before ours.
        *_, line = capfd.readouterr().err.splitlines()
        assert re.fullmatch(r"error: a library failed, probably the tokenizer \(.+\); use another .+", line)
    with pytest.raises(AttributeError), block():
        raise AttributeError("a bug of ours")


def test_a_command_for_windows_has_double_quotes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(terminal, "IS_WINDOWS", True)
    monkeypatch.setattr(sys, "prefix", sys.base_prefix)
    assert terminal.command("-m", "x", r"C:\my runs", "it's") == r"""python -m x "C:\my runs" it's"""


def test_a_program_that_starts_the_script_also_resumes_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The course trains with the learner's files, so the script alone would resume with other code."""
    monkeypatch.setattr(terminal, "start_words", ["-m", "labml_bert.course", "train", "--"])
    (tmp_path / CHECKPOINT).touch()
    with pytest.raises(SystemExit), exit_cleanly(lambda: tmp_path, lambda: True):
        raise KeyboardInterrupt
    assert f" -m labml_bert.course train -- --resume {tmp_path}\n" in capsys.readouterr().out


@pytest.mark.processes
def test_the_command_in_a_record_starts_the_script_that_ran(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    main = types.ModuleType("__main__")
    monkeypatch.setitem(sys.modules, "__main__", main)
    monkeypatch.chdir(tmp_path)
    for script, expected in {
        Path(terminal.__file__).parents[2] / "experiments/mlm_tiny.py": "experiments/mlm_tiny.py",
        tmp_path / "pytest.py": "experiments/mlm_tiny.py",
        tmp_path / "own/mlm_tiny.py": "own/mlm_tiny.py",
    }.items():
        main.__file__ = str(script)
        assert terminal.script_words("mlm_tiny") == [expected]
        command = describe_run("mlm_tiny", ["--steps", "1"], torch.device("cpu"), "float32")["command"]
        assert command == f"python {expected} --steps 1"
    monkeypatch.setattr(terminal, "start_words", ["-m", "labml_bert.course", "train", "--"])
    assert terminal.script_words("mlm_tiny") == ["-m", "labml_bert.course", "train", "--"]


def test_a_long_message_keeps_its_remedy(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit), exit_on_bad_input():
        raise ValueError(f"the cause is {'x' * 5000}; leave out --torch-compile")
    error = capsys.readouterr().err
    assert error.startswith("error: the cause is xxx") and error.endswith("x; leave out --torch-compile\n")
    assert len(error) < 1020 and error.count("\n") == 1


def test_a_failed_compilation_is_not_called_a_lack_of_memory(capsys: pytest.CaptureFixture[str]) -> None:
    """The message of the compiler quotes code, which can contain any word."""
    from torch._inductor.exc import InductorError, InvalidCxxCompiler

    with pytest.raises(SystemExit) as exit_info, exit_on_bad_input():
        raise InvalidCxxCompiler()
    assert exit_info.value.code == 2
    error = capsys.readouterr().err
    assert error.startswith("error: torch.compile failed (No working C++ compiler found")
    remedy = "leave out --torch-compile, or resume with --no-torch-compile"
    assert error.endswith(f"; install a C++ compiler, {remedy}\n") and error.count("\n") == 1
    with pytest.raises(SystemExit), exit_on_bad_input():
        raise InductorError(ValueError("a shape"), None)
    assert capsys.readouterr().err.endswith(f"ValueError: a shape); {remedy}\n")


def test_a_text_after_an_option_says_where_it_belongs(capsys: pytest.CaptureFixture[str]) -> None:
    parser = OneLineParser(prog="command")
    parser.add_argument("text", nargs="*")
    parser.add_argument("--run")
    (text,) = [action for action in parser._actions if action.dest == "text"]
    for words, remedy in (
        (["a", "--run", "x", "b"], "; put the options before all other words"),
        (["--runs"], ""),
        (["a", "b"], ""),
        (["-b"], "; put -- before a text that begins with -"),
    ):
        # With `?`, a second text is one too many even without an option.
        text.nargs = "?" if words == ["a", "b"] else "*"
        with pytest.raises(SystemExit):
            parser.parse_args(words)
        assert capsys.readouterr().err == f"error: unrecognized arguments: {words[-1]}{remedy}; see --help\n"


def test_a_value_with_a_dash_says_how_it_can_be_passed(capsys: pytest.CaptureFixture[str]) -> None:
    parser = OneLineParser(prog="command")
    parser.add_argument("text", nargs="*")
    parser.add_argument("--run")
    with pytest.raises(SystemExit):
        parser.parse_args(["a", "--run", "-x"])
    expected = "expected one argument; before a value that begins with -, put = and no space"
    assert expected in capsys.readouterr().err
    assert parser.parse_args(["a", "--run=-x"]).run == "-x"


@pytest.mark.parametrize("reason", ["can't allocate memory: 9 bytes", "could not create a primitive"])
def test_a_lack_of_memory_has_a_remedy(reason: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_info, exit_on_bad_input():
        raise RuntimeError(reason)
    assert exit_info.value.code == 2
    assert capsys.readouterr().err == "error: out of memory; use a smaller model, batch or text\n"


def test_a_gpu_that_is_too_small_has_a_remedy(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_info, exit_on_bad_input():
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB.")
    assert exit_info.value.code == 2
    error = capsys.readouterr().err
    assert error.startswith("error: the GPU is out of memory; ") and "--gradient-accumulation-steps" in error
    assert error.count("\n") == 1


@pytest.mark.processes
@pytest.mark.skipif(sys.platform == "win32", reason="on Windows, a process has no status for signals")
@pytest.mark.parametrize(("error", "code"), [("KeyboardInterrupt", -signal.SIGINT), ("AssertionError", 1)])
@pytest.mark.long
def test_ctrl_c_after_the_block_gives_no_traceback(error: str, code: int) -> None:
    lines = ["from labml_bert.run.terminal import exit_on_bad_input", "with exit_on_bad_input():", "    pass"]
    words = [sys.executable, "-c", "\n".join([*lines, f"raise {error}"])]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == code
    assert done.stderr.endswith(f"{error}\n") == (code == 1)
    assert bool(done.stderr) == (code == 1)
