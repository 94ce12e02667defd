"""What a chapter counts on paper is what the package counts."""

import pytest

from docs.figures.quotable import flops
from labml_bert.bert import BertConfig
from labml_bert.run.timing import count_forward_flops


@pytest.mark.parametrize(
    "sizes",
    [
        {},
        {"vocab_size": 100, "hidden_size": 24, "num_hidden_layers": 3, "intermediate_size": 40},
        {"hidden_size": 1024, "num_hidden_layers": 24, "intermediate_size": 4096},
    ],
)
def test_operations_of_a_sequence(sizes: dict[str, int]) -> None:
    config = BertConfig(**sizes, num_attention_heads=4)
    on_paper = flops(128, 20, **sizes)
    assert on_paper.total == on_paper.layers + on_paper.attention + on_paper.head
    assert on_paper.total == 3 * count_forward_flops(config, 1, 128, predictions=20, positions=128)
