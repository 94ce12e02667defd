"""
# The same run with one thing changed

A test of a claim compares two variants of a run that differ in one thing. Usually that's a plain option, such
as the mask rate. The other changes are here, or in `blocks.py`, `heads.py` and `positions.py`. You wouldn't
want most of them in your own BERT: they belong to other kinds of models, or a claim warns against them.

Letters for sizes: `B` sequences in the batch, `T` tokens in a sequence, `P` output positions in a sequence,
`M` masked positions in the whole batch, `D` hidden size, `V` vocabulary.
"""

from collections.abc import Collection

import torch
from torch import Tensor, nn

from experiments.claims.blocks import change_blocks
from experiments.claims.heads import attend_to_neighbors
from experiments.claims.options import WindowOptions
from experiments.claims.positions import FullEncoder, set_positions
from labml_bert.bert import BertConfig
from labml_bert.data.curriculum import Stage, length_at
from labml_bert.data.masked_text import MaskedText
from labml_bert.data.windows import put_cls_sep, random_windows
from labml_bert.mlm import (
    IGNORE,
    MaskedLMOutput,
    MaskedTokens,
    masked_lm_loss,
    masked_lm_positions,
    select_labeled,
)
from labml_bert.models import BertForMaskedLM

GROWTHS = ("stages", "linear")


def sequence_length(growth: str, stages: list[Stage], progress: float) -> int:
    """
    ## How the length grows

    Returns the sequence length of a step, given the fraction `progress` of the budget that has been spent.
    `growth` is one of:

    - `stages`: follow the schedule;
    - `linear`: grow evenly, in increments of eight tokens, until the schedule's last stage starts.
    """
    first, last = stages[0].length, stages[-1].length
    grows_until = 1 - stages[-1].fraction
    if growth == "stages":
        return length_at(stages, progress)
    if progress >= grows_until:
        return last
    return first + int((last - first) * progress / grows_until) // 8 * 8


def next_token_labels(
    input_ids: Tensor,  # (B, T)
    special_ids: Collection[int],
    mlm_probability: float,
    generator: torch.Generator,
) -> MaskedTokens:
    """
    ## The task of a left-to-right model

    Nothing is masked, and the label of a position is the next token. A position has a label with probability
    `mlm_probability`, unless the next token is special. The last position never has a label.
    """
    labels = torch.full_like(input_ids, IGNORE)  # (B, T)
    next_ids = input_ids[:, 1:]  # (B, T - 1)
    is_chosen = torch.rand(next_ids.shape, generator=generator) < mlm_probability
    is_chosen &= ~torch.isin(next_ids, torch.tensor([*special_ids]))
    labels[:, :-1] = next_ids.masked_fill(~is_chosen, IGNORE)
    return MaskedTokens(input_ids, labels)


def next_token_batch(text: MaskedText, length: int, mlm_probability: float) -> dict[str, Tensor]:
    """Works like `MaskedText.batch`, but masks nothing and has the labels of `next_token_labels`."""
    B = text.batch_tokens // length
    windows = random_windows(text.train_ids, B, length, text.max_position_embeddings, text.generator)
    input_ids, labels = next_token_labels(
        put_cls_sep(windows.input_ids, text.cls_sep), text.special_ids, mlm_probability, text.generator
    )
    return {
        "input_ids": input_ids,
        "labels": labels,
        "position_ids": windows.position_ids,
        "num_items_in_batch": (labels != IGNORE).sum(),
    }


class UntiedMaskedLM(nn.Module):
    """
    ## An untied output matrix

    Has the parts of a `BertForMaskedLM`, but its output matrix, `(V, D)`, isn't the token embedding.
    """

    def __init__(self, config: BertConfig):
        super().__init__()
        tied = BertForMaskedLM(config)
        self.bert, self.cls = tied.bert, tied.cls
        self.decoder = nn.Parameter(torch.empty(config.vocab_size, config.hidden_size))  # (V, D)
        std = config.initializer_range
        nn.init.trunc_normal_(self.decoder, std=std, a=-2 * std, b=2 * std)

    def forward(
        self,
        input_ids: Tensor,  # (B, T)
        labels: Tensor | None = None,
        num_items_in_batch: Tensor | None = None,
        **inputs: Tensor,
    ) -> MaskedLMOutput:
        """Works like `BertForMaskedLM.forward`."""
        if labels is not None:
            positions = masked_lm_positions(labels)  # (B, P)
            inputs["output_positions"] = positions
            labels = labels.gather(1, positions)  # (B, P)
        hidden = self.bert(input_ids, **inputs).last_hidden_state  # (B, P, D), without labels (B, T, D)
        hidden, labels = select_labeled(hidden, labels)  # (M, D), (M)
        logits = self.cls.predictions(hidden, self.decoder)  # (M, V)
        loss = None if labels is None else masked_lm_loss(logits, labels, num_items_in_batch)
        return MaskedLMOutput(loss, logits, labels)


def remove_head_parts(model: BertForMaskedLM | UntiedMaskedLM, dense: bool, norm: bool) -> None:
    """
    ## A smaller head

    Removes the dense layer with its GELU unless `dense`, and the LayerNorm unless `norm`.
    """
    transform = model.cls.predictions.transform
    parts: list[nn.Module] = [transform.dense, nn.GELU()] if dense else []
    if norm:
        parts.append(transform.LayerNorm)
    if not (dense and norm):
        model.cls.predictions.transform = nn.Sequential(*parts)  # type: ignore[assignment]


def build_masked_lm(options: WindowOptions, config: BertConfig) -> BertForMaskedLM | UntiedMaskedLM:
    """
    ## The model of an arm
    """
    model: BertForMaskedLM | UntiedMaskedLM = BertForMaskedLM(config)
    if not options.tied:
        # The tied model above has used random numbers too, as in the recorded runs. So keep this order.
        model = UntiedMaskedLM(config)
    if options.neighbor_heads is not None:
        assert isinstance(model, BertForMaskedLM)
        attend_to_neighbors(model, options.neighbor_heads)
    if options.positions != "learned":
        assert isinstance(model, BertForMaskedLM)
        set_positions(model, options.positions)
    if not options.has_bert_blocks:
        assert isinstance(model, BertForMaskedLM)
        change_blocks(model, options.pre_norm, options.gated, options.biases, options.local_attention)
    if options.causal:
        model.bert.encoder = FullEncoder(model.bert.encoder, is_causal=True)  # type: ignore[assignment]
    remove_head_parts(model, options.head_dense, options.head_norm)
    if options.embedding_std is not None:
        for module in model.bert.embeddings.modules():
            if isinstance(module, nn.Embedding):
                nn.init.normal_(module.weight, std=options.embedding_std)
    return model
