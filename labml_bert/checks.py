"""
# Checks of sizes and probabilities

A size or a probability that makes no sense either causes an error deep inside a model or silently trains a
wrong one. The functions below check values where they enter: in the options of a run, in `config.json`, in a
checkpoint or in a dataset. The functions raise `ValueError` with the cause and the remedy in one line.
`bert.py`, `mlm.py`, `nsp.py` and `modern.py` mostly trust their callers, so you can read the ideas there
without the armor."""

import sys
from collections.abc import Collection

from labml_bert.bert import BertConfig
from labml_bert.modern import ModernBertConfig

COUNTS = (
    "vocab_size",
    "hidden_size",
    "num_hidden_layers",
    "num_attention_heads",
    "intermediate_size",
    "max_position_embeddings",
    "type_vocab_size",
)
DROPOUTS = ("hidden_dropout_prob", "attention_probs_dropout_prob")


# The product of two sizes up to this limit fits into 64 bits.
LARGEST_SIZE = 2**31 - 1
SMALLEST_POSITIVE = 1e-30
# A larger number of layers or tokens, or a larger batch, is probably a mistake. A seed must fit into 64 bits.
LARGEST_VALUES = {
    "num_hidden_layers": 1_000,
    "vocab_size": 10_000_000,
    "batch_tokens": 10_000_000,
    "seed": 2**63 - 1,
}
MODERN_COUNTS = (*COUNTS[:-1], "global_attn_every_n_layers", "local_attention")
MODERN_DROPOUTS = ("embedding_dropout", "attention_dropout", "mlp_dropout")


def check_config(config: BertConfig) -> None:
    """Raises `ValueError` if no model can have these sizes."""
    check_values(config, COUNTS, DROPOUTS, ("initializer_range", "layer_norm_eps"))


def check_modern_config(config: ModernBertConfig) -> None:
    """Raises `ValueError` if no model can have these sizes."""
    positive = ("initializer_range", "norm_eps", "global_rope_theta", "local_rope_theta")
    check_values(config, MODERN_COUNTS, MODERN_DROPOUTS, positive)
    if config.hidden_size // config.num_attention_heads % 2:
        raise ValueError(
            f"a head has {config.hidden_size // config.num_attention_heads} dimensions, and RoPE turns pairs "
            "of them; choose a hidden_size that is an even multiple of num_attention_heads"
        )


def check_values(
    config: BertConfig | ModernBertConfig,
    counts: Collection[str],
    probabilities: Collection[str],
    positive: Collection[str],
) -> None:
    """Raises `ValueError` if a value is out of range or the head count doesn't divide the hidden size."""
    for name in (*counts, "pad_token_id"):
        if type(getattr(config, name)) is not int:
            raise ValueError(f"{name} is {getattr(config, name)!r}; it must be an integer")
    for name in counts:
        limit = LARGEST_VALUES.get(name, LARGEST_SIZE)
        if not 1 <= getattr(config, name) <= limit:
            raise ValueError(f"{name} is {getattr(config, name)}; it must be from 1 to {limit:,}")
    if config.hidden_size % config.num_attention_heads:
        raise ValueError(
            f"hidden_size {config.hidden_size} is not divisible by num_attention_heads "
            f"{config.num_attention_heads}; choose a multiple of {config.num_attention_heads}"
        )
    for name in (*probabilities, *positive):
        if type(getattr(config, name)) not in (int, float):
            raise ValueError(f"{name} is {getattr(config, name)!r}; it must be a number")
    for name in probabilities:
        if not 0 <= getattr(config, name) < 1:
            raise ValueError(f"{name} is {getattr(config, name)}; it must be in [0, 1)")
    for name in positive:
        # PyTorch takes integers below 2^63. A quotient of a smaller number could be rounded to zero.
        value = getattr(config, name)
        most: float = 2**63 - 1 if isinstance(value, int) else sys.float_info.max
        if not 0 < value <= most:
            end = f" and at most {most:.3g}" if value > most else ""
            raise ValueError(f"{name} is {value}; it must be above 0{end}")
        if value < SMALLEST_POSITIVE:
            raise ValueError(f"{name} is {value}; it must be at least {SMALLEST_POSITIVE:g}")
    if not 0 <= config.pad_token_id < config.vocab_size:
        raise ValueError(
            f"pad_token_id {config.pad_token_id} is outside the vocabulary of {config.vocab_size}; "
            f"choose one from 0 to {config.vocab_size - 1}"
        )


def check_length(length: int, config: BertConfig | ModernBertConfig) -> None:
    """Raises `ValueError` if a sequence of `length` tokens is too long for the model."""
    limit = config.max_position_embeddings
    if length > limit:
        raise ValueError(
            f"{length} tokens but max_position_embeddings is {limit}; use a shorter text or more positions"
        )


def check_longest(longest: int, batch_tokens: int, max_position_embeddings: int | None = None) -> None:
    """
    Raises `ValueError` if the batch is too small for a sequence of `longest` tokens, or if the model has too
    few positions. If their number isn't known yet, checks only the batch.
    """
    if max_position_embeddings is not None and longest > max_position_embeddings:
        raise ValueError(
            f"the schedule reaches length {longest} but max_position_embeddings is "
            f"{max_position_embeddings}; use a shorter schedule or more positions"
        )
    if longest > batch_tokens:
        raise ValueError(
            f"{batch_tokens} tokens per step are too few for one sequence of {longest}; "
            "use a larger batch or a shorter schedule"
        )


def check_mlm_probability(mlm_probability: float) -> None:
    """Raises `ValueError` if `mlm_probability` isn't above 0 and at most 1. With 0, no token is masked."""
    if not 0 < mlm_probability <= 1:
        raise ValueError(f"mlm_probability is {mlm_probability}; it must be above 0 and at most 1")


def check_masking(
    vocab_size: int,
    mask_token_id: int | None,
    special_token_ids: Collection[int | None],
    mlm_probability: float = 0.15,
    mask_replace_prob: float = 0.8,
    random_replace_prob: float = 0.1,
    max_predictions_per_seq: int | None = None,
) -> None:
    """Takes the arguments of `TokenMasker`. Raises `ValueError` if it can't mask with them."""
    if not 0 <= mlm_probability <= 1:
        raise ValueError(f"mlm_probability is {mlm_probability}; it must be in [0, 1]")
    # The condition is negated so that NaN is refused too.
    if not (
        min(mask_replace_prob, random_replace_prob) >= 0 and mask_replace_prob + random_replace_prob <= 1
    ):
        raise ValueError(
            f"mask_replace_prob {mask_replace_prob} and random_replace_prob {random_replace_prob} "
            "must not be negative, and their sum must be at most 1"
        )
    ids = {mask_token_id, *special_token_ids}
    specials = {i for i in ids if i is not None}
    if len(specials) < len(ids):
        raise ValueError("a special token has no id; use a tokenizer that has [MASK] and all the others")
    if min(specials) < 0 or max(specials) >= vocab_size:
        raise ValueError(
            f"special token ids {sorted(specials)} are not all inside the vocabulary of {vocab_size}"
        )
    if len(specials) == vocab_size:
        raise ValueError("every token of the vocabulary is special; there is nothing to mask")
    if max_predictions_per_seq is not None and max_predictions_per_seq < 1:
        raise ValueError(f"max_predictions_per_seq is {max_predictions_per_seq}; it must be at least 1")


def check_pairs(max_length: int, short_seq_prob: float = 0.1, random_next_prob: float = 0.5) -> None:
    """Takes arguments of `PairMaker`. Raises `ValueError` if no pair fits or a value is out of range."""
    if max_length < 5:
        raise ValueError(f"max_length is {max_length}; two tokens and three special ones need 5")
    for name, p in (("short_seq_prob", short_seq_prob), ("random_next_prob", random_next_prob)):
        if not 0 <= p <= 1:
            raise ValueError(f"{name} is {p}; it must be in [0, 1]")
