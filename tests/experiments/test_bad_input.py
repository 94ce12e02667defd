"""Every experiment answers bad input with a one-line error and exit code 2."""

import gzip
import json
import os
import re
import shutil
from dataclasses import asdict
from pathlib import Path

import pytest
import torch

from labml_bert.bert import BertConfig
from labml_bert.data import corpora
from labml_bert.data.tokenizers import character_tokenizer
from labml_bert.files import write_tensors
from labml_bert.models import BertForMaskedLM
from labml_bert.training.checkpoint import CHECKPOINT, PREVIOUS
from tests.support.damage import flip_bit
from tests.support.runs import ROOT, main_in_process, small_text


@pytest.fixture(scope="module")
def bad_files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of texts, runs and models, most of them damaged in different ways."""
    folder = tmp_path_factory.mktemp("bad-files")
    (folder / "good.txt").write_text(small_text(100))
    (folder / "empty.txt").write_text("")
    (folder / "blank.txt").write_text(" \n\n")
    (folder / "blank_end.txt").write_text("some text " * 500 + "\n" * 10_000)
    (folder / "short.txt").write_text("too short")
    (folder / "latin1.txt").write_bytes("é".encode("latin-1") * 1000)
    (folder / "good.txt.gz").write_bytes(gzip.compress(small_text(400).encode()))
    (folder / "bytes").write_bytes(bytes(range(256)) * 9)
    (folder / "one.txt").write_text("\n\n".join(["One sentence here. Another one there."] * 20))
    for name in ("documents", "unbroken"):
        (folder / name).mkdir()
        for i in range(30):
            text = small_text(40, seed=i)
            text = text.replace(".", "").replace("\n", " ") if name == "unbroken" else text
            (folder / name / f"{i}.txt").write_text(text)
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
        metadata = {"step": 3, "seconds": 1.0, "configuration": configuration}
        write_tensors(folder / name / CHECKPOINT, tensors, {"about": json.dumps(metadata)})
    for name in ("good", "pickle", "flipped_model"):
        character_tokenizer(["abcd"]).save(str(folder / name / "tokenizer.json"))
    invalid_runs = {
        "wordy": ({"hidden_size": "wide"}, 3, 1.0),
        "flag": ({"seed": True}, 3, 1.0),
        "early": ({}, -1, 0.5),
    }
    for name, (changes, step, seconds) in invalid_runs.items():
        (folder / name).mkdir()
        metadata = {"step": step, "seconds": seconds, "configuration": {"experiment": "mlm_tiny", **changes}}
        write_tensors(folder / name / CHECKPOINT, tensors, {"about": json.dumps(metadata)})
    intact = (folder / "good" / CHECKPOINT).read_bytes()
    (folder / "before" / CHECKPOINT).rename(folder / "before" / PREVIOUS)
    (folder / "rubbish" / CHECKPOINT).write_bytes(b"rubbish")
    (folder / "half" / CHECKPOINT).write_bytes(intact[: len(intact) // 2])
    for name in ("flipped", "before"):
        (folder / name / CHECKPOINT).write_bytes(flip_bit(intact, len(intact) - 100))
    (folder / "pickle" / "config.json").write_text(json.dumps(asdict(config)))
    (folder / "pickle" / "pytorch_model.bin").write_bytes(b"")
    model = folder / "flipped_model"
    BertForMaskedLM(config).save_pretrained(model)
    data = (model / "model.safetensors").read_bytes()
    (model / "model.safetensors").write_bytes(flip_bit(data, len(data) - 100))
    return folder


# Each case has the arguments and a part of the error message.
BAD_INPUT = {
    "unknown corpus": (["--corpus", "nonsense"], "no corpus or file is called 'nonsense'"),
    "missing file": (["--corpus", "./missing.txt"], "no corpus or file is called './missing.txt'"),
    "empty file": (["--corpus", "empty.txt"], "empty.txt is empty"),
    "blank end": (["--corpus", "blank_end.txt"], "the held-out tenth of the text is blank"),
    "blank file": (["--corpus", "blank.txt"], "blank.txt is empty"),
    "folder without files": (["--corpus", "folder"], "has no files"),
    "folder of empty files": (["--corpus", "empties"], "empties are empty"),
    "file shorter than a sequence": (["--corpus", "short.txt"], "shorter than one sequence of 128"),
    "held-out tenth too short": (["--corpus", "good.txt", "--schedule", "1024", "--max-position-embeddings",
                                  "1024"], "the held-out tenth of the text has"),
    "not UTF-8": (["--corpus", "latin1.txt"], "latin1.txt is not UTF-8 (line 1)"),
    "compressed": (["--corpus", "good.txt.gz"], "good.txt.gz is compressed, or not a text"),
    "bytes": (["--corpus", "bytes"], "bytes is compressed, or not a text"),
    "length above the positions": (["--corpus", "good.txt", "--schedule", "16,256"],
                                   "max_position_embeddings is 128"),
    "indivisible hidden size": (["--corpus", "good.txt", "--hidden-size", "130"], "not divisible by"),
    "schedule of letters": (["--schedule", "a,b"], "bad schedule 'a,b'"),
    "decreasing schedule": (["--schedule", "64,32"], "lengths must increase"),
    "GPU that does not exist": (["--device", "cuda:99"], "device 'cuda:99' is not available"),
    "no threads": (["--threads", "0"], "threads is '0'; it must be auto, default or a number"),
    "no time": (["--corpus", "good.txt", "--minutes", "0"], "minutes is 0.0; it must be above 0"),
    "no steps": (["--corpus", "good.txt", "--steps", "0"], "steps is 0"),
    "both budgets": (["--steps", "1", "--minutes", "1"], "use --steps or --minutes, not both"),
    "too small a batch": (["--corpus", "good.txt", "--batch-tokens", "64"], "too few for one sequence"),
    "probability above one": (["--corpus", "good.txt", "--mlm-probability", "2"], "mlm_probability is 2.0"),
    "dropout of one": (["--corpus", "good.txt", "--hidden-dropout-prob", "1"], "hidden_dropout_prob is 1.0"),
    "unknown precision": (["--precision", "fp8"], "invalid choice 'fp8'"),
    "run folder that is a file": (["--corpus", "good.txt", "--runs", "good.txt"], "cannot write runs"),
    "record in no folder": (["--corpus", "good.txt", "--record", "no/r.json"], "cannot write 'no/r.json'"),
    "record that is a folder": (["--corpus", "good.txt", "--record", "folder"], "is not a file"),
    "record that is a device": (["--corpus", "good.txt", "--record", "/dev/null"], "is not a file"),
    "record that is the corpus": (["--corpus", "good.txt", "--record", "good.txt"], "is not a record"),
    "record that is another JSON file": (["--record", "pickle/config.json"], "is not a record; choose"),
    "empty record name": (["--corpus", "good.txt", "--record", ""], "the value after --record is empty"),
    "initializer range of zero": (["--corpus", "good.txt", "--initializer-range", "0"], "must be above 0"),
    "infinite time": (["--corpus", "good.txt", "--minutes", "inf"], "above 0 and finite"),
    "Adam beta2 of one": (["--corpus", "good.txt", "--adam-beta2", "1"], "adam_beta2 is 1.0"),
    "negative weight decay": (["--corpus", "good.txt", "--weight-decay", "-1"], "weight_decay is -1.0"),
    "negative seed": (["--corpus", "good.txt", "--seed", "-1"], "seed is -1"),
    "size with an exponent": (["--hidden-size", "1e2"], "--hidden-size: '1e2' is not an integer"),
    "infinite checkpoint interval": (["--corpus", "good.txt", "--checkpoint-seconds", "inf"],
                                     "checkpoint_seconds is inf; it must be 0 or more and finite"),
    "nothing masked": (["--corpus", "good.txt", "--mlm-probability", "0"], "mlm_probability is 0.0"),
    "meta device": (["--device", "meta"], "device 'meta' is not available"),
    "empty corpus name": (["--corpus", ""], "the value after --corpus is empty"),
    "empty run folder": (["--corpus", "good.txt", "--runs="], "--runs= has no value; write one"),
    "model larger than memory": (["--corpus", "good.txt", "--hidden-size", "400000000"], "out of memory"),
    "hidden size that overflows": (["--hidden-size", "4000000000"], "must be at most 2,147,483,647"),
    "batch that overflows": (["--corpus", "good.txt", "--batch-tokens", "9" * 20], "batch_tokens is 9"),
    "two million layers": (["--corpus", "good.txt", "--num-hidden-layers", "2000000"], "at most 1,000"),
    "endless minutes": (["--corpus", "good.txt", "--minutes", "1e308"], "minutes is 1e+308"),
    "endless steps": (["--corpus", "good.txt", "--steps", str(2**63 - 1)], "steps is 9223372036854775807"),
    "endless corpus": (["--corpus", "/dev/zero"], "/dev/zero is not a regular file"),
    "corpus that nobody writes": (["--corpus", "pipe"], "pipe is not a regular file"),
    "checkpoint interval of NaN": (["--corpus", "good.txt", "--checkpoint-seconds", "nan"],
                                   "checkpoint_seconds is nan"),
    "resume of a missing run": (["--resume", "logs/nothing"], "there is no run at logs/nothing"),
    "schedule weights that overflow": (["--schedule", "16:1e308,32:1e308"], "their sum finite"),
    "schedule weight of zero": (["--schedule", "16:0,32:1"], "every weight must be above 0"),
    "empty schedule": (["--schedule", ""], "the value after --schedule is empty"),
    "length of two": (["--schedule", "2,32"], "at least 3 tokens"),
    "steps that are not a number": (["--steps", "many"], "--steps: 'many' is not a valid int"),
    "unknown option": (["--layers", "3"], "Unrecognized options: --layers, 3"),
    "option without a value": (["--steps"], "Missing value for argument '--steps'"),
    "learning rate of zero": (["--corpus", "good.txt", "--learning-rate", "0"], "learning_rate is 0.0"),
    "learning rate of NaN": (["--corpus", "good.txt", "--learning-rate", "nan"], "learning_rate is nan"),
    "nothing but warm-up": (["--corpus", "good.txt", "--warmup-ratio", "1"], "warmup_ratio is 1.0"),
    "sizes before the text": (["--corpus", "./missing.txt", "--hidden-size", "0"], "hidden_size is 0"),
    "batch before the text": (["--corpus", "./missing.txt", "--batch-tokens", "0"], "0 tokens per step are"),
    "schedule before the text": (["--corpus", "./missing.txt", "--schedule", "1"], "at least 3 tokens"),
    "positions before the text": (["--corpus", "./missing.txt", "--max-position-embeddings", "64"],
                                  "the schedule reaches length 128 but max_position_embeddings is 64"),
    "no layers": (["--corpus", "good.txt", "--num-hidden-layers", "0"], "num_hidden_layers is 0"),
    "no micro-batches": (["--corpus", "good.txt", "--gradient-accumulation-steps", "0"],
                         "must be at least 1"),
    "more micro-batches than rows": (["--corpus", "good.txt", "--gradient-accumulation-steps", "17"],
                                    "too few for 17 micro-batches"),
    "resume of random bytes": (["--resume", "rubbish"], "is damaged"),
    "resume of a truncated checkpoint": (["--resume", "half"], "is damaged"),
    "resume with a flipped bit": (["--resume", "flipped"], "does not have the sha256"),
    "resume with an intact previous one": (["--resume", "before"], "step 3, is intact: move checkpoint"),
    "resume of another experiment": (["--resume", "other"], "is a run of bert_tiny, not of mlm_tiny"),
    "resume without the text": (["--resume", "good"], "no corpus or file is called"),
    "resume of a seed that is a flag": (["--resume", "flag"], "seed = True, which is not valid"),
    "resume of a size that is text": (["--resume", "wordy"], "hidden_size = 'wide', which is not valid"),
    "resume from a negative step": (["--resume", "early"], "step is -1"),
}  # fmt: skip


# For the other programs, each case begins with the program.
MORE_BAD_INPUT = {
    "attention without a model": ("attention_map", [], "no run under logs"),
    "attention without a mask": ("attention_map", ["none here", "--run", "good"], "no [MASK] in the text"),
    "attention of a missing run": ("attention_map", ["--run", "no"], "there is no run at no"),
    "scrambles without a model": ("acceptability", [], "no run under logs"),
    "retrieval without a model": ("retrieval", [], "no run under logs"),
    "scrambles of a run without its text": ("acceptability", ["--run", "good"], "no corpus or file is"),
    "fine-tuning without a model": ("finetune_docstrings", [], "no finished run of bert_tiny"),
    "fine-tuning of a folder": ("finetune_docstrings", ["--model", "folder"], "there is no model in folder"),
    "fine-tuning without seeds": ("finetune_docstrings", ["--seeds", "0"], "seeds is 0"),
    "seeds that are not a number": ("finetune_docstrings", ["--seeds", "few"], "'few' is not an integer"),
    "fine-tuning of a pickle": ("finetune_docstrings", ["--model", "pickle"], "is a pickle"),
    "fine-tuning of a flipped bit": ("finetune_docstrings", ["--model", "flipped_model"], "the sha256"),
    "pairs of a single text": ("bert_tiny", ["--corpus", "good.txt"], "two documents for training"),
    "pairs without sentence breaks": ("bert_tiny", ["--corpus", "unbroken"], "no sentence breaks"),
    "sizes before the pairs": (
        "bert_tiny",
        ["--corpus", "unbroken", "--hidden-size", "130"],
        "hidden_size 130 is not divisible by num_attention_heads 4",
    ),
    "pairs of one document": ("bert_tiny", ["--corpus", "one.txt"],
                              "two documents for training and two held out"),
    "pairs longer than a step": ("bert_tiny", ["--corpus", "documents", "--batch-tokens", "64"],
                                 "too few for one sequence of 128"),
    "pairs without masks": ("bert_tiny", ["--corpus", "documents", "--mlm-probability", "0"],
                            "mlm_probability is 0.0; it must be above 0 and at most 1"),
    "pairs of three tokens": ("bert_tiny", ["--corpus", "documents", "--schedule", "3"], "max_length is 3"),
    "pairs with a vocabulary below the alphabet": ("bert_tiny", ["--corpus", "documents", "--vocab-size",
                                                   "12"], "alphabet"),
    "resume of a missing run on pairs": ("bert_tiny", ["--resume", "no"], "there is no run at no"),
    "unknown masking": ("bert_tiny", ["--masking", "often"], "invalid choice 'often'"),
    "unknown Adam": ("bert_tiny", ["--adam", "Eve"], "invalid choice 'Eve'"),
    "a language that nobody writes": ("own_language", ["--corpus", "pipe"], "pipe is not a regular file"),
    "a language without text": ("own_language", ["--corpus", "blank.txt"], "blank.txt is empty"),
    "a language with no corpus": ("own_language", ["--corpus", "no"], "no corpus or file is called 'no'"),
    "a language without an argument": ("own_language", ["--corpus"], "Missing value for argument '--corpus'"),
    "a language with a vocabulary below the alphabet": ("own_language", ["--corpus", "documents",
                                                        "--vocab-size", "12"], "alphabet"),
    "a language with more tokens than positions": ("own_language", ["--corpus", "documents", "--schedule",
                                                   "16,256"], "max_position_embeddings is 128"),
    "a tiny vocabulary": ("mlm_words", ["--corpus", "good.txt", "--vocab-size", "3"], "vocab"),
    "a vocabulary size that overflows": ("mlm_words", ["--corpus", "good.txt", "--vocab-size", "9" * 20],
                                    "error:"),
    "pairs of eleven million tokens": ("bert_tiny", ["--corpus", "documents", "--batch-tokens", "11000000"],
                                    "batch_tokens is 11000000; it must be at most"),
    "a hundred billion pieces": ("bert_tiny", ["--corpus", "documents", "--vocab-size", "100000000000"],
                                 "vocab_size is 100000000000; it must be at most 10,000,000"),
    "rotary positions of odd width": ("mlm_modern", ["--corpus", "good.txt", "--hidden-size", "36",
                                      "--num-attention-heads", "12"], "RoPE turns pairs"),
    "a modern network without width": ("mlm_modern", ["--corpus", "good.txt", "--intermediate-size", "0"],
                                       "intermediate_size is 0"),
    "a modern network that overflows": ("mlm_modern", ["--corpus", "good.txt", "--intermediate-size",
                                        "9" * 20], "intermediate_size is 9"),
    "modern positions that overflow": ("mlm_modern", ["--corpus", "good.txt", "--max-position-embeddings",
                                       "9" * 20], "max_position_embeddings is 9"),
    "too many modern layers": ("mlm_modern", ["--corpus", "good.txt", "--num-hidden-layers", "2000000"],
                               "num_hidden_layers is 2000000; it must be at most 1,000"),
    "a modern batch that overflows": ("mlm_modern", ["--corpus", "good.txt", "--batch-tokens", "9" * 20],
                                      "batch_tokens is 9"),
    "unknown optimizer": ("mlm_modern", ["--optimizer", "sgd"], "optimizer"),
    "words that are not UTF-8": ("mlm_words", ["--corpus", "latin1.txt"], "is not UTF-8"),
}  # fmt: skip


# Every script that writes one record to FILE, except `gpu`, which needs a GPU.
WITH_RECORDS = {
    "acceptability": ["--run", "good"],
    "attention_map": [],
    "bert_tiny": ["--corpus", "documents"],
    "compare_continued": [],
    "continue_pretraining": ["--from", "good", "--corpus", "good.txt"],
    "cost": [],
    "finetune_docstrings": [],
    "finetune_parameters": [],
    "live": ["--corpus", "good.txt"],
    "mlm_modern": ["--corpus", "good.txt"],
    "mlm_tiny": ["--corpus", "good.txt"],
    "mlm_words": ["--corpus", "good.txt"],
    "own_language": ["--corpus", "good.txt"],
    "retrieval": ["--run", "good"],
    "speed": [],
    "speed_ablation": [],
    "speed_modern": [],
}

CASES = {name: ("mlm_tiny", *case) for name, case in BAD_INPUT.items()} | MORE_BAD_INPUT | {
    f"a text in place of the record of {experiment}": (
        experiment, [*arguments, "--record", "good.txt"], "'good.txt': it exists and is not a record"
    )
    for experiment, arguments in WITH_RECORDS.items()
}  # fmt: skip


def test_the_table_of_bad_input_has_forty_kinds() -> None:
    assert len(CASES) == len(BAD_INPUT) + len(MORE_BAD_INPUT) + len(WITH_RECORDS) >= 40


def test_the_table_has_every_script_that_writes_a_record() -> None:
    scripts = [path for path in (ROOT / "experiments").rglob("*.py") if "__main__" in path.read_text()]
    with_records = {
        path.stem for path in scripts if re.search(r"check_record\(|launch\(main", path.read_text())
    }
    assert with_records == {*WITH_RECORDS, "gpu"}


@pytest.mark.parametrize("case", CASES)
def test_bad_input_gets_one_line_and_exit_code_2(
    case: str,
    bad_files: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    experiment, arguments, words = CASES[case]
    shutil.copytree(bad_files, tmp_path, dirs_exist_ok=True)
    os.mkfifo(tmp_path / "pipe")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    # `cost` sets this variable. Set here, it's restored after the test.
    monkeypatch.setenv("PYTHONSAFEPATH", "1")
    files_before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    with pytest.raises(SystemExit) as exit_info:
        main_in_process(monkeypatch, tmp_path, *arguments, experiment=experiment)
    assert exit_info.value.code == 2
    error = capsys.readouterr().err
    assert words in error
    assert re.fullmatch("error: .+\n", error) and "zip()" not in error
    files_after = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    assert files_after == files_before, "a file was written, changed or removed"


@pytest.mark.parametrize("name", ["large", "large/text.txt"])
def test_a_corpus_larger_than_memory_is_bad_input_too(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "large").mkdir()
    with open(tmp_path / "large" / "text.txt", "wb") as file:
        # Nothing is written to the file, so on most file systems it takes no space.
        file.truncate(2**43)
    with pytest.raises(SystemExit) as exit_info:
        main_in_process(monkeypatch, tmp_path, "--corpus", name)
    assert exit_info.value.code == 2
    assert capsys.readouterr().err == "error: out of memory; use a smaller model, batch or text\n"
    assert not (tmp_path / "logs").exists()


@pytest.mark.parametrize(("status", "words"), [(200, "sha256"), (404, "cannot download")])
def test_a_failed_download_is_bad_input_too(
    server, status: int, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(corpora, "TINY_SHAKESPEARE_URL", server.url)
    server.status, server.body = status, b"<html>please sign in</html>"
    with pytest.raises(SystemExit) as exit_info:
        main_in_process(monkeypatch, tmp_path, "--corpus", "tiny-shakespeare")
    assert exit_info.value.code == 2
    assert words in capsys.readouterr().err
    assert not (tmp_path / "logs").exists()
