"""How many threads a run uses, and that a resumed run uses as many."""

import copy
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
import torch

from labml_bert.files import read_tensors, write_tensors
from labml_bert.run import experiment
from labml_bert.run import options as run_options
from labml_bert.run.threads import read_threads, thread_counts, time_threads
from labml_bert.stdout import console
from labml_bert.training.checkpoint import CHECKPOINT, load_checkpoint
from tests.support.runs import SMALL, command, main_in_process, run
from tests.support.trainers import new_trainer


@pytest.fixture()
def two_threads() -> Iterator[None]:
    """PyTorch uses two threads, whatever the environment says."""
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize(
    ("most", "counts"), [(1, [1]), (2, [1, 2]), (6, [1, 2, 4, 6]), (16, [1, 2, 4, 8, 16])]
)
def test_powers_of_two_and_the_largest_number_are_tried(most: int, counts: list[int]) -> None:
    assert thread_counts(most) == counts


def test_an_option_that_names_no_threads_is_rejected() -> None:
    with pytest.raises(ValueError, match=r"threads is '1{20}'; it must be auto"):
        read_threads("1" * 5000)  # Python refuses to convert so many digits.
    assert [read_threads(value) for value in ("auto", "default", "1", "16")] == [None, None, 1, 16]
    for value in ("", "0", "-1", "2.5", "all", "1025"):
        with pytest.raises(ValueError, match="must be auto, default or a number from 1 to 1,024"):
            read_threads(value)


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_timing_leaves_everything_as_it_was(two_threads: None, optimizer: str) -> None:
    """Weights and random states don't change, although the timed steps use dropout and draw a batch."""
    trainer, next_batch = new_trainer(None, optimizer=optimizer)
    weights = copy.deepcopy(trainer.model.state_dict())
    states = torch.get_rng_state(), trainer.generator.get_state()
    times = time_threads(trainer.model, trainer.arguments, "float32", trainer.generator, next_batch)
    assert [*times] == [1, 2] and min(times.values()) > 0
    assert torch.get_num_threads() == 2
    assert all(torch.equal(weights[name], value) for name, value in trainer.model.state_dict().items())
    assert torch.equal(torch.get_rng_state(), states[0])
    assert torch.equal(trainer.generator.get_state(), states[1])


@pytest.mark.processes
@pytest.mark.parametrize("fastest", [1, 2])
def test_auto_takes_the_fastest_and_a_resumed_run_keeps_it(
    fastest: int,
    two_threads: None,
    corpus_file: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    in_use: list[int] = []
    log = experiment.Run.log

    def remember(self: experiment.Run, *arguments: object) -> None:
        # The fingerprint of the record is taken silently, and always on one thread.
        if not console.quiet:
            in_use.append(torch.get_num_threads())
        log(self, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(experiment.Run, "log", remember)
    monkeypatch.setattr(
        experiment, "time_threads", lambda *_: {n: 0.512 / (2 if n == fastest else 1) for n in (1, 2)}
    )
    train = partial(main_in_process, monkeypatch, tmp_path)
    options = [*SMALL, "--corpus", corpus_file, "--steps", 8]
    train(*options, "--threads", "auto", "--record", "record.json")
    speeds = {1: "1: 2,000; 2: 1,000", 2: "1: 1,000; 2: 2,000"}
    assert f"threads    {fastest} (tokens per second: {speeds[fastest]})" in capsys.readouterr().out
    assert set(in_use) == {fastest}
    assert json.loads((tmp_path / "record.json").read_text())["hardware"]["threads"] == fastest
    (folder,) = (tmp_path / "logs" / "mlm_tiny").iterdir()
    assert load_checkpoint(folder)[0]["threads"] == fastest
    # The run has reset the number of threads for the next run in this process.
    assert torch.get_num_threads() == 2
    # Resuming a run that has ended trains nothing, so the number stays what it was.
    train("--resume", folder, "--threads", str(3 - fastest), "--record", "again.json")
    assert json.loads((tmp_path / "again.json").read_text())["hardware"]["threads"] == fastest
    assert load_checkpoint(folder)[0]["threads"] == fastest
    rewind(folder)
    monkeypatch.setattr(experiment, "time_threads", lambda *_: pytest.fail("timed again"))
    for arguments, threads in (((), fastest), (("--threads", "auto"), fastest), (("--threads", "1"), 1)):
        in_use.clear()
        train("--resume", folder, *arguments)
        assert set(in_use) == {threads}
        rewind(folder, fastest)


def rewind(folder: Path, threads: int | None = None) -> None:
    """Makes the checkpoint look as if the last two steps hadn't been taken."""
    tensors, metadata = read_tensors(folder / CHECKPOINT)
    state = json.loads(metadata["about"])
    state["step"], state["threads"] = 6, threads or state["threads"]
    write_tensors(folder / CHECKPOINT, tensors, {"about": json.dumps(state)})


def test_other_cores_or_processes_keep_their_threads(two_threads: None, tmp_path: Path) -> None:
    trainer, _ = new_trainer(tmp_path)
    trainer.save()
    for changes, expected in (
        ({}, 1),
        ({"processes": 2}, 2),
        ({"threads": 10_000}, 2),
        ({"threads": None, "processes": None}, 2),
    ):
        tensors, metadata = read_tensors(tmp_path / CHECKPOINT)
        state = json.loads(metadata["about"]) | {"threads": 1, "processes": 1} | changes
        state = {key: value for key, value in state.items() if value is not None}
        write_tensors(tmp_path / CHECKPOINT, tensors, {"about": json.dumps(state)})
        torch.set_num_threads(2)
        trainer.resume()
        assert torch.get_num_threads() == expected, changes


def test_a_note_says_that_there_are_too_few_cores(
    two_threads: None, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another number of threads changes the last bits of the weights."""
    monkeypatch.setattr(run_options.os, "cpu_count", lambda: 2)
    trainer, _ = new_trainer(tmp_path, experiment="mlm_tiny")
    for threads, arguments, has_note in ((2, [], False), (4, ["--threads", "4"], False), (4, [], True)):
        torch.set_num_threads(threads)
        trainer.save()
        words = ["--resume", str(tmp_path), *arguments]
        run_options.parse_options(run_options.RunOptions, "mlm_tiny", "", words)
        lines = capsys.readouterr().err.splitlines()
        assert len(lines) == has_note
        assert all("4 threads, and this machine has 2 cores" in line for line in lines)


@pytest.mark.long
@pytest.mark.processes
def test_a_killed_run_with_auto_resumes_bit_for_bit(corpus_file: Path, tmp_path: Path) -> None:
    """It does so even if PyTorch would now use another number of threads."""
    options = [*SMALL, "--corpus", corpus_file, "--steps", 300, "--hidden-dropout-prob", 0.1]
    killed = subprocess.Popen(
        command("mlm_tiny", *options, "--runs", "killed", "--threads", "auto", "--checkpoint-seconds", 0),
        cwd=tmp_path,
        stdout=subprocess.DEVNULL,
        env={**os.environ, "OMP_NUM_THREADS": "2"},
    )
    while not (checkpoints := list((tmp_path / "killed").glob(f"*/*/{CHECKPOINT}"))):
        assert killed.poll() is None
        time.sleep(0.01)
    time.sleep(1)
    killed.kill()
    killed.wait()
    folder = checkpoints[0].parent
    before = load_checkpoint(folder)[0]
    assert before["step"] < 300 and before["threads"] in (1, 2)
    other = str(3 - before["threads"])
    out = run("mlm_tiny", "--resume", folder, "--threads", "auto", cwd=tmp_path, OMP_NUM_THREADS=other)
    assert "threads    " not in out
    after, tensors = load_checkpoint(folder)
    assert (after["step"], after["threads"]) == (300, before["threads"])
    same = [*options, "--runs", "whole", "--threads", before["threads"]]
    run("mlm_tiny", *same, cwd=tmp_path, OMP_NUM_THREADS=other)
    (whole,) = (tmp_path / "whole" / "mlm_tiny").iterdir()
    expected = load_checkpoint(whole)[1]
    assert [key for key in expected if not torch.equal(tensors[key], expected[key])] == []


@pytest.mark.long
@pytest.mark.processes
def test_several_processes_agree_on_the_threads(corpus_file: Path, tmp_path: Path) -> None:
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2"]
    arguments = command("mlm_tiny", *SMALL, "--corpus", corpus_file, "--steps", 4, "--threads", "auto")[1:]
    process = subprocess.run(
        [sys.executable, *launcher, *arguments],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "OMP_NUM_THREADS": "2"},
    )
    assert process.returncode == 0, process.stderr
    (threads,) = re.findall(r"threads    ([12]) \(tokens per second: 1: [\d,]+; 2: [\d,]+\)", process.stdout)
    (folder,) = (tmp_path / "logs" / "mlm_tiny").iterdir()
    state = load_checkpoint(folder)[0]
    assert (state["threads"], state["processes"]) == (int(threads), 2)
