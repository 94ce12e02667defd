"""
A record is up to date if the current code reproduces its fingerprint. These tests check every record, and the
check itself.
"""

import dataclasses
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from experiments import mlm_tiny
from labml_bert import mlm
from labml_bert.checksums import parse_sealed, seal
from labml_bert.data.corpora import load_corpus
from labml_bert.run import fingerprint
from labml_bert.run.fingerprint import (
    RUNS,
    difference,
    explain_skip,
    fingerprints_of,
    load_script,
    machine,
    main,
    take_fingerprint,
)
from labml_bert.run.record import versions
from labml_bert.training import tracking


def fingerprints() -> Iterator[Any]:
    """`make records` and `make test-long` check all of them."""
    for path in sorted(RUNS.rglob("*.json"), key=lambda path: (len(path.name), path)):
        record = json.loads(path.read_text("utf-8"))
        for part in record.get("fingerprints", {}):
            yield pytest.param(path, part, id=f"{path.stem} {part}".rstrip())


@pytest.mark.long
@pytest.mark.slow("each reads a whole corpus and trains for 32 steps")
@pytest.mark.parametrize(("path", "part"), list(fingerprints()))
def test_todays_code_reproduces_the_record(path: Path, part: str) -> None:
    record = json.loads(path.read_text("utf-8"))
    if reason := explain_skip(record, part):
        pytest.skip(f"{path.stem} is checked where its corpus is available: {reason}")
    assert difference(record["fingerprints"][part], fingerprints_of(record)[part]()) == ""


def test_a_fingerprint_is_not_sent_to_a_server(
    options: mlm_tiny.Options, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tracking, "server_url", lambda: pytest.fail("the fingerprint looked for a server"))
    assert take_fingerprint(mlm_tiny.main, options, "mlm_tiny", steps=2)["steps"] == 2


@pytest.fixture()
def options(corpus_file: Path) -> mlm_tiny.Options:
    return mlm_tiny.Options(
        corpus=str(corpus_file),
        schedule="8,32",
        batch_tokens=256,
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        max_position_embeddings=32,
    )


def describe_corpus(options: mlm_tiny.Options) -> dict[str, str]:
    """The entry about the text in a record."""
    return {"name": options.corpus, "sha256": load_corpus(options.corpus).sha256}


def take_small_fingerprint(options: mlm_tiny.Options) -> dict[str, Any]:
    return take_fingerprint(mlm_tiny.main, options, "mlm_tiny", steps=6)


def test_the_same_run_has_the_same_fingerprint(options: mlm_tiny.Options, tmp_path: Path) -> None:
    first, second = take_small_fingerprint(options), take_small_fingerprint(options)
    assert difference(first, second) == ""
    assert len(first["losses"]) == first["steps"] == 6
    assert {"loss", "accuracy"} == first["evaluation"].keys()
    assert not (tmp_path / "logs").exists()
    other = take_small_fingerprint(dataclasses.replace(options, seed=1))
    assert "the loss of step 1 was" in difference(first, other)


def test_a_changed_constant_in_mlm_py_is_detected(
    options: mlm_tiny.Options, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = take_small_fingerprint(options)
    call = mlm.TokenMasker.__call__

    def mask_less(self: mlm.TokenMasker, *arguments: Any) -> mlm.MaskedTokens:
        self.mask_replace_prob = 0.7
        return call(self, *arguments)

    monkeypatch.setattr(mlm.TokenMasker, "__call__", mask_less)
    assert difference(original, take_small_fingerprint(options)) != ""
    # The change is detected on another processor as well, where a tolerance applies.
    assert difference({**original, "processor": "another"}, take_small_fingerprint(options)) != ""


def test_rounding_is_tolerated_only_on_another_machine() -> None:
    reference = {"losses": [4.0, None], "evaluation": {"loss": 3.0}, **machine()}
    rounded = {**reference, "losses": [4.00001, None]}
    assert "step 1" in difference(reference, rounded)
    assert difference({**reference, "processor": "another"}, rounded) == ""
    assert "step 2" in difference(reference, {**reference, "losses": [4.0, 1.0]})
    assert "evaluation" in difference(
        {**reference, "processor": "another"}, {**rounded, "evaluation": {"loss": 3.1}}
    )


@pytest.mark.processes
def test_the_command_checks_and_writes_records(
    options: mlm_tiny.Options,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """`--write` adds a missing fingerprint. After that, the command checks it and detects a changed loss."""
    monkeypatch.setattr(fingerprint, "RUNS", tmp_path)
    corpus = describe_corpus(options)
    record = {"experiment": "mlm_tiny", "configuration": options.configuration(), "corpus": corpus}
    path = tmp_path / "small.json"
    path.write_text(json.dumps(record))
    with pytest.raises(SystemExit) as end:
        main(["small"])
    assert end.value.code == 1 and "small: no fingerprint" in capsys.readouterr().out
    assert json.loads(path.read_text()) == record

    main(["--write"])
    assert "small: written" in capsys.readouterr().out
    main([])
    assert "small: reproduced\n  1 fingerprints" in capsys.readouterr().out

    assert "sha256" in json.loads(path.read_text())
    record = parse_sealed(path.read_text())
    record["fingerprints"][""]["losses"][2] += 0.1
    path.write_text(json.dumps(record))
    with pytest.raises(SystemExit) as end:
        main(["small"])
    assert end.value.code == 1 and "not reproduced, the loss of step 3 was" in capsys.readouterr().out
    assert json.loads(path.read_text()) == record

    path.write_text(json.dumps({**record, "corpus": {**corpus, "sha256": "another"}}))
    main(["small"])
    assert "cannot be checked here" in capsys.readouterr().out
    path.write_text(seal(json.dumps(record)).replace("mlm_tiny", "mlm_tin"))
    with pytest.raises(SystemExit) as end:
        main(["small"])
    assert end.value.code == 2 and "small.json is no record: its checksum differs" in capsys.readouterr().err
    with pytest.raises(SystemExit) as end:
        main(["large"])
    assert end.value.code == 2 and "no record 'large'; choose from small" in capsys.readouterr().err


@pytest.mark.processes
def test_what_cannot_be_checked_is_no_failure(
    options: mlm_tiny.Options,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A record of a trained model, or of a run that started from a model which isn't here."""
    monkeypatch.setattr(fingerprint, "RUNS", tmp_path)
    corpus = describe_corpus(options)
    configuration = {**options.configuration(), "experiment": "mlm_tiny"}
    record = {"experiment": "acceptability", "configuration": configuration, "corpus": corpus}
    (tmp_path / "a.json").write_text(json.dumps(record))
    configuration = {"from_": "missing/model", "corpus": options.corpus}
    record = {"experiment": "continue_pretraining", "configuration": configuration, "corpus": corpus}
    (tmp_path / "b.json").write_text(json.dumps({**record, "fingerprints": {"": {}}}))
    main([])
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "  a: no fingerprint of the training; --write takes one"
    assert lines[1].startswith("  b: cannot be checked here (")
    assert explain_skip({"corpus": {"name": "wikitext-2"}}, "") == "a check might download wikitext-2"


def test_an_installed_package_has_no_records(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(fingerprint, "RUNS", tmp_path / "docs")
    for words in ([], ["--write"], ["mlm_tiny"]):
        with pytest.raises(SystemExit) as end:
            main(words)
        assert end.value.code == 2 and "run this command in a clone" in capsys.readouterr().err


def test_an_arm_is_skipped_without_its_own_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each arm of a claim may name its own corpus. A check doesn't download any corpus."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    record = json.loads((RUNS / "claims" / "positions-by-text.json").read_text("utf-8"))
    shakespeare = "characters of tiny Shakespeare: rotary"
    assert explain_skip(record, shakespeare) == "tiny-shakespeare has not been downloaded"
    record["versions"]["python"] = versions()["python"]
    assert explain_skip(record, "words: rotary") == ""
    record["versions"]["python"] = "2.7.18"
    assert explain_skip(record, "words: rotary") == "its text comes with Python 2.7.18"


def test_a_script_may_move_to_another_folder() -> None:
    """A script is looked up by name, in any folder under `experiments`."""
    assert load_script("claims").__name__.endswith("claims")
    with pytest.raises(ValueError, match="if it was renamed, rename it in its records"):
        load_script("nothing")
