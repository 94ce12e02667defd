r"""
# What does continued pretraining gain, and what does it forget?

This script pretrains a model on the documentation of Python, and then gives it source code without any words
of documentation. It compares:

- **from scratch**: the same model with random weights, trained on the source code. It's the baseline.
- **continued**: the pretrained model, trained on the source code for half as many steps.
- **continued, high learning rate**: the same with the learning rate of pretraining.
- **continued, new tokens**: the same as *continued*, but the most frequent words that the tokenizer splits
  have become tokens.

All of them have the tokenizer of the pretrained model, because the losses of two tokenizers can't be
compared: a token of one isn't a token of the other. So we compare the new tokens with their pieces in another
way, by masking whole words in held-out code.

Each run is one that you can type: `own_language.py` pretrains, and `continue_pretraining.py` does the rest.
With `--from`, the script starts from your own model instead."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))  # You can run a clone without installing it.
from labml_bert.run import preflight  # noqa: F401  # isort: skip

import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, replace
from functools import partial
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import torch
from tokenizers import Tokenizer
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from labml_bert.data.corpora import load_corpus
from labml_bert.data.tokenizers import encode_corpus, save_tokenizer, wordpiece_tokenizer
from labml_bert.files import write_whole
from labml_bert.fill_mask import load_model
from labml_bert.mlm import IGNORE
from labml_bert.modern import ModernBertForMaskedLM
from labml_bert.modern_folder import save_pretrained
from labml_bert.new_tokens import add_tokens, frequent_split_words
from labml_bert.run.experiment import Run
from labml_bert.run.fingerprint import Fingerprint, load_script, take_fingerprint
from labml_bert.run.options import RunOptions, parse
from labml_bert.run.record import at_least_one, check_record, describe_run, finish
from labml_bert.run.terminal import exit_on_bad_input
from labml_bert.stdout import console
from labml_bert.training.device import choose_device

own_language, continue_pretraining = map(load_script, ("own_language", "continue_pretraining"))
# A small vocabulary, so that many words of the source code are split. The other values are defaults.
PRETRAINING = {"vocab_size": 2000, "schedule": "64:1", "max_position_embeddings": 64}
NEW_TOKENS, OCCURRENCES = 300, 1000
SCRATCH, CONTINUED, HIGH, TOKENS = VARIANTS = (
    "from scratch",
    "continued",
    "continued, high learning rate",
    "continued, new tokens",
)
# A search at 600 steps: from scratch, the loss was TODO
HIGH_LEARNING_RATE = 1e-2


@dataclass(frozen=True)
class Options:
    """The options on the command line."""

    seeds: int = 3
    """Number of seeds. Each has a pretrained model of its own."""
    pretraining_steps: int = 1500
    """Steps of pretraining on the old text."""
    steps: int = 600
    """Steps from scratch. The pretrained model gets half of them."""
    corpus: str = "python-source"
    """The new text: a corpus by name, a UTF-8 file, or a folder."""
    old_corpus: str = "python-docs"
    """The text to pretrain on."""
    runs: Path = Path("logs")
    """Folder in which each run creates its own folder."""
    device: str = "auto"
    """cpu, cuda, or auto, which is the GPU if there is one."""
    record: Path | None = None
    """Write the result to this file, as JSON."""


def train(main: Callable[[Run, Any], None], options: RunOptions, experiment: str) -> Run:
    """Runs `main` as if somebody had typed its command, and returns the finished run."""
    run = Run(options, experiment, is_alone=True)
    with run.resources:
        main(run, options)
    return run


def variant_options(options: Options, name: str, seed: int, start: Path) -> Any:
    """The options of one variant. `start` is the folder of a run or of a model, with its new tokens."""
    is_scratch = name == SCRATCH
    return continue_pretraining.Options(
        from_=str(start),
        from_scratch=is_scratch,
        new_tokens=str(start / "new_tokens.txt") if name == TOKENS else None,
        corpus=options.corpus,
        old_corpus=options.old_corpus,
        minutes=None,
        steps=options.steps if is_scratch else max(1, options.steps // 2),
        learning_rate=HIGH_LEARNING_RATE
        if name in (SCRATCH, HIGH)
        else continue_pretraining.Options.learning_rate,
        seed=seed,
        device=options.device,
        runs=options.runs,
    )


class Occurrence(NamedTuple):
    """A word in its context."""

    text: str
    start: int
    """The word is `text[start:end]`."""
    end: int


def find_occurrences(
    tokenizer: Tokenizer, texts: Iterable[str], words: Iterable[str], count: int, reach: int = 15
) -> list[Occurrence]:
    """
    ## Is the token better than its pieces?

    To compare the two, we need words to predict. Returns up to `count` occurrences of `words` in `texts`,
    evenly spaced, each with `reach` tokens on both sides. Every word in `words` is a token of `tokenizer`.
    """
    ids = {tokenizer.token_to_id(word) for word in words}
    occurrences = []
    for text in texts:
        encoding = tokenizer.encode(text, add_special_tokens=False)
        # A new token can also be the first piece of a longer word, which isn't the word itself.
        sizes = Counter(encoding.word_ids)
        for i, token in enumerate(encoding.ids):
            if token in ids and sizes[encoding.word_ids[i]] == 1:
                first, last = max(i - reach, 0), min(i + reach, len(encoding) - 1)
                left, right = encoding.offsets[first][0], encoding.offsets[last][1]
                start, end = (offset - left for offset in encoding.offsets[i])
                occurrences.append(Occurrence(text[left:right], start, end))
    step = max(1, len(occurrences) / count)
    return [occurrences[int(i * step)] for i in range(min(count, len(occurrences)))]


class WordPredictions(NamedTuple):
    """How well a model predicts whole words that are masked."""

    log_probs: Tensor
    """`(W,)`, in nats"""
    is_right: Tensor
    """`(W,)`, whether the model's first choice is right for every piece."""


@torch.no_grad()
def predict_words(
    model: MaskedLM, tokenizer: Tokenizer, occurrences: list[Occurrence], batch_size: int = 64
) -> WordPredictions:
    r"""
    Masks each word completely and predicts it from its context. A word of several pieces is predicted from
    left to right, and each piece sees the pieces before it. By the chain rule, the log-probability of the word
    is then the sum over its pieces:

    $$\log p(w \mid \text{context}) = \sum_k \log p(w_k \mid w_1, \dots, w_{k-1}, \text{context})$$

    The number of masks gives the model a hint that a single token doesn't have: how many pieces to expect.

    Raises `ValueError` if a text has more tokens than the model has positions.
    """
    mask_id = tokenizer.token_to_id("[MASK]")
    # One row for each piece of each word.
    inputs, targets, positions, sizes = list[Tensor](), list[int](), list[int](), list[int]()
    for text, start, end in occurrences:
        encoding = tokenizer.encode(text)
        if len(encoding) > model.config.max_position_embeddings:
            raise ValueError(f"a context has {len(encoding)} tokens, too many for the model; use fewer")
        ids = torch.tensor(encoding.ids)  # (T)
        pieces = [t for t, (a, b) in enumerate(encoding.offsets) if start <= a < b <= end]
        for k, t in enumerate(pieces):
            inputs.append(ids.index_fill(0, torch.tensor(pieces[k:]), mask_id))
            targets.append(encoding.ids[t])
            positions.append(t)
        sizes.append(len(pieces))
    log_probs, is_right = [], []
    was_training = model.training
    model.eval()
    for i in range(0, len(inputs), batch_size):
        rows = slice(i, i + batch_size)
        input_ids = pad_sequence(inputs[rows], batch_first=True)  # (B, T)
        mask = pad_sequence([torch.ones_like(row) for row in inputs[rows]], batch_first=True)  # (B, T)
        target, position = (
            torch.tensor(targets[rows])[:, None],
            torch.tensor(positions[rows])[:, None],
        )  # (B, 1)
        labels = torch.full_like(input_ids, IGNORE).scatter(1, position, target)  # (B, T)
        logits = model(input_ids, labels, attention_mask=mask).logits.float()  # (B, V)
        log_probs.append(logits.log_softmax(-1).gather(1, target)[:, 0])  # (B)
        is_right.append(logits.argmax(-1) == target[:, 0])  # (B)
    model.train(was_training)
    # The pieces of one word are neighbors, so each word is a part of the result.
    parts = list(zip(torch.cat(log_probs).split(sizes), torch.cat(is_right).split(sizes), strict=True))
    return WordPredictions(
        torch.stack([log_p.sum() for log_p, _ in parts]), torch.stack([right.all() for _, right in parts])
    )


def evaluate_words(
    model: Any, tokenizer: Tokenizer, occurrences: list[Occurrence], name: str
) -> dict[str, Any]:
    """How well a model predicts the words: the accuracy, and the mean log-probability in nats."""
    predictions = predict_words(model, tokenizer, occurrences)
    accuracy, log_prob = predictions.is_right.float().mean().item(), predictions.log_probs.mean().item()
    return {"accuracy": accuracy, "log_prob": log_prob}


def run_seed(options: Options, seed: int) -> Iterator[dict[str, Any]]:
    """
    ## One seed

    Pretrains a model, adds new tokens, and yields a row for each variant.
    """


def main(argv: list[str] | None = None) -> None:
    """Compare continued pretraining with training from scratch."""
    start_time = time.monotonic()
    options = parse(Options, Options(), main.__doc__ or "", sys.argv[1:] if argv is None else argv)
    with exit_on_bad_input():
        at_least_one(options, "seeds", "pretraining_steps", "steps")
        if options.record is not None:
            check_record(options.record)
        corpus = load_corpus(options.corpus)
        device = choose_device(options.device)
