"""Continued pretraining: from a folder, with new tokens, and what happens with bad input."""

import hashlib
import json
from pathlib import Path

import pytest
import torch

from labml_bert.checksums import SUMS
from labml_bert.data.tokenizers import character_tokenizer, save_tokenizer, wordpiece_tokenizer
from labml_bert.fill_mask import load_model
from labml_bert.models import BertForMaskedLM
from labml_bert.modern import ModernBertConfig, ModernBertForMaskedLM
from labml_bert.modern_folder import save_pretrained
from labml_bert.run.fingerprint import load_script
from labml_bert.training import tracking
from labml_bert.training.checkpoint import load_checkpoint
from labml_bert.training.tracking import read_metrics
from tests.support.runs import main_in_process, small_text
from tests.support.tiny_run import train_tiny

SHORT = ["--steps=4", "--schedule=8", "--batch-tokens=128"]
NEW_WORDS = ["kwargs", "isinstance"]


def code(lines: int) -> str:
    return "\n".join(f"the {NEW_WORDS[i % 2]} sees {NEW_WORDS[i % 3 % 2]}" for i in range(lines))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """An old text, a new text, a list of words and a model."""
    (tmp_path / "old.txt").write_text(small_text(200))
    (tmp_path / "new.txt").write_text(code(400))
    (tmp_path / "words.txt").write_text("\n".join(NEW_WORDS))
    letters = "abcdefghijklmnopqrstuvwxyz"
    tokenizer = wordpiece_tokenizer([small_text(200), f"{letters} {letters[::-1]}"], 100)
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 24}
    config = ModernBertConfig(tokenizer.get_vocab_size(), **sizes, max_position_embeddings=64, pad_token_id=0)
    save_pretrained(ModernBertForMaskedLM(config), tmp_path / "model")
    save_tokenizer(tokenizer, tmp_path / "model")
    return tmp_path


def continue_in(folder: Path, monkeypatch: pytest.MonkeyPatch, *arguments: str) -> Path:
    """Continues pretraining for four steps, and returns the folder of the run."""
    words = ["--corpus=new.txt", "--old-corpus=old.txt", *SHORT, *arguments]
    main_in_process(monkeypatch, folder, *words, experiment="continue_pretraining")
    return max(folder.glob("logs/continue_pretraining/*"), key=lambda path: path.stat().st_mtime)


@pytest.mark.processes
def test_a_run_measures_both_texts(folder: Path, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    run = continue_in(folder, monkeypatch, "--from=model", "--record=r.json")
    out = capsys.readouterr().out
    assert max(map(len, out.splitlines())) <= 80
    assert "old text   old.txt, " in out and "the old text had a loss of " in out
    curves = read_metrics(run)
    for name in ("valid.loss", "valid.old_loss"):
        # The point at step 0 is the loss before the first step.
        assert [step for step, _ in curves[name]] == [0, 1, 2, 3, 4]
    record = json.loads((folder / "r.json").read_text())
    assert {"loss", "accuracy", "old_loss", "old_accuracy"} <= record["result"].keys()
    assert "--from model" in record["command"] and "--from-" not in record["command"]
    absolute = [f"--{name}={folder / file}" for name, file in (("from", "model"), ("old-corpus", "old.txt"))]
    continue_in(folder, monkeypatch, *absolute, "--record=r.json")
    assert str(folder) not in (folder / "r.json").read_text()


@pytest.mark.processes
def test_without_the_first_measurement_the_run_still_gets_its_record(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def read_later_lines(path: Path) -> dict[str, list[tuple[int, float]]]:
        return {name: points for name, points in read_metrics(path).items() if name != "before.old_loss"}

    monkeypatch.setattr(tracking, "read_metrics", read_later_lines)
    continue_in(folder, monkeypatch, "--from=model", "--record=r.json")
    assert "the old text has a loss of " in capsys.readouterr().out
    assert (folder / "r.json").is_file()


def test_new_tokens_are_in_the_saved_folder(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    transformers = pytest.importorskip("transformers", reason="transformers is what this is compared with")
    run = continue_in(folder, monkeypatch, "--from=model", "--new-tokens=words.txt")
    before, _ = load_model(folder / "model")
    after, tokenizer = load_model(run / "model")
    assert after.config.vocab_size == before.config.vocab_size + 2
    text = "the kwargs sees [MASK]"
    assert tokenizer.encode(text, add_special_tokens=False).tokens[1] == "kwargs"
    answers = transformers.pipeline("fill-mask", model=str(run / "model"))(
        text, top_k=after.config.vocab_size
    )
    assert {"kwargs", "isinstance"} <= {answer["token_str"] for answer in answers}


def test_a_random_start_has_the_same_sizes(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scratch = continue_in(folder, monkeypatch, "--from=model", "--from-scratch", "--learning-rate=1e-9")
    model, _ = load_model(folder / "model")
    other, _ = load_model(scratch / "model")
    assert isinstance(model, ModernBertForMaskedLM) and isinstance(other, ModernBertForMaskedLM)
    assert other.config == model.config
    assert (other.decoder.weight - model.decoder.weight).abs().max() > 0.01
    # The same flag is no error when the run is resumed.
    for flag in ("--from-scratch", "--from_scratch"):
        assert continue_in(folder, monkeypatch, f"--resume={scratch}", flag) == scratch


def test_a_run_of_a_bert_without_special_tokens_continues(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = continue_in(folder, monkeypatch, f"--from={train_tiny(folder, small_text(200), 1, 16)}")
    model, tokenizer = load_model(run / "model")
    assert isinstance(model, BertForMaskedLM) and tokenizer.encode("the").tokens == [*"the"]


def test_a_run_resumes_with_its_new_tokens(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run = continue_in(folder, monkeypatch, "--from=model", "--new-tokens=words.txt")
    # The run remembers where its texts are. Its own folder has the model and the new tokens.
    (folder / "model").rename(folder / "moved")
    (folder / "words.txt").unlink()
    (folder / "elsewhere").mkdir()
    monkeypatch.chdir(folder / "elsewhere")
    script = load_script("continue_pretraining")
    script.launch(script.main, script.Options, ["--resume", str(run)])
    assert load_checkpoint(run)[0]["step"] == 4
    (run / "tokenizer.json").unlink()
    with pytest.raises(SystemExit):
        script.launch(script.main, script.Options, ["--resume", str(run)])
    error = capsys.readouterr().err
    assert f"{run.name}/tokenizer.json" in error and "folder/model" not in error


@pytest.mark.processes
def test_a_fingerprint_of_another_start_is_left_out(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A resumed run has its start in its own folder, but the fingerprint reads it again."""
    run = continue_in(folder, monkeypatch, "--from=model", "--new-tokens=words.txt")
    continue_in(folder, monkeypatch, f"--resume={run}", "--record=r.json")
    record = json.loads((folder / "r.json").read_text())
    assert record["fingerprints"][""]["inputs"].items() <= record["configuration"].items()
    assert "start_sha256" in record["configuration"]
    (folder / "words.txt").write_text("other\nwords")
    continue_in(folder, monkeypatch, f"--resume={run}", "--record=other.json")
    assert json.loads((folder / "other.json").read_text())["fingerprints"] == {}
    assert "the record has no fingerprint: what the run read has changed" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("old.txt", small_text(201), "the old text has changed since"),
        ("new.txt", code(401), "the text has changed since"),
    ],
)
def test_a_run_whose_files_have_changed_is_not_resumed(
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    name: str,
    text: str,
    message: str,
) -> None:
    run = continue_in(folder, monkeypatch, "--from=model", "--new-tokens=words.txt")
    (folder / name).write_text(text)
    script = load_script("continue_pretraining")
    with pytest.raises(SystemExit) as exit_info:
        script.launch(script.main, script.Options, ["--resume", str(run)])
    assert exit_info.value.code == 2 and message in capsys.readouterr().err


def test_a_changed_old_text_is_refused(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """What is held out now may have been training text of the run that the model comes from."""
    words = ["--corpus=old.txt", *SHORT, "--max-position-embeddings=64"]
    main_in_process(monkeypatch, folder, *words, experiment="own_language")
    (start,) = folder.glob("logs/own_language/*")
    continue_in(folder, monkeypatch, f"--from={start}")
    (folder / "old.txt").write_text(small_text(100, seed=1) + small_text(200))
    (folder / "link.txt").symlink_to(folder / "old.txt")
    for name, text in (
        (start, "link.txt"),
        (start, f"../{folder.name}/old.txt"),
        (start / "model", "old.txt"),
    ):
        with pytest.raises(SystemExit) as exit_info:
            continue_in(folder, monkeypatch, f"--from={name}", f"--old-corpus={text}")
        assert exit_info.value.code == 2 and "old text has changed since the model" in capsys.readouterr().err


def test_a_note_says_that_the_model_may_know_held_out_text(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Training on a text that has grown since the last training is common."""
    (folder / "mine.txt").write_text(small_text(200))
    words = [*SHORT, "--max-position-embeddings=64"]
    main_in_process(monkeypatch, folder, "--corpus=mine.txt", *words, experiment="own_language")
    (start,) = folder.glob("logs/own_language/*")
    continue_in(folder, monkeypatch, f"--from={start}", "--corpus=mine.txt")
    assert "held-out text, which has changed" not in capsys.readouterr().err
    (folder / "mine.txt").write_text(small_text(100, seed=1) + small_text(200))
    continue_in(folder, monkeypatch, f"--from={start}", "--corpus=mine.txt")
    assert "the model may know some of the held-out text, which has changed" in capsys.readouterr().err


def corrupt_config(folder: Path) -> None:
    (folder / "model" / "config.json").write_text("{")


def cut_weights(folder: Path) -> None:
    path = folder / "model" / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-100])


def remove_tokenizer(folder: Path) -> None:
    (folder / "model" / "tokenizer.json").unlink()


def swap_tokenizer(folder: Path) -> None:
    wordpiece_tokenizer([small_text(50)], 60).save(str(folder / "model" / "tokenizer.json"))


def swap_model_type(folder: Path) -> None:
    path = folder / "model" / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"model_type": "roberta"}))


def use_characters(folder: Path) -> None:
    tokenizer = character_tokenizer([small_text(50)])
    config = ModernBertConfig(tokenizer.get_vocab_size(), 16, 1, 2, 24, 64, pad_token_id=0)
    save_pretrained(ModernBertForMaskedLM(config), folder / "model")
    save_tokenizer(tokenizer, folder / "model")


def write_list(text: str):
    return lambda folder: (folder / "words.txt").write_text(text)


TOKENS = ["--from=model", "--new-tokens=words.txt"]
BAD_INPUT = {
    "no model": (None, [], "--from is missing; name the folder of a run or of a model"),
    "missing folder": (None, ["--from=nowhere"], "there is no run at nowhere"),
    "no tokenizer": (remove_tokenizer, ["--from=model"], "no tokenizer at model/tokenizer.json"),
    "other tokenizer": (swap_tokenizer, ["--from=model"], "that was saved with the model"),
    "corrupted config": (corrupt_config, ["--from=model"], "config.json is not a JSON object"),
    "damaged weights": (cut_weights, ["--from=model"], "is damaged or not a safetensors file"),
    "other kind of model": (swap_model_type, ["--from=model"], "only 'bert' is supported"),
    "no list of tokens": (None, ["--from=model", "--new-tokens=no.txt"], "cannot read no.txt"),
    "an endless list of tokens": (None, ["--from=model", "--new-tokens=/dev/zero"], "is not a regular file"),
    "empty list of tokens": (write_list("\n \n"), TOKENS, "words.txt has no words; put one on each line"),
    "token that exists": (write_list("the"), TOKENS, "'the' is in the vocabulary already; remove it"),
    "token twice": (write_list("hat\nhat"), TOKENS, "'hat' is in the list twice; remove it"),
    "token with a space": (write_list("two words"), TOKENS, "is not a single word for this tokenizer"),
    "character model": (use_characters, TOKENS, "need a WordPiece tokenizer, and this one is WordLevel"),
    "not UTF-8": (lambda f: (f / "words.txt").write_bytes(b"\xff"), TOKENS, "words.txt is not UTF-8"),
    "no old text": (None, ["--from=model", "--old-corpus=gone"], "no corpus or file is called 'gone'"),
    "short model": (None, ["--from=model", "--schedule=128"], "max_position_embeddings is 64"),
    "learning rate": (None, ["--from=model", "--learning-rate=0"], "must be above 0"),
}


@pytest.mark.parametrize("case", BAD_INPUT)
def test_bad_input_gets_one_line_and_changes_no_file(
    case: str, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys
) -> None:
    damage, arguments, message = BAD_INPUT[case]
    if damage:
        # As if a user had edited the files and then removed the checksums, as the error message says.
        (folder / "model" / SUMS).unlink(missing_ok=True)
        damage(folder)
    before = contents(folder)
    with pytest.raises(SystemExit) as exit_info:
        continue_in(folder, monkeypatch, *arguments)
    assert exit_info.value.code == 2
    error = capsys.readouterr().err
    assert error.startswith("error: ") and error.count("\n") == 1 and message in error
    assert contents(folder) == before


def contents(folder: Path) -> dict[str, str]:
    """The hash of each file."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return {str(path): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}
