"""Invalid input to `fill_mask`."""

import json
import os
from dataclasses import asdict
from pathlib import Path

import pytest
import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from labml_bert import fill_mask, model_folder
from labml_bert.attention_map import attention_map
from labml_bert.bert import BertConfig
from labml_bert.classify import load_pretrained
from labml_bert.data.tokenizers import joins_with_spaces, token_text, word_tokenizer
from labml_bert.files import write_tensors
from labml_bert.fill_mask import load_model, newest_run
from labml_bert.models import BertForMaskedLM
from labml_bert.modern import ModernBertConfig
from labml_bert.training.checkpoint import CHECKPOINT, PREVIOUS
from tests.support.runs import SMALL, run, small_text


@pytest.fixture(scope="module")
def run_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of a few steps."""
    folder = tmp_path_factory.mktemp("finished")
    (folder / "text.txt").write_text(small_text(1000))
    run("mlm_tiny", *SMALL, "--corpus", "text.txt", "--steps", 3, cwd=folder)
    return next((folder / "logs" / "mlm_tiny").iterdir())


@pytest.mark.processes
@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["no mask here"], "no [MASK] in the text"),
        (["[MASK]" + "a" * 40], "41 tokens but max_position_embeddings is 32"),
        (["[MASK]", "--top-k", "0"], "top_k is 0"),
        (["\udcff[MASK]"], "not UTF-8"),
        (["[MASK]", "--run", "nowhere"], "there is no run at nowhere"),
    ],
)
def test_bad_input_gives_a_one_line_error(
    run_folder: Path, arguments: list[str], words: str, monkeypatch: pytest.MonkeyPatch, capsys
) -> None:
    monkeypatch.chdir(run_folder.parent.parent.parent)
    with pytest.raises(SystemExit) as exit_info:
        fill_mask.main(arguments)
    assert exit_info.value.code == 2
    error = capsys.readouterr().err
    assert words in error
    assert error.count("\n") == 1


@pytest.mark.processes
def test_tokens_outside_the_vocabulary_are_counted(
    run_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fill_mask.main(["the [MASK]at", "--run", str(run_folder)])
    assert "outside the vocabulary" not in capsys.readouterr().out
    fill_mask.main(["ꙮ [MASK] ꙮ", "--run", str(run_folder)])
    assert "outside the vocabulary, which all look the same: 2\n" in capsys.readouterr().out


@pytest.mark.parametrize("config", [BertConfig(), ModernBertConfig()])
def test_a_model_that_is_larger_than_its_checkpoint_is_never_built(
    config: BertConfig | ModernBertConfig, tmp_path: Path
) -> None:
    for sizes, words in (
        (
            {"hidden_size": 768_000, "num_attention_heads": 12, "num_hidden_layers": 1_000},
            "has 5 numbers, and a model with the sizes of its configuration",
        ),
        ({"num_hidden_layers": 10**12}, "num_hidden_layers is 1000000000000"),
        ({"max_position_embeddings": 2**62}, "max_position_embeddings is 4611686018427387904"),
    ):
        configuration = {"model": asdict(config) | sizes}
        metadata = json.dumps({"step": 1, "seconds": 0.0, "configuration": configuration})
        write_tensors(tmp_path / CHECKPOINT, {"model.x": torch.zeros(5)}, {"about": metadata})
        with pytest.raises(ValueError, match=words):
            load_model(tmp_path)
    # A run stops at NaN, so only another program can have written it.
    metadata = json.dumps({"step": 1, "seconds": 0.0, "configuration": {"model": asdict(config)}})
    weights = {"model.x": torch.full((5,), float("nan"))}
    write_tensors(tmp_path / CHECKPOINT, weights, {"about": metadata})
    with pytest.raises(ValueError, match="must hold floating-point numbers from -10,000 to 10,000"):
        load_model(tmp_path)
    if isinstance(config, BertConfig):
        with pytest.raises(ValueError, match="must hold floating-point numbers from -10,000 to 10,000"):
            load_pretrained(tmp_path, ["no", "yes"])


def test_a_large_config_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model_folder, "LARGEST_CONFIG", 1_000_000)
    content = {"model_type": "bert", **{f"name {i}": i for i in range(200_000)}}
    (tmp_path / "config.json").write_text(json.dumps(content))
    with pytest.raises(ValueError, match="has more than 1,000,000 bytes"):
        load_model(tmp_path)


def test_a_newer_run_that_has_not_trained_is_skipped(tmp_path: Path) -> None:
    """The untrained run's weights are random, so its answers would be nonsense."""

    def save(name: str, step: int, time: int) -> Path:
        path = tmp_path / "mlm_tiny" / name / CHECKPOINT
        path.parent.mkdir(parents=True, exist_ok=True)
        metadata = json.dumps({"step": step, "seconds": 0.0, "configuration": {}})
        write_tensors(path, {"model.x": torch.zeros(1)}, {"about": metadata})
        os.utime(path, (time, time))
        return path

    newest = save("newest", 0, 3)
    with pytest.raises(ValueError, match=r"no run under .* has saved a trained model yet"):
        newest_run(tmp_path)
    save("oldest", 50, 1)
    older = save("older", 7, 2)
    assert newest_run(tmp_path) == older.parent
    save("newest", 1, 3)
    assert newest_run(tmp_path) == newest.parent
    newest.write_bytes(b"half")
    os.utime(newest, (3, 3))
    with pytest.raises(ValueError, match="is damaged"):
        newest_run(tmp_path)
    newest.replace(newest.with_name(PREVIOUS))
    with pytest.raises(ValueError, match="is missing"):
        newest_run(tmp_path)


def test_without_a_run_the_error_suggests_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as exit_info:
        fill_mask.main(["[MASK]"])
    assert exit_info.value.code == 2
    assert "experiments/mlm_tiny.py" in capsys.readouterr().err


@pytest.mark.parametrize("is_stripped", [False, True])
def test_the_spaces_before_a_mask_stay(is_stripped: bool) -> None:
    """To the tokenizer of ModernBERT, these spaces are a part of the mask."""
    tokenizer = word_tokenizer(["the cat sat"] * 2)
    tokenizer.add_special_tokens([AddedToken("[MASK]", lstrip=is_stripped, special=True)])
    config = BertConfig(tokenizer.get_vocab_size(), 16, 1, 2, 16, max_position_embeddings=8)
    ((best, *_),) = fill_mask.fill_mask(BertForMaskedLM(config).eval(), tokenizer, "the [MASK] sat")
    assert best.sequence == f"the {best.token} sat"


@pytest.mark.processes
def test_other_words_for_a_mask_are_filled_too(
    run_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    tokenizer = word_tokenizer(["the cat sat"] * 2)
    tokenizer.add_special_tokens([AddedToken("[MASK]", normalized=True, special=True)])
    config = BertConfig(tokenizer.get_vocab_size(), 16, 1, 2, 16, max_position_embeddings=8)
    model = BertForMaskedLM(config).eval()
    monkeypatch.setattr(fill_mask, "load_model", lambda *_: (model, tokenizer))
    fill_mask.main(["--run", str(run_folder), "the [mask] sat"])
    ((best, *_),) = fill_mask.fill_mask(model, tokenizer, "the [mask] sat")
    assert f"all filled in: the {best.token} sat\n" in capsys.readouterr().out


def test_a_tokenizer_that_pads_gives_the_same_predictions() -> None:
    tokenizer = word_tokenizer(["the cat sat"] * 2)
    config = BertConfig(tokenizer.get_vocab_size(), 16, 1, 2, 16, max_position_embeddings=8)
    model = BertForMaskedLM(config).eval()
    expected = fill_mask.fill_mask(model, tokenizer, "the [MASK] sat")
    expected_map = attention_map(model, tokenizer, "the [MASK] sat")
    tokenizer.enable_padding(length=8)
    assert fill_mask.fill_mask(model, tokenizer, "the [MASK] sat") == expected
    assert attention_map(model, tokenizer, "the [MASK] sat") == expected_map


def test_the_spaces_around_a_mask_stay() -> None:
    tokenizer = word_tokenizer(["the cat sat"] * 2)
    tokenizer.add_special_tokens([AddedToken("[MASK]", lstrip=True, rstrip=True, special=True)])
    spans = fill_mask.find_masks(tokenizer, tokenizer.encode("the [MASK] sat"), "the [MASK] sat")
    assert spans == {1: (4, 10)}
    assert fill_mask.replace_spans("the [MASK] sat", spans.values(), ["cat"]) == "the cat sat"


def test_a_token_of_sentencepiece_keeps_its_space() -> None:
    tokenizer = Tokenizer(models.Unigram([("[UNK]", 0.0), ("[MASK]", 0.0), ("▁the", -1.0), ("▁w", -1.0)], 0))
    tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.Metaspace(), decoders.Metaspace()
    for lstrip, spans in ((False, {1: (3, 9)}), (True, {1: (3, 9)})):
        tokenizer.add_special_tokens([AddedToken("[MASK]", lstrip=lstrip)])
        text = "the[MASK]"
        assert fill_mask.find_masks(tokenizer, tokenizer.encode(text), text) == spans
    text = "the [MASK]"
    spans = fill_mask.find_masks(tokenizer, tokenizer.encode(text), text)
    filled = fill_mask.replace_spans(text, spans.values(), [token_text(tokenizer, 3)])
    assert filled == tokenizer.decode([2, 3]) == "the w"


def test_the_text_of_a_token_is_decoded() -> None:
    """Other vocabularies also spell a space, or the end of a word, as letters of a token."""
    tokenizer = Tokenizer(models.WordLevel({"▁cat": 0, "s</w>": 1, "##s": 2}))
    tokenizer.decoder = decoders.Metaspace()
    assert token_text(tokenizer, 0) == " cat" and token_text(tokenizer, 3) == "?"
    assert not joins_with_spaces(tokenizer)
    tokenizer.decoder = decoders.BPEDecoder()
    assert token_text(tokenizer, 1) == "s"
    tokenizer.decoder = decoders.WordPiece()
    assert token_text(tokenizer, 2) == "##s"
    assert joins_with_spaces(tokenizer)
