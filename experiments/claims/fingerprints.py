"""
# Fingerprints of a claim

Does the current code still reproduce the runs of a claim? The record of a claim has one
[fingerprint](../../labml_bert/run/fingerprint.md) per arm: the losses of a few training steps with seed 0 and
the arm's options, and a held-out loss.
"""

from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

import torch
from torch import Tensor

from experiments.claims.options import OptionValues, read_options
from experiments.claims.training import held_out_loss, prepare, train
from labml_bert.run.fingerprint import (
    STEPS,
    Fingerprint,
    FingerprintComplete,
    make_fingerprint,
    quiet,
    single_thread,
)


def fingerprints(record: dict[str, Any]) -> dict[str, Callable[[], Fingerprint]]:
    """Returns, for each arm with a run of its own, a function that takes the arm's fingerprint."""
    # Take the options from the lowest seed, which is never that of the search. Skip runs that another claim
    # has recorded, because their fingerprints are in the record of that claim.
    first = min(row["seed"] for row in record["table"])
    own = [row for row in record["table"] if row["seed"] == first and "from" not in row]
    rows = {row["arm"]: row for row in reversed(own)}
    return {
        arm: partial(take_arm_fingerprint, record["claim"]["job"], rows[arm]["options"])
        for arm in record["claim"]["arms"]
        if arm in rows
    }


def take_arm_fingerprint(kind: str, values: OptionValues, steps: int = STEPS) -> Fingerprint:
    """Takes the losses of a few steps in float32 on one thread, and a held-out loss after the last step."""
    losses: list[float] = []
    evaluation: dict[str, float] = {}
    tokens = steps * read_options(kind, values).batch_tokens

    def record_step(number: int, loss: Tensor) -> None:
        losses.append(loss.item())
        if number == steps:
            evaluation["loss"] = held_out_loss(run, is_quick=True)
            raise FingerprintComplete

    with single_thread(), quiet(), suppress(FingerprintComplete):
        run = prepare(kind, {**values, "tokens": tokens, "precision": "float32"}, 0, torch.device("cpu"))
        train(run, on_step=record_step, evaluations=1)
    return make_fingerprint(losses, evaluation)
