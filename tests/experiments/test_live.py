"""The experiment that writes the page's weights, and the weights that it wrote for the site."""

import gzip
import hashlib
import json
import re
import runpy
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from labml_bert.bert import BertConfig
from labml_bert.data.corpora import load_corpus
from labml_bert.data.masked_text import MaskedText
from labml_bert.data.tokenizers import character_tokenizer
from labml_bert.mlm import MaskedTokens
from labml_bert.models import BertForMaskedLM
from labml_bert.run.launch import launch
from tests.support.runs import small_text, stopped_by_ctrl_c

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
    """The experiment, as from a shell but in this process."""
    launch(script["main"], script["Options"], argv)


def held_out_of(folder: Path) -> MaskedTokens:
    """The held-out windows of the text in `folder`, masked."""
    corpus = load_corpus(str(folder / "text.txt"))
    tokenizer, generator = character_tokenizer(corpus.train), torch.Generator()
    return MaskedText(corpus, tokenizer, 32, 64, 32, 0.3, generator).held_out


def typed(corpus: Path, sizes: dict[str, Any] = SIZES) -> list[str]:
    options = {"corpus": corpus, **sizes}
    return [word for key, value in options.items() for word in (f"--{key.replace('_', '-')}", str(value))]


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with `text.txt`, the files of a page in `web`, and `record.json`."""
    folder = tmp_path_factory.mktemp("live")
    (folder / "text.txt").write_text(small_text(300) + "R.")
    where = ["--runs", str(folder / "logs"), "--output", str(folder / "web")]
    main([*typed(folder / "text.txt"), *where, "--record", str(folder / "record.json")])
    return folder


def model_of(folder: Path, number: int) -> tuple[dict[str, Any], BertForMaskedLM]:
    """What `model.json` says, and the model of one of its files, read as a page reads it."""
    about = json.loads((folder / "model.json").read_text("utf-8"))
    data = (folder / about["checkpoints"][number]["file"]).read_bytes()
    assert hashlib.sha256(data).hexdigest() == about["checkpoints"][number]["sha256"]
    found, at = {}, 0
    for tensor in about["tensors"]:
        size = int(np.prod(tensor["shape"]))
        values = np.frombuffer(data, "<f2", size, at).astype(np.float32).reshape(tensor["shape"])
        found[tensor["name"]], at = torch.from_numpy(values), at + 2 * size
    assert at == len(data)
    config = {key: value for key, value in about["config"].items() if key != "hidden_act"}
    model = BertForMaskedLM(BertConfig(**config)).eval()
    model.load_state_dict(found)
    return about, model


@pytest.mark.processes
def test_each_moment_of_both_runs_is_a_file(written: Path) -> None:
    about = json.loads((written / "web" / "model.json").read_text("utf-8"))
    record = json.loads((written / "record.json").read_text())
    assert about["checkpoints"] == record["checkpoints"]
    assert [entry["arm"] for entry in about["checkpoints"]] == ["fixed length"] * 4 + ["short to long"] * 4
    assert [entry["steps"] for entry in about["checkpoints"]] == [4, 90, 180, 360] * 2
    assert {path.name for path in (written / "web").iterdir()} == {
        "model.json",
        *(entry["file"] for entry in about["checkpoints"]),
    }
    assert len({entry["sha256"] for entry in about["checkpoints"]}) == 8
    assert record["result"]["steps"] == record["fixed"]["result"]["steps"] == 360
    for arm, history in (("short to long", record["history"]), ("fixed length", record["fixed"]["history"])):
        assert [loss for _, loss in about["curves"][arm]] == [
            round(loss, 4) for _, loss in history["valid.loss"]
        ]
    assert str(written) not in json.dumps({**record, "command": ""})


@pytest.mark.processes
def test_the_moments_lie_on_the_curves(written: Path) -> None:
    about = json.loads((written / "web" / "model.json").read_text("utf-8"))
    for entry in about["checkpoints"]:
        # Runs as short as these are evaluated several times within a tenth of a second.
        then = [loss for seconds, loss in about["curves"][entry["arm"]] if seconds == entry["seconds"]]
        # The weights of the file are rounded, and those of the curve were judged in the run's own arithmetic.
        assert min(abs(loss - entry["loss"]) for loss in then) < 1e-2


@pytest.mark.processes
@pytest.mark.parametrize("number", [0, 3, 5, 7])
def test_the_loss_that_is_stated_is_that_of_the_file(written: Path, number: int) -> None:
    about, model = model_of(written / "web", number)
    held_out = held_out_of(written)
    with torch.no_grad():
        logits = model(held_out.input_ids).logits
    loss = F.cross_entropy(logits.flatten(0, 1), held_out.labels.flatten(), ignore_index=-100)
    assert about["checkpoints"][number]["loss"] == pytest.approx(loss.item(), abs=2e-4)


def check_pictures(folder: Path, record: dict[str, Any]) -> None:
    """The pictures are of the last file."""
    about, model = model_of(folder, -1)
    pictures = record["pictures"]
    tokens = {token: i for i, token in enumerate(about["tokens"])}
    found = pictures["attention"]
    ids = torch.tensor([[tokens.get(token, about["unk_id"]) for token in found["tokens"]]])
    with torch.no_grad():
        attentions = torch.stack(model.bert(ids, output_attentions=True).attentions)[:, 0]
        chances = model(ids).logits[0, found["masks"][0]].softmax(-1)
    assert torch.allclose(torch.tensor(found["attentions"]), attentions, atol=6e-4)
    for token, chance in found["guesses"]:
        assert chances[tokens[token]].item() == pytest.approx(chance, abs=1e-4)

    places = F.normalize(model.bert.embeddings.position_embeddings.weight.detach(), dim=-1)
    cosines, found = places @ places.T, pictures["positions"]
    assert torch.allclose(torch.tensor(found["cosines"]), cosines[:40, :40], atol=6e-3)
    assert found["by_distance"][3] == pytest.approx(cosines.diagonal(3).mean().item(), abs=6e-4)

    E = F.normalize(model.bert.embeddings.word_embeddings.weight.detach(), dim=-1)
    assert pictures["neighbors"]
    for entry in pictures["neighbors"]:
        here = {token: (E[i] @ E[tokens[entry["token"]]]).item() for token, i in tokens.items()}
        others = sorted((c for t, c in here.items() if not t.startswith("[") or len(t) == 1), reverse=True)
        assert [cosine for _, cosine in entry["nearest"]] == pytest.approx(others[1:7], abs=6e-4)
        assert all(here[token] == pytest.approx(cosine, abs=6e-4) for token, cosine in entry["nearest"])


@pytest.mark.processes
def test_the_pictures_are_of_the_last_file(written: Path) -> None:
    record = json.loads((written / "record.json").read_text())
    check_pictures(written / "web", record)
    found = record["pictures"]["dense_layer"]
    for arm in ("without", "with"):
        assert sum(found[arm]["ranks"]) == found["places"] > 0
        assert found[arm]["ranks"][0] / found["places"] == pytest.approx(found[arm]["right"], abs=1e-4)
    _, model = model_of(written / "web", -1)
    held_out = held_out_of(written)
    asked = held_out.labels != -100
    with torch.no_grad():
        hidden = model.bert(held_out.input_ids).last_hidden_state[asked]
        scores = hidden @ model.bert.embeddings.word_embeddings.weight.T + model.cls.predictions.bias
        answers = model(held_out.input_ids).logits[asked].argmax(-1)
    right = held_out.labels[asked]
    assert found["places"] == len(right)
    assert found["with"]["right"] == pytest.approx((answers == right).float().mean().item(), abs=1e-3)
    assert found["without"]["right"] == pytest.approx(
        (scores.argmax(-1) == right).float().mean().item(), abs=1e-3
    )


def test_the_site_has_the_weights_of_the_record() -> None:
    """Small enough to come in seconds, whole, and those that the pictures are of."""
    folder = ROOT / "docs" / "live" / "model"
    record = json.loads((ROOT / "docs" / "runs" / "live.json").read_text())
    about = json.loads((folder / "model.json").read_text("utf-8"))
    assert about["checkpoints"] == record["checkpoints"]
    files = {path.name: path.read_bytes() for path in folder.iterdir()}
    assert files.keys() == {"model.json", *(entry["file"] for entry in about["checkpoints"])}
    for entry in about["checkpoints"]:
        assert hashlib.sha256(files[entry["file"]]).hexdigest() == entry["sha256"]
        first_answer = (files["model.json"], files[entry["file"]])
        assert sum(len(gzip.compress(data)) for data in first_answer) < 1_000_000
    assert sum(map(len, files.values())) < 3_000_000
    check_pictures(folder, record)


@pytest.mark.processes
def test_ctrl_c_promises_nothing(corpus_file: Path, tmp_path: Path) -> None:
    endless = {key: value for key, value in SIZES.items() if key != "steps"} | {"minutes": 5}
    out = stopped_by_ctrl_c([sys.executable, str(SCRIPT), *typed(corpus_file, endless)], tmp_path)
    assert "run the same command to start over" in out and "--resume" not in out


@pytest.mark.processes
def test_half_of_it_does_not_go_on(written: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = next((written / "logs").glob("*/*"))
    with pytest.raises(SystemExit) as stopped:
        main(["--resume", str(run)])
    assert stopped.value.code == 2
    assert capsys.readouterr().err == (
        "error: the weights of the earlier moments are lost; start over, without --resume\n"
    )


def test_one_process_is_enough(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setitem(script["main"].__globals__, "launcher", lambda: ["-m", "torch.distributed.run"])
    with pytest.raises(SystemExit) as stopped:
        main([])
    assert stopped.value.code == 2
    assert re.fullmatch("error: .+ without torchrun\n", capsys.readouterr().err)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--output", "text.txt"], "cannot write to text.txt"),
        (["--schedule", "32,8"], "lengths must increase"),
        (
            ["--max-position-embeddings", "16", "--schedule", "8"],
            "the sentence for the pictures has 26 tokens",
        ),
        (["--record", "no/r.json"], "cannot write 'no/r.json'"),
        (["--output"], "Missing value for argument '--output'"),
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
    with pytest.raises(SystemExit) as stopped:
        main([*typed(Path("text.txt")), *arguments])
    assert stopped.value.code == 2
    error = capsys.readouterr().err
    assert message in error and re.fullmatch("error: .+\n", error)
    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == ["text.txt"]
