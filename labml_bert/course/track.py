"""
# The track

All steps, in the order in which you write them.
"""

from labml_bert.course import (
    attention,
    chapters,
    data,
    encoder,
    head,
    masking,
    modern,
    pairs,
    rotary,
    training,
)
from labml_bert.course.step import Step

# With these steps, you can train your own model. The others aren't part of it.
STEPS_TO_TRAIN: tuple[Step, ...] = (
    *masking.STEPS,
    *head.STEPS,
    *attention.STEPS,
    *encoder.STEPS,
    *data.STEPS,
    *training.STEPS,
)
STEPS: tuple[Step, ...] = (*STEPS_TO_TRAIN, *pairs.STEPS, *rotary.STEPS, *modern.STEPS, *chapters.STEPS)
