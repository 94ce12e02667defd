"""The comparison of continued pretraining with training from scratch."""

import contextlib
import itertools
import json
import runpy
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer

from labml_bert.bert import BertConfig
from labml_bert.checksums import encode_line
from labml_bert.data.corpora import Corpus
from labml_bert.data.tokenizers import wordpiece_tokenizer
from labml_bert.models import BertForMaskedLM
from labml_bert.new_tokens import add_tokens
from labml_bert.training import distributed
from labml_bert.training.tracking import METRICS
from tests.support.runs import small_text
from tests.support.tiny_run import assert_fails

SCRIPT = Path(__file__).parents[2] / "experiments" / "compare_continued.py"
script = runpy.run_path(str(SCRIPT))
main, find_occurrences, predict_words = (script[n] for n in ("main", "find_occurrences", "predict_words"))
TEXTS = Path(__file__).parents[2] / "docs" / "pages"
LETTERS = "abcdefghijklmnopqrstuvwxyz"


def tokenizer_of(text: str, vocab_size: int) -> Tokenizer:
    return wordpiece_tokenizer([text, f"{LETTERS} {LETTERS[::-1]}"], vocab_size)


def test_occurrences_are_whole_words_in_their_context() -> None:
    tokenizer = add_tokens(tokenizer_of("the cat", 60), ["hat", "kwargs"])
    words = [f"a{i % 7}" for i in range(40)]
    texts = [" ".join([*words, "hats", "hat,", *words]), "kwargs"]
    first, second = find_occurrences(tokenizer, texts, ["hat", "kwargs"], 9)
    assert first.text[first.start : first.end] == "hat" and len(first.text) < len(texts[0]) / 2
    assert first.text in texts[0]
    assert second == ("kwargs", 0, 6)
    # If there are too many occurrences, evenly spaced ones are kept.
    many = find_occurrences(tokenizer, ["hat "] * 100, ["hat"], 7)
    assert len(many) == 7
    with pytest.raises(ValueError, match="has none of the new tokens"):
        find_occurrences(tokenizer, ["hats"], ["hat"], 9)


@pytest.mark.parametrize("name", ["corpus_sha256", "old_corpus_sha256"])
def test_a_text_that_has_changed_is_refused(name: str) -> None:
    """Variants that were trained on different texts can't be compared."""
    new, old = Corpus("new.txt", ["a"], ["b"]), Corpus("old.txt", ["c"], ["d"])
    configuration = {"corpus_sha256": new.sha256, "old_corpus_sha256": old.sha256}
    run: Any = SimpleNamespace(path=Path("logs/one"), configuration=configuration)
    script["check_texts"](run, new, old)
    configuration[name] = "0"
    with pytest.raises(ValueError, match="the text of logs/one isn't the one that was read at the start"):
        script["check_texts"](run, new, old)


def test_a_run_without_its_first_losses_is_refused(tmp_path: Path) -> None:
    names = [f"{part}.{name}" for part in ("before", "valid") for name in script["LOSSES"]]
    for line in (dict.fromkeys(names, 1.0), dict.fromkeys(names[1:], 1.0), {}):
        (tmp_path / METRICS).write_bytes(encode_line({"step": 1} | line))
        if len(line) == len(names):
            assert script["read_curves"](tmp_path).keys() >= {*names}
            continue
        with pytest.raises(ValueError, match=r"has lost a part of its metrics\.jsonl; start over"):
            script["read_curves"](tmp_path)


def test_several_processes_are_refused(monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    monkeypatch.setattr(distributed, "launcher", lambda: ["-m", "torch.distributed.run"])
    assert_fails(main, [], "needs a single process; start it without torchrun", capsys)


class Oracle(torch.nn.Module):
    """Predicts `target` wherever a token is masked, with a probability close to 1."""

    def __init__(self, vocab_size: int, mask_id: int, targets: list[int]):
        super().__init__()
        self.config = BertConfig(vocab_size, max_position_embeddings=64)
        self.mask_id, self.targets = mask_id, targets
        self.masks: list[int] = []

    def forward(self, input_ids, labels, attention_mask):
        self.masks += (input_ids == self.mask_id).sum(1).tolist()
        logits = torch.zeros(int((labels != -100).sum()), self.config.vocab_size)
        for row, masks in zip(logits, (input_ids == self.mask_id).sum(1).tolist(), strict=True):
            row[self.targets[-masks]] = 50.0
        return script["BertForMaskedLM"].forward.__globals__["MaskedLMOutput"](None, logits, labels)


def test_pieces_are_predicted_from_left_to_right() -> None:
    tokenizer = tokenizer_of("the cat", 60)
    mask_id = tokenizer.token_to_id("[MASK]")
    pieces = tokenizer.encode("dog", add_special_tokens=False).ids
    assert len(pieces) == 3
    occurrence = script["Occurrence"]("the dog cat", 4, 7)
    right = Oracle(tokenizer.get_vocab_size(), mask_id, pieces)
    result = predict_words(right, tokenizer, [occurrence, occurrence], batch_size=4)
    assert right.masks == [3, 2, 1, 3, 2, 1]
    assert result["word_accuracy"] == 1 and result["word_log_prob"] == pytest.approx(0, abs=1e-3)
    # One wrong piece makes the word wrong.
    wrong = Oracle(tokenizer.get_vocab_size(), mask_id, [*pieces[:2], pieces[0]])
    result = predict_words(wrong, tokenizer, [occurrence])
    assert result["word_accuracy"] == 0 and result["word_log_prob"] == pytest.approx(-50, abs=1e-3)


def test_the_context_and_the_padding_do_not_change_a_prediction() -> None:
    tokenizer = tokenizer_of("the cat", 60)
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
    config = BertConfig(tokenizer.get_vocab_size(), **sizes, initializer_range=0.5)
    model = BertForMaskedLM(config).eval()
    occurrences = [script["Occurrence"]("the hat", 4, 7), script["Occurrence"]("a cat or the dog", 2, 5)]
    both = predict_words(model, tokenizer, occurrences)
    alone = [predict_words(model, tokenizer, [one])["word_log_prob"] for one in occurrences]
    assert both["word_log_prob"] == pytest.approx(sum(alone) / 2, abs=1e-4)


@pytest.mark.long
@pytest.mark.processes
def test_the_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(main.__globals__, "OCCURRENCES", 20)
    (tmp_path / "old.txt").write_text(small_text(600))
    (tmp_path / "new.txt").write_text("\n".join(f"self.{w}(kwargs)" for w in small_text(600).split()))
    path = tmp_path / "record.json"
    texts = [f"--corpus={tmp_path / 'new.txt'}", f"--old-corpus={tmp_path / 'old.txt'}"]
    main(
        [*texts, f"--runs={tmp_path}", "--seeds=1", "--steps=2", "--pretraining-steps=1", f"--record={path}"]
    )
    record = json.loads(path.read_text())
    assert record["experiment"] == "compare_continued"
    (seed,) = record["result"]["continued"]
    assert [row["variant"] for row in seed["variants"]] == [*script["VARIANTS"]]
    assert [row["steps"] for row in seed["variants"]] == [2, 1, 1, 1]
    for row in seed["variants"]:
        assert len(row["curves"]["loss"]) == len(row["curves"]["old_loss"]) == row["steps"] + 1
        assert 0 <= row["word_accuracy"] <= 1 and row["word_log_prob"] < 0 and row["loss"] > 0
    before, after = seed["held_out_tokens"]
    assert after < before
    fingerprints = script["fingerprints"]
    assert {*fingerprints(record)} == {*script["VARIANTS"]}
    assert str(tmp_path) not in path.read_text()


@pytest.mark.processes
def test_only_a_complete_record_replaces_an_earlier_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run_seed(options, corpus, old_corpus, seed):
        if seed == stop:
            raise KeyboardInterrupt
        return {}, {"seed": seed, "variants": []}

    def seeds() -> list[int]:
        return [result["seed"] for result in json.loads(path.read_text())["result"]["continued"]]

    monkeypatch.setitem(main.__globals__, "run_seed", run_seed)
    monkeypatch.setitem(main.__globals__, "check_new_tokens", lambda *_: None)
    (tmp_path / "text.txt").write_text(small_text(600))
    path, corpus = tmp_path / "record.json", tmp_path / "text.txt"
    for count, stop, expected in ((3, 2, [0, 1]), (3, 3, [0, 1, 2]), (4, 2, [0, 1, 2]), (2, 2, [0, 1])):
        with pytest.raises(SystemExit) if stop < count else contextlib.nullcontext():
            main([f"--corpus={corpus}", f"--old-corpus={corpus}", f"--seeds={count}", f"--record={path}"])
        assert seeds() == expected


def test_a_text_without_new_tokens_is_refused_before_the_pretraining(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    old, new = tmp_path / "old.txt", tmp_path / "new.txt"
    old.write_text(small_text(600))
    new.write_text("kwargs " * 100 + "\n" + "the cat\n" * 90)
    message = "error: the held-out text has none of the new tokens"
    assert_fails(main, [f"--corpus={new}", f"--old-corpus={old}", f"--runs={tmp_path}/runs"], message, capsys)
    old.write_text("".join(f"{chr(0x4E00 + i)}" for i in range(3000)) * 2)
    message = "the old text: vocab_size 2000 is too small for the alphabet of this text"
    assert_fails(main, [f"--corpus={new}", f"--old-corpus={old}", f"--runs={tmp_path}/runs"], message, capsys)
    assert not (tmp_path / "runs").exists()


def test_words_that_do_not_fit_into_the_model_are_refused_before_the_pretraining(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The old tokenizer splits each of these words into dozens of pieces."""
    old, new = tmp_path / "old.txt", tmp_path / "new.txt"
    old.write_text(small_text(600))
    words = ["".join(letters) for letters in itertools.permutations("tacheu")][:200]
    new.write_text("\n".join(" ".join(word * 8 for word in words[i:] + words[:i]) for i in range(40)))
    message = "error: no occurrence of a new token in new.txt fits into the model's 64 positions"
    assert_fails(main, [f"--corpus={new}", f"--old-corpus={old}", f"--runs={tmp_path}/runs"], message, capsys)
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--seeds=0"], "seeds is 0; it must be at least 1"),
        (["--pretraining-steps=0"], "pretraining_steps is 0; it must be at least 1"),
        (["--steps=0"], "steps is 0; it must be at least 1"),
        (["--corpus=nothing"], "no corpus or file is called 'nothing'"),
        (["--record=no/folder/record.json"], "cannot write"),
        (["--device=tpu"], "device 'tpu' is not available here"),
        ([f"--corpus={TEXTS}", f"--runs={TEXTS}"], "among the texts; choose another path with --runs"),
        ([f"--old-corpus={TEXTS}", f"--record={TEXTS}/r.json"], "choose another path with --record"),
    ],
)
def test_bad_input_gets_one_line_and_exit_code_2(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert_fails(main, arguments, message, capsys)
