"""Each invalid value is rejected with one line, by the function where the value enters."""

import pytest

from labml_bert.bert import BertConfig
from labml_bert.checks import check_config, check_length, check_masking, check_pairs


@pytest.mark.parametrize(
    ("sizes", "words"),
    [
        ({"hidden_size": 100, "num_attention_heads": 12}, "not divisible"),
        ({"num_hidden_layers": 0}, "num_hidden_layers is 0"),
        ({"hidden_dropout_prob": 1.0}, "hidden_dropout_prob"),
        ({"pad_token_id": 30522}, "pad_token_id 30522"),
    ],
)
def test_invalid_sizes_are_rejected(sizes: dict, words: str) -> None:
    check_config(BertConfig())
    with pytest.raises(ValueError, match=words):
        check_config(BertConfig(**sizes))


def test_more_tokens_than_positions_are_rejected() -> None:
    config = BertConfig(max_position_embeddings=12)
    check_length(12, config)
    with pytest.raises(ValueError, match="13 tokens but max_position_embeddings is 12"):
        check_length(13, config)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"mlm_probability": 1.5}, "mlm_probability is 1.5"),
        ({"mlm_probability": -0.1}, "mlm_probability is -0.1"),
        ({"mask_replace_prob": 0.95}, "at most 1"),
        ({"random_replace_prob": -0.1}, "must not be negative"),
        ({"special_token_ids": [-1]}, "not all inside the vocabulary"),
        ({"special_token_ids": [40]}, "not all inside the vocabulary"),
        ({"special_token_ids": range(40)}, "nothing to mask"),
        ({"max_predictions_per_seq": 0}, "must be at least 1"),
        ({"mask_token_id": None}, "a special token has no id"),
    ],
)
def test_invalid_masking_is_rejected(arguments: dict, words: str) -> None:
    valid_arguments = {"vocab_size": 40, "mask_token_id": 4, "special_token_ids": range(5)}
    check_masking(**valid_arguments)
    with pytest.raises(ValueError, match=words):
        check_masking(**{**valid_arguments, **arguments})


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((4, 0.1, 0.5), "max_length is 4"),
        ((128, 1.5, 0.5), "short_seq_prob is 1.5"),
        ((128, 0.1, -0.1), "random_next_prob is -0.1"),
    ],
)
def test_invalid_pair_settings_are_rejected(arguments: tuple, words: str) -> None:
    check_pairs(5, 1.0, 0.0)
    with pytest.raises(ValueError, match=words):
        check_pairs(*arguments)
