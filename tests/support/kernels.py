"""The fused attention kernel, with a record of its calls."""

import pytest
import torch.nn.functional as F
from torch import Tensor


def record_fused_attention(monkeypatch: pytest.MonkeyPatch) -> list[tuple[object, ...]]:
    """Returns a list to which each call of the fused kernel adds its arguments. The kernel still runs."""
    kernel, calls = F.scaled_dot_product_attention, []

    def record(*arguments: object) -> Tensor:
        calls.append(arguments)
        return kernel(*arguments)

    monkeypatch.setattr(F, "scaled_dot_product_attention", record)
    return calls
