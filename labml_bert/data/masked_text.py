"""
# Text for a masked language model

How does a corpus become masked batches? The training text is encoded as one long row of token ids, and each
batch consists of random windows of this row. Evaluations use a fixed set of windows from the held-out text,
with the same masks in every run.
"""

from typing import Any

import torch
from tokenizers import Tokenizer
from torch import Tensor

from labml_bert.baselines.ngrams import ngram_baselines
from labml_bert.checks import check_longest, check_masking, check_mlm_probability
from labml_bert.data.corpora import Corpus
from labml_bert.data.held_out import HELD_OUT_MLM_PROBABILITY, mask_held_out
from labml_bert.data.token_files import TokenizedCorpus
from labml_bert.data.tokenizers import (
    cls_sep_ids,
    encode_corpus,
    special_token_ids,
    unknown_fraction,
)
from labml_bert.data.windows import put_cls_sep, random_windows
from labml_bert.mlm import IGNORE, MaskedTokens, TokenMasker

# Counting the baselines takes over 100 bytes of memory per token, so count about this many tokens at most.
BASELINE_TOKENS = 10_000_000


class MaskedText:
    """
    ## Masked windows

    `longest` is the longest sequence length in training, in tokens, and the length of the held-out windows.
    If `with_cls_sep` is set, each window starts with `[CLS]` and ends with `[SEP]`. If you want to use a
    model with these tokens, train it with them.

    Raises `ValueError` if the text, the number of positions or the batch is too small for a sequence of
    `longest` tokens, if the held-out text is blank, if the corpus was tokenized with a different tokenizer or
    has no tokens to predict, or if `mlm_probability` is out of range.
    """

    def __init__(
        self,
        corpus: Corpus | TokenizedCorpus,
        tokenizer: Tokenizer,
        longest: int,
        batch_tokens: int,
        max_position_embeddings: int,
        mlm_probability: float,
        generator: torch.Generator,
        with_cls_sep: bool = False,
    ):
        check_mlm_probability(mlm_probability)
        self.corpus, self.tokenizer, self.generator = corpus, tokenizer, generator
        self.batch_tokens, self.max_position_embeddings = batch_tokens, max_position_embeddings
        self.vocab_size: int = tokenizer.get_vocab_size()
        self.special_ids = special_token_ids(tokenizer)
        if isinstance(corpus, TokenizedCorpus):
            corpus.check_tokenizer(tokenizer)
            self.train_ids, valid_ids = corpus.train_ids, corpus.valid_ids  # one-dimensional
        else:
            self.train_ids, valid_ids = (
                encode_corpus(tokenizer, part) for part in (corpus.train, corpus.valid)
            )
        for ids, name in ((self.train_ids, "text"), (valid_ids, "held-out text")):
            if len(ids) >= longest:
                continue
            if unknown_fraction(tokenizer, ids) > 0.5:
                raise ValueError(
                    f"most of the {name}'s {len(ids)} tokens are [UNK], which are rare words or words of "
                    "over 100 letters; put spaces between the words, use more text, or use characters as "
                    "tokens, as mlm_tiny.py does"
                )
            break  # `check_lengths` names this text as too short.
        check_lengths(len(self.train_ids), len(valid_ids), longest, batch_tokens, max_position_embeddings)
        if isinstance(corpus, Corpus) and not any(map(str.strip, corpus.valid)):
            raise ValueError("the held-out tenth of the text is blank; remove blank lines, or use more text")
        self.cls_sep = cls_sep_ids(tokenizer) if with_cls_sep else None
        counted = sample_evenly(self.train_ids, BASELINE_TOKENS)
        self.baselines = ngram_baselines(counted, valid_ids, self.vocab_size, self.special_ids)
        texts = corpus.valid if isinstance(corpus, Corpus) else []
        self.unknown = unknown_fraction(tokenizer, valid_ids, texts)
        # With `max_predictions_per_seq`, rows with equally many ordinary tokens get the same number of masks,
        # so most tensors keep their shapes. With a coin flip per token, most steps would have a new number of
        # masks, and on a CPU, PyTorch prepares its matmuls anew for each shape.
        self.masker = self.make_masker(generator, mlm_probability, max_predictions_per_seq=longest)
        windows = valid_ids[: len(valid_ids) // longest * longest].view(-1, longest)
        self.windows = put_cls_sep(windows, self.cls_sep)
        self.held_out: MaskedTokens = mask_held_out(self.windows, self.make_masker)
        # During training, a run prints its predictions for two held-out windows. In these windows, every
        # chosen token becomes `[MASK]`.
        rule = {"mask_replace_prob": 1.0, "random_replace_prob": 0.0}
        masker = self.make_masker(torch.Generator().manual_seed(2), **rule)
        rows = torch.linspace(0, len(self.windows) - 1, 4).long()[1:-1]
        self.samples: MaskedTokens = masker(self.windows[rows])

    def make_masker(
        self, generator: torch.Generator, mlm_probability: float = HELD_OUT_MLM_PROBABILITY, **options: Any
    ) -> TokenMasker:
        """
        Returns a masker for this vocabulary. `options` are further arguments of `TokenMasker`, which follows
        the paper's rule by default.
        """
        mask_token_id = self.tokenizer.token_to_id("[MASK]")
        check_masking(self.vocab_size, mask_token_id, self.special_ids, mlm_probability, **options)
        assert mask_token_id is not None  # `check_masking` refuses that.
        arguments = (self.vocab_size, mask_token_id, self.special_ids, mlm_probability)
        return TokenMasker(*arguments, **options, generator=generator)

    def batch(self, length: int) -> dict[str, Tensor]:
        """
        Draws the next windows of `length` tokens and masks them. Returns the arguments of `BertForMaskedLM`:
        `input_ids`, `labels` and `position_ids`, all `(B, T)`, and `num_items_in_batch`, the number of
        labeled positions.
        """
        B = self.batch_tokens // length
        windows = random_windows(self.train_ids, B, length, self.max_position_embeddings, self.generator)
        input_ids, labels = self.masker(put_cls_sep(windows.input_ids, self.cls_sep))
        return {
            "input_ids": input_ids,
            "labels": labels,
            "position_ids": windows.position_ids,
            "num_items_in_batch": (labels != IGNORE).sum(),
        }


def sample_evenly(token_ids: Tensor, most: int, run: int = 1024) -> Tensor:
    """
    Returns the ids as int64. Of more than `most` ids, keeps about `most`, in evenly spaced runs of `run` ids.
    """
    if len(token_ids) <= most:
        return token_ids.long()
    distance = len(token_ids) * run // most
    return token_ids[: len(token_ids) // distance * distance].view(-1, distance)[:, :run].flatten().long()


def check_lengths(
    train: int, valid: int, longest: int, batch_tokens: int, max_position_embeddings: int
) -> None:
    """
    Raises `ValueError` if the text, the batch or the number of positions is too small for a sequence of
    `longest` tokens. `train` and `valid` are the numbers of tokens in the training text and in the held-out
    text.
    """
    check_longest(longest, batch_tokens, max_position_embeddings)
    if longest > train:
        raise ValueError(
            f"the text has {train} training tokens, shorter than one sequence of {longest}; "
            "use more text or a shorter schedule"
        )
    if valid < longest:
        raise ValueError(
            f"the held-out tenth of the text has {valid} tokens, shorter than one sequence of {longest}; "
            "use more text or a shorter schedule"
        )
