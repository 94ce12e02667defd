"""The experiment that writes the weights for the live page, and the weights it wrote for the site."""

import gzip
import hashlib
import json
import math
import re
import runpy
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from labml_bert.bert import BertConfig
from labml_bert.checksums import parse_sealed
from labml_bert.data.corpora import load_corpus
from labml_bert.data.masked_text import MaskedText
from labml_bert.data.tokenizers import character_tokenizer
from labml_bert.files import lock
from labml_bert.mlm import MaskedTokens
from labml_bert.models import BertForMaskedLM
from labml_bert.modern import ModernBertConfig, ModernBertForMaskedLM
from labml_bert.run.launch import launch
from labml_bert.training import distributed
from tests.support.runs import small_text, stop_with_ctrl_c

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "experiments" / "live" / "live.py"
script = runpy.run_path(str(SCRIPT))
SIZES = {
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "batch_tokens": 64,
    "max_position_embeddings": 32,
    "schedule": "8,32",
    "steps": 360,
}


def main(argv: list[str]) -> None:
    """Runs the experiment as from a shell, but in this process."""
    launch(script["main"], script["Options"], argv)


def held_out_of(folder: Path) -> MaskedTokens:
    """The held-out windows of the text in `folder`, with their masks."""
    corpus = load_corpus(str(folder / "text.txt"))
    tokenizer, generator = character_tokenizer(corpus.train), torch.Generator()
    return MaskedText(corpus, tokenizer, 32, 64, 32, 0.3, generator).held_out


def command_line(corpus: Path, sizes: dict[str, Any] = SIZES) -> list[str]:
    options = {"corpus": corpus, **sizes}
    return [word for key, value in options.items() for word in (f"--{key.replace('_', '-')}", str(value))]


@pytest.fixture(scope="module")
def output_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with `text.txt`, the files for a page in `web`, and `record.json`."""
    folder = tmp_path_factory.mktemp("live")
    (folder / "text.txt").write_text(small_text(300) + "R.")
    folders = ["--runs", str(folder / "logs"), "--output", str(folder / "web")]
    main([*command_line(folder / "text.txt"), *folders, "--record", str(folder / "record.json")])
    return folder


def model_of(folder: Path, number: int) -> tuple[dict[str, Any], Any]:
    """The metadata in `model.json`, and the model from one of the files, read as the page reads it."""
    metadata = json.loads((folder / "model.json").read_text("utf-8"))
    checkpoint = metadata["checkpoints"][number]
    data = (folder / checkpoint["file"]).read_bytes()
    assert hashlib.sha256(data).hexdigest() == checkpoint["sha256"]
    arm = metadata["arms"][checkpoint["arm"]]
    tensors, offset = {}, 0
    for tensor in arm["tensors"]:
        size = int(np.prod(tensor["shape"]))
        values = np.frombuffer(data, "<f2", size, offset).astype(np.float32).reshape(tensor["shape"])
        tensors[tensor["name"]], offset = torch.from_numpy(values), offset + 2 * size
    assert offset == len(data)
    config = dict(arm["config"])
    model: Any
    if config.pop("model_type") == "bert":
        model = BertForMaskedLM(BertConfig(**config))
    else:
        model = ModernBertForMaskedLM(ModernBertConfig(**config))
        tensors["decoder.weight"] = tensors["model.embeddings.tok_embeddings.weight"]
    model.load_state_dict(tensors)
    return metadata, model.eval()


@pytest.mark.long
@pytest.mark.processes
def test_each_checkpoint_of_the_runs_is_a_file(output_folder: Path) -> None:
    metadata = json.loads((output_folder / "web" / "model.json").read_text("utf-8"))
    record = json.loads((output_folder / "record.json").read_text())
    assert metadata["checkpoints"] == record["checkpoints"]
    arms = [arm for arm in ("modern", "fixed length", "short to long") for _ in range(4)]
    assert [entry["arm"] for entry in metadata["checkpoints"]] == arms
    assert [entry["steps"] for entry in metadata["checkpoints"]] == [4, 90, 180, 360] * 3
    assert {path.name for path in (output_folder / "web").iterdir()} == {
        "model.json",
        *(entry["file"] for entry in metadata["checkpoints"]),
    }
    assert len({entry["sha256"] for entry in metadata["checkpoints"]}) == 12
    assert set(record["fingerprints"]) == {*arms}
    for arm, part in {
        "short to long": record,
        "fixed length": record["fixed"],
        "modern": record["modern"],
    }.items():
        assert part["result"]["steps"] == 360
        points = [[step, round(loss, 4)] for step, loss in part["history"]["valid.loss"]]
        assert metadata["arms"][arm]["curve"] == points
    assert str(output_folder) not in json.dumps(record).replace(record["command"], "")


@pytest.mark.long
@pytest.mark.processes
def test_the_losses_of_the_checkpoints_are_on_the_curves(output_folder: Path) -> None:
    metadata = json.loads((output_folder / "web" / "model.json").read_text("utf-8"))
    for entry in metadata["checkpoints"]:
        loss = dict(metadata["arms"][entry["arm"]]["curve"])[entry["steps"]]
        # The file's weights are rounded to 16 bits; the curve comes from the run's own precision.
        assert abs(loss - entry["loss"]) < 1e-2


@pytest.mark.long
@pytest.mark.processes
@pytest.mark.parametrize("number", [0, 3, 7, 11])
def test_the_loss_in_the_metadata_is_that_of_the_file(output_folder: Path, number: int) -> None:
    metadata, model = model_of(output_folder / "web", number)
    held_out = held_out_of(output_folder)
    with torch.no_grad():
        logits = model(held_out.input_ids).logits
    loss = F.cross_entropy(logits.flatten(0, 1), held_out.labels.flatten(), ignore_index=-100)
    assert metadata["checkpoints"][number]["loss"] == pytest.approx(loss.item(), abs=2e-4)


def check_pictures(folder: Path, record: dict[str, Any]) -> None:
    """Recomputes the numbers in the pictures with the model in the last file."""
    metadata, model = model_of(folder, -1)
    pictures = record["pictures"]
    tokens = {token: i for i, token in enumerate(metadata["tokens"])}
    attention_map = pictures["attention"]
    ids = torch.tensor([[tokens.get(token, metadata["unk_id"]) for token in attention_map["tokens"]]])
    with torch.no_grad():
        attentions = torch.stack(model.bert(ids, output_attentions=True).attentions)[:, 0]
        probabilities = model(ids).logits[0, attention_map["masks"][0]].softmax(-1)
    assert torch.allclose(torch.tensor(attention_map["attentions"]), attentions, atol=6e-4)
    for token, probability in attention_map["guesses"]:
        assert probabilities[tokens[token]].item() == pytest.approx(probability, abs=1e-4)

    positions = F.normalize(model.bert.embeddings.position_embeddings.weight.detach(), dim=-1)
    cosines, picture = positions @ positions.T, pictures["positions"]
    assert torch.allclose(torch.tensor(picture["cosines"]), cosines[:40, :40], atol=6e-3)
    assert picture["by_distance"][3] == pytest.approx(cosines.diagonal(3).mean().item(), abs=6e-4)

    E = F.normalize(model.bert.embeddings.word_embeddings.weight.detach(), dim=-1)
    assert pictures["neighbors"]
    for entry in pictures["neighbors"]:
        similarities = {token: (E[i] @ E[tokens[entry["token"]]]).item() for token, i in tokens.items()}
        nearest = sorted(
            (c for t, c in similarities.items() if not t.startswith("[") or len(t) == 1), reverse=True
        )
        assert [cosine for _, cosine in entry["nearest"]] == pytest.approx(nearest[1:7], abs=6e-4)
        assert all(
            similarities[token] == pytest.approx(cosine, abs=6e-4) for token, cosine in entry["nearest"]
        )


@pytest.mark.long
@pytest.mark.processes
def test_the_pictures_show_the_last_checkpoint(output_folder: Path) -> None:
    record = json.loads((output_folder / "record.json").read_text())
    check_pictures(output_folder / "web", record)
    dense_layer = record["pictures"]["dense_layer"]
    for arm in ("without", "with"):
        assert sum(dense_layer[arm]["ranks"]) == dense_layer["positions"] > 0
        assert dense_layer[arm]["ranks"][0] / dense_layer["positions"] == pytest.approx(
            dense_layer[arm]["accuracy"], abs=1e-4
        )
    _, model = model_of(output_folder / "web", -1)
    held_out = held_out_of(output_folder)
    is_masked = held_out.labels != -100
    with torch.no_grad():
        states = model.bert(held_out.input_ids).last_hidden_state[is_masked]
        scores = states @ model.bert.embeddings.word_embeddings.weight.T + model.cls.predictions.bias
        guesses = model(held_out.input_ids).logits[is_masked].argmax(-1)
    labels = held_out.labels[is_masked]
    assert dense_layer["positions"] == len(labels)
    assert dense_layer["with"]["accuracy"] == pytest.approx(
        (guesses == labels).float().mean().item(), abs=1e-3
    )
    assert dense_layer["without"]["accuracy"] == pytest.approx(
        (scores.argmax(-1) == labels).float().mean().item(), abs=1e-3
    )


def test_the_site_has_the_weights_of_the_record() -> None:
    """The files are complete and small enough to load in seconds, and the pictures are computed from them."""
    folder = ROOT / "docs" / "live" / "model"
    record = json.loads((ROOT / "docs" / "runs" / "live.json").read_text())
    metadata = json.loads((folder / "model.json").read_text("utf-8"))
    assert metadata["checkpoints"] == record["checkpoints"]
    files = {path.name: path.read_bytes() for path in folder.iterdir()}
    assert files.keys() == {"model.json", *(entry["file"] for entry in metadata["checkpoints"])}
    for entry in metadata["checkpoints"]:
        assert hashlib.sha256(files[entry["file"]]).hexdigest() == entry["sha256"]
        first_download = (files["model.json"], files[entry["file"]])
        assert sum(len(gzip.compress(data)) for data in first_download) < 1_000_000
    assert sum(map(len, files.values())) < 4_500_000
    # The page draws equally many maps for each model, and all models share a vocabulary and a length limit.
    shared = ("num_hidden_layers", "num_attention_heads", "vocab_size", "max_position_embeddings")
    assert len({tuple(arm["config"][name] for name in shared) for arm in metadata["arms"].values()}) == 1
    check_pictures(folder, record)


@pytest.mark.long
@pytest.mark.processes
def test_one_model_can_be_trained_again(
    output_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(output_folder / "web", tmp_path / "web")
    record_path = Path(shutil.copy(output_folder / "record.json", tmp_path))
    before = parse_sealed(record_path.read_text())
    words = command_line(output_folder / "text.txt", SIZES | {"steps": 20, "runs": tmp_path / "logs"})
    words += ["--arm", "modern", "--output", str(tmp_path / "web")]
    for more, message in (
        ([], "name the record with --record"),
        (["--record", str(tmp_path / "none.json")], "cannot keep the other models"),
        (["--record", str(ROOT / "docs" / "runs" / "speed.json")], "it is a record of speed, not of live"),
        (["--record", str(record_path), "--hidden-size", "32"], "hidden_size is 32, but 16 in"),
    ):
        with pytest.raises(SystemExit):
            main([*words, *more])
        assert message in capsys.readouterr().err
    main([*words, "--record", str(record_path)])
    after, metadata = json.loads(record_path.read_text()), model_of(tmp_path / "web", 0)[0]
    assert [entry["steps"] for entry in after["checkpoints"][:4]] == [1, 5, 10, 20]
    assert after["checkpoints"] == metadata["checkpoints"]
    assert after["checkpoints"][4:] == before["checkpoints"][4:]
    assert after["modern"]["result"]["steps"] == metadata["arms"]["modern"]["curve"][-1][0] == 20
    assert "--arm modern" in after["modern"]["command"]
    other_record = {name for name in before if after[name] != before[name]}
    assert other_record == {"modern", "checkpoints"}, "a fingerprint doesn't depend on the number of steps"
    for entry in after["checkpoints"]:
        data = (tmp_path / "web" / entry["file"]).read_bytes()
        assert hashlib.sha256(data).hexdigest() == entry["sha256"]


@pytest.mark.long
@pytest.mark.processes
def test_after_ctrl_c_it_suggests_starting_over(corpus_file: Path, tmp_path: Path) -> None:
    minutes_instead = {key: value for key, value in SIZES.items() if key != "steps"} | {"minutes": 5}
    out = stop_with_ctrl_c(
        [sys.executable, str(SCRIPT), *command_line(corpus_file, minutes_instead)], tmp_path
    )
    assert "run the same command to start over" in out and "--resume" not in out


@pytest.mark.long
@pytest.mark.processes
def test_a_stopped_run_cannot_be_resumed(output_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = next((output_folder / "logs").glob("*/*"))
    with pytest.raises(SystemExit) as exit_info:
        main(["--resume", str(run)])
    assert exit_info.value.code == 2
    assert capsys.readouterr().err == (
        "error: the weights of the earlier moments are lost; start over, without --resume\n"
    )


def test_two_programs_do_not_write_to_one_folder(
    corpus_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "web").mkdir()
    with lock(tmp_path / "web"), pytest.raises(SystemExit) as exit_info:
        main([*command_line(corpus_file), "--output", "web"])
    assert exit_info.value.code == 2 and "another program is writing to web" in capsys.readouterr().err
    assert not (tmp_path / "logs").exists()


def test_several_processes_are_rejected(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(distributed, "launcher", lambda: ["-m", "torch.distributed.run"])
    with pytest.raises(SystemExit) as exit_info:
        main([])
    assert exit_info.value.code == 2
    assert re.fullmatch("error: .+ without torchrun\n", capsys.readouterr().err)


def remove(folder: Path, record: dict[str, Any]) -> None:
    (folder / "fixed-length-2.bin").unlink()


def swap(folder: Path, record: dict[str, Any]) -> None:
    shutil.copy(folder / "fixed-length-1.bin", folder / "fixed-length-2.bin")


def change_a_loss(folder: Path, record: dict[str, Any]) -> None:
    record["checkpoints"][0]["loss"] = 9.0


def forget_the_checkpoints(folder: Path, record: dict[str, Any]) -> None:
    del record["checkpoints"]


def break_the_fingerprints(folder: Path, record: dict[str, Any]) -> None:
    record["fingerprints"] = [1]


def break_an_entry(folder: Path, record: dict[str, Any]) -> None:
    """The record and `model.json` agree."""
    record["checkpoints"] = [{}]
    metadata = parse_sealed((folder / "model.json").read_text("utf-8"))
    (folder / "model.json").write_text(json.dumps({**metadata, "checkpoints": [{}]}))


def change_both(folder: Path, record: dict[str, Any], change: Callable[[dict[str, Any]], object]) -> None:
    """Changes `model.json`, and the checkpoints in the record in the same way."""
    metadata = parse_sealed((folder / "model.json").read_text("utf-8"))
    change(metadata)
    record["checkpoints"] = metadata["checkpoints"]
    (folder / "model.json").write_text(json.dumps(metadata))


def flip_a_bit(folder: Path, record: dict[str, Any]) -> None:
    text = (folder / "model.json").read_text("utf-8")
    (folder / "model.json").write_text(text.replace('"y"', '"Y2"'))


def forget_a_model(folder: Path, record: dict[str, Any]) -> None:
    change_both(folder, record, lambda metadata: metadata["arms"].pop("fixed length"))


def change_the_heads(folder: Path, record: dict[str, Any]) -> None:
    """The weights would load, and the page would compute something else."""
    config = {"num_attention_heads": 2}
    change_both(folder, record, lambda metadata: metadata["arms"]["fixed length"]["config"].update(config))


def forget_all_weights(folder: Path, record: dict[str, Any]) -> None:
    change_both(folder, record, lambda metadata: metadata["checkpoints"].clear())


def move_weights_to_another_arm(folder: Path, record: dict[str, Any]) -> None:
    change_both(folder, record, lambda metadata: metadata["checkpoints"][4].update(arm="short to long"))


def write_a_loss_as_text(folder: Path, record: dict[str, Any]) -> None:
    change_both(folder, record, lambda metadata: metadata["checkpoints"][4].update(loss="2.0"))


def write_a_loss_as_nan(folder: Path, record: dict[str, Any]) -> None:
    change_both(folder, record, lambda metadata: metadata["checkpoints"][4].update(loss=math.nan))


def write_a_huge_loss(folder: Path, record: dict[str, Any]) -> None:
    change_both(folder, record, lambda metadata: metadata["checkpoints"][4].update(loss=10**400))


def add_a_model(folder: Path, record: dict[str, Any]) -> None:
    change_both(folder, record, lambda metadata: metadata["arms"].update(another={}))


def list_the_arms(folder: Path, record: dict[str, Any]) -> None:
    change_both(folder, record, lambda metadata: metadata.update(arms=[*metadata["arms"]]))


def change_the_format(folder: Path, record: dict[str, Any]) -> None:
    change_both(folder, record, lambda metadata: metadata.update(format=99))


def change_a_type(folder: Path, record: dict[str, Any]) -> None:
    record["configuration"]["seed"] = 0.0


def forget_a_history(folder: Path, record: dict[str, Any]) -> None:
    del record["fixed"]["history"]


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (remove, r"fixed-length-2\.bin is missing or damaged; train all"),
        (swap, r"fixed-length-2\.bin is missing or damaged; train all"),
        (change_a_loss, "have different models; train all"),
        (forget_the_checkpoints, "has no 'checkpoints'; train all"),
        (break_the_fingerprints, "cannot keep the other models: .*; train all"),
        (break_an_entry, "has no 'arm'; train all"),
        (flip_a_bit, "its checksum differs; .*; train all"),
        (forget_a_model, "must have these models: .*; train all"),
        (add_a_model, "must have these models: .*; train all"),
        (write_a_loss_as_nan, r"loss of fixed-length-1\.bin is not a number, or not finite; train all"),
        (write_a_huge_loss, r"loss of fixed-length-1\.bin is not a number, or not finite; train all"),
        (change_the_heads, "have different models; train all"),
        (forget_all_weights, "have different models; train all"),
        (move_weights_to_another_arm, "have different models; train all"),
        (write_a_loss_as_text, r"loss of fixed-length-1\.bin is not a number, or not finite; train all"),
        (list_the_arms, "cannot keep the other models: .*; train all"),
        (change_the_format, "have different models; train all"),
        (change_a_type, "seed is 0, but 0.0 in .*; train all"),
        (forget_a_history, "has no 'history'; train all"),
    ],
)
def test_models_that_do_not_belong_to_the_record(
    damage: Callable[[Path, dict[str, Any]], None], words: str, tmp_path: Path
) -> None:
    """Otherwise the page would show the weights of one run with the losses of another."""
    folder, path = tmp_path / "model", tmp_path / "record.json"
    shutil.copytree(ROOT / "docs" / "live" / "model", folder)
    record = json.loads((ROOT / "docs" / "runs" / "live.json").read_text())
    damage(folder, record)
    path.write_text(json.dumps(record))
    options = script["Options"](arm="modern", record=path)
    with pytest.raises(ValueError, match=words):
        script["read_other_arms"](options, folder)


@pytest.mark.processes
def test_a_text_that_disappears_between_the_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each of the three runs reads the text again."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "text.txt").write_text(small_text(300))
    names = script["main"].__globals__

    def train_and_delete(*arguments: Any) -> Any:
        trained_model = train(*arguments)
        (tmp_path / "text.txt").unlink(missing_ok=True)
        return trained_model

    train = names["train"]
    monkeypatch.setitem(names, "train", train_and_delete)
    with pytest.raises(SystemExit) as exit_info:
        main([*command_line(Path("text.txt"), {**SIZES, "steps": 4}), "--output", "web"])
    assert exit_info.value.code == 2
    error = capsys.readouterr().err
    assert re.fullmatch("error: no corpus or file is called .+text.txt.+\n", error)
    assert not [*(tmp_path / "web").iterdir()]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--output", "text.txt"], "cannot write to text.txt"),
        (
            ["--corpus", "texts", "--output", "texts/web"],
            "among the texts; choose another path with --output",
        ),
        (["--schedule", "32,8"], "lengths must increase"),
        (
            ["--max-position-embeddings", "16", "--schedule", "8"],
            "the sentence for the pictures has 26 tokens",
        ),
        (["--record", "no/r.json"], "cannot write 'no/r.json'"),
        (["--output"], "Missing value for argument '--output'"),
        (["--output", "other"], "has files of another program"),
        (["--output", "weights"], "has files of another program"),
        (["--output", "single"], "single has the weights weights.bin of another export; choose another"),
        (["--output", "folder"], "modern-2.bin is a folder; move it"),
        (["--hidden-size", "18"], "an even multiple of num_attention_heads"),
    ],
)
def test_bad_input_gets_one_line_and_exit_code_2(
    arguments: list[str],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "text.txt").write_text(small_text(100))
    (tmp_path / "texts").mkdir()
    (tmp_path / "texts" / "text.txt").write_text(small_text(100))
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "model.json").write_text('{"format": "layers-model"}')
    (tmp_path / "folder" / "modern-2.bin").mkdir(parents=True)
    (tmp_path / "single").mkdir()
    (tmp_path / "single" / "weights.bin").touch()
    (tmp_path / "weights").mkdir()
    (tmp_path / "weights" / "fixed-length-4.bin").write_text("mine")
    with pytest.raises(SystemExit) as exit_info:
        main([*command_line(Path("text.txt")), *arguments])
    assert exit_info.value.code == 2
    error = capsys.readouterr().err
    assert message in error and re.fullmatch("error: .+\n", error)
    files = {path.name for path in tmp_path.rglob("*") if path.is_file()}
    assert files == {"text.txt", "model.json", "fixed-length-4.bin", "weights.bin"}
