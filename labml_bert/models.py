r"""
# Encoder, heads, and weights that travel

How do the parts become a model that anybody can load? Here the encoder of `bert.py` meets the heads of
`mlm.py` and `nsp.py`, and the two losses are added, as the paper adds them:

$$\mathcal L = \mathcal L_{\text{masked}} + \mathcal L_{\text{next sentence}}$$

Every parameter has the name and the shape that it has in `transformers`. So a folder written by one is
read by the other: `config.json` for the sizes and `model.safetensors` for the numbers.

    model = BertForMaskedLM.from_pretrained("bert-base-uncased")  # a folder on your disk
    model.bert  # the backbone, all that most tasks keep

Letters for sizes: `B` sequences in the batch, `T` tokens in a sequence, `D` hidden size, `V` vocabulary, `M`
masked places.
"""

import json
from collections.abc import Sequence
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor, nn

from labml_bert import files
from labml_bert.bert import BertConfig, BertModel, BertModelOutput, init_weights
from labml_bert.checks import check_config
from labml_bert.mlm import (
    BertLMPredictionHead,
    MaskedLMOutput,
    masked_lm_loss,
    masked_lm_positions,
    select_labeled,
)
from labml_bert.nsp import BertOnlyNSPHead, next_sentence_loss

EMBEDDING = "bert.embeddings.word_embeddings.weight"
BIAS = "cls.predictions.bias"
# In `transformers` the tied matrix and its bias have a second name each.
ALIASES = {"cls.predictions.decoder.weight": EMBEDDING, "cls.predictions.decoder.bias": BIAS}


class BertOnlyMLMHead(nn.Module):
    """A room around the head, so that its parameters are called `cls.predictions.…`."""

    def __init__(self, config: BertConfig):
        super().__init__()
        self.predictions = BertLMPredictionHead(config.hidden_size, config.vocab_size, config.layer_norm_eps)


class BertPreTrainingHeads(BertOnlyNSPHead):
    """Both heads: `cls.predictions.…` and `cls.seq_relationship.…`."""

    def __init__(self, config: BertConfig):
        super().__init__(config.hidden_size)
        self.predictions = BertLMPredictionHead(config.hidden_size, config.vocab_size, config.layer_norm_eps)


class BertPreTrainedModel(nn.Module):
    """
    ## What all models share

    An encoder called `bert`, a configuration, and the way in and out of a folder.

    Source: `modeling_utils.py` of [transformers](https://github.com/huggingface/transformers).
    """

    def __init__(self, config: BertConfig, add_pooling_layer: bool = True):
        super().__init__()
        self.config = config
        self.bert = BertModel(config, add_pooling_layer)

    def encode(
        self, input_ids: Tensor, labels: Tensor | None, inputs: dict[str, Tensor]
    ) -> tuple[BertModelOutput, Tensor | None]:
        """
        The encoder's output, and the labels that go with it. With `labels`, `(B, T)`, both are `(B, P, …)`:
        the places that have one, and some to fill up the rows.
        """
        if labels is None:
            return self.bert(input_ids, **inputs), None
        positions = masked_lm_positions(labels)  # (B, P)
        encoded = self.bert(input_ids, output_positions=positions, **inputs)
        return encoded, labels.gather(1, positions)

    def more_config(self) -> dict[str, Any]:
        """What `config.json` has to say beside the sizes."""
        return {}

    def save_pretrained(self, folder: Path | str) -> None:
        """
        Writes `config.json` and `model.safetensors` to `folder`, which is made if need be.
        """
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        config: dict[str, Any] = {
            "architectures": [type(self).__name__],
            "model_type": "bert",
            "hidden_act": "gelu",
        }
        config |= asdict(self.config) | self.more_config()
        # Each parameter once: a tied one under the name of its owner.
        files.write_tensors(folder / "model.safetensors", dict(self.named_parameters()), {"format": "pt"})
        files.write_whole(folder / "config.json", json.dumps(config, indent=2, sort_keys=True))

    @classmethod
    def from_pretrained(cls, folder: Path | str, fresh: Sequence[str] = (), **arguments: Any) -> Self:
        """
        Reads what `save_pretrained` wrote, ours or that of `transformers`. Tensors of other heads are
        passed over. `fresh` names the beginnings of those that may be missing, and then keep the values of
        an untrained model; `arguments` go to the class. The model is in eval mode.

        Raises `ValueError` where a file is missing or damaged, where the numbers do not fit the sizes in
        `config.json`, or where the model is one that this class does not describe.
        """
        folder = Path(folder)
        config, found = read_config(folder), read_tensors(folder)
        # Before a model is built that may be larger than any memory.
        check_sizes(config, found, folder / "model.safetensors")
        model = cls(config, **arguments)
        fill(model, found, folder / "model.safetensors", fresh)
        return model.eval()

    def resize_token_embeddings(self, vocab_size: int) -> None:
        """
        Makes room for `vocab_size` tokens, or takes it away from the last ones. New rows start as an
        untrained model's. The bias of the head, if there is one, follows; one that stays behind is the
        [known fault](https://github.com/huggingface/transformers/issues/2480) of such code.

        Raises `ValueError` where nothing would be left, or the padding token would go.
        """
        if vocab_size <= self.config.pad_token_id:
            raise ValueError(
                f"vocab_size {vocab_size} has no room for the padding token {self.config.pad_token_id}; "
                f"keep at least {self.config.pad_token_id + 1}"
            )
        old = self.bert.embeddings.word_embeddings
        new = nn.Embedding(vocab_size, old.embedding_dim, padding_idx=self.config.pad_token_id)
        init_weights(new, self.config.initializer_range)
        new = new.to(old.weight)
        kept = min(vocab_size, old.num_embeddings)
        with torch.no_grad():
            new.weight[:kept] = old.weight[:kept]
        self.bert.embeddings.word_embeddings = new
        self.config.vocab_size = vocab_size
        for module in self.modules():
            if isinstance(module, BertLMPredictionHead):
                bias = module.bias.new_zeros(vocab_size)
                bias[:kept] = module.bias.detach()[:kept]
                module.bias = nn.Parameter(bias)


def check_sizes(config: BertConfig, found: dict[str, Tensor], path: Path) -> None:
    """
    Raises `ValueError` where the tensors of the encoder have other sizes than `config`, or hold anything but
    finite fractions. `path` is where they are from.
    """
    layers = {name.split(".")[3] for name in found if name.startswith("bert.encoder.layer.")}
    if len(layers) != config.num_hidden_layers:
        raise ValueError(
            f"{path} has {len(layers)} layers and config.json says {config.num_hidden_layers}; the two are "
            "not from one model"
        )
    D = config.hidden_size
    expected = {
        EMBEDDING: (config.vocab_size, D),
        "bert.embeddings.position_embeddings.weight": (config.max_position_embeddings, D),
        "bert.embeddings.token_type_embeddings.weight": (config.type_vocab_size, D),
        "bert.encoder.layer.0.intermediate.dense.weight": (config.intermediate_size, D),
    }
    for name, shape in expected.items():
        if name in found and found[name].shape != shape:
            raise ValueError(
                f"{name} is {tuple(found[name].shape)} in {path} and {shape} by config.json; the two are not "
                "from one model"
            )
    for name, tensor in found.items():
        if not tensor.is_floating_point() or not tensor.isfinite().all():
            raise ValueError(f"{name} in {path} holds more than finite fractions; save the model again")


def fill(model: BertPreTrainedModel, found: dict[str, Tensor], path: Path, fresh: Sequence[str] = ()) -> None:
    """
    Copies the tensors of `found` into the parameters of the same name. `path` is where they are from, for
    the message; `fresh` as in `BertPreTrainedModel.from_pretrained`.

    Raises `ValueError` where one is missing or has another shape. The model is then as it was.
    """
    wanted = dict(model.named_parameters())
    missing = [name for name in wanted if name not in found and not name.startswith(tuple(fresh))]
    if missing:
        raise ValueError(
            f"{path} has no {missing[0]}, which {type(model).__name__} needs; it was saved from another kind "
            "of model"
        )
    shared = wanted.keys() & found.keys()
    for name in sorted(shared):
        if found[name].shape != wanted[name].shape:
            raise ValueError(
                f"{name} is {tuple(found[name].shape)} in {path} and {tuple(wanted[name].shape)} by the "
                "configuration; the two are not from one model"
            )
    with torch.no_grad():
        for name in shared:
            wanted[name].copy_(found[name])


def read_json(folder: Path) -> dict[str, Any]:
    """
    All of `config.json`.

    Raises `ValueError` where the file is missing or is no JSON object.
    """
    path = folder / "config.json"
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        found.items()
    except RecursionError:
        raise ValueError(f"{path} is nested too deeply to be read; save the model again") from None
    except OSError:
        raise ValueError(f"there is no model in {folder} (no config.json); give the folder of one") from None
    except (ValueError, AttributeError):
        raise ValueError(f"{path} is no JSON object; save the model again") from None
    return found


def read_config(folder: Path) -> BertConfig:
    """
    The sizes in `config.json`. What we have no field for is passed over, unless it says that the model
    computes something else than ours.

    Raises `ValueError` where the file is missing, is no JSON object, or is of another model.
    """
    path, found = folder / "config.json", read_json(folder)
    ours = {
        "model_type": "bert",
        "hidden_act": "gelu",
        "position_embedding_type": "absolute",
        "is_decoder": False,
        "tie_word_embeddings": True,
    }
    for name, value in ours.items():
        if found.get(name, value) != value:
            raise ValueError(f"{path} says {name} = {found[name]!r}; only {value!r} is BERT as built here")
    sizes = {
        field.name: found[field.name] for field in fields(BertConfig) if found.get(field.name) is not None
    }
    try:
        config = BertConfig(**sizes)
        check_config(config)
    except (ValueError, TypeError) as error:
        raise ValueError(f"{path} is no BERT: {error}") from None
    return config


def read_tensors(folder: Path) -> dict[str, Tensor]:
    """
    The tensors of `model.safetensors` by the names that they have here. The first checkpoints called a
    LayerNorm's weight `gamma` and its bias `beta`; a backbone saved alone has no `bert.` before its names.

    Raises `ValueError` where the file is missing or damaged, and for a pickle, which can run any code
    when it is opened and is never opened here.
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
        raise ValueError(
            f"there are no weights in {folder} (no model.safetensors); give the folder of a model"
        )
    try:
        found, _ = files.read_tensors(path)
    except ValueError as error:
        raise ValueError(f"{error}; save it again") from None
    renamed = {}
    for name, tensor in found.items():
        # Old files hold the numbers 0, 1, 2, … too.
        if name.endswith("embeddings.position_ids"):
            continue
        name = name.replace("LayerNorm.gamma", "LayerNorm.weight").replace("LayerNorm.beta", "LayerNorm.bias")
        renamed[name] = tensor
    if not any(name.startswith("bert.") for name in renamed):
        renamed = {f"bert.{name}": tensor for name, tensor in renamed.items()}
    drop_aliases(renamed)
    return renamed


def drop_aliases(state: dict[str, Tensor], prefix: str = "") -> None:
    """
    Takes the second names of tied tensors out of `state`.

    Raises `ValueError` where the two names hold different numbers: such a model is not tied, and half of it
    would be lost.
    """
    for alias, owner in ALIASES.items():
        second = state.pop(prefix + alias, None)
        first = state.get(prefix + owner)
        if first is None and second is not None:
            state[prefix + owner] = second
        elif first is not None and second is not None and not torch.equal(first, second):
            raise ValueError(
                f"{alias} differs from {owner}; an untied output layer is not BERT as built here"
            )


def tie(model: nn.Module) -> None:
    """
    ## Tied, whatever is done to it

    The output matrix is the token embedding. It is handed to the head at each call and has one owner, so
    copying, moving, saving or resizing the model cannot part them. Only the `state_dict` names it
    twice, because in `transformers` it does; on the way in the second name is checked and dropped.
    """

    model.register_state_dict_post_hook(name_twice)
    model.register_load_state_dict_pre_hook(name_once)


def name_twice(module: nn.Module, state: dict[str, Any], prefix: str, metadata: Any) -> None:
    """Gives the tied tensors their second names too."""
    for alias, owner in ALIASES.items():
        state[prefix + alias] = state[prefix + owner]


def name_once(module: nn.Module, state: dict[str, Any], prefix: str, *rest: Any) -> None:
    """Takes them away again."""
    drop_aliases(state, prefix)


class BertForMaskedLM(BertPreTrainedModel):
    """
    ## Encoder and masked head

    No pooler, which no part of this loss would train.

    Source: `modeling_bert.py` of [transformers](https://github.com/huggingface/transformers).
    """

    def __init__(self, config: BertConfig):
        super().__init__(config, add_pooling_layer=False)
        self.cls = BertOnlyMLMHead(config)
        self.cls.apply(lambda module: init_weights(module, config.initializer_range))
        tie(self)

    def forward(
        self,
        input_ids: Tensor,  # (B, T)
        labels: Tensor | None = None,
        num_items_in_batch: Tensor | None = None,
        **inputs: Tensor,
    ) -> MaskedLMOutput:
        """
        `input_ids` and `labels` are `(B, T)`; `num_items_in_batch` is that of `masked_lm_loss`; `inputs` are
        those of `BertModel.forward`. With labels, the logits are `(M, V)`, at the labelled places only;
        without, `(B, T, V)`.
        """
        encoded, labels = self.encode(input_ids, labels, inputs)
        embedding = self.bert.embeddings.word_embeddings.weight  # (V, D)
        hidden = encoded.last_hidden_state  # (B, P, D)
        hidden, labels = select_labeled(hidden, labels)
        logits = self.cls.predictions(hidden, embedding)
        loss = None if labels is None else masked_lm_loss(logits, labels, num_items_in_batch)
        return MaskedLMOutput(loss, logits, labels)


class PreTrainingOutput(NamedTuple):
    """What `BertForPreTraining` returns. Each loss is `None` without its labels."""

    loss: Tensor | None
    """The sum of those below that are there, in nats."""
    masked_lm_loss: Tensor | None
    next_sentence_loss: Tensor | None
    prediction_logits: Tensor
    """As `MaskedLMOutput.logits`."""
    labels: Tensor | None
    """`(M)`, the true tokens that belong to `prediction_logits`."""
    seq_relationship_logits: Tensor
    """`(B, 2)`: next, random."""


class BertForPreTraining(BertPreTrainedModel):
    """
    ## Encoder and both heads

    `BertForPreTraining(BertConfig())` has 110,106,428 parameters, as BERT base has.

    Source: [paper](https://arxiv.org/abs/1810.04805), section 3.1; `run_pretraining.py` of
    [google-research/bert](https://github.com/google-research/bert).
    """

    def __init__(self, config: BertConfig):
        super().__init__(config)
        self.cls = BertPreTrainingHeads(config)
        self.cls.apply(lambda module: init_weights(module, config.initializer_range))
        tie(self)

    def forward(
        self,
        input_ids: Tensor,  # (B, T)
        labels: Tensor | None = None,
        next_sentence_label: Tensor | None = None,
        num_items_in_batch: Tensor | None = None,
        num_pairs_in_batch: Tensor | None = None,
        **inputs: Tensor,
    ) -> PreTrainingOutput:
        """
        `labels` is `(B, T)`, `next_sentence_label` `(B)` with 0 for *is next*; the two counts are those of
        `masked_lm_loss` and `next_sentence_loss`, for a part of a batch; `inputs` are those of
        `BertModel.forward`.
        """
        encoded, labels = self.encode(input_ids, labels, inputs)
        embedding = self.bert.embeddings.word_embeddings.weight  # (V, D)
        hidden = encoded.last_hidden_state  # (B, P, D)
        hidden, labels = select_labeled(hidden, labels)
        logits = self.cls.predictions(hidden, embedding)
        masked = None if labels is None else masked_lm_loss(logits, labels, num_items_in_batch)
        scores = self.cls(encoded.pooler_output)  # (B, 2)
        pairs = None
        if next_sentence_label is not None:
            pairs = next_sentence_loss(scores, next_sentence_label, num_pairs_in_batch)
        losses = [loss for loss in (masked, pairs) if loss is not None]
        total = torch.stack(losses).sum() if losses else None
        return PreTrainingOutput(total, masked, pairs, logits, labels, scores)


def parameter_table(model: nn.Module) -> list[tuple[str, int]]:
    """
    ## Where the parameters are

    `(part, parameters)` for each part of a model, a part once. The blocks are one row, and so are weight and
    bias of a layer. The last row is the sum.
    """
    rows: dict[str, int] = {}
    for name, parameter in model.named_parameters():
        path = name.split(".")
        if "layer" in path:
            at = path.index("layer")
            count = len({n.split(".")[at + 1] for n, _ in model.named_parameters() if ".layer." in n})
            part = ".".join(path[: at + 1]) + f" × {count}"
        else:
            part = ".".join(path[:-1])
            part = f"{part}.bias" if name.endswith("predictions.bias") else part
        rows[part] = rows.get(part, 0) + parameter.numel()
    return [*rows.items(), ("together", sum(rows.values()))]
