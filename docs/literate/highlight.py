"""
# The code of a page

Pygments tokenizes the whole file at once, so that a string that spans several rows keeps its color. The
result is then cut into lines, and each line gets its own number and link. The number is an attribute that the
style sheet displays, so it can be neither selected nor copied.
"""

import ast
import html
import re
import textwrap
from collections.abc import Iterator
from itertools import groupby
from operator import itemgetter
from typing import Any

from markupsafe import Markup
from pygments.lexers import JavascriptLexer, PythonLexer
from pygments.token import Token

from docs.literate.names import Position, Source, Symbol
from docs.literate.rows import Row
from docs.literate.templates import render

# Pygments distinguishes a hundred kinds of tokens; a quiet page needs only these.
CLASSES = (
    (Token.Comment, "c"),
    (Token.Literal.String.Doc, "c"),
    (Token.Literal.String.Interpol, ""),
    (Token.Literal.String, "s"),
    (Token.Literal.Number, "m"),
    (Token.Keyword, "k"),
    (Token.Operator.Word, "k"),
    (Token.Name.Function, "f"),
    (Token.Name.Class, "f"),
    (Token.Name.Decorator, "d"),
)
SHAPE = re.compile(r"(#|//) (\([A-Z0-9][^()]*\))$")


def escape(text: str) -> str:
    """
    Escapes code for HTML. A tab becomes a character reference, because Markdown would turn it into spaces.
    """
    return html.escape(text, quote=False).replace("\t", "&#9;")


def token_html(kind: Any, text: str, symbol: Symbol | None, page: str) -> tuple[str, str]:
    """The CSS class and the HTML of a token within one line."""
    shape = SHAPE.match(text)
    if kind in Token.Comment and shape:
        return "", f'<span class="shape"><i>{shape[1]} </i>{escape(shape[2])}</span>'
    if symbol:
        return "", symbol.link(page, escape(text))
    return next((name for base, name in CLASSES if kind in base), "") if text.strip() else "", escape(text)


def line_bodies(source: Source, links: dict[Position, Symbol], page: str) -> list[str]:
    """The HTML of each line of the file, for the page at `page`, without line numbers."""
    lines: list[list[tuple[str, str]]] = [[]]
    column = 0
    language = JavascriptLexer if source.path.endswith(".js") else PythonLexer
    lexer = language(ensurenl=False, stripnl=False)
    for _, kind, value in lexer.get_tokens_unprocessed(source.text):
        for index, part in enumerate(value.split("\n")):
            if index:
                lines.append([])
                column = 0
            if part:
                lines[-1].append(token_html(kind, part, links.get((len(lines), column)), page))
                column += len(part)
    # A string is three tokens (quotes, contents, quotes); merge neighbors of one class into one span.
    groups = (
        [(name, "".join(t for _, t in g)) for name, g in groupby(line, itemgetter(0))] for line in lines
    )
    return [
        "".join(f'<span class="{name}">{text}</span>' if name else text for name, text in line)
        for line in groups
    ]


INDENT = re.compile(r'^((?:<span class="\w+">)?)( +)(?=\S)')


def indent_style(line: str) -> str:
    """The indentation of a line, for the style sheet: a wrapped line continues below its own start."""
    indent = len(line) - len(line.lstrip(" "))
    return f' style="--i:{indent}"' if indent and line.strip() else ""


def numbered_line(body: str, number: int, line: str, home: str = "") -> str:
    """
    A line with its number and its link. On another page, an excerpt links to the line on its `home`, the page
    of the file.
    """
    # The indentation gets an element of its own, whose width the style sheet sets.
    body = INDENT.sub(r'<i class="in">\2</i>\1', body)
    name = "" if home else f'id="L{number}" '
    link = f'<a {name}href="{home}#L{number}" data-n="{number}" aria-label="Line {number}" tabindex="-1"></a>'
    return f'<span class="l"{indent_style(line)}>{link}{body}\n</span>'


def blocks(row: Row, lines: list[str]) -> Iterator[tuple[int, int, str]]:
    """
    Cuts a row into blocks: `lines`, `fold` for what the prose repeats, `blank` for empty lines at the end.
    """
    at = row.first
    for first, last in sorted(row.folded):
        if at < first:
            yield at, first - 1, "lines"
        yield first, last, "fold"
        at = last + 1
    end = row.last
    while end >= at and not lines[end - 1].strip():
        end -= 1
    if at <= end:
        yield at, end, "lines"
    if end < row.last:
        yield end + 1, row.last, "blank"


def only_imports(lines: list[str]) -> bool:
    """Whether the lines hold only imports, comments and blank lines."""
    try:
        body = ast.parse(textwrap.dedent("\n".join(lines))).body
    except SyntaxError:
        return False
    return all(isinstance(node, ast.Import | ast.ImportFrom) for node in body)


def row_code(row: Row, bodies: list[str], lines: list[str], searches_bodies: bool) -> str:
    """
    ## The right-hand side of a row

    Docstrings and comments are all there but folded, because the left-hand side shows them as prose. Search
    finds a definition in every file, and what is inside only if `searches_bodies` is set.
    """
    parts = []
    first_lines = next((first for first, _, kind in blocks(row, lines) if kind == "lines"), None)
    for first, last, kind in blocks(row, lines):
        text = "".join(numbered_line(bodies[n - 1], n, lines[n - 1]) for n in range(first, last + 1))
        if kind == "lines":
            # The Tab key stops once in each block; from there, the arrow keys move between lines.
            text = text.replace(' tabindex="-1"', "", 1)
        # Searching for a name should find its definition, not every import of it.
        is_definition = bool(row.name) and first == first_lines
        is_code = is_definition or searches_bodies
        is_searched = kind == "fold" or (is_code and not only_imports(lines[first - 1 : last]))
        exclude = "" if is_searched else " data-search-exclude"
        block = f'<pre class="{kind}"{exclude}><code>{text}</code></pre>'
        if kind == "fold":
            begins = lines[first - 1].lstrip()
            mark = next((sign for sign in ("#", "//") if begins.startswith(sign)), '"""')
            span = f"line {first}" if first == last else f"lines {first} to {last}"
            block = render(
                "fold.html",
                first=first,
                hang=Markup(indent_style(lines[first - 1])),
                mark=mark,
                span=span,
                block=Markup(block),
            )
        parts.append(block)
    return "".join(parts)
