r"""
# A masked language model of words

What changes when a token is a word? The sequences get shorter, and the vocabulary gets larger. Most words are
rare: even in a text of a few megabytes, a typical word occurs only a handful of times. That makes the
two-neighbor n-gram model hard to beat. The n-gram model can use a sequence of words that it has seen only
once, while a neural network first has to learn a vector for each word.

An earlier version of this script trained a small BERT. Our two runs of 1,623 steps ended at losses of 5.37
and 4.86 nats, still higher than the 4.67 of the n-gram model. So this script trains the modern encoder of
`modern.py`, which doesn't have to learn vectors for the positions, and uses Muon."""

import sys
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))  # Find the package without installing it.
from labml_bert.run import preflight  # noqa: F401  # isort: skip

from labml_bert.data.corpora import load_corpus
from labml_bert.data.curriculum import length_at, parse_schedule, stage_ends
from labml_bert.data.masked_text import MaskedText
from labml_bert.data.tokenizers import word_tokenizer
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

    For values that aren't explained here, see `mlm_tiny.py` or `mlm_modern.py`."""

    minutes: float | None = 3.0
    """How long to train, in minutes."""
    vocab_size: int = 8192
    """Size of the vocabulary. It contains the most frequent words; all others become [UNK]."""
    schedule: str = "64:1"
    """Sequence lengths, each with its weight in the training budget. A word says more than a character, so 64
    words make a long context."""
    batch_tokens: int = 2048
    """Tokens per step at every length, rounded down to whole rows."""
    mlm_probability: float = 0.3
    """Fraction of tokens to predict in training. Evaluations always mask 15%."""
    hidden_size: int = 128
    """Width of the model."""
    num_hidden_layers: int = 4
    """Number of blocks."""
    num_attention_heads: int = 4
    """Heads per block. The width of a head, the hidden size divided by this number, must be even."""
    intermediate_size: int = 256
    """Width of the feed-forward network."""
    global_attn_every_n_layers: int = 1
    """Distance from one global layer to the next. With 1, every layer attends to the whole sequence."""
    max_position_embeddings: int = 64
    """Longest sequence in training."""
    initializer_range: float = 0.04
    """Standard deviation of the initial weights."""
    optimizer: OptimizerName = "muon"
    """Muon for the matrices of the blocks, AdamW for everything else."""
    learning_rate: float = 1e-2
    """Peak learning rate. In an unrecorded trial of 400 steps, the loss was 4.91 at 1e-2 and 5.22 at 3e-3."""
    warmup_ratio: float = 0.05
    """Fraction of the budget over which the learning rate warms up to its peak."""
    weight_decay: float = 0.05
    """Weight decay of matrices. LayerNorms and the output bias aren't decayed."""
    adam_beta2: float = 0.98
    """Decay rate of Adam's second moment."""


def main(run: Run, options: Options) -> None:
    """Train a word-level masked language model in three minutes."""
    stages = parse_schedule(options.schedule)
    with run.reading_text():
        corpus = load_corpus(options.corpus)
        text = MaskedText(
            corpus,
            word_tokenizer(corpus.train, options.vocab_size),
            longest=stages[-1].length,
            batch_tokens=options.batch_tokens,
            max_position_embeddings=options.max_position_embeddings,
            mlm_probability=options.mlm_probability,
            generator=run.generator,
        )
    model = ModernBertForMaskedLM(options.modern_config(vocab_size=text.vocab_size))
    details = {
        "vocabulary": f"{text.vocab_size:,} words",
        "length": " then ".join(str(stage.length) for stage in stages) + " words",
        "masked": f"{options.mlm_probability:.0%} in training, 15% of the held-out text",
    }
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
