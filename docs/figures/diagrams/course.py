"""
# A diagram of the course

How the check of a step finds a known mistake.
"""

import torch

from docs.figures.diagrams.drawing import Drawing, Words
from labml_bert.course.run_probes import load
from labml_bert.course.source import make_mistake, read_reference
from labml_bert.course.track import STEPS


def check(d: Drawing) -> Words:
    """The same input for your code, the original and a known mistake, and what comes out."""
    step = STEPS[0]
    mistake = next(mistake for mistake in step.mistakes if mistake.name == "0/0 without labels")
    original, faulty = read_reference(step.file), make_mistake(step, mistake)
    name = f"{'' if d.is_narrow else 'a known '}mistake:\n" + mistake.name.replace(
        " labels", "\nlabels" if d.is_narrow else " labels"
    )
    columns = {"your code": faulty, "the original": original, name: faulty}
    gap, height, values = 14, 68 if d.is_narrow else 52, []
    width = (d.width - gap * (len(columns) - 1)) / len(columns)
    source = d.box(0, 0, d.width, 34, "the same input: no position has a label", "token")
    for i, (words, code) in enumerate(columns.items()):
        loss = load(code, step, step.file).masked_lm_loss(torch.zeros(2, 5), torch.tensor([-100, -100]))
        values.append(f"{loss:g}")
        box = d.box(i * (width + gap), 66, width, height, words, "group")
        kind = "masked" if values[i] == "nan" else "token"
        result = d.box(box.x, box.bottom + 30, width, 34, values[i], kind, text_kind="mono")
        d.drop(box.center[0], source.bottom, box.y)
        d.down(box, result)
        if code == faulty:
            d.drop(result.center[0], result.bottom, result.bottom + 30)
    message = mistake.message.partition(". ")[0] + "."
    if d.is_narrow:
        message = message.replace(", which", ",\nwhich")
    d.box(0, height + 160, d.width, height - 16, message, "head")
    return Words(
        "How a step is checked",
        "The same input, in which no position has a label, goes to three pieces of code: yours, the "
        f"original, and the original with a known mistake, “{mistake.name}”. The losses are {values[0]}, "
        f"{values[1]} and {values[2]}. Arrows lead from the first and the last, which are the same, to the "
        f"answer: {message}",
        "Your code gives a different result from the original, and the same result as a known "
        "mistake. So the check prints the message of that mistake.",
    )
