r"""
# What does continued pretraining gain, and what does it forget?

This script pretrains a model on Python's documentation. Then it trains four variants on Python source code
without docstrings and comments, and compares them:

- **from scratch**: a model of the same size, trained from random weights. This variant is the baseline.
- **continued**: the pretrained model, trained for half as many steps as *from scratch*.
- **continued, high learning rate**: the same as *continued*, but at 1e-2, the learning rate of pretraining.
- **continued, new tokens**: the same as *continued*, but first, the 300 most frequent words that the
  tokenizer splits are added to its vocabulary.

The first three variants use the tokenizer of the pretrained model, so we can compare their losses. The fourth
has a larger vocabulary. A whole word is usually harder to predict than one of its pieces, so the loss of the
fourth variant isn't comparable with the others. To compare all four, we also mask whole words in held-out
code, and measure how well the models predict these words.

You can start each run yourself: `own_language.py` pretrains a model, and `continue_pretraining.py` trains
each variant."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))  # Find the package without installing it.
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

from labml_bert.data.corpora import Corpus, load_corpus
from labml_bert.data.tokenizers import encode_corpus, encode_texts, save_tokenizer, wordpiece_tokenizer
from labml_bert.files import write_whole
from labml_bert.fill_mask import load_model
from labml_bert.mlm import IGNORE
from labml_bert.models import BertForMaskedLM
from labml_bert.modern import ModernBertConfig, ModernBertForMaskedLM
from labml_bert.modern_folder import save_pretrained
from labml_bert.new_tokens import add_tokens, frequent_split_words
from labml_bert.run.experiment import Run
from labml_bert.run.fingerprint import Fingerprint, load_script, take_fingerprint
from labml_bert.run.options import RunOptions, absolute_path, check_outputs, parse
from labml_bert.run.record import check_range, check_record, describe_run, finish
from labml_bert.run.terminal import exit_on_bad_input
from labml_bert.stdout import console
from labml_bert.training.device import choose_device
from labml_bert.training.distributed import check_single_process
from labml_bert.training.tracking import METRICS, read_metrics

# The vocabulary is small, so that many words of the source code are split. `own_language.py` chooses the
# width and the number of blocks.
PRETRAINING: dict[str, Any] = {"vocab_size": 2000, "schedule": "64:1", "max_position_embeddings": 64}
SCRATCH, TOKENS = "from scratch", "continued, new tokens"
# `VARIANTS` maps each variant to its peak learning rate. We tuned only that of `SCRATCH`, in unrecorded
# trials of 600 steps: the loss was 2.78 at 6e-3, 2.75 at 1e-2, and 3.43 at 2e-2. The trials used seed 0,
# which the comparison uses too.
VARIANTS = {
    SCRATCH: 1e-2,
    "continued": 3e-3,
    "continued, high learning rate": 1e-2,
    TOKENS: 3e-3,
}
# The fourth variant adds `NEW_TOKENS` words as tokens. All variants predict the same held-out occurrences of
# these words, at most `OCCURRENCES`. On each side of a word, the model sees the same stretch of text: at most
# `REACH` tokens as the fourth variant's tokenizer counts them.
NEW_TOKENS, OCCURRENCES, REACH = 300, 1000, 15
# The losses on the new and on the old text.
LOSSES = ("loss", "old_loss")


@dataclass(frozen=True)
class Options:
    """The options on the command line."""

    seeds: int = 3
    """Number of seeds. Each pretrains its own model."""
    pretraining_steps: int = 1200
    """Steps of pretraining on the old text."""
    steps: int = 600
    """Steps of the run from scratch. A pretrained model continues for half as many."""
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
    """
    ## The runs

    Runs a script's `main` as the script's command would, and returns the finished run.
    """
    run = Run(options, experiment, is_alone=True)
    with run.resources:
        main(run, options)
    return run


def variant_options(options: Options, variant: str, seed: int, start: Path) -> Any:
    """Returns the options of a variant. `start` contains the pretrained model and the list of new tokens."""
    script = load_script("continue_pretraining")
    return script.Options(
        from_=str(start),
        from_scratch=variant == SCRATCH,
        new_tokens=str(start / "new_tokens.txt") if variant == TOKENS else None,
        corpus=options.corpus,
        old_corpus=options.old_corpus,
        minutes=None,
        steps=options.steps if variant == SCRATCH else max(1, options.steps // 2),
        learning_rate=VARIANTS[variant],
        seed=seed,
        device=options.device,
        runs=options.runs,
    )


def write_new_tokens(tokenizer: Tokenizer, corpus: Corpus, folder: Path) -> list[str]:
    """Returns the most frequent words that the tokenizer splits, and writes them to a file in `folder`."""
    words = frequent_split_words(tokenizer, corpus.train, NEW_TOKENS)
    write_whole(folder / "new_tokens.txt", "\n".join(words))
    return words


class Occurrence(NamedTuple):
    """
    ## Words to predict

    A word of the held-out text, with the text around it.
    """

    text: str
    start: int
    """The word is `text[start:end]`."""
    end: int


def find_occurrences(
    tokenizer: Tokenizer, texts: Iterable[str], words: Iterable[str], count: int
) -> list[Occurrence]:
    """
    Returns all occurrences of `words` in `texts`, or `count` evenly spaced ones if there are more. Each comes
    with up to `REACH` tokens on each side. Every word has to be a token of `tokenizer`.

    Raises `ValueError` if none of the words occurs.
    """
    ids = {tokenizer.token_to_id(word) for word in words}
    occurrences = []
    for text in texts:
        encoding = tokenizer.encode(text, add_special_tokens=False)
        # Read these attributes only once, because each access creates a new list.
        offsets, word_ids = encoding.offsets, encoding.word_ids
        # Count the pieces of each word, because a new token can also be the first piece of a longer word.
        sizes = Counter(word_ids)
        for i, token in enumerate(encoding.ids):
            if token in ids and sizes[word_ids[i]] == 1:
                left, right = offsets[max(i - REACH, 0)][0], offsets[min(i + REACH, len(offsets) - 1)][1]
                start, end = offsets[i]
                occurrences.append(Occurrence(text[left:right], start - left, end - left))
    if not occurrences:
        raise ValueError("the held-out text has none of the new tokens; use more text")
    number = min(count, len(occurrences))
    return [occurrences[i * len(occurrences) // number] for i in range(number)]


def choose_occurrences(
    tokenizer: Tokenizer, words: list[str], corpus: Corpus, longest: int
) -> list[Occurrence]:
    """
    Returns the held-out occurrences of `words` that both tokenizers encode as at most `longest` tokens.

    Raises `ValueError` if there are none.
    """
    occurrences = [
        occurrence
        for occurrence in find_occurrences(add_tokens(tokenizer, words), corpus.valid, words, OCCURRENCES)
        # With the pretrained model's tokenizer, the same text has more tokens and may not fit the model.
        if len(tokenizer.encode(occurrence.text)) <= longest
    ]
    if not occurrences:
        raise ValueError(
            f"no occurrence of a new token in {corpus.name} fits into the model's {longest} positions; use "
            "another text"
        )
    return occurrences


@torch.no_grad()
def predict_words(
    model: BertForMaskedLM | ModernBertForMaskedLM,
    tokenizer: Tokenizer,
    occurrences: list[Occurrence],
    batch_size: int = 64,
) -> dict[str, float]:
    r"""
    Predicts each word, and returns the accuracy and the mean log-probability of the words, in nats. The model
    predicts the pieces of a word from left to right. It sees the earlier pieces, but the piece to predict and
    the later ones are masked. By the chain rule, the log-probability of the word is the sum over its pieces:

    $$\log p(w \mid \text{context}) = \sum_k \log p(w_k \mid w_1, \dots, w_{k-1}, \text{context})$$

    The model is right about a word if, for every piece, the most probable token is the right one. The masks
    give the model a hint, because their number reveals how many pieces the word has.
    """
    mask_id = tokenizer.token_to_id("[MASK]")
    assert mask_id is not None  # `load_tokenizer` has checked this.
    # Each piece of a word gets a row of its own.
    words, inputs, targets, positions = list[int](), list[Tensor](), list[int](), list[int]()
    for number, (text, start, end) in enumerate(occurrences):
        encoding = tokenizer.encode(text)
        pieces = [t for t, (a, b) in enumerate(encoding.offsets) if start <= a < b <= end]
        for k, t in enumerate(pieces):
            words.append(number)
            # Mask this piece and the later pieces of its word.
            inputs.append(torch.tensor(encoding.ids).index_fill(0, torch.tensor(pieces[k:]), mask_id))
            targets.append(encoding.ids[t])
            positions.append(t)
    log_probs = torch.zeros(len(occurrences))  # (W)
    is_right = torch.ones(len(occurrences), dtype=torch.bool)  # (W)
    for i in range(0, len(inputs), batch_size):
        rows = slice(i, i + batch_size)
        input_ids = pad_sequence(inputs[rows], batch_first=True)  # (B, T)
        mask = pad_sequence([torch.ones_like(row) for row in inputs[rows]], batch_first=True)  # (B, T)
        target, position = (torch.tensor(values[rows])[:, None] for values in (targets, positions))  # (B, 1)
        labels = torch.full_like(input_ids, IGNORE).scatter(1, position, target)  # (B, T)
        logits = model(input_ids, labels, attention_mask=mask).logits.float()  # (B, V)
        word = torch.tensor(words[rows])  # (B)
        log_probs.index_add_(0, word, logits.log_softmax(-1).gather(1, target)[:, 0])
        is_right[word[logits.argmax(-1) != target[:, 0]]] = False
    return {"word_accuracy": is_right.float().mean().item(), "word_log_prob": log_probs.mean().item()}


def check_texts(run: Run, corpus: Corpus, old_corpus: Corpus | None = None) -> None:
    """Raises `ValueError` if a run has read another version of a text. Its results can't be compared then."""
    hashes = {"corpus_sha256": corpus.sha256}
    if old_corpus is not None:
        hashes["old_corpus_sha256"] = old_corpus.sha256
    if any(run.configuration[name] != sha256 for name, sha256 in hashes.items()):
        raise ValueError(f"the text of {run.path} isn't the one that was read at the start; start over")


def read_curves(run_path: Path) -> dict[str, list[tuple[int, float]]]:
    """Returns the points of a finished run. Raises `ValueError` if those that we need are gone."""
    curves = read_metrics(run_path)
    if not all(curves.get(f"{part}.{name}") for part in ("before", "valid") for name in LOSSES):
        raise ValueError(f"{run_path} has lost a part of its {METRICS}; start over")
    return curves


def check_new_tokens(corpus: Corpus, old_corpus: Corpus) -> None:
    """
    Raises `ValueError` if none of the new tokens can be predicted in the held-out text, or if the old text
    has too many different characters for the vocabulary.
    """
    try:
        tokenizer = wordpiece_tokenizer(old_corpus.train, PRETRAINING["vocab_size"], lowercase=False)
    except ValueError as error:
        reason = str(error).partition(";")[0]
        raise ValueError(f"the old text: {reason}; use another --old-corpus") from None
    words = frequent_split_words(tokenizer, corpus.train, NEW_TOKENS)
    choose_occurrences(tokenizer, words, corpus, PRETRAINING["max_position_embeddings"])


def run_seed(
    options: Options, corpus: Corpus, old_corpus: Corpus, seed: int
) -> tuple[dict[str, Any], dict[str, Any]]:
    """
    ## One seed

    Pretrains a model, and trains all variants. Returns the configuration of the pretrained model, and the
    results of this seed.

    Raises `ValueError` if a text changes meanwhile.
    """
    script = load_script("own_language")
    values = {
        **PRETRAINING,
        "corpus": options.old_corpus,
        "minutes": None,
        "steps": options.pretraining_steps,
    }
    machine_options = {"device": options.device, "runs": options.runs}
    pretrained = train(script.main, script.Options(**values, **machine_options, seed=seed), "own_language")
    assert pretrained.path is not None
    check_texts(pretrained, old_corpus)
    start = pretrained.path / "model"
    model, tokenizer = load_model(start)
    words = write_new_tokens(tokenizer, corpus, start)
    occurrences = choose_occurrences(tokenizer, words, corpus, model.config.max_position_embeddings)
    rows = []
    for variant in VARIANTS:
        run_options = variant_options(options, variant, seed, start)
        run = train(load_script("continue_pretraining").main, run_options, "continue_pretraining")
        assert run.path is not None
        check_texts(run, corpus, old_corpus)
        curves = read_curves(run.path)
        rows.append(
            {
                "variant": variant,
                "learning_rate": run_options.learning_rate,
                "steps": run_options.steps,
                "tokens": run_options.steps * run_options.batch_tokens,
                "seconds": run.current_trainer.seconds,
                "before": {name: curves[f"before.{name}"][0][1] for name in LOSSES},
                **run.result,
                **predict_words(*load_model(run.path / "model"), occurrences),
                "curves": {
                    name: [[step, round(value, 4)] for step, value in curves[f"valid.{name}"]]
                    for name in LOSSES
                },
            }
        )
    answers = Counter(text[start:end] for text, start, end in occurrences)
    examples = dict(zip(words[:8], encode_texts(tokenizer, words[:8]), strict=True))
    return asdict(model.config), {
        "seed": seed,
        "pretrained": {
            "steps": options.pretraining_steps,
            "seconds": pretrained.current_trainer.seconds,
            **pretrained.result,
            **predict_words(model, tokenizer, occurrences),
        },
        "variants": rows,
        "words": len(occurrences),
        # A model that always predicts the most frequent of these words has this accuracy.
        "most_frequent_word": answers.most_common(1)[0][1] / len(occurrences),
        "new_tokens": {w: [tokenizer.id_to_token(i) for i in ids] for w, ids in examples.items()},
        "held_out_tokens": [
            len(encode_corpus(t, corpus.valid)) for t in (tokenizer, add_tokens(tokenizer, words))
        ],
    }


def fingerprints(record: dict[str, Any]) -> dict[str, Callable[[], Fingerprint]]:
    """Returns, for each variant, a function that takes the variant's fingerprint."""
    return {variant: partial(take_variant_fingerprint, record, variant) for variant in VARIANTS}


def take_variant_fingerprint(record: dict[str, Any], variant: str) -> Fingerprint:
    """
    Takes the fingerprint of a run from random weights, because the repository lacks the pretrained ones.
    """
    values = record["configuration"]
    options = Options(steps=values["steps"], corpus=values["corpus"], old_corpus=values["old_corpus"])
    tokenizer = wordpiece_tokenizer(
        load_corpus(options.old_corpus).train, PRETRAINING["vocab_size"], lowercase=False
    )
    torch.manual_seed(0)
    with TemporaryDirectory() as name:
        folder = Path(name)
        save_pretrained(ModernBertForMaskedLM(ModernBertConfig(**values["model"])), folder)
        save_tokenizer(tokenizer, folder)
        write_new_tokens(tokenizer, load_corpus(options.corpus), folder)
        script = load_script("continue_pretraining")
        run_options = variant_options(options, variant, 0, folder)
        return take_fingerprint(script.main, run_options, "continue_pretraining")


def main(argv: list[str] | None = None) -> None:
    """Compare continued pretraining with training from scratch."""
    start_time = time.monotonic()
    options = parse(Options, Options(), main.__doc__ or "", sys.argv[1:] if argv is None else argv)
    with exit_on_bad_input():
        check_range(options, "seeds", "pretraining_steps", "steps")
        check_single_process()
        check_outputs(options)
        if options.record is not None:
            check_record(options.record, "compare_continued")
        device = choose_device(options.device)
        corpus_path, old_path = absolute_path(options.corpus), absolute_path(options.old_corpus)
        options = replace(options, corpus=corpus_path, old_corpus=old_path)
        corpus, old_corpus = load_corpus(options.corpus), load_corpus(options.old_corpus)
        check_new_tokens(corpus, old_corpus)
        # Record only the names of the texts, because a path means nothing on another machine.
        values = {**vars(options), "corpus": corpus.name, "old_corpus": old_corpus.name}
        results: list[dict[str, Any]] = []
        replaces_record = options.record is not None and options.record.exists()
        # Each seed takes minutes, so write the record after each one in case you stop the script early. But
        # only a complete record replaces an earlier one.
        for seed in range(options.seeds):
            model, result = run_seed(options, corpus, old_corpus, seed)
            results.append(result)
            for row in result["variants"]:
                numbers = f"{row['loss']:10.3f} {row['old_loss']:10.3f} {row['word_accuracy']:10.1%}"
                console.print(f"  {row['variant']:30}{numbers}")
            values["seeds"] = len(results)
            names = "seeds", "pretraining_steps", "steps", "corpus", "old_corpus"
            words = [f"--{name.replace('_', '-')}={values[name]}" for name in names]
            record = {
                **describe_run("compare_continued", words, device),
                # The page of `continue_pretraining.py` shows this record too.
                "scripts": ["continue_pretraining"],
                "configuration": {name: values[name] for name in names} | {"model": model},
                "result": {"continued": results},
            }
            is_written = not replaces_record or len(results) == options.seeds
            finish(options.record if is_written else None, record, start_time)


if __name__ == "__main__":
    main()
