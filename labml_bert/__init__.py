"""
BERT and masked language modeling: annotated, tested, and run.

`bert.py`, `mlm.py` and `nsp.py` need only PyTorch and work alone when copied. The other modules train them.
"""

import os

# By default PyTorch's threads spin while they wait for each other. If another program wants one of the
# cores, each spin delays the very thread that is waited for, and training runs several times slower than
# with threads that sleep. It must be set before PyTorch is imported; a value that you set yourself stays.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
