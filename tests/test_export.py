"""Exported models equal the original: the weights for the web page, and the ONNX graph."""

import errno
import hashlib
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from labml_bert import export, model_folder
from labml_bert.bert import BertConfig
from labml_bert.data.tokenizers import character_tokenizer, wordpiece_tokenizer
from labml_bert.files import PART, lock, write_tensors
from labml_bert.fill_mask import load_model
from labml_bert.models import BertForMaskedLM, BertForPreTraining
from labml_bert.training.checkpoint import CHECKPOINT, load_checkpoint
from tests.support.runs import ROOT, SIZES, main_in_process, small_text

LETTERS = "abcdefghijklmnopqrstuvwxyz ."


def random_model(**sizes: int) -> BertForMaskedLM:
    """
    A model with weights as large as trained ones, so that nothing is near zero and no two heads are alike.
    """
    torch.manual_seed(0)
    options = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
    options |= {"vocab_size": len(LETTERS) + 5, "max_position_embeddings": 24}
    model = BertForMaskedLM(BertConfig(**(options | sizes), initializer_range=0.3)).eval()
    for name, parameter in model.named_parameters():
        if name.endswith("bias"):
            nn.init.normal_(parameter, std=0.3)
    return model


def save_model(model: BertForMaskedLM, folder: Path) -> Path:
    """Saves the model in the format of `transformers`, with a tokenizer."""
    model.save_pretrained(folder)
    character_tokenizer([LETTERS]).save(str(folder / "tokenizer.json"))
    return folder


@pytest.fixture(scope="module")
def run_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("export")
    (folder / "text.txt").write_text(small_text(400))
    small = ["--schedule=8", "--max-position-embeddings=32", "--batch-tokens=64", "--hidden-size=16"]
    with pytest.MonkeyPatch.context() as monkeypatch:
        main_in_process(monkeypatch, folder, "--corpus=text.txt", "--steps=4", *SIZES, *small)
    return next((folder / "logs").glob("*/*"))


def read_web(folder: Path) -> tuple[dict, dict[str, np.ndarray]]:
    """Reads the files as the web page does: only the JSON says where each tensor is."""
    metadata = json.loads((folder / "model.json").read_text("utf-8"))
    (checkpoint,) = metadata["checkpoints"]
    data = (folder / checkpoint["file"]).read_bytes()
    assert len(data) == checkpoint["bytes"]
    assert hashlib.sha256(data).hexdigest() == checkpoint["sha256"]
    tensors, offset = {}, 0
    for tensor in metadata["arms"][checkpoint["arm"]]["tensors"]:
        size = int(np.prod(tensor["shape"]))
        tensors[tensor["name"]] = np.frombuffer(data, "<f2", size, offset).reshape(tensor["shape"])
        offset += 2 * size
    assert offset == len(data), "there are no extra bytes"
    return metadata, tensors


def test_the_exported_bytes_are_the_weights_of_the_run(
    run_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    export.main([str(run_folder), "--to", "web", "--output", str(tmp_path / "web")])
    out = capsys.readouterr().out
    metadata, tensors = read_web(tmp_path / "web")
    model, tokenizer = load_model(run_folder)
    weights = dict(model.named_parameters())
    assert list(tensors) == list(weights), "each tensor once, including the tied one"
    for name, tensor in weights.items():
        assert np.array_equal(tensors[name], tensor.detach().numpy().astype(np.float16)), name
    assert metadata["checkpoints"][0]["sha256"] in out
    arm = metadata["arms"]["mlm_tiny"]
    assert metadata["format"] == 3 and arm["dtype"] == "float16"
    assert arm["config"] == {"model_type": "bert", **asdict(model.config)}
    assert metadata["tokens"] == [tokenizer.id_to_token(i) for i in range(model.config.vocab_size)]
    assert (
        metadata["tokens"][metadata["mask_id"]] == "[MASK]"
        and metadata["tokens"][metadata["unk_id"]] == "[UNK]"
    )
    assert metadata["cls_id"] is metadata["sep_id"] is None, "character models use no [CLS] and [SEP]"
    checkpoint = metadata["checkpoints"][0]
    assert (checkpoint["arm"], checkpoint["steps"]) == ("mlm_tiny", 4)
    assert arm["curve"][-1] == [4, checkpoint["loss"]] and checkpoint["loss"] > 0
    assert checkpoint["seconds"] == round(load_checkpoint(run_folder)[0]["seconds"], 1)


def test_a_checkpoint_that_is_replaced_during_the_export_is_an_error(
    run_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Otherwise, `model.json` would have the steps and the loss of other weights."""

    def load_and_replace(folder: Path) -> object:
        result = load_model(folder)
        os.utime(folder / CHECKPOINT, ns=(0, 0))
        return result

    monkeypatch.setattr(export, "load_model", load_and_replace)
    words = [str(run_folder), "--to", "web", "--output", str(tmp_path / "web")]
    assert_rejected(words, f"{CHECKPOINT} was replaced while it was read; try again", run_folder, capsys)
    assert not (tmp_path / "web").exists()


def test_the_printed_rounding_error_is_that_of_the_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = random_model()
    export.main([str(save_model(model, tmp_path / "model")), "--to", "web"])
    printed_error = float(re.search(r"by about (\S+?),", capsys.readouterr().out)[1])
    metadata, tensors = read_web(tmp_path / "model" / "web")
    assert metadata["checkpoints"][0]["seconds"] is None and metadata["arms"]["model"]["curve"] == []
    reloaded = random_model()
    reloaded.load_state_dict({name: torch.from_numpy(array.copy()) for name, array in tensors.items()})
    ids = torch.randint(33, (8, 24), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        error = (reloaded(ids).logits.softmax(-1) - model(ids).logits.softmax(-1)).abs().max().item()
    assert 0 < error < 0.02
    assert printed_error == float(f"{error:.1g}")


def test_exporting_a_pair_model_drops_its_other_head(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tokenizer = wordpiece_tokenizer([small_text(50)], 60)
    config = BertConfig(
        vocab_size=tokenizer.get_vocab_size(),
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=16,
    )
    torch.manual_seed(0)
    tensors = {f"model.{name}": p for name, p in BertForPreTraining(config).named_parameters()}
    metadata = {
        "step": 7,
        "seconds": 1.25,
        "configuration": {"experiment": "bert_tiny", "model": asdict(config)},
    }
    (tmp_path / "run").mkdir()
    write_tensors(tmp_path / "run" / CHECKPOINT, tensors, {"about": json.dumps(metadata)})
    tokenizer.save(str(tmp_path / "run" / "tokenizer.json"))
    export.main([str(tmp_path / "run"), "--to", "web"])
    assert "  page        the site's page can't run this model" in capsys.readouterr().out
    # JavaScript reads only the letters of ASCII as parts of a name.
    for word, is_noted in (("[street]", False), ("[straße]", True)):
        letters = character_tokenizer(["a" * 3])
        letters.add_tokens([word, *map(chr, range(0x400, 0x400 + tokenizer.get_vocab_size() - 7))])
        letters.save(str(tmp_path / "run" / "tokenizer.json"))
        export.main([str(tmp_path / "run"), "--to", "web", "--output", str(tmp_path / word)])
        assert ("page can't run this model" in capsys.readouterr().out) == is_noted
    tokenizer.save(str(tmp_path / "run" / "tokenizer.json"))
    exported_metadata, exported_tensors = read_web(tmp_path / "run" / "web")
    assert not [name for name in exported_tensors if "pooler" in name or "seq_relationship" in name]
    assert exported_tensors["bert.embeddings.token_type_embeddings.weight"].shape == (2, 16)
    assert [exported_metadata["tokens"][exported_metadata[key]] for key in ("cls_id", "sep_id")] == [
        "[CLS]",
        "[SEP]",
    ]
    assert (
        exported_metadata["checkpoints"][0].items() >= {"arm": "bert_tiny", "steps": 7, "loss": None}.items()
    )


@pytest.mark.parametrize(
    ("weight", "fits"), [(65504.0, True), (-65519.0, True), (65520.0, False), (-7e4, False)]
)
def test_a_weight_beyond_float16_is_rejected(
    weight: float,
    fits: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    # Today, loading the model already refuses such a weight.
    monkeypatch.setattr(model_folder, "LARGEST_WEIGHT", 100_000)
    model = random_model()
    with torch.no_grad():
        model.cls.predictions.bias[3] = weight
    folder = save_model(model, tmp_path / "model")
    if fits:
        export.main([str(folder), "--to", "web"])
        assert abs(read_web(folder / "web")[1]["cls.predictions.bias"][3]) == 65504
        return
    with pytest.raises(SystemExit) as exit_info:
        export.main([str(folder), "--to", "web"])
    assert exit_info.value.code == 2
    assert re.fullmatch("error: cls.predictions.bias has a weight beyond 65504.+\n", capsys.readouterr().err)
    assert not (folder / "web").exists()


TRACES = pytest.mark.slow("torch.onnx traces the model for seconds")


@pytest.fixture(scope="module")
def graph(tmp_path_factory: pytest.TempPathFactory) -> tuple[BertForMaskedLM, Path]:
    """A model, and a folder with nothing but its exported graph."""
    folder = tmp_path_factory.mktemp("onnx")
    model = random_model()
    export.main([str(save_model(model, folder / "model")), "--to", "onnx", "--output", str(folder / "graph")])
    return model, folder / "graph"


def run_graph(path: Path, *inputs: Tensor) -> Tensor:
    """The logits that `onnxruntime` computes."""
    import onnxruntime

    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    names = ["input_ids", "attention_mask", "token_type_ids"]
    assert [entry.name for entry in session.get_inputs()] == names
    (outputs,) = session.run(None, {name: tensor.numpy() for name, tensor in zip(names, inputs, strict=True)})
    return torch.from_numpy(outputs)


@TRACES
@pytest.mark.parametrize("B", [1, 2, 7])
@pytest.mark.parametrize("T", [1, 2, 5, 23, 24])
def test_the_graph_agrees_with_torch(graph: tuple[BertForMaskedLM, Path], B: int, T: int) -> None:
    model, folder = graph
    generator = torch.Generator().manual_seed(100 * B + T)
    ids = torch.randint(33, (B, T), generator=generator)
    types = torch.randint(2, (B, T), generator=generator)
    lengths = torch.randint(1, T + 1, (B,), generator=generator)
    mask = (torch.arange(T) < lengths[:, None]).long()
    with torch.no_grad():
        expected = model(ids, attention_mask=mask, token_type_ids=types).logits
    logits = run_graph(folder / "model.onnx", ids, mask, types)
    is_token = mask.bool()
    assert logits.shape == expected.shape == (B, T, 33)
    assert expected[is_token].abs().max() > 1, "the logits are not all near zero"
    assert torch.allclose(logits[is_token], expected[is_token], atol=1e-4, rtol=0)
    # Tokens at padded positions don't change the result; token types do.
    other_padding = torch.where(is_token, ids, (ids + 1) % 33)
    assert torch.allclose(
        run_graph(folder / "model.onnx", other_padding, mask, types)[is_token], expected[is_token], atol=1e-4
    )
    assert not torch.allclose(
        run_graph(folder / "model.onnx", ids, mask, 1 - types)[is_token], expected[is_token], atol=1e-2
    )


@pytest.mark.long
@TRACES
def test_the_graph_of_the_encoder_agrees_with_torch(tmp_path: Path) -> None:
    model = random_model()
    folder = save_model(model, tmp_path / "model")
    export.main([str(folder), "--to", "onnx", "--encoder"])
    ids, mask, types = export.example_inputs(model, B=3, T=7)
    with torch.no_grad():
        expected = model.bert(ids, attention_mask=mask, token_type_ids=types).last_hidden_state
    vectors = run_graph(folder / "onnx" / "model.onnx", ids, mask, types)
    assert vectors.shape == expected.shape
    assert torch.allclose(vectors[mask.bool()], expected[mask.bool()], atol=1e-4, rtol=0)
    # The weights of the head aren't in the file.
    assert b"cls.predictions" not in (folder / "onnx" / "model.onnx").read_bytes()


@TRACES
def test_the_graph_is_one_file_without_private_paths(graph: tuple[BertForMaskedLM, Path]) -> None:
    _, folder = graph
    assert sorted(path.name for path in folder.iterdir()) == ["model.onnx", "tokenizer.json"]
    data = (folder / "model.onnx").read_bytes()
    assert b".py" not in data and str(Path.home()).encode() + b"/" not in data
    # A later export may replace this folder.
    export.check_is_export(folder / "model.onnx", b".*" + export.PRODUCER.encode(), "tokenizer.json")


@TRACES
@pytest.mark.long
def test_a_graph_that_disagrees_is_deleted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = random_model(num_hidden_layers=1)
    exported = export.Graph(random_model(num_hidden_layers=1))
    with torch.no_grad():
        exported.model.cls.predictions.bias += 2e-4
    original_class = export.Graph
    # The first graph is exported; the later ones compute the expected logits.
    graphs: Iterator[nn.Module] = iter([exported])
    monkeypatch.setattr(export, "Graph", lambda model: next(graphs, None) or original_class(model))
    with pytest.raises(ValueError, match=r"differ by 0\.0002 in an output"):
        export.write_onnx(tmp_path / "model.onnx", model)
    assert list(tmp_path.iterdir()) == []


@TRACES
@pytest.mark.long
def test_a_graph_with_nan_outputs_is_deleted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(export, "output_differences", lambda *_: iter([0.0, float("nan"), 0.0]))
    with pytest.raises(ValueError, match="differ by nan in an output"):
        export.write_onnx(tmp_path / "model.onnx", random_model(num_hidden_layers=1))
    assert list(tmp_path.iterdir()) == []


@TRACES
@pytest.mark.long
def test_without_onnxruntime_the_export_says_it_was_not_checked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = save_model(random_model(num_hidden_layers=1), tmp_path / "model")
    pretend_missing(monkeypatch, "onnxruntime")
    export.main([str(folder), "--to", "onnx"])
    assert "none, because onnxruntime is not installed" in capsys.readouterr().out
    assert (folder / "onnx" / "model.onnx").is_file()


@pytest.mark.processes
@pytest.mark.long
def test_an_export_writes_nothing_elsewhere(tmp_path: Path) -> None:
    """Even onnxruntime writes nothing there; by default, it would leave an id of the machine."""
    folder = save_model(random_model(num_hidden_layers=1), tmp_path / "model")
    home = tmp_path / "home"
    home.mkdir()
    words = [sys.executable, "-m", "labml_bert.export", folder, "--to", "onnx"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "HOME": str(home), "XDG_CACHE_HOME": str(home)}
    subprocess.run(words, check=True, env=environment, cwd=tmp_path)
    assert [path for path in home.rglob("*") if path.is_file()] == []


def pretend_missing(monkeypatch: pytest.MonkeyPatch, package: str) -> None:
    """Makes the package look as if it weren't installed."""
    find_spec = export.find_spec
    monkeypatch.setattr(export, "find_spec", lambda name: None if name == package else find_spec(name))


# Each case has the arguments and a part of the error message.
BAD_INPUT = {
    "no run": (["nowhere", "--to", "web"], "there is no run at nowhere"),
    "a folder without a model": (["folder", "--to", "onnx"], "there is no run at folder"),
    "no format": (["model"], "the following arguments are required: --to"),
    "unknown format": (["model", "--to", "coreml"], "invalid choice: 'coreml'"),
    "no tokenizer": (["mute", "--to", "web"], "no tokenizer at mute"),
    "truncated weights": (["half", "--to", "web"], "is damaged"),
    "a tokenizer of another model": (["other", "--to", "web"], "that was saved with the model"),
    "output that is a file": (["model", "--to", "web", "--output", "file"], "file: it is not a folder"),
    "output below a file": (["model", "--to", "onnx", "--output", "file/x"], "cannot write to file/x"),
    "weights that are a folder": (["model", "--to", "web", "--output", "taken"], "weights.bin is a folder"),
    "metadata that is a folder": (["model", "--to", "web", "--output", "taken2"], "model.json is a folder"),
    "a description of another program": (["model", "--to", "web", "--output", "foreign"], "another program"),
    "a similar description": (["model", "--to", "web", "--output", "similar"], "files of another program"),
    "weights of several models": (["model", "--to", "web", "--output", "live"], "weights modern-1.bin of"),
    "a graph of another program": (["model", "--to", "onnx", "--output", "foreign2"], "another program"),
    "a tokenizer without a graph": (["model", "--to", "onnx", "--output", "other"], "another program"),
    "an encoder for a web page": (["model", "--to", "web", "--encoder"], "--encoder needs --to onnx"),
    "a folder that is not UTF-8": (["model", "--to", "web", "--output", "o\udcff"], "is not UTF-8; use"),
    "too few positions for a graph": (["short", "--to", "onnx"], "the model has 2 positions"),
}  # fmt: skip


@pytest.fixture(scope="module")
def bad_files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("bad")
    (folder / "file").write_text("")
    (folder / "folder").mkdir()
    (folder / "taken" / "weights.bin").mkdir(parents=True)
    (folder / "taken2" / "model.json").mkdir(parents=True)
    (folder / "foreign").mkdir()
    (folder / "foreign" / "model.json").write_text('{"weights": "of another program"}')
    (folder / "similar").mkdir()
    (folder / "similar" / "model.json").write_text('{"format": "of another program"}')
    (folder / "live").mkdir()
    (folder / "live" / "model.json").write_text('{"format":2,"tokens":["a"]}')
    (folder / "live" / "modern-1.bin").touch()
    (folder / "foreign2").mkdir()
    (folder / "foreign2" / "model.onnx").write_bytes(b"a graph of another program")
    for name in ("model", "mute", "half", "other"):
        save_model(random_model(), folder / name)
    save_model(random_model(max_position_embeddings=2), folder / "short")
    (folder / "mute" / "tokenizer.json").unlink()
    weights = folder / "half" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:1000])
    character_tokenizer(["abc"]).save(str(folder / "other" / "tokenizer.json"))
    return folder


def assert_rejected(
    arguments: list[str], words: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files_before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    with pytest.raises(SystemExit) as exit_info:
        export.main(arguments)
    assert exit_info.value.code == 2
    error = capsys.readouterr().err
    assert words in error and re.fullmatch("error: .+\n", error)
    files_after = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    assert files_after == files_before, "a file was written, changed or removed"


@pytest.mark.parametrize("case", BAD_INPUT)
def test_bad_input_gets_one_line_and_exit_code_2(
    case: str, bad_files: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(bad_files)
    assert_rejected(*BAD_INPUT[case], bad_files, capsys)


@pytest.mark.parametrize("package", ["onnx", "onnxscript"])
def test_a_missing_package_is_a_one_line_error(
    package: str, bad_files: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(bad_files)
    pretend_missing(monkeypatch, package)
    words = f"needs the package {package}; install it with: {sys.executable} -m pip install onnx"
    assert_rejected(["model", "--to", "onnx"], words, bad_files, capsys)


def test_weights_without_their_description_are_deleted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise the same command would take them for the file of another program."""
    folder = save_model(random_model(num_hidden_layers=1), tmp_path / "model")

    def fail(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch, pytest.raises(SystemExit):
        patch.setattr(export, "write_web", fail)
        export.main([str(folder), "--to", "web"])
    assert list((folder / "web").iterdir()) == []
    export.main([str(folder), "--to", "web"])
    # A second export that fails leaves the first one alone.
    before = {file.name: file.read_bytes() for file in (folder / "web").iterdir()}
    assert before.keys() == {"weights.bin", "model.json"}
    save_model(random_model(num_hidden_layers=2), folder)
    with monkeypatch.context() as patch, pytest.raises(SystemExit):
        patch.setattr(export, "write_web", fail)
        export.main([str(folder), "--to", "web"])
    assert {file.name: file.read_bytes() for file in (folder / "web").iterdir()} == before
    export.main([str(folder), "--to", "web"])
    assert (folder / "web" / "weights.bin").read_bytes() != before["weights.bin"]


@TRACES
@pytest.mark.long
def test_an_onnxruntime_that_cannot_read_the_graph_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import onnxruntime

    folder = save_model(random_model(num_hidden_layers=1), tmp_path / "model")

    def fail(*_: object, **__: object) -> None:
        raise Exception("Unsupported model IR version: 10, max supported IR version: 9")

    monkeypatch.setattr(onnxruntime, "InferenceSession", fail)
    with pytest.raises(SystemExit) as exit_info:
        export.main([str(folder), "--to", "onnx"])
    assert exit_info.value.code == 2
    assert re.fullmatch(
        r"error: onnxruntime \S+ can't read .+; install a newer one\n", capsys.readouterr().err
    )


def test_a_model_of_another_type_is_not_written_as_a_graph(tmp_path: Path) -> None:
    pytest.importorskip("onnxscript", reason="it's needed to write a graph")
    for model in (random_model().half(), random_model().double()):
        with pytest.raises(ValueError, match=r"call model\.float\(\) before the export"):
            export.write_onnx(tmp_path / "model.onnx", model)
    assert not [*tmp_path.iterdir()]


@TRACES
@pytest.mark.long
def test_a_graph_never_stands_beside_the_tokenizer_of_another(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Two files can't be replaced at once, so an export whose tokenizer would change is refused."""
    folder = save_model(random_model(num_hidden_layers=1), tmp_path / "model")
    words = [str(folder), "--to", "onnx", "--output", str(tmp_path / "out")]
    export.main(words)
    export.main(words)
    tokenizer = tmp_path / "out" / "tokenizer.json"
    text = tokenizer.read_text().replace(" ", "  ", 1)
    tokenizer.write_text(text)
    assert_rejected(words, "tokenizer.json is of another model; choose another", tmp_path / "out", capsys)
    tokenizer.unlink()
    export.main(words)
    assert tokenizer.is_file()


def test_a_folder_that_cannot_be_written_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Root may write everywhere, so this pretends."""
    monkeypatch.setattr(os, "access", lambda path, mode: mode & os.W_OK == 0)
    with pytest.raises(ValueError, match=r"cannot write to .*: Permission denied; choose another folder"):
        export.prepare_folder(tmp_path)


@pytest.mark.parametrize("kind", ["web", "onnx"])
def test_nothing_is_written_through_a_link_in_a_run(
    kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = save_model(random_model(), tmp_path / "model")
    (tmp_path / "own").mkdir()
    (model / kind).symlink_to(tmp_path / "own")
    assert_rejected([str(model), "--to", kind], "of its own, but is a symbolic link", tmp_path, capsys)
    assert not [*(tmp_path / "own").iterdir()]


@pytest.mark.parametrize("kind", ["web", "onnx"])
@pytest.mark.long
def test_only_one_program_exports_into_a_folder(
    kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = save_model(random_model(), tmp_path / "model")
    output = tmp_path / "output"
    output.mkdir()
    words = [str(model), "--to", kind, "--output", str(output)]
    with lock(output):
        assert_rejected(words, "output; choose another with --output", output, capsys)
    (output / f"weights.bin.123{PART}").touch()
    export.main(words)
    assert not (output / ".lock").exists()
    assert not [*output.glob(f"*{PART}")], "a killed export left this file"
