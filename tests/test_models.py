"""Complete models: saving for and loading from `transformers`, and weights that stay tied."""

import contextlib
import copy
import dataclasses
import io
import itertools
import math
import os
import pickle
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch
import transformers
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import nn
from torch.nn.utils import prune

from labml_bert import model_folder, models, modern_folder
from labml_bert.bert import BertConfig, BertModel
from labml_bert.checksums import SUMS
from labml_bert.mlm import IGNORE
from labml_bert.models import BertForMaskedLM, BertForPreTraining, parameter_table
from labml_bert.modern import ModernBertConfig, ModernBertForMaskedLM
from labml_bert.new_tokens import add_embeddings
from tests.support.damage import flip_bit
from tests.support.parity import (
    TOLERANCE,
    assert_same_gradients,
    perturb_weights,
    random_batch,
    random_config,
    write_config,
)
from tests.support.small_models import random_model

PAIRS = [
    (BertForPreTraining, transformers.BertForPreTraining),
    (BertForMaskedLM, transformers.BertForMaskedLM),
]


def assert_same_outputs(ours, theirs, batch: dict[str, torch.Tensor]) -> None:
    """Compares logits, losses and every gradient."""
    ours.eval(), theirs.eval()
    pairs = "next_sentence_label" in batch
    our_output, their_output = ours(**batch), theirs(**batch)
    inputs = {k: v for k, v in batch.items() if not k.endswith(("labels", "label"))}
    full_output, attended = ours(**inputs), batch["attention_mask"].bool()
    logits = their_output.prediction_logits if pairs else their_output.logits
    full = full_output.prediction_logits if pairs else full_output.logits
    assert (full - logits)[attended].abs().max() < TOLERANCE
    partial = our_output.prediction_logits if pairs else our_output.logits
    assert (partial - logits[batch["labels"] != IGNORE]).abs().max() < TOLERANCE
    assert abs(our_output.loss - their_output.loss) < TOLERANCE
    if pairs:
        assert (
            our_output.seq_relationship_logits - their_output.seq_relationship_logits
        ).abs().max() < TOLERANCE
        masked_loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), batch["labels"].flatten())
        assert abs(our_output.masked_lm_loss - masked_loss) < TOLERANCE
        assert abs(our_output.next_sentence_loss - (their_output.loss - masked_loss)) < TOLERANCE
    our_output.loss.backward()
    their_output.loss.backward()
    assert_same_gradients(ours, theirs)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(("ours", "theirs"), PAIRS)
def test_transformers_loads_what_we_save(ours, theirs, seed: int, tmp_path: Path) -> None:
    config = random_config(seed)
    model = ours(config)
    perturb_weights(model, seed)
    model.save_pretrained(tmp_path)
    other, report = theirs.from_pretrained(tmp_path, output_loading_info=True)
    assert not any(report[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    shapes = {name: tensor.shape for name, tensor in other.state_dict().items()}
    assert {name: tensor.shape for name, tensor in model.state_dict().items()} == shapes
    assert_same_outputs(model, other, random_batch(config, seed, ours is BertForPreTraining))


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(("ours", "theirs"), PAIRS)
def test_we_load_what_transformers_saves(ours, theirs, seed: int, tmp_path: Path) -> None:
    config = random_config(seed)
    other = theirs(transformers.BertConfig(**dataclasses.asdict(config)))
    perturb_weights(other, seed)
    other.save_pretrained(tmp_path)
    model = ours.from_pretrained(tmp_path)
    assert model.config == config
    assert not model.training
    assert_same_outputs(model, other, random_batch(config, seed, ours is BertForPreTraining))
    reloaded = ours(config)
    reloaded.load_state_dict(other.state_dict())
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), reloaded.parameters(), strict=True))
    other.load_state_dict(model.state_dict())


def test_both_libraries_write_the_same_tensors(tmp_path: Path) -> None:
    config = random_config(1)
    for ours, theirs in PAIRS:
        ours(config).save_pretrained(tmp_path / "a")
        theirs(transformers.BertConfig(**dataclasses.asdict(config))).save_pretrained(tmp_path / "b")
        names = []
        for folder in ("a", "b"):
            with safe_open(tmp_path / folder / "model.safetensors", "pt") as file:
                names.append({key: file.get_slice(key).get_shape() for key in file.keys()})  # noqa: SIM118
        assert names[0] == names[1]


def test_loading_fewer_heads_or_adding_a_new_one(tmp_path: Path) -> None:
    """A masked LM loads from a model with both heads, and a new head goes on a bare encoder."""
    config = random_config(2)
    both = BertForPreTraining(config)
    perturb_weights(both, 2)
    both.save_pretrained(tmp_path / "both")
    masked = BertForMaskedLM.from_pretrained(tmp_path / "both")
    ids = random_batch(config, 2, False)["input_ids"]
    assert torch.equal(masked(ids).logits, both.eval()(ids).prediction_logits)

    bare = transformers.BertModel(transformers.BertConfig(**dataclasses.asdict(config)))
    bare.save_pretrained(tmp_path / "bare")
    with pytest.raises(ValueError, match="has no cls"):
        BertForPreTraining.from_pretrained(tmp_path / "bare")
    with pytest.raises(ValueError, match=r"new_parameters is 'cls\.'; put it in a list"):
        BertForPreTraining.from_pretrained(tmp_path / "bare", new_parameters="cls.")
    with_new_head = BertForPreTraining.from_pretrained(tmp_path / "bare", new_parameters=["cls."])
    theirs = bare.eval()(ids).last_hidden_state
    assert (with_new_head.bert(ids).last_hidden_state - theirs).abs().max() < TOLERANCE


def test_the_old_parameter_names_of_layer_norm(tmp_path: Path) -> None:
    model = BertForPreTraining(random_config(3))
    perturb_weights(model, 3)
    model.save_pretrained(tmp_path)
    tensors = {
        name.replace("LayerNorm.weight", "LayerNorm.gamma").replace(
            "LayerNorm.bias", "LayerNorm.beta"
        ): tensor
        for name, tensor in load_file(tmp_path / "model.safetensors").items()
    }
    assert sum("gamma" in name for name in tensors) > 2
    # Some versions of `transformers` saved the default token types too.
    tensors["bert.embeddings.token_type_ids"] = torch.zeros(1, 8, dtype=torch.long)
    save_file(tensors, tmp_path / "model.safetensors")
    (tmp_path / SUMS).unlink()
    reloaded = BertForPreTraining.from_pretrained(tmp_path)
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), reloaded.parameters(), strict=True))


def assert_tied(model) -> None:
    """Changing the embedding must change the logits as well, and the bias must have the right size."""
    weight = model.bert.embeddings.word_embeddings.weight
    before = model(torch.tensor([[1, 2, 3]]))
    before = (before.logits if isinstance(model, BertForMaskedLM) else before.prediction_logits).detach()
    assert before.shape[-1] == len(weight) == len(model.cls.predictions.bias) == model.config.vocab_size
    with torch.no_grad():
        # The input doesn't contain this token, so the change can only show in the output.
        weight[7] += 1
    after = model(torch.tensor([[1, 2, 3]]))
    after = after.logits if isinstance(model, BertForMaskedLM) else after.prediction_logits
    is_different = (after != before).any(0).any(0)
    assert is_different.nonzero().flatten().tolist() == [7]
    state = model.state_dict()
    assert torch.equal(state["cls.predictions.decoder.weight"], weight)
    assert (
        sum("word_embeddings" in name or "decoder.weight" in name for name, _ in model.named_parameters())
        == 1
    )


@pytest.mark.parametrize("kind", [BertForPreTraining, BertForMaskedLM])
def test_weights_stay_tied_through_copying_saving_and_resizing(kind, tmp_path: Path) -> None:
    config = random_config(4)
    model = kind(config).eval()
    perturb_weights(model, 4)
    clone = copy.deepcopy(model)
    assert_tied(clone)
    assert torch.equal(
        model.bert.embeddings.word_embeddings.weight[8],
        clone.bert.embeddings.word_embeddings.weight[8],
    )
    assert not torch.equal(
        model.bert.embeddings.word_embeddings.weight[7],
        clone.bert.embeddings.word_embeddings.weight[7],
    )
    clone.save_pretrained(tmp_path)
    assert_tied(kind.from_pretrained(tmp_path))
    reloaded = kind(config).eval()
    reloaded.load_state_dict(clone.state_dict())
    assert_tied(reloaded)
    assert_tied(pickle.loads(pickle.dumps(clone)).to(torch.float64))
    for size in (config.vocab_size + 9, config.vocab_size - 6):
        resized = copy.deepcopy(model)
        resized.resize_token_embeddings(size)
        rows = min(size, config.vocab_size)
        for name in ("bert.embeddings.word_embeddings.weight", "cls.predictions.bias"):
            assert torch.equal(resized.state_dict()[name][:rows], model.state_dict()[name][:rows])
        assert not resized.cls.predictions.bias[rows:].any()
        assert resized.bert.embeddings.word_embeddings.weight[rows:].abs().max() if size > rows else True
        assert_tied(resized)
        resized.save_pretrained(tmp_path)
        assert_tied(kind.from_pretrained(tmp_path))
    assert model.config.vocab_size == config.vocab_size


def test_new_rows_of_a_resized_model_are_trained() -> None:
    model = BertForMaskedLM(random_config(5))
    old_size = model.config.vocab_size
    model.resize_token_embeddings(old_size + 3)
    ids = torch.tensor([[old_size + 2, 5, 6]])
    model(ids, ids).loss.backward()
    assert model.bert.embeddings.word_embeddings.weight.grad[old_size + 2].abs().max() > 0
    assert model.cls.predictions.bias.grad[old_size + 2].abs() > 0


def test_resizing_a_model_leaves_another_one_with_the_same_configuration_alone(tmp_path: Path) -> None:
    config = random_config(5)
    model, other = BertForMaskedLM(config), BertForMaskedLM(config)
    other.resize_token_embeddings(config.vocab_size + 3)
    assert other.config is other.bert.config
    model.save_pretrained(tmp_path)
    assert BertForMaskedLM.from_pretrained(tmp_path).config == config == random_config(5)


def test_a_frozen_model_stays_frozen_when_it_is_resized() -> None:
    model = BertForMaskedLM(random_config(5)).requires_grad_(False)
    model.resize_token_embeddings(model.config.vocab_size + 3)
    add_embeddings(model, [[5, 6]], mock.Mock(get_vocab_size=lambda: model.config.vocab_size + 1))
    assert not any(parameter.requires_grad for parameter in model.parameters())


def test_a_state_with_nan_is_tied() -> None:
    """You may want to load a model that diverged."""
    model = BertForMaskedLM(random_config(6))
    with torch.no_grad():
        model.bert.embeddings.word_embeddings.weight[3, 2] = math.nan
    copied = BertForMaskedLM(model.config)
    copied.load_state_dict(copy.deepcopy(model.state_dict()))
    assert copied.bert.embeddings.word_embeddings.weight[3, 2].isnan()


def test_an_untied_state_is_rejected() -> None:
    model = BertForMaskedLM(random_config(6))
    state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    state["cls.predictions.decoder.weight"] += 1
    with pytest.raises(ValueError, match="untied"):
        model.load_state_dict(state)


def prune_query(model: BertForMaskedLM) -> None:
    prune.l1_unstructured(model.bert.encoder.layer[0].attention["self"].query, "weight", 0.5)


def compile_encoder(model: BertForMaskedLM) -> None:
    model.bert = torch.compile(model.bert)


@pytest.mark.parametrize("wrap", [prune_query, compile_encoder])
def test_a_model_with_a_wrapped_layer_is_not_saved(wrap, tmp_path: Path) -> None:
    model = BertForMaskedLM(random_config(0))
    wrap(model)
    with pytest.raises(
        ValueError,
        match="is in a wrapped layer; unwrap the layer before you save the model",
    ):
        model.save_pretrained(tmp_path / "folder")
    assert not (tmp_path / "folder").exists()


def test_a_name_with_an_underscore_is_no_wrapper(tmp_path: Path) -> None:
    model = BertForMaskedLM(random_config(0))
    model._head = nn.Linear(2, 2)
    model.save_pretrained(tmp_path)
    assert (tmp_path / "model.safetensors").exists()


def drop_layer(model: BertForMaskedLM) -> None:
    model.bert.encoder.layer = model.bert.encoder.layer[:-1]


def wrap_layer(model: BertForMaskedLM) -> None:
    dense = model.bert.encoder.layer[0].output.dense
    model.bert.encoder.layer[0].output.dense = nn.Sequential(dense)


def enlarge_embedding(model: BertForMaskedLM) -> None:
    V, D = model.bert.embeddings.word_embeddings.weight.shape
    model.bert.embeddings.word_embeddings = nn.Embedding(V + 3, D)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (drop_layer, r"has no bert\.encoder\.layer\..*; unwrap that layer, or correct the configuration"),
        (wrap_layer, r"has no bert\.encoder\.layer\.0\.output\.dense\.weight; unwrap"),
        (enlarge_embedding, r"word_embeddings.weight is .* in the model and .*; correct the configuration"),
    ],
)
def test_an_encoder_that_is_not_that_of_its_configuration_is_not_saved(
    change, message, tmp_path: Path
) -> None:
    model = BertForMaskedLM(random_config(0))
    model.save_pretrained(tmp_path)
    torch.manual_seed(3)
    change(model)
    state = torch.get_rng_state()
    with pytest.raises(ValueError, match=message):
        model.save_pretrained(tmp_path)
    assert torch.equal(torch.get_rng_state(), state)
    BertForMaskedLM.from_pretrained(tmp_path)


SAVE_AND_LOAD = {
    "bert": (BertForMaskedLM.save_pretrained, BertForMaskedLM.from_pretrained),
    "modern": (modern_folder.save_pretrained, modern_folder.from_pretrained),
}


def two_models(kind: str) -> Any:
    """Two models whose tensors have the same shapes, because these don't depend on the number of heads."""
    sizes = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2}
    return (random_model(kind, 20, 0, **sizes, num_attention_heads=heads) for heads in (2, 4))


@pytest.mark.parametrize("kind", ["bert", "modern"])
def test_a_model_that_is_replaced_while_it_is_read_is_refused(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old, new = two_models(kind)
    module, save = (
        (models, BertForMaskedLM.save_pretrained)
        if kind == "bert"
        else (modern_folder, modern_folder.save_pretrained)
    )
    save(old, tmp_path)
    read_config = module.read_config

    def read_and_replace(folder: Path) -> object:
        config = read_config(folder)
        save(new, tmp_path)
        return config

    monkeypatch.setattr(module, "read_config", read_and_replace)
    load = BertForMaskedLM.from_pretrained if kind == "bert" else modern_folder.from_pretrained
    with pytest.raises(ValueError, match="was replaced while it was read; try again"):
        load(tmp_path)


@pytest.mark.parametrize("kind", ["bert", "modern"])
def test_an_integer_is_saved_as_a_float_where_transformers_needs_one(kind: str, tmp_path: Path) -> None:
    if kind == "bert":
        config = replace(random_config(0), initializer_range=1, layer_norm_eps=1)
        BertForMaskedLM(config).save_pretrained(tmp_path)
    else:
        modern = ModernBertConfig(20, 16, 1, 2, 24, pad_token_id=0, initializer_range=1, norm_eps=1)
        modern_folder.save_pretrained(ModernBertForMaskedLM(modern), tmp_path)
    theirs = transformers.AutoModelForMaskedLM.from_pretrained(tmp_path)
    assert type(theirs.config.initializer_range) is float


def test_any_layer_can_be_a_new_one(tmp_path: Path) -> None:
    """Except for a pooler, which keeps what the file has."""
    model = BertForPreTraining(replace(random_config(0), num_hidden_layers=2))
    perturb_weights(model, 0)
    model.save_pretrained(tmp_path)
    prefixes = ("bert.encoder.layer.1.", "bert.pooler.", "cls.")
    loaded = BertForPreTraining.from_pretrained(tmp_path, new_parameters=prefixes)
    for (name, ours), theirs in zip(loaded.named_parameters(), model.parameters(), strict=True):
        assert torch.equal(ours, theirs) != name.startswith(("bert.encoder.layer.1.", "cls.")), name


def test_numbers_of_numpy_and_torch_are_saved_as_they_are(tmp_path: Path) -> None:
    class WithSettings(BertForMaskedLM):
        @property
        def extra_config(self) -> dict[str, object]:
            return {"temperature": torch.tensor(1.5), "threshold": np.float32(0.25), "n": np.int64(5)}

    WithSettings(random_config(0)).save_pretrained(tmp_path)
    content = model_folder.read_json(tmp_path)
    assert [content[name] for name in ("temperature", "threshold", "n")] == [1.5, 0.25, 5]


def test_what_would_not_be_loaded_is_not_saved(tmp_path: Path) -> None:
    model = BertForMaskedLM(random_config(0))
    model.norm = nn.BatchNorm1d(4)
    with pytest.raises(
        ValueError, match=r"BatchNorm1d has a buffer, num_batches_tracked, and only parameters are"
    ):
        model.save_pretrained(tmp_path / "folder")
    assert not (tmp_path / "folder").exists()
    del model.norm

    class WithTemperature(BertForMaskedLM):
        def __init__(self, config: BertConfig):
            super().__init__(config)
            self.temperature = nn.Parameter(torch.ones(1))
            # Its buffers are `None`.
            self.norm = nn.BatchNorm1d(4, track_running_stats=False)

    other = WithTemperature(model.config)
    nn.init.constant_(other.temperature, 2.5)
    other.save_pretrained(tmp_path / "folder")
    assert WithTemperature.from_pretrained(tmp_path / "folder").temperature.item() == 2.5


def prune_embedding(model: BertForMaskedLM) -> None:
    prune.l1_unstructured(model.bert.embeddings.word_embeddings, "weight", 0.5)


@pytest.mark.parametrize("wrap", [prune_embedding, compile_encoder])
def test_a_model_with_a_wrapped_layer_has_a_state(wrap) -> None:
    model = BertForMaskedLM(random_config(0))
    wrap(model)
    state = model.state_dict()
    assert state.keys() >= dict(model.named_parameters()).keys()


def test_a_model_with_a_shared_layer_is_not_saved(tmp_path: Path) -> None:
    """The file would have the layer once, and a model that reads it needs it twice."""
    config = BertConfig(vocab_size=20, hidden_size=8, num_hidden_layers=3, num_attention_heads=2)
    model = BertForMaskedLM(config)
    model.bert.encoder.layer[2] = model.bert.encoder.layer[0]
    with pytest.raises(ValueError, match=r"^\S+layer.2.\S+ and \S+layer.0.\S+ are the same; copy the layer"):
        model.save_pretrained(tmp_path / "folder")
    assert not (tmp_path / "folder").exists()


def test_each_loss_alone_and_both() -> None:
    config = random_config(7)
    model = BertForPreTraining(config).eval()
    batch = random_batch(config, 7, True)
    both = model(**batch)
    assert both.loss == both.masked_lm_loss + both.next_sentence_loss
    pairs = batch.pop("next_sentence_label")
    masked_only = model(**batch)
    assert masked_only.next_sentence_loss is None
    assert masked_only.loss == both.masked_lm_loss
    labels = batch.pop("labels")
    assert model(**batch, next_sentence_label=pairs).loss == both.next_sentence_loss
    assert model(**batch).loss is None
    no_labels = torch.full_like(labels, IGNORE)
    output = model(**batch, labels=no_labels, next_sentence_label=pairs)
    assert output.masked_lm_loss == 0
    assert output.loss == both.next_sentence_loss


def test_the_parameter_table_adds_up() -> None:
    with torch.device("meta"):
        table = dict(parameter_table(BertForMaskedLM(BertConfig(vocab_size=21_128))))
    assert table["cls.predictions.transform.dense"] == 590_592
    assert table["cls.predictions.transform.LayerNorm"] == 1_536
    assert table["cls.predictions.bias"] == 21_128
    assert table["bert.encoder.layer × 12"] == 85_054_464
    assert sum(table.values()) == 2 * table["together"]
    table = dict(parameter_table(ModernBertForMaskedLM(ModernBertConfig(20, 32, 3, 4, 48, pad_token_id=0))))
    assert [*table][:3] == ["model.embeddings.tok_embeddings", "model.embeddings.norm", "model.layers × 3"]
    assert sum(table.values()) == 2 * table["together"]
    config = random_config(0)
    assert f"layer × {config.num_hidden_layers}" in dict(parameter_table(BertModel(config).encoder))


def drop_tensor(folder: Path) -> None:
    tensors = load_file(folder / "model.safetensors")
    del tensors["cls.predictions.transform.dense.bias"]
    save_file(tensors, folder / "model.safetensors")


def damage_weights(folder: Path, value: float | torch.dtype) -> None:
    """Sets one weight to `value`, or converts a whole tensor to it."""
    tensors = load_file(folder / "model.safetensors")
    name = "bert.embeddings.LayerNorm.bias"
    if isinstance(value, torch.dtype):
        tensors[name] = tensors[name].to(value)
    else:
        tensors[name][3] = value
    save_file(tensors, folder / "model.safetensors")


def move_down(folder: Path) -> None:
    """Moves the model into `model`, as in a run."""
    folder.rename(folder.with_name("other"))
    folder.mkdir()
    folder.with_name("other").rename(folder / "model")


OUT_OF_RANGE = "must hold floating-point numbers from -10,000 to 10,000"
BAD_FOLDERS = {
    "no folder": (lambda folder: folder.rename(folder.with_name("elsewhere")), "no config.json"),
    "no config": (lambda folder: (folder / "config.json").unlink(), "no config.json"),
    "the folder of a run": (move_down, r"\(no config.json\); use .*model"),
    "no weights": (lambda folder: (folder / "model.safetensors").unlink(), "no model.safetensors"),
    "a pickle": (
        lambda folder: (folder / "model.safetensors").rename(folder / "pytorch_model.bin"),
        "pytorch_model.bin is a pickle",
    ),
    "a pickle under the right name": (
        lambda folder: torch.save({"a": torch.zeros(1)}, folder / "model.safetensors"),
        "damaged or not a safetensors",
    ),
    "cut weights": (
        lambda folder: (folder / "model.safetensors").write_bytes(b"\0" * 100),
        "damaged or not a safetensors",
    ),
    "a config that is not JSON": (
        lambda folder: (folder / "config.json").write_text("{"),
        "not a JSON object",
    ),
    "a config that is a list": (
        lambda folder: (folder / "config.json").write_text("[]"),
        "not a JSON object",
    ),
    "other sizes": (lambda folder: write_config(folder, vocab_size=999), "not from one model"),
    "more layers": (
        lambda folder: write_config(folder, num_hidden_layers=9),
        "2 layers and config.json says 9",
    ),
    "fewer layers": (
        lambda folder: write_config(folder, num_hidden_layers=1),
        "2 layers and config.json says 1",
    ),
    "indivisible hidden size": (lambda folder: write_config(folder, num_attention_heads=7), "not divisible"),
    "a size that is text": (
        lambda folder: write_config(folder, hidden_size="wide"),
        "does not describe a BERT",
    ),
    "another model": (lambda folder: write_config(folder, model_type="roberta"), "model_type = 'roberta'"),
    "another activation": (lambda folder: write_config(folder, hidden_act="gelu_new"), "hidden_act"),
    "causal attention": (lambda folder: write_config(folder, is_causal=True), "is_causal = True"),
    "relative positions": (
        lambda folder: write_config(folder, position_embedding_type="relative_key"),
        "position_embedding_type",
    ),
    "a billion layers": (
        lambda folder: write_config(folder, num_hidden_layers=10**9),
        "it must be from 1 to",
    ),
    "a width larger than memory": (
        lambda folder: write_config(folder, hidden_size=2**62),
        "it must be from 1 to",
    ),
    "more positions than memory": (
        lambda folder: write_config(folder, max_position_embeddings=2**62),
        "it must be from 1 to",
    ),
    "a size with a point": (lambda folder: write_config(folder, hidden_size=16.0), "must be an integer"),
    "an epsilon that is a flag": (
        lambda folder: write_config(folder, layer_norm_eps=True),
        "must be a number",
    ),
    "a negative epsilon": (lambda folder: write_config(folder, layer_norm_eps=-5), "layer_norm_eps"),
    "an epsilon that is text": (
        lambda folder: write_config(folder, layer_norm_eps="small"),
        "does not describe a BERT",
    ),
    "a config that is too deep": (
        lambda folder: (folder / "config.json").write_text("[" * 200_000),
        "nested too deeply|not a JSON object",
    ),
    "weights in several files": (
        lambda folder: (folder / "model.safetensors").rename(folder / "model.safetensors.index.json"),
        "in several files",
    ),
    "a NaN weight": (
        lambda folder: damage_weights(folder, float("nan")),
        OUT_OF_RANGE,
    ),
    "an infinite weight": (
        lambda folder: damage_weights(folder, float("inf")),
        OUT_OF_RANGE,
    ),
    "a weight that overflows": (
        lambda folder: damage_weights(folder, 1e36),
        OUT_OF_RANGE,
    ),
    "integer weights": (
        lambda folder: damage_weights(folder, torch.int32),
        OUT_OF_RANGE,
    ),
    "weights of eight bits": (
        lambda folder: damage_weights(folder, torch.float8_e4m3fn),
        OUT_OF_RANGE,
    ),
    "untied": (lambda folder: write_config(folder, tie_word_embeddings=False), "tie_word_embeddings"),
    "a missing tensor": (drop_tensor, "has no cls.predictions.transform.dense.bias"),
}


@pytest.mark.parametrize("case", BAD_FOLDERS)
def test_inconsistent_folders_are_rejected(case: str, tmp_path: Path) -> None:
    damage, words = BAD_FOLDERS[case]
    folder = tmp_path / "model"
    BertForMaskedLM(
        BertConfig(
            vocab_size=40,
            hidden_size=16,
            num_hidden_layers=2,
            num_attention_heads=2,
            intermediate_size=8,
            max_position_embeddings=8,
        )
    ).save_pretrained(folder)
    BertForMaskedLM.from_pretrained(folder)
    (folder / SUMS).unlink()
    damage(folder)
    with pytest.raises(ValueError, match=words) as error_info:
        BertForMaskedLM.from_pretrained(folder)
    assert "\n" not in str(error_info.value)


def test_weights_that_cannot_be_opened_are_not_called_damaged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    random_model("bert", vocab_size=20, seed=0).save_pretrained(tmp_path)

    original = open

    def refuse(path: Path, *arguments: object, **options: object) -> io.IOBase:
        if Path(path).suffix == ".safetensors":
            raise PermissionError(13, "Permission denied", str(path))
        return original(path, *arguments, **options)  # type: ignore[call-overload, no-any-return]

    monkeypatch.setattr("builtins.open", refuse)
    with pytest.raises(ValueError, match=r"^cannot read .*safetensors: Permission denied; make it readable$"):
        BertForMaskedLM.from_pretrained(tmp_path)


def test_a_configuration_that_cannot_be_read_is_not_called_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(path: Path, most: int) -> bytes:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(model_folder, "read_checked", refuse)
    with pytest.raises(ValueError, match=r"cannot read .*config\.json: Permission denied; make it readable"):
        BertForMaskedLM.from_pretrained(tmp_path)


def test_a_vocabulary_without_the_padding_token_is_rejected() -> None:
    model = BertForMaskedLM(random_config(8))
    with pytest.raises(ValueError, match="no room for the padding token"):
        model.resize_token_embeddings(0)


def test_a_model_with_a_flipped_bit_is_rejected(tmp_path: Path) -> None:
    BertForMaskedLM(random_config(0)).save_pretrained(tmp_path)
    path = tmp_path / "model.safetensors"
    data = path.read_bytes()
    path.write_bytes(flip_bit(data, len(data) - 7))
    with pytest.raises(ValueError, match=r"does not have the sha256.*; save it again"):
        BertForMaskedLM.from_pretrained(tmp_path)
    (tmp_path / SUMS).unlink()
    with pytest.raises(ValueError, match=r"does not have the sha256.*save it again"):
        BertForMaskedLM.from_pretrained(tmp_path)


@pytest.mark.parametrize("is_modern", [False, True])
def test_the_weights_of_another_model_are_rejected(is_modern: bool, tmp_path: Path) -> None:
    """The other file is whole, and fits the configuration."""
    for seed in (0, 1):
        torch.manual_seed(seed)
        if is_modern:
            config = ModernBertConfig(20, 16, 1, 2, 24, pad_token_id=0)
            modern_folder.save_pretrained(ModernBertForMaskedLM(config), tmp_path / str(seed))
        else:
            BertForMaskedLM(random_config(0)).save_pretrained(tmp_path / str(seed))
    load = modern_folder.from_pretrained if is_modern else BertForMaskedLM.from_pretrained
    load(tmp_path / "1")
    shutil.copy(tmp_path / "0" / "model.safetensors", tmp_path / "1")
    with pytest.raises(
        ValueError, match=rf"does not have the sha256 that it was saved with.*remove its line from {SUMS}"
    ):
        load(tmp_path / "1")


@pytest.mark.parametrize("model_class", [BertForMaskedLM, BertForPreTraining])
def test_labels_of_another_width_are_refused(model_class: type[BertForMaskedLM]) -> None:
    model = model_class(random_config(8))
    with pytest.raises(ValueError, match=r"labels must have the shape of input_ids, \(2, 9\)"):
        model(torch.ones(2, 9, dtype=torch.long), torch.full((2, 8), 3))


class KilledError(BaseException):
    """Stands for a process that is killed."""


@pytest.mark.parametrize("kind", ["bert", "modern"])
def test_after_two_killed_saves_no_model_has_the_configuration_of_another(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """First, a save of the new model over the old one is killed, and then a save of the old one again."""
    old, new = two_models(kind)
    save, load = SAVE_AND_LOAD[kind]
    ids = torch.arange(5, 15)[None]
    expected = [model(ids).logits for model in (old, new)]
    outcomes = []
    for first, second in itertools.product(range(6), repeat=2):
        folder = tmp_path / f"{first} {second}"
        save(old, folder)
        for model, count in ((new, first), (old, second)):
            left = iter(range(count))

            def replace(source: Path, target: Path, left: Any = left) -> None:
                if next(left, None) is None:
                    raise KilledError
                os.rename(source, target)

            monkeypatch.setattr(os, "replace", replace)
            with contextlib.suppress(KilledError):
                save(model, folder)
            monkeypatch.undo()
        with contextlib.suppress(ValueError):
            logits = load(folder)(ids).logits
            outcomes.append([torch.equal(logits, other) for other in expected])
    assert sorted(map(tuple, outcomes))[0] == (False, True) and outcomes[-1] == [True, False]
    assert [False, False] not in outcomes


@pytest.mark.parametrize("has_sums", [True, False])
@pytest.mark.parametrize("kind", ["bert", "modern"])
def test_a_model_that_is_saved_over_another_never_gets_its_configuration(
    kind: str, has_sums: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old, new = two_models(kind)
    save, load = SAVE_AND_LOAD[kind]
    ids, outcomes = torch.arange(5, 15)[None], []
    expected = {"old": old(ids).logits, "new": new(ids).logits}
    for number in itertools.count():
        folder, renames = tmp_path / str(number), 0
        save(old, folder)
        if not has_sums:
            (folder / SUMS).unlink()

        def replace(source: Path, target: Path, number: int = number) -> None:
            nonlocal renames
            renames += 1
            if renames > number:
                raise KilledError
            os.rename(source, target)

        monkeypatch.setattr(os, "replace", replace)
        with contextlib.suppress(KilledError):
            save(new, folder)
        monkeypatch.undo()
        try:
            logits = load(folder)(ids).logits
        except ValueError:
            outcomes.append("refused")
            continue
        outcomes += [name for name, value in expected.items() if torch.equal(value, logits)] or ["mixed"]
        if renames <= number:
            break
    assert {*outcomes} == {"old", "refused", "new"} and outcomes[-1] == "new", outcomes
