"""A record replaces only other records."""

import errno
import json
import os
import subprocess
from pathlib import Path

import pytest

from labml_bert.checksums import parse_sealed
from labml_bert.files import partial_path
from labml_bert.run import record as record_module
from labml_bert.run.record import check_record, last_seen, origin, recorded_experiment, write_record

RUNS = Path(__file__).parents[2] / "docs" / "runs"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "the cat sees the dog\n",
        "{}",
        '{"experiment": "mlm_tiny"}',
        '{"text": "a line of a corpus"}\n' * 3,
        json.dumps({"model": {}, "experiment": "mlm_tiny", "command": "python x.py"}),
    ],
)
def test_no_other_file_is_replaced(text: str, tmp_path: Path) -> None:
    path = tmp_path / "own.txt"
    path.write_text(text)
    with pytest.raises(ValueError, match=r"cannot write .*own.txt': it exists and is not a record; choose"):
        check_record(path, "mlm_tiny")
    assert path.read_text() == text
    assert list(tmp_path.iterdir()) == [path]


def test_a_record_whose_state_cannot_be_read_is_refused_at_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At the end of the run, it would look like the record of another run."""
    path = tmp_path / "record.json"
    write_record(path, record := {"experiment": "mlm_tiny", "command": "python experiments/mlm_tiny.py"})
    stat, calls, failing = Path.stat, list[Path](), [0]

    def fail_once(self: Path, **options: bool) -> os.stat_result:
        calls.append(self)
        if len(calls) in failing:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return stat(self, **options)

    monkeypatch.setattr(Path, "stat", fail_once)
    check_record(path, "mlm_tiny")
    for number in [i for i, name in enumerate(calls, 1) if name == path]:
        calls.clear()
        failing[0] = number
        with pytest.raises(ValueError, match=r"cannot write .*: Input/output error"):
            check_record(path, "mlm_tiny")
    assert parse_sealed(path.read_text()) == record and [*tmp_path.iterdir()] == [path]


def test_a_record_is_replaced(tmp_path: Path) -> None:
    """The indentation of the old record doesn't matter."""
    record = {"experiment": "mlm_tiny", "command": "python experiments/mlm_tiny.py", "date": "2020-01-01"}
    path = tmp_path / "record.json"
    for text in (json.dumps(record, indent=1), json.dumps(record, separators=(",", ":"))):
        path.write_text(text)
        check_record(path, "mlm_tiny")
        assert path.read_text() == text
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("name", ["my-tiny", "été 2", 'a"b'])
def test_a_script_can_have_any_name(name: str, tmp_path: Path) -> None:
    path = tmp_path / "record.json"
    record = {"experiment": name, "command": "python experiments/x.py"}
    assert write_record(path, record) == path
    check_record(path, name)
    assert write_record(path, record) == path


def test_a_killed_process_with_the_same_id_blocks_no_record(tmp_path: Path) -> None:
    """In a container, the ids of processes repeat."""
    part = partial_path(tmp_path / "record.json")
    (tmp_path / "own.txt").write_text("own")
    for make in (part.touch, lambda: part.symlink_to("own.txt")):
        make()
        check_record(tmp_path / "record.json", "cost")
    assert [path.name for path in tmp_path.iterdir()] == ["own.txt"]
    assert (tmp_path / "own.txt").read_text() == "own"


def test_a_record_of_another_experiment_is_kept(tmp_path: Path) -> None:
    """The experiment may be in a folder."""
    path = tmp_path / "record.json"
    path.write_text('{"experiment": "speed", "command": "python experiments/speed/speed.py"}')
    check_record(path, "speed/speed")
    with pytest.raises(ValueError, match="it is a record of speed, not of cost; choose"):
        check_record(path, "speed/cost")


def test_a_link_is_kept(tmp_path: Path) -> None:
    (tmp_path / "record.json").write_text('{"experiment": "cost", "command": "python experiments/cost.py"}')
    (tmp_path / "link.json").symlink_to("record.json")
    with pytest.raises(ValueError, match=r"link\.json': it is a link; choose another file with --record"):
        check_record(tmp_path / "link.json", "cost")


def test_a_file_that_appears_during_the_run_is_kept(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, record = tmp_path / "r.json", {"experiment": "cost", "command": "python experiments/speed/cost.py"}
    check_record(path, "cost")
    assert write_record(path, record) == write_record(path, {**record, "result": 1}) == path
    assert parse_sealed(path.read_text()) == {**record, "result": 1}
    path.write_text("my notes")
    assert write_record(path, record) == tmp_path / "r-2.json"
    (tmp_path / "r-2.json").write_text('{"experiment": "speed", "command": "python experiments/speed.py"}')
    assert write_record(path, record) == tmp_path / "r-3.json"
    assert path.read_text() == "my notes" and parse_sealed((tmp_path / "r-3.json").read_text()) == record
    first, *_, last = capsys.readouterr().err.splitlines()
    assert first.endswith(
        "r.json is left alone (it exists and is not a record); the record gets another name"
    )
    assert "r-2.json is left alone (it is a record of speed, not of cost)" in last


def test_the_record_of_another_run_is_kept(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Two runs of one experiment have the same `--record`, and the other one ends first."""
    path, record = tmp_path / "r.json", {"experiment": "cost", "command": "python experiments/speed/cost.py"}
    check_record(path, "cost")
    other = json.dumps({**record, "seed": 1})
    path.write_text(other)
    assert write_record(path, record) == tmp_path / "r-2.json"
    assert path.read_text() == other
    (line,) = capsys.readouterr().err.splitlines()
    assert "r.json is left alone (another run has written it)" in line
    # A third run has the same `--record`, and the second one's record is kept too.
    second = (tmp_path / "r-2.json").read_text()
    last_seen.pop(tmp_path / "r-2.json")
    assert write_record(path, record) == tmp_path / "r-3.json"
    assert (tmp_path / "r-2.json").read_text() == second
    # A new record replaces one that was there before the run.
    check_record(path, "cost")
    assert write_record(path, record) == path and parse_sealed(path.read_text()) == record


def test_all_published_records_are_recognized() -> None:
    paths = list(RUNS.rglob("*.json"))
    assert len(paths) > 30
    for path in paths:
        assert recorded_experiment(path) == json.loads(path.read_text())["experiment"], path


@pytest.mark.processes
def test_a_record_names_the_commit_only_if_it_has_the_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The project is in a folder of another repository.
    project = tmp_path / "third_party" / "labml_bert"
    module = project / "labml_bert" / "run" / "record.py"
    module.parent.mkdir(parents=True)
    module.write_text("")
    monkeypatch.setattr(record_module, "__file__", str(module))

    def run_git(*words: str) -> None:
        subprocess.run(["git", *words], cwd=tmp_path, check=True)

    assert origin()["commit"] is None
    run_git("init", "--quiet")
    commit_all = ["-c", "user.name=A", "-c", "user.email=a@example.org", "commit", "--quiet", "-m", "One"]
    # The other repository has commits, but doesn't contain the project.
    for ignored in ("", "third_party\n"):
        (tmp_path / ".gitignore").write_text(ignored)
        run_git("add", ".gitignore")
        run_git(*commit_all)
        assert origin()["commit"] is None
    (tmp_path / ".gitignore").unlink()
    run_git("add", ".")
    run_git(*commit_all)
    commit = origin()["commit"]
    assert commit is not None and len(commit) == 40
    (project / "labml_bert" / "notes.md").write_text("A text changes no result.")
    assert origin()["commit"] == commit
    for path in (module, module.with_name("new.py")):
        path.write_text("x = 1")
        assert origin()["commit"] is None
        path.write_text("")
    module.with_name("new.py").unlink()
    assert origin()["commit"] == commit
    # Git sets such a variable for its hooks.
    other = tmp_path / "other"
    other.mkdir()
    subprocess.run(["git", "init", "--quiet"], cwd=other, check=True)
    with monkeypatch.context() as patch:
        patch.setenv("GIT_DIR", str(other / ".git"))
        assert origin()["commit"] == commit
    # The message of an error can have a path that isn't UTF-8.
    fake = tmp_path / "bin" / "git"
    fake.parent.mkdir()
    fake.write_bytes(b"#!/bin/sh\nprintf '\\351' >&2\nexit 128\n")
    fake.chmod(0o755)
    with monkeypatch.context() as patch:
        patch.setenv("PATH", str(fake.parent))
        assert origin()["commit"] is None
    monkeypatch.setenv("PATH", "")
    assert origin()["commit"] is None
