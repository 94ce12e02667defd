r"""
# Batches of sentence pairs

How do rows of a file become the input of a model? In training, a batch is a random sample of rows. The rows
are padded to the same length, and some of their tokens are masked.

Masking is *dynamic* if new masks are drawn for each batch, so that the model hardly ever sees a row twice
with the same masks. It is *static* if the masks were drawn once and saved in the file. The original code
masks statically. [RoBERTa](https://arxiv.org/abs/1907.11692), section 4.1, found dynamic masking comparable
to static masking or slightly better.

The column `segment_ids` has the name that the original code uses. The tensor made from this column is called
`token_type_ids`, like the model's argument here and in `transformers`. The tensor holds the same numbers as
the column, and 0 at padding.

Letters for sizes: `B` rows in the batch, `T` tokens in the longest row, or `length` if you pass it.
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
    # This import takes seconds, because it loads pandas. Workers don't need it.
    from datasets import Dataset


@dataclass(frozen=True)
class MaskingArguments:
    """
    How to choose the tokens to mask. The first two fields are arguments of `TokenMasker`. With
    `whole_word_mask`, either all subwords of a word are chosen, or none of them. For sequences of length 128,
    the original code makes at most 20 predictions per sequence.
    """

    mlm_probability: float = 0.15
    max_predictions_per_seq: int | None = None
    whole_word_mask: bool = False


def pad_lists(column: pa.ChunkedArray, T: int, fill_value: int) -> Tensor:
    """Pads lists of numbers to an int64 tensor, `(B, T)`, without creating a Python number for each token."""
    lists = column.combine_chunks()
    lengths = lists.value_lengths().to_numpy()
    result = np.full((len(lists), T), fill_value, dtype=np.int64)
    # Boolean indexing fills the rows one after another, which is also the order of the values.
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
        `tokenizer` is the one that the data set was built with. `masking` says how to choose tokens in rows
        that aren't masked in the file. By default, about 15% are chosen. Rows are padded to `length` tokens,
        or by default to the longest row of the batch. `generator` draws the masks.

        Raises `ValueError` if you ask for whole-word masking without a WordPiece tokenizer whose subwords
        start with `##`, or if a value in `masking` is out of range.
        """
        model = tokenizer.model
        is_wordpiece = isinstance(model, models.WordPiece) and model.continuing_subword_prefix == "##"
        if masking is not None and masking.whole_word_mask and not is_wordpiece:
            raise ValueError("whole_word_mask needs subwords; use wordpiece_tokenizer")
        self.masking = masking
        self.length = length
        arguments = masking or MaskingArguments()
        vocab = tokenizer.get_vocab()
        mask_token_id, special_ids = tokenizer.token_to_id("[MASK]"), special_token_ids(tokenizer)
        mlm_probability, most = arguments.mlm_probability, arguments.max_predictions_per_seq
        check_masking(len(vocab), mask_token_id, special_ids, mlm_probability, max_predictions_per_seq=most)
        assert mask_token_id is not None  # `check_masking` refuses that.
        ids = (len(vocab), mask_token_id, special_ids)
        self.masker = TokenMasker(*ids, mlm_probability, max_predictions_per_seq=most, generator=generator)
        continuations = [i for token, i in vocab.items() if is_wordpiece and token.startswith("##")]
        self.is_continuation = torch.zeros(len(vocab), dtype=torch.bool)
        self.is_continuation[continuations] = True

    def __call__(self, rows: pa.Table) -> dict[str, Tensor]:
        """
        Returns `input_ids`, `attention_mask` (0 at padding), `token_type_ids` and `labels` (-100 at positions
        that aren't predicted), each `(B, T)`, and `next_sentence_label`, `(B)`. All are int64.

        Raises `ValueError` if there are no rows, if a row is longer than `length`, or if the rows are masked
        in the file but the collator was created with `masking`.
        """
        if len(rows) == 0:
            raise ValueError("a batch needs at least one row")
        lengths = torch.tensor(rows["tokens"].combine_chunks().value_lengths().to_numpy())  # (B)
        T = self.length or int(lengths.max())
        if int(lengths.max()) > T:
            raise ValueError(f"a row has {int(lengths.max())} tokens and length is {T}; raise length")
        # Padding has id 0: the default of `BertConfig.pad_token_id`, and the id of `[PAD]` in our tokenizers.
        input_ids = pad_lists(rows["tokens"], T, 0)  # (B, T)
        attention_mask = (torch.arange(T) < lengths[:, None]).long()  # (B, T)
        if "masked_positions" in rows.column_names:
            if self.masking is not None:
                raise ValueError("the rows are masked already; create PairCollator without masking")
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
        """Maps ids, `(B, T)`, to the numbers of their words, `(B, T)`: `un ##usual word` becomes 0 0 1."""
        # If the start of a word was cut off, the rest follows [CLS] or [SEP] and gets the number of that
        # token. Special tokens are never chosen, so the rest is still treated as a word of its own.
        return ((~self.is_continuation[input_ids]).cumsum(1) - 1).clamp(min=0)  # (B, T)

    def read_labels(self, rows: pa.Table, T: int) -> Tensor:
        """Returns the labels, `(B, T)`, of rows that are masked in the file."""
        positions = rows["masked_positions"].combine_chunks()
        row = np.repeat(np.arange(len(rows)), positions.value_lengths().to_numpy())
        labels = np.full((len(rows), T), IGNORE, dtype=np.int64)
        values = rows["masked_labels"].combine_chunks().flatten().to_numpy()
        labels[row, positions.flatten().to_numpy()] = values
        return torch.from_numpy(labels)  # (B, T)


class PairBatches(Iterator[dict[str, Tensor]]):
    """
    ## Endless batches

    Each batch has `batch_size` rows drawn with replacement, as `random_windows` draws windows. So the state
    of `generator` determines which rows come next. If you give `Trainer` the same generator, it saves this
    state in its checkpoints. If the collator uses this generator too, a resumed run continues with the same
    rows and masks.

    You might expect epochs, in which every row comes once before any row comes twice. But to resume within an
    epoch, you would also have to restore the order of its rows and the position in this order. Drawing with
    replacement has a price: after as many draws as there are rows, about $1/e$ of the rows, or 37%, haven't
    been drawn yet. After four times as many draws, about 2% of the rows haven't.
    """

    def __init__(
        self, dataset: "Dataset", collator: PairCollator, batch_size: int, generator: torch.Generator
    ):
        """Raises `ValueError` if the data set or the batch would be empty."""
        if len(dataset) == 0 or batch_size < 1:
            raise ValueError(f"{len(dataset)} rows and batch_size {batch_size}; both must be at least 1")
        # Reading rows as Arrow tables creates no Python number for each token, so it's several times faster
        # than reading them as lists.
        self.dataset = dataset.with_format("arrow")
        self.collator = collator
        self.batch_size = batch_size
        self.generator = generator

    def __next__(self) -> dict[str, Tensor]:
        """The next batch, as `PairCollator` returns it."""
        rows = torch.randint(len(self.dataset), (self.batch_size,), generator=self.generator)  # (B)
        return self.collator(self.dataset[rows.tolist()])
