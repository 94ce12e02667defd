"""
# Files that are whole

A program can be killed and a disk can be full at any moment. What does whoever reads its files find then?
Either the file of before or the new one, never half of one: a file is written under another name, the disk
is waited for, and only then it gets its own name, which happens at once.

A disk can also give back other bits than it was given. So a file of tensors holds its own sha256, and whoever
reads it counts again. That takes a twentieth of a second for 100 MB.
"""

import contextlib
import hashlib
import json
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor


@contextlib.contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """Gives the path to write to. It becomes `path` at the end of the block, and goes if that fails."""
    # Two programs at once do not write into each other's file.
    part = path.with_name(f"{path.name}.{os.getpid()}.part")
    try:
        yield part
        with open(part, "rb") as file:
            os.fsync(file.fileno())
        os.replace(part, path)
    except BaseException:
        part.unlink(missing_ok=True)
        raise


def write_whole(path: Path, text: str) -> None:
    """A text and a line end, as a file that is whole."""
    with whole_file(path) as part:
        part.write_text(text + "\n", encoding="utf-8")


def write_tensors(path: Path, tensors: dict[str, Tensor], metadata: dict[str, str]) -> None:
    """
    ## Tensors

    A safetensors file that is whole, with the sha256 of what it holds among its metadata. The format stores
    numbers and text only; loading one cannot run code, as a pickle can.

    Raises `OSError` where it cannot be written.
    """
    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    with whole_file(path) as part:
        try:
            save_file(tensors, part, {**metadata, "sha256": fingerprint(tensors, metadata)})
        except SafetensorError as error:
            raise OSError(f"cannot write {path}: {error}") from None


def read_tensors(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """
    The tensors of a safetensors file by name, and its metadata. A file of others, which has no sha256, is
    taken as it is.

    Raises `ValueError` where it cannot be read, or is not what was written.
    """
    try:
        with safe_open(path, "pt") as file:
            metadata = dict(file.metadata() or {})
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (SafetensorError, OSError, ValueError) as error:
        raise ValueError(f"{path} is damaged or no safetensors file ({error})") from None
    expected = metadata.pop("sha256", None)
    if expected is not None and expected != fingerprint(tensors, metadata):
        raise ValueError(f"{path} is damaged (it does not have the sha256 that it was written with)")
    return tensors, metadata


def fingerprint(tensors: dict[str, Tensor], metadata: dict[str, str]) -> str:
    """The sha256 of names, types, shapes and numbers."""
    digest = hashlib.sha256(json.dumps(metadata, sort_keys=True).encode())
    for name, tensor in sorted(tensors.items()):
        digest.update(f"\0{name}\0{tensor.dtype}\0{tuple(tensor.shape)}\0".encode())
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def lock(folder: Path, wait: Callable[[], None] | None = None, name: str = ".lock") -> IO[str]:
    """
    ## One at a time

    Two programs that write into one folder would undo each other's work. This holds the folder until the file
    that it returns is closed, or the process ends, in whatever way. Where another has it, `wait` is called
    and then the other waited for; without `wait` this raises `BlockingIOError`. With a `name` of its own it
    holds a part of the folder, whatever the two programs take that to be.
    """
    file = open(folder / name, "w")  # noqa: SIM115
    # Windows has no such lock; there it is left to the user.
    if sys.platform != "win32":
        import fcntl

        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if wait is None:
                file.close()
                raise
            wait()
            fcntl.flock(file, fcntl.LOCK_EX)
    return file
