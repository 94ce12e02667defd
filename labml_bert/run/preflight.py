"""
# Before PyTorch is loaded

What if a package is missing? Every experiment imports this module first. The module tells you in one line
which packages are missing and how to install them. The module itself needs only Python. Loading PyTorch takes
seconds, and Ctrl-C during that time also prints one line instead of a traceback.
"""

import os
import signal
import sys
import tempfile
from importlib.util import find_spec
from types import FrameType

# pyproject.toml lists the same packages, but a clone that isn't installed has no metadata to read.
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


# If stdout or stderr is closed, the next opened file gets its number, and C code would print to that file.
for number in (0, 1, 2):
    try:
        os.fstat(number)
    except OSError:
        os.open(os.devnull, os.O_RDWR)
if sys.stdin is None:
    sys.stdin = open(0, encoding="utf-8")  # noqa: SIM115

# Some programs set a width of 0. With fewer than 20 columns, rich prints nothing or wraps forever. Rich also
# accepts a character such as ² as a digit, and then raises an error.
columns = os.environ.get("COLUMNS", "")
if not columns.isdecimal() or int(columns) < 20:
    os.environ.pop("COLUMNS", None)

# A shell started by a `torchrun` job may have inherited `TORCHELASTIC_RUN_ID`, but not `RANK`.
if "RANK" not in os.environ:
    os.environ.pop("TORCHELASTIC_RUN_ID", None)

try:
    # Without a current folder, PyTorch's libraries don't load.
    os.getcwd()
except OSError:
    print("error: the current folder no longer exists; change to another one", file=sys.stderr)
    raise SystemExit(2) from None

try:
    # PyTorch asks for the temporary folder when it's imported.
    tempfile.gettempdir()
except OSError as error:
    print(f"error: {error.strerror}; free some space on the disk", file=sys.stderr)
    raise SystemExit(2) from None


def stop_before_it_began(number: int, frame: FrameType | None) -> None:
    """Ends the process with one line. Nothing has been written yet."""
    os.write(2, b"\nstopped before it began\n")
    os._exit(130)


try:
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, stop_before_it_began)
except ValueError:
    # Only the main thread may set a signal handler.
    pass

if missing := [name for name in REQUIRED if find_spec(name) is None]:
    print(
        f"error: not installed: {', '.join(missing)}; from the top of the clone run: "
        "python -m pip install --constraint constraints.txt --editable .",
        file=sys.stderr,
    )
    raise SystemExit(2)
