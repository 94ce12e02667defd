"""
# Templates

HTML is written by Jinja2 with autoescaping, so a text that comes from a record or a file stays text. What is
HTML already is `Markup`, and only that is left as it is.
"""

import re
from collections.abc import Callable
from pathlib import Path

import jinja2
from markupsafe import Markup

HERE = Path(__file__).parent / "templates"


class OneLineLoader(jinja2.FileSystemLoader):
    """
    Reads templates. Those that end in `.html` lose their line breaks and indentation, as Markdown would end a
    block of HTML at an empty line.
    """

    def get_source(
        self, environment: jinja2.Environment, template: str
    ) -> tuple[str, str, Callable[[], bool]]:
        text, path, is_fresh = super().get_source(environment, template)
        return re.sub(r"\n\s*", "", text) if template.endswith(".html") else text, path, is_fresh


def renderer(*folders: Path) -> Callable[..., Markup]:
    """A function that fills in a template from `folders` or from here: `render("figure.html", title="A")`."""
    environment = jinja2.Environment(
        loader=OneLineLoader([*folders, HERE]),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        # `{#` begins the anchor of a heading.
        comment_start_string="<!--#",
        comment_end_string="#-->",
    )

    def fill_in(template: str, /, **values: object) -> Markup:
        return Markup(environment.get_template(template).render(values))

    return fill_in


render = renderer()
