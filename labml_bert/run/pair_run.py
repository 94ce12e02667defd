"""
# One run on sentence pairs

From a text to a model with both heads: the parts of this package in the order in which the paper's recipe
needs them. `experiments/bert_tiny.py` is this, with the values that suit a laptop.
"""

import math
from dataclasses import asdict, dataclass
from itertools import accumulate
from pathlib import Path

import torch
from torch import Tensor

from labml_bert.baselines.ngrams import Floor, floors
from labml_bert.data.corpora import cache_folder, load_corpus
from labml_bert.data.curriculum import length_at, parse_schedule
from labml_bert.data.pair_collator import Masking, PairBatches, PairCollator
from labml_bert.data.pair_dataset import DatasetArguments, build_dataset, open_dataset, sentences
from labml_bert.data.tokenizers import encode_corpus, special_token_ids, wordpiece_tokenizer
from labml_bert.mlm import IGNORE, masked_accuracy
from labml_bert.models import BertForPreTraining, PreTrainingOutput
from labml_bert.run.job import RunOptions, example, parse, run
from labml_bert.run.terminal import console, filled_lines
from labml_bert.training.trainer import Trainer


@dataclass(frozen=True)
class Options(RunOptions):
    """
    ## What can be chosen

    `masking` is *dynamic* here and was *static* in the original. `adam` is as PyTorch has it, or as
    *published*, without the correction of its first steps.
    """

    minutes: float | None = 10.0
    vocab_size: int = 4096
    schedule: str = "32:9,128:1"
    hidden_dropout_prob: float = 0.1
    learning_rate: float = 2e-3
    weight_decay: float = 0.01
    masking: str = "dynamic"
    adam: str = "corrected"


HELP = {
    "schedule": "lengths of the pairs in turn; 32:9,128:1 gives 32 nine tenths of the time",
    "masking": "masks drawn for each batch, once for all, or for whole words",
    "adam": "with the correction of its first steps, or as published, without",
}
CHOICES = {"masking": ["dynamic", "static", "whole-word"], "adam": ["corrected", "published"]}
# Copies of the text with other pairs and, where masks are static, with other masks.
DUPE_FACTOR = 10


def pairs_folder(name: str) -> Path:
    """
    Makes a folder beside the downloads.

    Raises `ValueError` where it cannot be written.
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


class PairJob:
    """
    ## The parts, put together

    A `Job` of `run.py`.

    Raises `ValueError` where an option makes no sense, or the text cannot be made into pairs.
    """

    def __init__(self, options: Options, device: torch.device):
        self.options, self.device = options, device
        self.generator = torch.Generator().manual_seed(options.seed)
        self.stages = parse_schedule(options.schedule)
        self.arguments = options.training_arguments(adam_bias_correction=options.adam == "corrected")
        longest = self.stages[-1].length
        if longest > options.batch_tokens:
            raise ValueError(
                f"{options.batch_tokens} tokens a step do not hold one pair of {longest}; "
                "raise the batch or shorten the schedule"
            )
        self.corpus = load_corpus(options.corpus)
        self.tokenizer = wordpiece_tokenizer(self.corpus.train, options.vocab_size)
        self.config = options.model_config(self.tokenizer.get_vocab_size(), longest)
        train_ids = encode_corpus(self.tokenizer, self.corpus.train)
        valid_ids = encode_corpus(self.tokenizer, self.corpus.valid)
        specials = special_token_ids(self.tokenizer)
        self.floors: list[Floor] = floors(train_ids, valid_ids, self.config.vocab_size, specials)
        self.batch_tokens = options.batch_tokens
        self.model = BertForPreTraining(self.config)
        self.check_text()
        self.batches = {stage.length: self.make_batches(stage.length) for stage in self.stages}
        self.held_out = self.make_held_out(longest)
        ends = accumulate(stage.share for stage in self.stages)
        self.marks = [
            (min(end, 1.0), f"length {stage.length}") for end, stage in zip(ends, self.stages, strict=True)
        ]
        self.example = example(self.corpus.valid, letters=False, longest=longest)
        self.configuration = {
            **asdict(options),
            "corpus_sha256": self.corpus.sha256,
            "model": asdict(self.config),
        }

    def check_text(self) -> None:
        """Raises `ValueError` where the text gives no pairs, before any file is made of it."""
        train, valid = self.corpus.train, self.corpus.valid
        if min(len(train), len(valid)) < 2:
            raise ValueError(
                "pairs need two documents to learn from and two held out, and this text gives "
                f"{len(train)} and {len(valid)}; give a folder with more files"
            )
        for part in (train, valid):
            if all(len(sentences(text)) < 2 for text in part):
                raise ValueError(
                    "no sentence breaks in the whole text; end each sentence with . ! ? or their like and a "
                    "blank, or put an empty line between two"
                )

    def make_batches(self, length: int) -> PairBatches:
        """
        The training pairs of one length. Their files are made once and kept with the downloads; the next
        run with the same text and vocabulary finds them.
        """
        masking = Masking(0.15, length, whole_word_mask=self.options.masking == "whole-word")
        static = masking if self.options.masking == "static" else None
        # A pile of one sentence would always get a random second part, and six pairs in ten be random.
        arguments = DatasetArguments(
            length, dupe_factor=DUPE_FACTOR, lone_sentence_is_random=False, static_masking=static
        )
        name = f"{self.corpus.sha256[:16]}-{self.config.vocab_size}-{length}-{self.options.masking}"
        folder = pairs_folder(name)
        build_dataset(self.corpus.train, self.tokenizer, folder, arguments)
        collator = PairCollator(self.tokenizer, None if static else masking, length, self.generator)
        return PairBatches(open_dataset(folder), collator, self.batch_tokens // length, self.generator)

    def make_held_out(self, length: int) -> list[dict[str, Tensor]]:
        """The held-out pairs of the full length in batches, with masks that are the same in every run."""
        arguments = DatasetArguments(length, lone_sentence_is_random=False)
        folder = pairs_folder(f"{self.corpus.sha256[:16]}-{self.config.vocab_size}-{length}-held-out")
        build_dataset(self.corpus.valid, self.tokenizer, folder, arguments)
        rows = open_dataset(folder).with_format("arrow")
        generator = torch.Generator().manual_seed(1)
        collator = PairCollator(self.tokenizer, None, length, generator)
        return [collator(rows[start : start + 64]) for start in range(0, len(rows), 64)]

    def describe(self) -> tuple[str, dict[str, str]]:
        """For the header."""
        lengths = " then ".join(str(stage.length) for stage in self.stages)
        pairs = len(self.batches[self.stages[0].length].dataset)
        return f"both tasks of BERT on {self.corpus.name}", {
            "vocabulary": f"{self.config.vocab_size:,} word pieces",
            "length": f"{lengths} word pieces, two texts in each",
            "pairs": f"{pairs:,} of length {self.stages[0].length}; masks {self.options.masking}",
        }

    def length(self, progress: float) -> int:
        """Tokens in a pair when the share `progress` of the budget is spent."""
        return length_at(self.stages, progress)

    def next_batch(self, progress: float) -> dict[str, Tensor]:
        """The next pairs, covered."""
        batch = next(self.batches[self.length(progress)])
        return {
            **batch,
            "num_items_in_batch": (batch["labels"] != IGNORE).sum(),
            "num_pairs_in_batch": (batch["next_sentence_label"] != IGNORE).sum(),
        }

    def metrics(self, output: PreTrainingOutput, batch: dict[str, Tensor]) -> dict[str, Tensor]:
        """Each loss by itself, and the share of right guesses."""
        assert output.masked_lm_loss is not None and output.next_sentence_loss is not None
        assert output.labels is not None
        return {
            "masked_lm_loss": output.masked_lm_loss.detach(),
            "next_sentence_loss": output.next_sentence_loss.detach(),
            "accuracy": masked_accuracy(
                output.prediction_logits.detach(), output.labels, batch["num_items_in_batch"]
            ),
        }

    @torch.no_grad()
    def evaluate(self, trainer: Trainer, quick: bool = False) -> dict[str, float]:
        """
        ## What counts

        `loss` and `accuracy` are those of the masked tokens, so that they can be held against counting. For
        the pairs: the share told apart, the share of the larger class, which needs no model, and the
        standard error of a share near it.
        """
        self.model.eval()
        loss = right = count = pairs = told = random = pair_loss = 0.0
        for batch in self.held_out[: 4 if quick else None]:
            batch = {key: value.to(self.device) for key, value in batch.items()}
            with trainer.autocast():
                output: PreTrainingOutput = self.model(**batch)
            assert output.masked_lm_loss is not None and output.labels is not None
            assert output.next_sentence_loss is not None
            number, rows = len(output.labels), len(batch["input_ids"])
            loss += output.masked_lm_loss.item() * number
            right += masked_accuracy(output.prediction_logits, output.labels).item() * number
            count += number
            is_random = batch["next_sentence_label"]
            told += (output.seq_relationship_logits.argmax(-1) == is_random).sum().item()
            random += is_random.sum().item()
            pair_loss += output.next_sentence_loss.item() * rows
            pairs += rows
        self.model.train()
        chance = max(random, pairs - random) / pairs
        return {
            "loss": loss / max(count, 1),
            "accuracy": right / max(count, 1),
            "next_sentence_loss": pair_loss / pairs,
            "next_sentence_accuracy": told / pairs,
            "next_sentence_chance": chance,
            "next_sentence_standard_error": math.sqrt(chance * (1 - chance) / pairs),
            "pairs": pairs,
        }

    @torch.no_grad()
    def show_samples(self, trainer: Trainer) -> None:
        """Two held-out pairs: what the model puts under the masks, and what it says of the pair."""
        middle = self.held_out[len(self.held_out) // 2]
        batch = {key: value[:2].to(self.device) for key, value in middle.items()}
        labels = batch.pop("labels").cpu()
        wanted = batch.pop("next_sentence_label").tolist()
        self.model.eval()
        with trainer.autocast():
            output = self.model(**batch)
        self.model.train()
        guesses = output.prediction_logits.argmax(-1).cpu()
        chances = output.seq_relationship_logits.float().softmax(-1)[:, 1].tolist()
        console.print()
        for row in range(len(guesses)):
            for line in filled_lines(self.tokenizer, batch["input_ids"][row], labels[row], guesses[row]):
                console.print(line)
            truth = "random" if wanted[row] else "next"
            console.print(f"    second text: {truth}; the model says random with {chances[row]:.0%}\n")

    def conclude(self, result: dict[str, float]) -> None:
        """The pairs."""
        above = result["next_sentence_accuracy"] - result["next_sentence_chance"]
        console.print(
            f"  pairs told apart {result['next_sentence_accuracy']:.1%} of {result['pairs']:,.0f}, by one "
            f"answer {result['next_sentence_chance']:.1%}:\n  "
            f"{above / max(result['next_sentence_standard_error'], 1e-9):.1f} standard errors above\n"
        )


def main(defaults: Options, question: str, argv: list[str] | None = None) -> None:
    """The whole of an experiment that has no more to say than its defaults."""
    options, given = parse(defaults, question, argv, HELP, CHOICES)
    run(defaults, PairJob, options, given)
