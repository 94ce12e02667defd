"""
# The steps of the course, as a table

The chapter on the course lists its steps. The list comes from the course itself.
"""

from labml_bert.course.track import STEPS


def course_table() -> str:
    """Each step with its title, its function and the number of its known mistakes, as a Markdown table."""
    rows = ["| | step | function | file | known mistakes |", "|---:|---|---|---|---:|"]
    for number, step in enumerate(STEPS, 1):
        title = f"[{step.title}]({step.chapter}.md)"
        file = f"[`{step.file}`](labml_bert/{step.file.removesuffix('.py')}.md)"
        rows.append(f"| {number} | {title} | `{step.function}` | {file} | {len(step.mistakes)} |")
    return "\n".join(rows)


def course_steps() -> int:
    """The number of steps."""
    return len(STEPS)


def course_mistakes() -> int:
    """The number of known mistakes in all steps together."""
    return sum(len(step.mistakes) for step in STEPS)
