"""Files of labels and small runs, good and bad, and a check of the errors."""

import contextlib
import csv
import json
from pathlib import Path

import pytest

from labml_bert import classify
from labml_bert.files import write_tensors
from labml_bert.models import BertForMaskedLM
from labml_bert.training.checkpoint import CHECKPOINT

# Twenty rows, half of them with each label.
ROWS = [(f"text {i}", "ab"[i % 2]) for i in range(20)]
HEADER = "text,label\n"
GOOD = "\n".join(map(",".join, ROWS))


def write_csv(path: Path, rows: list[tuple[str, ...]], header: tuple[str, ...] = ("text", "label")) -> Path:
    with path.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows([header, *rows])
    return path


def save_run(folder: Path, model: BertForMaskedLM, configuration: dict[str, object]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    tensors = {f"model.{name}": p for name, p in model.named_parameters()}
    metadata = {"step": 3, "seconds": 1.0, "configuration": {"experiment": "mlm_tiny", **configuration}}
    write_tensors(folder / CHECKPOINT, tensors, {"about": json.dumps(metadata)})


def assert_fails(
    folder: Path, arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """In this folder, `classify` prints one line, exits with code 2, and leaves all files as they are."""
    before = sorted(folder.rglob("*"))
    with contextlib.chdir(folder), pytest.raises(SystemExit) as exit_info:
        classify.main(arguments)
    assert exit_info.value.code == 2
    captured = capsys.readouterr()
    assert captured.out == "" and captured.err.startswith("error: ") and captured.err.count("\n") == 1
    assert message in captured.err
    assert sorted(folder.rglob("*")) == before
