r"""
# LoRA: fine-tuning a few parameters

Can you fine-tune a model without changing its weights? LoRA freezes a weight matrix $W$ and adds a product of
two thin matrices to it. In the encoder, only the thin matrices are trained:

$$W' = W + \frac{\alpha}{r} B A, \qquad B \in \mathbb{R}^{D \times r}, \quad A \in \mathbb{R}^{r \times D}$$

With a rank $r$ of 8, the thin matrices have 0.27% as many parameters as BERT base. So the optimizer needs
memory for only a few parameters, and the thin matrices of one task take about a megabyte. A training step
saves at most about a third of the FLOPs: it still runs the forward pass and backpropagates through the
activations, and skips only the gradients of the frozen weights. [This
experiment](../experiments/parameters/finetune_parameters.md) compares LoRA with full fine-tuning.

Letters for sizes: `D` hidden size, `r` rank.

Source: [Hu et al., 2021](https://arxiv.org/abs/2106.09685), section 4.
"""

from typing import cast

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from labml_bert.bert import BertLayer, BertModel


class LoRA(nn.Module):
    """
    ## LoRA as a PyTorch parametrization

    PyTorch calls `forward` each time the layer uses its weight. $B$ starts at zero, so adding LoRA doesn't
    change the model's outputs.
    """

    def __init__(self, linear: nn.Linear, r: int, alpha: float):
        super().__init__()
        self.lora_A = nn.Parameter(torch.randn(r, linear.in_features) / r)
        self.lora_B = nn.Parameter(torch.zeros(linear.out_features, r))
        self.scaling = alpha / r
        self.to(linear.weight)

    def forward(self, weight: Tensor) -> Tensor:
        """Returns $W'$ for the frozen weight $W$, `(D, D)`."""
        return weight + self.scaling * self.lora_B @ self.lora_A  # (D, D)


def adapted_layers(encoder: BertModel) -> list[nn.Linear]:
    """The linear layers to adapt: the query and value projections of each block, the paper's usual choice."""
    attentions = [cast(BertLayer, layer).attention["self"] for layer in encoder.encoder.layer]
    return [
        cast(nn.Linear, getattr(attention, name)) for attention in attentions for name in ("query", "value")
    ]


def add_lora(encoder: BertModel, r: int = 8, alpha: float = 16) -> None:
    """
    ## Adding LoRA to an encoder, and merging it back

    Freezes all parameters of `encoder`, and adds LoRA to it. A head on top of the encoder isn't frozen,
    because its weights are new.

    Raises `ValueError` if `r` is below 1.
    """
    if r < 1:
        raise ValueError(f"r is {r}; it must be at least 1")
    encoder.requires_grad_(False)
    for linear in adapted_layers(encoder):
        parametrize.register_parametrization(linear, "weight", LoRA(linear, r, alpha))


def merge_lora(encoder: BertModel) -> None:
    """
    Replaces each adapted weight $W$ with $W'$, and unfreezes all parameters. The encoder then has its usual
    parameters again, so it runs as fast as before LoRA, and you can save it like any other encoder.

    Raises `ValueError` if `encoder` has no LoRA.
    """
    layers = adapted_layers(encoder)
    if not all(parametrize.is_parametrized(linear, "weight") for linear in layers):
        raise ValueError("the encoder has no LoRA; call add_lora first")
    for linear in layers:
        # The parametrized layer has a class of its own, which PyTorch is about to change. A deep copy of the
        # layer has the same class, so first give the layer a new one.
        kind = type(linear)
        linear.__class__ = type(kind.__name__, kind.__bases__, dict(vars(kind)))
        parametrize.remove_parametrizations(linear, "weight")
    encoder.requires_grad_(True)
