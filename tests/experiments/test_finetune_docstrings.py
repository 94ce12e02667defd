"""The experiment on labeled docstrings as a user runs it."""

import json
import os
import re
import shutil
import subprocess
import sys
from itertools import islice
from pathlib import Path

import pytest
import torch

from labml_bert.bert import BertConfig
from labml_bert.data.corpora import python_documents
from labml_bert.data.tokenizers import save_tokenizer, wordpiece_tokenizer
from labml_bert.models import BertForMaskedLM

SCRIPT = Path(__file__).parents[2] / "experiments" / "finetune_docstrings.py"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder whose `logs/` contains a run with an untrained model."""
    folder = tmp_path_factory.mktemp("work")
    model = folder / "logs" / "bert_tiny" / "20260101-000000" / "model"
    documents = [text for _, text in islice(python_documents(), 100)]
    tokenizer = wordpiece_tokenizer(documents, 600)
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=tokenizer.get_vocab_size(),
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=16,
        max_position_embeddings=32,
    )
    BertForMaskedLM(config).save_pretrained(model)
    save_tokenizer(tokenizer, model)
    return folder


def run(cwd: Path, *arguments: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(SCRIPT), *map(str, arguments)],
        cwd=cwd,
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(SCRIPT.parents[1])},
    )


@pytest.mark.long
@pytest.mark.processes
def test_the_output_and_the_record(folder: Path) -> None:
    small = ["--labels", "20", "60", "--pairs", "40", "--seeds", "2", "--steps", "4", "--device", "cpu"]
    process = run(folder, *small, "--record", "result.json")
    assert process.returncode == 0, process.stderr
    assert process.stderr == ""
    assert max(map(len, process.stdout.splitlines())) <= 80
    for words in ("pretrained", "from scratch", "bag of words", "package, 20 labels", "summary, 40 labels"):
        assert words in process.stdout
    text = (folder / "result.json").read_text()
    assert str(folder) not in text
    record = json.loads(text)
    assert {"experiment", "command", "date", "commit", "versions", "hardware", "configuration"} <= {*record}
    table = record["table"]
    arms = ["pretrained", "from scratch", "bag of words"]
    expected = [("package", n, arm, s) for n in (20, 60) for arm in arms for s in (0, 1)]
    expected += [("summary", 40, arm, s) for arm in arms for s in (0, 1)]
    assert [(r["task"], r["labels"], r["arm"], r["seed"]) for r in table] == expected
    for row in table:
        assert 0 <= row["macro_f1"] <= 1 and 0 <= row["accuracy"] <= 1
        assert (row["learning_rate"] is None) == (row["arm"] == "bag of words")
    assert table[0]["losses"][0] == pytest.approx(3.0, abs=0.5), "the loss starts at ln 20"
    package = record["tasks"]["package"]
    assert sum(package["train_texts_by_label"].values()) == package["train"]
    means = re.findall(r"bag of words +([\d.]+)%", process.stdout)
    bags = [row["accuracy"] for row in table if row["arm"] == "bag of words"]
    for mean, first, second in zip(means, bags[::2], bags[1::2], strict=True):
        assert float(mean) == pytest.approx(50 * (first + second), abs=0.051)


def replace_tokenizer(model: Path) -> None:
    save_tokenizer(wordpiece_tokenizer(["some other text"], 60), model)


BAD_INPUT = {
    "no model": (["--model", "nowhere"], None, "there is no model in nowhere"),
    "a folder without a model": (["--model", "."], None, "no config.json"),
    "no tokenizer": ([], lambda model: (model / "tokenizer.json").unlink(), "tokenizer.json is missing"),
    "another tokenizer": ([], replace_tokenizer, "that was saved with the model"),
    "damaged weights": ([], lambda model: (model / "model.safetensors").write_bytes(b"\0"), "damaged"),
    "more labels than texts": (["--labels", "100", "999999"], None, "999999 labels for package; it has"),
    "more pairs than texts": (["--pairs", "999999"], None, "999999 labels for summary; it has"),
    "too few labels": (["--labels", "4"], None, "--labels is 4; it must be at least 5"),
    "labels that are not a number": (["--labels", "many"], None, "--labels is 'many'; use a number, or all"),
    "a fraction of pairs": (["--pairs", "1.5"], None, "--pairs is '1.5'; use a number, or all"),
    "a number of labels with many digits": (["--labels", "9" * 5000], None, "--labels is '9"),
    "no seeds": (["--seeds", "0"], None, "seeds is 0"),
    "no steps": (["--steps", "0"], None, "steps is 0"),
    "record in a missing folder": (["--record", "no/r.json"], None, "cannot write 'no/r.json'"),
    "record that is a folder": (["--record", "logs"], None, "it exists and is not a file"),
    "GPU that does not exist": (["--device", "cuda:99"], None, "device 'cuda:99' is not available"),
}


@pytest.mark.slow("reads all docstrings of the standard library")
@pytest.mark.parametrize("case", BAD_INPUT)
def test_bad_input_gets_one_line_and_exit_code_2(
    case: str, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys, main
) -> None:
    arguments, damage, words = BAD_INPUT[case]
    shutil.copytree(folder / "logs", tmp_path / "logs")
    if damage:
        damage(next(tmp_path.glob("logs/*/*/model")))
    monkeypatch.chdir(tmp_path)
    files_before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    with pytest.raises(SystemExit) as exit_info:
        main(arguments)
    assert exit_info.value.code == 2
    error = capsys.readouterr().err
    assert error.startswith("error: ") and error.count("\n") == 1 and words in error
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == files_before


@pytest.mark.processes
def test_without_a_run_the_error_says_how_to_train_one(tmp_path: Path) -> None:
    process = run(tmp_path)
    assert process.returncode == 2
    assert re.fullmatch("error: no finished run of bert_tiny under logs; .*bert_tiny.py.*\n", process.stderr)
    assert [*tmp_path.iterdir()] == []


@pytest.fixture(scope="module")
def main():
    """The experiment, imported into this process, which reads the docstrings only once."""
    import runpy

    names = runpy.run_path(str(SCRIPT))
    docstrings = names["distinct_docstrings"]()
    names["main"].__globals__["distinct_docstrings"] = lambda: docstrings
    return names["main"]
