r"""
# Pairs to batches

How do rows of a file become what a model eats? Rows of unequal length are laid side by side and padded,
some tokens are covered, and another random handful of rows comes next, without end.

Covering is *dynamic* where each batch draws its masks anew, so that no row is seen twice with the same
ones, and *static* where the masks were drawn once and stand in the file. The original was static;
[RoBERTa](https://arxiv.org/abs/1907.11692), section 4.1, found dynamic as good or slightly better.

The file says `segment_ids`, as the original does; the tensors say `token_type_ids`, which is the name of
the model's argument here and in `transformers`. They are the same numbers.

Letters for sizes: `B` rows in the batch, `T` tokens in the longest or as many as asked for.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import torch
from tokenizers import Tokenizer, models
from torch import Tensor

from labml_bert.checks import check_masking
from labml_bert.data.tokenizers import special_token_ids
from labml_bert.mlm import IGNORE, TokenMasker

if TYPE_CHECKING:
    # Takes seconds to import, and brings pandas. Workers that make pairs do without.
    from datasets import Dataset


@dataclass(frozen=True)
class MaskingArguments:
    """
    How tokens are chosen to be covered; the first two are arguments of `TokenMasker`. `whole_word_mask`
    covers all pieces of a word or none. The original has at most 20 predictions at length 128.
    """

    mlm_probability: float = 0.15
    max_predictions_per_seq: int | None = None
    whole_word_mask: bool = False


def pad_lists(column: pa.ChunkedArray, T: int, fill: int) -> Tensor:
    """Lists of unequal length as one int64 tensor `(B, T)`, without a Python number for each token."""
    lists = column.combine_chunks()
    lengths = lists.value_lengths().to_numpy()
    result = np.full((len(lists), T), fill, dtype=np.int64)
    # The places that are taken, in reading order, are as many as the values and in their order.
    result[np.arange(T) < lengths[:, None]] = lists.flatten().to_numpy()
    return torch.from_numpy(result)


class PairCollator:
    """
    ## Rows to tensors
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        masking: MaskingArguments | None = None,
        length: int | None = None,
        generator: torch.Generator | None = None,
    ):
        """
        `tokenizer` is the one that the dataset was made with. `masking` says how to cover tokens where
        the rows have no masks of their own, by default as the paper does. Batches are `length` long, or
        by default as long as their longest row. `generator` draws the masks.

        Raises `ValueError` for whole words with a tokenizer that has no pieces of words, and for a
        `masking` that makes no sense.
        """
        is_wordpiece = isinstance(tokenizer.model, models.WordPiece)
        if masking is not None and masking.whole_word_mask and not is_wordpiece:
            raise ValueError("whole_word_mask needs pieces of words; use wordpiece_tokenizer")
        self.masking = masking
        self.length = length
        chosen = masking or MaskingArguments()
        vocab = tokenizer.get_vocab()
        ids = (len(vocab), vocab["[MASK]"], special_token_ids(tokenizer))
        mlm_probability, most = chosen.mlm_probability, chosen.max_predictions_per_seq
        check_masking(*ids, mlm_probability, max_predictions_per_seq=most)
        self.masker = TokenMasker(*ids, mlm_probability, max_predictions_per_seq=most, generator=generator)
        continuations = [i for token, i in vocab.items() if is_wordpiece and token.startswith("##")]
        self.is_continuation = torch.zeros(len(vocab), dtype=torch.bool)
        self.is_continuation[continuations] = True

    def __call__(self, rows: pa.Table) -> dict[str, Tensor]:
        """
        Returns `input_ids`, `attention_mask` (0 at padding), `token_type_ids` and `labels` (-100 where
        nothing is predicted), each `(B, T)`, and `next_sentence_label` `(B,)`; all int64.

        Raises `ValueError` for no rows, for rows longer than `length`, and for masked rows where `masking`
        was given.
        """
        if len(rows) == 0:
            raise ValueError("there is no row to make a batch of; give one at least")
        lengths = torch.tensor(rows["tokens"].combine_chunks().value_lengths().to_numpy())  # (B)
        T = self.length or int(lengths.max())
        if int(lengths.max()) > T:
            raise ValueError(f"a row has {int(lengths.max())} tokens and length is {T}; raise length")
        # Padding is token 0, as `BertConfig.pad_token_id` and `SPECIAL_TOKENS` have it.
        input_ids = pad_lists(rows["tokens"], T, 0)  # (B, T)
        attention_mask = (torch.arange(T) < lengths[:, None]).long()  # (B, T)
        if "masked_positions" in rows.column_names:
            if self.masking is not None:
                raise ValueError("the rows are masked already; give PairCollator no masking")
            labels = self.read_labels(rows, T)  # (B, T)
        else:
            words = self.word_ids(input_ids) if self.masking and self.masking.whole_word_mask else None
            input_ids, labels = self.masker(input_ids, attention_mask, words)
        return {
            "input_ids": input_ids,
            "attention_mask": attention_mask,
            "token_type_ids": pad_lists(rows["segment_ids"], T, 0),
            "next_sentence_label": torch.tensor(rows["is_random_next"].to_numpy()).long(),
            "labels": labels,
        }

    def word_ids(self, input_ids: Tensor) -> Tensor:
        """A number for each word of a row: `un ##usual word` is 0 0 1. `(B, T)` to `(B, T)`."""
        # A piece that lost the beginning of its word stands behind [CLS] or [SEP], and counts to it;
        # special tokens are never covered, so it is a word of its own.
        return ((~self.is_continuation[input_ids]).cumsum(1) - 1).clamp(min=0)  # (B, T)

    def read_labels(self, rows: pa.Table, T: int) -> Tensor:
        """The masks of the file as labels, `(B, T)`."""
        positions = rows["masked_positions"].combine_chunks()
        row = np.repeat(np.arange(len(rows)), positions.value_lengths().to_numpy())
        labels = np.full((len(rows), T), IGNORE, dtype=np.int64)
        values = rows["masked_labels"].combine_chunks().flatten().to_numpy()
        labels[row, positions.flatten().to_numpy()] = values
        return torch.from_numpy(labels)  # (B, T)


class PairBatches(Iterator[dict[str, Tensor]]):
    """
    ## Batches without end

    Each batch is `batch_size` rows drawn with replacement, as `Curriculum` draws its windows. The state of
    `generator` is then the whole position in the data, and the checkpoint of `Trainer` has it: give the
    same generator to the collator, and the same batches follow after a resume.

    Readers may expect epochs, where each row comes once before any comes again. Those need the order
    of the epoch and the place in it saved too. The price of drawing freely: after as many draws as there
    are rows, $1/e$ of them, 37%, have not come yet. After four times as many it is 2%.
    """

    def __init__(
        self, dataset: "Dataset", collator: PairCollator, batch_size: int, generator: torch.Generator
    ):
        """Raises `ValueError` for an empty dataset or a batch of nothing."""
        if len(dataset) == 0 or batch_size < 1:
            raise ValueError(
                f"{len(dataset)} rows in batches of {batch_size} give no batch; both must be at least 1"
            )
        # Arrow tables come without a Python number for each token: tens of times faster.
        self.dataset = dataset.with_format("arrow")
        self.collator = collator
        self.batch_size = batch_size
        self.generator = generator

    def __next__(self) -> dict[str, Tensor]:
        """The next batch, as `PairCollator` gives it."""
        rows = torch.randint(len(self.dataset), (self.batch_size,), generator=self.generator)  # (B)
        return self.collator(self.dataset[rows.tolist()])
