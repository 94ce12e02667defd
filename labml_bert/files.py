"""
# Writing files atomically

A program can be killed at any moment, and a disk can fill up. What happens to a file that is being written?
With `whole_file`, you find either the old file or the new one, never half of one. The new file is written
under a temporary name, flushed to disk, and then renamed, which is atomic. The folder is flushed too, because
until then a power failure can undo the renaming. A power failure could also undo the creation of a folder, so
`make_folder` flushes the parent folder.

A disk can also return wrong bits. So each file of tensors that we write contains the sha256 of its contents,
which is checked when you read the file. For 100 MB, the check takes a fraction of a second.
"""

import codecs
import contextlib
import errno
import hashlib
import json
import os
import shutil
import signal
import stat
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from filelock import AcquireReturnProxy, FileLock, Timeout
from safetensors import SafetensorError, safe_open

if TYPE_CHECKING:
    # Loading PyTorch takes seconds, and the course writes files without PyTorch.
    from torch import Tensor

# The end of each temporary name. It's long because your own files may end in `.part`, and those must stay.
PART = ".labml_bert.part"

# Files in the formats gzip, bzip2, xz, zip and PDF start with these bytes.
MAGIC_NUMBERS = (b"\x1f\x8b", b"BZh", b"\xfd7zXZ", b"PK\x03\x04", b"%PDF")

# The largest header to read, in bytes. That of a checkpoint with a thousand layers has about 7 MB.
LARGEST_HEADER = 10_000_000

# The names that safetensors gives to the types that we write.
TYPES = {
    "torch.float64": "F64",
    "torch.float32": "F32",
    "torch.float16": "F16",
    "torch.bfloat16": "BF16",
    "torch.complex64": "C64",
    "torch.int64": "I64",
    "torch.int32": "I32",
    "torch.int16": "I16",
    "torch.int8": "I8",
    "torch.uint64": "U64",
    "torch.uint32": "U32",
    "torch.uint16": "U16",
    "torch.uint8": "U8",
    "torch.bool": "BOOL",
}


def partial_path(path: Path) -> Path:
    """The temporary name of a file. Two processes on one computer use different names for the same file."""
    return path.with_name(f"{path.name}.{os.getpid()}{PART}")


@contextlib.contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """
    Yields a temporary path to write to. At the end of the block, the file is renamed to `path`. After an
    error, it is deleted instead. If the file replaces an older one, it keeps the permissions of the older
    one.

    Raises `OSError` if the file can't be flushed or renamed.
    """
    part = partial_path(path)
    with naming(path):
        # Delete what a killed process with the same id left. If it's a link, writing would change the target.
        part.unlink(missing_ok=True)
        try:
            yield part
            # Windows can't flush a file that is open only for reading.
            with open(part, "rb+") as file:
                os.fsync(file.fileno())
            # Several users may share a folder.
            with contextlib.suppress(OSError):
                part.chmod(path.stat().st_mode & 0o777)
            os.replace(part, path)
        finally:
            # After a rename, there is nothing to delete, unless both names were hard links to the same file.
            # An error here must not hide an earlier one.
            with contextlib.suppress(OSError):
                part.unlink(missing_ok=True)
        sync_folder(path.parent)


@contextlib.contextmanager
def naming(path: Path) -> Iterator[None]:
    """Makes an error from the operating system name `path` if it names a temporary file or no file."""
    try:
        yield
    except OSError as error:
        # Libraries also raise `OSError`, but without an errno. A file name would hide their message.
        is_unnamed = error.filename is None or str(error.filename).endswith(PART)
        if error.errno is not None and is_unnamed:
            error.filename = str(path)
            # Python would print even `None` as a second file name.
            del error.filename2
        raise


def check_utf8(path: Path) -> None:
    """Raises `ValueError` if `path` isn't UTF-8. We could write there, but safetensors couldn't read it."""
    if not is_utf8(str(path)):
        raise ValueError(f"the name {str(path)!a} is not UTF-8; use another folder, or rename it")


def is_utf8(text: str) -> bool:
    """Whether a text has no surrogates, which stand for bytes in another encoding or for half a character."""
    return not any("\ud800" <= character <= "\udfff" for character in text)


def encoding_error(path: Path, error: UnicodeDecodeError, data: bytes, location: str) -> ValueError:
    """
    Returns the error for a file that isn't UTF-8, with a command that converts the file if it seems to be
    text. `data` is the beginning of the file, and `location` says where the file isn't UTF-8. Without a byte
    order mark, we don't know the encoding, so the command has that of Western European Windows as an example.
    """
    encoding = None
    if data.startswith((codecs.BOM_UTF32_LE, codecs.BOM_UTF32_BE)):
        encoding = "UTF-32"
    elif data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        encoding = "UTF-16"
    if error.reason == "unexpected end of data":
        remedy = "get a whole copy, or convert it to UTF-8"
        return ValueError(f"{path} is not UTF-8 at its end ({location}); {remedy}")
    if data.startswith(MAGIC_NUMBERS) or (b"\0" in data and encoding is None):
        return ValueError(f"{path} is compressed, or not a text; save its text in a file, in UTF-8")
    command = f"iconv -f {encoding or 'WINDOWS-1252'} -t UTF-8 FILE > NEW"
    example = "" if encoding else ", for example"
    return ValueError(f"{path} is not UTF-8 ({location}); convert it{example} with: {command}")


def unreadable(path: object, reason: str | None) -> ValueError:
    """Returns the error for a file or folder that can't be read. `reason` is the system's."""
    is_missing = reason == os.strerror(errno.ENOENT)
    remedy = "name a file that exists" if is_missing else "make it readable"
    return ValueError(f"cannot read {path}: {reason}; {remedy}")


def is_unreadable_folder(folder: Path) -> bool:
    """Whether there is such a folder, but its permissions keep this user from reading it."""
    return folder.is_dir() and not os.access(folder, os.R_OK | os.X_OK)


def without_nul(text: str, name: object) -> str:
    """
    Returns `text`. Raises `ValueError`, with the `name` of the text, if it has a NUL character, which plain
    text doesn't have.
    """
    if "\0" in text:
        raise ValueError(f"{name} has NUL characters, so it is not plain text; save its text in UTF-8")
    return text


def read_lines(data: bytes) -> list[str]:
    """
    Returns the lines of `data`. Keeps blank lines, so that the line numbers in error messages are right. A
    byte that isn't UTF-8 becomes a surrogate, as it does on the command line.

    Raises `ValueError` if all lines are blank, or if there is a NUL character.
    """
    text = data.decode("utf-8-sig", "surrogateescape")
    if not text.strip():
        raise ValueError("there is no text; pass texts as arguments, or one per line to standard input")
    lines = without_nul(text, "the input").removesuffix("\n").split("\n")
    return [line.removesuffix("\r") for line in lines]


def sync_folder(folder: Path) -> None:
    """Flushes the names in a folder to disk, if the system can. Raises `OSError` if the disk fails."""
    try:
        descriptor = os.open(folder, os.O_RDONLY)
    except PermissionError:
        # A folder can be writable without being readable. Only a readable folder can be flushed.
        return
    try:
        with naming(folder):
            os.fsync(descriptor)
    except OSError as error:
        # Some network file systems can't flush folders.
        if error.errno != errno.EINVAL:
            raise
    finally:
        os.close(descriptor)


def make_folder(folder: Path) -> None:
    """
    Creates a folder, and the folders above it, if they don't exist. Flushes the names of the new folders to
    disk, because if a folder is lost, so are the flushed files in it.

    Raises `OSError` if that fails, or if there is a file with the same name.
    """
    if folder.is_dir():
        return
    for path in reversed([folder, *(path for path in folder.parents if not path.exists())]):
        path.mkdir(exist_ok=True)
        sync_folder(path.parent)


def is_leftover(name: str) -> bool:
    """Whether a killed program of ours can leave a file with this name: its lock or a temporary file."""
    return name == ".lock" or name.endswith(PART)


def list_below(folder: Path) -> list[Path]:
    """All files, links and folders below a folder. Raises `OSError` if a folder can't be listed."""
    # `Path.rglob` skips folders that it can't list. In Python 3.11, `os.walk` is recursive, so a thousand
    # nested folders would raise `RecursionError`.
    folders, paths = [folder], list[Path]()
    while folders:
        inside = [*folders.pop().iterdir()]
        paths += inside
        folders += [path for path in inside if path.is_dir() and not path.is_symlink()]
    return paths


def is_empty_file(path: Path) -> bool:
    """Whether `path` is an empty regular file. A link to one doesn't count."""
    return path.is_file() and not path.is_symlink() and path.stat().st_size == 0


def remove_partial_files(folder: Path) -> None:
    """Deletes the temporary files in `folder`, which may be missing. No process may be writing there."""
    for part in folder.glob(f"*{PART}"):
        if not part.is_dir():
            part.unlink()


def write_whole(path: Path, text: str) -> None:
    """Writes a text and a final newline, atomically. Raises `OSError` if that fails."""
    with whole_file(path) as part:
        part.write_text(text + "\n", encoding="utf-8")


def check_own(path: Path, is_right_kind: Callable[[int], bool] = stat.S_ISREG) -> None:
    """
    ## Folders from elsewhere

    A folder that you copied can contain a link to any of your files, under a name that we write to. So we
    never write through a link: we either replace the link, or check for it with this function. To check a
    folder, pass `stat.S_ISDIR`.

    Raises `OSError` if `path` exists and is a link, or isn't of the right kind.
    """
    if not os.path.lexists(path):
        return
    mode = path.lstat().st_mode
    if not is_right_kind(mode):
        kind = "folder" if is_right_kind is stat.S_ISDIR else "file"
        other = "a symbolic link" if stat.S_ISLNK(mode) else "something else"
        raise OSError(f"{path} must be a {kind} of its own, but is {other}; remove it or put a copy there")


@contextlib.contextmanager
def open_to_append(path: Path) -> Iterator[BinaryIO]:
    """
    Opens a file for reading and appending. If the file has other names, such as in a copy of the folder by
    `cp -l`, replaces it by a copy first. Raises `OSError` if that fails or if `check_own` does.
    """
    check_own(path)
    is_new = not path.exists()
    with naming(path):
        if not is_new and path.stat().st_nlink > 1:
            with whole_file(path) as part:
                shutil.copyfile(path, part)
        file = open(path, "a+b")  # noqa: SIM115
    try:
        if is_new:
            sync_folder(path.parent)
        yield file
    finally:
        with naming(path):
            file.close()


def append(file: BinaryIO, data: bytes) -> None:
    """Appends to a file and waits until the data is on the disk."""
    with naming(Path(file.name)):
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def write_tensors(path: Path, tensors: "dict[str, Tensor]", metadata: dict[str, str]) -> None:
    """
    ## Tensors

    Writes a safetensors file atomically, with the sha256 of its contents in its metadata. The format contains
    only numbers and text, so loading a file can't run code, unlike loading a pickle.

    Raises `OSError` if the file can't be written, and `ValueError` if a tensor's type isn't one of `TYPES`.
    """
    for name, tensor in tensors.items():
        if str(tensor.dtype) not in TYPES:
            raise ValueError(f"{name} has numbers of type {tensor.dtype}, which can't be saved; convert them")
    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    header: dict[str, Any] = {"__metadata__": {**metadata, "sha256": fingerprint(tensors, metadata)}}
    # Tensors with the largest elements come first, so each starts at a multiple of its element size.
    tensors = dict(sorted(tensors.items(), key=lambda item: -item[1].element_size()))
    end = 0
    for name, tensor in tensors.items():
        start, end = end, end + tensor.nbytes
        entry = {"dtype": TYPES[str(tensor.dtype)], "shape": [*tensor.shape], "data_offsets": [start, end]}
        header[name] = entry
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    # `save_file` of safetensors may write to its own temporary file, which nobody would delete after a kill.
    with whole_file(path) as part, open(part, "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for tensor in tensors.values():
            file.write(bytes_of(tensor))


def bytes_of(tensor: "Tensor") -> memoryview:
    """The bytes of a contiguous tensor on the CPU, without a copy."""
    import torch

    view: memoryview = tensor.reshape(-1).view(torch.uint8).numpy().data
    return view


def read_tensors(path: Path) -> "tuple[dict[str, Tensor], dict[str, str]]":
    """
    Returns the tensors of a safetensors file by name, and its metadata without the sha256. Files from other
    programs and of early versions have no sha256, so they aren't checked.

    Raises `ValueError` if the file can't be read, has a header that's too large, or doesn't match its sha256,
    and `MemoryError` if there isn't enough memory.
    """
    check_utf8(path)
    try:
        if path.exists() and not path.is_file():
            raise ValueError("it isn't a regular file")  # Reading a pipe could wait forever.
        with open(path, "rb") as start:
            size = start.read(8)
            if len(size) == 8 and int.from_bytes(size, "little") > LARGEST_HEADER:
                raise ValueError(f"its names and shapes take more than {LARGEST_HEADER:,} bytes")
        with deferred_signals(), safe_open(path, "pt") as file:
            metadata = dict(file.metadata() or {})
            # Clone the tensors, because Windows can't replace a file while a tensor is mapped to it.
            tensors = {name: file.get_tensor(name).clone() for name in file.keys()}  # noqa: SIM118
    except (SafetensorError, OSError, ValueError, RuntimeError) as error:
        if "allocate memory" in str(error):
            raise MemoryError from None
        raise ValueError(f"{path} is damaged or not a safetensors file ({error})") from None
    expected = metadata.pop("sha256", None)
    # A checkpoint that has its tokenizer's sha256 also has its own, unless the name of that entry is damaged.
    is_checkpoint = "tokenizer_sha256" in metadata.get("about", "")
    if (expected is not None or is_checkpoint) and expected != fingerprint(tensors, metadata):
        raise ValueError(f"{path} is damaged (it does not have the sha256 that it was saved with)")
    return tensors, metadata


@contextlib.contextmanager
def deferred_signals() -> Iterator[None]:
    """
    Handles signals after the block. If Ctrl-C raised `KeyboardInterrupt` while safetensors reads, safetensors
    would raise an error of its own instead, as if the file were damaged.
    """
    came: list[int] = []
    handlers: dict[int, Any] = {}
    # Only the main thread handles signals.
    if threading.current_thread() is threading.main_thread():
        numbers = [getattr(signal, n) for n in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, n)]
        handlers = {n: handler for n in numbers if callable(handler := signal.getsignal(n))}
    for number in handlers:
        signal.signal(number, lambda number, frame: came.append(number))
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
        for number in came[:1]:
            handlers[number](number, None)


def fingerprint(tensors: "dict[str, Tensor]", metadata: dict[str, str]) -> str:
    """The sha256 of the metadata and of the names, types, shapes and values of all tensors."""
    digest = hashlib.sha256(json.dumps(metadata, sort_keys=True).encode())
    for name, tensor in sorted(tensors.items()):
        digest.update(f"\0{name}\0{tensor.dtype}\0{tuple(tensor.shape)}\0".encode())
        digest.update(bytes_of(tensor))
    return digest.hexdigest()


def lock(
    folder: Path, on_wait: Callable[[], None] | None = None, name: str = ".lock"
) -> "AcquireReturnProxy[FileLock]":
    """
    ## One process at a time

    Two programs that write to the same folder could overwrite each other's files. So each program takes the
    folder's lock first. The program keeps the lock until it leaves a `with` block on the returned object,
    until it deletes the object, or until it ends for any reason. If another program has the lock, this
    function calls `on_wait` and waits. A different `name` is a different lock, for one of several files in
    the folder.

    Raises `BlockingIOError` if another program has the lock and there is no `on_wait`, and `OSError` if the
    lock file can't be written, isn't a regular file, or isn't empty. A lock file of ours is always empty.
    """
    check_own(folder / name)
    if (folder / name).exists() and not is_empty_file(folder / name):
        raise OSError(
            f"{folder / name} is not ours, because it is not empty; move it, or choose another folder"
        )
    file_lock = FileLock(folder / name)
    try:
        return file_lock.acquire(blocking=False)
    except Timeout:
        if on_wait is None:
            raise BlockingIOError(
                f"{folder / name} is locked by another process; wait until that one ends"
            ) from None
    on_wait()
    return file_lock.acquire()


@contextlib.contextmanager
def lock_output(folder: Path, remedy: str = "choose another with --output") -> Iterator[None]:
    """
    Locks the folder in the block. First deletes the temporary files that a killed program has left there, and
    at the end deletes the lock file.

    Raises `ValueError`, with the `remedy`, if another program has locked the folder.
    """
    try:
        folder_lock = lock(folder)
    except BlockingIOError:
        raise ValueError(f"another program is writing to {folder}; {remedy}") from None
    with folder_lock:
        try:
            remove_partial_files(folder)
            yield
        finally:
            with contextlib.suppress(OSError):  # On Windows, a file can't be deleted while it's open.
                (folder / ".lock").unlink()
