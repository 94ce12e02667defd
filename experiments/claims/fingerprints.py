"""
# Fingerprints of a claim

A record is current if today's code reproduces it, and [all records](../../labml_bert/run/fingerprint.md) are
checked in the same way. A claim has one fingerprint for each arm: the run of its first seed, cut down to a
few steps.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from experiments.claims.options import GivenOptions, read_options
from experiments.claims.training import prepare, train
from labml_bert.run.fingerprint import STEPS, Fingerprint, machine, quiet, single_thread


def fingerprints(record: dict[str, Any]) -> dict[str, Callable[[], Fingerprint]]:
    """How to take the fingerprint of each arm in the record of a claim."""
    # The search for a learning rate comes before the first seed.
    rows = {row["arm"]: row for row in reversed(record["table"]) if row["seed"] == 0}
    return {
        arm: partial(take_arm_fingerprint, record["claim"]["job"], rows[arm]["options"])
        for arm in record["claim"]["arms"]
        if arm in rows
    }


def take_arm_fingerprint(kind: str, given: GivenOptions, steps: int = STEPS) -> Fingerprint:
    """A run of a few steps in float32 on one thread: the loss of each, and the held-out loss at the end."""
    losses: list[float] = []
    tokens = steps * read_options(kind, given).batch_tokens
    with single_thread(), quiet():
        run = prepare(kind, {**given, "tokens": tokens, "precision": "float32"}, 0, torch.device("cpu"))
        found = train(run, on_step=lambda number, loss: losses.append(loss.item()), evaluations=1)
    return {
        "steps": steps,
        "losses": losses,
        "evaluation": {"loss": found["result"]["loss"]},
        **machine(),
    }
