"""
# Before PyTorch is loaded

What if a package is missing? Every experiment imports this module before it loads PyTorch. If packages are
missing, the module ends the program with one line that names them and tells you how to install them. The
module itself needs only Python. Loading PyTorch takes seconds. If you press Ctrl-C during that time, the
module prints one line instead of a traceback.
"""

import contextlib
import os
import signal
import sys
from importlib.util import find_spec
from types import FrameType, TracebackType

# pyproject.toml lists the same packages. But an installed package doesn't contain that file, and a clone that
# isn't installed has no metadata, so this module needs its own list.
REQUIRED = (
    "torch",
    "labml",
    "numpy",
    "scipy",
    "tokenizers",
    "safetensors",
    "filelock",
    "rich",
    "tyro",
    "datasets",
    "pyarrow",
)


# If a standard stream is closed, the next opened file gets its number, and C code could print to that file.
for number in (0, 1, 2):
    try:
        os.fstat(number)
    except OSError:
        os.open(os.devnull, os.O_RDWR)
if sys.stdin is None:
    sys.stdin = open(0, encoding="utf-8")  # noqa: SIM115

# Some programs set COLUMNS to 0. With too few columns, Rich can print nothing or wrap forever. Rich also
# raises an error if a variable has a character such as ² or thousands of digits.
for name, smallest in (("COLUMNS", 20), ("LINES", 1)):
    value = os.environ.get(name, "")
    if not value.isdecimal() or len(value) > 9 or int(value) < smallest:
        os.environ.pop(name, None)

# `torchrun` sets both variables. A process without `RANK` has only inherited `TORCHELASTIC_RUN_ID`.
if "RANK" not in os.environ:
    os.environ.pop("TORCHELASTIC_RUN_ID", None)
# Each of the package's commands is a single process, so it ignores these variables.
spec = getattr(sys.modules["__main__"], "__spec__", None)
if spec is not None and spec.name.startswith("labml_bert."):
    os.environ.pop("TORCHELASTIC_RUN_ID", None)


def wrong_variable() -> str:
    """Returns the first variable of `torchrun` that can't be right, or an empty string."""
    numbers: dict[str, int] = {}
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_PORT"):
        value = os.environ.get(name, "")
        # No port is above 65535, and so many processes are unlikely. `int` refuses thousands of digits.
        if not value.isdecimal() or len(value) > 9 or int(value) > 65535:
            return name
        numbers[name] = int(value)
    for name, size in (("RANK", "WORLD_SIZE"), ("LOCAL_RANK", "LOCAL_WORLD_SIZE")):
        if numbers[name] >= numbers[size]:
            return size
    return "" if os.environ.get("MASTER_ADDR") else "MASTER_ADDR"


if "TORCHELASTIC_RUN_ID" in os.environ and (wrong_name := wrong_variable()):
    print(
        f"error: the environment variable {wrong_name} is {os.environ.get(wrong_name, 'not set')!a}; "
        "start several processes with torchrun, or one with TORCHELASTIC_RUN_ID unset",
        file=sys.stderr,
    )
    raise SystemExit(2)

try:
    # PyTorch's libraries don't load if the current folder no longer exists.
    os.getcwd()
except OSError:
    print("error: the current folder no longer exists; change to another one", file=sys.stderr)
    raise SystemExit(2) from None


def stop_before_it_began(number: int, frame: FrameType | None) -> None:
    """Handles Ctrl-C: prints one line and ends the process, which hasn't written any file yet."""
    try:
        os.write(2, b"\nstopped before it began\n")
    finally:
        # An import could catch the error of a closed stderr, and the program would go on.
        os._exit(130)


def explain_failed_import(
    kind: type[BaseException], error: BaseException, trace: TracebackType | None
) -> None:
    """
    Handles an uncaught exception. During the imports, the likely causes are a lack of memory, and a file in
    the current folder that has the name of a module.
    """
    reason = " ".join((str(error) or "out of memory").split())
    line = f"error: cannot load a library ({reason}); free some memory, or install the packages again"
    if file := hidden_module(trace):
        name = file.removesuffix(".py")
        kind_of_file = "file" if file != name else "folder"
        line = f"error: {file} in the current folder hides Python's module {name}; rename the {kind_of_file}"
    elif not issubclass(kind, ImportError | OSError | MemoryError):
        sys.__excepthook__(kind, error, trace)
        return
    with contextlib.suppress(OSError):
        os.write(2, os.fsencode(f"{line}\n"))
    os._exit(2)


def hidden_module(trace: TracebackType | None) -> str:
    """
    The name of a file or folder in the current folder that was loaded in place of a module of Python or of a
    library, or an empty string. `python -m` looks for all modules in the current folder first.
    """
    paths = [getattr(module, "__file__", None) for module in [*sys.modules.values()]]
    while trace is not None:
        paths.append(trace.tb_frame.f_code.co_filename)
        trace = trace.tb_next
    for path in filter(None, paths):
        folder, file = os.path.split(os.path.abspath(path).removesuffix(f"{os.sep}__init__.py"))
        name = file.removesuffix(".py")
        if folder == os.getcwd() and (name in sys.stdlib_module_names or name in REQUIRED):
            return file
    return ""


def exit_on_signals() -> None:
    """
    By default, SIGTERM and SIGHUP end this process at once. After this call, they raise `SystemExit`, so that
    `finally` blocks can end other processes and delete temporary folders.
    """
    for name in ("SIGTERM", "SIGHUP"):
        if hasattr(signal, name) and signal.getsignal(getattr(signal, name)) is signal.SIG_DFL:
            signal.signal(getattr(signal, name), lambda number, frame: sys.exit(128 + number))


try:
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, stop_before_it_began)
        if sys.excepthook is sys.__excepthook__:
            sys.excepthook = explain_failed_import
except ValueError:
    # Only the main thread can set a signal handler.
    pass

try:
    # In a folder with exercises, this may load a file called `random.py`, so it comes after `excepthook`.
    import tempfile

    # Importing PyTorch calls `gettempdir` too, which raises `OSError` if no temporary folder is writable.
    tempfile.gettempdir()
except OSError as error:
    remedy = "set TMPDIR to a folder that you can write to, on a disk with free space"
    print(f"error: {error.strerror}; {remedy}", file=sys.stderr)
    raise SystemExit(2) from None

if missing := [name for name in REQUIRED if find_spec(name) is None]:
    remedy = f"run: {sys.executable} -m pip install {' '.join(missing)}"
    if os.path.exists(os.path.join(os.path.dirname(__file__), "..", "..", "constraints.txt")):
        words = "python -m pip install --constraint constraints.txt --editable ."
        remedy = f"from the top of the clone run: {words}"
    print(f"error: not installed: {', '.join(missing)}; {remedy}", file=sys.stderr)
    raise SystemExit(2)
