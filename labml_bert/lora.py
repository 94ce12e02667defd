r"""
# LoRA: fine-tuning a few parameters

Can you fine-tune a model without changing its weights? LoRA freezes a weight matrix $W$ and adds a product of
two thin matrices to it. Only those are trained:

$$W' = W + \frac{\alpha}{r} B A, \qquad B \in \mathbb{R}^{D \times r}, \quad A \in \mathbb{R}^{r \times D}$$

With a rank $r$ of 8, you train 0.27% of the parameters of BERT base. So the optimizer needs memory for few
parameters, and each task is a small file. A training step still has almost all of its cost: it skips only the
gradients of the frozen matrices. [We measured](../experiments/parameters/finetune_parameters.md) what you
save and what you lose.

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
    ## The sum, as a parametrization

    PyTorch calls `forward` each time that the layer uses its weight. $B$ starts at zero, so the model is
    unchanged at first.
    """

    def __init__(self, linear: nn.Linear, r: int, alpha: float):
        super().__init__()
        self.lora_A = nn.Parameter(torch.randn(r, linear.in_features) / r)
        self.lora_B = nn.Parameter(torch.zeros(linear.out_features, r))
        self.scaling = alpha / r

    def forward(self, weight: Tensor) -> Tensor:
        """Returns the sum for the frozen `weight`, `(D, D)`."""
        return weight + self.scaling * self.lora_B @ self.lora_A  # (D, D)


def adapted_layers(encoder: BertModel) -> list[nn.Linear]:
    """The layers that get a product: those for queries and values in each block, as in the paper."""
    attentions = [cast(BertLayer, layer).attention["self"] for layer in encoder.encoder.layer]
    return [
        cast(nn.Linear, getattr(attention, name)) for attention in attentions for name in ("query", "value")
    ]


def add_lora(encoder: BertModel, r: int = 8, alpha: float = 16) -> None:
    """
    ## Adding it to an encoder, and merging it

    Freezes all parameters of `encoder`, and adds LoRA to it. The head on top of the encoder isn't frozen.

    Raises `ValueError` if `r` is below 1.
    """
    if r < 1:
        raise ValueError(f"r is {r}; it must be at least 1")
    encoder.requires_grad_(False)
    for linear in adapted_layers(encoder):
        parametrize.register_parametrization(linear, "weight", LoRA(linear, r, alpha))


def merge_lora(encoder: BertModel) -> None:
    """
    Puts each sum in place of its weight. Afterwards, the encoder has the parameters of an ordinary one, so it
    is as fast, and you can save it. All of its parameters can be trained again.
    """
    for linear in adapted_layers(encoder):
        parametrize.remove_parametrizations(linear, "weight")
    encoder.requires_grad_(True)
