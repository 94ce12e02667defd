r"""
# Whole models, and their weights in files

How do the parts become a model that any BERT program can load? This file puts the heads of `mlm.py` and
`nsp.py` on the encoder of `bert.py` and adds up their two losses, as the paper does:

$$\mathcal L = \mathcal L_{\text{masked}} + \mathcal L_{\text{next sentence}}$$

Every parameter has the same name and shape as in `transformers`, so `transformers` can read a folder that
this project wrote, and the other way around. Such a folder contains the sizes in `config.json` and the
weights in `model.safetensors`.

    model = BertForMaskedLM.from_pretrained("bert-base-uncased")  # a folder on your disk
    model.bert  # the encoder, the only part that most tasks keep

Letters for sizes: `B` sequences in the batch, `T` tokens in a sequence, `P` output positions in a sequence,
`D` hidden size, `V` vocabulary, `M` masked positions in the whole batch.
"""

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor, nn

from labml_bert import files
from labml_bert.bert import BertConfig, BertModel, BertModelOutput, init_weights
from labml_bert.checksums import write_checked
from labml_bert.mlm import (
    BertLMPredictionHead,
    MaskedLMOutput,
    masked_lm_loss,
    masked_lm_positions,
    select_labeled,
)
from labml_bert.model_folder import (
    ALIASES,
    check_parameter_count,
    check_sizes,
    drop_aliases,
    load_weights,
    read_config,
    read_tensors,
)
from labml_bert.nsp import BertOnlyNSPHead, next_sentence_loss


class BertOnlyMLMHead(nn.Module):
    """Wraps the head so that its parameters are called `cls.predictions.…`, as in `transformers`."""

    def __init__(self, config: BertConfig):
        super().__init__()
        self.predictions = BertLMPredictionHead(config.hidden_size, config.vocab_size, config.layer_norm_eps)


class BertPreTrainingHeads(BertOnlyNSPHead):
    """Contains both heads. Their parameters are called `cls.predictions.…` and `cls.seq_relationship.…`."""

    def __init__(self, config: BertConfig):
        super().__init__(config.hidden_size)
        self.predictions = BertLMPredictionHead(config.hidden_size, config.vocab_size, config.layer_norm_eps)


class BertPreTrainedModel(nn.Module):
    """
    ## The base class

    Every model has a configuration and an encoder called `bert`, and can be saved to a folder and loaded.

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
        Returns the encoder's output and the labels at the same positions. If you pass `labels`, `(B, T)`, the
        result has only the labeled positions of each row, `(B, P, …)`. A row with fewer than `P` labels is
        padded with unlabeled positions.
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
        """The entries that a subclass adds to `config.json`, such as the names of the output classes."""
        return {}

    def save_pretrained(self, folder: Path | str) -> None:
        """Writes `config.json` and `model.safetensors` to `folder`, and creates the folder if needed."""
        folder = Path(folder)
        files.make_folder(folder)
        kind = {"architectures": [type(self).__name__], "model_type": "bert", "hidden_act": "gelu"}
        config = kind | asdict(self.config) | self.extra_config
        # `named_parameters` lists a tied tensor once, under the name of its owner.
        files.write_tensors(folder / "model.safetensors", dict(self.named_parameters()), {"format": "pt"})
        write_checked(folder / "config.json", json.dumps(config, indent=2, sort_keys=True))

    @classmethod
    def from_pretrained(
        cls, folder: Path | str, new_parameters: Sequence[str] = (), **arguments: Any
    ) -> Self:
        """
        Loads a model from a folder and returns it in eval mode. The folder can come from `save_pretrained` of
        this project or of `transformers`. Tensors of heads that this class doesn't have are ignored.
        Parameters whose names start with one of the prefixes in `new_parameters` may be missing from the
        file; these parameters then keep their random initial values. `arguments` go to the constructor of the
        class.

        Raises `ValueError` if a file is missing or damaged, if the sizes of the tensors don't match
        `config.json`, or if the model is of a kind that this class doesn't implement.
        """
        folder = Path(folder)
        config, tensors = read_config(folder), read_tensors(folder)
        check_sizes(config, tensors, folder / "model.safetensors")
        check_parameter_count(config, tensors, folder / "model.safetensors")
        model = cls(config, **arguments)
        load_weights(model, tensors, folder / "model.safetensors", new_parameters)
        return model.eval()

    def resize_token_embeddings(self, vocab_size: int) -> None:
        """
        Changes the size of the vocabulary to `vocab_size` tokens, by adding rows at the end of the embedding
        or removing the last ones. New rows get random initial values. If the model has a masked LM head, the
        bias of the head is resized too. Forgetting the bias is a [well-known
        bug](https://github.com/huggingface/transformers/issues/2480).

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
        self.config.vocab_size = vocab_size
        for module in self.modules():
            if isinstance(module, BertLMPredictionHead):
                bias = module.bias.new_zeros(vocab_size)
                bias[:shared_rows] = module.bias.detach()[:shared_rows]
                module.bias = nn.Parameter(bias, module.bias.requires_grad)


def tie_embeddings(model: nn.Module) -> None:
    """
    ## How the embeddings stay tied

    The output matrix is the token embedding itself. The embedding module owns it, and the head gets it as an
    argument in each call, so the two stay tied when you copy, move, save or resize the model. The
    `state_dict` still lists the tensor under two names, as it does in `transformers`. Loading checks that the
    two entries agree and drops the second.
    """
    model.register_state_dict_post_hook(add_aliases_on_save)
    model.register_load_state_dict_pre_hook(drop_aliases_on_load)


def add_aliases_on_save(module: nn.Module, state: dict[str, Any], prefix: str, metadata: Any) -> None:
    """Lists the tied tensors in the `state_dict` under their second names too."""
    for alias, owner in ALIASES.items():
        state[prefix + alias] = state[prefix + owner]


def drop_aliases_on_load(module: nn.Module, state: dict[str, Any], prefix: str, *rest: Any) -> None:
    """Removes the second names again. `rest` are the other arguments that PyTorch passes to the hook."""
    drop_aliases(state, prefix)


class BertForMaskedLM(BertPreTrainedModel):
    """
    ## Encoder and masked LM head

    This model has no pooler. The masked LM loss doesn't depend on one, so a pooler would never be trained.

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
        only. Without labels, they are `(B, T, V)`.
        """
        outputs, labels = self.encode(input_ids, labels, inputs)
        embedding = self.bert.embeddings.word_embeddings.weight  # (V, D)
        hidden = outputs.last_hidden_state  # (B, P, D)
        hidden, labels = select_labeled(hidden, labels)
        logits = self.cls.predictions(hidden, embedding)
        loss = None if labels is None else masked_lm_loss(logits, labels, num_items_in_batch)
        return MaskedLMOutput(loss, logits, labels)


class PreTrainingOutput(NamedTuple):
    """What `BertForPreTraining` returns. A loss is `None` if you don't pass its labels."""

    loss: Tensor | None
    """The sum of the losses below, in nats."""
    masked_lm_loss: Tensor | None
    next_sentence_loss: Tensor | None
    prediction_logits: Tensor
    """`(M, V)` with labels, `(B, T, V)` without them."""
    labels: Tensor | None
    """`(M)`, the true tokens at the positions of `prediction_logits`."""
    seq_relationship_logits: Tensor
    """`(B, 2)`, the scores of *next* and *random*."""


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
        rows are only a micro-batch, pass the numbers of labels in the whole batch as `num_items_in_batch` and
        `num_pairs_in_batch`; see `masked_lm_loss` and `next_sentence_loss`. `inputs` are other arguments of
        `BertModel.forward`.
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
    blocks share one row, and so do the weight and the bias of a layer. A tied tensor counts once.
    """
    rows: dict[str, int] = {}
    for name, parameter in model.named_parameters():
        path = name.split(".")
        if "layer" in path:
            index = path.index("layer")
            count = len({n.split(".")[index + 1] for n, _ in model.named_parameters() if ".layer." in n})
            part = ".".join(path[: index + 1]) + f" × {count}"
        else:
            part = ".".join(path[:-1])
            part = f"{part}.bias" if name.endswith("predictions.bias") else part
        rows[part] = rows.get(part, 0) + parameter.numel()
    return [*rows.items(), ("together", sum(rows.values()))]
