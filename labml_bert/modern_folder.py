"""
# Folders of modern models

A ModernBERT folder has the same two files as a BERT folder, `config.json` and `model.safetensors`. The code
below writes and reads such folders for `modern.py`, so that `transformers` can open our models and we can
open models that `transformers` saved.

The layer settings in `config.json` come in two forms. Published models say that every `n`-th layer is global,
and give two values of theta, the base of the rotary angles. Recent versions of `transformers` list the type
of each layer, and give a theta for each type.

    save_pretrained(model, "folder")
    model = from_pretrained("folder")
"""

from dataclasses import fields
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from labml_bert.checks import check_modern_config
from labml_bert.checksums import reading
from labml_bert.model_folder import (
    MODEL_FILES,
    as_entries,
    check_names,
    check_tensors,
    load_weights,
    read_json,
    read_safetensors,
    write_model,
)
from labml_bert.modern import ModernBertConfig, ModernBertForMaskedLM, ModernBertModel

EMBEDDING = "model.embeddings.tok_embeddings.weight"
ALIAS = "decoder.weight"
LAYER_TYPES = {True: "full_attention", False: "sliding_attention"}
# These settings change the model, and only these values are implemented.
SUPPORTED: dict[str, object] = {
    "model_type": "modernbert",
    "hidden_activation": "gelu",
    "is_causal": False,
    "norm_bias": False,
    "attention_bias": False,
    "mlp_bias": False,
    "decoder_bias": True,
    "tie_word_embeddings": True,
    "classifier_bias": False,
    "classifier_activation": "gelu",
}


def save_pretrained(model: ModernBertForMaskedLM, folder: Path | str) -> None:
    """
    Writes `config.json` and `model.safetensors` to `folder`, which is created if it's missing. Raises
    `ValueError` if `check_names` does, or if the decoder is not tied to the embedding.
    """
    check_names(model, "model", ModernBertModel, check_sizes)
    if model.decoder.weight is not model.model.embeddings.tok_embeddings.weight:
        raise ValueError("the decoder's weight isn't the embedding; tie them before you save the model")
    # Without these entries, `transformers` uses the ids of the published tokenizer. It warns about ids that
    # aren't in the vocabulary.
    ids = dict.fromkeys(("bos_token_id", "eos_token_id", "cls_token_id", "sep_token_id"))
    config = {"architectures": [type(model).__name__], **SUPPORTED, **ids, **as_entries(model.config)}
    write_model(Path(folder), config, dict(model.named_parameters()))


def from_pretrained(folder: Path | str) -> ModernBertForMaskedLM:
    """
    Loads a model from a folder written by `save_pretrained` or by `transformers`, and returns it in eval
    mode.

    Raises `ValueError` if a file or a parameter is missing, if a file is damaged or replaced meanwhile, if
    the sizes of the tensors don't match `config.json`, or if that file describes a model that isn't
    implemented.
    """
    with reading(Path(folder), *MODEL_FILES) as real_folder:
        config, tensors = read_config(real_folder), read_tensors(real_folder)
    path = real_folder / "model.safetensors"
    check_sizes(config, tensors, path)
    check_tensors(config, tensors, path)
    model = ModernBertForMaskedLM(config)
    load_weights(model, tensors, path)
    return model.eval()


def read_config(folder: Path) -> ModernBertConfig:
    """
    Returns the configuration in `config.json`.

    Raises `ValueError` if the file is missing or damaged, isn't a JSON object, or describes a model that
    isn't implemented.
    """
    path, content = folder / "config.json", read_json(folder)
    for name, value in SUPPORTED.items():
        if content.get(name, value) != value:
            raise ValueError(f"{path} says {name} = {content[name]!r}; only {value!r} is supported")
    names = {field.name for field in fields(ModernBertConfig)}
    sizes = {name: content[name] for name in names if content.get(name) is not None}
    # In published `config.json` files, null means that local layers use the base of the global layers.
    if content.get("local_rope_theta", 0) is None:
        sizes["local_rope_theta"] = sizes.get("global_rope_theta", ModernBertConfig.global_rope_theta)
    try:
        config = ModernBertConfig(**sizes | expand_layer_settings(content))
        check_modern_config(config)
    except ValueError as error:
        raise ValueError(f"{path} does not describe a ModernBERT: {error}") from None
    except (TypeError, KeyError, AttributeError):
        reason = "a setting of its layers has the wrong type"
        raise ValueError(f"{path} does not describe a ModernBERT: {reason}") from None
    # If this setting is there, `transformers` uses twice its value as `local_attention`.
    half = content.get("sliding_window")
    if half is not None and half != config.local_attention // 2:
        raise ValueError(
            f"{path} has sliding_window {half}, which is not half of local_attention; correct it"
        )
    layers = content.get("layer_types")
    if layers is not None and layers != [
        LAYER_TYPES[config.is_global(i)] for i in range(config.num_hidden_layers)
    ]:
        raise ValueError(
            f"{path} has other layer_types than a global layer first and then at a fixed interval; "
            "only these are supported"
        )
    return config


def expand_layer_settings(content: dict[str, Any]) -> dict[str, Any]:
    """Returns the layer settings of recent `transformers` versions in the form of `ModernBertConfig`."""
    values: dict[str, Any] = {}
    scaling = content.get("rope_scaling") or {}
    if scaling.get("rope_type", scaling.get("type", "default")) != "default":
        raise ValueError("rope_scaling is not supported")
    rope = content.get("rope_parameters")
    if rope is not None:
        kinds = {"global_rope_theta": LAYER_TYPES[True], "local_rope_theta": LAYER_TYPES[False]}
        for name, kind in kinds.items():
            if "rope_theta" not in rope.get(kind, {}):
                raise ValueError(f"rope_parameters has no rope_theta for {kind}")
            if rope[kind].get("rope_type", "default") != "default":
                raise ValueError(f"rope_type is {rope[kind]['rope_type']!r}; only 'default' is supported")
            values[name] = rope[kind]["rope_theta"]
    layers = content.get("layer_types")
    if layers is not None:
        count = content.get("num_hidden_layers")
        if len(layers) != count:
            raise ValueError(f"layer_types has {len(layers)} entries, but num_hidden_layers is {count}")
        global_layers = [i for i, kind in enumerate(layers) if kind == LAYER_TYPES[True]]
        # If only the first layer is global, the period can be the number of layers, or any larger number.
        values["global_attn_every_n_layers"] = global_layers[1] if len(global_layers) > 1 else len(layers)
    return values


def read_tensors(folder: Path) -> dict[str, Tensor]:
    """
    Returns the tensors in `model.safetensors`. The tied embedding appears only under `EMBEDDING`.

    Raises `ValueError` if the file is missing or damaged, or if the output layer isn't tied.
    """
    tensors = read_safetensors(folder)
    alias = tensors.pop(ALIAS, None)
    if alias is not None and not torch.equal(alias, tensors.setdefault(EMBEDDING, alias)):
        raise ValueError(f"{ALIAS} differs from {EMBEDDING}; an untied output layer is not supported")
    return tensors


def check_sizes(config: ModernBertConfig, tensors: dict[str, Tensor], path: Path) -> None:
    """
    Checks the tensors against `config` before the model is built.

    Raises `ValueError` if the embeddings are missing or if sizes don't match.
    """
    if EMBEDDING not in tensors:
        raise ValueError(
            f"{path} has no {EMBEDDING}, which ModernBertForMaskedLM needs; it belongs to another kind of "
            "model"
        )
    layers = {name.split(".")[2] for name in tensors if name.startswith("model.layers.")}
    embedding = tensors[EMBEDDING]
    output = tensors.get("model.layers.0.mlp.Wo.weight", torch.empty(0))
    sizes = (len(layers), *embedding.shape, *output.shape)
    D, I = config.hidden_size, config.intermediate_size  # noqa: E741
    if sizes != (config.num_hidden_layers, config.vocab_size, D, D, I):
        raise ValueError(f"{path} has other sizes than config.json; the two are not from one model")
