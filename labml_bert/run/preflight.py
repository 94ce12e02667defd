"""
# Before PyTorch is loaded

What if a package is missing? Every experiment imports this module first, and it tells you in one line which
packages are missing and how to install them. It needs only Python. PyTorch takes seconds to load, and Ctrl-C
during that time also prints one line instead of a traceback.
"""

import os
import signal
import sys
from importlib.util import find_spec
from types import FrameType

# The dependencies in pyproject.toml, because a clone that isn't installed has no metadata to read them from.
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


# If a shell has closed stdout or stderr, the next file would get its number, and all that C code prints.
for number in (0, 1, 2):
    try:
        os.fstat(number)
    except OSError:
        os.open(os.devnull, os.O_RDWR)


def stop_before_it_began(number: int, frame: FrameType | None) -> None:
    """Ends the process with one line. Nothing has been written yet."""
    os.write(2, b"\nstopped before it began\n")
    os._exit(130)


try:
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, stop_before_it_began)
except ValueError:
    # Only the main thread may set a handler.
    pass

if missing := [name for name in REQUIRED if find_spec(name) is None]:
    print(
        f"error: not installed: {', '.join(missing)}; from the top of the clone run: "
        "python -m pip install --constraint constraints.txt --editable .",
        file=sys.stderr,
    )
    raise SystemExit(2)
