"""Fine-tuning a classifier: saving for and loading from `transformers`, batches, and what it learns."""

import dataclasses
import json
import random
from pathlib import Path

import pytest
import torch
import transformers

from labml_bert.bert import BertConfig
from labml_bert.data.tokenizers import character_tokenizer, word_tokenizer
from labml_bert.finetuning import (
    NEW_PARAMETERS,
    BertForSequenceClassification,
    collate_rows,
    encode_examples,
    fine_tune,
    predict,
    shuffle_batches,
)
from labml_bert.labeled_text import Example, choose_hyperparameter, score
from labml_bert.models import BertForMaskedLM, BertForPreTraining
from labml_bert.nsp import SentencePair
from labml_bert.training.trainer import NonFiniteLossError
from tests.support.parity import (
    TOLERANCE,
    assert_same_gradients,
    perturb_weights,
    random_batch,
    random_config,
    write_config,
)
from tests.support.runs import small_text

CPU = torch.device("cpu")
NAMES = ["bad", "so-so", "good"]
TheirModel = transformers.BertForSequenceClassification


def assert_same_outputs(ours: BertForSequenceClassification, theirs, seed: int) -> None:
    """Compares logits, loss and every gradient in eval mode, with padding and token types."""
    ours.eval()
    theirs.eval()
    batch = random_batch(ours.config, seed, False)
    batch["labels"] = torch.randint(len(ours.labels), (len(batch["input_ids"]),))
    our_output, their_output = ours(**batch), theirs(**batch)
    assert (our_output.logits - their_output.logits).abs().max() < TOLERANCE
    assert abs(our_output.loss - their_output.loss) < TOLERANCE
    our_output.loss.backward()
    their_output.loss.backward()
    assert_same_gradients(ours, theirs)


@pytest.mark.parametrize("seed", range(3))
def test_transformers_loads_what_we_save(seed: int, tmp_path: Path) -> None:
    model = BertForSequenceClassification(random_config(seed), NAMES)
    perturb_weights(model, seed)
    model.save_pretrained(tmp_path)
    other, report = transformers.AutoModelForSequenceClassification.from_pretrained(
        tmp_path, output_loading_info=True
    )
    assert type(other) is TheirModel
    assert not any(report[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    assert other.config.id2label == dict(enumerate(NAMES))
    assert other.config.label2id == {name: i for i, name in enumerate(NAMES)}
    assert other.config.num_labels == 3
    assert_same_outputs(model, other, seed)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("names", [NAMES, None])
def test_we_load_what_transformers_saves(seed: int, names: list[str] | None, tmp_path: Path) -> None:
    config = random_config(seed)
    label_names = {"id2label": dict(enumerate(names))} if names else {}
    other = TheirModel(transformers.BertConfig(**dataclasses.asdict(config), **label_names))
    perturb_weights(other, seed)
    other.save_pretrained(tmp_path)
    model = BertForSequenceClassification.from_pretrained(tmp_path)
    assert model.labels == (names or ["LABEL_0", "LABEL_1"])
    assert not model.training
    assert_same_outputs(model, other, seed)


def test_label_names_are_saved_and_can_be_replaced(tmp_path: Path) -> None:
    model = BertForSequenceClassification(random_config(0), NAMES)
    model.save_pretrained(tmp_path)
    reloaded = BertForSequenceClassification.from_pretrained(tmp_path)
    assert reloaded.labels == NAMES
    assert torch.equal(reloaded.classifier.weight, model.classifier.weight)
    renamed = BertForSequenceClassification.from_pretrained(tmp_path, labels=["a", "b", "c"])
    assert renamed.labels == ["a", "b", "c"]
    with pytest.raises(ValueError, match="not from one model"):
        BertForSequenceClassification.from_pretrained(tmp_path, labels=["a", "b"])


@pytest.mark.parametrize("kind", [BertForMaskedLM, BertForPreTraining])
def test_a_classifier_on_a_pretrained_model(kind, tmp_path: Path) -> None:
    """All weights of the backbone are loaded, and the pooler's if the model has one."""
    backbone = kind(random_config(1))
    perturb_weights(backbone, 1)
    backbone.save_pretrained(tmp_path)
    with pytest.raises(ValueError, match=r"has no (bert.pooler|classifier)"):
        BertForSequenceClassification.from_pretrained(tmp_path, labels=NAMES)
    model = BertForSequenceClassification.from_pretrained(tmp_path, NEW_PARAMETERS, labels=NAMES)
    pretrained = dict(backbone.bert.named_parameters())
    for name, parameter in model.bert.named_parameters():
        assert name not in pretrained or torch.equal(parameter, pretrained[name])
    assert ("pooler.dense.weight" in pretrained) == (kind is BertForPreTraining)
    assert not torch.equal(model.classifier.weight, torch.zeros_like(model.classifier.weight))


BAD_FOLDERS = {
    "no folder": (lambda folder: folder.rename(folder.with_name("elsewhere")), "no config.json"),
    "a gap in the labels": (lambda folder: write_config(folder, id2label={"0": "a", "2": "b"}), "id2label"),
    "labels that are a list": (lambda folder: write_config(folder, id2label=["a", "b"]), "id2label"),
    "one label": (lambda folder: write_config(folder, id2label={"0": "a"}), "use two or more"),
    "duplicate labels": (
        lambda folder: write_config(folder, id2label={"0": "a", "1": "a", "2": "b"}),
        "all different",
    ),
    "more labels than weights": (
        lambda folder: write_config(folder, id2label={str(i): str(i) for i in range(4)}),
        "classifier.(weight|bias) is",
    ),
    "a regression model": (
        lambda folder: write_config(folder, problem_type="regression"),
        "problem_type = 'regression'",
    ),
    "no weights": (lambda folder: (folder / "model.safetensors").unlink(), "no model.safetensors"),
}


@pytest.mark.parametrize("case", BAD_FOLDERS)
def test_inconsistent_folders_are_rejected(case: str, tmp_path: Path) -> None:
    damage, words = BAD_FOLDERS[case]
    folder = tmp_path / "model"
    BertForSequenceClassification(random_config(2), NAMES).save_pretrained(folder)
    damage(folder)
    with pytest.raises(ValueError, match=words) as error_info:
        BertForSequenceClassification.from_pretrained(folder)
    assert "\n" not in str(error_info.value)


LETTERS = character_tokenizer(["abcdefgh "])
CLS, SEP = LETTERS.token_to_id("[CLS]"), LETTERS.token_to_id("[SEP]")


def small_model(vocab_size: int, labels: list[str], **changes: object) -> BertForSequenceClassification:
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
    sizes |= {"max_position_embeddings": 32, "initializer_range": 0.05}
    return BertForSequenceClassification(BertConfig(vocab_size=vocab_size, **(sizes | changes)), labels)


def test_rows_of_single_texts_and_pairs() -> None:
    a, b, c = (LETTERS.token_to_id(letter) for letter in "abc")
    single, pair, empty = encode_examples(
        LETTERS, [Example("abc", 1), Example("ab", 0, "c"), Example("", 2, "")], max_length=8
    )
    assert single == ([CLS, a, b, c, SEP], [0] * 5, 1)
    assert pair == ([CLS, a, b, SEP, c, SEP], [0, 0, 0, 0, 1, 1], 0)
    assert empty == ([CLS, SEP, SEP], [0, 0, 1], 2)


def test_text_that_looks_like_a_special_token_stays_text() -> None:
    (row,) = encode_examples(LETTERS, [Example("a[SEP]b", 0)])
    assert row.input_ids.count(SEP) == 1
    assert row.input_ids.count(LETTERS.token_to_id("[UNK]")) == 5


def test_truncation_shortens_the_longer_part() -> None:
    """Compared with the original rule, which removes one token at a time."""
    for m in range(0, 13):
        for n in range(0, 13):
            for length in (5, 6, 9, 12):
                x, y = [*"a" * m], [*"b" * n]
                while len(x) + len(y) > length - 3:
                    (x if len(x) > len(y) else y).pop()
                (row,) = encode_examples(LETTERS, [Example("a" * m, 0, "b" * n)], length)
                assert row.token_type_ids == [0] * (len(x) + 2) + [1] * (len(y) + 1), (m, n, length)
                (row,) = encode_examples(LETTERS, [Example("a" * m, 0)], length)
                assert len(row.input_ids) == min(m + 2, length)
                assert row.input_ids[-1] == SEP
    with pytest.raises(ValueError, match="max_length is 4"):
        encode_examples(LETTERS, [Example("a", 0)], 4)


def test_batches_contain_every_row_once_and_little_padding() -> None:
    r = random.Random(0)
    rows = encode_examples(LETTERS, [Example("a" * r.randint(1, 60), 0) for _ in range(333)])
    generator = torch.Generator().manual_seed(0)
    first, second = ([*shuffle_batches(rows, 16, generator)] for _ in range(2))
    for epoch in (first, second):
        assert sorted(i for batch in epoch for i in batch) == [*range(333)]
        assert max(map(len, epoch)) == 16
    assert first != second
    assert first == [*shuffle_batches(rows, 16, torch.Generator().manual_seed(0))]

    def padded_size(epoch: list[list[int]]) -> int:
        return sum(len(batch) * max(len(rows[i].input_ids) for i in batch) for batch in epoch)

    tokens = sum(len(row.input_ids) for row in rows)
    assert (
        padded_size(first)
        < 1.25 * tokens
        < padded_size([[*range(i, min(i + 16, 333))] for i in range(0, 333, 16)])
    )


def test_padding_does_not_change_the_logits() -> None:
    model = small_model(LETTERS.get_vocab_size(), NAMES).eval()
    perturb_weights(model, 0)
    examples = [Example("abc" * n, 0, None if n % 2 else "h" * n) for n in (1, 2, 5, 3, 7)]
    rows = encode_examples(LETTERS, examples, 32)
    together = predict(model, rows)
    for row, logits in zip(rows, together, strict=True):
        alone = model(**collate_rows([row], CPU)).logits[0]
        assert (alone - logits).abs().max() < TOLERANCE
    # The order of the rows and the batch size don't matter either.
    assert (predict(model, rows[::-1], 2).flip(0) - together).abs().max() < TOLERANCE


def word_order_task(count: int, seed: int) -> list[Example]:
    """The label is which of two words comes first; how often they occur says nothing."""
    r = random.Random(seed)
    examples = []
    for i in range(count):
        words = r.choices(small_text(20).split(), k=6)
        a, b = sorted(r.sample(range(7), 2))
        words.insert(a, "yes" if i % 2 else "no")
        words.insert(b, "no" if i % 2 else "yes")
        examples.append(Example(" ".join(words), i % 2))
    return examples


WORDS = word_tokenizer([small_text(200), "yes no yes no"])


def train_and_score(examples: list[Example], **options: object) -> tuple[float, list[float]]:
    model = small_model(WORDS.get_vocab_size(), ["first", "second"])
    losses = fine_tune(model, encode_examples(WORDS, examples), 3e-3, 10, **options)
    assert not model.training
    test = word_order_task(400, seed=1)
    logits = predict(model, encode_examples(WORDS, test))
    return score(logits, torch.tensor([example.label for example in test])).accuracy, losses


@pytest.mark.slow("trains until the task is learned")
def test_it_learns_the_task_but_not_random_labels() -> None:
    examples = word_order_task(600, seed=0)
    accuracy, losses = train_and_score(examples)
    assert accuracy > 0.95
    assert losses[0] == pytest.approx(0.69, abs=0.1)
    labels = [example.label for example in examples]
    random.Random(2).shuffle(labels)
    shuffled = [example._replace(label=label) for example, label in zip(examples, labels, strict=True)]
    assert abs(train_and_score(shuffled)[0] - 0.5) < 0.1


@pytest.mark.slow("trains several times")
def test_training_is_deterministic_and_runs_the_requested_steps() -> None:
    examples = word_order_task(50, seed=0)
    first, second = (train_and_score(examples, batch_size=16)[1] for _ in range(2))
    assert first == second
    assert len(first) == 10 * 4
    assert len(train_and_score(examples, batch_size=16, min_steps=55)[1]) == 55
    assert train_and_score(examples, batch_size=16, seed=1)[1] != first
    with pytest.raises(ValueError, match="0 texts"):
        fine_tune(small_model(20, NAMES), [], 1e-3)


def test_accuracy_and_macro_f1_by_hand() -> None:
    guesses, labels = torch.tensor([0, 0, 1, 2, 0, 1]), torch.tensor([0, 0, 0, 2, 2, 2])
    # Class 0: 2 of 3 found, 3 predicted. Class 2: 1 of 3 found, 1 predicted. Class 1 doesn't occur.
    result = score(torch.nn.functional.one_hot(guesses, 4).float(), labels)
    assert result.accuracy == pytest.approx(3 / 6)
    assert result.macro_f1 == pytest.approx((2 * 2 / (3 + 3) + 2 * 1 / (3 + 1)) / 2)


def test_choosing_a_hyperparameter_uses_each_example_once() -> None:
    examples = [Example(str(i), i % 2) for i in range(23)]
    calls = []

    def predict_fifth(candidate: float, rest: list[Example], fifth: list[Example]) -> torch.Tensor:
        calls.append((rest, fifth))
        truth = torch.nn.functional.one_hot(torch.tensor([e.label for e in fifth]), 2).float()
        # 2.0 and 3.0 are both correct, 3.0 with more confidence; 1.0 is wrong.
        return truth * {1.0: -5, 2.0: 1, 3.0: 4}[candidate]

    assert choose_hyperparameter([1.0, 2.0, 3.0], examples, predict_fifth) == 3.0
    assert all(call == calls[0] for call in calls)
    rest, fifth = calls[0]
    assert len(fifth) == 4
    assert sorted([*rest, *fifth]) == sorted(examples)
    with pytest.raises(ValueError, match="4 labeled texts cannot be split"):
        choose_hyperparameter([1.0], examples[:4], predict_fifth)


def test_a_saved_classifier_gives_the_same_logits(tmp_path: Path) -> None:
    examples = word_order_task(64, seed=0)
    rows = encode_examples(WORDS, examples)
    model = small_model(WORDS.get_vocab_size(), ["first", "second"])
    fine_tune(model, rows, 3e-3)
    model.save_pretrained(tmp_path)
    assert json.loads((tmp_path / "config.json").read_text())["id2label"] == {"0": "first", "1": "second"}
    reloaded = BertForSequenceClassification.from_pretrained(tmp_path)
    assert torch.equal(predict(reloaded, rows), predict(model, rows))


def test_a_non_finite_loss_is_an_error_and_keeps_the_weights() -> None:
    torch.manual_seed(0)
    model = BertForSequenceClassification(random_config(0), ["a", "b"])
    with torch.no_grad():
        model.classifier.weight.fill_(float("inf"))
    weights_before = [p.detach().clone() for p in model.bert.parameters()]
    with pytest.raises(NonFiniteLossError, match=r"exploded at the learning rate 0\.01"):
        fine_tune(model, [SentencePair([2, 5, 3], [0, 0, 0], 1)] * 4, 1e-2, epochs=2)
    assert all(torch.equal(a, b) for a, b in zip(weights_before, model.bert.parameters(), strict=True))
