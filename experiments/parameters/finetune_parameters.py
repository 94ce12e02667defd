r"""
# Token classification and question answering

Does pretraining help a model label each token, or find a span? Pretraining helped with [whole
texts](../finetune_docstrings.md), compared with training from scratch. The labels come with Python: a
function's signature says which words of its docstring are names of parameters. This gives us two tasks:

- **tokens**: which words of this docstring name a parameter? `BertForTokenClassification` gives each word one
  of two classes. The word alone isn't enough to decide: *name* is a parameter in about 40% of the docstrings
  that contain it, and *object* in only 12%.
- **span**: all names of parameters are replaced by `_`, and the question is, for example: which gap was
  `timeout`? The input is the name and the docstring, and `BertForQuestionAnswering` picks the start and the
  end of the answer.

We compare four methods, each with the same labeled docstrings:

- **pretrained** fine-tunes all weights of the encoder that `bert_tiny.py` has pretrained;
- **LoRA** freezes the pretrained encoder and trains small [low-rank matrices](../../labml_bert/lora.md),
  which are added to its weights;
- **from scratch** trains the same network from random weights;
- **neighboring words** is a logistic regression on each word and the two words on either side of it.

All test docstrings are from documents that the encoder hasn't seen in pretraining. Each method has one
hyperparameter to tune. For each task and number of labels, we tune it once: we draw up to 1,000 labeled
docstrings with seed 0, train on four fifths of them, and choose the value that is best on the rest.

    python experiments/bert_tiny.py
    python experiments/parameters/finetune_parameters.py
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))  # Find the package without installing it.
from labml_bert.run import preflight  # noqa: F401  # isort: skip

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from itertools import product
from typing import Any, NamedTuple

import torch
from rich.table import Table
from torch import Tensor

from experiments.parameters.tasks import SPAN, TASKS, TOKENS, Function, Item, make_items, read_functions
from labml_bert.backbone import (
    Backbone,
    check_label_counts,
    find_newest_model,
    load_backbone,
    parse_label_count,
    random_backbone,
)
from labml_bert.baselines.tfidf import check_scikit_learn_is_here
from labml_bert.finetuning import collate_rows, fine_tune
from labml_bert.heads import NEW_PARAMETERS, BertForQuestionAnswering, BertForTokenClassification
from labml_bert.lora import add_lora
from labml_bert.model_folder import load_weights
from labml_bert.run.fingerprint import Fingerprint, machine, single_thread
from labml_bert.run.options import parse
from labml_bert.run.record import average_losses, check_range, check_record, describe_run, finish
from labml_bert.run.terminal import exit_on_bad_input, header
from labml_bert.stdout import console, display_path
from labml_bert.training.device import Precision, choose_device
from labml_bert.training.trainer import NonFiniteLossError

PRETRAINED, LORA, FROM_SCRATCH, WORDS = ARMS = ("pretrained", "LoRA", "from scratch", "neighboring words")
# The values of the hyperparameter to choose from: learning rates for the networks (LoRA needs higher ones),
# and for the logistic regression `C`, the inverse of the regularization strength.
HYPERPARAMETERS = {
    PRETRAINED: (3e-4, 1e-3, 3e-3, 1e-2),
    LORA: (1e-3, 3e-3, 1e-2, 3e-2),
    FROM_SCRATCH: (3e-4, 1e-3, 3e-3, 1e-2),
    WORDS: (0.03, 0.3, 3.0, 30.0, 300.0),
}
EPOCHS = 4
RANK = 8
Model = BertForTokenClassification | BertForQuestionAnswering
# Maximum number of tokens in an input. Longer docstrings lose their end, which usually matters least.
MAX_LENGTH = 64
# With more labels, choosing the hyperparameter would take longer than the training itself.
MAX_TUNING_LABELS = 1000
FEWEST_LABELS = 20


@dataclass(frozen=True)
class Options:
    """The options on the command line."""

    model: Path | None = None
    """Folder of a pretrained BERT. Default: the newest model of bert_tiny.py under logs."""
    labels: tuple[str, ...] = ("300", "all")
    """Numbers of labeled docstrings to train on."""
    seeds: int = 5
    """Number of seeds. A seed decides which docstrings are labeled, their order, and the initial values of
    the new weights."""
    steps: int = 200
    """Minimum number of training steps."""
    device: str = "auto"
    """cpu, cuda, or auto, which is the GPU if there is one."""
    record: Path | None = None
    """Write the result to this file, as JSON."""


def build_model(backbone: Backbone, task: str, arm: str) -> Model:
    """
    Builds the model that `arm` fine-tunes for `task`.

    Raises `ValueError` if the weights don't fit the configuration.
    """
    model: Model
    if task == TOKENS:
        model = BertForTokenClassification(backbone.config, ["word", "parameter"])
    else:
        model = BertForQuestionAnswering(backbone.config)
    if arm != FROM_SCRATCH:
        load_weights(model, backbone.tensors, backbone.folder / "model.safetensors", NEW_PARAMETERS)
    if arm == LORA:
        add_lora(model.bert, RANK, alpha=2 * RANK)
    return model.to(backbone.device)


@torch.no_grad()
def score_questions(model: Model, items: Sequence[Item]) -> list[Tensor]:
    """
    Returns one score for each question of each item. For *tokens*, the score is the log-odds that the word is
    a parameter. For *span*, it's the start logit plus the end logit at the gap. `model` must be in eval mode.
    """
    scores: list[Tensor] = [torch.empty(0)] * len(items)
    order = sorted(range(len(items)), key=lambda i: len(items[i].row.input_ids))
    for start in range(0, len(order), 64):
        indices = order[start : start + 64]
        batch = collate_rows([items[i].row for i in indices], next(model.parameters()).device)
        batch = {name: batch[name] for name in ("input_ids", "token_type_ids", "attention_mask")}
        output = model(**batch)
        if isinstance(model, BertForTokenClassification):
            by_token = output.logits[..., 1] - output.logits[..., 0]  # (B, T)
        else:
            by_token = output.start_logits + output.end_logits  # (B, T)
        for i, row in zip(indices, by_token.cpu(), strict=True):
            scores[i] = row[items[i].positions]
    return scores


class Attempt(NamedTuple):
    """The scores of all questions, one tensor for each item, and the loss of each training step."""

    scores: list[Tensor]
    losses: list[float]


def run_arm(
    backbone: Backbone,
    task: str,
    arm: str,
    min_steps: int,
    seed: int,
    hyperparameter: float,
    train: Sequence[Item],
    test: Sequence[Item],
    precision: Precision = "auto",
) -> Attempt:
    """
    Trains one of the methods and scores the questions in `test`. `hyperparameter` is the learning rate, or
    the `C` of the logistic regression.
    """
    if arm == WORDS:
        return Attempt(score_by_words(train, test, hyperparameter), [])
    torch.manual_seed(seed)
    model = build_model(backbone, task, arm)
    rows = [item.row for item in train]
    losses = fine_tune(model, rows, hyperparameter, EPOCHS, min_steps, seed=seed, precision=precision)
    return Attempt(score_questions(model, test), losses)


def score_by_words(train: Sequence[Item], test: Sequence[Item], hyperparameter: float) -> list[Tensor]:
    """
    ## The baseline

    Fits a logistic regression to the words around each question. Returns the log-odds for all questions in
    `test`.
    """
    from sklearn.feature_extraction import DictVectorizer
    from sklearn.linear_model import LogisticRegression

    vectorizer = DictVectorizer()
    questions = [question for item in train for question in item.questions]
    features = vectorizer.fit_transform([question.features for question in questions])
    regression = LogisticRegression(C=hyperparameter, max_iter=1000)
    regression.fit(features, [question.label for question in questions])
    tested = [question.features for item in test for question in item.questions]
    log_odds = torch.from_numpy(regression.decision_function(vectorizer.transform(tested)))
    return [*log_odds.split([len(item.questions) for item in test])]


def f1_or_accuracy(task: str, items: Sequence[Item], scores: Sequence[Tensor]) -> float:
    r"""
    ## The metrics

    For *tokens*, the metric is the F1 of the class *parameter*, $2\,tp / (2\,tp + fp + fn)$, over all words
    of all items. A word with a score above 0 is predicted to be a parameter. For *span*, the metric is the
    accuracy: the fraction of items in which the gap with the highest score was the parameter asked for.
    """
    labels = [torch.tensor([question.label for question in item.questions]) for item in items]
    if task == SPAN:
        return statistics.mean(float(row[s.argmax()]) for row, s in zip(labels, scores, strict=True))
    truth, predictions = torch.cat(labels), torch.cat([*scores]) > 0
    return float(2 * (truth & predictions).sum() / (truth.sum() + predictions.sum()).clamp(min=1))


def chance(task: str, items: Sequence[Item]) -> float:
    """The metric of a trivial method: label every word a parameter, or choose a gap at random."""
    if task == TOKENS:
        return f1_or_accuracy(task, items, [torch.ones(len(item.questions)) for item in items])
    return statistics.mean(statistics.mean(float(q.label) for q in item.questions) for item in items)


def draw(functions: Sequence[Function], count: int, seed: int) -> list[Function]:
    """Draws `count` functions. With the same seed, a smaller draw is a prefix of a larger one."""
    order = torch.randperm(len(functions), generator=torch.Generator().manual_seed(seed))
    return [functions[i] for i in order[:count].tolist()]


def choose_hyperparameter(
    task: str, arm: str, items: list[Item], attempt: Callable[[float, list[Item], list[Item]], Attempt]
) -> float:
    """Returns the learning rate, or the `C`, that is best on the last fifth of the items."""
    split = len(items) - len(items) // 5
    values = {}
    for hyperparameter in HYPERPARAMETERS[arm]:
        try:
            scores = attempt(hyperparameter, items[:split], items[split:]).scores
            values[hyperparameter] = f1_or_accuracy(task, items[split:], scores)
        except NonFiniteLossError:
            values[hyperparameter] = 0.0
    return max(values, key=lambda hyperparameter: values[hyperparameter])


def print_scores(title: str, rows: list[dict[str, Any]]) -> None:
    """Prints the mean and the standard deviation over the seeds for each method."""
    table = Table(box=None, padding=(0, 1), header_style="dim")
    table.add_column(title, min_width=34)
    table.add_column("F1" if rows[0]["task"] == TOKENS else "accuracy", justify="right")
    for arm in ARMS:
        values = [row["score"] for row in rows if row["arm"] == arm]
        std = f" ± {statistics.stdev(values):.1%}" if len(values) > 1 else ""
        table.add_row(arm, f"{statistics.mean(values):.1%}{std}")
    console.print(table)
    console.print()


def count_trained(model: Model) -> int:
    """The number of parameters that are trained."""
    return sum(p.numel() for p in model.parameters() if p.requires_grad)


def fingerprints(record: dict[str, Any]) -> dict[str, Callable[[], Fingerprint]]:
    """
    Returns one function per task, which computes the task's fingerprint. The function trains a network from
    scratch, because the repository doesn't contain the pretrained model.
    """
    return {task: partial(take_task_fingerprint, record, task) for task in TASKS}


def take_task_fingerprint(record: dict[str, Any], task: str) -> Fingerprint:
    """Trains for 32 steps on 100 docstrings in float32 on one thread, and evaluates on 50 items."""
    backbone = random_backbone(record["configuration"]["model"])
    functions, test = read_functions()
    train_items = make_items(task, backbone.tokenizer, draw(functions, 100, 0), MAX_LENGTH)[:128]
    test_items = make_items(task, backbone.tokenizer, test, MAX_LENGTH)[:50]
    with single_thread():
        scores, losses = run_arm(
            backbone, task, FROM_SCRATCH, 32, 0, 1e-3, train_items, test_items, precision="float32"
        )
    loss = torch.cat(scores).square().mean().item()
    return {"steps": len(losses), "losses": losses, "evaluation": {"loss": loss}, **machine()}


@exit_on_bad_input()
def main(argv: list[str] | None = None) -> None:
    """Compare full fine-tuning, LoRA, training from scratch and a logistic regression on two tasks."""
    options = parse(Options, Options(), main.__doc__ or "", sys.argv[1:] if argv is None else argv)
    start_time = time.monotonic()
    check_scikit_learn_is_here()
    if options.record is not None:
        check_record(options.record, "parameters/finetune_parameters")
    check_range(options, "seeds", "steps")
    check_label_counts("labels", options.labels, FEWEST_LABELS)
    device = choose_device(options.device)
    folder = options.model or find_newest_model(Path("logs"))
    backbone = load_backbone(folder, device)
    # Check that the weights fit before anything is trained.
    counts = {arm: count_trained(build_model(backbone, TOKENS, arm)) for arm in (PRETRAINED, LORA)}
    longest = min(MAX_LENGTH, backbone.config.max_position_embeddings)
    with console.status("reading the docstrings"):
        train_functions, test_functions = read_functions()
        tests = {task: make_items(task, backbone.tokenizer, test_functions, longest) for task in TASKS}
    sizes = [
        parse_label_count(word, "the training set", len(train_functions), FEWEST_LABELS)
        for word in options.labels
    ]
    with console.status("choosing the labeled docstrings"):
        train_items = {
            (task, count, seed): make_items(
                task, backbone.tokenizer, draw(train_functions, count, seed), longest
            )
            for task, count, seed in product(TASKS, sizes, range(options.seeds))
        }
        tuning_items = {
            (task, count): make_items(task, backbone.tokenizer, draw(train_functions, count, 0), longest)
            for task, count in product(TASKS, sorted({min(size, MAX_TUNING_LABELS) for size in sizes}))
        }
    for (task, count, seed), items in train_items.items():
        if not items:
            raise ValueError(
                f"labels is {count}, and seed {seed} draws no docstring for the {task} task that fits in "
                f"{longest} tokens; use more labels"
            )
    for (task, count), items in tuning_items.items():
        if len(items) < 5:
            raise ValueError(
                f"only {len(items)} of {count} docstrings fit the {task} task in {longest} tokens, and the "
                "choice of a learning rate needs 5; use more labels, or a model with more positions"
            )

    sampled = {task: make_items(task, backbone.tokenizer, train_functions, longest) for task in TASKS}
    details = {
        "docstrings": f"{len(train_functions):,} for training, {len(test_functions):,} for testing",
        "items": ", ".join(f"{task} {len(sampled[task]):,} and {len(tests[task]):,}" for task in TASKS),
        "to beat": f"F1 {chance(TOKENS, tests[TOKENS]):.1%}, by labeling every word a parameter, and "
        f"{chance(SPAN, tests[SPAN]):.1%}, by guessing a gap",
        "model": display_path(folder),
        "trained": f"{counts[PRETRAINED]:,} parameters, with LoRA {counts[LORA]:,}",
    }
    header("finetune_parameters: which words of a docstring are parameters?", details)

    table: list[dict[str, Any]] = []
    hyperparameters: dict[tuple[str, str, int], float] = {}
    for task, count in product(TASKS, sizes):
        for arm, seed in product(ARMS, range(options.seeds)):
            with console.status(f"{task}, {count:,} docstrings, {arm}, seed {seed}"):
                run_start = time.monotonic()
                attempt = partial(run_arm, backbone, task, arm, options.steps)
                key = (task, arm, min(count, MAX_TUNING_LABELS))
                if key not in hyperparameters:
                    tuning = tuning_items[task, key[2]]
                    hyperparameters[key] = choose_hyperparameter(task, arm, tuning, partial(attempt, 0))
                tuning_seconds = time.monotonic() - run_start
                train = train_items[task, count, seed]
                result = attempt(seed, hyperparameters[key], train, tests[task])
                table.append(
                    {
                        "task": task,
                        "arm": arm,
                        "labels": count,
                        "seed": seed,
                        "items": len(train),
                        "score": f1_or_accuracy(task, tests[task], result.scores),
                        "hyperparameter": hyperparameters[key],
                        "tuning_seconds": tuning_seconds,
                        "seconds": time.monotonic() - run_start - tuning_seconds,
                        "losses": average_losses(result.losses),
                    }
                )
        print_scores(f"{task}, {count:,} labeled docstrings", table[-len(ARMS) * options.seeds :])

    words = ["--labels", *options.labels, *f"--seeds {options.seeds} --steps {options.steps}".split()]
    record = {
        **describe_run("parameters/finetune_parameters", words, device),
        "configuration": {
            "model": asdict(backbone.config),
            "epochs": EPOCHS,
            "steps": options.steps,
            "rank": RANK,
            "hyperparameters": HYPERPARAMETERS,
            "max_length": longest,
            "seeds": options.seeds,
        },
        "pretrained": backbone.pretraining,
        "tasks": {
            task: {
                "train": len(sampled[task]),
                "test": len(tests[task]),
                "test_questions": sum(len(item.questions) for item in tests[task]),
                "chance": chance(task, tests[task]),
            }
            for task in TASKS
        },
        "train_docstrings": len(train_functions),
        "test_docstrings": len(test_functions),
        "trained_parameters": counts,
        "table": table,
    }
    finish(options.record, record, start_time)


if __name__ == "__main__":
    main()
