"""From a file of labels to a classifier: reading, splitting, training, saving, and what bad input gives."""

import contextlib
import csv
import json
import random
from collections import Counter
from dataclasses import asdict, replace
from pathlib import Path

import pytest
import torch
from rich.cells import cell_len
from torch import Tensor

from labml_bert import classify, modern_folder
from labml_bert.bert import BertConfig
from labml_bert.classification_report import confusion_lines, measure_baselines
from labml_bert.data.tokenizers import character_tokenizer, save_tokenizer, wordpiece_tokenizer
from labml_bert.files import write_tensors
from labml_bert.finetuning import EarlyStopping, Row, encode_examples, fine_tune, predict
from labml_bert.heads import BertForSequenceClassification
from labml_bert.labeled_file import read_labeled_texts
from labml_bert.labeled_text import Example, confusion_matrix, quality, split_by_label
from labml_bert.models import BertForMaskedLM, BertForPreTraining
from labml_bert.modern import ModernBertConfig, ModernBertForMaskedLM
from labml_bert.training.checkpoint import CHECKPOINT
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
    """Texts whose label is the word *yes* or *no* in them; two of three are *yes*."""
    r = random.Random(0)
    words = ["yes" if i % 3 else "no" for i in range(count)]
    sentences = small_text(count).split("\n")
    return [(f"{r.choice('abc')}, {word} {text}", word) for text, word in zip(sentences, words, strict=True)]


def write_csv(path: Path, rows: list[tuple[str, ...]], header: tuple[str, ...] = ("text", "label")) -> Path:
    with path.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows([header, *rows])
    return path


# Reading


FILLER = [(f"text {i}", "ab"[i % 2]) for i in range(20)]


def test_csv_and_jsonl_give_the_same_examples(tmp_path: Path) -> None:
    rows = [
        ('A comma, a "quote"\nand a second line', "late", "ü"),
        ("[MASK] — 漢字", " early ", "x"),
        *((f"text {i}", ("early", "late")[i % 2], "pair") for i in range(20)),
    ]
    names = ("text", "label", "pair")
    table = write_csv(tmp_path / "a.csv", rows, names)
    # Spreadsheets write a byte order mark, other columns, and empty lines.
    marked = write_csv(tmp_path / "b.CSV", [(str(i), *row) for i, row in enumerate(rows)], ("id", *names))
    marked.write_bytes(b"\xef\xbb\xbf" + marked.read_bytes() + b"\r\n\r\n")
    objects = tmp_path / "c.jsonl"
    lines = [
        json.dumps(dict(zip(names, row, strict=True)), ensure_ascii=i % 2 == 0) for i, row in enumerate(rows)
    ]
    objects.write_text("\n\n".join(lines), encoding="utf-8")
    texts = read_labeled_texts(table)
    assert texts == read_labeled_texts(marked) == read_labeled_texts(objects)
    assert texts.labels == ["early", "late"] and texts.has_pairs and texts.repeats == 0
    assert texts.examples[:2] == [Example(rows[0][0], 1, "ü"), Example(rows[1][0], 0, "x")]
    assert len(texts.examples) == len(rows)


def test_repeated_rows_are_left_out_and_numbers_can_be_labels(tmp_path: Path) -> None:
    objects = [{"text": text, "label": int(label == "a")} for text, label in FILLER]
    path = tmp_path / "labels.jsonl"
    path.write_text("\n".join(map(json.dumps, [*objects, *objects[:7]])))
    texts = read_labeled_texts(path)
    assert texts.labels == ["0", "1"] and texts.repeats == 7 and not texts.has_pairs
    assert [example.text for example in texts.examples] == [text for text, _ in FILLER]


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


# Early stopping


class Scripted:
    """Sets a weight to the number of the epoch, and gives predictions of a scripted quality."""

    def __init__(self, correct: list[int], monkeypatch: pytest.MonkeyPatch):
        self.model = BertForSequenceClassification(replace(CONFIG, vocab_size=20), ["a", "b"])
        self.rows = [Row([2, 3], [0, 0], {"labels": 1})] * 10
        self.correct = correct
        self.epoch = 0
        monkeypatch.setattr("labml_bert.finetuning.predict", self.predict)

    def predict(self, *_: object) -> Tensor:
        """The first texts are predicted correctly, always with the same confidence."""
        right = torch.arange(10) < self.correct[self.epoch - 1]
        return torch.stack([(~right).float(), right.float()], 1)

    def run(self, patience: int) -> tuple[EarlyStopping, int]:
        stopping = EarlyStopping(self.model, self.rows, patience)
        for epoch in range(1, len(self.correct) + 1):
            self.epoch = epoch
            torch.nn.init.constant_(self.model.classifier.weight, epoch)
            if stopping():
                break
        return stopping, self.epoch


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
def test_early_stopping_keeps_the_best_epoch(
    correct: list[int], patience: int, best: int, last: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    scripted = Scripted(correct, monkeypatch)
    stopping, epoch = scripted.run(patience)
    assert (stopping.best_epoch, epoch) == (best, last)
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
    assert len(fine_tune(model, rows, 1e-3, epochs=4, batch_size=8, should_stop=stopping)) == 4 * 5
    assert len(stopping.qualities) == 4
    best = stopping.restore_best()
    labels = torch.tensor([row.targets["labels"] for row in rows[:9]])
    assert best == max(stopping.qualities) == quality(predict(model, rows[:9]), labels)


# The report


def test_the_confusion_matrix_by_hand() -> None:
    logits = torch.nn.functional.one_hot(torch.tensor([0, 1, 1, 2, 0]), 3).float()
    matrix = confusion_matrix(logits, torch.tensor([0, 0, 1, 2, 2]))
    assert matrix.tolist() == [[1, 1, 0], [0, 1, 0], [1, 0, 1]]
    lines = confusion_lines(matrix, ["good", "bad\x1b[1m", "漢字" * 20])
    assert [line.split()[-3:] for line in lines] == [
        ["1", "2", "3"],
        ["1", "1", "."],
        [".", "1", "."],
        ["1", ".", "1"],
    ]
    assert lines[1].startswith("1 good ") and lines[2].startswith("2 bad?[1m ")


@pytest.mark.parametrize("K", [2, 9, 10, 19, 40, 150])
@pytest.mark.parametrize("largest", [0, 7, 12_345])
def test_the_confusion_matrix_fits_80_columns(K: int, largest: int) -> None:
    matrix = torch.full((K, K), min(largest, 3))
    matrix[1, 0] = largest
    lines = confusion_lines(matrix, [f"{'漢字' * 30}{i}" for i in range(K)])
    assert max(map(cell_len, lines), default=0) <= 78
    assert len(lines) in (K + 1, min(10, largest * K * K))


def test_the_baselines_are_scored_on_the_test_rows() -> None:
    examples = [Example(text, int(label == "yes")) for text, label in yes_or_no(60)]
    scores = measure_baselines(examples[:40], examples[40:], 2)
    constant, words = scores["most frequent label"], scores["bag of words (TF-IDF)"]
    assert constant is not None and words is not None
    assert constant.accuracy == sum(example.label for example in examples[40:]) / 20
    assert words.accuracy == 1
    emoji = [Example("😀" * (i + 1), i % 2) for i in range(30)]
    assert measure_baselines(emoji, emoji, 2)["bag of words (no words found)"] is None


# The whole way


@pytest.fixture(scope="module")
def trained(backbone: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
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


def test_a_classifier_learns_and_predicts(trained: Path, capsys) -> None:
    classify.main(
        ["predict", str(trained), "b, yes the cat sees the dog today.", "a, no the dog likes a bird"]
    )
    output = capsys.readouterr().out
    assert [label for label, _ in predictions_of(output)] == ["yes", "no"]
    assert max(map(len, output.splitlines())) <= 80


def test_transformers_opens_the_folder_and_agrees(trained: Path, capsys) -> None:
    transformers = pytest.importorskip("transformers", reason="transformers is what this is compared with")
    pipeline = transformers.pipeline("text-classification", str(trained), device="cpu")
    texts = ["b, yes the cat", "no dog", "the river, zebra!", "Yes " + "the old house " * 30]
    theirs = pipeline(texts, truncation=True)
    classify.main(["predict", str(trained), *texts])
    ours = predictions_of(capsys.readouterr().out)
    assert [label for label, _ in ours] == [result["label"] for result in theirs]
    model = BertForSequenceClassification.from_pretrained(trained)
    tokenizer = classify.load_tokenizer(trained / "tokenizer.json")
    logits = predict(model, encode_examples(tokenizer, [Example(text, 0) for text in texts], 24))
    expected = torch.tensor([result["score"] for result in theirs])
    assert (logits.softmax(-1).amax(-1) - expected).abs().max() < TOLERANCE
    assert json.loads((trained / "config.json").read_text())["id2label"] == {"0": "no", "1": "yes"}


def test_pairs_from_a_run_of_characters_agree_with_transformers(tmp_path: Path, capsys) -> None:
    """The tokenizer of such a run adds no special tokens, and its model has no pooler."""
    transformers = pytest.importorskip("transformers", reason="transformers is what this is compared with")
    tokenizer = character_tokenizer([small_text(100)])
    config = replace(CONFIG, vocab_size=tokenizer.get_vocab_size(), max_position_embeddings=40)
    save_run(tmp_path / "run", BertForMaskedLM(config), {"model": asdict(config)})
    tokenizer.save(str(tmp_path / "run" / "tokenizer.json"))
    rows = [(text, "ab"[i % 2], text[:9]) for i, text in enumerate(dict.fromkeys(small_text(30).split("\n")))]
    path = write_csv(tmp_path / "pairs.csv", rows, ("text", "label", "pair"))
    out = tmp_path / "out"
    arguments = [
        "--from",
        str(tmp_path / "run"),
        "--output",
        str(out),
        "--learning-rate",
        "1e-3",
        "--epochs",
        "1",
    ]
    classify.main(["train", str(path), *arguments])
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


def save_run(folder: Path, model: BertForMaskedLM, configuration: dict[str, object]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    tensors = {f"model.{name}": p for name, p in model.named_parameters()}
    about = {"step": 3, "seconds": 1.0, "configuration": {"experiment": "mlm_tiny", **configuration}}
    write_tensors(folder / CHECKPOINT, tensors, {"about": json.dumps(about)})


# Bad input


GOOD = "\n".join(f"text {i},{'ab'[i % 2]}" for i in range(20))
HEADER = "text,label\n"


def objects(*lines: str) -> str:
    return "\n".join([*(json.dumps({"text": text, "label": label}) for text, label in FILLER), *lines])


# The name of the file, its contents, and a part of the error message.
BAD_FILES = {
    "empty": ("a.csv", "", "is empty"),
    "blank": ("a.csv", " \n\n", "is empty"),
    "not UTF-8": ("a.csv", b"text,label\ncaf\xe9,a\n", "is not UTF-8 (byte 14)"),
    "UTF-16": ("a.csv", (HEADER + GOOD).encode("utf-16"), "is not UTF-8 (byte 0)"),
    "no header": ("a.csv", GOOD, "line 1: no column is called 'text'"),
    "no label column": ("a.csv", "text,kind\n" + GOOD, "no column is called 'label'"),
    "semicolons": ("a.csv", (HEADER + GOOD).replace(",", ";"), "and it is: text;label"),
    "duplicate column": ("a.csv", "text,label,text\n", "two columns are called 'text'"),
    "only a header": ("a.csv", HEADER, "there are no rows; a classifier needs at least two labels"),
    "too few fields": ("a.csv", HEADER + GOOD + "\nalone", "line 22 has 1 fields and the header 2"),
    "too many fields": ("a.csv", HEADER + "one, two,a\n" + GOOD, "line 2 has 3 fields and the header 2"),
    "after a row of two lines": ("a.csv", HEADER + '"a\nb",a\n\nx\n', "line 5 has 1 fields"),
    "open quote": ("a.csv", HEADER + GOOD + '\n"open,a\nb,b\n', "line 22: unexpected end of data; close every"),
    "quote in a field": ("a.csv", HEADER + '"a "b" c",a\n' + GOOD, "line 2: ',' expected after '\"'"),
    "huge field": ("a.csv", HEADER + "x" * 200_000 + ",a\n" + GOOD, "line 2: field larger than field limit"),
    "empty text": ("a.csv", HEADER + GOOD + "\n ,a", "line 22: the text is empty"),
    "empty label": ("a.csv", HEADER + GOOD + "\nx,", "line 22: the label is empty"),
    "NUL byte": ("a.csv", HEADER + GOOD + "\nx\0y,a", "line 22: the text has a NUL byte"),
    "control character": ("a.csv", HEADER + GOOD + "\nx,\x1b[2Ja", "the label '?[2Ja' has a control character"),
    "line end in a label": ("a.csv", HEADER + GOOD + '\nx,"a\nb"', "the label 'a⏎b' has a control character"),
    "text as a label": ("a.csv", HEADER + GOOD + "\na," + "x" * 101, "the label has 101 characters"),
    "some pairs": ("a.csv", "text,label,pair\nx,a,y\nz,b,\n", "line 3: some rows have a pair and others don't"),
    "one class": ("a.csv", HEADER + GOOD.replace(",b", ",a"), "all rows have the label 'a'"),
    "class of one row": ("a.csv", HEADER + GOOD + "\nx,c", "the label 'c' has too few different rows (1)"),
    "copies of a row": ("a.csv", HEADER + GOOD + "\nx,c" * 5, "the label 'c' has too few different rows (1)"),
    "too few rows": ("a.csv", HEADER + GOOD[: GOOD.index("text 19") - 1], "has 19 different rows"),
    "broken JSON": ("a.jsonl", objects('{"text": "x"'), "line 21 is not JSON (Expecting"),
    "JSON that is a list": ("a.jsonl", objects('["x", "a"]'), "line 21 is not a JSON object"),
    "JSON over several lines": ("a.json", '{\n"text": "x"\n}', "line 1 is not JSON"),
    "deep JSON": ("a.jsonl", "[" * 100_000, "line 1 is not JSON"),
    "text that is a number": ("a.jsonl", objects('{"text": 5, "label": "a"}'), "line 21: the text is 5, not a"),
    "label that is a list": ("a.jsonl", objects('{"text": "x", "label": ["a"]}'), "the label is ['a'], not a"),
    "text that is missing": ("a.jsonl", objects('{"label": "a"}'), "line 21: there is no text"),
    "label that is null": ("a.jsonl", objects('{"text": "x", "label": null}'), "line 21: there is no label"),
    "half a character": ("a.jsonl", objects('{"text": "\\ud83d", "label": "a"}'), "or half a character"),
    "JSON with a name twice": ("a.jsonl", objects('{"text": "x", "text": "y"}'), "line 21 has 'text' twice"),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD_FILES)
def test_a_bad_file_is_named_with_its_line(name: str, backbone: Path, tmp_path: Path, capsys) -> None:
    file, content, message = BAD_FILES[name]
    (tmp_path / file).write_bytes(content if isinstance(content, bytes) else content.encode())
    assert_fails(tmp_path, ["train", file, "--from", str(backbone), "--output", "out"], message, capsys)


# The arguments, and a part of the error message.
BAD_ARGUMENTS = {
    "missing file": (["train", "no.csv", "--output", "out"], "there is no file no.csv"),
    "folder": (["train", "full", "--output", "out"], "full is a folder"),
    "endless file": (["train", "/dev/zero", "--output", "out"], "/dev/zero is not a regular file"),
    "full output": (["train", "good.csv", "--output", "full"], "full exists and is not an empty folder"),
    "output that is a file": (["train", "good.csv", "--output", "good.csv"], "is not an empty folder"),
    "output in a file": (["train", "good.csv", "--from", "bert", "--output", "good.csv/a"], "cannot write to"),
    "no output": (["train", "good.csv"], "the following arguments are required: --output"),
    "no run": (["train", "good.csv", "--output", "out"], "no run under logs"),
    "missing run": (["train", "good.csv", "--from", "no", "--output", "out"], "there is no run at no"),
    "folder without a run": (["train", "good.csv", "--from", "full", "--output", "out"], "no run at full"),
    "ModernBERT": (["train", "good.csv", "--from", "modern", "--output", "out"], "modern has a ModernBERT"),
    "modern run": (["train", "good.csv", "--from", "modern-run", "--output", "out"], "has a ModernBERT"),
    "another run": (["train", "good.csv", "--from", "other-run", "--output", "out"], "is not a run of a masked"),
    "learning rate": (["train", "good.csv", "--output", "out", "--learning-rate", "0"], "--learning-rate is 0"),
    "NaN": (["train", "good.csv", "--output", "out", "--learning-rate", "nan"], "--learning-rate is nan"),
    "no epochs": (["train", "good.csv", "--output", "out", "--epochs", "0"], "--epochs is 0; it must be"),
    "seed": (["train", "good.csv", "--output", "out", "--seed", "-1"], "--seed is -1; it must be"),
    "length": (["train", "good.csv", "--from", "bert", "--output", "out", "--max-length", "25"], "from 5 to 24"),
    "device": (["train", "good.csv", "--from", "bert", "--output", "out", "--device", "no"], "'no' is not available"),
    "pairs for one type": (["train", "pairs.csv", "--from", "one-type", "--output", "out"], "one token type"),
    "no command": ([], "the following arguments are required"),
    "predict nothing": (["predict", "no", "text"], "there is no model in no"),
    "predict with an encoder": (["predict", "bert", "text"], "classifier.weight"),
    "predict an empty text": (["predict", "classifier", "a", " "], "text 2 is empty"),
    "predict bytes": (["predict", "classifier", "\udcff"], "text 1 has bytes that are not UTF-8"),
    "predict an empty pair": (["predict", "classifier", "a", "--pair", ""], "--pair is empty"),
}  # fmt: skip


@pytest.fixture(scope="module")
def bad_folder(backbone: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("bad")
    (folder / "good.csv").write_text(HEADER + GOOD)
    write_csv(folder / "pairs.csv", [(*row, "pair") for row in FILLER], ("text", "label", "pair"))
    (folder / "full").mkdir()
    (folder / "full" / "file").touch()
    (folder / "bert").symlink_to(backbone)
    modern = ModernBertForMaskedLM(ModernBertConfig(20, **SIZES, pad_token_id=0))
    modern_folder.save_pretrained(modern, folder / "modern")
    model = BertForMaskedLM(replace(CONFIG, vocab_size=20))
    save_run(folder / "modern-run", model, {"model": asdict(modern.config)})
    save_run(folder / "other-run", model, {})
    save_backbone(folder / "one-type", replace(CONFIG, type_vocab_size=1))
    save_backbone(folder / "classifier")
    config = BertForPreTraining.from_pretrained(backbone).config
    BertForSequenceClassification(config, ["a", "b"]).save_pretrained(folder / "classifier")
    return folder


@pytest.mark.parametrize("name", BAD_ARGUMENTS)
def test_bad_arguments_give_a_one_line_error(name: str, bad_folder: Path, capsys) -> None:
    arguments, message = BAD_ARGUMENTS[name]
    assert_fails(bad_folder, arguments, message, capsys)


def assert_fails(folder: Path, arguments: list[str], message: str, capsys) -> None:
    """One line on stderr, exit code 2, and the same files as before."""
    before = sorted(folder.rglob("*"))
    with contextlib.chdir(folder), pytest.raises(SystemExit) as exit_info:
        classify.main(arguments)
    assert exit_info.value.code == 2
    captured = capsys.readouterr()
    assert captured.out == "" and captured.err.startswith("error: ") and captured.err.count("\n") == 1
    assert message in captured.err
    assert sorted(folder.rglob("*")) == before
