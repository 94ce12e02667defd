"""The verdict of the course on a body that a test has written."""

import textwrap

import torch

from labml_bert.course.run_probes import run_probe
from labml_bert.course.source import body_lines, find_function, read_reference, restore_others
from labml_bert.course.step import Verdict
from labml_bert.course.track import STEPS


def check_body(name: str, body: str) -> Verdict:
    """Checks a step whose function has this body, with any indentation. Keeps PyTorch's random state."""
    (step,) = [step for step in STEPS if step.name == name]
    text = read_reference(step.file)
    node = find_function(restore_others(text, step, ()), step.function)[1]
    first, last = body_lines(node)
    lines = text.split("\n")
    lines[first:last] = textwrap.indent(textwrap.dedent(body), " " * node.body[0].col_offset).split("\n")
    state = torch.get_rng_state()
    verdict = run_probe(step, restore_others("\n".join(lines), step, STEPS))
    torch.set_rng_state(state)
    return verdict
