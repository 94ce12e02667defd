"""Sentence pairs, from a folder of text to a model that `transformers` opens."""

import json
import signal
import time
from pathlib import Path

import pytest
import torch
import transformers

from labml_bert import fill_mask
from labml_bert.training.checkpoint import CHECKPOINT, load_checkpoint
from tests.support.runs import SIZES, run, small_text, start

pytestmark = pytest.mark.processes

PAIRS = [*SIZES, "--schedule=16:3,32:1", "--vocab-size=120"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with thirty documents."""
    path = tmp_path_factory.mktemp("documents")
    for i in range(30):
        (path / f"{i:02}.txt").write_text(small_text(60, seed=i))
    return path


@pytest.fixture(scope="module")
def trained(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run of `bert_tiny.py`, its output, and its record."""
    path = tmp_path_factory.mktemp("pairs")
    record = path / "record.json"
    out = run("bert_tiny", "--corpus", folder, *PAIRS, "--steps=60", "--record", record, cwd=path)
    (path / "out.txt").write_text(out)
    return path


def newest(path: Path) -> Path:
    return next(iter(path.glob("logs/*/*/")))


def test_pairs_from_text_to_a_result(trained: Path) -> None:
    out = (trained / "out.txt").read_text()
    for words in (
        "accuracy on ",
        "standard errors",
        "two-neighbor n-gram",
        "after length 32",
        "subwords",
    ):
        assert words in out
    record = json.loads((trained / "record.json").read_text())
    result = record["result"]
    assert 0 <= result["next_sentence_accuracy"] <= 1
    assert 0.5 <= result["next_sentence_chance"] < 0.7
    chance = result["next_sentence_chance"]
    expected = (chance * (1 - chance) / result["pairs"]) ** 0.5
    assert result["next_sentence_standard_error"] == pytest.approx(expected)
    assert {"masked_lm_loss", "next_sentence_loss", "accuracy", "valid.loss"} <= set(record["history"])
    # The first reports hold the losses of an untrained model: ln 2 for the pairs.
    assert record["history"]["next_sentence_loss"][0][1] == pytest.approx(0.693, abs=0.1)


def test_transformers_opens_the_model_and_fills_a_mask(trained: Path) -> None:
    model = str(newest(trained) / "model")
    both = transformers.BertForPreTraining.from_pretrained(model)
    ours, tokenizer = fill_mask.load_model(newest(trained))
    theirs = transformers.AutoTokenizer.from_pretrained(model)
    text = "the cat [MASK] the dog today."
    ids = theirs(text, return_tensors="pt")
    assert ids["input_ids"][0].tolist() == tokenizer.encode(text).ids
    with torch.no_grad():
        logits = both.eval()(**ids).prediction_logits
        assert (logits - ours(ids["input_ids"]).logits).abs().max() < 1e-5
    pipe = transformers.pipeline("fill-mask", model=model, top_k=3)
    answers = {answer["token_str"]: answer["score"] for answer in pipe(text)}
    mine = {g.token: g.probability for g in fill_mask.fill_mask(ours, tokenizer, text, 10)[0]}
    assert all(mine[token] == pytest.approx(score, abs=1e-5) for token, score in answers.items())
    again, _ = fill_mask.load_model(newest(trained) / "model")
    assert all(torch.equal(a, b) for a, b in zip(ours.parameters(), again.parameters(), strict=True))


@pytest.mark.parametrize("options", [["--masking=static"], ["--masking=whole-word", "--adam=published"]])
def test_other_masks_and_the_published_adam(options: list[str], folder: Path, tmp_path: Path) -> None:
    out = run("bert_tiny", "--corpus", folder, *PAIRS, *options, "--steps=5", cwd=tmp_path)
    assert f"masks {options[0].partition('=')[2]}" in out


def test_pairs_killed_and_resumed_are_as_if_nothing_happened(folder: Path, tmp_path: Path) -> None:
    """Across the change of length, with dropout on, to the bit."""
    common = ["--corpus", folder, *PAIRS, "--steps=60", "--checkpoint-seconds=0"]
    run("bert_tiny", *common, cwd=tmp_path)
    whole = newest(tmp_path) / CHECKPOINT
    process = start("bert_tiny", *common, "--runs", tmp_path / "killed", cwd=tmp_path)
    for _ in range(600):
        found = list((tmp_path / "killed").glob(f"*/*/{CHECKPOINT}"))
        if found and load_checkpoint(found[0].parent)[0]["step"] > 0:
            break
        time.sleep(0.05)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    path = found[0].parent
    assert 0 < load_checkpoint(path)[0]["step"] < 60
    run("bert_tiny", "--resume", path, "--checkpoint-seconds=0", cwd=tmp_path)
    one, other = load_checkpoint(whole.parent)[1], load_checkpoint(path)[1]
    assert one.keys() == other.keys()
    assert all(torch.equal(one[name], other[name]) for name in one)
