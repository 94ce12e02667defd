"""
# The page of a source file

The page is Markdown that any generator with the usual extensions can build. Headings are outside the rows,
where search and the table of contents can see them. A row is a `div` with the prose and the code side by
side.
"""

import ast
import json
import re
import textwrap
from collections.abc import Callable, Mapping

import nbformat
from markupsafe import Markup
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

from docs.literate.highlight import line_bodies, numbered_line, row_code
from docs.literate.names import Source, Sources, description, relative, resolve
from docs.literate.prose import names_in_file, render_prose
from docs.literate.rows import PageError, Row, split_lines
from docs.literate.samples import SAMPLE
from docs.literate.templates import render


def front_matter(**values: object) -> str:
    """YAML front matter: the lines between `---` at the top of a page."""
    return "---\n" + "".join(f"{key}: {json.dumps(value)}\n" for key, value in values.items()) + "---\n\n"


def heading(row: Row) -> str:
    """The heading of a row, with an explicit anchor, so that links survive later edits."""
    return f"{'#' * row.level} {row.heading} {{#{row.name}}}\n\n" if row.heading else ""


def copy_button(ranges: list[tuple[int, int]], what: str, label: str = "Copy") -> Markup:
    """A button that copies lines of this page. `ranges` are the first and last lines of what it copies."""
    lines = ",".join(f"{first}-{last}" for first, last in ranges)
    return render("copy_button.html", lines=lines, what=what, label=label)


def without_docstrings(text: str) -> list[tuple[int, int]]:
    """
    The ranges of lines of a Python file that aren't docstrings. A definition with nothing but a docstring
    keeps it, because it needs a body.
    """
    docstrings, count = set[int](), len(split_lines(text))
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            strings = [
                range(one.lineno, (one.end_lineno or one.lineno) + 1)
                for one in node.body
                if isinstance(one, ast.Expr)
                and isinstance(one.value, ast.Constant)
                and isinstance(one.value.value, str)
            ]
            if len(strings) < len(node.body):
                docstrings.update(*strings)
    kept = [n for n in range(1, count + 1) if n not in docstrings]
    starts = [n for n in kept if n == 1 or n - 1 in docstrings]
    ends = [n for n in kept if n == count or n + 1 in docstrings]
    return [*zip(starts, ends, strict=True)]


def tools(source: Source, notebook_links: Mapping[str, str]) -> str:
    """The toolbar below the title: copy, download, notebook."""
    name = source.path.rpartition("/")[2]
    count = len(split_lines(source.text))
    buttons = [copy_button([(1, count)], f"file {name}", "Copy file")]
    if name.endswith(".py"):
        kept = without_docstrings(source.text)
        buttons.append(copy_button(kept, f"without docstrings: file {name}", "Copy without docstrings"))
    bar = render(
        "tools.html",
        path=source.path,
        name=name,
        count=count,
        buttons=buttons,
        notebook_links=notebook_links,
    )
    return f"{bar}\n\n"


def beside_prose(rows: list[Row], notes: Mapping[str, str]) -> list[list[Row]]:
    """
    Each row that explains something, followed by the rows that don't. Their code continues in the same
    column, so an `__init__` without a docstring stands beside the explanation of its class.
    """
    groups: list[list[Row]] = []
    for row in rows:
        if groups and row.name and not (row.prose or row.heading or row.name in notes):
            groups[-1].append(row)
        else:
            groups.append([row])
    return groups


def source_page(
    source: Source,
    sources: Sources,
    after: str = "",
    searched: bool = True,
    notebook_links: Mapping[str, str] | None = None,
    notes: Mapping[str, str] | None = None,
    pictures: Mapping[str, Markup] | None = None,
) -> str:
    """
    ## File to page

    `sources` are all files by module name, for the links between them. `after` is Markdown that follows the
    code: the recorded runs of an experiment. Unless `searched`, search leaves the page out. `notebook_links`
    are links to the file's notebook, by their labels; the first one downloads it. `notes` are Markdown that
    follows the explanation of a definition. `pictures` are figures below its code; the first row has an empty
    name. Raises `PageError` if there is a picture for a name that the file doesn't define.
    """
    bodies = line_bodies(source, resolve(source, sources), source.page)
    lines = source.text.split("\n")
    find = names_in_file(source, sources)
    packages = {module.partition(".")[0] for module in sources}
    # Readers search the files that they can copy: those at the top of a package that import nothing of the
    # project. The bodies of all the others would double the index.
    imports_project = any(name.partition(".")[0] in packages for name in source.imports)
    stands_alone = source.module.count(".") == 1 and not imports_project
    title = source.rows[0].heading or f"`{source.path}`"
    parts = [f"# {title} {{#{source.anchor}}}\n\n", tools(source, notebook_links or {})]
    pictures, notes = dict(pictures or {}), notes or {}
    for row, *unexplained in beside_prose(source.rows, notes):
        if row.first > 1:
            parts.append(heading(row))
        where = f"{source.path}:{row.first}"
        note = notes.get(row.name, "")
        prose = render_prose(f"{row.prose}\n\n{note}" if note else row.prose, source.page, find, where)
        picture = Markup()
        for name in [one.name for one in (row, *unexplained) if one.name or one.first == 1]:
            picture += pictures.pop(name, Markup())
        copy = ""
        # Only top-level definitions get a copy button, which copies a class with its methods.
        if row.name and "." not in row.name and row.first > 1:
            copy = copy_button([(row.first, row.ends)], f"{row.name} and everything inside it")
        code = row_code(row, bodies, lines, stands_alone)
        for one in unexplained:
            # On its own line, because Markdown would read a `<div>` after a `</div>` as text.
            code += f'\n<div id="{one.name}">{row_code(one, bodies, lines, stands_alone)}</div>'
        parts.append(
            render(
                "row.md",
                name="" if row.heading else row.name,
                prose=Markup(prose),
                copy=copy,
                code=Markup(code),
                picture=picture,
            )
        )
    if pictures:
        raise PageError(f"{source.path} defines no {', '.join(pictures)}, but has a picture for it")
    body = "".join(parts)
    meta = front_matter(
        title=source.title,
        description=description(source.rows[0].prose),
        layout="listing",
        maths='class="katex' in body,
        source=source.path,
        # Search should list chapters first: they explain more than a file that mentions the same words.
        search={"boost": 0.3 if stands_alone else 0.03} if searched else {"exclude": True},
    )
    return meta + body + after


def excerpt(name: str, sources: Sources, page: str) -> Markup:
    """
    ## Some lines of a file, on another page

    `name` is a definition, as in `"model.loss"`, or a file with a range of lines, as in `"model.py:30-41"`.
    Returns HTML on one line. Raises `PageError` if there are no such lines.
    """
    stem, _, rest = name.partition(".py:") if ".py:" in name else name.partition(".")
    source = next((source for source in sources.values() if source.module.rpartition(".")[2] == stem), None)
    if source is None:
        raise PageError(f"there is no source {stem}.py")
    if ".py:" in name:
        first, last = map(int, rest.split("-"))
        anchor, folded = f"L{first}", set[int]()
    else:
        row = next((row for row in source.rows if row.name == rest), None)
        if row is None:
            raise PageError(f"{source.path} defines no {rest}")
        first, last, anchor = row.first, row.ends, rest
        # The chapter explains the code itself, so leave the docstring out.
        folded = {n for a, b in row.folded for n in range(a, b + 1)}
    lines = source.text.split("\n")
    bodies = line_bodies(source, resolve(source, sources), page)
    home = relative(page, source.page)
    numbers = [n for n in range(first, last + 1) if n not in folded]
    code = "".join(numbered_line(bodies[n - 1], n, lines[n - 1], home) for n in numbers)
    return render(
        "excerpt.html",
        home=home,
        anchor=anchor,
        path=source.path,
        first=first,
        last=last,
        code=Markup(code),
    )


def notebook(source: Source, setup: str = "") -> str:
    """
    ## The same rows as a notebook

    Each top-level definition, with what follows it, becomes a Markdown cell and a code cell. A definition's
    docstring moves to the Markdown cell; everything else stays in the code, as it is in the file. `setup` is
    the code of a cell that comes first.
    """
    lines = source.text.split("\n")
    cells: list[nbformat.NotebookNode] = []

    def cell(make: Callable[..., nbformat.NotebookNode], text: str) -> None:
        if text.strip():
            cells.append(make(text.strip("\n")))

    cell(new_code_cell, setup)
    tops = [row for row in source.rows if row.first == 1 or (row.name and "." not in row.name)]
    for row, following in zip(tops, [*tops[1:], None], strict=True):
        title = f"{'#' * row.level} {row.heading}\n\n" if row.heading else ""
        cell(new_markdown_cell, title + row.prose)
        first, last = row.first, (following.first if following else len(lines) + 1) - 1
        leave_out = {n for a, b in row.folded for n in range(a, b + 1) if lines[a - 1].lstrip()[:1] != "#"}
        # A class with nothing but a docstring needs it as its body.
        if row.name and not any(line.strip() for line in lines[max([*leave_out, first]) : row.ends]):
            leave_out = set()
        cell(new_code_cell, "\n".join(lines[n - 1] for n in range(first, last + 1) if n not in leave_out))
    return notebook_text(cells)


def chapter_notebook(text: str, setup: str) -> str:
    """
    ## The code of a chapter as a notebook

    Each sample becomes a code cell, below the headings that come before it. `text` is the chapter's file, and
    `setup` is the code of the first cell.
    """
    cells, end = [new_code_cell(setup.strip("\n"))], 0
    for match in SAMPLE.finditer(text):
        # In code, a line that starts with # isn't a heading.
        prose = re.sub(r"^```.*?^```", "", text[end : match.start()], flags=re.S | re.M)
        headings = re.findall(r"^#+ [^{\n]+", prose, re.M)
        if headings:
            cells.append(new_markdown_cell("\n\n".join(headings)))
        cells.append(new_code_cell(textwrap.dedent(match["code"]).strip("\n")))
        end = match.end()
    return notebook_text(cells)


def notebook_text(cells: list[nbformat.NotebookNode]) -> str:
    """A notebook with these cells, as the text of its file."""
    metadata = {
        "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
        "language_info": {"name": "python"},
    }
    # Random ids would make every build different.
    for i, cell in enumerate(cells):
        cell.id = f"c{i}"
    book = new_notebook(cells=cells, metadata=metadata)
    nbformat.validate(book)
    return nbformat.writes(book)
