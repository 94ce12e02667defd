"""
BERT and masked language modelling: annotated, tested, and run.

`bert.py`, `mlm.py` and `nsp.py` need only PyTorch and work alone when copied. The other modules train them.
"""

import os

# PyTorch's threads by default spin while they wait for each other. Where another program wants one of
# the cores, each spin holds up the very thread that is waited for, and training runs several times
# slower than with threads that sleep. This has to be said before PyTorch is loaded, and a value that you
# set yourself stays.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
