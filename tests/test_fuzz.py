"""
Every file that a command reads, damaged in thousands of ways: each read gives the right result or one line.

`make fuzz` runs 10,000 new examples of each test. A file with a checksum must give exactly the result of the
intact file. One without, such as a table of labels, may give another, but never a traceback.
"""

import bz2
import contextlib
import gzip
import io
import json
import lzma
import os
import shutil
from collections.abc import Callable, Iterator
from functools import cache, partial
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file

from docs.figures.records import read_records
from docs.literate.rows import PageError
from experiments import mlm_tiny
from labml_bert import modern_folder
from labml_bert.checksums import SUMS
from labml_bert.classify import read_max_length
from labml_bert.data.pair_dataset import MANIFEST, open_dataset
from labml_bert.data.text_files import read_documents, read_files
from labml_bert.data.token_files import read_token_files, write_token_files
from labml_bert.data.tokenizers import read_settings, save_tokenizer
from labml_bert.export import read_history
from labml_bert.files import read_tensors, write_tensors
from labml_bert.fill_mask import fill_mask, load_model
from labml_bert.heads import BertForSequenceClassification
from labml_bert.labeled_file import read_labeled_texts
from labml_bert.models import BertForMaskedLM
from labml_bert.run.options import parse_options
from labml_bert.run.record import describe_training, recorded_experiment
from labml_bert.runs import draw_page, print_runs, read_run
from labml_bert.stdout import console
from labml_bert.training.checkpoint import CHECKPOINT, load_checkpoint
from labml_bert.training.tracking import METRICS, append_metrics, read_metrics
from tests.support.mutations import damaged_bytes, damaged_json, read_as_commands_do
from tests.support.pairs import build_small_dataset
from tests.support.runs import ROOT, small_text
from tests.support.small_models import TEXT, random_model, subword_tokenizer
from tests.support.tiny_run import train_tiny

# Fixtures last for all examples: each example replaces a file in the fixture's folder.
fuzz = settings(suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])


def rarely(divisor: int) -> Any:
    """Settings with a fraction of the profile's examples, for readers that take tens of milliseconds."""
    return settings(fuzz, max_examples=max(1, settings.default.max_examples // divisor))


@pytest.fixture(scope="module")
def run_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train_tiny(tmp_path_factory.mktemp("run"), small_text(300), 1, 16)


def model_folder(folder: Path, kind: str) -> Path:
    tokenizer = subword_tokenizer()
    model = random_model(kind, tokenizer.get_vocab_size(), 1)
    if isinstance(model, BertForMaskedLM):
        model.save_pretrained(folder)
    else:
        modern_folder.save_pretrained(model, folder)
    save_tokenizer(tokenizer, folder)
    return folder


@pytest.fixture(scope="module", params=["bert", "modern"])
def listed(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model folder that we wrote, with checksums."""
    return model_folder(tmp_path_factory.mktemp("listed"), request.param)


@pytest.fixture(scope="module", params=["bert", "modern"])
def foreign(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model folder as other programs write it, without checksums."""
    folder = model_folder(tmp_path_factory.mktemp("foreign"), request.param)
    (folder / SUMS).unlink()
    path = folder / "model.safetensors"
    save_file(read_tensors(path)[0], path, {"format": "pt"})
    return folder


@contextlib.contextmanager
def replaced(path: Path, data: bytes | str) -> Iterator[None]:
    """
    Replaces the contents of a file while the block runs. Restores its time too, because otherwise `datasets`
    would unpack the file into another folder.
    """
    intact, status = path.read_bytes(), path.stat()
    path.write_bytes(data.encode() if isinstance(data, str) else data)
    try:
        yield
    finally:
        path.write_bytes(intact)
        os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


def damaged(data: st.DataObject, intact: bytes) -> bytes | str:
    """Damage to the bytes or, if they are JSON, to the values."""
    with contextlib.suppress(ValueError):
        value = json.loads(intact)
        if data.draw(st.booleans()):
            return data.draw(damaged_json(value))
    return data.draw(damaged_bytes(intact))


def weights(model: torch.nn.Module) -> bytes:
    return b"".join(tensor.numpy().tobytes() for tensor in model.state_dict().values())


@cache
def intact_result(read: Callable[[Path], Any], folder: Path) -> Any:
    return read(folder)


def read_model(folder: Path) -> Any:
    model, tokenizer = load_model(folder)
    return model.config, weights(model), tokenizer.to_str()


@fuzz
@given(data=st.data())
@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "model.safetensors"])
def test_a_model_folder_of_ours(name: str, listed: Path, data: st.DataObject) -> None:
    expected = intact_result(read_model, listed)
    with replaced(listed / name, damaged(data, (listed / name).read_bytes())):
        assert read_as_commands_do(lambda: read_model(listed), str(listed)) in (None, expected)


@fuzz
@given(data=st.data())
@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "model.safetensors"])
def test_a_model_folder_of_others(name: str, foreign: Path, data: st.DataObject) -> None:
    """A model that loads also has to fill a mask."""

    def answer() -> list[Any]:
        model, tokenizer = load_model(foreign)
        return fill_mask(model, tokenizer, f"{TEXT} [MASK] ümlaut\n1")

    with replaced(foreign / name, damaged(data, (foreign / name).read_bytes())):
        read_as_commands_do(answer)


@fuzz
@given(data=st.data())
@pytest.mark.parametrize("name", ["config.json", "tokenizer_config.json"])
@pytest.mark.parametrize("is_listed", [True, False])
def test_a_classifier(
    name: str, is_listed: bool, tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    folder = tmp_path_factory.getbasetemp() / f"classifier {is_listed}"
    if not folder.exists():
        tokenizer = subword_tokenizer()
        config = random_model("bert", tokenizer.get_vocab_size(), 1).config
        BertForSequenceClassification(config, ["bad", "good"]).save_pretrained(folder)
        save_tokenizer(tokenizer, folder, model_max_length=20)
        if not is_listed:
            (folder / SUMS).unlink()

    def read() -> tuple[list[str], int]:
        labels = BertForSequenceClassification.from_pretrained(folder).labels
        return labels, read_max_length(read_settings(folder), 100)

    with replaced(folder / name, damaged(data, (folder / name).read_bytes())):
        result = read_as_commands_do(read, str(folder))
    assert not is_listed or result in (None, (["bad", "good"], 20))


@fuzz
@given(data=st.data())
@pytest.mark.parametrize("name", [CHECKPOINT, "tokenizer.json"])
def test_a_run(name: str, run_folder: Path, data: st.DataObject) -> None:
    def read(folder: Path) -> Any:
        return read_model(folder), read_run(folder)

    expected = intact_result(read_model, run_folder), intact_result(read_run, run_folder)
    with replaced(run_folder / name, damaged(data, (run_folder / name).read_bytes())):
        assert read_as_commands_do(lambda: read(run_folder), str(run_folder)) in (None, expected)


@fuzz
@given(data=st.data())
def test_a_crafted_checkpoint(run_folder: Path, data: st.DataObject) -> None:
    """The checkpoint's checksum is right, but its values make no sense."""
    path = run_folder / CHECKPOINT
    tensors, metadata = read_tensors(path)
    text = data.draw(damaged_json(json.loads(metadata["about"])))
    intact = path.read_bytes()
    write_tensors(path, tensors, {"about": text})
    words = ["--resume", str(run_folder)]

    def list_runs() -> None:
        run = read_run(run_folder)
        with console.capture():
            print_runs([run, run])
        draw_page([run, run])

    try:
        read_as_commands_do(lambda: load_model(run_folder), str(run_folder))
        read_as_commands_do(lambda: parse_options(mlm_tiny.Options, "mlm_tiny", "", words))
        read_as_commands_do(list_runs)
        read_as_commands_do(lambda: read_history(run_folder))
        read_as_commands_do(lambda: describe_training(load_checkpoint(run_folder)[0]))
    finally:
        path.write_bytes(intact)


@fuzz
@given(data=st.data())
def test_metrics(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    """A damaged line is skipped. Every point that is left is one that the run has reported."""
    folder = tmp_path_factory.getbasetemp() / "metrics"
    if not folder.exists():
        folder.mkdir()
        for step in range(1, 20):
            append_metrics(folder, step, {"loss": 3 / step, "seconds": float(step), "valid.loss": step / 7})
    expected = read_metrics(folder)
    lines = (folder / METRICS).read_bytes()
    if data.draw(st.booleans()):
        number = data.draw(st.integers(0, 18))
        split = lines.splitlines()
        split[number] = data.draw(damaged_json(json.loads(split[number]))).encode()
        contents = b"\n".join(split) + b"\n"
    else:
        contents = data.draw(damaged_bytes(lines))
    with replaced(folder / METRICS, contents):
        result = read_as_commands_do(lambda: read_metrics(folder))
    assert all(set(points) <= set(expected[name]) for name, points in result.items())


def read_tokens(folder: Path) -> Any:
    corpus = read_token_files(folder)
    ids = corpus.train_ids.numpy().tobytes(), corpus.valid_ids.numpy().tobytes()
    return ids, corpus.train_characters, corpus.valid, corpus.tokenizer.to_str(), corpus.sha256


@fuzz
@given(data=st.data())
@pytest.mark.parametrize("name", ["train.bin", "valid.bin", "blocks.jsonl", "tokenizer.json"])
def test_token_files(name: str, tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    folder = tmp_path_factory.getbasetemp() / "tokens"
    if not folder.exists():
        text = folder.with_suffix(".txt")
        text.write_text(small_text(1000))
        write_token_files(folder, subword_tokenizer(), partial(read_files, [text]), {"held_out": 0.5})

    expected = intact_result(read_tokens, folder)
    intact = (folder / name).read_bytes()
    if name == "blocks.jsonl" and data.draw(st.booleans()):
        lines = intact.splitlines()
        number = data.draw(st.integers(0, len(lines) - 1))
        lines[number] = data.draw(damaged_json(json.loads(lines[number]))).encode()
        contents: bytes | str = b"\n".join(lines) + b"\n"
    else:
        contents = damaged(data, intact)
    with replaced(folder / name, contents):
        assert read_as_commands_do(lambda: read_tokens(folder), str(folder)) in (None, expected)


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pairs")
    build_small_dataset(folder)
    open_dataset(folder)
    shutil.copytree(folder / "arrow", folder / "intact arrow")
    return folder


def read_pairs(folder: Path) -> Any:
    return open_dataset(folder)[:]


PAIR_FILES = [MANIFEST, "*.parquet", "arrow/*.arrow", f"arrow/{SUMS}"]


@rarely(10)
@given(data=st.data())
@pytest.mark.parametrize("pattern", PAIR_FILES)
def test_sentence_pairs(pattern: str, pairs: Path, data: st.DataObject) -> None:
    """A damaged copy in the Arrow format is unpacked again."""
    expected = intact_result(read_pairs, pairs)
    # Restore the intact copy, because an earlier example may have damaged it.
    shutil.rmtree(pairs / "arrow")
    shutil.copytree(pairs / "intact arrow", pairs / "arrow")
    path = next(pairs.glob(pattern))
    contents = damaged(data, path.read_bytes())
    if pattern.startswith("arrow"):
        path.write_bytes(contents.encode() if isinstance(contents, str) else contents)
        assert read_as_commands_do(lambda: read_pairs(pairs)) == expected
    else:
        with replaced(path, contents):
            assert read_as_commands_do(lambda: read_pairs(pairs), str(pairs)) in (None, expected)


def labels_as_text(suffix: str) -> str:
    rows = [(f'text, "{i}" of\n many', "ab"[i % 2], f"pair {i}") for i in range(25)]
    if suffix == ".csv":
        quoted = [",".join('"' + field.replace('"', '""') + '"' for field in row) for row in rows]
        return "\n".join(["text,label,pair", *quoted]) + "\n"
    return "".join(json.dumps(dict(zip(("text", "label", "pair"), row, strict=True))) + "\n" for row in rows)


@fuzz
@given(data=st.data())
@pytest.mark.parametrize("suffix", [".csv", ".jsonl"])
def test_labels(suffix: str, tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    path = tmp_path_factory.getbasetemp() / f"labels{suffix}"
    text = labels_as_text(suffix)
    if suffix == ".jsonl" and data.draw(st.booleans()):
        lines = text.splitlines()
        lines[3] = data.draw(damaged_json(json.loads(lines[3])))
        path.write_text("\n".join(lines))
    else:
        path.write_bytes(data.draw(damaged_bytes(text.encode())))
    read_as_commands_do(lambda: read_labeled_texts(path), str(path))


COMPRESS: dict[str, Callable[[bytes], bytes]] = {
    ".gz": gzip.compress,
    ".bz2": bz2.compress,
    ".xz": lzma.compress,
    ".txt": bytes,
}


@fuzz
@given(data=st.data())
@pytest.mark.parametrize("suffix", COMPRESS)
def test_text(suffix: str, tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    path = tmp_path_factory.getbasetemp() / f"text{suffix}"
    text = small_text(100) + "\nüñ\n"
    path.write_bytes(data.draw(damaged_bytes(COMPRESS[suffix](text.encode()))))
    read_as_commands_do(lambda: list(read_documents([path])), str(path))


@fuzz
@given(data=st.data())
def test_records(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    folder = tmp_path_factory.getbasetemp() / "records"
    folder.mkdir(exist_ok=True)
    intact = (ROOT / "docs" / "runs" / "mlm_tiny.json").read_bytes()
    path = folder / "mlm_tiny.json"
    contents = damaged(data, intact)
    path.write_bytes(contents.encode() if isinstance(contents, str) else contents)
    read_as_commands_do(lambda: recorded_experiment(path))
    with contextlib.suppress(PageError):
        read_records(folder)


@fuzz
@given(data=st.data())
def test_options(data: st.DataObject) -> None:
    names = [name.replace("_", "-") for name in vars(mlm_tiny.Options())]
    values = ["", "0", "-1", "1", "7", "nan", "inf", "1e308", "9" * 30, "x", "[", "{}", "\0", "\x1b[31m"]
    words: list[str] = []
    for _ in range(data.draw(st.integers(1, 3))):
        name = "--" + data.draw(st.sampled_from([*names, "", "x"]))
        value = data.draw(st.one_of(st.sampled_from(values), st.text(max_size=5)))
        words += data.draw(st.sampled_from([[name, value], [f"{name}={value}"], [name], [value]]))

    def read() -> None:
        options = parse_options(mlm_tiny.Options, "mlm_tiny", "", words)
        options.training_arguments()
        options.model_config(vocab_size=30, intermediate_size=4 * options.hidden_size)

    with contextlib.redirect_stdout(io.StringIO()):
        read_as_commands_do(read)
