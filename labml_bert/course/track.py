"""
# The track

All steps, in the order in which you write them.
"""

from labml_bert.course import encoder, masking, modern, pairs, training
from labml_bert.course.step import Step

STEPS: tuple[Step, ...] = (*masking.STEPS, *encoder.STEPS, *training.STEPS, *pairs.STEPS, *modern.STEPS)
