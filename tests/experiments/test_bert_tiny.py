"""Sentence pairs, from a folder of text to a model that `transformers` loads."""

import json
import signal
import time
from pathlib import Path

import pytest
import torch
import transformers

from labml_bert import fill_mask
from labml_bert.run.fingerprint import load_script
from labml_bert.training.checkpoint import CHECKPOINT, load_checkpoint
from tests.support.runs import SIZES, run, small_text, start

pytestmark = pytest.mark.processes

PAIRS = [*SIZES, "--schedule=16:3,32:1", "--vocab-size=120"]


@pytest.fixture(scope="module")
def document_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of thirty documents."""
    path = tmp_path_factory.mktemp("documents")
    for i in range(30):
        (path / f"{i:02}.txt").write_text(small_text(60, seed=i))
    return path


@pytest.fixture(scope="module")
def run_folder(document_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run of `bert_tiny.py`, with its output and its record."""
    path = tmp_path_factory.mktemp("pairs")
    record = path / "record.json"
    out = run("bert_tiny", "--corpus", document_folder, *PAIRS, "--steps=60", "--record", record, cwd=path)
    (path / "out.txt").write_text(out)
    return path


def run_of(path: Path) -> Path:
    return next(iter(path.glob("logs/*/*/")))


@pytest.mark.parametrize(("accuracy", "side"), [(0.7, "above"), (0.5, "below")])
def test_the_accuracy_is_compared_with_the_majority_class(accuracy: float, side: str) -> None:
    conclusion = load_script("bert_tiny").conclusion
    result = {"next_sentence_accuracy": accuracy, "next_sentence_chance": 0.6, "pairs": 100.0}
    assert f"2.0 standard errors {side}\n" in conclusion({**result, "next_sentence_standard_error": 0.05})
    of_one_class = {**result, "next_sentence_standard_error": 0.0}
    assert conclusion(of_one_class) == "  all 100 pairs are of the same class, so the accuracy says nothing\n"


def test_training_on_pairs_from_text_to_result(run_folder: Path) -> None:
    out = (run_folder / "out.txt").read_text()
    for words in (
        "accuracy on ",
        "standard errors",
        "two-neighbor n-gram",
        "after length 32",
        "subwords",
    ):
        assert words in out
    record = json.loads((run_folder / "record.json").read_text())
    result = record["result"]
    assert 0 <= result["next_sentence_accuracy"] <= 1
    assert 0.5 <= result["next_sentence_chance"] < 0.7
    chance = result["next_sentence_chance"]
    expected = (chance * (1 - chance) / result["pairs"]) ** 0.5
    assert result["next_sentence_standard_error"] == pytest.approx(expected)
    assert {"masked_lm_loss", "next_sentence_loss", "accuracy", "valid.loss"} <= set(record["history"])
    # The first point is the loss of an untrained model: ln 2 for the pairs.
    assert record["history"]["next_sentence_loss"][0][1] == pytest.approx(0.693, abs=0.1)


def test_transformers_loads_the_model_and_fills_a_mask(run_folder: Path) -> None:
    model = str(run_of(run_folder) / "model")
    their_model = transformers.BertForPreTraining.from_pretrained(model)
    ours, tokenizer = fill_mask.load_model(run_of(run_folder))
    theirs = transformers.AutoTokenizer.from_pretrained(model)
    text = "the cat [MASK] the dog today."
    ids = theirs(text, return_tensors="pt")
    assert ids["input_ids"][0].tolist() == tokenizer.encode(text).ids
    with torch.no_grad():
        logits = their_model.eval()(**ids).prediction_logits
        assert (logits - ours(ids["input_ids"]).logits).abs().max() < 1e-5
    pipe = transformers.pipeline("fill-mask", model=model, top_k=3)
    their_probabilities = {answer["token_str"]: answer["score"] for answer in pipe(text)}
    our_probabilities = {g.token: g.probability for g in fill_mask.fill_mask(ours, tokenizer, text, 10)[0]}
    assert all(
        our_probabilities[token] == pytest.approx(score, abs=1e-5)
        for token, score in their_probabilities.items()
    )
    reloaded, _ = fill_mask.load_model(run_of(run_folder) / "model")
    assert all(torch.equal(a, b) for a, b in zip(ours.parameters(), reloaded.parameters(), strict=True))


@pytest.mark.long
@pytest.mark.parametrize("options", [["--masking=static"], ["--masking=whole-word", "--adam=published"]])
def test_other_maskings_and_the_published_adam(
    options: list[str], document_folder: Path, tmp_path: Path
) -> None:
    out = run("bert_tiny", "--corpus", document_folder, *PAIRS, *options, "--steps=5", cwd=tmp_path)
    assert f"masks {options[0].partition('=')[2]}" in out


@pytest.mark.long
def test_a_killed_and_resumed_run_gives_identical_weights(document_folder: Path, tmp_path: Path) -> None:
    """The weights agree bit for bit, with dropout on, even if the sequence length changes in between."""
    common = ["--corpus", document_folder, *PAIRS, "--steps=60", "--checkpoint-seconds=0"]
    run("bert_tiny", *common, cwd=tmp_path)
    uninterrupted = run_of(tmp_path) / CHECKPOINT
    process = start("bert_tiny", *common, "--runs", tmp_path / "killed", cwd=tmp_path)
    for _ in range(600):
        checkpoints = list((tmp_path / "killed").glob(f"*/*/{CHECKPOINT}"))
        if checkpoints and load_checkpoint(checkpoints[0].parent)[0]["step"] > 0:
            break
        time.sleep(0.05)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    path = checkpoints[0].parent
    assert 0 < load_checkpoint(path)[0]["step"] < 60
    run("bert_tiny", "--resume", path, "--checkpoint-seconds=0", "--record=r.json", cwd=tmp_path)
    result = json.loads((tmp_path / "r.json").read_text())["result"]
    assert result["wall_seconds"] >= result["training_seconds"], "the time before the kill counts"
    expected, resumed = load_checkpoint(uninterrupted.parent)[1], load_checkpoint(path)[1]
    assert expected.keys() == resumed.keys()
    assert all(torch.equal(expected[name], resumed[name]) for name in expected)
