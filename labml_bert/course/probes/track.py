"""
# All checks

The check of each step of the track, by the step's name.
"""

from labml_bert.course.compare import Probe
from labml_bert.course.probes import chapters, encoder, masking, modern, pairs, training

PROBES: dict[str, Probe] = (
    masking.PROBES | encoder.PROBES | training.PROBES | pairs.PROBES | modern.PROBES | chapters.PROBES
)
