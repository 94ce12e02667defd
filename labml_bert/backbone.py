"""
# The encoder that an experiment fine-tunes

Experiments that compare ways to fine-tune a model all start from the same pretrained encoder. This file finds
that encoder, loads it, and describes how it was pretrained.
"""

import contextlib
import os
from collections.abc import Iterable
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import torch
from tokenizers import Tokenizer
from torch import Tensor

from labml_bert.bert import BertConfig
from labml_bert.checksums import is_list_of_blocks, reading
from labml_bert.data.corpora import BLOCKS, NAMES, load_corpus
from labml_bert.data.token_files import read_progress
from labml_bert.data.tokenizers import load_tokenizer, wordpiece_tokenizer
from labml_bert.fill_mask import load_model
from labml_bert.model_folder import MODEL_FILES, check_sizes, check_tensors, read_config, read_tensors
from labml_bert.models import BertForMaskedLM
from labml_bert.modern import ModernBertForMaskedLM
from labml_bert.stdout import print_note
from labml_bert.training.checkpoint import CHECKPOINT, load_checkpoint, newest_first, note_unreadable


class Backbone(NamedTuple):
    """The pretrained model in `folder`, with the dropout for fine-tuning and the device to train on."""

    folder: Path
    config: BertConfig
    tokenizer: Tokenizer
    tensors: dict[str, Tensor]
    device: torch.device
    pretraining: dict[str, Any] | None = None
    """Describes the run whose folder contains `folder`. It's `None` if no run can be read there."""


def find_newest_model(runs: Path) -> Path:
    """
    Returns the folder of the newest model that `bert_tiny.py` has saved under `runs`. The model was also
    pretrained on next sentence prediction, so its pooler is trained. Prints a note for each folder that can't
    be read. Raises `ValueError` if there is no model.
    """
    note_unreadable([runs])
    paths = newest_first(runs.glob("bert_tiny/*/model/config.json"))
    if not paths:
        raise ValueError(
            f"no finished run of bert_tiny under {runs}; use --model, or train one with: "
            "python experiments/bert_tiny.py"
        )
    return paths[0].parent


def load_backbone(folder: Path, device: torch.device) -> Backbone:
    """
    Returns the pretrained model in `folder`, with a dropout of 0.1, which the paper used for fine-tuning,
    even if the model was pretrained without dropout.

    Raises `ValueError` if there is no model, if a file is damaged, if the files are of two models, if the
    model can't read pairs, or if `check_python_docs` refuses the run that pretrained it.
    """
    with reading(folder, *MODEL_FILES) as path:
        config = read_config(path)
        tokenizer = load_tokenizer(path / "tokenizer.json", config.vocab_size)
        tensors = read_tensors(path)
    if config.type_vocab_size < 2:
        raise ValueError(f"the model in {folder} has one token type, so it can't read pairs; use another")
    config = replace(config, hidden_dropout_prob=0.1, attention_probs_dropout_prob=0.1)
    check_sizes(config, tensors, folder / "model.safetensors")
    check_tensors(config, tensors, folder / "model.safetensors")
    return Backbone(folder, config, tokenizer, tensors, device, read_pretraining(folder))


def read_pretraining(folder: Path) -> dict[str, Any] | None:
    """
    Describes the run that trained the model in `folder`, from the run's checkpoint. Returns `None` if there
    is no checkpoint. If the checkpoint can't be read, prints a note and returns `None`.

    Raises `ValueError` if `check_python_docs` refuses the run.
    """
    try:
        run_state = load_run_state(folder)
    except ValueError as error:
        print_note(f"{error}; without it, the model's pretraining is unknown")
        return None
    if run_state is None:
        return None
    configuration = run_state["configuration"]
    check_python_docs(configuration)
    values = {key: configuration.get(key) for key in ("experiment", "corpus_sha256", "seed")}
    return {**values, "steps": run_state["step"], "seconds": run_state["seconds"]}


def checkpoint_paths(folder: Path) -> list[Path]:
    """The possible paths of a run's checkpoint. `folder` is the folder of the run or of its model."""
    # Without `resolve`, the parent of `.` or of a link isn't the folder of the run. A model in a folder with
    # another name can be a copy from somewhere else.
    real = folder.resolve()
    return [folder / CHECKPOINT, *([real.parent / CHECKPOINT] if real.name == "model" else [])]


def load_run_state(folder: Path, is_required: bool = False) -> dict[str, Any] | None:
    """
    Returns the state in the checkpoint of a run. `folder` is the folder of the run or of its model. Returns
    `None` if there is no checkpoint.

    Raises `ValueError` if the checkpoint can't be read, or if it's missing and `is_required` is true.
    """
    for path in checkpoint_paths(folder):
        if path.is_file():
            return load_checkpoint(path.parent)[0]
    return load_checkpoint(folder)[0] if is_required else None


def load_model_and_state(
    folder: Path, is_required: bool = False
) -> tuple[BertForMaskedLM | ModernBertForMaskedLM, Tokenizer, dict[str, Any] | None]:
    """
    Returns what `load_model` and `load_run_state` return, from the same checkpoint.

    Raises their errors, and `ValueError` if the run has saved another checkpoint meanwhile.
    """
    with reading(folder, CHECKPOINT) as path, reading(path.resolve().parent, CHECKPOINT):
        run_state = load_run_state(path, is_required)
        model, tokenizer = load_model(path)
    return model, tokenizer, run_state


def text_has_changed(configuration: dict[str, Any], name: str, sha256: str) -> bool:
    """
    Whether a run with this `configuration`, or the run that it continued, was trained on the text called
    `name` when its sha256 wasn't this `sha256`, or on other parts of it, for example a file in the folder, or
    the same text after `prepare`. What is held out now may have been training text then.
    """

    def overlaps(earlier: str | None) -> bool:
        # A run saves either the name of a built-in corpus or the absolute path of the text.
        if earlier is None or not os.path.isabs(earlier) or name in NAMES:
            return earlier == name
        pairs = product(real_paths(earlier), real_paths(name))
        return any(a.is_relative_to(b) or b.is_relative_to(a) for a, b in pairs)

    return any(
        configuration.get(f"{key}_sha256") != sha256 and overlaps(configuration.get(key))
        for key in ("corpus", "old_corpus")
    )


def real_paths(text: str) -> list[Path]:
    """Returns the path of a text, without links. For prepared text, adds the files that it was made from."""
    paths = [text]
    if is_list_of_blocks(Path(text) / BLOCKS):
        with contextlib.suppress(ValueError, TypeError, OSError):  # The file may be damaged.
            progress = read_progress(Path(text))
            paths += [path for path, _ in progress.settings.get("files", [])] if progress else []
    return [Path(os.path.realpath(path)) for path in paths]


def check_python_docs(configuration: dict[str, Any]) -> None:
    """
    Raises `ValueError` if a run with this `configuration` has read the docstrings of another version of
    Python. Texts that we take for new could then be among those that the model was trained on.
    """
    name = "python-docs"
    is_read = name in (configuration.get("corpus"), configuration.get("old_corpus"))
    if is_read and text_has_changed(configuration, name, load_corpus(name).sha256):
        raise ValueError("the model has read the docstrings of another Python; use the same version")


def random_backbone(sizes: dict[str, Any]) -> Backbone:
    """
    Returns a backbone with a newly trained tokenizer and no weights, because the repository doesn't contain
    the pretrained model. It serves the fingerprint of a record, whose model configuration is `sizes`.
    """
    config = BertConfig(**sizes)
    tokenizer = wordpiece_tokenizer(load_corpus("python-docs").train, config.vocab_size)
    return Backbone(Path(), config, tokenizer, {}, torch.device("cpu"))


def check_label_counts(option: str, words: Iterable[str], least: int) -> None:
    """
    Raises `ValueError` if a word after `option` is neither `all` nor a number from `least` on, or if two are
    equal.
    """
    earlier = set()
    for word in words:
        if (number := word.lstrip("0")) in earlier:
            raise ValueError(f"--{option} has {word!r} twice; leave one out")
        earlier.add(number)
        # Python refuses to read thousands of digits.
        if word != "all" and not (word.isdecimal() and len(word) < 10):
            raise ValueError(f"--{option} is {word!r}; use a number, or all")
        if word != "all" and int(word) < least:
            raise ValueError(f"--{option} is {word}; it must be at least {least}")


def parse_label_count(word: str, name: str, most: int, least: int) -> int:
    """
    Returns `most` if `word` is `all`, and otherwise the number in `word`. Call `check_label_counts` first, to
    make sure that `word` is one of the two. The error message contains `name`, the name of the data set.

    Raises `ValueError` if the number isn't from `least` to `most`.
    """
    count = most if word == "all" else int(word)
    if not least <= count <= most:
        raise ValueError(f"{count} labels for {name}; it has {most}, so choose from {least} to {most}")
    return count
