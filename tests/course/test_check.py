"""Whatever a learner's code does, there is one clear answer, and no file is lost."""

import contextlib
import errno
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

import pytest
import torch

from labml_bert.course import check
from labml_bert.course import folder as folders
from labml_bert.course.check import LIMIT, Report, check_folder, next_step, read_problem, wait_for
from labml_bert.course.folder import Progress, put_back, read_progress, write_exercises, write_progress
from labml_bert.course.run_probes import run_probe
from labml_bert.course.source import read_reference, restore_others
from labml_bert.course.step import Verdict
from labml_bert.course.track import STEPS
from labml_bert.files import lock
from tests.support.runs import ROOT, wait_until

FIRST = STEPS[0]
EMPTY = f'raise NotImplementedError("write this: {FIRST.task}")'
SOLUTION = 'return F.cross_entropy(logits.float(), labels, reduction="sum") / (\n' + (
    "        (labels != -100).sum() if num_items_in_batch is None else num_items_in_batch\n    ).clamp(min=1)"
)


@pytest.fixture()
def course(tmp_path: Path) -> Path:
    write_exercises(tmp_path / "course")
    return tmp_path / "course"


def write(course: Path, body: str) -> str:
    """Puts a body into the first step, and returns the text of the file."""
    path = course / FIRST.file
    text = path.read_text("utf-8")
    assert EMPTY in text
    path.write_text(text.replace(EMPTY, body), "utf-8")
    return path.read_text("utf-8")


def test_the_page_says_how_long_a_step_may_take() -> None:
    page = (ROOT / "docs" / "pages" / "course.md").read_text("utf-8")
    assert f"for at most {LIMIT:g} seconds per step" in " ".join(page.split())


def verdict(report: Report) -> Verdict:
    assert report.verdicts
    return report.verdicts[-1]


@pytest.mark.processes
def test_a_solution_passes_and_the_next_step_is_next(course: Path) -> None:
    write(course, SOLUTION)
    report = check_folder(course)
    assert [(v.step, v.passed) for v in report.verdicts] == [(FIRST.name, True), (STEPS[1].name, False)]
    assert report.next_step == STEPS[1] == next_step(course)
    assert verdict(report).mistake == "not written"
    # The second time, only the step without a passing result is checked again.
    assert [v.step for v in check_folder(course).verdicts] == [STEPS[1].name]


@pytest.mark.processes
def test_all_steps_pass_in_the_original_files(course: Path) -> None:
    for file in folders.FILES:
        (course / file).write_text(read_reference(file), "utf-8")
    report = check_folder(course)
    assert [v.step for v in report.verdicts] == [step.name for step in STEPS]
    assert all(v.passed for v in report.verdicts)
    assert report.next_step is None is next_step(course)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("raise SystemExit(3)", "Your code raises SystemExit."),
        ("raise KeyboardInterrupt", "Your code raises KeyboardInterrupt."),
        ("return masked_lm_loss(logits, labels)", "Your code raises RecursionError."),
        ("return None", "Something is wrong with the loss of a uniform guess among 100 tokens. Does"),
        ("pass", "Something is wrong with the loss of a uniform guess among 100 tokens. Does"),
        ("return undefined", "Your code raises NameError."),
        ("return 0 * logits", "Something is wrong with the loss of a uniform guess among 100 tokens."),
        ("return F.cross_entropy(logits.float(), labels)", "Without any label, your loss is 0/0"),
    ],
)
def test_one_clear_answer(course: Path, body: str, message: str) -> None:
    answer = run_probe(FIRST, restore_others(write(course, body), FIRST, STEPS))
    assert not answer.passed
    assert answer.message.startswith(message), answer


def test_other_code_calls_a_function_by_the_names_of_its_parameters() -> None:
    (step,) = [step for step in STEPS if step.function == "parameter_groups"]
    text = read_reference(step.file)
    assert read_problem(step, text) is None
    for wrong in (text.replace("exclude", "others"), text.replace("nn.Parameter] = ()", "nn.Parameter]")):
        problem = read_problem(step, wrong)
        assert problem is not None and problem.message.startswith("The parameters must keep their names")


@pytest.mark.parametrize(
    "setting", ["set_default_dtype(torch.float64)", 'set_default_device("meta")', "set_grad_enabled(False)"]
)
def test_a_setting_in_the_file_changes_no_check(course: Path, setting: str) -> None:
    text = write(course, SOLUTION).replace("import torch\n", f"import torch\n\ntorch.{setting}\n", 1)
    assert setting in text
    try:
        assert run_probe(FIRST, restore_others(text, FIRST, STEPS)).passed
    finally:
        torch.set_default_dtype(torch.float32)
        torch.set_default_device(None)
        torch.set_grad_enabled(True)


@pytest.mark.long
@pytest.mark.processes
@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("return (", "mlm.py isn't valid Python."),
        ("import os; os._exit(0)", "Your code ended the process (exit code 0)"),
        ("input()", "Your code raises EOFError. A check has no keyboard; use print."),
    ],
)
def test_one_clear_answer_from_the_process(course: Path, body: str, message: str) -> None:
    before = write(course, body)
    report = check_folder(course)
    assert len(report.verdicts) == 1
    assert verdict(report).message.startswith(message), verdict(report)
    assert (course / FIRST.file).read_text("utf-8") == before
    assert report.next_step == FIRST


def test_an_error_names_the_line(course: Path) -> None:
    text = write(course, "x = 1\n    return undefined")
    answer = run_probe(FIRST, restore_others(text, FIRST, STEPS))
    assert answer.line is not None
    assert text.splitlines()[answer.line - 1] == "    return undefined"
    assert answer.details == (
        "name 'undefined' is not defined",
        "while checking the loss of a uniform guess among 100 tokens",
    )


@pytest.mark.long
@pytest.mark.processes
@pytest.mark.parametrize("loop", ["while True:\n        pass", "while True:\n        print('x' * 99)"])
def test_a_loop_without_an_end_is_stopped_and_its_line_named(course: Path, loop: str) -> None:
    text = write(course, loop)
    report = check_folder(course, limit=1.0)
    assert verdict(report).message.startswith("Your code was still running after 1 seconds.")
    line = verdict(report).line
    assert line is not None and text.splitlines()[line - 1].strip() in (
        "while True:",
        "pass",
        "print('x' * 99)",
    )
    assert len(report.output) <= 2000


@pytest.mark.long
@pytest.mark.processes
def test_only_the_start_of_an_endless_output_is_kept(
    course: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither the disk nor the memory fills up."""
    (tmp_path / "tmp").mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
    monkeypatch.setattr(tempfile, "tempdir", None)
    sizes: list[int] = []
    is_over = threading.Event()

    def watch() -> None:
        while not is_over.wait(0.1):
            sizes.append(sum(file.stat().st_size for file in (tmp_path / "tmp").rglob("*") if file.is_file()))

    watcher = threading.Thread(target=watch)
    watcher.start()
    write(course, "while True:\n        print('x' * 1_000_000)")
    report = check_folder(course, limit=2.0)
    is_over.set()
    watcher.join()
    assert verdict(report).message.startswith("Your code was still running") and report.output == "x" * 2000
    assert 0 < max(sizes) < 1_000_000


@pytest.mark.long
@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no groups of processes")
@pytest.mark.processes
def test_a_signal_to_all_processes_reaches_only_the_learners_code(course: Path) -> None:
    write(course, "import os, signal\n    os.kill(0, signal.SIGTERM)")
    message = verdict(check_folder(course)).message
    assert message.startswith("Your code ended the process (exit code -15)")


@pytest.mark.long
@pytest.mark.skipif(not hasattr(os, "fork"), reason="Windows has no fork")
@pytest.mark.processes
def test_a_copy_of_the_process_writes_no_verdict(course: Path) -> None:
    write(
        course,
        "import os\n    if not hasattr(os, 'copy'):\n        os.copy = os.fork()\n"
        f"        if os.copy: os.waitpid(os.copy, 0)\n    {SOLUTION}",
    )
    assert [v.step for v in check_folder(course).verdicts] == [FIRST.name, STEPS[1].name]


@pytest.mark.long
@pytest.mark.skipif(not hasattr(os, "fork"), reason="Windows has no fork")
@pytest.mark.processes
def test_processes_that_the_code_starts_are_killed(course: Path, tmp_path: Path) -> None:
    """A copy of the process holds a lock as long as it lives."""
    write(
        course,
        "import os, pathlib, time\n    from labml_bert.files import lock\n"
        f"    folder = pathlib.Path({str(tmp_path)!r})\n"
        "    if os.fork() == 0:\n        held = lock(folder)\n        (folder / 'locked').touch()\n"
        "        time.sleep(1000)\n    while not (folder / 'locked').exists(): time.sleep(0.01)",
    )
    assert not verdict(check_folder(course)).passed

    def is_free() -> bool:
        with contextlib.suppress(BlockingIOError), lock(tmp_path):
            return True
        return False

    wait_until(is_free)


@pytest.mark.processes
def test_after_an_update_of_the_checks_all_steps_are_checked_again(
    course: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(course, SOLUTION)
    assert check_folder(course).verdicts[0].passed
    checks = folders.read_checks()
    # The probes, the mistakes that we know, and the originals.
    for path in (*(ROOT / "labml_bert" / "course").rglob("*.py"), ROOT / "labml_bert" / "mlm.py"):
        assert path.read_text("utf-8") in checks
    folders.fingerprint.cache_clear()
    monkeypatch.setattr(folders, "read_checks", lambda: checks + "# updated")
    assert next_step(course) == FIRST
    folders.fingerprint.cache_clear()


@pytest.mark.processes
def test_a_full_disk_is_not_the_learners_mistake(course: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # On a full disk, the verdict can't be written either. A folder in its place has the same effect.
    write(course, "import os\n    os.mkdir('../verdicts.jsonl')")

    def write_bytes(path: Path, data: bytes) -> int:
        raise OSError(errno.ENOSPC, "No space left on device", str(path))

    monkeypatch.setattr(Path, "write_bytes", write_bytes)
    with pytest.raises(OSError, match="No space left"):
        check_folder(course)


@pytest.mark.skipif(sys.platform == "win32", reason="on Windows, a signal ends a process at once")
@pytest.mark.processes
@pytest.mark.parametrize("name", ["SIGTERM", "SIGHUP"])
def test_a_signal_ends_a_check_and_the_learners_code(course: Path, tmp_path: Path, name: str) -> None:
    scratch, locks = tmp_path / "scratch", tmp_path / "locks"
    scratch.mkdir()
    locks.mkdir()
    write(
        course,
        "import pathlib, time\n    from labml_bert.files import lock\n"
        f"    folder = pathlib.Path({str(locks)!r})\n    held = lock(folder)\n"
        "    (folder / 'locked').touch()\n    time.sleep(25)",
    )
    words = [sys.executable, "-m", "labml_bert.course", "check", "--folder", str(course)]
    with subprocess.Popen(
        words, env={**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": str(scratch)}
    ) as process:
        wait_until((locks / "locked").exists)
        process.send_signal(getattr(signal, name))
        assert process.wait(timeout=60) == 128 + getattr(signal, name)
    assert not [*scratch.iterdir()]
    with lock(locks):
        pass


@pytest.mark.long
@pytest.mark.processes
def test_what_the_code_writes_to_any_open_file_is_no_verdict(course: Path) -> None:
    write(
        course,
        "import os\n    for i in range(3, 20):\n        try: os.write(i, b'x')\n"
        "        except OSError: pass\n    raise ValueError('mine')",
    )
    assert verdict(check_folder(course)).message == "Your code raises ValueError."


@pytest.mark.long
@pytest.mark.processes
@pytest.mark.parametrize("line", ["[]", "{}", "x"])
def test_a_line_that_the_code_writes_is_no_verdict(course: Path, line: str) -> None:
    body = f"import os, pathlib\n    pathlib.Path('../verdicts.jsonl').write_text({line + chr(10)!r})\n"
    write(course, body + "    os._exit(3)")
    assert verdict(check_folder(course)).message.startswith("Your code ended the process (exit code 3)")


@pytest.mark.long
@pytest.mark.processes
def test_an_exception_whose_message_cannot_be_made(course: Path) -> None:
    write(course, "class Odd(Exception):\n        def __str__(self): raise SystemExit\n    raise Odd")
    assert verdict(check_folder(course)).message == "Your code raises Odd."


@pytest.mark.long
@pytest.mark.processes
@pytest.mark.parametrize("error", ["ValueError('odd')", "SystemExit"])
def test_a_result_that_cannot_be_printed(course: Path, error: str) -> None:
    write(course, f"class Odd:\n        def __repr__(self): raise {error}\n    return Odd()")
    message = f"The check can't compare or print your result ({error.partition('(')[0]})."
    assert verdict(check_folder(course)).message == message


@pytest.mark.long
@pytest.mark.processes
def test_threads_that_the_code_starts_are_not_waited_for(course: Path) -> None:
    """The check takes a few seconds. Python would wait for the thread, and the check for Python."""
    write(
        course,
        "import threading, time\n    threading.Thread(target=time.sleep, args=(10_000,)).start()\n"
        "    return None",
    )
    report = check_folder(course, limit=100.0)
    assert "Does your function return its result?" in verdict(report).message


@pytest.mark.long
@pytest.mark.processes
def test_what_the_code_prints_is_kept_apart(course: Path) -> None:
    write(course, "print('here', labels.shape)\n    return None")
    report = check_folder(course)
    assert not verdict(report).passed
    assert report.output.startswith("here torch.Size([4])")


@pytest.mark.long
@pytest.mark.processes
@pytest.mark.parametrize("action", ["unlink()", "write_text('')"])
def test_the_text_of_a_file_that_the_code_deletes_is_kept(course: Path, action: str) -> None:
    path = course / FIRST.file
    before = write(course, f"import pathlib; pathlib.Path({str(path)!r}).{action}")
    report = check_folder(course)
    name = FIRST.file if action == "unlink()" else f"{FIRST.file}.before-1"
    assert report.restored == {FIRST.file: name}
    assert (course / name).read_text("utf-8") == before


def test_a_file_that_is_being_saved_is_not_replaced(tmp_path: Path) -> None:
    """A shell empties a file before a program writes to it."""
    (tmp_path / "mlm.py").touch()
    (tmp_path / "mlm.py.before-1").write_text("of another check")
    (tmp_path / "bert.py").write_text("new")
    texts = {"mlm.py": "old", "bert.py": "old", "data/windows.py": "old", "nsp.py": ""}
    with open(tmp_path / "mlm.py", "a") as file:
        written = put_back(tmp_path, texts)
        file.write("new")
    assert written == {"mlm.py": "mlm.py.before-2", "data/windows.py": "data/windows.py"}
    contents = {path.name: path.read_text() for path in tmp_path.rglob("*.*")}
    assert contents == {
        "mlm.py": "new",
        "mlm.py.before-1": "of another check",
        "mlm.py.before-2": "old",
        "bert.py": "new",
        "windows.py": "old",
    }


@pytest.mark.processes
def test_code_that_deletes_its_own_module_or_folder_deletes_nothing(course: Path) -> None:
    before = write(course, "import os, shutil; shutil.rmtree(os.getcwd()); os.remove(__file__)")
    assert not verdict(check_folder(course)).passed
    assert (course / FIRST.file).read_text("utf-8") == before


@pytest.mark.long
@pytest.mark.processes
def test_an_error_at_the_top_of_the_file(course: Path) -> None:
    before = write(course, "pass")
    (course / FIRST.file).write_text(f"{before}\nimport nothing_like_this\n", "utf-8")
    answer = verdict(check_folder(course))
    assert answer.message == "The file can't be imported."
    assert answer.line == len(before.splitlines()) + 2


def test_a_function_that_is_gone(course: Path) -> None:
    path = course / FIRST.file
    path.write_text(path.read_text("utf-8").replace("def masked_accuracy", "def accuracy"), "utf-8")
    answer = verdict(check_folder(course, only=STEPS[1]))
    assert answer.message.startswith("In mlm.py, there is no function masked_accuracy any more.")


@pytest.mark.long
@pytest.mark.processes
def test_the_learner_may_add_functions_and_imports(course: Path) -> None:
    path = course / FIRST.file
    write(course, "return helper(logits, labels, num_items_in_batch)")
    text = path.read_text("utf-8").replace(
        "def masked_lm_loss",
        "from functools import partial\n\n"
        "def helper(logits, labels, num_items_in_batch):\n"
        f"    summed = partial(F.cross_entropy, reduction='sum')\n    {SOLUTION}\n\n\ndef masked_lm_loss",
    )
    path.write_text(text, "utf-8")
    assert check_folder(course).verdicts[0].passed


@pytest.mark.long
@pytest.mark.processes
def test_later_changes_are_checked_again(course: Path) -> None:
    text = write(course, SOLUTION)
    assert check_folder(course).verdicts[0].passed
    (course / FIRST.file).write_text(text.replace(".clamp(min=1)", ""), "utf-8")
    assert next_step(course) == FIRST
    assert verdict(check_folder(course)).mistake == "0/0 without labels"


@pytest.mark.processes
def test_only_one_step_is_checked_on_request(course: Path) -> None:
    write(course, "pass")
    report = check_folder(course, only=STEPS[3])
    assert [v.step for v in report.verdicts] == [STEPS[3].name]


def test_a_hint_during_a_check_is_counted(course: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def run(*_: object) -> tuple[list[Verdict], str]:
        write_progress(course, Progress({}, {FIRST.name: 2}))
        return [Verdict(FIRST.name, True)], ""

    write(course, SOLUTION)
    monkeypatch.setattr(check, "run_in_process", run)
    check_folder(course)
    progress = read_progress(course)
    assert progress.hints == {FIRST.name: 2} and [*progress.passed] == [FIRST.name]


@pytest.mark.parametrize("content", ["", "{", "[]", '{"passed": 3, "hints": {}}', "\x00", "[" * 100_000])
def test_damaged_progress_counts_as_none(course: Path, content: str) -> None:
    (course / "progress.json").write_text(content, "utf-8")
    assert read_progress(course) == Progress()


@pytest.mark.long
@pytest.mark.processes
def test_lost_progress_is_found_out_again(course: Path) -> None:
    write(course, SOLUTION)
    (course / "progress.json").write_text("{", "utf-8")
    assert next_step(course) == STEPS[1]
    assert list(read_progress(course).passed) == [FIRST.name]


@pytest.mark.long
@pytest.mark.processes
def test_progress_that_cannot_be_written_costs_only_time(course: Path) -> None:
    write(course, SOLUTION)
    # A file can't replace a folder of its name. (Permissions wouldn't stop a test that runs as root.)
    (course / "progress.json").mkdir()
    report = check_folder(course)
    assert report.verdicts[0].passed
    assert not report.is_saved
    assert sorted(path.name for path in course.iterdir() if path.name.startswith("progress")) == [
        "progress.json"
    ]


@pytest.mark.long
@pytest.mark.processes
def test_a_read_only_folder(remountable_disk: Path) -> None:
    course = remountable_disk / "course"
    write_exercises(course)
    write(course, SOLUTION)
    subprocess.run(["mount", "-o", "remount,ro", str(remountable_disk)], check=True)
    report = check_folder(course)
    assert report.verdicts[0].passed and not report.is_saved
    assert report.next_step == STEPS[1]
    with pytest.raises(OSError, match="Read-only"):
        write_exercises(remountable_disk / "other")


def test_progress_is_written_whole(course: Path) -> None:
    progress = Progress({"a": "1"}, {"a": 2})
    assert write_progress(course, progress)
    assert read_progress(course) == progress
    assert json.loads((course / "progress.json").read_text("utf-8"))["hints"] == {"a": 2}


@pytest.mark.processes
def test_a_process_that_has_written_its_traceback_is_not_waited_for(tmp_path: Path) -> None:
    trace = tmp_path / "trace.txt"
    code = f"open({str(trace)!r}, 'w').write('line 3'); import time; time.sleep(600)"
    process = subprocess.Popen([sys.executable, "-c", code])
    assert wait_for(process, trace, 300) is None
    assert process.poll() is not None
    assert wait_for(subprocess.Popen([sys.executable, "-c", "raise SystemExit(7)"]), trace, 300) == 7
