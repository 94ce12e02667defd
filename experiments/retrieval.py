r"""
# Do similar texts get similar vectors?

A good vector for a text should help you find related texts. Docstrings let you test that: by convention,
the first paragraph is a summary, and the rest is a description. This script takes descriptions from held-out
documents, and looks for the right summary among all held-out summaries. It compares five methods:

- **TF-IDF**: one dimension for each word, and no network. Rare words count more.
- **mean pooling**: the mean of the last hidden states of a pretrained encoder.
- **mean pooling, whitened**: the same vectors after `Whitening`, which is fitted to training texts.
- **SimCSE**: mean pooling after 100 steps of `train_simcse` on training texts, without any labels.
- **SimCSE on pairs**: the same loss, but each training summary is paired with its own description. So only
  this encoder has been trained on the task itself.

A description can give its summary away. If a description repeats the summary word for word, we drop the pair.
We also drop near copies of other docstrings (see `docstring_tasks.py`). All test texts are from held-out
documents of `python-docs`, and no training text is equal to one of them.

We chose the learning rate with `--validate`, which takes the test pairs from the training documents instead.
In unrecorded trials of 60 steps, we saw no clear difference between 1e-3 and 3e-4, and we use 1e-3.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))  # Find the package without installing it.
from labml_bert.run import preflight  # noqa: F401  # isort: skip

import copy
import random
import statistics
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from rich.table import Table
from tokenizers import Tokenizer
from torch import Tensor

from labml_bert.backbone import check_python_docs, load_model_and_state
from labml_bert.baselines.tfidf import check_scikit_learn_is_here, words
from labml_bert.data.docstring_tasks import Docstring, distinct_docstrings
from labml_bert.embed import (
    Model,
    cosines,
    embed,
    fit_whitening,
    mean_cosine,
    mrr_and_recall,
    ranks,
    train_simcse,
)
from labml_bert.fill_mask import newest_run
from labml_bert.labeled_text import Example
from labml_bert.run.record import check_range, check_record, describe_run, describe_training, finish
from labml_bert.run.terminal import exit_on_bad_input
from labml_bert.stdout import OneLineParser, console, display_path

# A summary must have at least this many words: "Constructor." would fit many descriptions.
FEWEST_WORDS = 4
LEARNING_RATE = 1e-3
BATCH_SIZE = 64

Pair = tuple[str, str]


class Split(NamedTuple):
    """Pairs of a description and its summary, to train on and to test with."""

    train: list[Pair]
    test: list[Pair]


def split_pairs(docstrings: Sequence[Docstring]) -> Split:
    """
    ## Descriptions and summaries

    Returns the pairs of all docstrings that have both parts. Leaves out a pair if its summary is too short or
    is repeated in the description, or if a part is equal to a part of an earlier pair. The test set consists
    of the pairs that pretraining on `python-docs` hasn't seen.
    """
    train: list[Pair] = []
    test: list[Pair] = []
    earlier: set[str] = set()
    # Start with the test pairs, so that a training pair with the same text as a test pair is left out.
    for docstring in sorted(docstrings, key=lambda docstring: not docstring.unseen):
        summary, _, description = (" ".join(p.split()) for p in docstring.text.strip().partition("\n\n"))
        repeats = summary.lower().rstrip(".") in description.lower()
        is_summary = len(summary.split()) >= FEWEST_WORDS and not repeats
        if is_summary and description and not earlier & {summary, description}:
            earlier |= {summary, description}
            (test if docstring.unseen else train).append((description, summary))
    return Split(train, test)


def hold_out(train: list[Pair], count: int) -> Split:
    """Splits the training pairs: `count` random pairs become a test set for choosing hyperparameters."""
    order = random.Random(0).sample(train, len(train))
    return Split(order[count:], order[:count])


def tfidf_vectors(documents: list[str], queries: list[str]) -> tuple[Tensor, Tensor]:
    """
    ## The baseline

    Returns the TF-IDF vectors of `queries`, `(Q, V)`, and of `documents`, `(N, V)`. Words that only queries
    contain are left out. As in `tfidf.py`, the weight of a word grows only logarithmically with its count in
    a text.
    """
    from sklearn.feature_extraction.text import TfidfVectorizer

    vectorizer = TfidfVectorizer(analyzer=lambda text: words(Example(text, 0)), sublinear_tf=True)
    vectors = vectorizer.fit_transform(documents)
    query_vectors = vectorizer.transform(queries)
    return torch.from_numpy(query_vectors.toarray()).float(), torch.from_numpy(vectors.toarray()).float()


class Result(NamedTuple):
    """How well one method finds the summaries."""

    ranks: Tensor
    """The rank of the right summary for each description, `(Q,)`; 1 is best."""
    mrr: float
    recall: float
    """The fraction of descriptions whose summary is among the top 10."""
    mean_cosine: float
    """The mean cosine over all pairs of two different summaries."""


def evaluate(queries: Tensor, candidates: Tensor) -> Result:
    """Ranks all candidates for each query. Candidate `i` is the right one for query `i`."""
    positions = ranks(cosines(queries, candidates))
    return Result(positions, *mrr_and_recall(positions), mean_cosine(candidates))


def compare(
    model: Model, tokenizer: Tokenizer, split: Split, seeds: int, steps: int, learning_rate: float
) -> dict[str, list[Result]]:
    """
    ## The comparison

    Returns the results of each method: one per seed for the two SimCSE methods, and a single one for each of
    the other methods.

    Raises the errors of `train_simcse`.
    """
    queries, candidates = ([pair[i] for pair in split.test] for i in (0, 1))
    train_texts = [text for pair in split.train for text in pair]
    query_vectors, document_vectors = tfidf_vectors(candidates + train_texts, queries)
    results = {"TF-IDF": [evaluate(query_vectors, document_vectors[: len(candidates)])]}
    q, c = (embed(model, tokenizer, texts) for texts in (queries, candidates))
    results["mean pooling"] = [evaluate(q, c)]
    whiten = fit_whitening(embed(model, tokenizer, train_texts))
    results["mean pooling, whitened"] = [evaluate(whiten(q), whiten(c))]
    for name, pairs in {
        "SimCSE": [(text, text) for text in train_texts],
        "SimCSE on pairs": split.train,
    }.items():
        results[name] = []
        for seed in range(seeds):
            seed_model = copy.deepcopy(model)
            train_simcse(seed_model, tokenizer, pairs, learning_rate, steps, BATCH_SIZE, seed=seed)
            results[name].append(
                evaluate(*(embed(seed_model, tokenizer, texts) for texts in (queries, candidates)))
            )
            console.print(f"  {name}, seed {seed}: MRR {results[name][-1].mrr:.3f}", style="dim")
    return results


def difference(results: list[Result], baseline: list[Result]) -> dict[str, float]:
    """
    ## Is it luck?

    Several seeds show how much a result varies with the randomness in training, but not how much it depends
    on the choice of texts. So we also compare two methods query by query. This function averages each query's
    reciprocal rank over the seeds. It returns the mean over the queries of `results` minus `baseline`, with
    its 95% confidence interval.
    """
    a, b = (torch.stack([1 / r.ranks.double() for r in one]).mean(0) for one in (results, baseline))  # (Q)
    mean, half = (a - b).mean().item(), 1.96 * (a - b).std().item() / len(a) ** 0.5
    return {"mean": mean, "low": mean - half, "high": mean + half}


def with_std(values: Sequence[float], form: str) -> str:
    """Formats the mean of `values` and, if there are several, their standard deviation."""
    std = f" ± {statistics.stdev(values):{form}}" if len(values) > 1 else ""
    return f"{statistics.mean(values):{form}}{std}"


def print_results(results: dict[str, list[Result]]) -> None:
    """Prints a table with a row for each method."""
    table = Table(box=None, padding=(0, 2), header_style="dim")
    table.add_column("method")
    for column in ("MRR", "recall at 10", "mean cosine"):
        table.add_column(column, justify="right")
    for name, rows in results.items():
        cells = with_std([r.mrr for r in rows], ".3f"), with_std([r.recall for r in rows], ".1%")
        table.add_row(name, *cells, f"{statistics.mean(r.mean_cosine for r in rows):.3f}")
    console.print()
    console.print(table)
    console.print()


@exit_on_bad_input()
def main(argv: list[str] | None = None) -> None:
    """Parses the command line, compares the methods and, with `--record`, writes a record."""
    start_time = time.monotonic()
    parser = OneLineParser(description="Find the summary of each description by comparing vectors.")
    parser.add_argument("--run", type=Path, help="folder of a run or a model (default: newest trained run)")
    parser.add_argument("--seeds", type=int, default=3, help="number of seeds for SimCSE (default: 3)")
    parser.add_argument("--steps", type=int, default=100, help="training steps of SimCSE (default: 100)")
    default = f"peak learning rate of SimCSE (default: {LEARNING_RATE:g})"
    parser.add_argument("--learning-rate", type=float, default=LEARNING_RATE, help=default)
    parser.add_argument("--validate", action="store_true", help="test on pairs from the training documents")
    parser.add_argument("--record", type=Path, metavar="FILE", help="write the result as JSON")
    options = parser.parse_args(argv)
    check_scikit_learn_is_here()
    check_range(options, "seeds", "steps")
    if not 0 < options.learning_rate < 1:
        raise ValueError(f"learning_rate is {options.learning_rate:g}; it must be between 0 and 1")
    run_path = options.run or newest_run(Path("logs"))
    if options.record is not None:
        check_record(options.record, "retrieval")
    # A record has to say how the model was trained, and only the checkpoint of a run says so.
    model, tokenizer, run_state = load_model_and_state(run_path, is_required=options.record is not None)
    check_python_docs(run_state["configuration"] if run_state else {})
    split = split_pairs(distinct_docstrings())
    if options.validate:
        split = hold_out(split.train, len(split.test))
    console.print(f"\n  model {display_path(run_path)}", style="dim")
    console.print(f"  {len(split.test)} descriptions and as many summaries to choose from", style="dim")
    console.print(f"  {len(split.train)} pairs to train on\n", style="dim")
    results = compare(model, tokenizer, split, options.seeds, options.steps, options.learning_rate)
    print_results(results)
    record: dict[str, Any] = {}
    if run_state is not None:
        arguments = [f"--seeds={options.seeds}", f"--steps={options.steps}"]
        arguments += [f"--learning-rate={options.learning_rate:g}"] + ["--validate"] * options.validate
        record = {
            **describe_run("retrieval", arguments, torch.device("cpu")),
            **describe_training(run_state),
            "result": {
                "test_pairs": len(split.test),
                "train_pairs": len(split.train),
                "example": split.test[0],
                "retrieval": {
                    name: {field: [getattr(r, field) for r in rows] for field in Result._fields[1:]}
                    for name, rows in results.items()
                },
                "simcse_minus": {
                    name: difference(results["SimCSE"], rows)
                    for name, rows in results.items()
                    if name != "SimCSE"
                },
            },
        }
    finish(options.record, record, start_time)


if __name__ == "__main__":
    main()
