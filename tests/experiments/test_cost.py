"""The scaling experiment as a user runs it, with models small enough to take no time."""

import json
import os
import signal
import subprocess
import sys
import types
from contextlib import suppress
from pathlib import Path

import pytest

from experiments.speed import cost

ROOT = Path(__file__).parents[2]


@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch) -> types.ModuleType:
    """
    The script with small models. It is imported by name, so that its worker processes can import it too.
    """
    monkeypatch.setattr(cost, "BASE", {"T": 8, "V": 50, "D": 16, "B": 2})
    monkeypatch.setattr(cost, "SIZES", {"T": [4, 8, 16], "V": [20, 50], "D": [16, 32], "B": [1, 2]})
    return cost


@pytest.mark.parametrize("power", [0.0, 1.0, 2.0, -0.5])
def test_fitting_the_exponent_of_a_power_law(module: types.ModuleType, power: float) -> None:
    xs = [3.0, 4.0, 10.0, 50.0]
    assert module.fit_exponent(xs, [7 * x**power for x in xs]) == pytest.approx(power)


def test_fitting_both_exponents(module: types.ModuleType) -> None:
    points = [{"size": x, "seconds": {"median": max(x, 4.0) ** 2}, "memory": 3.0 * x} for x in (1, 2, 4, 8)]
    exponents = module.fit_exponents(points)
    assert exponents["memory"] == {"all": pytest.approx(1), "last": pytest.approx(1)}
    assert exponents["seconds"]["last"] == pytest.approx(2) and exponents["seconds"]["all"] < 1
    assert set(module.fit_exponents([{**point, "memory": None} for point in points])) == {"seconds"}


@pytest.mark.slow("reads all docstrings of the standard library")
def test_text_of_a_chosen_size(module: types.ModuleType) -> None:
    texts = list(module.repeat_documents(123_456))
    assert sum(map(len, texts)) == 123_456 and len(texts) > 1


@pytest.mark.long
@pytest.mark.processes
def test_from_the_command_to_the_record(
    module: types.ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys
) -> None:
    monkeypatch.chdir(tmp_path)
    small = ["--rounds", "1", "--batches", "3", "--megabytes", "0.1", "--device", "cpu"]
    module.main([*small, "--record", "cost.json"])
    output = capsys.readouterr().out
    assert max(map(len, output.splitlines())) <= 80
    text = Path("cost.json").read_text()
    assert str(tmp_path) not in text
    record = json.loads(text)
    assert record["command"] == "python experiments/speed/cost.py " + " ".join(small)
    assert [one["letter"] for one in record["growth"]] == ["T", "V", "D", "B"]
    for one in record["growth"]:
        assert [point["size"] for point in one["points"]] == module.SIZES[one["letter"]]
        assert all(0 < point["seconds"]["min"] <= point["seconds"]["median"] for point in one["points"])
    rows = record["feeding"]
    assert [(row["characters"], row["pipeline"]) for row in rows] == [(100_000, "pairs"), (100_000, "masked")]
    assert all(row["batch_seconds"] > 0 and row["prepare_seconds"] > 0 for row in rows)
    # A token is several characters long.
    assert all(10_000 < row["tokens"] < 100_000 for row in rows)


SLOW = """
import os, time
from experiments.speed import cost
def slow(*_):
    print(os.getpid(), flush=True)
    time.sleep(600)
if __name__ == "__main__":
    cost.preflight.exit_on_signals()
    cost.measure_drawing = slow
    cost.repeat_documents = lambda characters: ["Some words stand here. And some more there."] * 20
    cost.measure_pipelines([100_000], 1)
"""


def start_slow(folder: Path, **variables: str) -> "subprocess.Popen[str]":
    (folder / "slow.py").write_text(SLOW)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path]), **variables}
    return subprocess.Popen(
        [sys.executable, "slow.py"], cwd=folder, stdout=subprocess.PIPE, text=True, env=environment
    )


@pytest.mark.long
@pytest.mark.processes
def test_a_worker_exits_when_its_parent_is_killed(tmp_path: Path) -> None:
    """A worker that lived on would keep the output pipe open, and whoever reads it would wait forever."""
    process = start_slow(tmp_path)
    assert process.stdout is not None
    worker_pid = int(process.stdout.readline())
    process.kill()
    try:
        process.communicate(timeout=20)
    finally:
        with suppress(ProcessLookupError):
            os.kill(worker_pid, signal.SIGKILL)


@pytest.mark.long
@pytest.mark.skipif(sys.platform == "win32", reason="on Windows, a signal ends a process at once")
@pytest.mark.processes
@pytest.mark.parametrize("name", ["SIGTERM", "SIGHUP"])
def test_a_signal_ends_the_worker_and_deletes_the_temporary_folder(tmp_path: Path, name: str) -> None:
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    with start_slow(tmp_path, TMPDIR=str(scratch)) as process:
        assert process.stdout is not None
        worker_pid = int(process.stdout.readline())
        assert [*scratch.iterdir()]
        process.send_signal(getattr(signal, name))
        assert process.wait(timeout=60) == 128 + getattr(signal, name)
    with pytest.raises(ProcessLookupError):
        os.kill(worker_pid, 0)
    assert not [*scratch.iterdir()]


@pytest.mark.skipif(sys.platform == "win32", reason="on Windows, a signal ends a process at once")
@pytest.mark.processes
@pytest.mark.long
def test_the_command_turns_a_signal_into_an_exit(tmp_path: Path) -> None:
    """Without this, a signal would end the process before it could delete its temporary folder."""
    words = [sys.executable, "-u", cost.__file__]
    with subprocess.Popen(words, cwd=tmp_path, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        while "cost: how time and memory scale" not in process.stdout.readline():
            assert process.poll() is None
        process.terminate()
        process.communicate(timeout=60)
    assert process.returncode == 128 + signal.SIGTERM


BAD_INPUT = {
    "no rounds": (["--rounds", "0"], "rounds is 0; it must be at least 1"),
    "no batches": (["--batches", "0"], "batches is 0; it must be at least 1"),
    "too little text": (["--megabytes", "1", "0.01"], "megabytes is 0.01; it must be at least 0.1"),
    "text that takes a month": (
        ["--megabytes", "1e300"],
        "megabytes is 1e+300; it must be at least 0.1 and at most",
    ),
    "half an option": (["--rec", "r.json"], "unrecognized arguments: --rec r.json"),
    "NaN megabytes": (["--megabytes", "nan"], "megabytes is nan"),
    "record in a missing folder": (["--record", "no/r.json"], "cannot write 'no/r.json'"),
    "GPU that does not exist": (["--device", "cuda:99"], "device 'cuda:99' is not available"),
}


@pytest.mark.parametrize("case", BAD_INPUT)
def test_bad_input_gets_one_line_and_exit_code_2(
    case: str, module: types.ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys
) -> None:
    arguments, words = BAD_INPUT[case]
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as exit_info:
        module.main(arguments)
    assert exit_info.value.code == 2
    error = capsys.readouterr().err
    assert error.startswith("error: ") and error.count("\n") == 1 and words in error
    assert [*tmp_path.iterdir()] == []
