"""
# The options of a claim's runs

A run trains either on windows of a text or on pairs of texts. Each kind of run has its own class of options,
with defaults. The entries in `claims.toml` list only the options that they change.
"""

from dataclasses import dataclass, fields
from typing import Any

from labml_bert.bert import BertConfig
from labml_bert.checks import check_config
from labml_bert.training.device import Precision
from labml_bert.training.optimization import OptimizerName, TrainingArguments

# These pairs of changes would undo each other, or need code that isn't here.
INCOMPATIBLE = (
    ("a causal model", "other positions"),
    ("a causal model", "other blocks"),
    ("a causal model", "final_mlm_probability"),
    ("an untied output", "other positions"),
    ("an untied output", "other blocks"),
    ("an untied output", "neighbor_heads"),
    ("an untied output", "probe_order"),
    ("embedding_std", "other positions"),
    ("embedding_std", "neighbor_heads"),
    ("neighbor_heads", "other positions"),
)

# This type maps the names of options to their values, as in `claims.toml` and in the records.
OptionValues = dict[str, Any]


@dataclass(frozen=True)
class Options:
    """
    ## Options of both kinds
    """

    # The budget of the run in tokens, padding included.
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
    # `corrected` is Adam with its bias correction, as in PyTorch. `published` is Adam without the correction,
    # as in the original BERT code.
    adam: str = "corrected"
    # `adamw`, or `muon` for the matrices of the blocks and AdamW for everything else.
    optimizer: OptimizerName = "adamw"
    # `bfloat16`, `float16`, `float32`, or `auto`, which depends on the hardware.
    precision: Precision = "auto"

    def model_config(self, vocab_size: int, max_position_embeddings: int) -> BertConfig:
        """
        Returns the model's configuration. `vocab_size` is the size of the tokenizer's vocabulary, which can
        differ from the option of the same name.

        Raises `ValueError` if no model can have these sizes.
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

    def mean_batch_tokens(self) -> float:
        """Returns the tokens per step, averaged over the run."""
        return self.batch_tokens

    def training_arguments(self) -> TrainingArguments:
        """Returns the training arguments. Raises `ValueError` if a value is out of range."""
        return TrainingArguments(
            steps=max(1, int(self.tokens / self.mean_batch_tokens())),
            optimizer=self.optimizer,
            learning_rate=self.learning_rate,
            warmup_ratio=self.warmup_ratio,
            weight_decay=self.weight_decay,
            adam_beta2=self.adam_beta2,
            adam_bias_correction=self.adam == "corrected",
        )


@dataclass(frozen=True)
class WindowOptions(Options):
    """
    ## Options of runs on windows
    """

    # The kind of token: `char`, `word` or `wordpiece`.
    tokenizer: str = "char"
    mlm_probability: float = 0.3
    # If set, the mask rate changes linearly from `mlm_probability` to this value.
    final_mlm_probability: float | None = None
    max_position_embeddings: int = 128
    # Whether the positions of a window start at a random offset, or always at 0.
    offsets: bool = True
    # The position encoding: one of `POSITIONS` in `positions.py`. BERT uses `learned`.
    positions: str = "learned"
    # How the sequence length grows: in the `stages` of the schedule, or evenly (`linear`).
    growth: str = "stages"
    # Whether the model is left-to-right: each position sees only itself and earlier positions, and predicts
    # the next token.
    causal: bool = False
    # Whether the output matrix is tied to the token embedding.
    tied: bool = True
    # Whether the head has its dense layer (with the GELU), and whether it has its LayerNorm.
    head_dense: bool = True
    head_norm: bool = True
    # The initial standard deviation of the embeddings. With `None`, it's that of all other weights.
    embedding_std: float | None = None
    # How many heads of the first block, 0 to 2, are set by hand to attend to a neighbor; see `heads.py`. Any
    # number, even 0, also changes the embeddings. With `None`, the whole model starts at random.
    neighbor_heads: int | None = None
    # Whether each evaluation also measures the attention to neighbors and how much the tokens' order helps.
    probe_order: bool = False
    # These four options are changes on the way from BERT to ModernBERT; see `blocks.py`.
    pre_norm: bool = False
    gated: bool = False
    biases: bool = True
    local_attention: int | None = None
    # Whether the batch grows: it has a quarter of `batch_tokens` in the first third of the steps, and half of
    # `batch_tokens` in the second third.
    batch_ramp: bool = False

    @property
    def has_bert_blocks(self) -> bool:
        """Whether the blocks are those of BERT, without any of the changes to them."""
        return (self.pre_norm, self.gated, self.biases, self.local_attention) == (False, False, True, None)

    def mean_batch_tokens(self) -> float:
        """Returns the tokens per step, averaged over the run."""
        return self.batch_tokens * 7 / 12 if self.batch_ramp else self.batch_tokens

    def mlm_probability_at(self, progress: float) -> float:
        """Returns the mask rate of a step, once the fraction `progress` of the steps is done."""
        last = self.mlm_probability if self.final_mlm_probability is None else self.final_mlm_probability
        return self.mlm_probability + (last - self.mlm_probability) * progress

    def batch_tokens_at(self, progress: float) -> int:
        """Returns the tokens of a step, once the fraction `progress` of the steps is done."""
        return self.batch_tokens // (4, 2, 1)[int(3 * progress)] if self.batch_ramp else self.batch_tokens


@dataclass(frozen=True)
class PairOptions(Options):
    """
    ## Options of runs on pairs
    """

    vocab_size: int = 4096
    schedule: str = "32:9,128:1"
    hidden_dropout_prob: float = 0.1
    learning_rate: float = 2e-3
    weight_decay: float = 0.01
    # New masks for each batch (`dynamic`), masks that are drawn once (`static`), or new masks of whole words
    # for each batch (`whole-word`).
    masking: str = "dynamic"
    mlm_probability: float = 0.15
    # A chosen token becomes `[MASK]` or a random token with these probabilities. Otherwise, it's kept.
    mask_replace_prob: float = 0.8
    random_replace_prob: float = 0.1
    # Whether the model also trains on next sentence prediction.
    next_sentence: bool = True
    # Whether fine-tuning starts from random weights, as if the model hadn't been pretrained.
    from_scratch: bool = False


def read_options(kind: str, values: OptionValues) -> WindowOptions | PairOptions:
    """
    Returns the options of a run, with defaults for those that aren't in `values`. `kind` is `masked`
    (windows) or `pairs`. `values` are options from `claims.toml` or from a record.

    Raises `ValueError` if this kind of run doesn't have one of the options, or if two don't work together.
    """
    options = {"masked": WindowOptions, "pairs": PairOptions}[kind]
    names = {field.name for field in fields(options)}
    if unknown := values.keys() - names:
        raise ValueError(f"no option {min(unknown)!r} for {kind!r}; choose from {', '.join(sorted(names))}")
    for field in fields(options):
        value = values.get(field.name)
        # A Boolean is an integer too, and an integer is a valid `float`.
        kinds = [type(field.default)] if type(field.default) in (str, bool) else [int, float]
        if value is not None and type(value) not in kinds:
            raise ValueError(f"{field.name} is {value!r}, which has the wrong type")
    result = options(**values)
    if isinstance(result, WindowOptions):
        changes = {
            "a causal model": result.causal,
            "an untied output": not result.tied,
            "other positions": result.positions != "learned",
            "other blocks": not result.has_bert_blocks,
            "embedding_std": result.embedding_std is not None,
            "neighbor_heads": result.neighbor_heads is not None,
            "final_mlm_probability": result.final_mlm_probability is not None,
            "probe_order": result.probe_order,
        }
        for pair in INCOMPATIBLE:
            if all(changes[name] for name in pair):
                raise ValueError("{} does not work with {}; use only one of them".format(*pair))
    elif result.masking == "static":
        rule = ("mlm_probability", "mask_replace_prob", "random_replace_prob")
        if any(getattr(result, name) != getattr(PairOptions, name) for name in rule):
            raise ValueError("static masking works only with the masking rule of the paper")
    return result
