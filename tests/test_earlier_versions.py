"""
Files that earlier versions of this project have written are read, or refused in one line. They are in
`earlier_versions`, each in a folder with the commit that wrote it.
"""

import random
import re
import shutil
from pathlib import Path

import pytest
from safetensors.torch import load_file

from labml_bert import prepare
from labml_bert.fill_mask import load_model
from labml_bert.models import BertForMaskedLM
from labml_bert.runs import read_run
from labml_bert.training.checkpoint import CHECKPOINT, named_weights
from tests.support.runs import main_in_process

FOLDER = Path(__file__).parent / "earlier_versions"
RUNS = ["run-23a9bae", "run-7dd73ec7", "run-bfa48a7e"]


@pytest.fixture
def copies(tmp_path: Path) -> Path:
    """A folder with a copy of all files, and the text on which the models were trained."""
    shutil.copytree(FOLDER, tmp_path, dirs_exist_ok=True)
    r = random.Random(0)
    animals, verbs, sights = ["cat", "dog", "bird"], ["sees", "likes"], ["river", "garden"]
    lines = [f"the {r.choice(animals)} {r.choice(verbs)} the {r.choice(sights)} today." for _ in range(300)]
    (tmp_path / "text.txt").write_text("\n".join(lines))
    return tmp_path


@pytest.mark.parametrize("name", RUNS)
def test_the_results_of_earlier_runs_are_shown(name: str) -> None:
    assert read_run(FOLDER / name).steps == 4


@pytest.mark.parametrize("name", RUNS[1:])
def test_the_models_of_earlier_runs_are_read(name: str) -> None:
    tensors = load_file(FOLDER / name / CHECKPOINT)
    for path in (FOLDER / name, FOLDER / name / "model"):
        model, _ = load_model(path)
        assert isinstance(model, BertForMaskedLM)
        for key, weight in named_weights(model).items():
            assert weight.equal(tensors[f"model.{key}"])


def test_a_model_whose_weights_had_other_names_is_refused() -> None:
    with pytest.raises(ValueError, match=r"has no bert\.embeddings\.word_embeddings\.weight, which"):
        load_model(FOLDER / RUNS[0])


def test_a_finished_run_of_an_earlier_version_is_still_finished(
    copies: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    main_in_process(monkeypatch, copies, "--resume", RUNS[2], "--corpus", "text.txt")
    assert "two-neighbor n-gram" in capsys.readouterr().out


@pytest.mark.parametrize("name", RUNS[:2])
def test_a_run_with_other_options_is_not_resumed(
    name: str, copies: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as exit_info:
        main_in_process(monkeypatch, copies, "--resume", name, "--corpus", "text.txt")
    assert exit_info.value.code == 2
    words = (
        "is a run of another version, which doesn't share the option optimizer; resume it with that version"
    )
    assert re.fullmatch(f"error: .*{words}.*\n", capsys.readouterr().err)


@pytest.mark.parametrize(("name", "is_read"), [("tokens-242a0b4b", False), ("tokens-bfa48a7e", True)])
def test_tokens_are_read_only_if_their_lines_have_checksums(
    name: str,
    is_read: bool,
    copies: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(copies)
    words = ["text.txt", "--output", name, "--vocab-size", "60"]
    if is_read:
        prepare.main(words)
    else:
        with pytest.raises(SystemExit):
            prepare.main(words)
        assert "blocks.jsonl is damaged or from an earlier version; delete" in capsys.readouterr().err
    for path in (FOLDER / name).iterdir():
        assert (copies / name / path.name).read_bytes() == path.read_bytes()
