"""
# Device and precision

Which processor should you train on, and in which precision? By default, both depend on the machine.
"""

import torch

from labml_bert.training.distributed import local_gpu


def choose_device(name: str = "auto") -> torch.device:
    """
    ## The device

    `auto` is the GPU if there is one. With several GPUs, each process that `torchrun` starts gets its own.

    Raises `ValueError` if PyTorch doesn't know the device or the machine doesn't have it.
    """
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if name.startswith("cuda"):
        name = local_gpu(name)
    try:
        device = torch.device(name)
        # This line also raises for "meta", where a tensor has a shape but no numbers.
        torch.zeros(1, device=device).item()
    except Exception:  # Each missing backend raises a different error.
        raise ValueError(f"device {name!r} is not available here; use --device cpu or auto") from None
    return device


def has_fast_bfloat16(device: torch.device) -> bool:
    """
    ## The precision

    bfloat16 has the range of float32 and 8 bits of precision. With hardware instructions for it, matmuls are
    several times faster than in float32. Emulation is far slower. So we ask the hardware.
    """
    if device.type == "cuda":
        return torch.cuda.is_bf16_supported(including_emulation=False)
    capabilities = torch.cpu.get_capabilities()
    return device.type == "cpu" and any(capabilities.get(k) for k in ("amx_bf16", "avx512_bf16"))
