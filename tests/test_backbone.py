"""The encoder that an experiment fine-tunes: what isn't accepted as one."""

import json
import os
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer

from labml_bert import backbone, fill_mask, prepare
from labml_bert.backbone import text_has_changed
from labml_bert.bert import BertConfig
from labml_bert.data.tokenizers import load_tokenizer, save_tokenizer, wordpiece_tokenizer
from labml_bert.files import write_whole
from labml_bert.model_folder import read_json
from labml_bert.models import BertForPreTraining
from labml_bert.training.checkpoint import CHECKPOINT
from tests.support.runs import small_text

CPU = torch.device("cpu")
SIZES = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 16}
CONFIG = BertConfig(vocab_size=90, **SIZES, max_position_embeddings=24)


def save(folder: Path, config: BertConfig = CONFIG) -> Path:
    """Saves an untrained model in `folder`, without checksums, as `transformers` would."""
    tokenizer = wordpiece_tokenizer([small_text(300)], config.vocab_size)
    BertForPreTraining(replace(config, vocab_size=tokenizer.get_vocab_size())).save_pretrained(folder)
    save_tokenizer(tokenizer, folder)
    for path in folder.glob("*SUMS*"):
        path.unlink()
    return folder


def test_a_model_gets_the_dropout_for_fine_tuning(tmp_path: Path) -> None:
    loaded = backbone.load_backbone(save(tmp_path), CPU)
    assert loaded.config.hidden_dropout_prob == loaded.config.attention_probs_dropout_prob == 0.1


def test_a_configuration_with_fewer_layers_than_the_weights_is_refused(tmp_path: Path) -> None:
    """Half of the model would be compared as if it were the whole one."""
    path = save(tmp_path) / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "num_hidden_layers": 1}))
    with pytest.raises(ValueError, match="not from one model"):
        backbone.load_backbone(tmp_path, CPU)


def test_a_model_with_one_token_type_is_refused(tmp_path: Path) -> None:
    folder = save(tmp_path, replace(CONFIG, type_vocab_size=1))
    with pytest.raises(ValueError, match="has one token type, so it can't read pairs"):
        backbone.load_backbone(folder, CPU)


def test_a_run_whose_checkpoint_is_damaged_gets_a_note(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = save(tmp_path / "model")
    assert backbone.load_backbone(folder, CPU).pretraining is None and capsys.readouterr().err == ""
    (tmp_path / CHECKPOINT).write_text("damaged")
    assert backbone.load_backbone(folder, CPU).pretraining is None
    assert "without it, the model's pretraining is unknown" in capsys.readouterr().err


@pytest.mark.long
@pytest.mark.slow("reads all of the docstrings")
def test_a_model_that_has_read_the_docstrings_of_another_python_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    configuration = {"corpus": "python-docs", "corpus_sha256": "0"}
    state = {"configuration": configuration, "step": 1, "seconds": 1.0}
    folder = save(tmp_path / "model")
    (tmp_path / CHECKPOINT).touch()
    monkeypatch.setattr(backbone, "load_checkpoint", lambda path: (state, {}))
    with pytest.raises(ValueError, match="the docstrings of another Python"):
        backbone.load_backbone(folder, CPU)
    del configuration["corpus_sha256"]
    with pytest.raises(ValueError, match="the docstrings of another Python"):
        backbone.load_backbone(folder, CPU)
    # The run continued one that had read them.
    configuration |= {"corpus": "my.txt", "old_corpus": "python-docs", "old_corpus_sha256": "0"}
    with pytest.raises(ValueError, match="the docstrings of another Python"):
        backbone.load_backbone(folder, CPU)
    configuration["old_corpus"] = "old.txt"
    assert backbone.load_backbone(folder, CPU).folder == folder


def test_a_run_that_saves_a_checkpoint_meanwhile_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The model and the description of its training would be of different steps."""

    def save_and_load(folder: Path) -> tuple[str, str]:
        write_whole(tmp_path / CHECKPOINT, "step 2")
        return "model", "tokenizer"

    write_whole(tmp_path / CHECKPOINT, "step 1")
    monkeypatch.setattr(backbone, "load_checkpoint", lambda folder: ({"step": 1}, {}))
    for folder in (tmp_path, tmp_path / "model"):
        monkeypatch.setattr(backbone, "load_model", lambda folder: ("model", "tokenizer"))
        assert backbone.load_model_and_state(folder) == ("model", "tokenizer", {"step": 1})
        monkeypatch.setattr(backbone, "load_model", save_and_load)
        with pytest.raises(ValueError, match=f"{CHECKPOINT} was replaced while it was read; try again"):
            backbone.load_model_and_state(folder)


@pytest.mark.parametrize("name", ["config.json", "model.safetensors"])
def test_a_model_that_is_replaced_meanwhile_is_refused(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The weights would be of one model, and the tokenizer of another."""
    folder = save(tmp_path / "model")

    def replace_and_load(path: Path, size: int | None = None) -> Tokenizer:
        shutil.copy(folder / name, tmp_path / name)
        os.replace(tmp_path / name, folder / name)
        return load_tokenizer(path, size)

    for module in (backbone, fill_mask):
        monkeypatch.setattr(module, "load_tokenizer", replace_and_load)
    with pytest.raises(ValueError, match=f"{name} was replaced while it was read; try again"):
        backbone.load_backbone(folder, CPU)
    with pytest.raises(ValueError, match=f"{name} was replaced while it was read; try again"):
        fill_mask.load_model(folder)


def test_a_link_that_is_redirected_meanwhile_still_leads_to_one_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, link = save(tmp_path / "model"), tmp_path / "link"
    link.symlink_to(folder)
    (tmp_path / "empty").mkdir()

    def read_and_redirect(folder: Path) -> dict[str, Any]:
        content = read_json(folder)
        link.unlink()
        link.symlink_to(tmp_path / "empty")
        return content

    monkeypatch.setattr(fill_mask, "read_json", read_and_redirect)
    model, _ = fill_mask.load_model(link)
    assert {*model.state_dict()} == {*fill_mask.load_model(folder)[0].state_dict()}


def test_the_run_is_found_however_the_folder_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = save(tmp_path / "run" / "model")
    (tmp_path / "run" / CHECKPOINT).touch()
    (tmp_path / "link").symlink_to(folder)
    parents: list[Path] = []
    state = {"configuration": {}, "step": 1, "seconds": 1.0}
    monkeypatch.setattr(backbone, "load_checkpoint", lambda path: (parents.append(path) or state, {}))
    monkeypatch.chdir(folder)
    for name in (folder, Path(), tmp_path / "link"):
        assert backbone.load_backbone(name, CPU).pretraining is not None
    assert parents == [folder.parent] * 3
    # A model that was copied into the folder of a run isn't the run's.
    shutil.copytree(folder, tmp_path / "run" / "imported")
    assert backbone.load_backbone(tmp_path / "run" / "imported", CPU).pretraining is None


def test_a_folder_that_cannot_be_read_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The newest model could be in it."""
    older, newest = (save(tmp_path / "bert_tiny" / name / "model") for name in ("1", "2"))
    monkeypatch.setattr(
        "labml_bert.training.checkpoint.is_unreadable_folder", lambda path: path == newest.parent
    )
    assert backbone.find_newest_model(tmp_path) in (older, newest)
    assert "2 can't be read, so it's left out" in capsys.readouterr().err


def test_a_part_of_a_text_is_not_a_new_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("texts", "others"):
        Path(name).mkdir()
        Path(name, "a.txt").write_text("a line of words\n" * 2000)
    prepare.main(["texts", "--output", "prepared", "--vocab-size", "60"])
    Path("link").symlink_to("texts")
    related = ("texts", "link", "prepared", "texts/a.txt", "link/a.txt", ".")
    for earlier in related:
        for later in ("texts", "prepared", "texts/a.txt"):
            configuration = {"old_corpus": str(tmp_path / earlier), "old_corpus_sha256": "1"}
            assert text_has_changed(configuration, later, "2"), (earlier, later)
            assert not text_has_changed(configuration, later, "1")
        assert not text_has_changed(configuration, "others", "2") or earlier == "."
    assert text_has_changed({"corpus": "python-docs", "corpus_sha256": "1"}, "python-docs", "2")
    assert not text_has_changed({"corpus": os.getcwd(), "corpus_sha256": "1"}, "python-docs", "2")
    assert not text_has_changed({"corpus": "python-docs", "corpus_sha256": "1"}, "texts", "2")
