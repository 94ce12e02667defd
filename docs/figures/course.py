"""
# The steps of the course on the site

The chapter on the course lists its steps, and each definition that is a step links to that chapter. Both come
from the course itself.
"""

import posixpath

from docs.literate.names import Source
from labml_bert.course.track import STEPS


def course_table() -> str:
    """Each step with its title, its function and the number of its known mistakes, as a Markdown table."""
    rows = ["| number | step | function | file | known mistakes |", "|---:|---|---|---|---:|"]
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


def course_notes(source: Source) -> dict[str, str]:
    """A link to the chapter for each step that is in a source file, by the name of the definition."""
    chapter = posixpath.relpath("course.md", posixpath.dirname(source.page))
    return {
        step.function: f"[Write this yourself]({chapter}): it's step {number} of the course."
        for number, step in enumerate(STEPS, 1)
        if f"labml_bert/{step.file}" == source.path
    }
