"""
# The steps of the course on the site

The chapter on the course lists its steps, and each definition that is a step links to that chapter. The steps
are also a notebook. All of this comes from the course itself.
"""

import posixpath

from nbformat.v4 import new_code_cell, new_markdown_cell

from docs.literate.names import Source
from docs.literate.page import notebook_text
from docs.literate.prose import wide
from labml_bert.course.source import read_reference, remove_bodies, whole_function
from labml_bert.course.track import STEPS, STEPS_TO_TRAIN

NOTEBOOK = """\
# Write BERT yourself

Each cell has a function without its body. Write the body and run the cell. The cell writes your code into a
file in the folder `my_bert`, runs it next to the original, and says what is different. Do the steps in any
order. To train your own model, you need all of the steps that come before the training.
"""


def course_table() -> str:
    """Each step with its title, its function and the number of its known mistakes, as a Markdown table."""
    rows = ["| number | step | function | file | known mistakes |", "|---:|---|---|---|---:|"]
    for number, step in enumerate(STEPS, 1):
        title = f"[{step.title}]({step.chapter}.md)"
        file = f"[`{step.file}`](labml_bert/{step.file.removesuffix('.py')}.md)"
        rows.append(f"| {number} | {title} | `{step.function}` | {file} | {len(step.mistakes)} |")
    return wide("\n".join(rows))


def course_steps() -> int:
    """The number of steps."""
    return len(STEPS)


def course_mistakes() -> int:
    """The number of known mistakes in all steps together."""
    return sum(len(step.mistakes) for step in STEPS)


def course_exercise(function: str, what: str) -> str:
    """A link from an exercise to its step in the course. `what` is the result of the step's `function`."""
    name = f"course/exercises.py:{function}"
    number = next(number for number, step in enumerate(STEPS, 1) if step.name == name)
    return f"[Write a function that computes {what}](course.md) (step {number} of the course)."


def course_notebook(setup: str) -> str:
    """
    All steps as a notebook: for each, what to write, and a cell with the empty function. `setup` is code that
    installs the project, and may be empty.
    """
    cells = [new_markdown_cell(NOTEBOOK), new_code_cell(f"{setup}%load_ext labml_bert.course.notebook")]
    for number, step in enumerate(STEPS, 1):
        exercise = remove_bodies(read_reference(step.file), [s for s in STEPS if s.file == step.file])
        cells += [
            new_markdown_cell(
                f"## {number}. {step.title}\n\n`{step.function}` in `{step.file}`: {step.task}."
            ),
            new_code_cell(f"%%step {number}\n{whole_function(exercise, step.function)}"),
        ]
        if step == STEPS_TO_TRAIN[-1]:
            # The shell's `python` may differ from the notebook's.
            train = 'import sys\n\n%cd -q my_bert\n!"{sys.executable}" -m labml_bert.course train\n%cd -q ..'
            cells += [new_markdown_cell("## Train your own model"), new_code_cell(train)]
    return notebook_text(cells)


def course_notes(source: Source) -> dict[str, str]:
    """A link to the chapter for each step that is in a source file, by the name of the definition."""
    chapter = posixpath.relpath("course.md", posixpath.dirname(source.page))
    return {
        step.function: f"[Write this yourself]({chapter}) (step {number} of the course)."
        for number, step in enumerate(STEPS, 1)
        if f"labml_bert/{step.file}" == source.path
    }
