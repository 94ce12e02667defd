r"""
# Pretrain your own language

You have text in a language, and no model that speaks it. What do you need? A folder of UTF-8 files and one
command:

    python experiments/own_language.py --corpus my_texts

It trains a vocabulary of word pieces, chooses sizes that suit the amount of text, pretrains a masked
language model, and fills a mask in a held-out line. The folder `model` of the run opens in `transformers`.

Nothing here knows the language. The pieces come from the text itself, with case and accents kept, because
in many languages they tell words apart."""

import sys
from dataclasses import dataclass, replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))  # A clone runs without being installed.
from labml_bert.run import script  # noqa: F401  # isort: skip

from labml_bert.data.corpora import Corpus, load_corpus
from labml_bert.data.curriculum import length_at, parse_schedule, stage_ends
from labml_bert.data.masked_text import MaskedText
from labml_bert.data.tokenizers import wordpiece_tokenizer
from labml_bert.mlm import masked_accuracy
from labml_bert.models import BertForMaskedLM
from labml_bert.run.experiment import Run
from labml_bert.run.launch import launch
from labml_bert.run.options import RunOptions
from labml_bert.training.evaluation import evaluate_masked_lm


@dataclass(frozen=True)
class Options(RunOptions):
    """
    ## The values, and why

    Those without a value follow the amount of text, unless you give them; `suit` below chooses. The reasons
    not given here are those of `mlm_tiny.py`."""

    minutes: float | None = None
    """How long to train, instead of the number of steps that suits the text."""
    vocab_size: int | None = None
    """Size of the vocabulary. Without it: one piece for every 400 characters, 1,000 to 30,000."""
    schedule: str = "16:3,32:1,64:1,128:3"
    """Sequence lengths and their shares of the budget."""
    batch_tokens: int = 2048
    """Tokens in a step, at every length."""
    mlm_probability: float = 0.3
    """Fraction of the tokens to predict in training; the evaluation always masks 15%."""
    hidden_size: int | None = None
    """Width of the model. Without it: 128 to 768, growing with the text."""
    num_hidden_layers: int | None = None
    """Number of blocks. Without it: 4 to 12, growing with the text."""
    num_attention_heads: int | None = None
    """Heads in each block. Without it: one for every 32 dimensions, for every 64 from a width of 512."""
    max_position_embeddings: int = 128
    """Longest sequence that the model can read."""
    initializer_range: float | None = None
    """Standard deviation of the initial weights. Without it: 0.02 at a width of 768, more for a narrower
    model."""
    hidden_dropout_prob: float = 0.0
    """Dropout, in the attention weights too."""
    learning_rate: float | None = None
    """Peak learning rate. Without it: 2e-3 at a width of 128, down to 1e-4 at 768."""
    warmup_ratio: float = 0.05
    """Fraction of the budget in which the learning rate rises to its peak."""
    weight_decay: float = 0.05
    """Weight decay of matrices; biases and LayerNorms have none."""
    adam_beta2: float = 0.98
    """Decay rate of Adam's second moment."""


# From so many characters of text, a width and a number of blocks. A model with far more parameters than the
# text has
# pieces learns it by heart. The last row is BERT base, which was trained on about 16 billion characters.
SIZES = [(0, 128, 4), (20_000_000, 256, 6), (200_000_000, 512, 8), (2_000_000_000, 768, 12)]
LEARNING_RATES = {128: 2e-3, 256: 1e-3, 512: 5e-4, 768: 1e-4}
# A piece must occur often before its vector means anything: about a hundred times on average, at four
# characters each.
CHARACTERS_PER_PIECE = 400
# The original read its text 40 times. A small text is read 40 times before the model leaves the plateau.
EPOCHS, FEWEST_STEPS, MOST_STEPS = 40, 6_000, 1_000_000


def suit(options: Options, corpus: Corpus) -> Options:
    r"""
    ## What suits the text

    Fills in the options that were not given. The alphabet must fit into the vocabulary twice, since a
    character can begin a word or continue one; a script with thousands of characters therefore gets a
    larger vocabulary. The standard deviation of the initial weights follows the width $D$, as
    $0.02\sqrt{768 / D}$, so that a sum over $D$ of them starts as large as in BERT base."""
    characters = sum(map(len, corpus.train))
    alphabet = len(set().union(*corpus.train))
    pieces = min(30_000, max(1_000, characters // CHARACTERS_PER_PIECE))
    width, layers = [(width, layers) for least, width, layers in SIZES if characters >= least][-1]
    steps = EPOCHS * characters // 4 // Options.batch_tokens
    suited = {
        "vocab_size": max(pieces, 2 * alphabet + 500),
        "hidden_size": width,
        "num_hidden_layers": layers,
        "num_attention_heads": width // 32 if width < 512 else width // 64,
        "initializer_range": round(0.02 * (768 / width) ** 0.5, 3),
        "learning_rate": LEARNING_RATES[width],
        "steps": min(max(steps, FEWEST_STEPS), MOST_STEPS) if options.minutes is None else None,
    }
    return replace(options, **{k: v for k, v in suited.items() if getattr(options, k) is None})


def main(run: Run, options: Options) -> None:
    """Pretrain a masked language model on text in any language."""
    stages = parse_schedule(options.schedule)
    with run.reading_text():
        corpus = load_corpus(options.corpus)
        run.options = options = suit(options, corpus)
        assert options.vocab_size is not None
        text = MaskedText(
            corpus,
            wordpiece_tokenizer(corpus.train, options.vocab_size, lowercase=False),
            longest=stages[-1].length,
            batch_tokens=options.batch_tokens,
            max_position_embeddings=options.max_position_embeddings,
            mlm_probability=options.mlm_probability,
            generator=run.generator,
            with_cls_sep=True,
        )
    model = BertForMaskedLM(options.model_config(text.vocab_size, options.max_position_embeddings))
    details = {
        "vocabulary": f"{text.vocab_size:,} word pieces, one for {CHARACTERS_PER_PIECE} characters or more",
        "length": " then ".join(str(stage.length) for stage in stages) + " word pieces",
        "masked": f"{options.mlm_probability:.0%} in training, 15% of the held-out text",
    }
    if run.requested.steps is None and options.steps:
        details["budget"] = f"{EPOCHS} passes over the text, but at least {FEWEST_STEPS:,} steps"
    trainer = run.trainer(model, text, "a masked language model", details)

    for step in trainer.steps(evaluate_at=stage_ends(stages)):  # budget, clock, Ctrl-C, checkpoints
        length = length_at(stages, step.progress)  # the curriculum
        batch = text.batch(length)  # random windows at random positions, masked
        for part in step.micro_batches(batch):  # this process's rows
            with step.autocast():  # bfloat16 where that is fast
                output = trainer.parallel(**part)
            accuracy = masked_accuracy(output.logits, output.labels, part["num_items_in_batch"])
            step.backward(output.loss, accuracy=accuracy)
        step.update()  # clip, refuse NaN, AdamW, learning rate
        if step.evaluation_due:
            run.log(step, evaluate_masked_lm(trainer, text.held_out, tokens=16_384))
        if step.at_milestone:
            run.show_predictions(*text.samples)

    run.finish(lambda: evaluate_masked_lm(trainer, text.held_out))


if __name__ == "__main__":
    launch(main, Options)
