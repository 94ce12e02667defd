r"""
# What pretraining is worth

Does an encoder that has read plain text need fewer labels? Two tasks whose labels every Python installation
carries, and three ways to learn each from the same labelled texts:

- **pretrained**: a classifier on top of a model that this project pretrained, everything trained on.
- **from scratch**: the same sizes, the same tokenizer, the same recipe, weights that know nothing.
- **bag of words**: which words occur, and no network.

The first task, *package*, asks which of 20 packages a docstring is from, at 100 labels, 1,000, and all.
The second, *summary*, asks of two texts whether one sums up the other.

Each method chooses its one number on a fifth of the labelled texts, never on the test: the bag of words
its penalty for each seed, a network its learning rate on those of the first seed, to save time. Where
there are more than 1,000 labels a network takes the rate that won at 1,000. A seed decides which texts are
labelled, in which order they come and what the new weights are; the texts of a seed are the same for all
methods.

**What pretraining has seen.** The texts of *package* are from the library that `python-docs` is made of.
A model of that corpus has read most of them, though never a label; the scores on those that it has not
read have a column of their own. The bag of words sees whole texts, the networks the first 48 tokens of
one, or 64 of a pair.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))  # A clone runs without being installed.
from labml_bert.run import script  # noqa: F401  # isort: skip

import itertools
import statistics
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from rich.table import Table
from tokenizers import Tokenizer
from torch import Tensor

from labml_bert.baselines.tfidf import check_scikit_learn_is_here, tune
from labml_bert.bert import BertConfig
from labml_bert.data.docstring_tasks import Task, distinct_docstrings, package_task, summary_task
from labml_bert.data.tokenizers import load_tokenizer
from labml_bert.finetuning import (
    FRESH,
    BertForSequenceClassification,
    Example,
    choose,
    encode_examples,
    fine_tune,
    predict,
    score,
)
from labml_bert.models import fill, read_config, read_tensors
from labml_bert.run.record import at_least_one, check_record, finish, record_head
from labml_bert.run.terminal import OneLineParser, bad_input_ends_here, console, header, shown
from labml_bert.training.checkpoint import load_checkpoint
from labml_bert.training.device import choose_device
from labml_bert.training.trainer import NonFiniteLossError

# For a few million parameters, or fewer; see `finetuning.fine_tune`.
RATES = (1e-4, 3e-4, 1e-3, 3e-3)
EPOCHS = 4
MAX_LENGTH = {"package": 48, "summary": 64}
# Above this a second, longer search would cost more than the training itself.
TUNED_UP_TO = 1000


class Row(NamedTuple):
    """One line of the record: one method on one set of labelled texts."""

    task: str
    arm: str
    labels: int
    seed: int
    accuracy: float
    macro_f1: float
    # On test texts that pretraining on `python-docs` has not seen.
    unseen_accuracy: float
    # The learning rate that was chosen, where there is one.
    learning_rate: float | None
    # From the drawn labels to the score; with seed 0 the choice of that number is in it.
    seconds: float
    # Mean training loss of each twentieth of the steps.
    losses: list[float]


class Network:
    """
    ## The two networks

    A folder with a pretrained model, and what is built in its image. A pretrained model starts from the
    folder's weights, one from scratch from random ones. Dropout is 0.1, as published, also where
    pretraining had none.

    Raises `ValueError` where the folder holds no model, no tokenizer, or one of another size.
    """

    def __init__(self, folder: Path, device: torch.device, steps: int):
        sizes = read_config(folder)
        self.config: BertConfig = replace(sizes, hidden_dropout_prob=0.1, attention_probs_dropout_prob=0.1)
        self.tokenizer: Tokenizer = load_tokenizer(folder / "tokenizer.json", sizes.vocab_size)
        self.tensors = read_tensors(folder)
        self.folder, self.device, self.steps = folder, device, steps
        # What does not fit is found here, before anything is trained.
        self.build(["a", "b"], pretrained=True)

    def build(self, labels: list[str], pretrained: bool) -> BertForSequenceClassification:
        """A classifier that has not met its task."""
        model = BertForSequenceClassification(self.config, labels)
        if pretrained:
            fill(model, self.tensors, self.folder / "model.safetensors", FRESH)
        return model.to(self.device)

    def train(
        self, task: Task, examples: list[Example], rate: float, seed: int, pretrained: bool
    ) -> tuple[Callable[[list[Example]], Tensor], list[float]]:
        """A function from texts to scores `(N, K)`, and the losses on the way to it."""
        length = min(MAX_LENGTH[task.name], self.config.max_position_embeddings)
        torch.manual_seed(seed)
        model = self.build(task.labels, pretrained)
        rows = encode_examples(self.tokenizer, examples, length)
        losses = fine_tune(model, rows, rate, EPOCHS, self.steps, seed=seed)
        return lambda texts: predict(model, encode_examples(self.tokenizer, texts, length)), losses


def draw(task: Task, count: int, seed: int) -> list[Example]:
    """The labelled texts of a seed; a smaller set is the beginning of a larger one."""
    generator = torch.Generator().manual_seed(seed)
    return [task.train[i] for i in torch.randperm(len(task.train), generator=generator)[:count].tolist()]


def thinned(losses: list[float], points: int = 20) -> list[float]:
    """Means of equal parts of `losses`, `points` of them, or each loss where there are fewer."""
    if not losses:
        return []
    points = min(points, len(losses))
    edges = [len(losses) * i // points for i in range(points + 1)]
    return [round(statistics.mean(losses[a:b]), 4) for a, b in itertools.pairwise(edges)]


class Comparison:
    """
    ## Three methods on the same texts

    Collects the rows of the record.
    """

    def __init__(self, network: Network, seeds: int):
        self.network, self.seeds = network, seeds
        self.rows: list[Row] = []
        # The rate that won, by task, method and whether labels are few.
        self.rates: dict[tuple[str, bool, int], float] = {}

    def rate(self, task: Task, count: int, pretrained: bool) -> float:
        """The learning rate for so many labels, chosen on those of seed 0, once."""
        count = min(count, TUNED_UP_TO)
        key = (task.name, pretrained, count)
        if key not in self.rates:

            def attempt(rate: float, rest: list[Example], fifth: list[Example]) -> Tensor:
                try:
                    return self.network.train(task, rest, rate, 0, pretrained)[0](fifth)
                except NonFiniteLossError:
                    # A rate that is too high has lost.
                    return torch.zeros(len(fifth), len(task.labels))  # (N, K)

            self.rates[key] = choose(RATES, draw(task, count, 0), attempt)
        return self.rates[key]

    def run(self, task: Task, count: int) -> None:
        """All methods and seeds at one number of labels, and a line of the table for each method."""
        for arm in ("pretrained", "from scratch", "bag of words"):
            for seed in range(self.seeds):
                with console.status(f"{task.name}, {count:,} labels, {arm}, seed {seed}"):
                    self.rows.append(self.one(task, count, arm, seed))

    def one(self, task: Task, count: int, arm: str, seed: int) -> Row:
        """One method, trained and tested."""
        began = time.monotonic()
        examples = draw(task, count, seed)
        rate: float | None = None
        losses: list[float] = []
        if arm == "bag of words":
            logits = tune(examples, len(task.labels), seed).predict(task.test)
        else:
            pretrained = arm == "pretrained"
            rate = self.rate(task, count, pretrained)
            answer, losses = self.network.train(task, examples, rate, seed, pretrained)
            logits = answer(task.test)
        labels, unseen = torch.tensor([example.label for example in task.test]), torch.tensor(task.unseen)
        whole, part = score(logits, labels), score(logits[unseen], labels[unseen])
        return Row(
            task.name,
            arm,
            count,
            seed,
            whole.accuracy,
            whole.macro_f1,
            part.accuracy,
            rate,
            time.monotonic() - began,
            thinned(losses),
        )

    def show(self, task: Task, count: int) -> None:
        """Prints the scores over the seeds."""
        table = Table(box=None, padding=(0, 1), header_style="dim")
        table.add_column(f"{task.name}, {count:,} labels", min_width=22)
        for column in ("right", "macro F1", "right, unseen"):
            table.add_column(column, justify="right")
        for arm in dict.fromkeys(row.arm for row in self.rows):
            rows = [row for row in self.rows if (row.task, row.arm, row.labels) == (task.name, arm, count)]
            columns = [[row.accuracy for row in rows], [row.macro_f1 for row in rows]]
            columns.append([row.unseen_accuracy for row in rows])
            table.add_row(arm, *map(over_seeds, columns))
        console.print(table)
        console.print()


def over_seeds(values: list[float]) -> str:
    """Mean and standard deviation; one seed has no spread."""
    spread = f" ± {statistics.stdev(values):.1%}" if len(values) > 1 else ""
    return f"{statistics.mean(values):.1%}{spread}"


def newest_model(runs: Path) -> Path:
    """
    The folder `model` of the run of `bert_tiny.py` under `runs` that was finished last. Its pooler is
    trained, and it has met pairs.

    Raises `ValueError` where there is none.
    """
    found = sorted(runs.glob("bert_tiny/*/model/config.json"), key=lambda path: path.stat().st_mtime)
    if not found:
        raise ValueError(
            f"no finished run of bert_tiny under {runs}; give --model, or make one with: "
            "python experiments/bert_tiny.py"
        )
    return found[-1].parent


def pretraining_of(folder: Path) -> dict[str, Any] | None:
    """How the model in `folder` was made, where it is one of ours and its run is still beside it."""
    try:
        saved = load_checkpoint(folder.parent)[0]
    except ValueError:
        return None
    named = {key: saved["configuration"].get(key) for key in ("experiment", "corpus_sha256", "seed")}
    return {**named, "steps": saved["step"], "seconds": saved["seconds"]}


def label_counts(words: list[str], task: Task) -> list[int]:
    """
    The numbers that `words` say, `all` for every training text of `task`.

    Raises `ValueError` where one is no number, below 5, or more than there are.
    """
    most = len(task.train)
    counts = []
    for word in words:
        if word != "all" and not word.isdecimal():
            raise ValueError(f"bad number of labels {word!r}; give numbers, or all")
        count = most if word == "all" else int(word)
        if not 5 <= count <= most:
            raise ValueError(
                f"{count} labels for {task.name}; it has {most} training texts, choose from 5 to that"
            )
        counts.append(count)
    return counts


def about(task: Task) -> dict[str, Any]:
    """What a reader has to know of a task to judge a score."""
    counts = [sum(example.label == i for example in task.train) for i in range(len(task.labels))]
    return {
        "train": len(task.train),
        "test": len(task.test),
        "test_unseen": sum(task.unseen),
        "chance": task.chance,
        "train_texts_by_label": dict(zip(task.labels, counts, strict=True)),
    }


def main(argv: list[str] | None = None) -> None:
    """Reads the command line, compares the three methods, and writes the record if asked."""
    parser = OneLineParser(description="Compare a pretrained model with less on labelled docstrings.")
    parser.add_argument("--model", type=Path, help="folder of a model (default: of the newest bert_tiny)")
    parser.add_argument(
        "--labels",
        nargs="+",
        default=["100", "1000", "all"],
        help="labels of package (default: 100 1000 all)",
    )
    parser.add_argument("--pairs", default="1000", help="labels of summary (default: 1000)")
    parser.add_argument("--seeds", type=int, default=3, help="repetitions (default: 3)")
    parser.add_argument("--steps", type=int, default=200, help="fewest steps of a training (default: 200)")
    parser.add_argument("--device", default="auto", help="cpu, cuda, or the GPU if there is one")
    parser.add_argument("--record", type=Path, metavar="FILE", help="write the result as JSON")
    options = parser.parse_args(argv)
    began = time.monotonic()
    with bad_input_ends_here():
        check_scikit_learn_is_here()
        if options.record is not None:
            check_record(options.record)
        at_least_one(options, "seeds", "steps")
        device = choose_device(options.device)
        folder = options.model or newest_model(Path("logs"))
        network = Network(folder, device, options.steps)
        with console.status("reading the text"):
            docstrings = distinct_docstrings()
            package, summary = package_task(docstrings), summary_task(docstrings)
        work = [(package, count) for count in label_counts(options.labels, package)]
        work += [(summary, count) for count in label_counts([options.pairs], summary)]

    model = network.build(package.labels, pretrained=True)
    counts = [sum(example.label == i for example in package.train) for i in range(len(package.labels))]
    header(
        "finetune_docstrings: what pretraining is worth",
        {
            **{
                task.name: f"{len(task.train):,} texts to learn from, {len(task.test):,} to be tested on "
                f"({sum(task.unseen)} unseen)"
                for task in (package, summary)
            },
            "classes": f"{len(package.labels)} packages of {min(counts)} to {max(counts)} texts each",
            "to beat": f"{package.chance:.1%} and {summary.chance:.1%}, by always saying one class",
            "network": f"{sum(p.numel() for p in model.parameters()):,} parameters, "
            f"{network.config.num_hidden_layers} layers, {network.config.hidden_size} wide",
            "model": shown(folder),
        },
    )
    comparison = Comparison(network, options.seeds)
    with bad_input_ends_here():
        for task, count in work:
            comparison.run(task, count)
            comparison.show(task, count)
    words = ["--labels", *options.labels, "--pairs", options.pairs]
    words += ["--seeds", str(options.seeds), "--steps", str(options.steps)]
    record = {
        **record_head("finetune_docstrings", words, device),
        "configuration": {
            "model": network.config.__dict__,
            "epochs": EPOCHS,
            "steps": options.steps,
            "rates": RATES,
            "max_length": MAX_LENGTH,
            "seeds": options.seeds,
        },
        "pretrained": pretraining_of(folder),
        "tasks": {task.name: about(task) for task in (package, summary)},
        "parameters": sum(p.numel() for p in model.parameters()),
        "table": [row._asdict() for row in comparison.rows],
    }
    with bad_input_ends_here():
        finish(options.record, record, began)


if __name__ == "__main__":
    main()
