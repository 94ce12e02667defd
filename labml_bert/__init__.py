"""
BERT and masked language modelling: annotated, tested, and run.

`bert.py` and `mlm.py` need only PyTorch and work alone when copied. The other modules train them.
"""
