"""
# Model folders, in the format of transformers

A model in the format of transformers is a folder with two files. `config.json` contains the sizes, and
`model.safetensors` contains the weights. This file writes and reads such a folder, translates the names of
the weights to those of this project, and checks that sizes and weights fit together. `models.py` builds
models from such folders."""

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from labml_bert import files
from labml_bert.bert import BertConfig
from labml_bert.checks import check_config
from labml_bert.checksums import (
    check_digest,
    check_readable,
    file_sha256,
    parse_json,
    read_checked,
    read_sums,
    sums_for_saving,
    text_sha256,
    write_checked,
    write_sums,
)
from labml_bert.files import make_folder, unreadable, whole_file, write_tensors
from labml_bert.modern import ModernBertConfig

# A model and its tokenizer are in these files.
MODEL_FILES = ("config.json", "model.safetensors", "tokenizer.json")
# The largest `config.json` to read, in bytes. That of a classifier has the name of each class twice, in
# `id2label` and in `label2id`.
LARGEST_CONFIG = 5_000_000
# The largest absolute value of a trained weight. Much larger ones could overflow float32 in a LayerNorm.
LARGEST_WEIGHT = 10_000
EMBEDDING = "bert.embeddings.word_embeddings.weight"
BIAS = "cls.predictions.bias"
# In `transformers`, two tensors have second names: the embedding, as the output matrix, and the output bias.
ALIASES = {"cls.predictions.decoder.weight": EMBEDDING, "cls.predictions.decoder.bias": BIAS}


def check_sizes(config: BertConfig, tensors: dict[str, Tensor], path: Path) -> None:
    """
    Checks the tensors from the file `path` against `config`.

    Raises `ValueError` if the encoder's sizes differ.
    """
    layers = {name.split(".")[3] for name in tensors if name.startswith("bert.encoder.layer.")}
    if len(layers) != config.num_hidden_layers:
        raise ValueError(
            f"{path} has {len(layers)} layers and config.json says {config.num_hidden_layers}; the two are "
            "not from one model"
        )
    hidden_size = config.hidden_size
    expected_shapes = {
        EMBEDDING: (config.vocab_size, hidden_size),
        "bert.embeddings.position_embeddings.weight": (config.max_position_embeddings, hidden_size),
        "bert.embeddings.token_type_embeddings.weight": (config.type_vocab_size, hidden_size),
        "bert.encoder.layer.0.intermediate.dense.weight": (config.intermediate_size, hidden_size),
    }
    for name, shape in expected_shapes.items():
        if name in tensors and tensors[name].shape != shape:
            raise ValueError(
                f"{name} is {tuple(tensors[name].shape)} in {path} and {shape} by config.json; the two are "
                "not from one model"
            )


def check_tensors(config: BertConfig | ModernBertConfig, tensors: dict[str, Tensor], path: Path) -> None:
    """
    Checks the numbers in `tensors`, which come from the file `path`, before the model is built. A wrong
    configuration could describe a model that doesn't fit in memory.

    Raises `ValueError` if most matrices of a model with this `config` already have more numbers than all
    `tensors`, or if a tensor contains integers, 8-bit numbers, NaN or weights beyond `LARGEST_WEIGHT`.
    """
    for name, tensor in tensors.items():
        is_known = tensor.is_floating_point() and tensor.element_size() > 1
        # A comparison with NaN is false.
        if not is_known or not (tensor.abs() <= LARGEST_WEIGHT).all():
            raise ValueError(
                f"{name} in {path} must hold floating-point numbers from {-LARGEST_WEIGHT:,} to "
                f"{LARGEST_WEIGHT:,}; save the model again"
            )
    D, I = config.hidden_size, config.intermediate_size  # noqa: E741
    rows = config.vocab_size
    if isinstance(config, BertConfig):
        rows += config.max_position_embeddings + config.type_vocab_size
    needed = D * (rows + config.num_hidden_layers * (4 * D + 2 * I))
    count = sum(tensor.numel() for tensor in tensors.values())
    if count < needed:
        raise ValueError(
            f"{path} has {count:,} numbers, and a model with the sizes of its configuration at least "
            f"{needed:,}; the two are not from one model"
        )


def check_names(
    model: nn.Module, prefix: str, build: Callable[..., nn.Module], check_sizes: Callable[..., None]
) -> None:
    """
    Raises `ValueError` if a layer is parametrized or wrapped, if `model` contains a layer twice, if it has a
    persistent buffer, or if `build` makes another encoder from its configuration.
    """
    if any(parametrize.is_parametrized(module) for module in model.modules()):
        remedy = "call merge_lora, or remove_parametrizations, before you save the model"
        raise ValueError(f"a layer has LoRA or another parametrization; {remedy}")
    first_names: dict[int, str] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        *modules, last = name.split(".")
        # PyTorch's old functions for pruning and normalization rename a weight.
        is_renamed = last.endswith("_orig") or last in ("weight_g", "weight_v")
        if is_renamed or any(re.fullmatch("_.*_mod(ule)?", module) for module in modules):  # as `_orig_mod`
            raise ValueError(f"{name} is in a wrapped layer; unwrap the layer before you save the model")
        first = first_names.setdefault(id(parameter), name)
        # The file contains a tied decoder only once, as the embedding.
        if name not in (first, "decoder.weight"):
            raise ValueError(f"{name} and {first} are the same; copy the layer before you save the model")
    for module in model.modules():
        buffers = {name for name, buffer in module._buffers.items() if buffer is not None}
        if buffers := buffers - module._non_persistent_buffers_set:
            raise ValueError(
                f"{type(module).__name__} has a buffer, {min(buffers)}, and only parameters are saved; use "
                "torch.save instead"
            )
    # The names don't depend on these sizes.
    config: Any = model.config
    D = 2 * config.num_attention_heads
    with torch.random.fork_rng(devices=[]), torch.device("cpu"):
        encoder = build(replace(config, hidden_size=D, intermediate_size=D))
    parameters: dict[str, Tensor] = dict(model.named_parameters())
    for name, _ in encoder.named_parameters():
        if f"{prefix}.{name}" not in parameters:
            raise ValueError(
                f"the model has no {prefix}.{name}; unwrap that layer, or correct the configuration"
            )
    try:
        check_sizes(config, parameters, Path("the model"))
    except ValueError as error:
        reason = str(error).partition(";")[0].replace("config.json", "its configuration")
        raise ValueError(f"{reason}; correct the configuration before you save the model") from None


def as_entries(config: BertConfig | ModernBertConfig) -> dict[str, Any]:
    """Returns the settings for `config.json`. `transformers` refuses an integer where it expects a float."""
    values = {field: getattr(config, field.name) for field in fields(config)}
    return {f.name: float(value) if f.type in (float, "float") else value for f, value in values.items()}


def write_model(folder: Path, config: dict[str, Any], tensors: dict[str, Tensor]) -> None:
    """
    Writes `model.safetensors` and `config.json` to `folder`, which is created if it's missing. An older model
    in the folder is replaced. If the program is killed, nobody can load the weights of one model with the
    configuration of another: `SHA256SUMS` lists the new files before the old ones are replaced.
    """
    make_folder(folder)
    text = json.dumps(config, indent=2, sort_keys=True, default=lambda value: value.item())
    path = folder / "model.safetensors"
    with whole_file(path) as part:
        write_tensors(part, tensors, {"format": "pt"})
        new = {"config.json": text_sha256(text), path.name: file_sha256(part)}
        sums = sums_for_saving(folder)
        if sums.get("config.json") == new["config.json"]:
            # Old weights with this configuration stay valid.
            write_sums(folder, {name: digest for name, digest in sums.items() if name != path.name})
        else:
            write_sums(folder, {**sums, **new})
    write_sums(folder, {**sums_for_saving(folder), **new})
    write_checked(folder / "config.json", text)


def load_weights(
    model: nn.Module, tensors: dict[str, Tensor], path: Path, new_parameters: Sequence[str] = ()
) -> None:
    """
    Copies `tensors` into the parameters with the same names, and ignores other tensors. `path` is the file of
    the tensors, for the error message. `new_parameters` is as in `BertPreTrainedModel.from_pretrained`.

    Raises `ValueError` if a tensor is missing or has another shape than its parameter, or if `new_parameters`
    is a single string. The model is then unchanged.
    """
    if isinstance(new_parameters, str):
        raise ValueError(f"new_parameters is {new_parameters!r}; put it in a list")
    parameters = dict(model.named_parameters())
    new = tuple(new_parameters)
    # Two heads can have tensors with the same names, but a pooler has been pretrained.
    kept = "bert.pooler."
    tensors = {n: tensor for n, tensor in tensors.items() if n.startswith(kept) or not n.startswith(new)}
    missing = [n for n in parameters if n not in tensors and not n.startswith(new)]
    if missing:
        kind = type(model).__name__
        raise ValueError(f"{path} has no {missing[0]}, which {kind} needs; use the folder of a {kind}")
    shared_names = parameters.keys() & tensors.keys()
    for name in sorted(shared_names):
        if tensors[name].shape != parameters[name].shape:
            raise ValueError(
                f"{name} is {tuple(tensors[name].shape)} in {path} and {tuple(parameters[name].shape)} by "
                "the configuration; the two are not from one model"
            )
    with torch.no_grad():
        for name in shared_names:
            parameters[name].copy_(tensors[name])


def read_json(folder: Path) -> dict[str, Any]:
    """
    Returns the contents of `config.json`.

    Raises `ValueError` if the file is missing, unreadable, damaged or too large, or isn't a JSON object.
    """
    path = folder / "config.json"
    try:
        data = read_checked(path, LARGEST_CONFIG)
    except FileNotFoundError:
        is_run = (folder / "model" / path.name).is_file()
        remedy = f"use {folder / 'model'}" if is_run else "use another folder"
        raise ValueError(f"there is no model in {folder} (no config.json); {remedy}") from None
    except OSError as error:
        raise unreadable(error.filename, error.strerror) from None
    try:
        content = parse_json(data)
        if not isinstance(content, dict):
            raise ValueError("it is not in braces")
    except ValueError as error:
        raise ValueError(f"{path} is not a JSON object ({error}); save the model again") from None
    return content


def read_config(folder: Path) -> BertConfig:
    """
    Returns the settings of `BertConfig` in `config.json`. Of the other settings, those in `supported_values`
    must be absent or have the values there, and the rest are ignored.

    Raises `ValueError` if the file is missing, isn't a JSON object, or describes a different kind of model.
    """
    path, content = folder / "config.json", read_json(folder)
    supported_values: dict[str, object] = {"model_type": "bert", "hidden_act": "gelu", "is_decoder": False}
    supported_values |= {
        "is_causal": False,
        "position_embedding_type": "absolute",
        "tie_word_embeddings": True,
    }
    for name, value in supported_values.items():
        if content.get(name, value) != value:
            raise ValueError(f"{path} says {name} = {content[name]!r}; only {value!r} is supported")
    sizes = {
        field.name: content[field.name] for field in fields(BertConfig) if content.get(field.name) is not None
    }
    try:
        config = BertConfig(**sizes)
        check_config(config)
    except (ValueError, TypeError) as error:
        raise ValueError(f"{path} does not describe a BERT: {error}") from None
    return config


def read_safetensors(folder: Path) -> dict[str, Tensor]:
    """
    Returns the tensors in `model.safetensors`, with the names in the file.

    Raises `ValueError` if the file is missing or damaged, or if the weights are in several files or in a
    pickle. Opening a pickle can run any code, so this project never opens one.
    """
    path = folder / "model.safetensors"
    if not path.is_file():
        pickles = [file.name for file in (*folder.glob("*.bin"), *folder.glob("*.pt"), *folder.glob("*.pth"))]
        if pickles:
            raise ValueError(
                f"{folder / pickles[0]} is a pickle, which can run any code when it is opened; save the "
                "model as model.safetensors with a recent transformers"
            )
        if (folder / "model.safetensors.index.json").is_file():
            raise ValueError(f"the weights in {folder} are in several files; save the model in one")
        raise ValueError(f"there are no weights in {folder} (no model.safetensors); use another folder")
    check_readable(path)
    try:
        # If the size of the file is wrong, this fails at once. Hashing a huge file takes minutes.
        tensors = files.read_tensors(path)[0]
    except ValueError as error:
        raise ValueError(f"{error}; save it again") from None
    try:
        if path.name in read_sums(folder):
            check_digest(path, file_sha256(path))
    except OSError as error:
        raise unreadable(path, error.strerror) from None
    return tensors


def read_tensors(folder: Path) -> dict[str, Tensor]:
    """
    Returns the tensors in `model.safetensors`, with the names that they have in this project. Two kinds of
    names differ: the first BERT checkpoints called the weight of a LayerNorm `gamma` and its bias `beta`, and
    the names of an encoder that was saved by itself don't start with `bert.`.

    Raises `ValueError` if the file can't be read, or if the output layer isn't tied.
    """
    tensors = {}
    for name, tensor in read_safetensors(folder).items():
        # Some versions of `transformers` also saved the default position ids and token types.
        if name.endswith(("embeddings.position_ids", "embeddings.token_type_ids")):
            continue
        name = name.replace("LayerNorm.gamma", "LayerNorm.weight").replace("LayerNorm.beta", "LayerNorm.bias")
        tensors[name] = tensor
    if not any(name.startswith("bert.") for name in tensors):
        tensors = {f"bert.{name}": tensor for name, tensor in tensors.items()}
    drop_aliases(tensors)
    return tensors


def drop_aliases(state: dict[str, Tensor], prefix: str = "") -> None:
    """
    Removes the second names in `ALIASES` from `state`. A tensor that has only its second name gets the first.

    Raises `ValueError` if a tensor and its alias differ. Then they aren't tied, and dropping the alias would
    lose a part of the output layer.
    """
    for alias, owner in ALIASES.items():
        second = state.pop(prefix + alias, None)
        first = state.get(prefix + owner)
        if first is None and second is not None:
            state[prefix + owner] = second
        elif first is None or second is None:
            continue
        elif first.shape != second.shape or not first.allclose(second, rtol=0, atol=0, equal_nan=True):
            raise ValueError(f"{alias} differs from {owner}; an untied output layer is not supported")
