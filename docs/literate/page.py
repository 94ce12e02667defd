"""
# The page of a source file

Markdown that any generator with the usual extensions can build: headings stand outside the rows, so
that search and the table of contents see them; a row is a `div` with prose and code side by side.
"""

import json
from collections.abc import Callable

import nbformat
from markupsafe import Markup
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

from docs.literate.highlight import line_bodies, numbered, row_code
from docs.literate.names import Source, Sources, relative, resolve
from docs.literate.prose import names_in_file, prepared
from docs.literate.rows import PageError, Row
from docs.literate.templates import render


def front_matter(**values: object) -> str:
    """The lines between `---` at the top of a page."""
    return "---\n" + "".join(f"{key}: {json.dumps(value)}\n" for key, value in values.items()) + "---\n\n"


def heading(row: Row) -> str:
    """The heading of a row, with an anchor that no later edit moves."""
    return f"{'#' * row.level} {row.heading} {{#{row.name}}}\n\n" if row.heading else ""


def copy_button(first: int, last: int, what: str, label: str = "Copy") -> Markup:
    """A button that copies lines of this page."""
    return render("copy_button.html", first=first, last=last, what=what, label=label)


def tools(source: Source) -> str:
    """What can be done with the file, right below its title."""
    name = source.path.rpartition("/")[2]
    count = len(source.text.splitlines())
    bar = render(
        "tools.html",
        path=source.path,
        name=name,
        count=count,
        copy=copy_button(1, count, f"file {name}", "Copy file"),
        notebook=name.replace(".py", ".ipynb") if name.endswith(".py") else "",
    )
    return f"{bar}\n\n"


def source_page(source: Source, sources: Sources, after: str = "") -> str:
    """
    ## File to page

    `sources` are all files by module name, for the links between them. `after` is Markdown that
    follows the code: an experiment's recorded runs.
    """
    bodies = line_bodies(source, resolve(source, sources), source.page)
    lines = source.text.split("\n")
    find = names_in_file(source, sources)
    title = source.rows[0].heading or f"`{source.path}`"
    parts = [f"# {title} {{#{source.anchor}}}\n\n", tools(source)]
    for row in source.rows:
        if row.first > 1:
            parts.append(heading(row))
        where = f"{source.path}:{row.first}"
        prose = prepared(row.prose, source.page, find, where)
        copy = ""
        # One button for each definition that stands at the margin; its methods are part of it.
        if row.name and "." not in row.name and row.first > 1:
            copy = copy_button(row.first, row.ends, f"{row.name}, with all that belongs to it")
        parts.append(
            render(
                "row.md",
                name="" if row.heading else row.name,
                prose=Markup(prose),
                copy=copy,
                code=Markup(row_code(row, bodies, lines)),
            )
        )
    body = "".join(parts)
    meta = front_matter(
        title=source.title, layout="listing", maths='class="katex' in body, source=source.path
    )
    return meta + body + after


def excerpt(name: str, sources: Sources, page: str) -> Markup:
    """
    ## Some lines of a file, on another page

    `name` is a definition, as in `"model.loss"`, or a file with lines, as in `"model.py:30-41"`. Returns HTML
    on one line. Raises `PageError` if there are no such lines.
    """
    stem, _, rest = name.partition(".py:") if ".py:" in name else name.partition(".")
    found = next((one for one in sources.values() if one.module.rpartition(".")[2] == stem), None)
    if found is None:
        raise PageError(f"there is no source {stem}.py")
    if ".py:" in name:
        first, last = map(int, rest.split("-"))
        anchor, said = f"L{first}", set[int]()
    else:
        row = next((row for row in found.rows if row.name == rest), None)
        if row is None:
            raise PageError(f"{found.path} defines no {rest}")
        first, last, anchor = row.first, row.ends, rest
        # The chapter says what the docstring says.
        said = {n for a, b in row.folded for n in range(a, b + 1)}
    lines = found.text.split("\n")
    bodies = line_bodies(found, resolve(found, sources), page)
    home = relative(page, found.page)
    wanted = [n for n in range(first, last + 1) if n not in said]
    shown = "".join(numbered(bodies[n - 1], n, lines[n - 1], home) for n in wanted)
    return render(
        "excerpt.html",
        home=home,
        anchor=anchor,
        path=found.path,
        first=first,
        last=last,
        code=Markup(shown),
    )


def notebook(source: Source, is_program: bool = False) -> str:
    """
    ## The same rows as a notebook

    A cell of words, then a cell of code, for each definition at the margin and what follows it. The
    docstring of a definition is in the words; everything else is in the code as it stands in the file.
    The notebook of a program, which reads its command line, begins by emptying it.
    """
    lines = source.text.split("\n")
    cells: list[nbformat.NotebookNode] = []

    def cell(make: Callable[..., nbformat.NotebookNode], text: str) -> None:
        if text.strip():
            cells.append(make(text.strip("\n"), id=f"c{len(cells)}"))

    if is_program:
        cell(new_code_cell, "import sys\n\nsys.argv = sys.argv[:1]\n")
    tops = [row for row in source.rows if row.first == 1 or (row.name and "." not in row.name)]
    for row, following in zip(tops, [*tops[1:], None], strict=True):
        title = f"{'#' * row.level} {row.heading}\n\n" if row.heading else ""
        cell(new_markdown_cell, title + row.prose)
        first, last = row.first, (following.first if following else len(lines) + 1) - 1
        said = {n for a, b in row.folded for n in range(a, b + 1) if lines[a - 1].lstrip()[:1] != "#"}
        # A class that holds nothing but its docstring needs it.
        if row.name and not any(line.strip() for line in lines[max([*said, first]) : row.ends]):
            said = set()
        cell(new_code_cell, "\n".join(lines[n - 1] for n in range(first, last + 1) if n not in said))
    metadata = {
        "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
        "language_info": {"name": "python"},
    }
    book = new_notebook(cells=cells, metadata=metadata)
    nbformat.validate(book)
    return nbformat.writes(book)
