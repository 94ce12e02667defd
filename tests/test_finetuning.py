"""Fine-tuning: rows, batches, what a model learns, and what is rejected."""

import json
import random
import signal
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from labml_bert import finetuning
from labml_bert.bert import BertConfig
from labml_bert.data.tokenizers import character_tokenizer, word_tokenizer
from labml_bert.finetuning import (
    Row,
    choose_learning_rate,
    collate_rows,
    encode_examples,
    fine_tune,
    predict,
    shuffle_batches,
)
from labml_bert.heads import (
    BertForMultipleChoice,
    BertForQuestionAnswering,
    BertForSequenceClassification,
    BertForTokenClassification,
)
from labml_bert.labeled_text import Example, choose_hyperparameter, confusion_matrix, score
from labml_bert.mlm import IGNORE
from labml_bert.training.trainer import NonFiniteLossError
from tests.support.by_hand import tiny_config
from tests.support.parity import TOLERANCE, perturb_weights, random_config
from tests.support.runs import small_text

CPU = torch.device("cpu")
NAMES = ["bad", "so-so", "good"]
LETTERS = character_tokenizer(["abcdefgh "])
CLS, SEP = LETTERS.token_to_id("[CLS]"), LETTERS.token_to_id("[SEP]")


def small_model(vocab_size: int, labels: list[str], **changes: object) -> BertForSequenceClassification:
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
    sizes |= {"max_position_embeddings": 32, "initializer_range": 0.05}
    return BertForSequenceClassification(BertConfig(vocab_size=vocab_size, **(sizes | changes)), labels)


def test_rows_of_single_texts_and_pairs() -> None:
    a, b, c = (LETTERS.token_to_id(letter) for letter in "abc")
    single, pair = encode_examples(LETTERS, [Example("abc", 1), Example("ab", 0, "c")], max_length=8)
    assert single == ([CLS, a, b, c, SEP], [0] * 5, {"labels": 1})
    assert pair == ([CLS, a, b, SEP, c, SEP], [0, 0, 0, 0, 1, 1], {"labels": 0})


@pytest.mark.parametrize("example", [Example("", 0), Example("", 0, "b"), Example("a", 0, "")])
def test_a_text_without_tokens_is_rejected(example: Example) -> None:
    with pytest.raises(ValueError, match="the text '' has no tokens"):
        encode_examples(LETTERS, [Example("abc", 1), example])


def test_text_that_looks_like_a_special_token_stays_text() -> None:
    (row,) = encode_examples(LETTERS, [Example("a[SEP]b", 0)])
    assert row.input_ids.count(SEP) == 1
    assert row.input_ids.count(LETTERS.token_to_id("[UNK]")) == 5


def test_truncation_shortens_the_longer_part() -> None:
    """Compares truncation with the original rule, which removes one token at a time."""
    for m in range(1, 13):
        for n in range(1, 13):
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
    # A part that was in eval mode stays so, and the classifier can be any module.
    model.train().bert.eval()
    model.classifier = torch.nn.Sequential(model.classifier)
    model.dropout = torch.nn.Identity()
    assert "classifier_dropout" not in model.extra_config
    assert predict(model, rows).equal(together) and model.training and not model.bert.training
    # A prediction doesn't need to know the true labels.
    unlabeled = [row._replace(targets={"labels": None} if i % 2 else {}) for i, row in enumerate(rows)]
    assert predict(model, unlabeled).equal(together)
    with pytest.raises(ValueError, match="batch_size is -1; it must be at least 1"):
        predict(model, rows, -1)


def word_order_task(count: int, seed: int) -> list[Example]:
    """The label tells which of two words comes first. Each text has both, so counting words doesn't help."""
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


@pytest.mark.parametrize("labels", [[[0], [1], [1]], [1], []])
def test_labels_of_another_shape_are_refused(labels: list[Any]) -> None:
    """PyTorch would broadcast them, and the macro F1 could be above 1."""
    for measure in (score, confusion_matrix):
        with pytest.raises(ValueError, match=r"logits are \(3, 2\) and labels are .*; they must be"):
            measure(torch.zeros(3, 2), torch.tensor(labels))


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
    with pytest.raises(ValueError, match="there are no candidates; pass at least one"):
        choose_hyperparameter([], examples, predict_fifth)


def test_a_learning_rate_at_which_the_loss_explodes_is_not_chosen() -> None:
    examples = [Example("x", label % 2) for label in range(20)]

    def train_and_predict(learning_rate: float, _: list[Example], validation: list[Example]) -> Tensor:
        if learning_rate > 1:
            raise NonFiniteLossError("the loss is NaN")
        # The other learning rate is wrong about each text, and that's still better.
        return -torch.eye(2)[torch.tensor([example.label for example in validation])]

    assert choose_learning_rate([2.0, 1.0, 3.0], examples, 2, train_and_predict) == 1.0
    assert choose_learning_rate([2.0, 3.0], examples, 2, train_and_predict) == 2.0


def test_a_single_step_trains_too() -> None:
    """A warm-up of a tenth of a step would be the whole training, at a learning rate of 0."""
    model = small_model(WORDS.get_vocab_size(), ["first", "second"])
    before = [p.detach().clone() for p in model.parameters()]
    assert len(fine_tune(model, encode_examples(WORDS, word_order_task(8, seed=0)), 1e-3, epochs=1)) == 1
    assert any((a != b).any() for a, b in zip(before, model.parameters(), strict=True))


def test_fine_tuning_works_in_a_thread() -> None:
    """Only the main thread can handle signals."""
    model, rows = small_model(WORDS.get_vocab_size(), ["first", "second"]), word_order_task(8, seed=0)
    with ThreadPoolExecutor() as pool:
        assert len(pool.submit(fine_tune, model, encode_examples(WORDS, rows), 1e-3).result()) == 3


def test_a_row_that_the_model_cannot_read_is_refused() -> None:
    model = small_model(WORDS.get_vocab_size(), ["first", "second"])
    config, ids = model.config, [2, 5, 3]
    for row, message in (
        (Row([2, config.vocab_size, 3], [0, 0, 0], {"labels": 0}), "input_ids of row 1 has"),
        (
            Row([2, -1, 3], [0, 0, 0], {"labels": 0}),
            "input_ids of row 1 has -1; the model needs numbers below",
        ),
        (Row(ids, [0, 0, config.type_vocab_size], {"labels": 0}), "token_type_ids of row 1 has"),
        (Row([5] * (config.max_position_embeddings + 1), [0], {"labels": 0}), "row 1 has .* so shorten it"),
    ):
        rows = [Row(ids, [0, 0, 0], {"labels": 0}), row]
        for use in (lambda rows=rows: fine_tune(model, rows, 1e-3), lambda rows=rows: predict(model, rows)):
            with pytest.raises(ValueError, match=message):
                use()


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
        fine_tune(model, [Row([2, 5, 3], [0, 0, 0], {"labels": 1})] * 4, 1e-2, epochs=2)
    assert all(torch.equal(a, b) for a, b in zip(weights_before, model.bert.parameters(), strict=True))


def test_batches_of_labeled_tokens_and_spans() -> None:
    tokens = [
        Row([2, 5, 3], [0] * 3, {"labels": [IGNORE, 1, IGNORE]}),
        Row([2, 3], [0] * 2, {"labels": [0, 0]}),
    ]
    batch = collate_rows(tokens, CPU)
    assert batch["input_ids"].tolist() == [[2, 5, 3], [2, 3, 0]]
    assert batch["attention_mask"].tolist() == [[1, 1, 1], [1, 1, 0]]
    assert batch["labels"].tolist() == [[IGNORE, 1, IGNORE], [0, 0, IGNORE]]
    spans = [
        Row(row.input_ids, row.token_type_ids, {"start_positions": 0, "end_positions": 1}) for row in tokens
    ]
    assert collate_rows(tokens, CPU, pad_token_id=9)["input_ids"].tolist() == [[2, 5, 3], [2, 3, 9]]
    batch = collate_rows(spans, CPU)
    assert batch["start_positions"].tolist() == [0, 0]
    assert batch["end_positions"].tolist() == [1, 1]
    assert "labels" not in batch


def test_rows_are_padded_with_the_padding_of_the_model(monkeypatch: pytest.MonkeyPatch) -> None:
    """The logits of padding count in the loss of a span, so the padding must be what the model knows."""
    paddings = []

    def collate(rows: Sequence[Row], device: torch.device, pad_token_id: int = 0) -> dict[str, Tensor]:
        paddings.append(pad_token_id)
        return collate_rows(rows, device, pad_token_id)

    monkeypatch.setattr(finetuning, "collate_rows", collate)
    model = small_model(8, ["no", "yes"], pad_token_id=7)
    rows = [Row([2, 5, 3], [0, 0, 0], {"labels": i % 2}) for i in range(3)]
    fine_tune(model, rows, 1e-3, 1)
    predict(model, rows)
    assert paddings == [7, 7]


def tokens_and_spans(count: int) -> tuple[list[Row], list[Row]]:
    """Rows for tokens, with a class for the letters `a` and `b`, and rows for spans from an `a` to a `b`."""
    r = random.Random(0)
    a, b, *others = (LETTERS.token_to_id(letter) for letter in "abcdefgh")
    tokens, spans = [], []
    for _ in range(count):
        ids = [CLS, *r.choices(others, k=r.randint(4, 12)), SEP]
        start, end = sorted(r.sample(range(1, len(ids) - 1), 2))
        ids[start], ids[end] = a, b
        labels = [IGNORE, *(int(token in (a, b)) for token in ids[1:-1]), IGNORE]
        tokens.append(Row(ids, [0] * len(ids), {"labels": labels}))
        spans.append(Row(ids, [0] * len(ids), {"start_positions": start, "end_positions": end}))
    return tokens, spans


@pytest.mark.slow("trains until the task is learned")
def test_the_recipe_trains_every_head() -> None:
    config = small_model(LETTERS.get_vocab_size(), NAMES).config
    tokens, spans = tokens_and_spans(200)
    tagger, reader = BertForTokenClassification(config, ["other", "end"]), BertForQuestionAnswering(config)
    for model, rows in ((tagger, tokens), (reader, spans)):
        fine_tune(model, rows, 3e-3, 6, batch_size=16)
        assert not model.training
    batch = collate_rows(tokens, CPU)
    is_labeled = batch["labels"] != IGNORE
    is_right = tagger(**batch).logits.argmax(-1) == batch["labels"]
    assert is_right[is_labeled].float().mean() > 0.95
    batch = collate_rows(spans, CPU)
    output = reader(**batch)
    assert (output.start_logits.argmax(-1) == batch["start_positions"]).float().mean() > 0.95
    assert (output.end_logits.argmax(-1) == batch["end_positions"]).float().mean() > 0.95


TEXTS = BertForSequenceClassification(tiny_config(), NAMES)
TOKENS = BertForTokenClassification(tiny_config(), NAMES)
SPANS = BertForQuestionAnswering(tiny_config())
BAD_TARGETS = {
    "a class too many": (TEXTS, {"labels": 3}, "labels of row 1 has 3; use a number from 0 to 2"),
    "an ignored text": (TEXTS, {"labels": IGNORE}, "labels of row 1 has -100; use"),
    "a class too many for a token": (TOKENS, {"labels": [IGNORE, 3, 0]}, "labels of row 1 has 3; use"),
    "a negative class": (TOKENS, {"labels": [IGNORE, -1, 0]}, "labels of row 1 has -1; use"),
    "a label too few": (TOKENS, {"labels": [0, 1]}, "must be a list of 3 numbers, one per token"),
    "the class of a text for tokens": (TOKENS, {"labels": 1}, "must be a list of 3 numbers, one per token"),
    "classes of tokens for a text": (TEXTS, {"labels": [0, 1, 2]}, "must be a single number"),
    "a class for a span": (
        SPANS,
        {"labels": 1},
        "row 1 has labels; a .* needs start_positions and end_positions",
    ),
    "a span for a text": (TEXTS, {"start_positions": 1, "end_positions": 1}, "needs labels"),
    "no end": (SPANS, {"start_positions": 1}, "row 1 has start_positions; a .* needs"),
    "no targets": (TEXTS, {}, "row 1 has no targets; a BertForSequenceClassification needs labels"),
    "an answer beyond the row": (
        SPANS,
        {"start_positions": 1, "end_positions": 3},
        "end_positions of row 1 has 3; use a number from 0 to 2",
    ),
}


@pytest.mark.parametrize("case", BAD_TARGETS)
def test_targets_that_do_not_fit_the_head_are_rejected(case: str) -> None:
    """They are rejected before anything is trained, although the first row is good."""
    model, targets, words = BAD_TARGETS[case]
    good = {
        TEXTS: {"labels": 2},
        TOKENS: {"labels": [IGNORE, 2, 0]},
        SPANS: {"start_positions": 0, "end_positions": 2},
    }
    ids = [2, 4, 3]
    weights_before = [p.detach().clone() for p in model.parameters()]
    with pytest.raises(ValueError, match=words) as error_info:
        fine_tune(model, [Row(ids, [0] * 3, good[model]), Row(ids, [0] * 3, targets)], 1e-3)
    assert "\n" not in str(error_info.value)
    assert all(torch.equal(a, b) for a, b in zip(weights_before, model.parameters(), strict=True))


def test_labels_can_be_integers_of_other_libraries() -> None:
    rows = [Row([2, 5, 3], [0, 0, 0], {"labels": label}) for label in np.arange(2)]
    fine_tune(small_model(8, ["no", "yes"]), rows, 1e-3, 1)
    for label in (torch.tensor(1.0), torch.tensor([0, 1]), np.array([1]), "1", None):
        wrong = Row([2, 5, 3], [0, 0, 0], {"labels": label})  # type: ignore[dict-item]
        with pytest.raises(ValueError, match=r"labels of row 0 has .*; use a number from 0 to 1"):
            fine_tune(small_model(8, ["no", "yes"]), [wrong], 1e-3, 1)
    wrong = Row([2, 5, 3], [0, 0, 0], {"labels": 1.0})  # type: ignore[dict-item]
    with pytest.raises(ValueError, match=r"labels of row 0 has 1\.0; use a number from 0 to 1"):
        fine_tune(small_model(8, ["no", "yes"]), [wrong], 1e-3, 1)
    with pytest.raises(ValueError, match="fine_tune can't train a BertForMultipleChoice"):
        fine_tune(BertForMultipleChoice(small_model(8, NAMES).config), rows, 1e-3, 1)  # type: ignore[arg-type]


def test_a_row_that_is_longer_than_the_model_is_rejected() -> None:
    count = TEXTS.config.max_position_embeddings + 1
    with pytest.raises(ValueError, match=f"row 0 has {count} tokens; the model has {count - 1} positions"):
        fine_tune(TEXTS, [Row([2] * count, [0] * count, {"labels": 0})], 1e-3)


@pytest.mark.parametrize(("ids", "types"), [(0, 0), (0, 1), (3, 2), (3, 4)])
def test_a_row_needs_one_type_per_token(ids: int, types: int) -> None:
    row = Row([2] * ids, [0] * types, {"labels": 0})
    for use in (lambda rows: fine_tune(TEXTS, rows, 1e-3), lambda rows: predict(TEXTS, rows)):
        with pytest.raises(ValueError, match=f"row 1 has {ids} tokens and {types} token types"):
            use([Row([2, 4, 3], [0] * 3, {"labels": 0}), row])


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signals_are_left_to_the_program(number: signal.Signals) -> None:
    """Fine-tuning has no checkpoint, so there is nothing to save before the program ends."""
    handlers: list[object] = []

    def should_stop() -> bool:
        handlers.append(signal.getsignal(number))
        return True

    before = signal.getsignal(number)
    fine_tune(TEXTS, [Row([2, 4, 3], [0] * 3, {"labels": 0})], 1e-3, should_stop=should_stop)
    assert handlers == [before]


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_the_default_type_changes_no_score(dtype: torch.dtype) -> None:
    model = small_model(8, ["no", "yes"])
    rows = [Row([2, 5, 3], [0, 0, 0], {"labels": i % 2}) for i in range(3)]
    logits, labels = torch.eye(3)[[0, 1, 2, 0]], torch.tensor([0, 1, 1, 0])
    expected = predict(model, rows), score(logits, labels)
    torch.set_default_dtype(dtype)
    try:
        assert torch.equal(predict(model, rows), expected[0]) and score(logits, labels) == expected[1]
    finally:
        torch.set_default_dtype(torch.float32)


def test_a_single_text_is_no_list_of_labels() -> None:
    with pytest.raises(ValueError, match="the labels are 'spam'; each must be a string in a list"):
        small_model(8, "spam")  # type: ignore[arg-type]


def test_sizes_can_be_integers_of_numpy(tmp_path: Path) -> None:
    config = BertConfig(np.arange(9).max() + 1, 16, 1, 2, 32)
    BertForSequenceClassification(config, ["no", "yes"]).save_pretrained(tmp_path)
    assert BertForSequenceClassification.from_pretrained(tmp_path).config.vocab_size == 9
