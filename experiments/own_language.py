r"""
# Pretrain a model for your own language

What do you do if you have text in a language, but no model for it? Put the text into a folder as UTF-8 files,
and run one command:

    python experiments/own_language.py --corpus my_texts

The command trains a subword vocabulary, chooses sizes that suit the amount of text, and pretrains the modern
encoder of `modern.py`. `transformers` can load the model, a ModernBERT, from the run's subfolder `model`.

Why not the original BERT? A small BERT can spend most of a short run on a [plateau](../stuck.md). [The
chapter on this script](../own-language.md) shows a run on a German text.

The script needs no settings for your language, but words need spaces between them. Case and accents stay."""

import sys
from dataclasses import dataclass, replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))  # Find the package without installing it.
from labml_bert.run import preflight  # noqa: F401  # isort: skip

import math

from tokenizers import Tokenizer

from labml_bert.data.corpora import Corpus
from labml_bert.data.curriculum import length_at, parse_schedule, stage_ends, tokens_per_step
from labml_bert.data.masked_text import MaskedText
from labml_bert.data.token_files import TokenizedCorpus, load_text_or_tokens
from labml_bert.data.tokenizers import adds_cls_sep, wordpiece_tokenizer
from labml_bert.mlm import masked_accuracy
from labml_bert.modern import ModernBertForMaskedLM
from labml_bert.run.experiment import Run
from labml_bert.run.launch import launch
from labml_bert.run.options import RunOptions
from labml_bert.training.evaluation import evaluate_masked_lm
from labml_bert.training.optimization import OptimizerName


@dataclass(frozen=True)
class Options(RunOptions):
    """
    ## The values, and why

    If you leave out an option whose default is `None`, the functions below choose its value to suit the text.
    Instead of `minutes`, they choose `steps`. `mlm_tiny.py` and `mlm_modern.py` give reasons for some of the
    other values."""

    minutes: float | None = None
    """How long to train, in minutes. Default: no time limit, but a number of steps that suits the text."""
    vocab_size: int | None = None
    """Size of the vocabulary. Default: one subword per 400 characters of text, but at least 1,000 and at most
    30,000, or more if the alphabet is large."""
    schedule: str = "128:1"
    """Sequence lengths, each with its weight in the training budget. `32:1,128:1` puts short ones first."""
    batch_tokens: int = 2048
    """Tokens per step at every length, rounded down to whole rows."""
    mlm_probability: float = 0.3
    """Fraction of tokens to predict in training. Evaluations always mask 15%."""
    hidden_size: int | None = None
    """Width of the model. Default: 128 to 768, depending on the amount of text."""
    num_hidden_layers: int | None = None
    """Number of blocks. Default: 4 to 12, depending on the amount of text."""
    num_attention_heads: int | None = None
    """Heads per block. Default: one per 32 dimensions, or one per 64 if the width is at least 512."""
    intermediate_size: int | None = None
    """Width of the feed-forward networks. Default: twice the hidden size."""
    global_attn_every_n_layers: int = 1
    """Distance from one global layer to the next. With 1, every layer attends to the whole sequence. Use 3,
    as ModernBERT does, for sequences of 512 tokens or more."""
    max_position_embeddings: int = 128
    """Longest sequence in training."""
    initializer_range: float | None = None
    """Standard deviation of the initial weights. Default: 0.02 at a width of 768, larger for narrower
    models."""
    optimizer: OptimizerName = "muon"
    """Muon for the matrices of the blocks, AdamW for everything else."""
    learning_rate: float | None = None
    """Peak learning rate. Default: from 1e-2 at a width of 128 down to 8e-4 at 768."""
    warmup_ratio: float = 0.05
    """Fraction of the budget over which the learning rate warms up to its peak."""
    weight_decay: float = 0.05
    """Weight decay of matrices. Biases and LayerNorms aren't decayed."""
    adam_beta2: float = 0.98
    """Decay rate of Adam's second moment."""


# Each row gives the minimum number of characters of training text, then the width and the number of blocks
# to use. A model with far more parameters than the text has tokens can memorize the text. The last row is as
# wide and deep as BERT base, which was trained on about 16 billion characters.
SIZES = [(0, 128, 4), (20_000_000, 256, 6), (200_000_000, 512, 8), (2_000_000_000, 768, 12)]
# The best learning rate usually falls as the width grows. We searched for it only at a width of 128.
# ModernBERT base used 8e-4 at a width of 768. We chose the other two values in between, without a search.
LEARNING_RATES = {128: 1e-2, 256: 4e-3, 512: 1.5e-3, 768: 8e-4}
# The vocabulary gets one subword for this many characters of training text. If a token has four characters on
# average, a subword then occurs a hundred times on average, which should be enough to learn its vector.
CHARACTERS_PER_PIECE = 400
# BERT was trained for about 40 epochs, or a million steps. On a small text, 40 epochs are too few steps to
# learn much, so there's a minimum number of steps.
EPOCHS, FEWEST_STEPS, MOST_STEPS = 40, 2_000, 1_000_000


def default_vocab_size(corpus: Corpus) -> int:
    """
    ## Defaults that depend on the text

    The vocabulary grows with the text. It needs room for two forms of each character, because a character
    can start a word or continue one. So a text with many different characters gets a larger vocabulary."""
    alphabet = len(set().union(*corpus.train))
    pieces = min(30_000, max(1_000, corpus.train_characters // CHARACTERS_PER_PIECE))
    return max(pieces, 2 * alphabet + 500)


def choose_tokenizer(corpus: Corpus | TokenizedCorpus, vocab_size: int | None) -> Tokenizer:
    """Returns the tokenizer of a tokenized corpus, or trains one on a corpus of text."""
    if isinstance(corpus, Corpus):
        size = default_vocab_size(corpus) if vocab_size is None else vocab_size
        return wordpiece_tokenizer(corpus.train, size, lowercase=False)
    size = corpus.tokenizer.get_vocab_size()
    if vocab_size not in (None, size):
        raise ValueError(f"{corpus.name} is tokenized with {size} tokens; leave out --vocab-size")
    return corpus.tokenizer


def set_defaults(options: Options, characters: int, vocab_size: int) -> Options:
    r"""
    Fills in the options that you left out, for a text of this many characters. The standard deviation of the
    initial weights is $0.02\sqrt{768 / D}$ for a model of width $D$. With this value, a sum of $D$ initial
    weights has about the same standard deviation as in BERT base."""
    width, layers = [(width, layers) for least, width, layers in SIZES if characters >= least][-1]
    width = options.hidden_size or width
    # Use the learning rate of the width in the table that is nearest on a logarithmic scale.
    nearest = min(LEARNING_RATES, key=lambda other: abs(math.log(other / max(1, width))))
    steps = EPOCHS * characters // 4 // max(1, options.batch_tokens)
    heads = max(1, width // (32 if width < 512 else 64))
    while heads > 1 and width % (2 * heads):  # RoPE needs heads of even width.
        heads -= 1
    defaults = {
        "vocab_size": vocab_size,
        "hidden_size": width,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "intermediate_size": 2 * width,
        "initializer_range": round(0.02 * (768 / max(1, width)) ** 0.5, 3),
        "learning_rate": LEARNING_RATES[nearest],
        "steps": min(max(steps, FEWEST_STEPS), MOST_STEPS) if options.minutes is None else None,
    }
    return replace(options, **{k: v for k, v in defaults.items() if getattr(options, k) is None})


def main(run: Run, options: Options) -> None:
    """Pretrain a masked language model on text in any language."""
    stages = parse_schedule(options.schedule)
    with run.reading_text():
        corpus = load_text_or_tokens(options.corpus)
        tokenizer = choose_tokenizer(corpus, options.vocab_size)
        run.options = options = set_defaults(options, corpus.train_characters, tokenizer.get_vocab_size())
        text = MaskedText(
            corpus,
            tokenizer,
            longest=stages[-1].length,
            batch_tokens=options.batch_tokens,
            max_position_embeddings=options.max_position_embeddings,
            mlm_probability=options.mlm_probability,
            generator=run.generator,
            with_cls_sep=adds_cls_sep(tokenizer),
        )
    ids = {"vocab_size": text.vocab_size, "pad_token_id": tokenizer.token_to_id("[PAD]")}
    model = ModernBertForMaskedLM(options.modern_config(**ids))
    details = {
        "vocabulary": f"{text.vocab_size:,} subwords, "
        f"one per {corpus.train_characters // text.vocab_size:,} characters",
        "length": " then ".join(str(stage.length) for stage in stages) + " subwords",
        "masked": f"{options.mlm_probability:.0%} in training, 15% of the held-out text",
    }
    if run.user_options.steps is None and options.steps:
        tokens = sum(s.fraction * tokens_per_step(options.batch_tokens, s.length) for s in stages)
        details["budget"] = f"about {options.steps * tokens / len(text.train_ids):.0f} passes over the text"
    trainer = run.trainer(model, text, "a modern masked language model", details)

    for step in trainer.steps(evaluate_at=stage_ends(stages)):  # budget, learning rate, Ctrl-C, checkpoints
        batch = text.batch(length_at(stages, step.progress))  # random windows, with masks
        for part in step.micro_batches(batch):  # this process's rows of the batch
            with step.autocast():  # bfloat16 if the hardware is fast at it
                output = trainer.parallel(**part)
            accuracy = masked_accuracy(output.logits, output.labels, part["num_items_in_batch"])
            step.backward(output.loss, accuracy=accuracy)
        step.update()  # clips the gradient, takes an optimizer step, stops the run on NaN
        if step.evaluation_due:
            run.log(step, evaluate_masked_lm(trainer, text.held_out, tokens=16_384))
        if step.milestone:
            run.show_predictions(*text.samples)

    run.finish(lambda: evaluate_masked_lm(trainer, text.held_out))


if __name__ == "__main__":
    launch(main, Options)
