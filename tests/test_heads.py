"""The heads, compared with those of `transformers`, and their folders in both directions."""

import dataclasses
import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor

from labml_bert import heads
from labml_bert.bert import BertConfig
from labml_bert.checksums import SUMS
from labml_bert.data.tokenizers import save_tokenizer, wordpiece_tokenizer
from labml_bert.heads import (
    NEW_PARAMETERS,
    BertForFineTuning,
    BertForMultipleChoice,
    BertForQuestionAnswering,
    BertForSequenceClassification,
    BertForTokenClassification,
)
from labml_bert.mlm import IGNORE
from labml_bert.models import BertForMaskedLM, BertForPreTraining
from tests.support.parity import (
    TOLERANCE,
    assert_same_gradients,
    perturb_weights,
    random_batch,
    random_config,
    write_config,
)
from tests.support.runs import small_text

NAMES = ["bad", "so-so", "good"]
# Each head, and the class of `transformers` that opens its folders without being told which head it is.
AUTO_CLASSES = {
    BertForSequenceClassification: transformers.AutoModelForSequenceClassification,
    BertForTokenClassification: transformers.AutoModelForTokenClassification,
    BertForQuestionAnswering: transformers.AutoModelForQuestionAnswering,
    BertForMultipleChoice: transformers.AutoModelForMultipleChoice,
}
HEADS = list(AUTO_CLASSES)
WITH_LABELS = HEADS[:2]


def build(head: type[BertForFineTuning], config: BertConfig) -> Any:
    return head(config, NAMES) if head in WITH_LABELS else head(config)


def labeled_batch(model: Any, seed: int) -> dict[str, Tensor]:
    """Padded rows with random labels for the head of `model`. Some of the labels don't count."""
    batch = random_batch(model.config, seed, False)
    g = torch.Generator().manual_seed(seed)
    B, T = batch["input_ids"].shape
    if isinstance(model, BertForSequenceClassification):
        batch["labels"] = torch.randint(len(model.labels), (B,), generator=g)
    elif isinstance(model, BertForTokenClassification):
        is_labeled = batch["labels"] != IGNORE
        assert is_labeled.any()
        assert not is_labeled.all()
        batch["labels"] = (batch["labels"] % len(model.labels)).masked_fill(~is_labeled, IGNORE)
    elif isinstance(model, BertForQuestionAnswering):
        del batch["labels"]
        for name in ("start_positions", "end_positions"):
            # The last two positions are outside the text, so they don't count.
            batch[name] = torch.cat([torch.randint(T, (B - 2,), generator=g), torch.tensor([-3, T + 3])])
    else:
        # Three pairs of choices.
        batch = {name: tensor.view(B // 2, 2, T) for name, tensor in batch.items()}
        batch["labels"] = torch.randint(2, (B // 2,), generator=g)
    return batch


def assert_same_outputs(ours: BertForFineTuning, theirs: Any, seed: int) -> None:
    """Compares logits, loss and every gradient in eval mode, with padding and token types."""
    ours.eval()
    theirs.eval()
    batch = labeled_batch(ours, seed)
    our_output, their_output = ours(**batch), theirs(**batch)
    for name, value in our_output._asdict().items():
        assert (value - their_output[name]).abs().max() < TOLERANCE, name
    our_output.loss.backward()
    their_output.loss.backward()
    assert_same_gradients(ours, theirs)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("head", HEADS)
def test_transformers_loads_what_we_save(head: type[BertForFineTuning], seed: int, tmp_path: Path) -> None:
    model = build(head, random_config(seed))
    perturb_weights(model, seed)
    model.save_pretrained(tmp_path)
    other, report = AUTO_CLASSES[head].from_pretrained(tmp_path, output_loading_info=True)
    assert type(other).__name__ == head.__name__
    assert not any(report[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    if head in WITH_LABELS:
        assert other.config.id2label == dict(enumerate(NAMES))
        assert other.config.label2id == {name: i for i, name in enumerate(NAMES)}
        assert other.config.num_labels == 3
    assert_same_outputs(model, other, seed)


def test_a_classifier_with_other_outputs_than_labels_is_not_saved(tmp_path: Path) -> None:
    model = BertForSequenceClassification(random_config(6), ["a", "b"])
    model.classifier = torch.nn.Linear(model.config.hidden_size, 3)
    with pytest.raises(ValueError, match="the classifier has 3 outputs, and there are 2 labels; set"):
        model.save_pretrained(tmp_path)
    model.labels = ["a", "b", "c"]
    model.save_pretrained(tmp_path)
    assert BertForSequenceClassification.from_pretrained(tmp_path).labels == ["a", "b", "c"]


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(
    ("head", "names"), [*((head, NAMES) for head in WITH_LABELS), *((head, None) for head in HEADS)]
)
def test_we_load_what_transformers_saves(
    head: type[BertForFineTuning], names: list[str] | None, seed: int, tmp_path: Path
) -> None:
    config = random_config(seed)
    label_names = {"id2label": dict(enumerate(names))} if names else {}
    their_config = transformers.BertConfig(**dataclasses.asdict(config), **label_names)
    other = getattr(transformers, head.__name__)(their_config)
    perturb_weights(other, seed)
    other.save_pretrained(tmp_path)
    model: Any = head.from_pretrained(tmp_path)
    if head in WITH_LABELS:
        assert model.labels == (names or ["LABEL_0", "LABEL_1"])
        content = json.loads((tmp_path / "config.json").read_text())
        (tmp_path / "config.json").write_text(
            json.dumps(content | {"id2label": names and content["id2label"]})
        )
        assert head.from_pretrained(tmp_path).labels == model.labels  # type: ignore[attr-defined]
    assert not model.training
    assert_same_outputs(model, other, seed)


TEXT = small_text(50)


def save_with_tokenizer(model_class: type[BertForFineTuning], folder: Path) -> tuple[Any, Any]:
    """Saves a random model with a tokenizer. Returns the model, and the tokenizer in `transformers`."""
    tokenizer = wordpiece_tokenizer([TEXT], 60)
    config = dataclasses.replace(random_config(6), vocab_size=60, max_position_embeddings=64)
    model = build(model_class, config).eval()
    perturb_weights(model, 6)
    model.save_pretrained(folder)
    save_tokenizer(tokenizer, folder)
    return model, transformers.AutoTokenizer.from_pretrained(folder)


def test_the_pipeline_of_transformers_labels_tokens_as_we_do(tmp_path: Path) -> None:
    model, tokenizer = save_with_tokenizer(BertForTokenClassification, tmp_path)
    text = TEXT.splitlines()[0]
    answers = transformers.pipeline("token-classification", model=str(tmp_path))(text)
    probabilities = model(**tokenizer(text, return_tensors="pt")).logits[0, 1:-1].softmax(-1)
    assert len(answers) == len(probabilities)
    assert len({answer["entity"] for answer in answers}) > 1
    for answer, p in zip(answers, probabilities, strict=True):
        assert answer["entity"] == NAMES[p.argmax()]
        assert answer["score"] == pytest.approx(p.max().item(), abs=TOLERANCE)


def test_transformers_answers_questions_as_we_do(tmp_path: Path) -> None:
    """`transformers` 5 has no pipeline for questions, so compare the logits that a pipeline would use."""
    model, tokenizer = save_with_tokenizer(BertForQuestionAnswering, tmp_path)
    question, text = TEXT.splitlines()[:2]
    inputs = tokenizer(question, text, return_tensors="pt")
    assert inputs["token_type_ids"].unique().tolist() == [0, 1]
    theirs = transformers.AutoModelForQuestionAnswering.from_pretrained(tmp_path)(**inputs)
    ours = model(**inputs)
    assert (ours.start_logits - theirs.start_logits).abs().max() < TOLERANCE
    assert (ours.end_logits - theirs.end_logits).abs().max() < TOLERANCE


def test_label_names_are_saved_and_can_be_replaced(tmp_path: Path) -> None:
    model = BertForTokenClassification(random_config(0), NAMES)
    model.save_pretrained(tmp_path)
    reloaded = BertForTokenClassification.from_pretrained(tmp_path)
    assert reloaded.labels == NAMES
    assert torch.equal(reloaded.classifier.weight, model.classifier.weight)
    renamed = BertForTokenClassification.from_pretrained(tmp_path, labels=["a", "b", "c"])
    assert renamed.labels == ["a", "b", "c"]
    with pytest.raises(ValueError, match="not from one model"):
        BertForTokenClassification.from_pretrained(tmp_path, labels=["a", "b"])


@pytest.mark.parametrize("head", [BertForSequenceClassification, BertForTokenClassification])
def test_the_dropout_of_the_head_is_loaded_and_saved(head: type[BertForFineTuning], tmp_path: Path) -> None:
    config = transformers.BertConfig(
        **dataclasses.asdict(random_config(0)), classifier_dropout=0.7, num_labels=3
    )
    reference = getattr(transformers, head.__name__)
    reference(config).save_pretrained(tmp_path / "theirs")
    model = head.from_pretrained(tmp_path / "theirs")
    assert model.dropout.p == 0.7
    model.save_pretrained(tmp_path / "ours")
    assert reference.from_pretrained(tmp_path / "ours").dropout.p == 0.7
    assert head.from_pretrained(tmp_path / "ours").dropout.p == 0.7
    build(head, random_config(0)).save_pretrained(tmp_path / "plain")
    assert "classifier_dropout" not in json.loads((tmp_path / "plain" / "config.json").read_text())
    for p in (1.5, -0.1, "high", True):
        values = json.loads((tmp_path / "theirs" / "config.json").read_text())
        (tmp_path / "theirs" / "config.json").write_text(json.dumps(values | {"classifier_dropout": p}))
        with pytest.raises(ValueError, match=r"has classifier_dropout = .*; use a number from 0 to 1"):
            head.from_pretrained(tmp_path / "theirs")


@pytest.mark.parametrize("kind", [BertForMaskedLM, BertForPreTraining])
@pytest.mark.parametrize("head", HEADS)
def test_a_head_on_a_pretrained_model(kind, head: type[BertForFineTuning], tmp_path: Path) -> None:
    """All weights of the backbone are loaded, and the pooler's if both models have one."""
    backbone = kind(random_config(1))
    perturb_weights(backbone, 1)
    backbone.save_pretrained(tmp_path)
    labels = {"labels": NAMES} if head in WITH_LABELS else {}
    with pytest.raises(ValueError, match=r"has no (bert.pooler|classifier|qa_outputs)"):
        head.from_pretrained(tmp_path, **labels)
    model = head.from_pretrained(tmp_path, NEW_PARAMETERS, **labels)
    pretrained = dict(backbone.bert.named_parameters())
    for name, parameter in model.bert.named_parameters():
        assert name not in pretrained or torch.equal(parameter, pretrained[name])
    assert ("pooler.dense.weight" in pretrained) == (kind is BertForPreTraining)
    (new_weight,) = (
        p for name, p in model.named_parameters() if name.endswith(("classifier.weight", "qa_outputs.weight"))
    )
    assert new_weight.abs().max() > 0


@pytest.mark.parametrize("saved", HEADS)
@pytest.mark.parametrize("loaded", HEADS)
def test_a_folder_of_another_head_is_rejected(
    saved: type[BertForFineTuning], loaded: type[BertForFineTuning], tmp_path: Path
) -> None:
    build(saved, random_config(0)).save_pretrained(tmp_path)
    if saved is loaded:
        assert type(loaded.from_pretrained(tmp_path)) is loaded
        return
    with pytest.raises(
        ValueError, match=rf"config.json is of a {saved.__name__}; load it as one"
    ) as error_info:
        loaded.from_pretrained(tmp_path)
    assert "\n" not in str(error_info.value)


def test_a_new_head_on_a_model_with_another_head(tmp_path: Path) -> None:
    """With new parameters, a model fine-tuned for one task can be the start for another."""
    model = BertForQuestionAnswering(random_config(0))
    model.save_pretrained(tmp_path)
    tagger = BertForTokenClassification.from_pretrained(tmp_path, NEW_PARAMETERS, labels=NAMES)
    for a, b in zip(tagger.bert.parameters(), model.bert.parameters(), strict=True):
        assert torch.equal(a, b)
    # The heads of two classifiers have the same names and, with as many labels, the same shapes.
    tagger.save_pretrained(tmp_path)
    classifier = BertForSequenceClassification.from_pretrained(tmp_path, NEW_PARAMETERS, labels=NAMES)
    assert classifier.classifier.weight.shape == tagger.classifier.weight.shape
    assert not torch.equal(classifier.classifier.weight, tagger.classifier.weight)


def test_the_model_of_a_run_is_named(tmp_path: Path) -> None:
    BertForMaskedLM(random_config(0)).save_pretrained(tmp_path / "model")
    for head in (BertForSequenceClassification, BertForTokenClassification, BertForQuestionAnswering):
        with pytest.raises(ValueError, match=f"no config.json.*use {tmp_path}/model"):
            head.from_pretrained(tmp_path, new_parameters=NEW_PARAMETERS)


def test_a_subclass_loads_the_folders_of_its_head(tmp_path: Path) -> None:
    class Tagger(BertForTokenClassification):
        pass

    build(BertForTokenClassification, random_config(0)).save_pretrained(tmp_path)
    assert Tagger.from_pretrained(tmp_path).labels == NAMES


@pytest.mark.parametrize("head", [BertForTokenClassification, BertForQuestionAnswering])
def test_a_batch_without_labels_has_loss_zero(head: type[BertForFineTuning]) -> None:
    """In `transformers`, this loss is 0/0, and one such batch would end a run."""
    model = build(head, random_config(0))
    ids = torch.ones(2, 5, dtype=torch.long)
    names = ["labels"] if head is BertForTokenClassification else ["start_positions", "end_positions"]
    labels = torch.full_like(ids, IGNORE) if names == ["labels"] else torch.full((2,), 5)
    loss = model(ids, **dict.fromkeys(names, labels)).loss
    assert loss.item() == 0
    loss.backward()
    assert all(p.grad is None or not p.grad.any() for p in model.parameters())
    assert model(ids).loss is None


def test_every_head_starts_uniform() -> None:
    """The first loss is close to the logarithm of the number of alternatives."""
    torch.manual_seed(0)
    for head in HEADS:
        model = build(head, random_config(3)).eval()
        batch = labeled_batch(model, 3)
        alternatives = {BertForMultipleChoice: 2, BertForQuestionAnswering: batch["input_ids"].size(-1)}
        assert model(**batch).loss.item() == pytest.approx(math.log(alternatives.get(head, 3)), abs=0.2)


@pytest.mark.parametrize("labels", [[], ["a"], ["a", "a"], ["a", 1]])
@pytest.mark.parametrize("head", WITH_LABELS)
def test_bad_labels_are_rejected(head: Any, labels: list[Any]) -> None:
    with pytest.raises(ValueError, match="the labels are") as error_info:
        head(random_config(0), labels)
    assert "\n" not in str(error_info.value)


BAD_FOLDERS = {
    "no folder": (lambda folder: folder.rename(folder.with_name("elsewhere")), "no config.json"),
    "a gap in the labels": (lambda folder: write_config(folder, id2label={"0": "a", "2": "b"}), "id2label"),
    "labels that are a list": (lambda folder: write_config(folder, id2label=["a", "b"]), "id2label"),
    "a label that is not text": (
        lambda folder: write_config(folder, id2label={"0": "a", "1": None}),
        "id2label",
    ),
    "one label": (lambda folder: write_config(folder, id2label={"0": "a"}), "two or more"),
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
@pytest.mark.parametrize("head", WITH_LABELS)
def test_inconsistent_folders_are_rejected(head: type[BertForFineTuning], case: str, tmp_path: Path) -> None:
    damage, words = BAD_FOLDERS[case]
    folder = tmp_path / "model"
    build(head, random_config(2)).save_pretrained(folder)
    (folder / SUMS).unlink()
    damage(folder)
    with pytest.raises(ValueError, match=words) as error_info:
        head.from_pretrained(folder)
    assert "\n" not in str(error_info.value)


@pytest.mark.parametrize("architectures", [None, "x", 5, {}, [1], [[]], ["BertModel"]])
def test_any_other_architecture_is_left_to_the_weights(architectures: object, tmp_path: Path) -> None:
    build(BertForQuestionAnswering, random_config(0)).save_pretrained(tmp_path)
    (tmp_path / SUMS).unlink()
    write_config(tmp_path, architectures=architectures)
    BertForQuestionAnswering.from_pretrained(tmp_path)
    with pytest.raises(ValueError, match=r"has no classifier\.(weight|bias)"):
        BertForTokenClassification.from_pretrained(tmp_path)


def test_a_classifier_never_gets_the_labels_of_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another process saves a classifier to the same folder after the labels have been read."""
    old, new = (
        BertForSequenceClassification(random_config(0), labels) for labels in (["no", "yes"], ["yes", "no"])
    )
    old.save_pretrained(tmp_path)
    read_labels = heads.read_labels

    def read_and_replace(folder: Path) -> list[str]:
        labels = read_labels(folder)
        new.save_pretrained(tmp_path)
        return labels

    monkeypatch.setattr(heads, "read_labels", read_and_replace)
    with pytest.raises(ValueError, match="was replaced while it was read; try again"):
        BertForSequenceClassification.from_pretrained(tmp_path)
