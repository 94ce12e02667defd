"""`make gpu` on a machine without a GPU: what it refuses, and that all parts run and write their records."""

import json
import os
import re
import runpy
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from docs.figures.records import read_records
from docs.figures.runs import recorded_runs
from docs.literate.names import read_source
from docs.project import ROOT
from labml_bert.run.fingerprint import fingerprints_of
from tests.support.runs import wait_until
from tests.support.tiny_run import assert_fails

SCRIPT = ROOT / "experiments" / "speed" / "gpu.py"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "this machine has no CUDA GPU that PyTorch can use"),
        (["--device", "cuda:99"], "device 'cuda:99' is not available"),
        (["--device", "cpu", "--minutes", "0"], "minutes is 0; it must be above 0"),
        (["--device", "cpu", "--record", "missing"], "cannot write 'missing/gpu.json'"),
        (
            ["--device", "cpu", "--quick"],
            "the records of --quick would replace those in docs/runs; add --record",
        ),
    ],
)
def test_bad_input_is_one_line(
    arguments: list[str],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert_fails(runpy.run_path(str(SCRIPT))["main"], arguments, message, capsys)


@pytest.mark.long
@pytest.mark.skipif(sys.platform == "win32", reason="on Windows, a signal ends a process at once")
@pytest.mark.processes
@pytest.mark.parametrize("name", ["SIGTERM", "SIGHUP"])
def test_a_signal_ends_the_part_that_is_running(tmp_path: Path, name: str) -> None:
    # The first part writes its process id and waits.
    code = (
        f"import runpy, sys; sys.argv[1:] = ['--quick', '--device', 'cpu', '--record', {str(tmp_path)!r}]\n"
        "import subprocess; run = subprocess.run\n"
        "wait = 'import os, time; print(os.getpid(), flush=True); time.sleep(600)'\n"
        "def run_waiting(words, **named):\n"
        "    is_part = words[0] == sys.executable\n"
        "    return run([sys.executable, '-c', wait] if is_part else words, **named)\n"
        "subprocess.run = run_waiting\n"
        f"runpy.run_path({str(SCRIPT)!r}, run_name='__main__')"
    )
    output = tmp_path / "output"
    with output.open("w") as stdout, subprocess.Popen([sys.executable, "-c", code], stdout=stdout) as process:
        wait_until(lambda: re.search(r"^\d+$", output.read_text(), re.MULTILINE))
        process.send_signal(getattr(signal, name))
        assert process.wait(timeout=60) == 128 + getattr(signal, name)
    (part,) = re.findall(r"^\d+$", output.read_text(), re.MULTILINE)
    with pytest.raises(ProcessLookupError):
        os.kill(int(part), 0)
    assert [*tmp_path.iterdir()] == [output]


@pytest.mark.long
@pytest.mark.processes
@pytest.mark.slow(reason="it trains two models, and times a third")
def test_all_parts_run_and_write_records(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    main = runpy.run_path(str(SCRIPT))["main"]
    with pytest.raises(SystemExit) as exit_info:
        main(["--quick", "--device", "cpu", "--record", str(tmp_path)])
    out, errors = capfd.readouterr()
    assert exit_info.value.code == 0, out + errors
    record = json.loads((tmp_path / "gpu.json").read_text())
    assert [part["name"] for part in record["parts"]] == [
        "tests",
        "speed",
        "modern",
        "mlm_tiny",
        "mlm_modern",
    ]
    assert all(part["succeeded"] and part["seconds"] > 0 for part in record["parts"])
    assert fingerprints_of(record) == {}
    records = read_records(tmp_path)
    assert [*records] == ["gpu", "mlm_modern-gpu", "mlm_tiny-gpu", "speed-gpu", "speed_modern-gpu"]
    for name in ("mlm_tiny-gpu", "mlm_modern-gpu"):
        assert records[name].data["result"]["steps"] == 4 and records[name].data["fingerprints"]
    page = recorded_runs(read_source(ROOT, "experiments/speed/gpu.py"), records)
    assert "| mlm&#95;tiny | " in page and page.count("| yes |") == 5


@pytest.mark.processes
def test_a_part_that_fails_is_named_and_the_rest_still_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    main = runpy.run_path(str(SCRIPT))["main"]
    parts = {"first": ["-c", "raise SystemExit(3)"], "second": ["-c", ""]}
    monkeypatch.setitem(main.__globals__, "list_parts", lambda *_: parts)
    with pytest.raises(SystemExit) as exit_info:
        main(["--device", "cpu", "--record", str(tmp_path)])
    assert exit_info.value.code == 1
    out = capsys.readouterr().out
    assert "first       failed after" in out and "second      succeeded after" in out
    assert json.loads((tmp_path / "gpu.json").read_text())["parts"][0]["succeeded"] is False
