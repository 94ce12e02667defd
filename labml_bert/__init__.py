"""
BERT and masked language modelling: annotated, tested, and run.

`bert.py`, `mlm.py` and `nsp.py` need only PyTorch and work alone when copied. The other modules train them.
"""

import os
import signal
import sys
from pathlib import Path
from types import FrameType

# PyTorch's threads by default spin while they wait for each other. Where another program wants one of
# the cores, each spin holds up the very thread that is waited for, and training runs several times
# slower than with threads that sleep. This has to be said before PyTorch is loaded, and a value that you
# set yourself stays.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")


def stop_before_it_began(number: int, frame: FrameType | None) -> None:
    """Ends the process with one line. Nothing has been written yet that would have to be closed."""
    os.write(2, b"\nstopped before it began\n")
    os._exit(130)


# PyTorch takes seconds to load, and a Ctrl-C among its files would end in fifty lines of them. In a program
# of ours it is answered so until `bad_input_ends_here` begins. Whoever imports this package into a program of
# their own keeps their own answer. `-m` stands there while Python looks for `-m labml_bert.fill_mask`.
EXPERIMENTS = Path(__file__).parent.parent / "experiments"
if sys.argv[:1] == ["-m"] or (sys.argv and Path(sys.argv[0]).absolute().parent == EXPERIMENTS):
    try:
        if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            signal.signal(signal.SIGINT, stop_before_it_began)
    except ValueError:
        # Only the main thread may.
        pass
