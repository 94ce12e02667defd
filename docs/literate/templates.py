"""
# Templates

Jinja2 renders HTML with autoescaping, so a text from a record or a file stays text. Only `Markup`, which is
HTML already, is inserted as it is.
"""

import re
from collections.abc import Callable
from pathlib import Path

import jinja2
from markupsafe import Markup

HERE = Path(__file__).parent / "templates"


class OneLineLoader(jinja2.FileSystemLoader):
    """
    Loads templates. An `.html` template loses its line breaks and indentation, because in Markdown a blank
    line would end a block of HTML.
    """

    def get_source(
        self, environment: jinja2.Environment, template: str
    ) -> tuple[str, str, Callable[[], bool]]:
        text, path, is_fresh = super().get_source(environment, template)
        return re.sub(r"\n\s*", "", text) if template.endswith(".html") else text, path, is_fresh


def renderer(*folders: Path) -> Callable[..., Markup]:
    """
    Returns a function that renders a template from `folders` or from here: `render("figure.html",
    title="A")`.
    """
    environment = jinja2.Environment(
        loader=OneLineLoader([*folders, HERE]),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        # Not Jinja2's `{#`, which starts the anchor of a heading here.
        comment_start_string="<!--#",
        comment_end_string="#-->",
    )

    def fill_in(template: str, /, **values: object) -> Markup:
        return Markup(environment.get_template(template).render(values))

    return fill_in


render = renderer()
