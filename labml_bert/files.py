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
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from filelock import AcquireReturnProxy, FileLock, Timeout
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


def lock(
    folder: Path, on_wait: Callable[[], None] | None = None, name: str = ".lock"
) -> AcquireReturnProxy[FileLock]:
    """
    ## One process at a time

    Two programs that write into the same folder would undo each other's work. So each takes the folder's lock
    first and holds it until the returned object is closed by a `with` block or deleted, or until the process
    ends, in whatever way. If another program has the lock, this calls `on_wait` and waits. A different `name`
    is a different lock, for one of several things in the folder.

    Raises `BlockingIOError` if another program has the lock and there is no `on_wait`, and `OSError` if the
    lock file can't be written or is a symbolic link.
    """
    file_lock = FileLock(folder / name)
    try:
        return file_lock.acquire(blocking=False)
    except Timeout:
        if on_wait is None:
            raise BlockingIOError(f"{folder / name} is locked by another process") from None
    on_wait()
    return file_lock.acquire()
