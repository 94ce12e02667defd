"""
# Device and precision

Which processor should you train on, and in which precision? By default, the hardware determines both.
"""

import warnings
from typing import Literal

import torch

from labml_bert.training.distributed import local_gpu

Precision = Literal["auto", "bfloat16", "float16", "float32"]


def choose_device(name: str = "auto") -> torch.device:
    """
    ## The device

    `auto` is the GPU if there is one (`cuda`, or Apple's `mps`), and otherwise the CPU. With several GPUs,
    each process that `torchrun` starts gets its own GPU.

    Raises `ValueError` if PyTorch or the machine doesn't have the device, or if processes would share a GPU.
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
    except Exception:  # Each missing backend raises a different error.
        raise ValueError(f"device {name!r} is not available here; use --device cpu or auto") from None
    return device


def has_fast_bfloat16(device: torch.device) -> bool:
    """
    ## The precision

    bfloat16 has the range of float32 and 8 bits of precision. With hardware instructions, bfloat16 matmuls
    can be several times faster than float32 ones. In emulation, they're far slower. So we check the hardware.
    """
    if device.type == "cuda":
        return torch.cuda.is_bf16_supported(including_emulation=False)
    capabilities = torch.cpu.get_capabilities()
    return device.type == "cpu" and any(capabilities.get(k) for k in ("amx_bf16", "avx512_bf16"))


def choose_precision(device: torch.device, precision: Precision = "auto") -> Precision:
    """
    Older GPUs, such as the T4 in free notebooks, have fast instructions for float16 but not for bfloat16.
    float16 has 11 bits of precision, but small gradients underflow to zero. So float16 needs a gradient
    scaler (see `Trainer`).

    Returns `precision` unless it's `auto`. For `auto`, returns bfloat16 if `has_fast_bfloat16`, float16 on
    other CUDA GPUs with tensor cores, and otherwise float32.
    """
    if precision != "auto":
        return precision
    if has_fast_bfloat16(device):
        return "bfloat16"
    has_tensor_cores = device.type == "cuda" and torch.cuda.get_device_capability(device) >= (7, 0)
    return "float16" if has_tensor_cores else "float32"


def autocast(device: torch.device, precision: Precision) -> torch.autocast:
    """Runs matmuls in `precision`, which must not be `auto`. PyTorch chooses the precision of other ops."""
    dtype = torch.float16 if precision == "float16" else torch.bfloat16
    return torch.autocast(device.type, dtype, enabled=precision != "float32")
