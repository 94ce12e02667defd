"""
# Inputs and weights for the checks

Every check runs on the learner's module and on the reference, so both need the same weights and inputs.
"""

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

# All different, so a mix-up of two dimensions shows in the shape.
SIZES = {"vocab_size": 11, "hidden_size": 12, "num_hidden_layers": 2, "num_attention_heads": 3}
ModuleType = TypeVar("ModuleType", bound=nn.Module)


def numbers(*shape: int, seed: int = 0) -> Tensor:
    """Numbers from a normal distribution, the same in every call."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def set_weights(module: ModuleType, scale: float = 0.5) -> ModuleType:
    """Gives a module weights that depend only on their shapes and order. Returns it in eval mode."""
    with torch.no_grad():
        for i, parameter in enumerate(module.parameters()):
            parameter.copy_(scale * numbers(*parameter.shape, seed=i))
    return module.eval()


def gradients(output: Tensor, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The gradient of a weighted sum of `output` for each input; it's 0 for one that `output` ignores."""
    total = (output * numbers(*output.shape, seed=99)).sum()
    if not total.requires_grad:
        return {name: torch.zeros_like(x) for name, x in inputs.items()}
    # The result of `grad` is in the order of the inputs.
    results = torch.autograd.grad(total, [*inputs.values()], allow_unused=True, materialize_grads=True)
    return dict(zip(inputs, results, strict=True))


def mask_type(attention: nn.Module, model: nn.Module, *inputs: Tensor) -> str:
    """The type of the mask, its third argument, that `attention` gets if `model` gets `inputs`."""
    masks: list[Tensor | None] = []
    hook = attention.register_forward_pre_hook(lambda _, arguments: masks.append(arguments[2]))
    raises(model, *inputs)
    hook.remove()
    return str(getattr(masks[0], "dtype", None)) if masks else "no call"


class FixedDropout(nn.Module):
    """A stand-in for dropout. It isn't random, so a check can tell whether and where it was applied."""

    p = 0.0

    def forward(self, x: Tensor) -> Tensor:
        """Sets every third element of the last dimension to 0, and doubles the others."""
        return x * torch.tensor([2.0, 2.0, 0.0]).repeat(x.size(-1))[: x.size(-1)]


def raises(function: Callable[..., Any], *arguments: Any) -> str:
    """The name of the exception that a call raises, or `"no error"`."""
    try:
        function(*arguments)
    except Exception as error:
        return type(error).__name__
    return "no error"
