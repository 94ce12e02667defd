"""
# Text for both tasks of BERT

From a corpus to batches of sentence pairs: the documents become pairs on disk, once for each length, and a
fixed set of pairs from held-out documents measures every run in the same way."""

from collections.abc import Sequence
from pathlib import Path

import torch
from tokenizers import Tokenizer
from torch import Tensor

from labml_bert.baselines.ngrams import ngram_baselines
from labml_bert.data.corpora import Corpus, cache_folder
from labml_bert.data.held_out import held_out_generator
from labml_bert.data.pair_collator import MaskingArguments, PairBatches, PairCollator
from labml_bert.data.pair_dataset import build_dataset, open_dataset
from labml_bert.data.pair_shards import DatasetArguments
from labml_bert.data.sentences import split_sentences
from labml_bert.data.tokenizers import encode_corpus, special_token_ids
from labml_bert.mlm import IGNORE

# Copies of the text, each with other pairs and, if masks are static, other masks.
DUPE_FACTOR = 10


class PairedText:
    """
    ## Pairs of texts, masked

    `lengths` are those that the training will ask for, in tokens, shortest first; the held-out pairs have
    the last. `masking` is `dynamic` (drawn for each batch), `static` (drawn once, as in the original) or
    `whole-word`.

    Raises `ValueError` if the batch cannot hold a pair, or the text cannot be made into pairs.
    """

    def __init__(
        self,
        corpus: Corpus,
        tokenizer: Tokenizer,
        lengths: Sequence[int],
        batch_tokens: int,
        masking: str,
        generator: torch.Generator,
        mlm_probability: float = 0.15,
    ):
        self.corpus, self.tokenizer, self.generator = corpus, tokenizer, generator
        self.batch_tokens, self.mlm_probability = batch_tokens, mlm_probability
        self.vocab_size: int = tokenizer.get_vocab_size()
        if lengths[-1] > batch_tokens:
            raise ValueError(
                f"{batch_tokens} tokens a step do not hold one pair of {lengths[-1]}; "
                "raise the batch or shorten the schedule"
            )
        train_ids = encode_corpus(tokenizer, corpus.train)
        valid_ids = encode_corpus(tokenizer, corpus.valid)
        self.baselines = ngram_baselines(train_ids, valid_ids, self.vocab_size, special_token_ids(tokenizer))
        check_pairs(corpus)
        self.batches = {length: self.training_pairs(length, masking) for length in lengths}
        self.held_out = self.held_out_pairs(lengths[-1])

    def training_pairs(self, length: int, masking: str) -> PairBatches:
        """
        The training pairs of one length. Their files are built once and kept with the downloads; the next
        run with the same text and vocabulary finds them.
        """
        recipe = MaskingArguments(self.mlm_probability, length, whole_word_mask=masking == "whole-word")
        static = recipe if masking == "static" else None
        # A chunk of one sentence would always get a random second part, and six pairs in ten would be random.
        arguments = DatasetArguments(
            length, dupe_factor=DUPE_FACTOR, lone_sentence_is_random=False, static_masking=static
        )
        folder = pairs_folder(f"{self.corpus.sha256[:16]}-{self.vocab_size}-{length}-{masking}")
        build_dataset(self.corpus.train, self.tokenizer, folder, arguments)
        collator = PairCollator(self.tokenizer, None if static else recipe, length, self.generator)
        return PairBatches(open_dataset(folder), collator, self.batch_tokens // length, self.generator)

    def held_out_pairs(self, length: int) -> list[dict[str, Tensor]]:
        """The held-out pairs in batches, with masks that are the same in every run."""
        arguments = DatasetArguments(length, lone_sentence_is_random=False)
        folder = pairs_folder(f"{self.corpus.sha256[:16]}-{self.vocab_size}-{length}-held-out")
        build_dataset(self.corpus.valid, self.tokenizer, folder, arguments)
        rows = open_dataset(folder).with_format("arrow")
        collator = PairCollator(self.tokenizer, None, length, held_out_generator())
        return [collator(rows[start : start + 64]) for start in range(0, len(rows), 64)]

    def batch(self, length: int) -> dict[str, Tensor]:
        """
        The next pairs, masked: the arguments of `BertForPreTraining`, and how many masked positions and
        pairs count in the whole batch.
        """
        batch = next(self.batches[length])
        return {
            **batch,
            "num_items_in_batch": (batch["labels"] != IGNORE).sum(),
            "num_pairs_in_batch": (batch["next_sentence_label"] != IGNORE).sum(),
        }


def check_pairs(corpus: Corpus) -> None:
    """Raises `ValueError` if the text gives no pairs, before any file is made of it."""
    if min(len(corpus.train), len(corpus.valid)) < 2:
        raise ValueError(
            "pairs need two documents to learn from and two held out, and this text gives "
            f"{len(corpus.train)} and {len(corpus.valid)}; give a folder with more files"
        )
    for part in (corpus.train, corpus.valid):
        if all(len(split_sentences(text)) < 2 for text in part):
            raise ValueError(
                "no sentence breaks in the whole text; end each sentence with . ! ? or their like and a "
                "blank, or put an empty line between two"
            )


def pairs_folder(name: str) -> Path:
    """
    Makes a folder beside the downloads.

    Raises `ValueError` if it cannot be written.
    """
    folder = cache_folder() / "pairs" / name
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ValueError(
            f"cannot write pairs to {folder}: {error.strerror}; "
            "set XDG_CACHE_HOME to a folder that can be written"
        ) from None
    return folder
