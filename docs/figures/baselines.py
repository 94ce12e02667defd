"""
# A model beside its baselines

Is a loss of 0.7 good? The table of a chapter sets a run next to the baselines of its record, with the
perplexity of each: the exponential of the loss.
"""

import math

from docs.figures.records import Record
from docs.literate.rows import PageError

METHODS = {
    "uniform": "uniform: all tokens equally likely",
    "unigram": "unigram: how often each token occurs",
    "two-neighbor n-gram": "two-neighbor n-gram: how often each token occurs between the same two neighbors",
}


def baseline_table(record: Record) -> str:
    """Loss, perplexity and accuracy of each baseline and of the model, as a Markdown table."""
    rows = [(METHODS.get(one["name"], one["name"]), one) for one in record.data["baselines"]]
    rows.append(("**the model**", record.data["result"]))
    table = "| method | loss, nats | perplexity | accuracy |\n|---|---:|---:|---:|\n"
    for method, one in rows:
        loss, accuracy = one["loss"], one["accuracy"]
        table += f"| {method} | {loss:.2f} | {math.exp(loss):.1f} | {accuracy:.0%} |\n"
    return table


def perplexity(record: Record, baseline: str = "") -> float:
    """
    The exponential of the held-out loss of a run, or of one of its baselines.

    Raises `PageError` if the run has no such baseline.
    """
    if not baseline:
        return math.exp(record.data["result"]["loss"])
    losses = {one["name"]: one["loss"] for one in record.data["baselines"]}
    if baseline not in losses:
        raise PageError(f"the run {record.name} has no baseline {baseline!r}; it has {', '.join(losses)}")
    return math.exp(losses[baseline])
