r"""
# Whole models, and their weights in files

How do the parts become a model that any BERT program can load? This file puts the heads of `mlm.py` and
`nsp.py` on the encoder of `bert.py`. With both heads, a model adds up the two losses, as the paper does:

$$\mathcal L = \mathcal L_{\text{masked}} + \mathcal L_{\text{next sentence}}$$

Every parameter has the same name and shape as in `transformers`, so `transformers` can read a folder that
this project wrote. This project can read a BERT folder from `transformers` unless a setting isn't implemented
here. Such a folder contains the sizes in `config.json` and the weights in `model.safetensors`.

    model = BertForMaskedLM.from_pretrained("bert-base-uncased")  # a folder on your disk
    model.bert  # the encoder, the only part that most tasks keep

Letters for sizes: `B` sequences in the batch, `T` tokens in a sequence, `P` output positions in a sequence,
`D` hidden size, `V` vocabulary, `M` masked positions in the whole batch.
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor, nn

from labml_bert.bert import BertConfig, BertModel, BertModelOutput, init_weights
from labml_bert.checksums import reading
from labml_bert.mlm import (
    BertLMPredictionHead,
    MaskedLMOutput,
    masked_lm_loss,
    masked_lm_positions,
    select_labeled,
)
from labml_bert.model_folder import (
    ALIASES,
    MODEL_FILES,
    as_entries,
    check_names,
    check_sizes,
    check_tensors,
    drop_aliases,
    load_weights,
    read_config,
    read_tensors,
    write_model,
)
from labml_bert.nsp import BertOnlyNSPHead, next_sentence_loss


class BertOnlyMLMHead(nn.Module):
    """In a model, this wrapper names the head's parameters `cls.predictions.…`, as in `transformers`."""

    def __init__(self, config: BertConfig):
        super().__init__()
        self.predictions = BertLMPredictionHead(config.hidden_size, config.vocab_size, config.layer_norm_eps)


class BertPreTrainingHeads(BertOnlyNSPHead):
    """Contains both heads. A model calls them `cls.predictions` and `cls.seq_relationship`."""

    def __init__(self, config: BertConfig):
        super().__init__(config.hidden_size)
        self.predictions = BertLMPredictionHead(config.hidden_size, config.vocab_size, config.layer_norm_eps)


class BertPreTrainedModel(nn.Module):
    """
    ## The base class

    Every model has a configuration and an encoder called `bert`. You can save a model to a folder and load it
    again.

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
        Returns the encoder's output and the labels at the same positions. With `labels`, `(B, T)`, these are
        the `P` positions of `masked_lm_positions`: the labeled positions of each row and, in rows with fewer
        labels than others, also unlabeled ones. Without `labels`, the output has all positions, and the
        labels are `None`.
        """
        if labels is None:
            return self.bert(input_ids, **inputs), None
        if labels.shape != input_ids.shape:
            raise ValueError(f"labels must have the shape of input_ids, {tuple(input_ids.shape)}")
        positions = masked_lm_positions(labels)  # (B, P)
        outputs = self.bert(input_ids, output_positions=positions, **inputs)
        return outputs, labels.gather(1, positions)

    @property
    def extra_config(self) -> dict[str, Any]:
        """The entries that a subclass adds to `config.json`, such as the names of the classes."""
        return {}

    def save_pretrained(self, folder: Path | str) -> None:
        """
        Writes `config.json` and `model.safetensors` to `folder`, which is created if it's missing.

        Raises `ValueError` if a layer has LoRA or another parametrization, if a layer is wrapped, for example
        by `torch.compile`, if the model contains a layer twice, if the encoder has other layers or sizes than
        `config`, or if a subclass has a persistent buffer. `from_pretrained` could not load such a file.
        Only one process may save to a folder at a time.
        """
        pooler = self.bert.pooler is not None
        check_names(self, "bert", lambda config: BertModel(config, pooler), check_sizes)
        kind = {"architectures": [type(self).__name__], "model_type": "bert", "hidden_act": "gelu"}
        config = kind | as_entries(self.config) | self.extra_config
        # `named_parameters` lists the tied embedding only once, under its name in the encoder.
        write_model(Path(folder), config, dict(self.named_parameters()))

    @classmethod
    def from_pretrained(
        cls, folder: Path | str, new_parameters: Sequence[str] = (), **arguments: Any
    ) -> Self:
        """
        Loads a model from a folder and returns it in eval mode. The folder can come from `save_pretrained` of
        this project or of `transformers`. Tensors that this class has no parameter for, such as those of
        other heads, are ignored. Parameters whose names start with one of the prefixes in `new_parameters`
        keep their initial values. The pooler is an exception: if the file has one, it's loaded. `arguments`
        go to the constructor.

        Raises `ValueError` if a file is missing, damaged, or replaced meanwhile, if any other parameter is
        missing, if the sizes of the tensors don't match `config.json`, or if a setting isn't implemented.
        """
        with reading(Path(folder), *MODEL_FILES) as path:
            config, tensors = read_config(path), read_tensors(path)
        check_sizes(config, tensors, path / "model.safetensors")
        check_tensors(config, tensors, path / "model.safetensors")
        model = cls(config, **arguments)
        load_weights(model, tensors, path / "model.safetensors", new_parameters)
        return model.eval()

    def resize_token_embeddings(self, vocab_size: int) -> None:
        """
        Changes the size of the vocabulary to `vocab_size` tokens by adding rows at the end of the embedding
        or removing its last rows. New rows get random initial values. If the model has a masked LM head, the
        head's bias is resized too, with zeros at the end. Early versions of `transformers` [forgot the
        bias](https://github.com/huggingface/transformers/issues/2480).

        Raises `ValueError` if the padding token would be removed.
        """
        pad = self.config.pad_token_id
        if vocab_size <= pad:
            raise ValueError(
                f"vocab_size {vocab_size} has no room for the padding token {pad}; keep {pad + 1}"
            )
        old = self.bert.embeddings.word_embeddings
        new = nn.Embedding(vocab_size, old.embedding_dim, padding_idx=pad)
        init_weights(new, self.config.initializer_range)
        new = new.to(old.weight)
        shared_rows = min(vocab_size, old.num_embeddings)
        with torch.no_grad():
            new.weight[:shared_rows] = old.weight[:shared_rows]
        new.weight.requires_grad = old.weight.requires_grad
        self.bert.embeddings.word_embeddings = new
        # Another model may use the same configuration, so make a new one.
        self.config = self.bert.config = replace(self.config, vocab_size=vocab_size)
        for module in self.modules():
            if isinstance(module, BertLMPredictionHead):
                bias = module.bias.new_zeros(vocab_size)
                bias[:shared_rows] = module.bias.detach()[:shared_rows]
                module.bias = nn.Parameter(bias, module.bias.requires_grad)


def tie_embeddings(model: nn.Module) -> None:
    """
    ## How the embeddings stay tied

    The output matrix is the token embedding itself. The embedding module owns the matrix, and the head gets
    it as an argument in each call. So the two uses stay tied when you copy, move, save or resize the model.
    As in `transformers`, a `state_dict` lists the matrix and the head's bias under two names each.
    `load_state_dict` checks that the two entries agree and ignores the second. No layer has the second names.
    A tool that looks for one fails, so give it `named_parameters`. This function adds the hooks.
    """
    model.register_state_dict_post_hook(add_aliases_on_save)
    model.register_load_state_dict_pre_hook(drop_aliases_on_load)


def add_aliases_on_save(module: nn.Module, state: dict[str, Any], prefix: str, metadata: Any) -> None:
    """Adds the second names in `ALIASES` to a `state_dict` that PyTorch has collected."""
    for alias, owner in ALIASES.items():
        # Compiling, pruning and similar tools rename the parameters of a module.
        if prefix + owner in state:
            state[prefix + alias] = state[prefix + owner]


def drop_aliases_on_load(module: nn.Module, state: dict[str, Any], prefix: str, *rest: Any) -> None:
    """Removes the second names before loading. `rest` are other arguments that PyTorch passes."""
    drop_aliases(state, prefix)


class BertForMaskedLM(BertPreTrainedModel):
    """
    ## Encoder and masked LM head

    This model has no pooler. The masked LM loss doesn't depend on one, so a pooler would get no gradient.

    Source: `modeling_bert.py` of [transformers](https://github.com/huggingface/transformers).
    """

    def __init__(self, config: BertConfig):
        super().__init__(config, add_pooling_layer=False)
        self.cls = BertOnlyMLMHead(config)
        self.cls.apply(lambda module: init_weights(module, config.initializer_range))
        tie_embeddings(self)

    def forward(
        self,
        input_ids: Tensor,  # (B, T)
        labels: Tensor | None = None,
        num_items_in_batch: Tensor | None = None,
        **inputs: Tensor,
    ) -> MaskedLMOutput:
        """
        `input_ids` and `labels` are `(B, T)`. For `num_items_in_batch`, see `masked_lm_loss`. `inputs` are
        other arguments of `BertModel.forward`. With labels, the logits are `(M, V)`, at the labeled positions
        only. Without labels, the logits are `(B, T, V)`.
        """
        outputs, labels = self.encode(input_ids, labels, inputs)
        embedding = self.bert.embeddings.word_embeddings.weight  # (V, D)
        hidden = outputs.last_hidden_state  # (B, P, D)
        hidden, labels = select_labeled(hidden, labels)
        logits = self.cls.predictions(hidden, embedding)
        loss = None if labels is None else masked_lm_loss(logits, labels, num_items_in_batch)
        return MaskedLMOutput(loss, logits, labels)


class PreTrainingOutput(NamedTuple):
    """The output of `BertForPreTraining`. The loss of a task is `None` if you don't pass its labels."""

    loss: Tensor | None
    """The sum of the losses below that aren't `None`, in nats. If both are `None`, so is the sum."""
    masked_lm_loss: Tensor | None
    next_sentence_loss: Tensor | None
    prediction_logits: Tensor
    """`(M, V)` with masked LM labels, `(B, T, V)` without them."""
    labels: Tensor | None
    """`(M)`, the true tokens at the positions of `prediction_logits`. `None` without labels."""
    seq_relationship_logits: Tensor
    """`(B, 2)`, the logits of *next* and *random*."""


class BertForPreTraining(BertPreTrainedModel):
    """
    ## Encoder and both heads

    `BertForPreTraining(BertConfig())` is BERT base, with 110,106,428 parameters.

    Source: [paper](https://arxiv.org/abs/1810.04805), section 3.1; `run_pretraining.py` of
    [google-research/bert](https://github.com/google-research/bert).
    """

    def __init__(self, config: BertConfig):
        super().__init__(config)
        self.cls = BertPreTrainingHeads(config)
        self.cls.apply(lambda module: init_weights(module, config.initializer_range))
        tie_embeddings(self)

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
        `labels` is `(B, T)`. `next_sentence_label` is `(B)`, with 0 for *next* and 1 for *random*. If these
        rows are only a micro-batch, pass the number of labeled tokens in the whole batch as
        `num_items_in_batch`, and the number of labeled pairs as `num_pairs_in_batch`; see `masked_lm_loss`
        and `next_sentence_loss`. `inputs` are other arguments of `BertModel.forward`.
        """
        outputs, labels = self.encode(input_ids, labels, inputs)
        embedding = self.bert.embeddings.word_embeddings.weight  # (V, D)
        hidden = outputs.last_hidden_state  # (B, P, D)
        hidden, labels = select_labeled(hidden, labels)
        logits = self.cls.predictions(hidden, embedding)
        masked = None if labels is None else masked_lm_loss(logits, labels, num_items_in_batch)
        scores = self.cls(outputs.pooler_output)  # (B, 2)
        pairs = None
        if next_sentence_label is not None:
            pairs = next_sentence_loss(scores, next_sentence_label, num_pairs_in_batch)
        losses = [loss for loss in (masked, pairs) if loss is not None]
        total = torch.stack(losses).sum() if losses else None
        return PreTrainingOutput(total, masked, pairs, logits, labels, scores)


def parameter_table(model: nn.Module) -> list[tuple[str, int]]:
    """
    ## Where the parameters are

    Returns a row `(part, number of parameters)` for each part of the model, and a last row with the sum. All
    blocks share one row. Elsewhere, a layer's weight and bias share one. A tied tensor counts once.
    """
    rows: dict[str, int] = {}
    for name, parameter in model.named_parameters():
        path = name.split(".")
        # The list of blocks is called `layer` in BERT and `layers` in ModernBERT.
        if layer := next((part for part in ("layer", "layers") if part in path), ""):
            index = path.index(layer)
            start = path[: index + 1]
            paths = (n.split(".") for n, _ in model.named_parameters())
            count = len({p[index + 1] for p in paths if p[: index + 1] == start})
            part = ".".join(start) + f" × {count}"
        else:
            part = ".".join(path[:-1])
            part = f"{part}.bias" if name.endswith("predictions.bias") else part
        rows[part] = rows.get(part, 0) + parameter.numel()
    return [*rows.items(), ("together", sum(rows.values()))]
