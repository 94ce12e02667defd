"""
# A JavaScript file as rows

The model that runs in the browser has its own page, beside the Python that it mirrors. Its file is read line
by line, without a parser: a row begins at each comment on lines of its own and at each top-level definition.
The prose of a row is its comment, which is Markdown, as in a docstring.
"""

import ast
import re
from pathlib import Path

from docs.literate.names import Source, Symbol, summary
from docs.literate.rows import PageError, Row, read_page, split_heading, split_lines

COMMENT = re.compile(r"( *)// ?(.*)")
# A class or a function has no indentation; a method is indented by two spaces.
DEFINITION = re.compile(
    r"(?:export )?(?:async )?(?:class|function) (\w+)|  (?:static |async )*(\w+)\(.*\) \{$"
)


def read_script(root: Path, path: str) -> Source:
    """Reads the file at `path` under `root`. Raises `PageError` if its page would be wrong."""
    text = read_page(root / path)
    # JavaScript has no Python syntax tree to resolve names in.
    source = Source(path, text, script_rows(text, path), ast.Module([], []))
    for row in source.rows:
        if row.name:
            source.symbols[row.name] = Symbol(source.page, row.name, summary(row.prose))
    return source


def script_rows(text: str, path: str) -> list[Row]:
    """
    The rows of a file. A comment right above a definition belongs to it. Raises `PageError` if a definition
    has no end.
    """
    lines = split_lines(text)
    rows = [Row(1)]
    owner = indent = ""
    for number, line in enumerate(lines, 1):
        comment, definition = COMMENT.fullmatch(line), DEFINITION.match(line)
        above = COMMENT.fullmatch(lines[number - 2]) if number > 1 else None
        if comment:
            if not above or above[1] != comment[1]:
                if number > 1:
                    rows.append(Row(number))
                rows[-1].folded = [(number, number)]
            row = rows[-1]
            row.prose = f"{row.prose}\n{comment[2]}".lstrip("\n")
            row.folded = [(row.folded[0][0], number)]
        elif definition and (above or definition[1]):
            if not above:
                rows.append(Row(number))
            if definition[1]:
                owner, indent = definition[1], ""
                rows[-1].name = owner
            else:
                rows[-1].name, indent = f"{owner}.{definition[2]}", "  "
            try:
                rows[-1].ends = number if line.endswith("}") else lines.index(f"{indent}}}", number) + 1
            except ValueError:
                problem = "this definition needs a line with only its last brace"
                raise PageError(f"{path}, line {number}: {problem}") from None
    for row, following in zip(rows, [*(row.first for row in rows[1:]), len(lines) + 1], strict=True):
        row.last = following - 1
        row.level, row.heading, row.prose = split_heading(row.prose)
    return rows
