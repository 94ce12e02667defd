"""When a record is old, and in which order old ones run again."""

import subprocess
from pathlib import Path

import pytest

from docs.literate import records as records_module
from docs.literate import rerun
from docs.literate.records import Record, changed_since


def test_words_do_not_make_a_record_old_and_statements_do(tmp_path: Path) -> None:
    def git(*words: str) -> str:
        who = ["-c", "user.name=a", "-c", "user.email=a@b.c"]
        done = subprocess.run(["git", *who, *words], cwd=tmp_path, check=True, capture_output=True, text=True)
        return done.stdout.strip()

    git("init", "--quiet")
    (tmp_path / "a.py").write_text('"""Doc."""\nx = 1  # (B)\n')
    (tmp_path / "b.py").write_text("def f():\n    '''Doc.'''\n    return 1\n")
    git("add", ".")
    git("commit", "--quiet", "-m", "first")
    commit = git("rev-parse", "HEAD")
    both = ("a.py", "b.py")
    assert changed_since(commit, both, tmp_path) == ()
    (tmp_path / "a.py").write_text('"""Better words."""\n\n# Why.\nx = 1\n')
    (tmp_path / "b.py").write_text("def f():\n    '''Others.'''\n    return 2\n")
    changed_since.cache_clear()
    assert changed_since(commit, both, tmp_path) == ("b.py",)
    (tmp_path / "c.py").write_text("x = 1\n")
    git("add", "c.py")
    assert changed_since(commit, ("a.py", "c.py"), tmp_path) == ("c.py",), "new since the run"
    assert changed_since("0" * 40, both, tmp_path) is None


def test_old_records_run_again_the_cheapest_first(monkeypatch: pytest.MonkeyPatch) -> None:
    costs = {"long": 300, "new": 1, "short": 20}
    found = {name: Record(name, {"result": {"wall_seconds": cost}}) for name, cost in costs.items()}
    monkeypatch.setattr(rerun, "age", lambda record, sources: "" if record.name == "new" else "old")
    assert [record.name for record in rerun.outdated(found, {})] == ["short", "long"]


def test_a_run_that_fails_leaves_its_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "x.json").write_text("{}")
    record = Record("x", {"command": "python experiments/missing.py"})
    monkeypatch.setattr(records_module, "ROOT", tmp_path)
    with pytest.raises(subprocess.CalledProcessError):
        rerun.run_again(record, tmp_path)
    assert (tmp_path / "x.json").read_text() == "{}"
