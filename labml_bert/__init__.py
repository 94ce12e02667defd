"""
BERT and masked language modeling: annotated, tested, and run.

`bert.py`, `mlm.py`, `nsp.py` and `modern.py` need only PyTorch, and each one works alone in your own project.
The other modules are for training and using the models.

The commands check everything you type and every file they read. Python functions check less, so pass them
arguments that fit their type hints and docstrings.
"""

import os

# By default, PyTorch's threads spin while they wait for each other. If another program wants one of the
# cores, the spinning delays the very thread that the others wait for, and training can be several times
# slower than with threads that sleep. The variable must be set before PyTorch is imported. A value that you
# set yourself is kept.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
