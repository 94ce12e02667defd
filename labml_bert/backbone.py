"""
# The encoder that an experiment fine-tunes

Experiments that compare ways to fine-tune a model start all of them from the same pretrained encoder. This
file finds it, and describes where it comes from.
"""

from pathlib import Path
from typing import Any, NamedTuple

import torch
from tokenizers import Tokenizer
from torch import Tensor

from labml_bert.bert import BertConfig
from labml_bert.training.checkpoint import load_checkpoint


class Backbone(NamedTuple):
    """The pretrained model in `folder`, with the dropout for fine-tuning and the device to train on."""

    folder: Path
    config: BertConfig
    tokenizer: Tokenizer
    tensors: dict[str, Tensor]
    device: torch.device


def find_newest_model(runs: Path) -> Path:
    """
    Returns the model of the newest finished run of `bert_tiny.py` under `runs`. It was pretrained on pairs,
    so its pooler is trained. Raises `ValueError` if there is none.
    """
    paths = sorted(runs.glob("bert_tiny/*/model/config.json"), key=lambda path: path.stat().st_mtime)
    if not paths:
        raise ValueError(
            f"no finished run of bert_tiny under {runs}; use --model, or train one with: "
            "python experiments/bert_tiny.py"
        )
    return paths[-1].parent


def read_pretraining(folder: Path) -> dict[str, Any] | None:
    """Describes how the model was pretrained, if `folder` is still inside the folder of its run."""
    try:
        run_state = load_checkpoint(folder.parent)[0]
    except ValueError:
        return None
    values = {key: run_state["configuration"].get(key) for key in ("experiment", "corpus_sha256", "seed")}
    return {**values, "steps": run_state["step"], "seconds": run_state["seconds"]}
