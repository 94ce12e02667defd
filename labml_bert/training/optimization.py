r"""
# The optimizer and its learning rate

How far should each step move the weights? The learning rate depends on $\tau$, the fraction of the budget
that has been spent. The learning rate rises linearly to its peak at $\tau = w$, the `warmup_ratio`, and then
decays linearly to zero:

$$\eta(\tau) = \eta_{\text{max}} \cdot \min\!\left(\frac{\tau}{w}, \frac{1 - \tau}{1 - w}\right)$$

The optimizer is AdamW. Optionally, the newer Muon trains the matrices of the blocks. Two details of BERT's
original recipe are easy to get wrong: which parameters decay, and the bias correction, which the original
leaves out.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import torch
from torch import nn

OptimizerName = Literal["adamw", "muon"]


@dataclass(frozen=True)
class TrainingArguments:
    """
    ## How to train

    Most fields are named as in `transformers.TrainingArguments`. Set either `steps` or `minutes`. The budget
    of minutes includes evaluations and checkpoints between the first step and the last.

    Raises `ValueError` if `steps` and `minutes` are both set or both missing, or if a value is out of range.
    """

    steps: int | None = None
    minutes: float | None = None
    optimizer: OptimizerName = "adamw"
    learning_rate: float = 1e-4
    warmup_ratio: float = 0.01
    weight_decay: float = 0.01
    adam_beta1: float = 0.9
    adam_beta2: float = 0.999
    adam_epsilon: float = 1e-6
    # The original BERT has no bias correction, so its first steps are several times as large as with one.
    adam_bias_correction: bool = True
    max_grad_norm: float = 1.0
    # The number of micro-batches per process and step. A larger number needs less memory, and changes only
    # rounding and dropout masks.
    gradient_accumulation_steps: int = 1
    # On an H200, compiling made a step of BERT base 1.2 to 1.4 times as fast. On a CPU, compiling needs a C++
    # compiler. In an informal test on a CPU, training wasn't faster.
    torch_compile: bool = False
    # The number of evaluations at regular intervals. `Trainer.steps` accepts additional points.
    evaluations: int = 20
    # The approximate time between two checkpoints. A killed run loses about this much training at most.
    checkpoint_seconds: float = 30.0

    def __post_init__(self) -> None:
        if (self.steps is None) == (self.minutes is None):
            raise ValueError("set a budget: either steps or minutes")
        if self.optimizer not in get_args(OptimizerName):
            raise ValueError(f"optimizer is {self.optimizer!r}; it must be adamw or muon")
        ranges: dict[str, tuple[Callable[[float], bool], tuple[str, ...]]] = {
            "at least 1": (lambda x: x >= 1, ("steps", "gradient_accumulation_steps", "evaluations")),
            "above 0": (lambda x: x > 0, ("max_grad_norm",)),
            "above 0 and finite": (lambda x: 0 < x < math.inf, ("minutes", "learning_rate", "adam_epsilon")),
            "0 or more and finite": (lambda x: 0 <= x < math.inf, ("weight_decay", "checkpoint_seconds")),
            "in [0, 1)": (lambda x: 0 <= x < 1, ("adam_beta1", "adam_beta2", "warmup_ratio")),
        }
        for range_name, (is_in_range, names) in ranges.items():
            for name in names:
                value = getattr(self, name)
                if value is not None and not is_in_range(value):
                    raise ValueError(f"{name} is {value}; it must be {range_name}")

    def learning_rate_at(self, progress: float) -> float:
        """The learning rate after a fraction `progress` of the budget. After the whole budget, it's 0."""
        decay = (1 - progress) / (1 - self.warmup_ratio)
        warmup = progress / self.warmup_ratio if self.warmup_ratio else math.inf
        return self.learning_rate * max(0.0, min(warmup, decay))


def parameter_groups(
    model: nn.Module, weight_decay: float, exclude: Sequence[nn.Parameter] = ()
) -> list[dict[str, Any]]:
    """
    ## What decays

    Weight decay pulls parameters toward zero. The original BERT exempts biases and the parameters of
    LayerNorms. In BERT, these are exactly the parameters with one dimension. Some old ports looked for the
    exempt parameters by names that matched none of them, so all parameters decayed. A different optimizer
    trains the parameters in `exclude`. Every other trainable parameter must be in exactly one group.

    Returns the group of matrices and the group of vectors. Besides `params` and `weight_decay`, each group
    has a key `has_decay`, which is true for matrices. `set_learning_rate` reads this key.

    Source: `AdamWeightDecayOptimizer` in `optimization.py` of
    [google-research/bert](https://github.com/google-research/bert).
    """
    excluded_ids = {id(p) for p in exclude}
    parameters = [p for p in model.parameters() if p.requires_grad and id(p) not in excluded_ids]
    matrices = [p for p in parameters if p.dim() > 1]
    vectors = [p for p in parameters if p.dim() <= 1]
    assert {id(p) for p in matrices} | {id(p) for p in vectors} == {id(p) for p in parameters}
    assert len(matrices) + len(vectors) == len(parameters)
    return [
        {"params": matrices, "weight_decay": weight_decay, "has_decay": True},
        {"params": vectors, "weight_decay": 0.0, "has_decay": False},
    ]


def block_matrices(model: nn.Module) -> list[nn.Parameter]:
    """The trainable matrices in the model's blocks. A block is a module in an `nn.ModuleList`."""
    blocks = [module for module in model.modules() if isinstance(module, nn.ModuleList)]
    # A block can contain another list of blocks, or share a parameter with another block.
    parameters = {id(p): p for block in blocks for p in block.parameters()}
    return [p for p in parameters.values() if p.dim() == 2 and p.requires_grad]


def make_optimizers(model: nn.Module, arguments: TrainingArguments) -> list[torch.optim.Optimizer]:
    r"""
    ## AdamW or Muon

    AdamW scales the update of each element of a parameter by the history of that element's gradient. The
    fused kernel updates each parameter in one pass over memory.

    Muon treats a matrix as a whole. It replaces the momentum $M = U \Sigma V^\top$ by $U V^\top$, which it
    approximates with five iterations of matmuls. So all singular directions of $M$ get updates of about the
    same size. Muon was designed for the matrices of hidden layers. AdamW still trains embeddings, biases,
    LayerNorms and heads. We scale Muon's updates to the typical size of AdamW's, so both optimizers use the
    same learning rate.

    Clears the gradients of the model, which would otherwise be added to those of the first step.

    Raises `ValueError` if there are no matrices for Muon, or if a parameter has gaps in memory, because the
    fused kernel would write into the gaps.

    Source: [Jordan et al., 2024](https://kellerjordan.github.io/posts/muon/); the scale is from [Liu et al.,
    2025](https://arxiv.org/abs/2502.16982), section 2.2.
    """
    model.zero_grad()
    for name, p in model.named_parameters():
        # Only a tensor without gaps keeps its strides in `empty_like`.
        if torch.empty_like(p, device="meta").stride() != p.stride():
            raise ValueError(f"{name} is a slice of another tensor; replace it with a copy, p.clone()")
    matrices = block_matrices(model) if arguments.optimizer == "muon" else []
    if arguments.optimizer == "muon" and not matrices:
        raise ValueError("Muon trains matrices in an nn.ModuleList, and the model has none; use adamw")
    optimizers: list[torch.optim.Optimizer] = [
        torch.optim.AdamW(
            parameter_groups(model, arguments.weight_decay, exclude=matrices),
            lr=arguments.learning_rate,
            betas=(arguments.adam_beta1, arguments.adam_beta2),
            eps=arguments.adam_epsilon,
            fused=True,
        )
    ]
    if matrices:
        optimizers.append(
            torch.optim.Muon(
                matrices,
                lr=arguments.learning_rate,
                weight_decay=arguments.weight_decay,
                adjust_lr_fn="match_rms_adamw",
            )
        )
    return optimizers


def set_learning_rate(
    optimizers: Sequence[torch.optim.Optimizer], arguments: TrainingArguments, step: int, progress: float
) -> None:
    r"""
    ## The learning rate of a step

    `step` counts from 1, and `progress` is the fraction of the budget spent before this step. `optimizers`
    contains AdamW and, if the run uses it, Muon. Each AdamW group gets a new `lr`, `eps` and `weight_decay`.
    If `has_decay` is false, the `weight_decay` is 0. The `lr` of Muon's groups and the `learning_rate` of
    AdamW's groups, which reports show, are the learning rate before any correction.

    In step $t$, Adam divides its running means $m$ and $v$ by $1 - \beta_1^t$ and $1 - \beta_2^t$, because
    both means start at zero. The original BERT leaves this correction out, but PyTorch always applies it. So
    without `adam_bias_correction`, we set a learning rate, $\epsilon$ and decay that undo the correction:

    $$\eta\, \frac{m}{\sqrt v + \epsilon} =
      \eta\, \frac{1 - \beta_1^t}{c} \cdot \frac{m / (1 - \beta_1^t)}{\sqrt v / c + \epsilon / c},
      \qquad c = \sqrt{1 - \beta_2^t}$$

    Source: `AdamWeightDecayOptimizer` in `optimization.py` of
    [google-research/bert](https://github.com/google-research/bert).
    """
    learning_rate, epsilon, scale = arguments.learning_rate_at(progress), arguments.adam_epsilon, 1.0
    if not arguments.adam_bias_correction:
        c = math.sqrt(1 - arguments.adam_beta2**step)
        scale = (1 - arguments.adam_beta1**step) / c
        epsilon = epsilon / c
    adamw, *muon = optimizers
    for group in adamw.param_groups:
        decay = arguments.weight_decay if group["has_decay"] else 0.0
        group["lr"], group["eps"] = learning_rate * scale, epsilon
        group["learning_rate"] = learning_rate  # Reports show this value, which leaves out `scale`.
        # AdamW multiplies the decay by `lr`, which contains `scale`, so divide the decay by `scale`.
        group["weight_decay"] = decay / scale
    for optimizer in muon:
        for group in optimizer.param_groups:
            group["lr"] = learning_rate
