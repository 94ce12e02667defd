"""What surrounds a training run: its folder, its lock, `--resume`, and the example sentence."""

import json
import math
import os
import re
import shutil
import signal
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer

from experiments import continue_pretraining, mlm_tiny, own_language
from labml_bert.data.tokenizers import character_tokenizer, word_tokenizer
from labml_bert.files import PART
from labml_bert.models import BertForMaskedLM
from labml_bert.run import launch
from labml_bert.run.experiment import lock_run, new_run_path
from labml_bert.run.fingerprint import Fingerprint, take_fingerprint
from labml_bert.run.options import RunOptions, parse_options, resume_options
from labml_bert.run.terminal import masked_line
from labml_bert.training.checkpoint import CHECKPOINT, load_checkpoint
from labml_bert.training.tracking import METRICS
from tests.support.runs import SMALL, main_in_process, run, small_text, start
from tests.support.trainers import edit_checkpoint, new_trainer, train


@pytest.mark.processes
def test_resuming_with_other_options_or_another_text_is_rejected(
    corpus_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run("mlm_tiny", *SMALL, "--corpus", corpus_file, "--steps", 3, cwd=tmp_path)
    (folder,) = (tmp_path / "logs" / "mlm_tiny").iterdir()

    def error_of(*arguments: str) -> str:
        # Each attempt gets a copy of the folder, because this process still holds the lock of the last copy.
        copy = tmp_path / f"copy {len(list(tmp_path.iterdir()))}"
        shutil.copytree(folder, copy, symlinks=True)
        with pytest.raises(SystemExit) as exit_info:
            main_in_process(monkeypatch, tmp_path, "--resume", copy, *arguments)
        assert exit_info.value.code == 2
        assert (copy / CHECKPOINT).read_bytes() == (folder / CHECKPOINT).read_bytes()
        error = capsys.readouterr().err
        assert re.fullmatch("error: .*\n", error)
        return error

    assert "started with hidden_size = 32, not 64" in error_of("--hidden-size", "64")
    assert "started with steps = 3, not 9" in error_of("--steps", "9")
    # A run folder from elsewhere may contain a link to a file of the user.
    (folder / METRICS).rename(tmp_path / "precious")
    lines = (tmp_path / "precious").read_bytes()
    (folder / METRICS).symlink_to(tmp_path / "precious")
    assert "symbolic link" in error_of()
    assert (tmp_path / "precious").read_bytes() == lines
    (folder / METRICS).unlink()
    shutil.copy(tmp_path / "precious", folder / METRICS)
    corpus_file.write_text(small_text(1000, seed=1))
    assert "the text has changed since" in error_of()


@pytest.mark.processes
@pytest.mark.long
def test_a_last_step_that_explodes_is_no_success(corpus_file: Path, tmp_path: Path) -> None:
    """With two steps, the learning rate is 0 in the first, so only the second one updates the weights."""
    arguments = [*SMALL, "--corpus", corpus_file, "--steps", 2, "--learning-rate", 1e7]
    process = start("mlm_tiny", *arguments, cwd=tmp_path)
    _, errors = process.communicate()
    assert process.returncode == 2
    error = (
        r"error: after the last step, the held-out loss is .*; start a new run with a lower learning rate\n"
    )
    assert re.fullmatch(error, errors), errors
    assert not [*tmp_path.glob("logs/mlm_tiny/*/model")]


@pytest.mark.parametrize("was_compiled", [True, False])
def test_a_resumed_run_is_compiled_if_it_was_before(tmp_path: Path, was_compiled: bool) -> None:
    train(*new_trainer(tmp_path, steps=1))
    configuration = RunOptions(steps=1, minutes=None).configuration() | {"experiment": "mlm_tiny"}
    edit_checkpoint(tmp_path, torch_compile=was_compiled, configuration=configuration)
    for flags, expected in [([], was_compiled), (["--torch-compile"], True), (["--no-torch-compile"], False)]:
        words = ["--resume", str(tmp_path), *flags]
        assert parse_options(RunOptions, "mlm_tiny", "", words).torch_compile is expected


@pytest.mark.processes
def test_a_resumed_run_keeps_its_micro_batches_and_finds_a_moved_text(
    corpus_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes = [*SMALL, "--steps", 3, "--gradient-accumulation-steps", 2]
    main_in_process(monkeypatch, tmp_path, *sizes, "--corpus", corpus_file)
    (folder,) = (tmp_path / "logs" / "mlm_tiny").iterdir()
    options = parse_options(RunOptions, "mlm_tiny", "", ["--resume", str(folder)])
    assert options.gradient_accumulation_steps == 2
    words = ["--resume", str(folder), "--gradient-accumulation-steps", "1"]
    assert parse_options(RunOptions, "mlm_tiny", "", words).gradient_accumulation_steps == 1
    moved = corpus_file.rename(tmp_path / "moved.txt")
    main_in_process(monkeypatch, tmp_path, "--resume", folder, "--corpus", moved)
    assert load_checkpoint(folder)[0]["configuration"]["corpus"] == str(moved)


@pytest.mark.processes
def test_a_run_whose_tokenizer_pads_and_truncates_is_resumed(
    tmp_path: Path, corpus_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def tokenizer(texts: list[str]) -> Tokenizer:
        result = character_tokenizer(texts)
        result.enable_padding()
        result.enable_truncation(16)
        return result

    monkeypatch.setattr("labml_bert.data.tokenizers.character_tokenizer", tokenizer)
    main_in_process(monkeypatch, tmp_path, *SMALL, "--steps=2", "--corpus", corpus_file)
    (folder,) = (tmp_path / "logs" / "mlm_tiny").iterdir()
    main_in_process(monkeypatch, tmp_path, "--resume", folder)


@pytest.mark.processes
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_while_the_model_is_saved_ends_the_run_with_a_line(
    number: int,
    corpus_file: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The loop is over and has saved its last checkpoint, so resuming only evaluates and saves the model."""
    words = [*SMALL, "--corpus", corpus_file, "--steps", 3]
    before = signal.getsignal(number)
    with monkeypatch.context() as patch, pytest.raises(SystemExit) as exit_info:
        patch.setattr(BertForMaskedLM, "save_pretrained", lambda *_: os.kill(os.getpid(), number))
        main_in_process(monkeypatch, tmp_path, *words)
    assert exit_info.value.code == 130 and signal.getsignal(number) == before
    assert "stopped and saved; resume with:" in capsys.readouterr().out
    (folder,) = (tmp_path / "logs" / "mlm_tiny").iterdir()
    assert load_checkpoint(folder)[0]["step"] == 3 and not (folder / "model").exists()
    main_in_process(monkeypatch, tmp_path, "--resume", folder)
    assert (folder / "model" / "model.safetensors").is_file()


def test_ctrl_c_that_also_ends_the_compiler_stops_the_run(
    corpus_file: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    from torch._inductor.exc import InductorError

    def forward(*arguments: object, **keywords: object) -> None:
        os.kill(os.getpid(), signal.SIGINT)
        raise InductorError(RuntimeError("g++ died"), None)

    monkeypatch.setattr(BertForMaskedLM, "forward", forward)
    words = [*SMALL, "--corpus", corpus_file, "--steps", 3]
    with pytest.raises(SystemExit) as exit_info:
        main_in_process(monkeypatch, tmp_path, *words)
    out, err = capsys.readouterr()
    assert exit_info.value.code == 130 and "stopped and saved; resume with:" in out and not err


def test_ctrl_c_does_not_wait_for_the_compilation(
    corpus_file: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    forward, ends = BertForMaskedLM.forward, []

    def interrupt(*arguments: Any, **keywords: Any) -> Any:
        os.kill(os.getpid(), signal.SIGINT)
        ends.append("compiled")
        return forward(*arguments, **keywords)

    monkeypatch.setattr("labml_bert.training.trainer.compile_model", lambda model: model)
    monkeypatch.setattr(BertForMaskedLM, "forward", interrupt)
    words = [*SMALL, "--corpus", corpus_file, "--steps", 3]
    with pytest.raises(SystemExit) as exit_info:
        main_in_process(monkeypatch, tmp_path, *words, "--torch-compile")
    assert exit_info.value.code == 130 and not ends
    assert "stopped and saved; resume with:" in capsys.readouterr().out
    (folder,) = (tmp_path / "logs" / "mlm_tiny").iterdir()
    assert load_checkpoint(folder)[0]["step"] == 0


@pytest.mark.processes
@pytest.mark.long
def test_resuming_a_run_that_has_ended_keeps_an_edited_model_card(
    corpus_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run("mlm_tiny", *SMALL, "--corpus", corpus_file, "--steps", 3, cwd=tmp_path)
    (folder,) = (tmp_path / "logs" / "mlm_tiny").iterdir()
    card = folder / "model" / "README.md"
    text = card.read_text()
    card.write_text("edited")
    main_in_process(monkeypatch, tmp_path, "--resume", folder)
    assert card.read_text() == "edited"
    card.unlink()
    main_in_process(monkeypatch, tmp_path, "--resume", folder)
    assert card.read_text() == text


@pytest.mark.processes
def test_a_text_that_is_gone_after_training_costs_only_the_fingerprint(
    corpus_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The fingerprint reads the text again. If that fails, the record is already saved without it."""

    def take(*_: object) -> Fingerprint:
        raise ValueError("cannot read text.txt: Permission denied")

    arguments = [*SMALL, "--corpus", corpus_file, "--steps", 3, "--record", "r.json"]
    with monkeypatch.context() as patch, pytest.raises(SystemExit) as exit_info:
        patch.setattr(launch, "take_fingerprint", take)
        main_in_process(patch, tmp_path, *arguments)
    (folder,) = (tmp_path / "logs" / "mlm_tiny").iterdir()
    assert exit_info.value.code == 2 and "fingerprints" not in json.loads((tmp_path / "r.json").read_text())
    error = "error: cannot read text.txt: Permission denied; once this is fixed, resume with --resume "
    assert capsys.readouterr().err == f"{error}{folder.relative_to(tmp_path)} --record r.json\n"
    main_in_process(monkeypatch, tmp_path, "--resume", folder, "--record", "r.json")
    assert json.loads((tmp_path / "r.json").read_text())["fingerprints"]


@pytest.mark.processes
def test_a_fingerprint_that_explodes_costs_only_itself(
    corpus_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The short run has more steps than this one, and its folder is temporary."""
    arguments = [*SMALL, "--corpus", corpus_file, "--steps", 1, "--learning-rate", 1e6, "--record", "r.json"]
    main_in_process(monkeypatch, tmp_path, *arguments)
    assert json.loads((tmp_path / "r.json").read_text())["fingerprints"] == {}
    (line,) = capsys.readouterr().err.splitlines()
    assert line.endswith("the record has no fingerprint: the loss of its short run explodes")


@dataclass(frozen=True)
class OwnOptions(mlm_tiny.Options):
    """The options of a script that somebody wrote."""

    scales: tuple[float, ...] = (1.0, math.inf)


@pytest.mark.processes
def test_a_record_with_infinity_is_json(
    corpus_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    arguments = [*SMALL, "--corpus", corpus_file, "--steps", 1, "--record", "r.json"]
    launch.launch(mlm_tiny.main, OwnOptions, [*map(str, arguments)])
    # By default, Python also reads `Infinity`, which is no JSON.
    record = json.loads(Path("r.json").read_text(), parse_constant=pytest.fail)
    assert record["configuration"]["scales"] == [1.0, "Infinity"]


@pytest.mark.processes
def test_a_fingerprint_of_another_text_is_left_out(
    corpus_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The text may grow while a run trains on it."""

    def take(*arguments: Any) -> Fingerprint:
        with open(corpus_file, "a") as file:
            file.write("more text")
        return take_fingerprint(*arguments)

    monkeypatch.setattr(launch, "take_fingerprint", take)
    arguments = ["--gradient-accumulation-steps", 2, "--record", "r.json"]
    main_in_process(monkeypatch, tmp_path, *SMALL, "--corpus", corpus_file, "--steps", 1, *arguments)
    record = json.loads((tmp_path / "r.json").read_text())
    assert record["fingerprints"] == {}
    (line,) = capsys.readouterr().err.splitlines()
    assert line.endswith("the record has no fingerprint: what the run read has changed since then")
    # The record says how the run was computed.
    hardware = record["hardware"]
    assert hardware["gradient_accumulation_steps"] == 2 and hardware["torch_compile"] is False


def test_options_are_checked_before_the_text_is_read(
    corpus_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Reading a large text or making pairs of sentences can take minutes."""
    monkeypatch.chdir(tmp_path)
    main_in_process(monkeypatch, tmp_path, *SMALL, "--corpus", corpus_file, "--steps", 1)
    (folder,) = (tmp_path / "logs" / "mlm_tiny").iterdir()
    (tmp_path / "file").write_text("")
    (tmp_path / "closed").mkdir()
    real = os.access
    monkeypatch.setattr(os, "access", lambda path, mode: Path(path).name != "closed" and real(path, mode))
    for arguments, error in (
        (["--resume", folder, "--seed", 1], "was started with seed = 0, not 1; leave that option out"),
        (["--resume", folder, "--steps", 2], "was started with steps = 1, not 2; leave that option out"),
        (["--runs", "file/runs"], "cannot write runs to file/runs: Not a directory; choose"),
        (
            ["--runs", "closed/a/b"],
            "closed/a/b: Permission denied; choose",
        ),
        (["--gradient-accumulation-steps", 1000], "too few for 1000 micro-batches; use a larger batch"),
    ):
        with pytest.raises(ValueError, match=error):
            parse_options(mlm_tiny.Options, "mlm_tiny", "", [*map(str, arguments)])


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (
            ["--runs", "texts/logs"],
            "texts/logs would be in {}, among the texts; choose another path with --runs",
        ),
        (["--record", "texts/r.json"], "texts/r.json would be in {}, among the texts"),
        (["--runs", "texts/.logs", "--record", "texts/.json"], ""),
        (["--runs", "texts2"], ""),
    ],
)
def test_a_run_writes_nothing_among_its_texts(
    arguments: list[str], error: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With such files, the folder would be another text when the run is resumed."""
    monkeypatch.chdir(tmp_path)
    texts = tmp_path / "texts"
    texts.mkdir()
    for option in ("--corpus", "--old-corpus"):
        line = [option, "texts", *arguments]
        if not error:
            parse_options(continue_pretraining.Options, "continue_pretraining", "", line)
            continue
        with pytest.raises(
            ValueError, match=re.escape(error.format(texts if option == "--corpus" else "texts"))
        ):
            parse_options(continue_pretraining.Options, "continue_pretraining", "", line)


def test_the_folder_for_downloads_is_not_among_the_texts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The pairs of a run are there, and would be read as text when the run is resumed."""
    texts = tmp_path / "texts"
    texts.mkdir()
    monkeypatch.setenv("XDG_CACHE_HOME", str(texts / "cache"))
    words = ["--corpus", str(texts), "--runs", str(tmp_path)]
    with pytest.raises(ValueError, match="among the texts; choose another path with XDG_CACHE_HOME"):
        parse_options(continue_pretraining.Options, "continue_pretraining", "", words)
    monkeypatch.setenv("XDG_CACHE_HOME", str(texts / ".cache"))
    parse_options(continue_pretraining.Options, "continue_pretraining", "", words)


def test_a_run_is_locked_and_its_partial_files_are_removed(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "own").mkdir()
    partial_files = [tmp_path / f"{CHECKPOINT}.77{PART}", tmp_path / "model" / f"config.json.77{PART}"]
    own_files = [tmp_path / "film.part", tmp_path / "own" / "archive.1.part"]
    for path in (*partial_files, *own_files):
        path.write_bytes(b"half")
    with lock_run(tmp_path):
        assert not any(path.exists() for path in partial_files)
        assert all(path.exists() for path in own_files)
        with pytest.raises(ValueError, match=r"another process is training in .*; wait until it ends"):
            lock_run(tmp_path)
    lock_run(tmp_path).__exit__(None, None, None)
    (tmp_path / ".lock").write_text("kept")
    with pytest.raises(ValueError, match=r"lock is not ours, because it is not empty; move it, or choose"):
        lock_run(tmp_path)
    assert (tmp_path / ".lock").read_text() == "kept"


@pytest.mark.parametrize("name", [".lock", METRICS, "model"])
def test_a_run_whose_files_are_links_is_rejected(name: str, tmp_path: Path) -> None:
    """A folder from elsewhere can contain links to any files of the user."""
    folder, target = tmp_path / "run", tmp_path / "precious"
    folder.mkdir()
    if name == "model":
        target.mkdir()
    else:
        target.write_text("kept")
    (folder / name).symlink_to(target)
    with pytest.raises(OSError, match=f"{name} must be a .* symbolic link; remove it"):
        lock_run(folder)
    assert [path.name for path in folder.iterdir()] == [name]
    assert not list(target.iterdir()) if name == "model" else target.read_text() == "kept"


def test_runs_that_start_in_the_same_second_get_different_folders(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same second can occur twice if the clock is set back."""
    monkeypatch.setattr(time, "strftime", lambda *_: "20200101-000000")
    names = [new_run_path(tmp_path, "x").name for _ in range(3)]
    assert names == ["20200101-000000", "20200101-000000-2", "20200101-000000-3"]


def test_a_run_folder_has_a_utf8_name(tmp_path: Path) -> None:
    """In a folder with another name, safetensors couldn't read the checkpoint that it wrote."""
    folder = tmp_path / os.fsdecode(b"runs \xff")
    with pytest.raises(ValueError, match="is not UTF-8; use another folder"):
        new_run_path(folder, "mlm_tiny")
    assert not folder.exists()
    with pytest.raises(ValueError, match="is not UTF-8; use another folder"):
        load_checkpoint(folder)


def test_the_options_to_resume_with() -> None:
    options = RunOptions(steps=3, device="cpu", torch_compile=True, runs=Path("a"), resume=Path("b"))
    assert resume_options(options) == ["--device", "cpu", "--torch-compile"]
    assert resume_options(RunOptions(record=Path("a b"))) == ["--record", "a b"]
    assert resume_options(RunOptions(record=Path("-x"))) == ["--record", "./-x"]


def test_a_name_of_a_text_is_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "python-docs").write_text("a text of my own")
    monkeypatch.chdir(tmp_path)
    for word, corpus in (("python-docs", "python-docs"), ("./python-docs", str(tmp_path / "python-docs"))):
        assert parse_options(RunOptions, "mlm_tiny", "", ["--corpus", word]).corpus == corpus
    # A name may end in the sign that comes before a value.
    (tmp_path / "a=").touch()
    options = parse_options(RunOptions, "mlm_tiny", "", ["--corpus=a=", "--steps=1"])
    assert options.corpus == str(tmp_path / "a=")


@pytest.mark.parametrize("line", ["one a two", "a b", "a", "see the dog"])
def test_the_example_sentence_never_masks_a_space(line: str) -> None:
    sentence = masked_line([line], character_tokenizer([line]), 64)
    before, after = sentence.split("[MASK]")
    masked = line.removeprefix(before).removesuffix(after)
    assert len(masked) == 1 and masked.isalpha()


def test_a_blank_text_has_an_example_sentence_too() -> None:
    assert masked_line([" \n\n"], character_tokenizer(["ab"]), 8) == "[MASK]"


@pytest.mark.parametrize("longest", [3, 8, 10, 32, 512])
@pytest.mark.parametrize(
    "text",
    [
        "the cat sees the dog in the morning",
        "x",
        "meaning of",
        "一二三四五六七八九十" * 20,
        "\n\n a b\n" + "word " * 99,
    ],
)
def test_the_example_sentence_fits_the_model(text: str, longest: int) -> None:
    for tokenizer in (character_tokenizer([text]), word_tokenizer([text])):
        sentence = masked_line([text], tokenizer, longest)
        assert sentence.count("[MASK]") == 1
        assert len(sentence.replace("[MASK]", "?")) <= max(longest - 2, len(sentence.split()[0]))


def test_values_are_checked_before_the_text_is_read() -> None:
    with pytest.raises(ValueError, match="steps is -1; it must be at least 1"):
        parse_options(RunOptions, "mlm_tiny", "", ["--steps=-1", "--corpus=missing.txt"])
    with pytest.raises(ValueError, match="learning_rate is -1"):
        parse_options(own_language.Options, "own_language", "", ["--learning-rate=-1"])
