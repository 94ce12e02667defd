"""Parameters in docstrings: the items of both tasks, the metrics, the methods and the command."""

import inspect
import json
import random
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer

from experiments.parameters import finetune_parameters
from experiments.parameters.finetune_parameters import (
    ARMS,
    FROM_SCRATCH,
    LORA,
    PRETRAINED,
    WORDS,
    build_model,
    chance,
    count_trained,
    draw,
    f1_or_accuracy,
    run_arm,
)
from experiments.parameters.tasks import (
    SPAN,
    TASKS,
    TOKENS,
    Function,
    make_items,
    read_functions,
    read_signatures,
)
from labml_bert.backbone import Backbone
from labml_bert.bert import BertConfig
from labml_bert.data.tokenizers import save_tokenizer, wordpiece_tokenizer
from labml_bert.model_folder import read_tensors
from labml_bert.models import BertForPreTraining
from tests.support.tiny_run import assert_fails

CONFIG = BertConfig(
    vocab_size=120,
    hidden_size=32,
    num_hidden_layers=2,
    num_attention_heads=2,
    intermediate_size=64,
    max_position_embeddings=48,
    # With a range of 0.05, a model of this width needs hundreds of steps before it uses the question at all.
    initializer_range=0.1,
    hidden_dropout_prob=0.0,
    attention_probs_dropout_prob=0.0,
)


def small_function(seed: int) -> Function:
    """A docstring in which a verb marks the parameter: one opens the *path* and waits for the *timeout*."""
    r = random.Random(seed)
    parts = [["opens", "the", "path"], ["waits", "for", "timeout"], ["sends", "all", "data"]]
    words = [word for part in r.sample(parts, 2) for word in [*part, r.choice([".", ";"])]]
    # `path` and `data` are parameters only after their verbs.
    words += ["the", r.choice(["path", "data"]), "is", r.choice(["old", "new"])]
    return Function(words, [i < 8 and word in {"path", "timeout", "data"} for i, word in enumerate(words)])


FUNCTIONS = [small_function(seed) for seed in range(200)]


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return wordpiece_tokenizer([" ".join(f.words) + " _ _" for f in FUNCTIONS], CONFIG.vocab_size)


@pytest.fixture(scope="module")
def backbone(tmp_path_factory: pytest.TempPathFactory, tokenizer: Tokenizer) -> Backbone:
    folder = tmp_path_factory.mktemp("model")
    config = replace(CONFIG, vocab_size=tokenizer.get_vocab_size())
    torch.manual_seed(0)
    BertForPreTraining(config).save_pretrained(folder)
    save_tokenizer(tokenizer, folder)
    return Backbone(folder, config, tokenizer, read_tensors(folder), torch.device("cpu"))


@pytest.mark.long
@pytest.mark.slow("reads all docstrings of the standard library")
def test_signatures_of_the_standard_library() -> None:
    signatures = read_signatures()
    assert signatures[inspect.cleandoc(shutil.copymode.__doc__ or "")] == {
        "src",
        "dst",
        "follow_symlinks",
    }
    assert not any({"self", "cls"} & names for names in signatures.values())


@pytest.mark.long
@pytest.mark.slow("reads all docstrings of the standard library")
def test_the_docstrings_and_what_pretraining_has_seen() -> None:
    train, test = read_functions()
    assert len(train) > 1000 and len(test) > 100
    assert all(any(function.is_parameter) for function in train + test)
    assert not {tuple(f.words) for f in train} & {tuple(f.words) for f in test}


def test_items_for_tokens(tokenizer: Tokenizer) -> None:
    function = Function(["opens", "the", "path", ",", "path", "."], [False, False, True, False, True, False])
    (item,) = make_items(TOKENS, tokenizer, [function], longest=40)
    # Punctuation has no label.
    assert [q.label for q in item.questions] == [False, False, True, True]
    labels = item.row.targets["labels"]
    assert isinstance(labels, list) and len(labels) == len(item.row.input_ids)
    assert [labels[p] for p in item.positions] == [0, 0, 1, 1]
    assert sum(label != -100 for label in labels) == 4
    decoded = [tokenizer.id_to_token(item.row.input_ids[p]) for p in item.positions]
    assert [word[0] for word in decoded] == ["o", "t", "p", "p"]
    assert item.questions[2].features == dict.fromkeys(["-2=opens", "-1=the", "0=path", "1=,", "2=path"], 1.0)


def test_items_for_spans(tokenizer: Tokenizer) -> None:
    function = Function(
        ["the", "path", "and", "data", "of", "path", "x"], [False, True, False, True, False, True, False]
    )
    first, second = make_items(SPAN, tokenizer, [function], longest=40)
    gap = tokenizer.token_to_id("_")
    for item, labels in ((first, [True, False, True]), (second, [False, True, False])):
        assert [q.label for q in item.questions] == labels
        assert [item.row.input_ids[p] for p in item.positions] == [gap] * 3
        answer = item.positions[labels.index(True)]
        assert item.row.targets == {"start_positions": answer, "end_positions": answer}
        name_end = item.row.input_ids.index(tokenizer.token_to_id("[SEP]"))
        assert item.row.token_type_ids == [0] * (name_end + 1) + [1] * (
            len(item.row.input_ids) - name_end - 1
        )
        # The name is in the question, and nowhere in the text.
        assert not any("0=path" in q.features or "0=data" in q.features for q in item.questions)
    assert "path|-1=the" in first.questions[0].features and "gap 0" in first.questions[0].features
    # With one parameter there is no choice, and a truncated row has lost its answer.
    assert make_items(SPAN, tokenizer, [Function(["a", "b"], [True, False])], longest=40) == []
    length = first.positions[1] + 2
    assert len(make_items(SPAN, tokenizer, [function], longest=length)) == 2
    assert make_items(SPAN, tokenizer, [function], longest=length - 1) == []


def test_the_metrics(tokenizer: Tokenizer) -> None:
    function = Function(["opens", "the", "path", "now"], [False, False, True, False])
    items = make_items(TOKENS, tokenizer, [function, function], longest=40)
    scores = [torch.tensor([-1.0, 1.0, 1.0, -1.0]), torch.tensor([-1.0, -1.0, -1.0, -1.0])]
    # There is one true positive, one false positive and one false negative.
    assert f1_or_accuracy(TOKENS, items, scores) == pytest.approx(2 / 4)
    assert f1_or_accuracy(TOKENS, items, [-torch.ones(4)] * 2) == 0.0
    assert chance(TOKENS, items) == pytest.approx(2 * 2 / (2 + 8))
    spans = make_items(SPAN, tokenizer, [FUNCTIONS[0]], longest=40)
    assert f1_or_accuracy(SPAN, spans, [torch.tensor([1.0, 0.0])] * 2) == 0.5
    assert chance(SPAN, spans) == 0.5


def test_a_smaller_draw_is_the_start_of_a_larger_one() -> None:
    assert draw(FUNCTIONS, 10, 3) == draw(FUNCTIONS, 50, 3)[:10] != draw(FUNCTIONS, 10, 4)


@pytest.mark.slow("trains until both tasks are learned")
@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize(
    "arm", [pytest.param(arm, marks=pytest.mark.long) if arm == FROM_SCRATCH else arm for arm in ARMS]
)
def test_every_method_learns_both_tasks(backbone: Backbone, task: str, arm: str) -> None:
    """A network may memorize spans: a test is too short for learning to compare a name with each gap."""
    is_memorized = task == SPAN and arm != WORDS
    parts = (FUNCTIONS[:4], FUNCTIONS[:4]) if is_memorized else (FUNCTIONS[:150], FUNCTIONS[150:])
    train, test = (make_items(task, backbone.tokenizer, part, longest=40) for part in parts)
    hyperparameter = {PRETRAINED: 3e-3, LORA: 3e-2, FROM_SCRATCH: 3e-3, WORDS: 10.0}[arm]
    result = run_arm(backbone, task, arm, 200, 0, hyperparameter, train, test)
    assert [len(scores) for scores in result.scores] == [len(item.questions) for item in test]
    score = f1_or_accuracy(task, test, result.scores)
    assert score > (0.99 if is_memorized else chance(task, test) + 0.2), score


def test_lora_trains_few_parameters_and_scratch_starts_elsewhere(backbone: Backbone) -> None:
    counts = {arm: count_trained(build_model(backbone, SPAN, arm)) for arm in (PRETRAINED, LORA)}
    assert counts[LORA] < counts[PRETRAINED] / 5
    torch.manual_seed(1)
    name = "bert.embeddings.word_embeddings.weight"
    pretrained, scratch = (
        dict(build_model(backbone, TOKENS, arm).named_parameters())[name]
        for arm in (PRETRAINED, FROM_SCRATCH)
    )
    assert torch.equal(pretrained, backbone.tensors[name]) and not torch.equal(scratch, pretrained)


@pytest.mark.long
@pytest.mark.processes
def test_the_command_and_its_record(
    backbone: Backbone,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(finetune_parameters, "read_functions", lambda: (FUNCTIONS[:60], FUNCTIONS[60:90]))
    record_path = tmp_path / "record.json"
    arguments = ["--model", str(backbone.folder), "--labels", "20", "all", "--seeds", "2", "--steps", "2"]
    finetune_parameters.main([*arguments, "--record", str(record_path)])
    out = capsys.readouterr().out
    assert "tokens, 20 labeled docstrings" in out and "span, 60 labeled docstrings" in out
    record = json.loads(record_path.read_text())
    assert record["command"].startswith(
        "python experiments/parameters/finetune_parameters.py --labels 20 all"
    )
    assert len(record["table"]) == 2 * 2 * len(ARMS) * 2
    assert {(row["task"], row["arm"]) for row in record["table"]} == {(t, a) for t in TASKS for a in ARMS}
    assert all(0 <= row["score"] <= 1 for row in record["table"])
    assert record["trained_parameters"][LORA] < record["trained_parameters"][PRETRAINED]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--labels"], "--labels has no value; write one"),
        (["--labels", "10"], "--labels is 10; it must be at least 20"),
        (["--labels", "61"], "61 labels for the training set; it has 60"),
        (["--labels", "few"], "--labels is 'few'; use a number, or all"),
        (["--labels", "20", "20"], "--labels has '20' twice; leave one out"),
        (["--labels", "20", "020"], "--labels has '020' twice; leave one out"),
        (["--seeds", "0"], "seeds is 0"),
        (["--model", "missing"], "missing"),
        (["--device", "tpu"], "tpu"),
    ],
)
def test_bad_input(
    backbone: Backbone,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    message: str,
) -> None:
    monkeypatch.setattr(finetune_parameters, "read_functions", lambda: (FUNCTIONS[:60], FUNCTIONS[60:90]))
    model = [] if "--model" in arguments else ["--model", str(backbone.folder)]
    assert_fails(finetune_parameters.main, [*model, *arguments], message, capsys)


def test_too_few_items_for_a_learning_rate_are_an_error_before_the_first_run(
    backbone: Backbone, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """In the task span, a docstring with one parameter has no items."""
    single = Function(FUNCTIONS[0].words[:3], FUNCTIONS[0].is_parameter[:3])
    functions = [FUNCTIONS[0], *[single] * 19]
    monkeypatch.setattr(finetune_parameters, "read_functions", lambda: (functions, FUNCTIONS[60:90]))
    monkeypatch.setattr(finetune_parameters, "run_arm", lambda *words: pytest.fail("a run has started"))
    arguments = ["--model", str(backbone.folder), "--labels", "all"]
    message = "of 20 docstrings fit the span task in 48 tokens"
    assert_fails(finetune_parameters.main, arguments, message, capsys)
