"""
Stops a process at each system call that touches files in a folder, so that a test can record the call, make
it fail, or shorten a write. This covers the calls of all code: in Python, safetensors, Arrow and the C
library, and in the processes that this process starts.

A filter in the kernel (seccomp) picks the calls, and `ptrace` shows them to us. Both need Linux; the numbers
below are those of x86-64.
"""

import ctypes
import errno
import os
import platform
import signal
import struct
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

IS_SUPPORTED = sys.platform == "linux" and platform.machine() == "x86_64"

# By the number of a call: its name here, and for each of its paths, the numbers of the arguments with the
# folder (or `None`) and with the path. A call without paths has a file descriptor as its first argument.
CALLS: dict[int, tuple[str, tuple[tuple[int | None, int], ...]]] = {
    2: ("open", ((None, 0),)),
    257: ("open", ((0, 1),)),
    85: ("open", ((None, 0),)),
    4: ("stat", ((None, 0),)),
    5: ("stat", ()),
    6: ("stat", ((None, 0),)),
    262: ("stat", ((0, 1),)),
    332: ("stat", ((0, 1),)),
    0: ("read", ()),
    17: ("read", ()),
    19: ("read", ()),
    217: ("read", ()),
    1: ("write", ()),
    18: ("write", ()),
    20: ("write", ()),
    74: ("fsync", ()),
    75: ("fsync", ()),
    76: ("truncate", ((None, 0),)),
    77: ("truncate", ()),
    82: ("rename", ((None, 0), (None, 1))),
    264: ("rename", ((0, 1), (2, 3))),
    316: ("rename", ((0, 1), (2, 3))),
    86: ("link", ((None, 0), (None, 1))),
    265: ("link", ((0, 1), (2, 3))),
    87: ("unlink", ((None, 0),)),
    263: ("unlink", ((0, 1),)),
    83: ("mkdir", ((None, 0),)),
    258: ("mkdir", ((0, 1),)),
    84: ("rmdir", ((None, 0),)),
    90: ("chmod", ((None, 0),)),
    91: ("chmod", ()),
    268: ("chmod", ((0, 1),)),
}
OPENAT, CREAT, PWRITE, WRITEV, UNLINKAT = 257, 85, 18, 20, 263
# Indices into the registers that `ptrace` returns: the number of the call, its result, and its arguments.
NUMBER, RESULT, ARGUMENTS = 15, 10, (14, 13, 12, 7, 9, 8)
AT_FDCWD, AT_REMOVEDIR = -100, 0x200
TRACEME, CONTINUE, GET_REGISTERS, SET_REGISTERS, SET_OPTIONS, GET_EVENT = 0, 7, 12, 13, 0x4200, 0x4201
# Follow forks, threads and new programs, report the filter's calls, and kill all of it if we end.
OPTIONS = 0x2 | 0x4 | 0x8 | 0x10 | 0x80 | 0x100000
FORK_EVENTS, EXEC_EVENT, SECCOMP_EVENT = (1, 2, 3), 4, 7
WAIT_ALL = 0x40000000

# With this answer, `on_call` halves a write.
SHORT = -1


class Call(NamedTuple):
    """A system call that is about to happen."""

    name: str
    paths: tuple[Path, ...]
    """The file, or the old and the new name."""
    flags: int
    """Of `open`."""
    data: bytes
    """Of `write`."""
    offset: int
    """In bytes: where a write starts, or where `truncate` ends the file."""


OnCall = Callable[[Call], int | None]
libc = ctypes.CDLL(None, use_errno=True)
if IS_SUPPORTED:
    libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
    libc.ptrace.restype = ctypes.c_long


class Program(ctypes.Structure):
    """A filter of system calls: its length in instructions, and the instructions."""

    _fields_ = (("length", ctypes.c_ushort), ("instructions", ctypes.c_char_p))


def stop_at_calls() -> None:
    """Lets the parent trace this process, and stops the process at each of the calls from now on."""
    libc.ptrace(TRACEME, 0, None, None)
    os.kill(os.getpid(), signal.SIGSTOP)
    # Load the number of the call; if it's one of ours, report it, otherwise allow it.
    lines = [struct.pack("HBBI", 0x20, 0, 0, 0)]
    lines += [struct.pack("HBBI", 0x15, len(CALLS) - i, 0, number) for i, number in enumerate(CALLS)]
    lines += [struct.pack("HBBI", 0x06, 0, 0, action) for action in (0x7FFF0000, 0x7FF00000)]
    program = Program(len(lines), b"".join(lines))
    if libc.prctl(38, 1, 0, 0, 0) or libc.prctl(22, 2, ctypes.byref(program), 0, 0):
        raise OSError(ctypes.get_errno(), "this system doesn't let us filter system calls")


def trace(run: Callable[[], None], folder: Path, on_call: OnCall) -> int:
    """
    Runs a function in a fork of this process, and returns its wait status. For each system call on a file in
    `folder`, asks `on_call` what to do: `None` lets it happen, an error number makes it fail with this error,
    and `SHORT` makes it write only half.

    This process must have no threads whose locks the fork could need.
    """
    sys.stdout.flush()
    child = os.fork()
    if child == 0:
        try:
            stop_at_calls()
            run()
        finally:
            os._exit(99)
    os.waitpid(child, WAIT_ALL)
    libc.ptrace(SET_OPTIONS, child, None, OPTIONS)
    libc.ptrace(CONTINUE, child, None, None)
    result, started, ended = -1, {child}, set[int]()
    while started - ended:
        pid, status = os.waitpid(-1, WAIT_ALL)
        if not os.WIFSTOPPED(status):
            result = status if pid == child else result
            ended.add(pid)
            continue
        number, event = os.WSTOPSIG(status), status >> 16
        if event == SECCOMP_EVENT:
            handle(pid, folder, on_call)
        elif event in FORK_EVENTS:
            started.add(event_message(pid))
        elif event == EXEC_EVENT:
            # A thread that runs a new program gets the number of its process.
            ended.add(event_message(pid))
            ended.discard(pid)
        is_ours = event or number in (signal.SIGSTOP, signal.SIGTRAP)
        libc.ptrace(CONTINUE, pid, None, None if is_ours else number)
    return result


def event_message(pid: int) -> int:
    """The process or thread that an event is about."""
    number = ctypes.c_ulong()
    libc.ptrace(GET_EVENT, pid, None, ctypes.cast(ctypes.pointer(number), ctypes.c_void_p))
    return number.value


def handle(pid: int, folder: Path, on_call: OnCall) -> None:
    """Asks `on_call` about the call at which the process has stopped, and changes the call accordingly."""
    registers = (ctypes.c_ulonglong * 27)()
    libc.ptrace(GET_REGISTERS, pid, None, ctypes.cast(registers, ctypes.c_void_p))
    arguments = [registers[i] for i in ARGUMENTS]
    call = describe(pid, registers[NUMBER], arguments, folder)
    if call is None:
        return
    answer = on_call(call)
    if answer is None:
        return
    if answer == SHORT:
        registers[ARGUMENTS[2]] = max(1, arguments[2] // 2)
    else:
        # With -1 as its number, the kernel skips the call and returns this result.
        registers[NUMBER], registers[RESULT] = 2**64 - 1, 2**64 - answer
    libc.ptrace(SET_REGISTERS, pid, None, ctypes.cast(registers, ctypes.c_void_p))


def describe(pid: int, number: int, arguments: list[int], folder: Path) -> Call | None:
    """What a call is about to do, or `None` if it's about files outside `folder`."""
    name, path_arguments = CALLS[number]
    try:
        if path_arguments:
            paths = tuple(
                Path(read_path(pid, AT_FDCWD if at is None else arguments[at], arguments[i]))
                for at, i in path_arguments
            )
        else:
            paths = (Path(os.readlink(f"/proc/{pid}/fd/{arguments[0]}")),)
    except (OSError, ValueError):
        # A bad file descriptor: the call fails by itself.
        return None
    if not any(path.is_relative_to(folder) for path in paths):
        return None
    flags, data, offset = 0, b"", 0
    if name == "open":
        flags = arguments[2 if number == OPENAT else 1]
        flags = os.O_CREAT | os.O_WRONLY | os.O_TRUNC if number == CREAT else flags
    elif number == UNLINKAT and arguments[2] & AT_REMOVEDIR:
        name = "rmdir"
    elif name == "truncate":
        offset = arguments[1]
    elif name == "write":
        data = read_data(pid, number, arguments)
        offset = arguments[3] if number == PWRITE else position(pid, arguments[0])
    return Call(name, paths, flags, data, offset)


def read_memory(pid: int, address: int, size: int) -> bytes:
    """`size` bytes of the process's memory."""
    with open(f"/proc/{pid}/mem", "rb", buffering=0) as memory:
        memory.seek(address)
        return memory.read(size)


def read_path(pid: int, at: int, address: int) -> str:
    """An absolute path, from an argument and the folder that it's relative to."""
    path = b""
    while b"\0" not in path:
        # Read at most to the end of a page, because the next page may not exist.
        start = address + len(path)
        path += read_memory(pid, start, 4096 - start % 4096)
    name = os.fsdecode(path.partition(b"\0")[0])
    at = ctypes.c_int(at).value
    base = os.readlink(f"/proc/{pid}/cwd" if at == AT_FDCWD else f"/proc/{pid}/fd/{at}")
    return os.path.normpath(os.path.join(base, name))


def read_data(pid: int, number: int, arguments: list[int]) -> bytes:
    """What a call is about to write."""
    if number != WRITEV:
        return read_memory(pid, arguments[1], arguments[2])
    pairs = struct.iter_unpack("QQ", read_memory(pid, arguments[1], 16 * arguments[2]))
    return b"".join(read_memory(pid, address, size) for address, size in pairs)


def position(pid: int, descriptor: int) -> int:
    """Where the next write to a file descriptor starts, in bytes."""
    with open(f"/proc/{pid}/fdinfo/{descriptor}") as file:
        values = dict(line.split(":", 1) for line in file if ":" in line)
    if int(values["flags"], 8) & os.O_APPEND:
        return os.stat(f"/proc/{pid}/fd/{descriptor}").st_size
    return int(values["pos"])


# The errors that each call can return.
ERRORS: dict[str, tuple[int, ...]] = {
    "open": (errno.EACCES, errno.EIO),
    "read": (errno.EIO,),
    "stat": (errno.EIO, errno.EACCES),
    "write": (errno.ENOSPC, errno.EIO, SHORT),
    "fsync": (errno.EIO, errno.ENOSPC),
    "truncate": (errno.EIO,),
    "rename": (errno.ENOSPC, errno.EACCES),
    "link": (errno.EPERM, errno.ENOSPC),
    "unlink": (errno.EACCES, errno.EIO),
    "mkdir": (errno.ENOSPC, errno.EACCES),
    "rmdir": (errno.EACCES,),
    "chmod": (errno.EPERM,),
}
