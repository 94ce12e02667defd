"""
# Text for both tasks of BERT

How does a corpus become batches of sentence pairs? For each sequence length, we make pairs from the training
documents and save them on disk. Evaluations use a fixed set of pairs from held-out documents, with the same
masks in every run."""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from tokenizers import Tokenizer
from torch import Tensor

from labml_bert.baselines.ngrams import ngram_baselines
from labml_bert.checks import check_longest, check_mlm_probability
from labml_bert.data.corpora import Corpus, cache_folder
from labml_bert.data.held_out import check_labels, held_out_generator
from labml_bert.data.pair_collator import MaskingArguments, PairBatches, PairCollator
from labml_bert.data.pair_dataset import build_dataset, open_dataset
from labml_bert.data.pair_shards import DatasetArguments
from labml_bert.data.sentences import split_sentences
from labml_bert.data.tokenizers import encode_corpus, special_token_ids, unknown_fraction
from labml_bert.files import make_folder
from labml_bert.mlm import IGNORE

if TYPE_CHECKING:
    from datasets import Dataset


class PairedText:
    """
    ## Masked pairs of texts

    `lengths` are the sequence lengths of the training in tokens, shortest first. The held-out pairs are made
    for the longest of these lengths. `masking` is `dynamic` (masks drawn for each batch), `static` (drawn
    once, as in the original) or `whole-word` (dynamic, with all subwords of a word chosen together). We go
    through the training text `dupe_factor` times and make different pairs each time.

    Raises `ValueError` if `mlm_probability` is out of range, if there is no such `masking`, if a batch is too
    small for one pair, or if the text can't be made into pairs.
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
        dupe_factor: int = 10,
    ):
        self.corpus, self.tokenizer, self.generator = corpus, tokenizer, generator
        self.batch_tokens, self.mlm_probability = batch_tokens, mlm_probability
        self.dupe_factor = dupe_factor
        self.vocab_size: int = tokenizer.get_vocab_size()
        check_mlm_probability(mlm_probability)
        if masking not in ("dynamic", "static", "whole-word"):
            raise ValueError(f"masking is {masking!r}; it must be dynamic, static or whole-word")
        check_longest(lengths[-1], batch_tokens)
        train_ids = encode_corpus(tokenizer, corpus.train)
        valid_ids = encode_corpus(tokenizer, corpus.valid)
        self.baselines = ngram_baselines(train_ids, valid_ids, self.vocab_size, special_token_ids(tokenizer))
        self.unknown = unknown_fraction(tokenizer, valid_ids, corpus.valid)
        check_pairs(corpus)
        self.batches = {length: self.training_pairs(length, masking) for length in lengths}
        self.held_out = self.held_out_pairs(lengths[-1])

    def training_pairs(self, length: int, masking: str) -> PairBatches:
        """
        Returns batches of training pairs for one sequence length. The files with the pairs are built once and
        kept in the folder for downloads, where the next run with the same text, tokenizer and options finds
        them.
        """
        recipe = MaskingArguments(self.mlm_probability, length, whole_word_mask=masking == "whole-word")
        static = recipe if masking == "static" else None
        # By default, `PairMaker` pairs a chunk of one sentence with a random text. In `python-docs`,
        # that would make about 56% of the pairs random.
        arguments = DatasetArguments(
            length,
            dupe_factor=self.dupe_factor,
            lone_sentence_is_random=False,
            static_masking=static,
        )
        dataset = self.build(self.corpus.train, f"{length}-{masking}", arguments)
        collator = PairCollator(self.tokenizer, None if static else recipe, length, self.generator)
        return PairBatches(dataset, collator, self.batch_tokens // length, self.generator)

    def held_out_pairs(self, length: int) -> list[dict[str, Tensor]]:
        """
        Returns the held-out pairs in batches, with the same masks in every run.

        Raises `ValueError` if no token of the pairs is chosen for masking.
        """
        arguments = DatasetArguments(length, lone_sentence_is_random=False)
        rows = self.build(self.corpus.valid, f"{length}-held-out", arguments).with_format("arrow")
        collator = PairCollator(self.tokenizer, None, length, held_out_generator())
        batches = [collator(rows[start : start + 64]) for start in range(0, len(rows), 64)]
        check_labels(batch["labels"] for batch in batches)
        return batches

    def build(self, documents: list[str], name: str, arguments: DatasetArguments) -> "Dataset":
        """
        Builds the pairs, or finds them in their folder. The name of the folder depends on the text, the
        arguments and the tokenizer, so a run never replaces the pairs of a run that used different ones.
        """
        recipe = json.dumps([self.tokenizer.to_str(), asdict(arguments)])
        digest = hashlib.sha256(recipe.encode()).hexdigest()[:8]
        folder = pairs_folder(f"{self.corpus.sha256[:16]}-{self.vocab_size}-{name}-{digest}")
        manifest = build_dataset(documents, self.tokenizer, folder, arguments)
        return open_dataset(folder, manifest["fingerprint"])

    def batch(self, length: int) -> dict[str, Tensor]:
        """
        Returns the next masked pairs as arguments of `BertForPreTraining`, including the numbers of labeled
        positions and pairs in the whole batch.
        """
        batch = next(self.batches[length])
        return {
            **batch,
            "num_items_in_batch": (batch["labels"] != IGNORE).sum(),
            "num_pairs_in_batch": (batch["next_sentence_label"] != IGNORE).sum(),
        }


def check_pairs(corpus: Corpus) -> None:
    """Raises `ValueError` if the training text or the held-out text can't be made into pairs."""
    if min(len(corpus.train), len(corpus.valid)) < 2:
        raise ValueError(
            "pairs need at least two documents for training and two held out, and this text has "
            f"{len(corpus.train)} and {len(corpus.valid)}; use a folder with more files"
        )
    for part in (corpus.train, corpus.valid):
        if all(len(split_sentences(text)) < 2 for text in part):
            raise ValueError(
                "no sentence breaks in the whole text; end each sentence with punctuation such as . ! ? and "
                "a space, or put empty lines between sentences"
            )


def pairs_folder(name: str) -> Path:
    """
    Creates a folder for pairs in the folder for downloads, and returns its path.

    Raises `ValueError` if the folder can't be created.
    """
    folder = cache_folder() / "pairs" / name
    try:
        make_folder(folder)
    except OSError as error:
        raise ValueError(
            f"cannot write pairs to {folder}: {error.strerror}; set XDG_CACHE_HOME to a writable folder"
        ) from None
    return folder
