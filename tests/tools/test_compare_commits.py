"""The tool that compares two commits, tested with an experiment that does little more than import torch."""

import json
import subprocess
import tomllib
from pathlib import Path

import pytest

from tests.tools import compare_commits
from tests.tools.commit_runs import Command, Outcome, as_toml, numbers, shrink_claims

# The tests compare runs of a script, which are separate processes.
pytestmark = pytest.mark.processes

# Like the experiments, it checks whether torch is installed before it imports it.
EXPERIMENT = """
import argparse, json, pathlib, random
from importlib.util import find_spec
assert find_spec("torch") is not None
import torch

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int)
parser.add_argument("--record", type=pathlib.Path)
parser.add_argument("--runs", type=pathlib.Path)
parser.add_argument("--resume", type=pathlib.Path)
parser.add_argument("--checkpoint-seconds")
options = parser.parse_args()
run = options.resume or options.runs
torch.manual_seed(0)
model = torch.nn.Linear(3, 1)
optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
first, generator = 0, torch.Generator().manual_seed(1)
if options.resume:
    saved = torch.load(run / "state.pt")
    options.steps, first = saved["steps"], saved["step"]
    model.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])
    generator.set_state(saved["generator"])
for step in range(first, options.steps):
    x = torch.randn(4, 3, generator=generator)
    loss = (model(x) - x.sum(1, keepdim=True)).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    if run and step == 1:
        run.mkdir(exist_ok=True)
        state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
        state |= {"step": 2, "steps": options.steps, "generator": generator.get_state()}
        torch.save(state, run / "state.pt")
        header = json.dumps({"__metadata__": {"about": json.dumps({"step": 2}), "sha256": "0"}}).encode()
        (run / "checkpoint.safetensors").write_bytes(len(header).to_bytes(8, "little") + header)
record = {"result": {"loss": loss.item(), "seconds": random.random()}, "date": random.random()}
options.record.write_text(json.dumps(record))
"""
COMMANDS = [
    Command("whole", "little", "--steps 5"),
    Command("killed", "little", "--steps 5", kill_after=3),
]


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project with one experiment and one commit, which the tool treats as its own."""
    root = tmp_path / "repository"
    (root / "experiments").mkdir(parents=True)
    (root / "experiments" / "little.py").write_text(EXPERIMENT)
    for arguments in (
        ["init", "--quiet"],
        ["add", "--all"],
        ["-c", "user.name=A", "-c", "user.email=a@example.org", "commit", "--quiet", "-m", "One"],
    ):
        subprocess.run(["git", *arguments], cwd=root, check=True)
    for name in ("GIT_AUTHOR_NAME", "GIT_COMMITTER_NAME"):
        monkeypatch.setenv(name, "A")
    for name in ("GIT_AUTHOR_EMAIL", "GIT_COMMITTER_EMAIL"):
        monkeypatch.setenv(name, "a@example.org")
    monkeypatch.setattr(compare_commits, "ROOT", root)
    monkeypatch.setattr(compare_commits, "all_commands", lambda: COMMANDS)
    return root


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder for cached outcomes, shared by the tests, so that the base runs only once."""
    return tmp_path_factory.mktemp("results")


def compare(results: Path, *arguments: str) -> int:
    """Runs the tool and returns its exit code."""
    with pytest.raises(SystemExit) as exit_info:
        compare_commits.main([*arguments, "--results", str(results)])
    return int(exit_info.value.code or 0)


@pytest.mark.long
def test_a_data_generator_that_is_not_restored_is_detected_after_a_resume(
    repository: Path, results: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # The changed file is in a new folder, untracked by git.
    (repository / "experiments" / "little.py").unlink()
    (repository / "experiments" / "moved").mkdir()
    forgetful = EXPERIMENT.replace("generator.set_state(", "str(")
    (repository / "experiments" / "moved" / "little.py").write_text(forgetful)
    assert compare(results, "HEAD") == 1
    same, different, counts = capsys.readouterr().out.splitlines()
    assert same.split() == ["same", "whole", "5", "steps,", "1", "numbers"]
    # Killing and resuming the base commit finds no problem.
    assert (
        "head: rank 0, resumed, is not a suffix of the uninterrupted run" in different
        and "base" not in different
    )
    assert counts == "1 same, 0 intended, 1 DIFFERENT"
    # The checkouts are gone, and the index hasn't changed.
    for command, lines in (["worktree", "list"], 1), (["diff", "--cached"], 0):
        process = subprocess.run(["git", *command], cwd=repository, stdout=subprocess.PIPE, check=True)
        assert len(process.stdout.splitlines()) == lines
    for path in results.glob("*.json"):
        outcome = json.loads(path.read_text())
        assert [line.split()[0] for line in outcome["logs"]["rank 0"]] == ["loss", "weights", "moments"] * 5
        assert outcome["numbers"].keys() == {"record.json/result/loss"}
        last_loss = float.fromhex(outcome["logs"]["rank 0"][-3].split()[1])
        assert outcome["numbers"]["record.json/result/loss"] == last_loss


@pytest.mark.long
def test_another_learning_rate_changes_the_first_weights(
    repository: Path, results: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    script = repository / "experiments" / "little.py"
    script.write_text(EXPERIMENT.replace("lr=0.1", "lr=0.01"))
    assert compare(results, "HEAD", "--only", "whole") == 1
    assert "DIFFERENT  whole                              rank 0, step 1: weights" in capsys.readouterr().out
    monkeypatch.setattr(compare_commits, "INTENDED", {"whole": "a smaller learning rate"})
    assert compare(results, "HEAD", "--only", "whole") == 0
    assert "listed as intended: a smaller learning rate" in capsys.readouterr().out


@pytest.mark.long
def test_a_failed_command_counts_as_a_difference(
    repository: Path, results: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (repository / "experiments" / "little.py").write_text("raise SystemExit('no longer')")
    assert compare(results, "HEAD", "--only", "whole") == 1
    out = capsys.readouterr().out
    assert "head: exit code 1, 0 processes trained, 0 records: no longer" in out


LOG = ["loss 0x1p+1", "weights a", "moments b", "loss 0x1p+0", "weights c", "moments d"]


@pytest.mark.parametrize(
    ("index", "line", "expected"),
    [
        (0, "loss 0x1.8p+1", "step 1: loss 2.0 (base), loss 3.0 (head)"),
        (3, "loss nan", "step 2: loss 1.0 (base), loss nan (head)"),
        (4, "weights e", "step 2: weights c (base), weights e (head)"),
        (5, "moments e", "step 2: moments d (base), moments e (head)"),
    ],
)
def test_the_first_different_line_is_reported(index: int, line: str, expected: str) -> None:
    other = [*LOG[:index], line, *LOG[index + 1 :]]
    assert compare_commits.different_step(LOG, other) == expected
    assert (
        compare_commits.difference(Outcome({"rank 0": LOG}, {}), Outcome({"rank 0": other}, {})) is not None
    )


def test_logs_with_different_lengths_or_processes_differ() -> None:
    assert compare_commits.different_step(LOG, LOG) is None
    assert compare_commits.different_step(LOG, LOG[:3]) == "step 2: loss 1.0 (base), nothing (head)"
    assert compare_commits.different_step(LOG[:3], LOG) == "step 2: nothing (base), loss 1.0 (head)"
    one_process, two_processes = Outcome({"rank 0": LOG}, {}), Outcome({"rank 0": LOG, "rank 1": LOG}, {})
    assert (
        compare_commits.difference(one_process, two_processes)
        == "processes that trained: rank 0 (base), rank 0, rank 1 (head)"
    )
    assert compare_commits.difference(two_processes, two_processes) is None


def test_fingerprints_are_ignored() -> None:
    fingerprint = ["loss 0x1p+3", "loss 0x1p+3", "weights x", "moments y"]
    fingerprint_numbers = {"record.json/fingerprints/0/losses/0": 16.0, "record.json/fingerprints/0/steps": 1}
    evaluation = {"record.json/result/loss": 1.0}
    base = Outcome({"rank 0": LOG, "rank 1": LOG}, evaluation)
    head = Outcome({"rank 0": LOG + fingerprint, "rank 1": LOG}, evaluation | fingerprint_numbers)
    assert compare_commits.difference(base, head) is None
    assert compare_commits.difference(head, base) is None
    head = Outcome({"rank 0": LOG[:3] + fingerprint, "rank 1": LOG}, evaluation | fingerprint_numbers)
    assert compare_commits.difference(base, head) == "rank 0, step 2: loss 1.0 (base), nothing (head)"


def test_times_are_not_compared() -> None:
    record = {
        "date": "2020-01-01",
        "configuration": {"steps": 5},
        "history": {"loss": [[1, 2.0]], "valid.loss": [[5, 1.5]]},
        "result": {"loss": 1.5, "wall_seconds": 3.0, "failed": None},
        "table": [{"arm": "a", "core_seconds": 1.0, "curve": [[0, 2.5]]}],
        "checkpoints": [{"file": "a.bin", "sha256": "abc"}],
    }
    assert dict(numbers(record)) == {
        "history/valid.loss/0/0": 5,
        "history/valid.loss/0/1": 1.5,
        "result/loss": 1.5,
        "result/failed": None,
        "table/0/curve/0/0": 0,
        "table/0/curve/0/1": 2.5,
        "checkpoints/0/sha256": "abc",
    }


def test_a_number_may_be_new_or_renamed_but_not_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    different = compare_commits.different_number
    assert different({"a/loss": 1.0}, {"a/loss": 1.0, "a/new": 2}) is None
    assert different({"a/loss": float("nan")}, {"a/loss": float("nan")}) is None
    assert different({"a/loss": 1.0}, {}) == "evaluation a/loss: 1.0 (base), nothing (head)"
    assert different({"a/loss": 1.0}, {"a/loss": 1.0000000000000002}) is not None
    monkeypatch.setattr(compare_commits, "RENAMED", {"floors": "baselines"})
    assert different({"a/floors/0": 1.0}, {"a/baselines/0": 1.0}) is None


def test_claims_are_reduced(tmp_path: Path) -> None:
    claim = {
        "name": "a claim",
        "seeds": 5,
        "scores": ["package"],
        "options": {"tokens": 10**7, "schedule": "16"},
        "grid": {"learning_rate": [1e-3, 2e-3, 3e-3], "batch_tokens": [2048, 4096]},
        "arms": {'"quoted" ünd': {"tied": False}, "longer": {"tokens": 10**8}},
    }
    path = tmp_path / "claims.toml"
    path.write_text(f"claim = {as_toml([claim, {'name': 'elsewhere', 'arms': {}}])}", "utf-8")
    shrink_claims(path, tmp_path)
    small, elsewhere = tomllib.loads(path.read_text("utf-8"))["claim"]
    assert elsewhere == {"name": "elsewhere", "arms": {}}
    assert small["seeds"] == 1 and "scores" not in small
    assert small["options"]["tokens"] <= 10**4 and small["options"]["schedule"] == "16"
    assert len(small["grid"]["learning_rate"]) == 2 and len(small["grid"]["batch_tokens"]) == 1
    assert small["arms"]["longer"]["tokens"] == small["options"]["tokens"]
    assert small["arms"]['"quoted" ünd'] == {"tied": False}
