r"""
# Continue pretraining on your own kind of text

You have a model, and text of a kind that the model has never seen: source code, case notes, contracts. Do you
have to pretrain from scratch? Often not. You can train the model further on your text instead:

    python experiments/continue_pretraining.py --from MODEL --corpus my_texts

`MODEL` is the folder of a BERT or a ModernBERT, saved by this project or by `transformers`. The model keeps
its tokenizer. If the tokenizer cuts the words of your field into pieces, you can add [new
tokens](../labml_bert/new_tokens.md) to its vocabulary.

While the model learns the new text, it can forget the old one. So each evaluation also measures the loss on
held-out text of the old kind, which the model no longer trains on. With
[`compare_continued.py`](compare_continued.md), we measured how much a model forgets. [A
chapter](../continue-pretraining.md) shows the results."""

import sys
from dataclasses import dataclass, replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))  # Find the package without installing it.
from labml_bert.run import preflight  # noqa: F401  # isort: skip

import contextlib
from typing import Annotated, Any

import tyro
from tokenizers import Tokenizer

from labml_bert.backbone import load_run_state, text_has_changed
from labml_bert.data.curriculum import length_at, parse_schedule, stage_ends
from labml_bert.data.masked_text import MaskedText
from labml_bert.data.token_files import load_text_or_tokens
from labml_bert.data.tokenizers import adds_cls_sep, encode_texts
from labml_bert.files import fingerprint
from labml_bert.fill_mask import load_model
from labml_bert.mlm import masked_accuracy
from labml_bert.models import BertForMaskedLM
from labml_bert.modern import ModernBertForMaskedLM
from labml_bert.new_tokens import add_embeddings, add_tokens, read_words
from labml_bert.run.experiment import Run
from labml_bert.run.launch import launch
from labml_bert.run.options import RunOptions, absolute_path
from labml_bert.stdout import display_path, print_note
from labml_bert.training.distributed import rank
from labml_bert.training.evaluation import evaluate_masked_lm
from labml_bert.training.optimization import OptimizerName
from labml_bert.training.tracking import read_metrics

# The points of a learning curve use about this many held-out tokens of each text. The losses that we compare,
# before the first step and after the last, use all of them.
EVALUATION_TOKENS = 8_192


@dataclass(frozen=True)
class Options(RunOptions):
    """
    ## The values, and why

    The sizes are those of the model in `--from`. `mlm_tiny.py` and `mlm_modern.py` give reasons for some of
    the values that aren't explained here."""

    from_: Annotated[str | None, tyro.conf.arg(name="from")] = None
    """The model to start from: the folder of a run or of a model."""
    new_tokens: str | None = None
    """File with words to add to the vocabulary, one on each line."""
    from_scratch: bool = False
    """Start from random weights instead, to see what the pretrained weights are worth."""
    corpus: str = "python-source"
    """Text to train on: python-source, python-docs, another corpus by name, a UTF-8 file, a folder of such
    files, or the folder that labml_bert.prepare has written with this model's tokenizer."""
    old_corpus: str = "python-docs"
    """Text like that of the original pretraining. Its held-out part shows what the model forgets."""
    minutes: float | None = 3.0
    """How long to train, in minutes."""
    schedule: str = "64:1"
    """Sequence lengths, each with its weight in the training budget."""
    batch_tokens: int = 2048
    """Tokens per step at every length, rounded down to whole rows."""
    mlm_probability: float = 0.3
    """Fraction of tokens to predict in training. Evaluations always mask 15%."""
    optimizer: OptimizerName = "muon"
    """Muon for the matrices of the blocks, AdamW for everything else."""
    learning_rate: float | None = None
    """Peak learning rate. Default: 3e-3 at a width of 128, and less for wider models, down to 2.4e-4 at 768.
    That's about a third of the learning rate in `own_language.py`, so that the model forgets less."""
    warmup_ratio: float = 0.05
    """Fraction of the budget over which the learning rate warms up to its peak."""
    weight_decay: float = 0.05
    """Weight decay of matrices. Biases and LayerNorms aren't decayed."""
    adam_beta2: float = 0.98
    """Decay rate of Adam's second moment."""


def load_start(options: Options) -> tuple[BertForMaskedLM | ModernBertForMaskedLM, Tokenizer]:
    """
    ## What the model starts with

    Returns the model and its tokenizer, with any new tokens added. With `from_scratch`, the weights are
    random. A resumed run has all of this in its own folder, so `--from` may be gone, unless the run writes a
    record. Raises `ValueError` if there is no model, or if a new token doesn't suit the tokenizer."""
    if options.from_ is None:
        raise ValueError("--from is missing; name the folder of a run or of a model")
    if options.resume is not None:
        try:
            return load_model(options.resume)
        except ValueError:  # If a file there is damaged, go on with `--from`.
            if not Path(options.from_).exists():
                raise
    model, tokenizer = load_model(Path(options.from_))
    if options.new_tokens is not None:
        words = read_words(Path(options.new_tokens))
        pieces = encode_texts(tokenizer, words)
        tokenizer = add_tokens(tokenizer, words)
        add_embeddings(model, pieces, tokenizer)
    if options.from_scratch:
        kind: Any = type(model)
        model = kind(model.config)
    return model, tokenizer


def read_configuration(folder: Path) -> dict[str, Any]:
    """Returns the configuration of the run in `folder` or in the folder above it, or an empty dictionary."""
    with contextlib.suppress(ValueError):  # A model folder needs no checkpoint, so it may be damaged.
        return (load_run_state(folder) or {}).get("configuration", {})
    return {}


def main(run: Run, options: Options) -> None:
    """Continue the pretraining of a masked language model on your text."""
    stages = parse_schedule(options.schedule)
    with run.reading_text():
        model, tokenizer = load_start(options)
        hashes = {"start_sha256": fingerprint(model.state_dict(), {"tokenizer": tokenizer.to_str()})}
        if options.resume is not None:
            saved = read_configuration(options.resume)
            # Checkpoints of earlier versions don't have this entry.
            hashes = {name: saved[name] for name in hashes if name in saved}
        paths: dict[str, Any] = {
            name: str(Path.cwd() / p) for name in ("from_", "new_tokens") if (p := getattr(options, name))
        }
        if options.old_corpus:
            paths["old_corpus"] = absolute_path(options.old_corpus)
        learning_rate = options.learning_rate
        if learning_rate is None:
            learning_rate = 3e-3 * (128 / model.config.hidden_size) ** 1.4
        run.options = options = replace(options, **paths, learning_rate=learning_rate)
        text, old_text = (
            MaskedText(
                load_text_or_tokens(name),
                tokenizer,
                longest=stages[-1].length,
                batch_tokens=options.batch_tokens,
                max_position_embeddings=model.config.max_position_embeddings,
                mlm_probability=options.mlm_probability,
                generator=run.generator,
                # If the model was pretrained with [CLS] and [SEP], its tokenizer adds them.
                with_cls_sep=adds_cls_sep(tokenizer),
            )
            for name in (options.corpus, options.old_corpus)
        )
        if options.from_ and not options.from_scratch and options.resume is None:
            # If a text has changed, the model may have been trained on what is now held out.
            earlier = read_configuration(Path(options.from_))
            if text_has_changed(earlier, options.old_corpus, old_text.corpus.sha256):
                raise ValueError(
                    "the old text has changed since the model in --from was trained on it, or is another "
                    "part of it; use the text as it was then, or another --old-corpus"
                )
            if text_has_changed(earlier, options.corpus, text.corpus.sha256):
                print_note(
                    "the model may know some of the held-out text, which has changed since its training"
                )
    details = {
        "from": display_path(Path(options.from_ or "")) + ", random weights" * options.from_scratch,
        "vocabulary": f"{text.vocab_size:,} tokens",
        "old text": f"{old_text.corpus.name}, {len(old_text.held_out.labels):,} held-out windows",
        "masked": f"{options.mlm_probability:.0%} in training, 15% of the held-out text",
    }
    other_texts = {"old_corpus_sha256": old_text.corpus.sha256, **hashes}
    trainer = run.trainer(model, text, "continued pretraining", details, other_texts=other_texts)

    def evaluate(tokens: int | None = None) -> dict[str, float]:
        new, old = (evaluate_masked_lm(trainer, one.held_out, tokens) for one in (text, old_text))
        return {**new, "old_loss": old["loss"], "old_accuracy": old["accuracy"]}

    if trainer.step == 0 and rank() == 0:  # Measure what the model knows before the first step.
        before = {f"before.{name}": value for name, value in evaluate().items()}
        start = {f"valid.{name}": value for name, value in evaluate(EVALUATION_TOKENS).items()}
        run.tracker.save(0, {"seconds": 0.0, **start, **before})
    for step in trainer.steps(evaluate_at=stage_ends(stages)):  # budget, learning rate, Ctrl-C, checkpoints
        batch = text.batch(length_at(stages, step.progress))  # random windows, masks and position offsets
        for part in step.micro_batches(batch):  # this process's rows of the batch
            with step.autocast():  # bfloat16 if the hardware is fast at it
                output = trainer.parallel(**part)
            accuracy = masked_accuracy(output.logits, output.labels, part["num_items_in_batch"])
            step.backward(output.loss, accuracy=accuracy)
        step.update()  # clips the gradient, takes an optimizer step, stops the run on NaN
        if step.evaluation_due:
            run.log(step, evaluate(EVALUATION_TOKENS))

    def describe_old_text(result: dict[str, float]) -> str:
        before = read_metrics(run.path).get("before.old_loss") if run.path else None
        had = f"had a loss of {before[0][1]:.3f}, and " if before else ""
        return f"  the old text {had}has a loss of {result['old_loss']:.3f} now\n"

    run.finish(evaluate, describe_old_text)


if __name__ == "__main__":
    launch(main, Options)
