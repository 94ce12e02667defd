r"""
# What is pretraining worth?

Does an encoder that was pretrained on plain text need fewer labels than one trained from scratch? This
experiment compares three ways to learn a task from the same labeled texts:

- **pretrained**: fine-tune a model that this project pretrained, with a classifier on top.
- **from scratch**: train the same network with the same tokenizer and recipe, but start from random weights.
- **bag of words**: train a linear model on the counts of the words, without a network.

There are two tasks, and their labels come with Python. In *package*, the model predicts which of 20 packages
a docstring is from. In *summary*, the model predicts whether the first of two texts summarizes the second.

We tune one hyperparameter of each method: the learning rate of a network, or the penalty of the bag of words.
We choose this hyperparameter on a fifth of the labeled texts, never on the test set. We choose the penalty
separately for each seed. To save time, we choose the learning rate only on the texts of the first seed. With
more than 1,000 labels, the networks use the learning rate that was best with 1,000 labels.

The seed determines which texts are labeled. For the networks, it also determines the order of the texts, the
random initial weights and the dropout masks. With the same seed, all methods get the same texts.

**What pretraining has seen.** The texts of *package* are docstrings of the standard library, which are also
part of the corpus `python-docs`. A model that was pretrained on this corpus has read most of these texts,
though never their labels. So the table has a column for the test texts that such a model hasn't read.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))  # Find the package without installing it.
from labml_bert.run import preflight  # noqa: F401  # isort: skip

import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from itertools import product
from typing import Any

import torch
import torch.nn.functional as F
from rich.table import Table
from torch import Tensor

from labml_bert.backbone import (
    Backbone,
    check_label_counts,
    find_newest_model,
    load_backbone,
    parse_label_count,
    random_backbone,
)
from labml_bert.baselines.tfidf import check_scikit_learn_is_here, tune
from labml_bert.data.docstring_tasks import Task, distinct_docstrings, package_task, summary_task
from labml_bert.finetuning import choose_learning_rate, encode_examples, fine_tune, predict
from labml_bert.heads import NEW_PARAMETERS, BertForSequenceClassification
from labml_bert.labeled_text import Example, score
from labml_bert.model_folder import load_weights
from labml_bert.run.fingerprint import Fingerprint, machine, single_thread
from labml_bert.run.options import parse
from labml_bert.run.record import average_losses, check_range, check_record, describe_run, finish
from labml_bert.run.terminal import exit_on_bad_input, header
from labml_bert.stdout import console, display_path
from labml_bert.training.device import Precision, choose_device

PRETRAINED, FROM_SCRATCH, BAG_OF_WORDS = ARMS = ("pretrained", "from scratch", "bag of words")
# The models of `bert_tiny.py` are small, so they need a higher learning rate than the 2e-5 to 5e-5 of BERT
# base. Which of the values below is best depends on the task and on the number of labels.
LEARNING_RATES = (1e-4, 3e-4, 1e-3, 3e-3)
# The paper tried up to four epochs.
EPOCHS = 4
# The networks see at most this many tokens of a text or a pair, special tokens included. A docstring often
# starts with what matters most, and longer sequences take more time. The bag of words sees whole texts.
MAX_LENGTH = {"package": 48, "summary": 64}
# To save time, we search for the learning rate with at most this many labels.
MAX_TUNING_LABELS = 1000
FEWEST_LABELS = 5


@dataclass(frozen=True)
class Options:
    """The options on the command line."""

    model: Path | None = None
    """Folder of a pretrained model. Default: the newest model of bert_tiny.py under logs."""
    labels: tuple[str, ...] = ("100", "1000", "all")
    """Numbers of labeled texts to compare on the task package. The word all stands for all of them."""
    pairs: str = "1000"
    """Number of labeled pairs for the task summary."""
    seeds: int = 3
    """Number of seeds. You need at least three to see how much of a difference is luck."""
    steps: int = 200
    """Minimum number of training steps. Four epochs of 100 texts are 16 steps, too few to learn much."""
    device: str = "auto"
    """cpu, cuda, or auto, which is the GPU if there is one."""
    record: Path | None = None
    """Write the result to this file, as JSON."""


def build_classifier(backbone: Backbone, labels: list[str], arm: str) -> BertForSequenceClassification:
    """
    Returns a classifier to fine-tune. If `arm` is `pretrained`, the classifier's encoder gets the pretrained
    weights. All other weights are random.

    Raises `ValueError` if the weights don't fit the configuration.
    """
    model = BertForSequenceClassification(backbone.config, labels)
    if arm == PRETRAINED:
        load_weights(model, backbone.tensors, backbone.folder / "model.safetensors", NEW_PARAMETERS)
    return model.to(backbone.device)


def train_and_predict(
    backbone: Backbone,
    task: Task,
    arm: str,
    learning_rate: float,
    train: list[Example],
    test: list[Example],
    seed: int,
    min_steps: int,
    precision: Precision = "auto",
) -> tuple[Tensor, list[float]]:
    """Fine-tunes a network. Returns its logits for `test`, `(N, K)`, and the loss of each step."""
    length = min(MAX_LENGTH[task.name], backbone.config.max_position_embeddings)
    torch.manual_seed(seed)
    model = build_classifier(backbone, task.labels, arm)
    rows = encode_examples(backbone.tokenizer, train, length)
    losses = fine_tune(model, rows, learning_rate, EPOCHS, min_steps, seed=seed, precision=precision)
    return predict(model, encode_examples(backbone.tokenizer, test, length)), losses


def tune_learning_rate(backbone: Backbone, task: Task, arm: str, count: int, min_steps: int) -> float:
    """Returns the learning rate that is best with `count` labels, on a fifth of the texts of seed 0."""

    def attempt(learning_rate: float, train: list[Example], validation: list[Example]) -> Tensor:
        return train_and_predict(backbone, task, arm, learning_rate, train, validation, 0, min_steps)[0]

    return choose_learning_rate(LEARNING_RATES, task.draw(count, 0), len(task.labels), attempt)


def print_scores(title: str, rows: list[dict[str, Any]]) -> None:
    """Prints each method's mean scores over the seeds and, if there are several seeds, their std."""
    table = Table(box=None, padding=(0, 1), header_style="dim")
    table.add_column(title, min_width=22)
    for column in ("accuracy", "macro F1", "accuracy, unseen"):
        table.add_column(column, justify="right")
    for arm in ARMS:
        cells = []
        for metric in ("accuracy", "macro_f1", "unseen_accuracy"):
            values = [row[metric] for row in rows if row["arm"] == arm]
            std = f" ± {statistics.stdev(values):.1%}" if len(values) > 1 else ""
            cells.append(f"{statistics.mean(values):.1%}{std}")
        table.add_row(arm, *cells)
    console.print(table)
    console.print()


def fingerprints(record: dict[str, Any]) -> dict[str, Callable[[], Fingerprint]]:
    """
    Returns, for each task, a function that takes the task's fingerprint. The function trains the tokenizer
    again and a model from scratch, because the repository doesn't contain the pretrained model.
    """
    return {name: partial(take_task_fingerprint, record, name) for name in record["tasks"]}


def take_task_fingerprint(record: dict[str, Any], name: str) -> Fingerprint:
    """Trains for 32 steps on 100 texts, in float32 on one thread, and evaluates on up to 100 test texts."""
    backbone = random_backbone(record["configuration"]["model"])
    task = {"package": package_task, "summary": summary_task}[name](distinct_docstrings())
    train, test = task.draw(100, 0), task.test[:100]
    with single_thread():
        logits, losses = train_and_predict(
            backbone,
            task,
            FROM_SCRATCH,
            LEARNING_RATES[-2],
            train,
            test,
            0,
            min_steps=32,
            precision="float32",
        )
    loss = F.cross_entropy(logits, torch.tensor([example.label for example in test]))
    return {"steps": len(losses), "losses": losses, "evaluation": {"loss": loss.item()}, **machine()}


def main(argv: list[str] | None = None) -> None:
    """Compare a pretrained model with one from scratch and a bag of words, on labeled docstrings."""
    options = parse(Options, Options(), main.__doc__ or "", sys.argv[1:] if argv is None else argv)
    start_time = time.monotonic()
    with exit_on_bad_input():
        check_scikit_learn_is_here()
        if options.record is not None:
            check_record(options.record, "finetune_docstrings")
        check_range(options, "seeds", "steps")
        check_label_counts("labels", options.labels, FEWEST_LABELS)
        check_label_counts("pairs", [options.pairs], FEWEST_LABELS)
        device, steps = choose_device(options.device), options.steps
        folder = options.model or find_newest_model(Path("logs"))
        backbone = load_backbone(folder, device)
        with console.status("reading the text"):
            docstrings = distinct_docstrings()
            tasks = package, summary = package_task(docstrings), summary_task(docstrings)
        # Before the training starts, check that the pretrained weights fit.
        model = build_classifier(backbone, package.labels, PRETRAINED)
        work = [
            (package, parse_label_count(word, "package", len(package.train), FEWEST_LABELS))
            for word in options.labels
        ]
        work.append((summary, parse_label_count(options.pairs, "summary", len(summary.train), FEWEST_LABELS)))

        sizes = {t.name: f"{len(t.train):,} training and {len(t.test):,} test texts" for t in tasks}
        parameters = sum(p.numel() for p in model.parameters())
        details = {
            "to beat": f"{package.chance:.1%} and {summary.chance:.1%}, by always predicting one class",
            "model": f"{display_path(folder)}, {parameters:,} parameters",
        }
        header("finetune_docstrings: what pretraining is worth", sizes | details)

        table: list[dict[str, Any]] = []
        learning_rates: dict[tuple[str, str, int], float] = {}
        for task, count in work:
            labels, unseen = torch.tensor([e.label for e in task.test]), torch.tensor(task.unseen)
            for arm, seed in product(ARMS, range(options.seeds)):
                with console.status(f"{task.name}, {count:,} labels, {arm}, seed {seed}"):
                    run_start = time.monotonic()
                    examples = task.draw(count, seed)
                    learning_rate, losses = None, list[float]()
                    if arm == BAG_OF_WORDS:
                        logits = tune(examples, len(task.labels), seed).predict(task.test)
                    else:
                        key = (task.name, arm, min(count, MAX_TUNING_LABELS))
                        if key not in learning_rates:
                            learning_rates[key] = tune_learning_rate(backbone, task, arm, key[2], steps)
                        learning_rate = learning_rates[key]
                        logits, losses = train_and_predict(
                            backbone, task, arm, learning_rate, examples, task.test, seed, steps
                        )
                    table.append(
                        {
                            "task": task.name,
                            "arm": arm,
                            "labels": count,
                            "seed": seed,
                            **score(logits, labels)._asdict(),
                            # Pretraining on `python-docs` hasn't seen these test texts.
                            "unseen_accuracy": score(logits[unseen], labels[unseen]).accuracy,
                            "learning_rate": learning_rate,
                            # The seconds include training, testing and, if there was one, the search.
                            "seconds": time.monotonic() - run_start,
                            "losses": average_losses(losses),
                        }
                    )
            print_scores(f"{task.name}, {count:,} labels", table[-len(ARMS) * options.seeds :])

        words = f"--pairs {options.pairs} --seeds {options.seeds} --steps {steps}".split()
        record = {
            **describe_run("finetune_docstrings", ["--labels", *options.labels, *words], device),
            "configuration": {
                "model": asdict(backbone.config),
                "epochs": EPOCHS,
                "steps": steps,
                "learning_rates": LEARNING_RATES,
                "max_length": MAX_LENGTH,
                "seeds": options.seeds,
            },
            "pretrained": backbone.pretraining,
            "tasks": {task.name: task.describe() for task in tasks},
            "parameters": parameters,
            "table": table,
        }
        finish(options.record, record, start_time)


if __name__ == "__main__":
    main()
