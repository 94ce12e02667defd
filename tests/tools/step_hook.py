"""
Logs every training step of a Python process, whatever code it runs. `compare_commits.py` puts this file in
front of the `PYTHONPATH` of each run, under the name `sitecustomize.py`, which Python imports at startup.

As soon as the process imports torch, hooks watch `Tensor.backward` and every optimizer. The log has one line
for each event, in order:

    loss 0x1.a8f5c2p+1     the scalar that `backward` was called on, with all its bits
    weights 3f2a…          sha256 of the parameters after an optimizer step, in the order of the groups
    moments 90b1…          sha256 of the optimizer's state, in the same order

The log contains no names, so renaming a module or a parameter doesn't change it. Each process writes its own
file in the folder `STEP_LOG`, called `RANK-NANOSECONDS-PID.log`, and flushes it after each line.

With `STEP_LOG_KILL_AFTER`, the process of rank 0 sends SIGKILL to itself once it has called `backward` that
many times and there is a checkpoint with a step above 0 under the folder `STEP_LOG_RUNS`.
"""

import functools
import hashlib
import json
import os
import re
import signal
import sys
import time
from collections.abc import Iterable
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any, TextIO

backward_calls = 0
log_file: TextIO | None = None


def rank() -> str:
    """The rank that torchrun assigned to this process."""
    return os.environ.get("RANK", "0")


def write(line: str) -> None:
    """Appends one line to the log of this process."""
    global log_file
    if log_file is None:
        name = f"{rank()}-{time.time_ns()}-{os.getpid()}.log"
        log_file = (Path(os.environ["STEP_LOG"]) / name).open("w", buffering=1)
    log_file.write(line + "\n")


def digest(tensors: Iterable[Any]) -> str:
    """The sha256 of the concatenated bytes of all tensors."""
    import torch

    sha256 = hashlib.sha256()
    for tensor in tensors:
        sha256.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy())
    return sha256.hexdigest()


def log_weights(optimizer: Any, *_: Any) -> None:
    """Runs after each step of any optimizer."""
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    states = [optimizer.state.get(p, {}) for p in parameters]
    write(f"weights {digest(parameters)}")
    write(
        f"moments {digest(state[k] for state in states for k in sorted(state) if hasattr(state[k], 'cpu'))}"
    )


def checkpoint_step(path: Path) -> int:
    """The step in the metadata of a safetensors file, or 0 if there is none."""
    try:
        with path.open("rb") as file:
            size = int.from_bytes(file.read(8), "little")
            metadata = json.loads(file.read(size))["__metadata__"]
    except (OSError, ValueError, KeyError):
        return 0
    # The step may be a plain value, or inside a string that is itself JSON.
    match = re.search(r'"step": "?(\d+)', json.dumps(metadata).replace("\\", ""))
    return int(match[1]) if match else 0


def kill_when_due() -> None:
    """Sends SIGKILL to this process after enough steps, if there is a checkpoint to resume from."""
    after = int(os.environ.get("STEP_LOG_KILL_AFTER", "0"))
    if after and backward_calls >= after and rank() == "0":
        checkpoints = Path(os.environ["STEP_LOG_RUNS"]).rglob("checkpoint.safetensors")
        if any(checkpoint_step(path) > 0 for path in checkpoints):
            os.kill(os.getpid(), signal.SIGKILL)


def watch(torch: Any) -> None:
    """Installs the hooks in torch."""
    from torch.optim.optimizer import register_optimizer_step_post_hook

    original_backward = torch.Tensor.backward

    @functools.wraps(original_backward)
    def backward(self: Any, *args: Any, **kwargs: Any) -> None:
        global backward_calls
        if self.numel() == 1:
            write(f"loss {float(self.detach()).hex()}")
        original_backward(self, *args, **kwargs)
        backward_calls += 1
        kill_when_due()

    torch.Tensor.backward = backward
    register_optimizer_step_post_hook(log_weights)


class TorchFinder(MetaPathFinder):
    """Finds torch where it is installed, and installs the hooks right after its import."""

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        """Its spec installs the hooks on import. Programs that only check for torch call this as well."""
        if fullname != "torch":
            return None
        others = (finder for finder in sys.meta_path if finder is not self)
        specs = (finder.find_spec(fullname, path, target) for finder in others)
        spec = next((spec for spec in specs if spec is not None), None)
        if spec is None or spec.loader is None:
            return None
        exec_module = spec.loader.exec_module

        def exec_and_watch(module: Any) -> None:
            exec_module(module)
            watch(module)

        spec.loader.exec_module = exec_and_watch  # type: ignore[method-assign]
        return spec


if "STEP_LOG" in os.environ:
    sys.meta_path.insert(0, TorchFinder())
