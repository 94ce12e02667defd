"""
# What a run of a claim can choose

One class for each kind of run, windows of a text and pairs of texts. The values here are those of a run that
no arm has changed; an entry of `claims.toml` names what it changes.
"""

from dataclasses import dataclass, fields
from typing import Any

from labml_bert.bert import BertConfig
from labml_bert.checks import check_config
from labml_bert.training.optimization import TrainingArguments

# As they stand in `claims.toml` and in the records: names and values.
OptionValues = dict[str, Any]


@dataclass(frozen=True)
class Options:
    """
    ## In both kinds of run
    """

    # The budget. A run is so many tokens long, padding included, whatever the machine.
    tokens: int
    corpus: str = "python-docs"
    vocab_size: int = 8192
    schedule: str = "16:3,32:1,64:1,128:3"
    batch_tokens: int = 2048
    hidden_size: int = 128
    num_hidden_layers: int = 4
    num_attention_heads: int = 4
    hidden_dropout_prob: float = 0.0
    initializer_range: float = 0.04
    learning_rate: float = 3e-3
    warmup_ratio: float = 0.05
    weight_decay: float = 0.05
    adam_beta2: float = 0.98
    # Adam `corrected` for the bias of its first steps, as PyTorch does it, or without, as `published`.
    adam: str = "corrected"
    # `bfloat16`, `float32`, or `auto`: bfloat16 if the machine multiplies it in hardware.
    precision: str = "auto"

    def model_config(self, vocab_size: int, max_position_embeddings: int) -> BertConfig:
        """
        The sizes of the model; a small text may have a smaller vocabulary than was asked for.

        Raises `ValueError` if they do not fit together.
        """
        config = BertConfig(
            vocab_size=vocab_size,
            hidden_size=self.hidden_size,
            num_hidden_layers=self.num_hidden_layers,
            num_attention_heads=self.num_attention_heads,
            intermediate_size=4 * self.hidden_size,
            hidden_dropout_prob=self.hidden_dropout_prob,
            attention_probs_dropout_prob=self.hidden_dropout_prob,
            max_position_embeddings=max_position_embeddings,
            initializer_range=self.initializer_range,
        )
        check_config(config)
        return config

    def training_arguments(self) -> TrainingArguments:
        """Raises `ValueError` if one makes no sense."""
        return TrainingArguments(
            steps=max(1, self.tokens // self.batch_tokens),
            learning_rate=self.learning_rate,
            warmup_ratio=self.warmup_ratio,
            weight_decay=self.weight_decay,
            adam_beta2=self.adam_beta2,
            adam_bias_correction=self.adam == "corrected",
        )


@dataclass(frozen=True)
class WindowOptions(Options):
    """
    ## On windows of a text
    """

    # What one token is: `char`, `word` or `wordpiece`.
    tokenizer: str = "char"
    mlm_probability: float = 0.3
    max_position_embeddings: int = 128
    # Whether a window starts at a random position of the model, or always at position 0.
    offsets: bool = True
    # How the length grows: in the `stages` of the schedule, `linear`, or at each `plateau` of the loss.
    growth: str = "stages"
    # Each token sees only those before it, and predicts the next one.
    causal: bool = False
    # Whether the output matrix is the token embedding.
    tied: bool = True
    # The parts of the head before the output matrix.
    head_dense: bool = True
    head_norm: bool = True
    # The standard deviation of the three initial embeddings, if it is not that of all other weights.
    embedding_std: float | None = None


@dataclass(frozen=True)
class PairOptions(Options):
    """
    ## On pairs of texts
    """

    vocab_size: int = 4096
    schedule: str = "32:9,128:1"
    hidden_dropout_prob: float = 0.1
    learning_rate: float = 2e-3
    weight_decay: float = 0.01
    # Masks drawn for each batch (`dynamic`), once for all (`static`), or for whole words (`whole-word`).
    masking: str = "dynamic"
    mlm_probability: float = 0.15
    # What becomes of a chosen token; with the remaining probability it stays as it is.
    mask_replace_prob: float = 0.8
    random_replace_prob: float = 0.1
    # Whether the model also learns to tell which texts belong together.
    next_sentence: bool = True


def read_options(kind: str, values: OptionValues) -> WindowOptions | PairOptions:
    """
    `kind` is `masked` (windows) or `pairs`; `values` is what `claims.toml` or a record says.

    Raises `ValueError` for an option that this kind of run does not have.
    """
    options = {"masked": WindowOptions, "pairs": PairOptions}[kind]
    known = {field.name for field in fields(options)}
    if unknown := values.keys() - known:
        raise ValueError(f"no option {min(unknown)!r} on {kind!r}; choose from {', '.join(sorted(known))}")
    return options(**values)
