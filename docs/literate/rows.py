"""
# A Python file as rows

Where does one thought in a source file end and the next begin? A row begins at each definition and at each
comment on lines of its own. Its prose is the comment, the docstring, or both; its code is every line up to
the next row. No line is left out, and none is moved.
"""

import ast
import inspect
import io
import re
import tokenize
from dataclasses import dataclass, field
from pathlib import Path

Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


class PageError(Exception):
    """
    A mistake in a source or a chapter that its author has to fix. The message is one line: where, what, and
    how.
    """


@dataclass
class Row:
    """Lines `first` to `last`, counted from 1, inclusive."""

    first: int
    last: int = 0
    prose: str = ""
    """Markdown."""
    folded: list[tuple[int, int]] = field(default_factory=list)
    """The lines that the prose repeats: docstrings and comments."""
    name: str = ""
    """The qualified name of the row's definition, if it has one."""
    heading: str = ""
    level: int = 0
    ends: int = 0
    """The last line of the definition, which may be in a later row."""


@dataclass
class Piece:
    """Consecutive lines of prose: a docstring or a block of comments."""

    first: int
    last: int
    text: str


def comments(source: str) -> list[Piece]:
    """The blocks of comment lines; adjacent lines with the same indentation form one block."""
    pieces: list[Piece] = []
    column = -1
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type != tokenize.COMMENT or token.line[: token.start[1]].strip():
            continue
        text = re.sub(r"^# ?", "", token.string)
        if pieces and pieces[-1].last == token.start[0] - 1 and column == token.start[1]:
            pieces[-1] = Piece(pieces[-1].first, token.start[0], f"{pieces[-1].text}\n{text}")
        else:
            pieces.append(Piece(token.start[0], token.start[0], text))
        column = token.start[1]
    return pieces


def docstring(body: list[ast.stmt], index: int, source: str, path: str) -> Piece | None:
    """
    The string literal on its own at `body[index]`.

    Raises `PageError` if Python has already interpreted a backslash that the page needs.
    """
    if index >= len(body):
        return None
    node = body[index]
    if not (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)):
        return None
    if not isinstance(node.value.value, str) or node.end_lineno is None:
        return None
    literal = "\n".join(source.split("\n")[node.lineno - 1 : node.end_lineno]).strip()
    # A doubled backslash is deliberate: Python reads it as one.
    if "\\" in literal.replace("\\\\", "") and not re.match(r"[rR]", literal):
        raise PageError(f'{path}:{node.lineno}: this docstring has a backslash; write r""" in front of it')
    return Piece(node.lineno, node.end_lineno, inspect.cleandoc(node.value.value))


def find_files(folder: Path, pattern: str) -> list[Path]:
    """
    Returns the sorted files in `folder` that match `pattern`. A file is skipped if its name or that of its
    folder begins with a dot. Examples are the copies that Jupyter keeps and the locks of Emacs.
    """
    paths = (path for path in folder.glob(pattern) if path.is_file())
    return sorted(path for path in paths if "/." not in f"/{path.relative_to(folder).as_posix()}")


def read_page(path: Path) -> str:
    """Returns the text of a chapter or a script. Raises `PageError` if it isn't UTF-8."""
    try:
        return path.read_text("utf-8")
    except UnicodeDecodeError as error:
        raise PageError(f"{path}: this isn't UTF-8 ({error}); correct it") from None


def split_lines(text: str) -> list[str]:
    """The lines as Python counts them. Unlike for `str.splitlines`, a form feed doesn't end a line."""
    return text.removesuffix("\n").split("\n")


def split_heading(text: str) -> tuple[int, str, str]:
    """The level and the words of a heading on the first line (0 and empty if there is none), and the rest."""
    match = re.match(r"(#{1,6}) (.+)\n*", text)
    return (len(match[1]), match[2].strip(), text[match.end() :]) if match else (0, "", text)


def read_rows(source: str, path: str) -> list[Row]:
    """
    ## The rows of a file

    `path` is used in messages. Raises `PageError` as `docstring` does.
    """
    tree = ast.parse(source)
    above = {piece.last: piece for piece in comments(source)}
    starts: dict[int, Row] = {}

    def begin(line: int) -> Row:
        """The row that starts at `line`, or at the comment block that ends right above it."""
        comment = above.pop(line - 1, None)
        row = starts.setdefault(comment.first if comment else line, Row(comment.first if comment else line))
        if comment:
            add(row, comment)
        return row

    def add(row: Row, piece: Piece) -> None:
        row.prose = f"{row.prose}\n\n{piece.text}".strip()
        row.folded.append((piece.first, piece.last))

    def visit(body: list[ast.stmt], prefix: str, depth: int) -> None:
        for index, node in enumerate(body):
            if isinstance(node, Definition):
                row = begin(min([node.lineno, *(d.lineno for d in node.decorator_list)]))
                row.name = prefix + node.name
                row.ends = node.end_lineno or node.lineno
                words = docstring(node.body, 0, source, path)
                if words:
                    row.level, row.heading, words.text = split_heading(words.text)
                    add(row, words)
                if not row.heading and depth < 2 and not node.name.startswith("__"):
                    row.level, row.heading = 2 + depth, f"`{row.name}`"
                inside = depth + 1 if isinstance(node, ast.ClassDef) else 2
                visit(node.body, f"{row.name}.", inside)
                continue
            field_docstring = docstring(body, index + 1, source, path)
            # A field with a docstring below it, as in a named tuple.
            if isinstance(node, ast.AnnAssign | ast.Assign) and field_docstring:
                target = node.target if isinstance(node, ast.AnnAssign) else node.targets[0]
                row = begin(node.lineno)
                row.name = prefix + ast.unparse(target)
                row.ends = node.end_lineno or node.lineno
                add(row, field_docstring)
            for part in ("body", "orelse", "finalbody"):
                visit(getattr(node, part, []), prefix, max(depth, 2))

    opening = starts.setdefault(1, Row(1))
    words = docstring(tree.body, 0, source, path)
    if words:
        opening.level, opening.heading, words.text = split_heading(words.text)
        add(opening, words)
    visit(tree.body, "", 0)
    for piece in list(above.values()):
        add(starts.setdefault(piece.first, Row(piece.first)), piece)

    rows = [starts[line] for line in sorted(starts)]
    count = len(split_lines(source))
    for row, following in zip(rows, [*(row.first for row in rows[1:]), count + 1], strict=True):
        row.last = following - 1
    used_names: set[str] = set()
    for row in rows:
        # A property and its setter share a name, but an anchor must be unique.
        row.name = "" if row.name in used_names else row.name
        used_names.add(row.name)
    return rows
