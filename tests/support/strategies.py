"""The inputs of the property tests."""

from itertools import pairwise

import torch
from hypothesis import strategies as st
from torch import Tensor

from labml_bert.mlm import IGNORE

ID_DTYPES = (torch.int32, torch.int64)
DTYPES = [
    *(torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64),
    *(torch.float16, torch.bfloat16, torch.float32, torch.float64),
]
PROBABILITY = st.sampled_from([0.0, 0.15, 1.0]) | st.floats(0, 1)


def draw_ids(draw: st.DrawFn, B: int, T: int, values: st.SearchStrategy[int]) -> Tensor:
    """An int64 tensor `(B, T)` of values from a strategy."""
    return torch.tensor(draw(st.lists(values, min_size=B * T, max_size=B * T)), dtype=torch.int64).view(B, T)


@st.composite
def logits_and_labels(draw: st.DrawFn, most: int, sizes: st.SearchStrategy[int]) -> tuple[Tensor, Tensor]:
    """Logits `(M, V)` in any precision and labels `(M)`, some or all of them -100."""
    M, V = draw(st.integers(0, most)), draw(sizes)
    numbers = st.floats(-1e4, 1e4, width=32) | st.sampled_from([0.0, 1e4, -1e4])
    logits = torch.tensor(draw(st.lists(numbers, min_size=M * V, max_size=M * V))).view(M, V)
    labels = st.sampled_from([IGNORE, 0, V - 1]) | st.integers(0, V - 1)
    dtype = draw(st.sampled_from([torch.float32, torch.bfloat16, torch.float64]))
    return logits.to(dtype), draw_ids(draw, 1, M, labels)[0]


def is_consecutive(tokens: list[int]) -> bool:
    """Whether each token follows the one before it in its document."""
    return all(b == a + 1 for a, b in pairwise(tokens))
