"""The experiments as their users meet them: the terminal, the files, kills, and bad input."""

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import asdict
from pathlib import Path

import pytest
import torch

from labml_bert import fill_mask
from labml_bert.bert import BertConfig
from labml_bert.data import corpora
from labml_bert.data.tokenizers import character_tokenizer
from labml_bert.files import write_tensors
from labml_bert.models import BertForMaskedLM
from labml_bert.training.checkpoint import CHECKPOINT, PREVIOUS, load_checkpoint
from labml_bert.training.tracking import read_metrics
from tests.support.runs import main_in_process, small_text, stopped_by_ctrl_c

ROOT = Path(__file__).parents[2]
SMALL = [
    "--hidden-size=32",
    "--num-attention-heads=2",
    "--num-hidden-layers=2",
    "--batch-tokens=512",
    "--schedule=8,32",
    "--max-position-embeddings=32",
]


def command(*arguments: object, experiment: str = "mlm_tiny") -> list[str]:
    return [sys.executable, str(ROOT / "experiments" / f"{experiment}.py"), *SMALL, *map(str, arguments)]


def run(*arguments: object, cwd: Path, experiment: str = "mlm_tiny", **environment: str) -> str:
    done = subprocess.run(
        command(*arguments, experiment=experiment),
        cwd=cwd,
        capture_output=True,
        text=True,
        env={**os.environ, **environment},
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return done.stdout


NO_NETWORK = """
import socket
def refuse(*args, **kwargs):
    open("network-was-tried", "a").write(repr(args))
    raise OSError("no network in this test")
socket.socket.connect = socket.socket.connect_ex = refuse
socket.getaddrinfo = socket.create_connection = refuse
"""


def test_a_run_from_text_to_a_filled_mask(corpus_file: Path, tmp_path: Path) -> None:
    """Header, floors, samples, result, record, and the command it ends with, pasted into a shell."""
    (tmp_path / "sitecustomize.py").write_text(NO_NETWORK)
    out = run(
        "--corpus",
        corpus_file,
        "--steps",
        800,
        "--record",
        "result.json",
        cwd=tmp_path,
        PYTHONPATH=str(tmp_path),
    )
    assert not (tmp_path / "network-was-tried").exists()
    assert max(map(len, out.splitlines())) <= 80
    assert "\x1b" not in out, "colour codes where there is no terminal"
    for words in (
        "two-neighbour table",
        "frequencies",
        "after length 8",
        "after length 32",
        "✓",
        "this model",
    ):
        assert words in out

    record = json.loads((tmp_path / "result.json").read_text())
    assert record["result"]["steps"] == 800
    # It beats letter frequencies by far; a loop that did not train could not.
    assert record["result"]["loss"] < record["floors"][1]["loss"] - 0.25
    assert f"{record['result']['loss']:.3f}" in out
    history = record["history"]
    assert history["loss"][0][1] == pytest.approx(record["floors"][0]["loss"], rel=0.2)
    assert [step for step, _ in history["valid.loss"]] == [40 * i for i in range(1, 21)]
    assert history["seconds"][-1][1] <= record["result"]["training_seconds"]
    assert str(tmp_path) not in (tmp_path / "result.json").read_text()
    assert record["corpus"]["name"] == "text.txt"
    assert len(record["corpus"]["sha256"]) == 64

    pasted = out[out.index("Try it:") + 7 :]
    filled = subprocess.run(pasted, shell=True, cwd=tmp_path, capture_output=True, text=True)
    assert filled.returncode == 0, filled.stderr
    assert "probability" in filled.stdout

    folder = next((tmp_path / "logs" / "mlm_tiny").iterdir())
    assert read_metrics(folder)["valid.loss"][-1][0] == 800
    model, tokenizer = fill_mask.load_model(folder)
    first, second = fill_mask.fill_mask(model, tokenizer, "the cat see[MASK] t[MASK]e dog today.", top_k=3)
    assert len(first) == len(second) == 3
    assert [g.probability for g in second] == sorted((g.probability for g in second), reverse=True)
    assert second[0].sequence == f"the cat see[MASK] t{second[0].token}e dog today."
    assert sum(g.probability for g in second) <= 1


def test_brackets_are_no_markup(tmp_path: Path) -> None:
    """A text and a path of brackets are printed as they are."""
    (tmp_path / "text.txt").write_text("[b]cat[/b] [red]dog[/i] [/x]\n" * 300)
    out = run(
        "--corpus=text.txt",
        "--steps=2",
        "--runs=d[bold]",
        "--record=r[red].json",
        "--tokenizer=word",
        cwd=tmp_path,
    )
    assert "d[bold]/mlm_tiny" in out and "r[red].json" in out and (tmp_path / "r[red].json").is_file()


def test_words(corpus_file: Path, tmp_path: Path) -> None:
    # A vocabulary of thirty words can take the rate of characters.
    options = ["--corpus", corpus_file, "--steps", 800, "--learning-rate", 3e-3, "--record", "r.json"]
    out = run(*options, cwd=tmp_path, experiment="mlm_words")
    assert "words" in out
    record = json.loads((tmp_path / "r.json").read_text())
    assert record["configuration"]["tokenizer"] == "word"
    assert record["result"]["loss"] < record["floors"][1]["loss"] - 0.5
    folder = next((tmp_path / "logs" / "mlm_words").iterdir())
    guesses = fill_mask.fill_mask(*fill_mask.load_model(folder), "the cat sees [MASK] dog", top_k=3)
    assert "the" in [guess.token for guess in guesses[0]]


def test_killed_and_resumed_is_as_if_nothing_happened(corpus_file: Path, tmp_path: Path) -> None:
    """SIGKILL, `--resume`, and every tensor of the end equals that of the uninterrupted run."""
    options = ["--corpus", corpus_file, "--steps", 500, "--hidden-dropout-prob", 0.1]
    run(*options, "--runs", "whole", cwd=tmp_path)
    (whole,) = (tmp_path / "whole" / "mlm_tiny").iterdir()
    _, expected = load_checkpoint(whole)
    for delay in (0.0, 1.4):
        runs = tmp_path / f"killed-{delay}"
        process = subprocess.Popen(
            command(*options, "--runs", runs, "--checkpoint-seconds", 0),
            cwd=tmp_path,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        while not list(runs.glob(f"*/*/{CHECKPOINT}")):
            assert process.poll() is None
            time.sleep(0.01)
        time.sleep(delay)
        process.kill()
        assert process.wait() == -signal.SIGKILL
        (folder,) = (runs / "mlm_tiny").iterdir()
        assert load_checkpoint(folder)[0]["step"] < 500
        script = str(ROOT / "experiments" / "mlm_tiny.py")
        resume = [sys.executable, script, "--resume", str(folder)]
        run_again = subprocess.run(resume, cwd=tmp_path, capture_output=True, text=True)
        assert run_again.returncode == 0, run_again.stderr
        _, tensors = load_checkpoint(folder)
        assert tensors.keys() == expected.keys()
        assert [key for key in tensors if not torch.equal(tensors[key], expected[key])] == [], delay


def test_a_killed_run_loses_at_most_ten_seconds_of_metrics(corpus_file: Path, tmp_path: Path) -> None:
    process = subprocess.Popen(
        command("--corpus", corpus_file, "--steps", 10**6), cwd=tmp_path, stdout=subprocess.DEVNULL
    )
    while not (found := list(tmp_path.glob("logs/*/*/log.jsonl"))):
        assert process.poll() is None
        time.sleep(0.1)
    time.sleep(12)
    checkpoint = load_checkpoint(found[0].parent)[0]
    started = (found[0].parent / "tokenizer.json").stat().st_mtime
    ran = time.time() - started
    process.kill()
    process.wait()
    assert checkpoint["step"] == 0, (
        "before the first thirty seconds are over the only checkpoint is the first"
    )
    assert read_metrics(found[0].parent)["seconds"][-1][1] > ran - 10


def test_ctrl_c_saves_and_says_how_to_go_on(corpus_file: Path, tmp_path: Path) -> None:
    out = stopped_by_ctrl_c(command("--corpus", corpus_file, "--minutes", 5), tmp_path)
    again = shlex.split(out.splitlines()[-1])
    assert again[-2] == "--resume"
    assert load_checkpoint(tmp_path / again[-1])[0]["step"] > 0


def write_bad_files(folder: Path) -> None:
    (folder / "good.txt").write_text(small_text(100))
    (folder / "empty.txt").write_text("")
    (folder / "blank.txt").write_text(" \n\n")
    (folder / "short.txt").write_text("too short")
    (folder / "latin1.txt").write_bytes("é".encode("latin-1") * 1000)
    (folder / "folder").mkdir()
    (folder / "empties").mkdir()
    (folder / "empties" / "a.txt").write_text("")
    for name in ("rubbish", "half", "flipped", "before", "other", "good", "pickle", "flipped_model"):
        (folder / name).mkdir()
    config = BertConfig(
        vocab_size=9, hidden_size=8, num_hidden_layers=1, num_attention_heads=1, intermediate_size=8
    )
    torch.manual_seed(0)
    tensors = {f"model.{name}": p for name, p in BertForMaskedLM(config).named_parameters()}
    for name, experiment in (("good", "mlm_tiny"), ("other", "bert_tiny"), ("before", "mlm_tiny")):
        configuration = {"experiment": experiment, "corpus": "gone.txt", "model": asdict(config)}
        about = {"step": 3, "seconds": 1.0, "configuration": configuration}
        write_tensors(folder / name / CHECKPOINT, tensors, {"about": json.dumps(about)})
    for name in ("good", "pickle", "flipped_model"):
        character_tokenizer(["abcd"]).save(str(folder / name / "tokenizer.json"))
    odd = {"wordy": ({"hidden_size": "wide"}, 3, 1.0), "early": ({}, -1, 0.5)}
    for name, (changes, step, seconds) in odd.items():
        (folder / name).mkdir()
        about = {"step": step, "seconds": seconds, "configuration": {"experiment": "mlm_tiny", **changes}}
        write_tensors(folder / name / CHECKPOINT, tensors, {"about": json.dumps(about)})
    whole = (folder / "good" / CHECKPOINT).read_bytes()
    (folder / "before" / CHECKPOINT).rename(folder / "before" / PREVIOUS)
    (folder / "rubbish" / CHECKPOINT).write_bytes(b"rubbish")
    (folder / "half" / CHECKPOINT).write_bytes(whole[: len(whole) // 2])
    for name in ("flipped", "before"):
        (folder / name / CHECKPOINT).write_bytes(flipped(whole, len(whole) - 100))
    (folder / "pickle" / "config.json").write_text(json.dumps(asdict(config)))
    (folder / "pickle" / "pytorch_model.bin").write_bytes(b"")
    model = folder / "flipped_model"
    BertForMaskedLM(config).save_pretrained(model)
    data = (model / "model.safetensors").read_bytes()
    (model / "model.safetensors").write_bytes(flipped(data, len(data) - 100))


def flipped(data: bytes, at: int) -> bytes:
    """`data` with one bit the other way round."""
    return data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]


# What is typed, and words of the one line that answers.
BAD_INPUT = {
    "unknown corpus": (["--corpus", "nonsense"], "no corpus or file is called 'nonsense'"),
    "missing file": (["--corpus", "./missing.txt"], "no corpus or file is called './missing.txt'"),
    "empty file": (["--corpus", "empty.txt"], "empty.txt is empty"),
    "blank file": (["--corpus", "blank.txt"], "blank.txt is empty"),
    "folder without files": (["--corpus", "folder"], "has no files"),
    "folder of empty files": (["--corpus", "empties"], "empties are empty"),
    "file shorter than a sequence": (["--corpus", "short.txt"], "shorter than one sequence of 128"),
    "held-out tenth too short": (["--corpus", "good.txt", "--schedule", "1024", "--max-position-embeddings",
                                  "1024"], "the held-out tenth of the text has"),
    "not UTF-8": (["--corpus", "latin1.txt"], "latin1.txt is not UTF-8 (byte 0)"),
    "length above the positions": (["--corpus", "good.txt", "--schedule", "16,256"],
                                   "max_position_embeddings is 128"),
    "heads that do not divide": (["--corpus", "good.txt", "--hidden-size", "130"], "not divisible by"),
    "schedule of letters": (["--schedule", "a,b"], "bad schedule 'a,b'"),
    "schedule that falls": (["--schedule", "64,32"], "lengths must grow"),
    "GPU that is not there": (["--device", "cuda:99"], "device 'cuda:99' is not available"),
    "no time": (["--minutes", "0"], "minutes is 0.0; it must be above 0"),
    "no steps": (["--steps", "0"], "steps is 0"),
    "both budgets": (["--steps", "1", "--minutes", "1"], "give --steps or --minutes, not both"),
    "batch below a sequence": (["--corpus", "good.txt", "--batch-tokens", "64"], "do not hold one sequence"),
    "share above one": (["--corpus", "good.txt", "--mlm-probability", "2"], "mlm_probability is 2.0"),
    "dropout of one": (["--corpus", "good.txt", "--hidden-dropout-prob", "1"], "hidden_dropout_prob is 1.0"),
    "tokenizer of a third kind": (["--tokenizer", "byte"], "invalid choice: 'byte'"),
    "run folder that is a file": (["--corpus", "good.txt", "--runs", "good.txt"], "cannot write runs"),
    "record in no folder": (["--corpus", "good.txt", "--record", "no/r.json"], "cannot write 'no/r.json'"),
    "record that is a folder": (["--corpus", "good.txt", "--record", "folder"], "it is there and is no file"),
    "record that is a device": (["--corpus", "good.txt", "--record", "/dev/null"], "is no file"),
    "record without a name": (["--corpus", "good.txt", "--record", ""], "cannot write"),
    "no spread of the weights": (["--corpus", "good.txt", "--initializer-range", "0"], "must be above 0"),
    "endless time": (["--minutes", "inf"], "above 0 and finite"),
    "memory of Adam of one": (["--adam-beta2", "1"], "adam_beta2 is 1.0"),
    "decay below zero": (["--weight-decay", "-1"], "weight_decay is -1.0"),
    "negative seed": (["--seed", "-1"], "seed is -1"),
    "nothing masked": (["--mlm-probability", "0"], "mlm_probability is 0.0"),
    "device without numbers": (["--device", "meta"], "device 'meta' is not available"),
    "corpus without a name": (["--corpus", ""], "no corpus or file is called ''"),
    "model larger than memory": (["--corpus", "good.txt", "--hidden-size", "4000000"], "more memory"),
    "vocabulary beyond numbers": (["--corpus", "good.txt", "--tokenizer", "word", "--vocab-size", "9" * 20],
                                  "error:"),
    "checkpoints never": (["--checkpoint-seconds", "nan"], "checkpoint_seconds is nan"),
    "resume of nothing": (["--resume", "logs/nothing"], "there is no run at logs/nothing"),
    "tiny vocabulary": (["--corpus", "good.txt", "--tokenizer", "word", "--vocab-size", "3"], "vocab"),
    "weights beyond numbers": (["--schedule", "16:1e308,32:1e308"], "their sum finite"),
    "weight of nothing": (["--schedule", "16:0,32:1"], "every weight must be above 0"),
    "schedule without a length": (["--schedule", ""], "bad schedule ''"),
    "length of one": (["--schedule", "1,32"], "at least 2 tokens"),
    "steps in words": (["--steps", "many"], "invalid int value: 'many'"),
    "option that is none": (["--layers", "3"], "unrecognized arguments: --layers 3"),
    "option without a value": (["--steps"], "expected one argument"),
    "rate of nothing": (["--corpus", "good.txt", "--learning-rate", "0"], "learning_rate is 0.0"),
    "rate that is no number": (["--corpus", "good.txt", "--learning-rate", "nan"], "learning_rate is nan"),
    "nothing but warm-up": (["--corpus", "good.txt", "--warmup-ratio", "1"], "warmup_ratio is 1.0"),
    "no layers": (["--corpus", "good.txt", "--num-hidden-layers", "0"], "num_hidden_layers is 0"),
    "no turns": (["--corpus", "good.txt", "--gradient-accumulation-steps", "0"], "must be at least 1"),
    "more turns than rows": (["--corpus", "good.txt", "--gradient-accumulation-steps", "17"],
                             "too few for 17 parts"),
    "resume of rubbish": (["--resume", "rubbish"], "is damaged"),
    "resume of half a checkpoint": (["--resume", "half"], "is damaged"),
    "resume of one flipped bit": (["--resume", "flipped"], "does not have the sha256"),
    "resume of damage with one before": (["--resume", "before"], "of step 3, is whole: rename"),
    "resume of another experiment": (["--resume", "other"], "is a run of bert_tiny, not of mlm_tiny"),
    "resume without the text": (["--resume", "good"], "no corpus or file is called"),
    "resume of sizes in words": (["--resume", "wordy"], "hidden_size = 'wide', which no run has"),
    "resume from before it began": (["--resume", "early"], "step -1 at 0.5 seconds"),
}  # fmt: skip

# The same of the other programs.
MORE_BAD_INPUT = {
    "attention without a model": ("attention_map", [], "no run under logs"),
    "attention without a mask": ("attention_map", ["none here", "--run", "good"], "no [MASK] in the text"),
    "attention of a run that is not there": ("attention_map", ["--run", "no"], "there is no run at no"),
    "fine-tuning without a model": ("finetune_docstrings", [], "no finished run of bert_tiny"),
    "fine-tuning of nothing": ("finetune_docstrings", ["--model", "folder"], "there is no model in folder"),
    "fine-tuning without seeds": ("finetune_docstrings", ["--seeds", "0"], "seeds is 0"),
    "fine-tuning in words": ("finetune_docstrings", ["--seeds", "few"], "invalid int value: 'few'"),
    "fine-tuning of a pickle": ("finetune_docstrings", ["--model", "pickle"], "is a pickle"),
    "fine-tuning of a flipped bit": ("finetune_docstrings", ["--model", "flipped_model"], "the sha256"),
    "pairs of a pile that is one": ("bert_tiny", ["--corpus", "good.txt"], "two documents to learn from"),
    "masks of a fourth kind": ("bert_tiny", ["--masking", "often"], "invalid choice: 'often'"),
    "Adam of a third kind": ("bert_tiny", ["--adam", "Eve"], "invalid choice: 'Eve'"),
    "a language without text": ("own_language", ["--corpus", "blank.txt"], "blank.txt is empty"),
    "a language that is not there": ("own_language", ["--corpus", "no"], "no corpus or file is called 'no'"),
    "a language without a name": ("own_language", ["--corpus"], "expected one argument"),
    "words that are none": ("mlm_words", ["--corpus", "latin1.txt"], "is not UTF-8"),
}  # fmt: skip


CASES = {name: ("mlm_tiny", *case) for name, case in BAD_INPUT.items()} | MORE_BAD_INPUT


def test_the_table_of_bad_input_has_forty_kinds() -> None:
    assert len(CASES) == len(BAD_INPUT) + len(MORE_BAD_INPUT) >= 40


@pytest.mark.parametrize("case", CASES)
def test_bad_input_gets_one_line_and_exit_code_2(
    case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    experiment, arguments, words = CASES[case]
    write_bad_files(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    with pytest.raises(SystemExit) as stopped:
        main_in_process(monkeypatch, tmp_path, *arguments, experiment=experiment)
    assert stopped.value.code == 2
    error = capsys.readouterr().err
    assert words in error
    assert re.fullmatch("error: .+\n", error)
    after = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    assert after == before, "something was written or lost"


@pytest.mark.parametrize(("status", "words"), [(200, "sha256"), (404, "cannot download")])
def test_a_download_that_fails_is_bad_input_too(
    server, status: int, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(corpora, "TINY_SHAKESPEARE_URL", server.url)
    server.status, server.body = status, b"<html>please sign in</html>"
    with pytest.raises(SystemExit) as stopped:
        main_in_process(monkeypatch, tmp_path, "--corpus", "tiny-shakespeare")
    assert stopped.value.code == 2
    assert words in capsys.readouterr().err
    assert not (tmp_path / "logs").exists()


def test_resume_with_other_options_or_another_text_is_refused(
    corpus_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run("--corpus", corpus_file, "--steps", 3, cwd=tmp_path)
    (folder,) = (tmp_path / "logs" / "mlm_tiny").iterdir()

    def refused(*arguments: str) -> str:
        # The process that asks has to end before another may train there.
        copy = shutil.copytree(folder, tmp_path / f"copy {len(list(tmp_path.iterdir()))}")
        with pytest.raises(SystemExit) as stopped:
            main_in_process(monkeypatch, tmp_path, "--resume", copy, *arguments)
        assert stopped.value.code == 2
        assert (copy / CHECKPOINT).read_bytes() == (folder / CHECKPOINT).read_bytes()
        error = capsys.readouterr().err
        assert re.fullmatch("error: .*\n", error)
        return error

    assert "made with hidden_size = 32, not 64" in refused("--hidden-size", "64")
    assert "made with steps = 3, not 9" in refused("--steps", "9")
    corpus_file.write_text(small_text(1000, seed=1))
    assert "corpus_sha256" in refused()


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
def test_bad_questions(
    run_folder: Path, arguments: list[str], words: str, monkeypatch: pytest.MonkeyPatch, capsys
) -> None:
    monkeypatch.chdir(run_folder.parent.parent.parent)
    with pytest.raises(SystemExit) as stopped:
        fill_mask.main(arguments)
    assert stopped.value.code == 2
    error = capsys.readouterr().err
    assert words in error
    assert error.count("\n") == 1


@pytest.fixture(scope="module")
def run_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of a few steps."""
    folder = tmp_path_factory.mktemp("finished")
    (folder / "text.txt").write_text(small_text(1000))
    run("--corpus", "text.txt", "--steps", 3, cwd=folder)
    return next((folder / "logs" / "mlm_tiny").iterdir())


def test_a_folder_without_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as stopped:
        fill_mask.main(["[MASK]"])
    assert stopped.value.code == 2
    assert "make train" in capsys.readouterr().err
