"""From a file of labels to a classifier: reading, splitting, training, saving, and bad input."""

import errno
import io
import json
import math
import os
import random
import shutil
import subprocess
import sys
from collections import Counter
from dataclasses import asdict, replace
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer, processors
from torch import Tensor

from labml_bert import classify, modern_folder
from labml_bert.bert import BertConfig
from labml_bert.checksums import SUMS
from labml_bert.data import tokenizers
from labml_bert.data.tokenizers import (
    character_tokenizer,
    load_tokenizer,
    save_tokenizer,
    wordpiece_tokenizer,
)
from labml_bert.files import PART, lock
from labml_bert.finetuning import EarlyStopping, Row, encode_as_saved, encode_examples, fine_tune, predict
from labml_bert.heads import BertForSequenceClassification
from labml_bert.labeled_text import Example, quality, split_by_label
from labml_bert.model_card import describe_pretraining, write_pretraining_card
from labml_bert.models import BertForMaskedLM, BertForPreTraining
from labml_bert.modern import ModernBertConfig, ModernBertForMaskedLM
from tests.support.labels import GOOD, HEADER, ROWS, assert_fails, save_run, write_csv
from tests.support.parity import TOLERANCE, perturb_weights
from tests.support.runs import small_text

SIZES = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
CONFIG = BertConfig(vocab_size=90, **SIZES, max_position_embeddings=24, initializer_range=0.05)


def save_backbone(folder: Path, config: BertConfig = CONFIG) -> Path:
    """Writes an encoder that hasn't been trained, as a model folder."""
    tokenizer = wordpiece_tokenizer([small_text(300), "yes no yes no"], config.vocab_size)
    torch.manual_seed(0)
    config = replace(config, vocab_size=tokenizer.get_vocab_size())
    BertForPreTraining(config).save_pretrained(folder)
    save_tokenizer(tokenizer, folder)
    return folder


@pytest.fixture(scope="module")
def backbone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_backbone(tmp_path_factory.mktemp("backbone"))


def yes_or_no(count: int) -> list[tuple[str, str]]:
    """Texts that contain the word *yes* or *no*, which is their label. Two of three have *yes*."""
    r = random.Random(0)
    words = ["yes" if i % 3 else "no" for i in range(count)]
    sentences = small_text(count).split("\n")
    return [(f"{r.choice('abc')}, {word} {text}", word) for text, word in zip(sentences, words, strict=True)]


def test_the_split_keeps_every_label_in_both_parts() -> None:
    counts = {0: 70, 1: 25, 2: 3, 3: 2}
    examples = [Example(f"{label}-{i}", label) for label, count in counts.items() for i in range(count)]
    rest, held_out = split_by_label(examples, 0.2, seed=1)
    assert sorted(rest + held_out) == sorted(examples)
    assert Counter(example.label for example in held_out) == {0: 14, 1: 5, 2: 1, 3: 1}
    assert (rest, held_out) == split_by_label(examples, 0.2, seed=1)
    assert set(held_out) != set(split_by_label(examples, 0.2, seed=2)[1])
    # Neither part is sorted by label.
    assert sorted(rest, key=lambda example: example.label) != rest
    with pytest.raises(ValueError, match="only one example"):
        split_by_label(examples[:1], 0.2)
    assert Counter(example.label for example in split_by_label(examples, 0.9)[0]) == {0: 7, 1: 3, 2: 1, 3: 1}
    for fraction in (0.0, 1.0, -0.2, math.nan):
        with pytest.raises(ValueError, match=r"fraction is .*; it must be between 0 and 1"):
            split_by_label(examples, fraction)


@pytest.mark.long
@pytest.mark.slow("trains two classifiers")
def test_an_explicit_number_of_epochs_is_kept(
    backbone: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The minimum of `MIN_STEPS` steps applies only to the default number of epochs."""
    path = write_csv(tmp_path / "labels.csv", yes_or_no(40))
    arguments = ["train", str(path), "--from", str(backbone), "--learning-rate", "1e-3", "--output"]
    classify.main([*arguments, str(tmp_path / "two"), "--epochs", "2"])
    assert " at evaluation 2 of 2\n" in capsys.readouterr().out.replace("evaluation 1", "evaluation 2")
    classify.main([*arguments, str(tmp_path / "default")])
    cards = [(tmp_path / name / "README.md").read_text(encoding="utf-8") for name in ("two", "default")]
    assert "--learning-rate 0.001 --epochs 2 --seed 0" in cards[0] and "--epochs" not in cards[1]


# Early stopping


class Scripted:
    """Sets a weight to the number of the evaluation, and gives predictions of a scripted quality."""

    def __init__(self, correct: list[int], monkeypatch: pytest.MonkeyPatch):
        self.model = BertForSequenceClassification(replace(CONFIG, vocab_size=20), ["a", "b"])
        self.rows = [Row([2, 3], [0, 0], {"labels": 1})] * 10
        self.correct = correct
        self.evaluation = 0
        monkeypatch.setattr("labml_bert.finetuning.predict", self.predict)

    def predict(self, *_: object) -> Tensor:
        """The first texts are predicted correctly, always with the same confidence."""
        right = torch.arange(10) < self.correct[self.evaluation - 1]
        return torch.stack([(~right).float(), right.float()], 1)

    def run(self, patience: int) -> tuple[EarlyStopping, int]:
        stopping = EarlyStopping(self.model, self.rows, patience)
        for evaluation in range(1, len(self.correct) + 1):
            self.evaluation = evaluation
            torch.nn.init.constant_(self.model.classifier.weight, evaluation)
            if stopping():
                break
        return stopping, self.evaluation


@pytest.mark.parametrize(
    ("correct", "patience", "best", "last"),
    [
        ([3, 5, 4, 4, 9], 2, 2, 4),
        ([3, 5, 4, 4, 9], 3, 5, 5),
        ([6, 6, 6, 6], 3, 1, 4),
        ([1, 2, 3, 4], 1, 4, 4),
        ([4, 3], 1, 1, 2),
    ],
)
def test_early_stopping_keeps_the_best_weights(
    correct: list[int], patience: int, best: int, last: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    scripted = Scripted(correct, monkeypatch)
    stopping, evaluation = scripted.run(patience)
    assert (stopping.best, evaluation) == (best, last)
    accuracy, _ = stopping.restore_best()
    assert accuracy == pytest.approx(correct[best - 1] / 10)
    assert (scripted.model.classifier.weight == best).all()


def test_fine_tuning_asks_after_each_epoch_and_stops(backbone: Path) -> None:
    model, tokenizer = classify.load_pretrained(backbone, ["no", "yes"])
    rows = encode_examples(
        tokenizer, [Example(text, int(label == "yes")) for text, label in yes_or_no(40)], 24
    )
    answers = iter([False, False, True])
    losses = fine_tune(model, rows, 1e-3, epochs=6, batch_size=8, should_stop=lambda: next(answers))
    assert len(losses) == 3 * 5 and not model.training
    stopping = EarlyStopping(model, rows[:9], patience=99)
    with pytest.raises(ValueError, match="the model hasn't been evaluated yet"):
        stopping.restore_best()
    assert len(fine_tune(model, rows, 1e-3, epochs=4, batch_size=8, should_stop=stopping)) == 4 * 5
    assert len(stopping.qualities) == 4
    best = stopping.restore_best()
    labels = torch.tensor([row.targets["labels"] for row in rows[:9]])
    assert best == max(stopping.qualities) == quality(predict(model, rows[:9]), labels)


# From training to predictions


@pytest.fixture(scope="module")
def classifier(backbone: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("trained")
    path = write_csv(folder / "labels.csv", yes_or_no(150))
    classify.main(
        [
            "train",
            str(path),
            "--from",
            str(backbone),
            "--output",
            str(folder / "out"),
            "--learning-rate",
            "3e-3",
        ]
    )
    return folder / "out"


def predictions_of(output: str) -> list[tuple[str, float]]:
    """The label and the probability in each row of the printed table."""
    rows = [line.split() for line in output.splitlines() if "%" in line]
    return [(label, float(probability.rstrip("%")) / 100) for label, probability, *_ in rows]


@pytest.mark.slow("trains until the task is learned")
def test_a_classifier_learns_and_predicts(classifier: Path, capsys: pytest.CaptureFixture[str]) -> None:
    classify.main(
        ["predict", str(classifier), "b, yes the cat sees the dog today.", "a, no the dog likes a bird"]
    )
    output = capsys.readouterr().out
    assert [label for label, _ in predictions_of(output)] == ["yes", "no"]
    assert max(map(len, output.splitlines())) <= 80


@pytest.mark.slow("trains until the task is learned")
def test_transformers_opens_the_folder_and_agrees(
    classifier: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    transformers = pytest.importorskip("transformers", reason="transformers is what this is compared with")
    pipeline = transformers.pipeline("text-classification", str(classifier), device="cpu")
    # As in the training, the names of special tokens are ordinary text.
    texts = [
        "b, yes the cat",
        "no dog",
        "the river, zebra!",
        "[MASK] yes [SEP] no",
        "Yes " + "the old house " * 30,
    ]
    theirs = pipeline(texts, truncation=True)
    classify.main(["predict", str(classifier), *texts])
    ours = predictions_of(capsys.readouterr().out)
    assert [label for label, _ in ours] == [result["label"] for result in theirs]
    model = BertForSequenceClassification.from_pretrained(classifier)
    tokenizer = classify.load_tokenizer(classifier / "tokenizer.json")
    logits = predict(model, encode_examples(tokenizer, [Example(text, 0) for text in texts], 24))
    expected = torch.tensor([result["score"] for result in theirs])
    assert (logits.softmax(-1).amax(-1) - expected).abs().max() < TOLERANCE
    assert json.loads((classifier / "config.json").read_text())["id2label"] == {"0": "no", "1": "yes"}


@pytest.mark.slow("trains until the task is learned")
def test_a_classifier_of_transformers_may_read_special_tokens_in_a_text(
    classifier: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    transformers = pytest.importorskip("transformers", reason="transformers is what this is compared with")
    folder = shutil.copytree(classifier, tmp_path / "classifier")
    (folder / SUMS).unlink()
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    del settings["split_special_tokens"]
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    texts = ["[MASK] yes [SEP] no", "b, yes [SEP] the cat"]
    theirs = transformers.pipeline("text-classification", str(folder), device="cpu")(texts)
    classify.main(["predict", str(folder), *texts])
    for (label, probability), result in zip(predictions_of(capsys.readouterr().out), theirs, strict=True):
        assert label == result["label"] and probability == pytest.approx(result["score"], abs=6e-4)


PAIR = "[CLS] $A [SEP] $B:1 [SEP]:1"


@pytest.mark.parametrize(
    ("single", "pair", "settings"),
    [
        ("[CLS] $A [SEP]", PAIR, {}),
        ("[CLS] $A [SEP]", PAIR, {"truncation_side": "left"}),
        ("[CLS] $A [SEP]", PAIR, {"model_input_names": ["input_ids", "attention_mask"]}),
        ("[CLS] $A [SEP]", PAIR, {"split_special_tokens": True}),
        ("[CLS] $A", "[CLS] $A $B", {}),
        ("$A", "$A [SEP] $B", {}),
        ("[CLS] $A [SEP]", "[CLS] $A [SEP] [SEP] $B [SEP]", {}),
    ],
)
def test_a_saved_classifier_gets_what_its_own_tokenizer_gives(
    single: str, pair: str, settings: dict[str, object], tmp_path: Path
) -> None:
    transformers = pytest.importorskip("transformers", reason="transformers is what this is compared with")
    tokenizer = tokenizers.wordpiece_tokenizer(["the cat sat on a mat"], 60)
    cls_id, sep_id = tokenizers.cls_sep_ids(tokenizer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single=single, pair=pair, special_tokens=[("[CLS]", cls_id), ("[SEP]", sep_id)]
    )
    settings = {"model_input_names": ["input_ids", "token_type_ids", "attention_mask"]} | settings
    # Without BERT's template, `transformers` would replace it.
    tokenizers.save_tokenizer(tokenizer, tmp_path, **settings, tokenizer_class="PreTrainedTokenizerFast")
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    loaded = tokenizers.load_tokenizer(tmp_path / "tokenizer.json")
    texts = ["the cat", "the [MASK] sat on a mat " * 3, "a mat"]
    for second in (None, "the mat", "the cat sat on the mat " * 4):
        rows = encode_as_saved(loaded, texts, second, 11, tokenizers.read_settings(tmp_path))
        for text, row in zip(texts, rows, strict=True):
            expected = theirs(text, second, truncation=True, max_length=11)
            assert row.input_ids == expected["input_ids"]
            assert row.token_type_ids == expected.get("token_type_ids", [0] * len(row.input_ids))
    assert loaded.truncation is None
    for empty in ((["the", ""], "a"), (["the"], "")):
        with pytest.raises(ValueError, match="the text '' has no tokens"):
            encode_as_saved(loaded, *empty, 11, {})


def test_a_tokenizer_that_adds_other_tokens_is_refused() -> None:
    """Continued pretraining and the export would otherwise give the model other tokens than it knows."""
    tokenizer = tokenizers.wordpiece_tokenizer(["the cat sat"], 40)
    assert tokenizers.adds_cls_sep(tokenizer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A", pair=None, special_tokens=[("[CLS]", tokenizer.token_to_id("[CLS]"))]
    )
    with pytest.raises(ValueError, match=r"adds \[CLS\] to a text; use one that adds"):
        tokenizers.adds_cls_sep(tokenizer)
    assert not tokenizers.adds_cls_sep(tokenizers.character_tokenizer(["a"]))


def test_the_seed_decides_everything(
    backbone: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(classify, "MIN_STEPS", 1)
    path = write_csv(tmp_path / "labels.csv", yes_or_no(40))
    weights = []
    for number, seed in enumerate("112"):
        out = tmp_path / str(number)
        words = f"train {path} --from {backbone} --output {out} --seed {seed} --epochs 1"
        classify.main(words.split())
        output = capsys.readouterr().out
        assert output.count("validation accuracy") == 3
        assert max(len(line) for line in output.splitlines() if str(tmp_path) not in line) <= 80
        tensors = BertForSequenceClassification.from_pretrained(out).parameters()
        weights.append(torch.cat([tensor.flatten() for tensor in tensors]))
    assert torch.equal(weights[0], weights[1]) and not torch.equal(weights[0], weights[2])


def test_pairs_from_a_run_of_characters_agree_with_transformers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The tokenizer of such a run adds no special tokens, and its model has no pooler."""
    transformers = pytest.importorskip("transformers", reason="transformers is what this is compared with")
    tokenizer = character_tokenizer([small_text(100)])
    config = replace(CONFIG, vocab_size=tokenizer.get_vocab_size(), max_position_embeddings=40)
    save_run(tmp_path / "run", BertForMaskedLM(config), {"model": asdict(config)})
    tokenizer.save(str(tmp_path / "run" / "tokenizer.json"))
    rows = [(text, "ab"[i % 2], text[:9]) for i, text in enumerate(dict.fromkeys(small_text(30).split("\n")))]
    path = write_csv(tmp_path / "pairs.csv", rows, ("text", "label", "pair"))
    out = tmp_path / "out"
    arguments = ["--from", str(tmp_path / "run"), "--output", str(out), "--epochs", "1"]
    monkeypatch.setattr(classify, "MIN_STEPS", 1)
    classify.main(["train", str(path), *arguments])
    assert '"your text" --pair "second text"'.replace('"', "'") in capsys.readouterr().out
    card = (out / "README.md").read_text(encoding="utf-8")
    assert '"text_pair"' in card and "--epochs 1 --seed 0 --from …/run" in card
    # Without the second text of a pair, the probabilities would mean nothing.
    assert_fails(tmp_path, ["predict", "out", "the cat"], "was trained with pairs of texts; add the", capsys)
    model = BertForSequenceClassification.from_pretrained(out)
    perturb_weights(model, 0)
    model.save_pretrained(out)
    capsys.readouterr()
    pipeline = transformers.pipeline("text-classification", str(out), device="cpu")
    for text in ("the cat", "the dog likes the bird " * 3):
        classify.main(["predict", str(out), text, "--pair", "a river today."])
        ((label, probability),) = predictions_of(capsys.readouterr().out)
        theirs = pipeline({"text": text, "text_pair": "a river today."}, truncation=True)
        assert theirs["label"] == label
        assert theirs["score"] == pytest.approx(probability, abs=6e-4)


@pytest.mark.processes
@pytest.mark.skipif(sys.platform == "win32", reason="the Makefile is for systems with a POSIX shell")
def test_make_classifier_checks_the_labels_then_pretrains_once(tmp_path: Path) -> None:
    """In place of Python, a script writes down its arguments, and leaves a folder when told to pretrain."""
    names = ("Makefile", "pyproject.toml", "constraints.txt")
    for name in names:
        shutil.copy(Path(__file__).parents[1] / name, tmp_path)
    python = tmp_path / ".venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text(
        '#!/bin/sh\necho "$@" >> calls\n'
        'case "$1 $4" in *bert_tiny*) mkdir -p logs/bert_tiny/b/model && '
        "touch logs/bert_tiny/b/model/config.json;; *bad.csv) exit 2;; esac\n"
    )
    python.chmod(0o755)
    for name in ("bin/pip", ".run", ".baselines"):
        (tmp_path / ".venv" / name).touch()

    def make(*arguments: str) -> list[str]:
        (tmp_path / "calls").unlink(missing_ok=True)
        subprocess.run(
            ["make", "classifier", *arguments],
            cwd=tmp_path,
            # Don't pass on the arguments of a `make test` that runs this test.
            env={"PATH": os.environ["PATH"]},
            capture_output=True,
            check=False,
        )
        return (tmp_path / "calls").read_text().splitlines()

    arguments = "-m labml_bert.classify train labels.csv --output classifier"
    check, train = f"{arguments} --check-only", f"{arguments} --from logs/bert_tiny/b"
    assert make("FROM=my_bert") == [check, train.replace("logs/bert_tiny/b", "my_bert")]
    assert make("LABELS=bad.csv") == [check.replace("labels.csv", "bad.csv")]
    assert make() == [check, "experiments/bert_tiny.py --minutes 2", train]
    # This run is older, although something was written to its folder later.
    older = tmp_path / "logs" / "bert_tiny" / "c" / "model"
    older.mkdir(parents=True)
    (older / "config.json").touch()
    os.utime(older / "config.json", (0, 0))
    assert make("ARGS=--epochs 2") == [f"{check} --epochs 2", f"{train} --epochs 2"]
    for option in ("--check-only", "--help", "-h"):
        assert make(f"ARGS={option}") == [f"{check} {option}"]
    name = 'my "labels" `today`.csv'
    assert make(f"LABELS={name}") == [line.replace("labels.csv", name) for line in (check, train)]


def test_two_programs_do_not_write_to_the_same_folder(
    tmp_path: Path, backbone: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write_csv(tmp_path / "labels.csv", yes_or_no(40))
    (tmp_path / "out").mkdir()
    words = f"train {path} --from {backbone} --epochs 1 --learning-rate 1e-3 --output {tmp_path / 'out'}"
    with lock(tmp_path / "out"), pytest.raises(SystemExit) as exit_info:
        classify.main(words.split())
    assert exit_info.value.code == 2 and "another program is writing to" in capsys.readouterr().err
    classify.main(words.split())


def test_a_train_that_was_killed_while_it_saved_can_be_repeated(
    tmp_path: Path, backbone: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A kill leaves the lock, some of the files, and one that says that they are being saved."""
    out, path = tmp_path / "out", write_csv(tmp_path / "labels.csv", yes_or_no(40))
    words = f"train {path} --from {backbone} --epochs 1 --learning-rate 1e-3 --output {out}".split()
    classify.main(words)
    whole = {file.name: file.read_bytes() for file in out.iterdir()}
    assert not {".lock", classify.SAVING} & whole.keys()
    for name in ("README.md", "config.json"):
        (out / name).unlink()
    with pytest.raises(SystemExit):
        classify.main(words)
    assert "is not an empty folder" in capsys.readouterr().err
    # A lock of another program proves nothing: this may be somebody's own model.
    (out / ".lock").touch()
    with pytest.raises(SystemExit):
        classify.main(words)
    (out / ".lock").unlink()
    assert (out / "model.safetensors").read_bytes() == whole["model.safetensors"]
    for name in (classify.SAVING, f"model.safetensors.1{PART}"):
        (out / name).touch()
    (out / "notes.txt").touch()
    with pytest.raises(SystemExit):
        classify.main(words)
    (out / "notes.txt").unlink()
    # Ours is empty, so this one is somebody's own.
    (out / classify.SAVING).write_text("kept")
    with pytest.raises(SystemExit):
        classify.main(words)
    assert (out / classify.SAVING).read_text() == "kept"
    (out / classify.SAVING).write_text("")
    classify.main(words)
    assert {file.name for file in out.iterdir()} == whole.keys()
    for name in whole.keys() - {"README.md"}:
        assert (out / name).read_bytes() == whole[name], name
    (out / classify.SAVING).touch()
    with pytest.raises(SystemExit):
        classify.main(words)


def test_the_check_refuses_a_folder_with_files_and_needs_no_encoder(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # There's no run in `logs`.
    words = ["train", str(write_csv(tmp_path / "labels.csv", yes_or_no(40))), "--check-only", "--output"]
    classify.main([*words, "new"])
    assert not Path("new").exists()
    (tmp_path / "old").mkdir()
    (tmp_path / "old" / "notes.txt").write_text("mine")
    with pytest.raises(SystemExit) as exit_info:
        classify.main([*words, "old"])
    assert exit_info.value.code == 2
    assert "old exists and is not an empty folder" in capsys.readouterr().err


def test_the_header_warns_of_a_text_with_two_labels(
    tmp_path: Path, backbone: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write_csv(tmp_path / "labels.csv", [*yes_or_no(40), ("same", "yes"), ("same", "no")])
    classify.main(["check", str(path)])
    warning = "left out 2 rows: same text, different labels (lines 42 and 43)"
    out = capsys.readouterr().out
    assert "this file is fine" in out and f"\n  warning    {warning}\n" in out
    words = f"train {path} --from {backbone} --epochs 1 --learning-rate 1e-3 --output {tmp_path / 'out'}"
    classify.main(words.split())
    assert f"\n  warning    {warning}\n" in capsys.readouterr().out
    assert "left out 2 rows" in (tmp_path / "out" / "README.md").read_text(encoding="utf-8")


def test_check_prints_the_labels_with_their_counts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [*ROWS, ("more", " a ")]
    classify.main(["check", str(write_csv(tmp_path / "few.csv", rows))])
    assert "\n  labels     'a' (11), 'b' (10)\n" in capsys.readouterr().out
    many = [(f"text {i}", f"a label with a long name: {i % 40}") for i in range(400)]
    classify.main(["check", str(write_csv(tmp_path / "many.csv", many))])
    (line,) = [line for line in capsys.readouterr().out.splitlines() if "labels   " in line]
    assert line.endswith("'a label with a long name: 0' (10), and 39 more") and len(line) <= 80


@pytest.mark.parametrize(("loss", "warns"), [(6.1, True), (5.0, False), (7.5, True)])
def test_an_encoder_that_has_learned_little_is_mentioned(loss: float, warns: bool, tmp_path: Path) -> None:
    facts = {
        "configuration": {"model": {"max_position_embeddings": 24}},
        "corpus": {"name": "text", "train_characters": 1, "valid_characters": 1, "sha256": "0"},
        "parameters": 1,
        "baselines": [
            {"name": "uniform", "loss": 8.0, "accuracy": 0},
            {"name": "unigram", "loss": 6.2, "accuracy": 0},
        ],
        "result": {"loss": loss, "accuracy": 0, "steps": 1, "training_seconds": 1},
    }
    assert describe_pretraining(tmp_path) == {}
    (tmp_path / "model").mkdir()
    write_pretraining_card(tmp_path / "model", ["python"], facts)
    line = f"hardly (loss {loss:.3f}, unigram baseline 6.200); pretrain longer"
    expected = {"pretrained": line} if warns else {}
    assert describe_pretraining(tmp_path) == expected
    assert describe_pretraining(tmp_path / "model") == expected
    (tmp_path / "model" / "README.md").unlink()
    os.mkfifo(tmp_path / "model" / "README.md")
    assert describe_pretraining(tmp_path) == {}, "reading the pipe would wait forever"


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json"])
def test_a_model_that_is_replaced_meanwhile_is_refused(
    name: str,
    backbone: Path,
    bad_folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The weights would be of one model, and the tokenizer of another."""

    def load_and_replace(path: Path, size: int | None = None) -> Tokenizer:
        tokenizer = load_tokenizer(path, size)
        shutil.copy(path.with_name(name), tmp_path)
        os.replace(tmp_path / name, path.with_name(name))
        return tokenizer

    monkeypatch.setattr(classify, "load_tokenizer", load_and_replace)
    message = f"{name} was replaced while it was read; try again"
    folder = shutil.copytree(backbone, tmp_path / "backbone")
    labels = write_csv(tmp_path / "labels.csv", yes_or_no(40))
    train = ["train", str(labels), "--output", str(tmp_path / "new"), "--from", str(folder)]
    folder = shutil.copytree(bad_folder / "classifier", tmp_path / "classifier")
    for arguments in (train, ["predict", str(folder), "a text"]):
        with pytest.raises(SystemExit) as exit_info:
            classify.main(arguments)
        assert exit_info.value.code == 2 and message in capsys.readouterr().err
    assert not (tmp_path / "new").exists()


def test_settings_that_cannot_be_read_are_not_ignored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without them, the maximum length would be another one, and so could the label."""
    assert tokenizers.read_settings(tmp_path) == {}

    def refuse(path: Path) -> bytes:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(tokenizers, "read_checked", refuse)
    with pytest.raises(PermissionError, match=r"tokenizer_config\.json"):
        tokenizers.read_settings(tmp_path)


# Standard input


def test_each_line_of_standard_input_becomes_a_row(
    bad_folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"\xef\xbb\xbfone\r\ntwo\nthree\n")))
    classify.main(["predict", str(bad_folder / "classifier")])
    rows = [line.split() for line in capsys.readouterr().out.splitlines() if "%" in line]
    assert [row[-1] for row in rows] == ["one", "two", "three"]


def test_predict_says_what_the_model_does_not_read(
    bad_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = str(bad_folder / "classifier")
    classify.main(["predict", folder, "one"])
    assert "outside the vocabulary" not in (out := capsys.readouterr().out) and "lose their end" not in out
    classify.main(["predict", folder, "😀", "one " * 100])
    out = capsys.readouterr().out
    assert "tokens outside the vocabulary, which all look the same: 1\n" in out
    assert "tokens or lose their end: 1\n" in out


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"one\n\ntwo\n", "line 2 is empty; write some text, or leave it out"),
        (b"one\n\n", "line 2 is empty"),
        (b"one\n\xff\n", "line 2 has bytes that are not UTF-8"),
        (b" \n\n", "there is no text; pass texts as arguments, or one per line"),
    ],
)
def test_a_blank_line_of_standard_input_is_an_error(
    data: bytes,
    message: str,
    bad_folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(data)))
    assert_fails(bad_folder, ["predict", "classifier"], message, capsys)


# Bad input

# Each case has the arguments and a part of the error message.
TRAIN, OUT = ("train", "good.csv"), ("--output", "out")
BAD_ARGUMENTS = {
    "check a missing file": (["check", "no.csv"], "there is no file no.csv"),
    "missing file": (["train", "no.csv", *OUT], "there is no file no.csv"),
    "folder": (["train", "full", *OUT], "full is a folder"),
    "full output": ([*TRAIN, "--output", "full"], "choose another with --output, or with make: "
                    'ARGS="--output another"'),
    "output that is a file": ([*TRAIN, "--output", "good.csv"], "is not an empty folder"),
    "output in a file": ([*TRAIN, "--from", "bert", "--output", "good.csv/a"], "cannot write to"),
    "no output": (["train", "good.csv"], "the following arguments are required: --output"),
    "no run": ([*TRAIN, *OUT], "no run under logs"),
    "missing run": ([*TRAIN, "--from", "no", *OUT], "there is no folder no; name that of a run, "
                    "or that of a BERT saved by transformers"),
    "folder without a run": ([*TRAIN, "--from", "full", *OUT], "no run at full"),
    "ModernBERT": ([*TRAIN, "--from", "modern", *OUT], "modern has a ModernBERT"),
    "modern run": ([*TRAIN, "--from", "modern-run", *OUT], "has a ModernBERT"),
    "another run": ([*TRAIN, "--from", "other-run", *OUT], "is not a run of a masked"),
    "learning rate": ([*TRAIN, *OUT, "--learning-rate", "0"], "--learning-rate is 0"),
    "NaN": ([*TRAIN, *OUT, "--learning-rate", "nan"], "--learning-rate is nan"),
    "no epochs": ([*TRAIN, *OUT, "--epochs", "0"], "--epochs is 0; it must be"),
    "seed": ([*TRAIN, *OUT, "--seed", "-1"], "--seed is -1; it must be"),
    "length": ([*TRAIN, "--from", "bert", *OUT, "--max-length", "25"], "from 5 to 24"),
    "no length": ([*TRAIN, *OUT, "--check-only", "--from", "bert", "--max-length", "1"], "from 5 to 24"),
    "a device to check": ([*TRAIN, *OUT, "--check-only", "--device", "no"], "'no' is not available"),
    "a model to check": ([*TRAIN, *OUT, "--check-only", "--from", "modern"], "modern has a ModernBERT"),
    "device": ([*TRAIN, "--from", "bert", *OUT, "--device", "no"], "'no' is not available"),
    "pairs for one type": (["train", "pairs.csv", "--from", "one-type", *OUT], "one token type"),
    "no command": ([], "the following arguments are required"),
    "predict with a run": (["predict", "run", "text"], "run is a run, not a classifier; train a classifier"),
    "predict nothing": (["predict", "no", "text"], "there is no model in no"),
    "predict with an encoder": (["predict", "bert", "text"], "classifier.weight"),
    "predict an empty text": (["predict", "classifier", "a", " "], "text 2 is empty"),
    "predict an invisible text": (["predict", "classifier", "a", "\u200b"], "text 2 is empty"),
    "text without tokens": (["train", "dropped.csv", "--from", "bert", *OUT], "dropped.csv: the text"),
    "text without tokens, checked": (
        ["train", "dropped.csv", "--check-only", "--from", "bert", *OUT],
        "has no tokens; change it",
    ),
    "predict what the tokenizer drops": (["predict", "classifier", "\ue000"], r"text '\ue000' has no tokens"),
    "predict bytes": (["predict", "classifier", "\udcff"], "text 1 has bytes that are not UTF-8"),
    "predict a long text": (["predict", "classifier", "a", "b" * 100_001], "text 2 has 100,001 characters"),
    "predict a pair": (["predict", "single", "a", "--pair", "b"], "was trained with single texts; leave out"),
    "predict an empty pair": (["predict", "classifier", "a", "--pair", ""], "--pair is empty"),
}  # fmt: skip
if sys.platform != "win32":
    BAD_ARGUMENTS["endless file"] = (["train", "/dev/zero", *OUT], "/dev/zero is not a regular file")


@pytest.fixture(scope="module")
def bad_folder(backbone: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("bad")
    (folder / "good.csv").write_text(HEADER + GOOD)
    write_csv(folder / "pairs.csv", [(*row, "pair") for row in ROWS], ("text", "label", "pair"))
    (folder / "full").mkdir()
    (folder / "full" / "file").touch()
    (folder / "dropped.csv").write_text(HEADER + GOOD + "\n\ue000,a\n", encoding="utf-8")
    shutil.copytree(backbone, folder / "bert")
    shutil.copytree(backbone, folder / "run" / "model")
    modern = ModernBertForMaskedLM(ModernBertConfig(20, **SIZES, pad_token_id=0))
    modern_folder.save_pretrained(modern, folder / "modern")
    model = BertForMaskedLM(replace(CONFIG, vocab_size=20))
    save_run(folder / "modern-run", model, {"model": asdict(modern.config)})
    save_run(folder / "other-run", model, {})
    save_backbone(folder / "one-type", replace(CONFIG, type_vocab_size=1))
    save_backbone(folder / "classifier")
    config = BertForPreTraining.from_pretrained(backbone).config
    BertForSequenceClassification(config, ["a", "b"]).save_pretrained(folder / "classifier")
    shutil.copytree(folder / "classifier", folder / "single")
    (folder / "single" / SUMS).unlink()
    settings = json.loads((folder / "single" / "tokenizer_config.json").read_text())
    (folder / "single" / "tokenizer_config.json").write_text(json.dumps({**settings, classify.PAIRS: False}))
    return folder


@pytest.mark.parametrize("name", BAD_ARGUMENTS)
def test_bad_arguments_give_a_one_line_error(
    name: str, bad_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments, message = BAD_ARGUMENTS[name]
    assert_fails(bad_folder, arguments, message, capsys)


def interrupt(*_: object) -> None:
    raise KeyboardInterrupt


def test_a_file_that_appears_during_the_training_stays(
    backbone: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, output = write_csv(tmp_path / "labels.csv", yes_or_no(30)), tmp_path / "out"

    def stop(*_: object) -> None:
        (output / "README.md").write_text("mine")
        raise KeyboardInterrupt

    monkeypatch.setattr(classify, "train_classifier", stop)
    with pytest.raises(SystemExit):
        classify.main(["train", str(path), "--from", str(backbone), "--output", str(output)])
    assert (output / "README.md").read_text() == "mine"


def test_a_classifier_is_not_saved_over_a_file_that_appeared_during_the_training(
    backbone: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path, output = write_csv(tmp_path / "labels.csv", yes_or_no(30)), tmp_path / "out"
    train = classify.train_classifier

    def write_and_train(*arguments: object) -> object:
        (output / "README.md").write_text("mine")
        (output / "vocab.txt").write_text("mine too")
        return train(*arguments)

    monkeypatch.setattr(classify, "train_classifier", write_and_train)
    words = ["train", str(path), "--from", str(backbone), "--output", str(output), "--epochs", "1"]
    with pytest.raises(SystemExit) as exit_info:
        classify.main([*words, "--learning-rate", "1e-3"])
    assert exit_info.value.code == 2 and "is not an empty folder" in capsys.readouterr().err
    texts = {file.name: file.read_text() for file in output.iterdir()}
    assert texts == {"README.md": "mine", "vocab.txt": "mine too"}


def test_other_files_that_appear_during_the_training_do_no_harm(
    backbone: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """File managers, for example, write a file when you look into a folder."""
    path, output = write_csv(tmp_path / "labels.csv", yes_or_no(30)), tmp_path / "out"
    train = classify.train_classifier

    def write_and_train(*arguments: object) -> object:
        (output / ".DS_Store").write_text("an icon")
        return train(*arguments)

    monkeypatch.setattr(classify, "train_classifier", write_and_train)
    words = ["train", str(path), "--from", str(backbone), "--output", str(output), "--epochs", "1"]
    classify.main([*words, "--learning-rate", "1e-3"])
    classify.main(["predict", str(output), "yes"])
    assert (output / ".DS_Store").read_text() == "an icon"


def test_a_failure_while_saving_leaves_the_folder_empty_so_that_the_command_can_be_repeated(
    backbone: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, output = write_csv(tmp_path / "labels.csv", yes_or_no(30)), tmp_path / "out"
    words = ["train", str(path), "--from", str(backbone), "--output", str(output)]
    words += ["--epochs", "1", "--learning-rate", "1e-3"]

    def fail(*_: object) -> None:
        # The user's own file stays.
        (output / "notes.txt").write_text("mine")
        raise OSError(errno.ENOSPC, "No space left on device", str(output / "model.safetensors"))

    for owner, name in (
        (BertForSequenceClassification, "save_pretrained"),
        (classify, "write_classifier_card"),
    ):
        with monkeypatch.context() as patch, pytest.raises(SystemExit):
            patch.setattr(owner, name, fail)
            classify.main(words)
        assert {file.name for file in output.iterdir()} <= {".lock", "notes.txt"}
        (output / "notes.txt").unlink()
    # If only the report fails, for example because nobody reads it, the classifier stays.
    with monkeypatch.context() as patch, pytest.raises(SystemExit):
        patch.setattr(classify, "print_report", interrupt)
        classify.main(words)
    classify.main(["predict", str(output), "yes"])
    shutil.rmtree(output)
    classify.main(words)
    saved = {file.name for file in output.iterdir()} | {"vocab.txt"}
    assert saved == {*classify.SAVED_FILES} - {classify.SAVING}


def test_a_model_with_one_token_type_predicts_no_pairs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tokenizer = wordpiece_tokenizer([small_text(300)], 90)
    config = replace(CONFIG, vocab_size=tokenizer.get_vocab_size(), type_vocab_size=1)
    BertForSequenceClassification(config, ["a", "b"]).save_pretrained(tmp_path)
    save_tokenizer(tokenizer, tmp_path)
    message = "has one token type; leave out --pair"
    assert_fails(tmp_path, ["predict", str(tmp_path), "one", "--pair", "two"], message, capsys)
    # A classifier of pairs needs the second text, so leaving it out is no remedy.
    message = "error: --pair is empty; write some text\n"
    assert_fails(tmp_path, ["predict", str(tmp_path), "one", "--pair", ""], message, capsys)
    classify.main(["predict", str(tmp_path), "one"])


def test_the_length_is_never_above_the_number_of_positions() -> None:
    lengths = [classify.read_max_length({"model_max_length": length}, 3) for length in (2, 64, "x")]
    assert lengths == [3, 3, 3]
    assert classify.read_max_length({"model_max_length": 2}, 64) == 5
