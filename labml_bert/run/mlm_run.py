"""
# One run of a masked language model

From a text to a trained model: the parts of this package in the order in which a run needs them.
`mlm_tiny.py`, `mlm_words.py` and `own_language.py` among the experiments are this, each with its own question
and the values that suit it.
"""

from dataclasses import asdict, dataclass
from itertools import accumulate

import torch
from torch import Tensor

from labml_bert.baselines.ngrams import Floor, floors
from labml_bert.data.corpora import Corpus, load_corpus
from labml_bert.data.curriculum import Curriculum, framed, parse_schedule
from labml_bert.data.tokenizers import (
    SPECIAL_TOKENS,
    character_tokenizer,
    encode_corpus,
    special_token_ids,
    word_tokenizer,
    wordpiece_tokenizer,
)
from labml_bert.mlm import IGNORE, MaskedLMOutput, TokenMasker, masked_accuracy
from labml_bert.models import BertForMaskedLM
from labml_bert.run.job import RunOptions, example, parse, run
from labml_bert.run.terminal import console, filled_lines
from labml_bert.training.trainer import Trainer


@dataclass(frozen=True)
class Options(RunOptions):
    """
    ## What can be chosen beside
    """

    tokenizer: str = "char"
    mlm_probability: float = 0.3
    max_position_embeddings: int = 128


HELP = {"tokenizer": "what one token is"}
UNITS = {"char": "characters", "word": "words", "wordpiece": "word pieces"}


class MaskedLMJob:
    """
    ## The parts, put together

    A `Job` of `run.py`.

    Raises `ValueError` where an option makes no sense, or the text is too short for it.
    """

    def __init__(self, options: Options, device: torch.device):
        if not 0 < options.mlm_probability <= 1:
            raise ValueError(f"mlm_probability is {options.mlm_probability}; it must be above 0, at most 1")
        # One generator for windows and masks: its state is the position in the data.
        self.generator = torch.Generator().manual_seed(options.seed)
        self.options = options
        self.device = device
        stages = parse_schedule(options.schedule)
        self.arguments = options.training_arguments()
        self.corpus: Corpus = load_corpus(options.corpus)
        if options.tokenizer == "word":
            self.tokenizer = word_tokenizer(self.corpus.train, options.vocab_size)
        elif options.tokenizer == "wordpiece":
            self.tokenizer = wordpiece_tokenizer(self.corpus.train, options.vocab_size, lowercase=False)
        else:
            self.tokenizer = character_tokenizer(self.corpus.train)
        self.special_ids = special_token_ids(self.tokenizer)
        self.config = options.model_config(self.tokenizer.get_vocab_size(), options.max_position_embeddings)
        train_ids = encode_corpus(self.tokenizer, self.corpus.train)
        valid_ids = encode_corpus(self.tokenizer, self.corpus.valid)
        # Who uses the model puts `[CLS]` and `[SEP]` around a text of word pieces, so it learns with them.
        first, last = (self.special_ids[SPECIAL_TOKENS.index(name)] for name in ("[CLS]", "[SEP]"))
        frame = (first, last) if options.tokenizer == "wordpiece" else None
        self.batch_tokens = options.batch_tokens
        self.curriculum = Curriculum(
            train_ids, stages, options.batch_tokens, options.max_position_embeddings, self.generator, frame
        )
        longest = stages[-1].length
        if len(valid_ids) < longest:
            raise ValueError(
                f"the held-out tenth of the text has {len(valid_ids)} tokens, shorter than one sequence of "
                f"{longest}; give more text or shorten the schedule"
            )
        self.floors: list[Floor] = floors(train_ids, valid_ids, self.config.vocab_size, self.special_ids)
        # The same count in each row of a length, and so tensors of one shape: PyTorch on a CPU prepares its
        # products once a shape, and by a coin for each token every step would bring a new one.
        self.masker = self.make_masker(self.generator, options.mlm_probability, most=longest)
        windows = valid_ids[: len(valid_ids) // longest * longest].view(-1, longest)
        self.windows = framed(windows, frame)
        # The same masks at every evaluation of every run, or two results could not be compared.
        self.held_out = self.make_masker(torch.Generator().manual_seed(1))(self.windows)
        if (self.held_out.labels == IGNORE).all():
            raise ValueError("the held-out text has no token of the vocabulary to predict; give more text")
        self.model = BertForMaskedLM(self.config)
        shares = accumulate(stage.share for stage in stages)
        self.marks = [
            (min(end, 1.0), f"length {stage.length}") for end, stage in zip(shares, stages, strict=True)
        ]
        self.example = example(
            self.corpus.valid, options.tokenizer == "char", options.max_position_embeddings
        )
        self.configuration = {
            **asdict(options),
            "corpus_sha256": self.corpus.sha256,
            "model": asdict(self.config),
        }

    def make_masker(
        self,
        generator: torch.Generator,
        mlm_probability: float = 0.15,
        mask_replace_prob: float = 0.8,
        most: int | None = None,
    ) -> TokenMasker:
        """The paper's rule over this vocabulary; half of what `[MASK]` leaves over becomes random."""
        return TokenMasker(
            self.config.vocab_size,
            self.special_ids[SPECIAL_TOKENS.index("[MASK]")],
            self.special_ids,
            mlm_probability,
            mask_replace_prob,
            random_replace_prob=(1 - mask_replace_prob) / 2,
            max_predictions_per_seq=most,
            generator=generator,
        )

    def describe(self) -> tuple[str, dict[str, str]]:
        """For the header."""
        unit = UNITS[self.options.tokenizer]
        lengths = " then ".join(str(stage.length) for stage in self.curriculum.stages)
        return f"a masked language model on {self.corpus.name}", {
            "vocabulary": f"{self.config.vocab_size:,} {unit}",
            "length": f"{lengths} {unit}",
            "masked": f"{self.options.mlm_probability:.0%} in training, 15% of the held-out text",
        }

    def length(self, progress: float) -> int:
        """Tokens in a sequence when the share `progress` of the budget is spent."""
        return self.curriculum.length(progress)

    def metrics(self, output: MaskedLMOutput, batch: dict[str, Tensor]) -> dict[str, Tensor]:
        """The share of right guesses."""
        assert output.labels is not None
        count = batch["num_items_in_batch"]
        return {"accuracy": masked_accuracy(output.logits.detach(), output.labels, count)}

    def next_batch(self, progress: float) -> dict[str, Tensor]:
        """The next windows, covered."""
        batch = self.curriculum.batch(progress)
        covered = self.masker(batch.input_ids)
        return {
            "input_ids": covered.input_ids,
            "labels": covered.labels,
            "position_ids": batch.position_ids,
            "num_items_in_batch": (covered.labels != IGNORE).sum(),
        }

    @torch.no_grad()
    def evaluate(self, trainer: Trainer, quick: bool = False) -> dict[str, float]:
        """
        ## What counts

        Loss and accuracy on held-out windows of the full length, in eval mode, on masks that never
        change. The mean is over masked tokens, not over batches, which hold different numbers of them.
        """
        self.model.eval()
        loss = right = count = 0.0
        length = self.windows.size(1)
        rows = max(1, 8192 // length)
        windows = min(len(self.windows), max(1, 16_384 // length)) if quick else len(self.windows)
        for start in range(0, windows, rows):
            end = min(start + rows, windows)
            input_ids, labels = (part[start:end].to(self.device) for part in self.held_out)
            with trainer.autocast():
                output: MaskedLMOutput = self.model(input_ids, labels)
            assert output.loss is not None and output.labels is not None
            number = len(output.labels)
            loss += output.loss.item() * number
            right += masked_accuracy(output.logits, output.labels).item() * number
            count += number
        self.model.train()
        return {"loss": loss / max(count, 1), "accuracy": right / max(count, 1)}

    @torch.no_grad()
    def show_samples(self, trainer: Trainer, count: int = 2) -> None:
        """Prints the model's answers in a few held-out lines; every chosen token is hidden."""
        generator = torch.Generator().manual_seed(2)
        masker = self.make_masker(generator, mask_replace_prob=1.0)
        rows = torch.linspace(0, len(self.windows) - 1, count + 2).long()[1:-1]
        input_ids, labels = masker(self.windows[rows])
        self.model.eval()
        with trainer.autocast():
            guesses = self.model(input_ids.to(self.device)).logits.argmax(-1).cpu()
        self.model.train()
        console.print()
        for row in range(len(rows)):
            for line in filled_lines(self.tokenizer, input_ids[row], labels[row], guesses[row]):
                console.print(line)
        console.print()

    def conclude(self, result: dict[str, float]) -> None:
        """The table says it all."""


def main(defaults: Options, question: str, argv: list[str] | None = None) -> None:
    """The whole of an experiment that has no more to say than its defaults."""
    options, given = parse(defaults, question, argv, HELP, {"tokenizer": [*UNITS]})
    run(defaults, MaskedLMJob, options, given)
