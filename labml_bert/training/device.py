"""
# Device and precision

Which processor to train on, and in which precision? Both have a default that asks the machine.
"""

import torch

from labml_bert.training.distributed import local_gpu


def choose_device(name: str = "auto") -> torch.device:
    """
    ## The device

    `auto` is the GPU if there is one. With several, each process that `torchrun` starts gets its own.

    Raises `ValueError` if PyTorch does not know the device or the machine does not have it.
    """
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if name.startswith("cuda"):
        name = local_gpu(name)
    try:
        device = torch.device(name)
        # A tensor on "meta" has a shape but no numbers, so this line raises there too.
        torch.zeros(1, device=device).item()
    except Exception:  # Each missing backend raises an error of its own.
        raise ValueError(f"device {name!r} is not available here; use --device cpu, or auto") from None
    return device


def has_fast_bfloat16(device: torch.device) -> bool:
    """
    ## The precision

    bfloat16 has the range of float32 and 8 bits of precision. A processor that multiplies it in hardware
    does so several times faster than float32; one that emulates it is far slower. So we ask the hardware.
    """
    if device.type == "cuda":
        return torch.cuda.is_bf16_supported(including_emulation=False)
    capabilities = torch.cpu.get_capabilities()
    return device.type == "cpu" and any(capabilities.get(k) for k in ("amx_bf16", "avx512_bf16"))
