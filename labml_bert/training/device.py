"""
# Device and precision

Which processor should you train on, and in which precision? By default, the hardware determines both.
"""

import logging
import warnings
from typing import Any, Literal, get_args

import torch
from torch import nn

from labml_bert.training.distributed import local_gpu

Precision = Literal["auto", "bfloat16", "float16", "float32"]


def choose_device(name: str = "auto") -> torch.device:
    """
    ## The device

    `auto` is the GPU if there is one (`cuda`, or Apple's `mps`), and otherwise the CPU. With `cuda`, each
    process that `torchrun` starts gets its own GPU.

    Raises `ValueError` if PyTorch can't use the device on this machine, or if processes would share a GPU.
    """
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "mps" if torch.mps.is_available() else "cpu"
    if name.startswith("cuda"):
        name = local_gpu(name)
    try:
        with warnings.catch_warnings(action="ignore"):
            device = torch.device(name)
            # This line also raises an error for "meta", a device whose tensors have shapes but no values.
            torch.zeros(1, device=device).item()
    except Exception:  # The type of the error depends on the backend that is missing.
        raise ValueError(f"device {name!r} is not available here; use --device cpu or auto") from None
    return device


def has_fast_bfloat16(device: torch.device) -> bool:
    """
    ## The precision

    Whether `device` is a CUDA GPU or an x86 CPU with instructions for bfloat16. bfloat16 has nearly the range
    of float32, but only 8 bits of precision. On hardware with bfloat16 instructions, matmuls can be several
    times faster in bfloat16 than in float32. Without these instructions, PyTorch emulates bfloat16, and
    matmuls can be far slower than in float32.
    """
    if device.type == "cuda":
        return torch.cuda.is_bf16_supported(including_emulation=False)
    capabilities = torch.cpu.get_capabilities()
    return device.type == "cpu" and any(capabilities.get(k) for k in ("amx_bf16", "avx512_bf16"))


def choose_precision(device: torch.device, precision: Precision = "auto") -> Precision:
    """
    Some GPUs, such as the T4 in free notebooks, have fast instructions for float16 but not for bfloat16.
    float16 has 11 bits of precision, but gradients below 3e-8 underflow to zero. So training in float16 needs
    a gradient scaler (see `Trainer`).

    Returns `precision` unless it's `auto`. For `auto`, returns bfloat16 if `has_fast_bfloat16` is true, and
    float16 on other CUDA GPUs of compute capability 7.0 or higher, nearly all of which have tensor cores. On
    all other devices, `auto` gives float32.

    Raises `ValueError` if `precision` has another name.
    """
    if precision not in get_args(Precision):
        raise ValueError(f"precision is {precision!r}; it must be one of {', '.join(get_args(Precision))}")
    if precision != "auto":
        return precision
    if has_fast_bfloat16(device):
        return "bfloat16"
    has_tensor_cores = device.type == "cuda" and torch.cuda.get_device_capability(device) >= (7, 0)
    return "float16" if has_tensor_cores else "float32"


def autocast(device: torch.device, precision: Precision) -> torch.autocast:
    """In the block, matmuls run in `precision` (not `auto`). PyTorch chooses the precision of other ops."""
    dtype = torch.float16 if precision == "float16" else torch.bfloat16
    return torch.autocast(device.type, dtype, enabled=precision != "float32")


def compile_model(model: nn.Module) -> Any:
    """
    ## Compiling

    Returns `torch.compile(model)`, which combines many small kernels into a few large ones. The compiler
    splits the model into several graphs, because the number of labeled positions depends on the data. PyTorch
    would log 20 lines about such a split, so we turn off its log of warnings.
    """
    logging.getLogger("torch._dynamo").setLevel(logging.ERROR)
    return torch.compile(model)


def count_updates(adamw: torch.optim.Optimizer) -> int:
    """Returns the number of updates so far. In float16, a step whose gradient overflows is no update."""
    return int(next((state["step"] for state in adamw.state.values()), 0))
