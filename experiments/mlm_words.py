"""
# The same with words

What changes when a token is a word? The sequences get shorter, and the vocabulary gets larger. Most words are
rare: in a text of a few megabytes, each of them occurs only a handful of times. In three minutes, this model
leaves the plateau, but its loss stays above that of the two-neighbor n-gram model. (In `mlm_tiny.py`, with
characters, the model beats it by a wide margin.) An n-gram model can use a pair of words that it has seen
once, while a neural network first has to learn a vector for each word. More text helps, and so do
subwords."""

import sys
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))  # You can run a clone without installing it.
from labml_bert.run import script  # noqa: F401  # isort: skip

from labml_bert.data.corpora import load_corpus
from labml_bert.data.curriculum import length_at, parse_schedule, stage_ends
from labml_bert.data.masked_text import MaskedText
from labml_bert.data.tokenizers import word_tokenizer
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

    Values that aren't explained here are explained in `mlm_tiny.py`.
    """

    vocab_size: int = 8192
    """Size of the vocabulary. It contains the most frequent words; all others become [UNK]."""
    schedule: str = "8:3,16:1,32:1,64:3"
    """Sequence lengths, each with its weight in the training budget. A word says more than a character, so 8
    words make a short context and 64 words a long one."""
    batch_tokens: int = 2048
    """Tokens per step, the same for all lengths."""
    mlm_probability: float = 0.3
    """Fraction of tokens to predict in training. Evaluations always mask 15%."""
    hidden_size: int = 128
    """Width of the model. The feed-forward network is four times as wide."""
    num_hidden_layers: int = 4
    """Number of blocks."""
    num_attention_heads: int = 4
    """Heads per block. The hidden size must be a multiple of the number of heads."""
    max_position_embeddings: int = 64
    """Longest sequence that the model can read."""
    initializer_range: float = 0.04
    """Standard deviation of the initial weights."""
    hidden_dropout_prob: float = 0.0
    """Dropout probability, also for attention weights."""
    learning_rate: float = 1e-3
    """Peak learning rate. At 3e-3, which suits characters, this model didn't leave the plateau in three
    minutes: with thousands of words to choose from, the gradient of a single step is mostly noise."""
    warmup_ratio: float = 0.05
    """Fraction of the budget over which the learning rate warms up to its peak."""
    weight_decay: float = 0.05
    """Weight decay of matrices. Biases and LayerNorms aren't decayed."""
    adam_beta2: float = 0.98
    """Decay rate of Adam's second moment."""


def main(run: Run, options: Options) -> None:
    """Train a masked language model of words in three minutes."""
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
    config = options.model_config(vocab_size=text.vocab_size, intermediate_size=4 * options.hidden_size)
    model = BertForMaskedLM(config)
    details = {
        "vocabulary": f"{text.vocab_size:,} words",
        "length": " then ".join(str(stage.length) for stage in stages) + " words",
        "masked": f"{options.mlm_probability:.0%} in training, 15% of the held-out text",
    }
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
