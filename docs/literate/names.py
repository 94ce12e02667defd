"""
# What a name in the code refers to

If you meet `TokenMasker` in an experiment, you want a link to its definition. For each name in a source, this
file finds the definition in this project that it refers to. If that's unclear, the name gets no link: a wrong
link is worse than none.
"""

import ast
import html
import posixpath
import re
import tokenize
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from markupsafe import Markup

from docs.literate.rows import PageError, Row, read_rows, split_lines


@dataclass(frozen=True)
class Symbol:
    """A location in the site and one line that describes it."""

    page: str
    """The page without `.md`, such as `package/module`."""
    anchor: str
    summary: str

    def link(self, page: str, inner: str, kind: str = "ref") -> str:
        """The HTML of a link from `page` to this symbol. `inner` is the HTML inside the link."""
        tip = Markup(' data-tip="{}"').format(self.summary) if self.summary else ""
        home = relative(page, self.page)
        link = Markup('<a class="{}" href="{}#{}"{}>{}</a>')
        # Return plain `str`: the link becomes part of Markdown, and `Markup` would escape the Markdown around
        # it. Escape double underscores, because Markdown would read those of `__init__` as emphasis.
        return str(link.format(kind, home, self.anchor, tip, Markup(inner.replace("__", "&#95;&#95;"))))


def relative(page: str, target: str) -> str:
    """The address of one page relative to another, where each page is a folder of its own."""
    ends = [name.removesuffix("index").rstrip("/") or "." for name in (page, target)]
    return posixpath.relpath(ends[1], ends[0]) + "/"


def paragraphs(markdown: str) -> list[str]:
    """The paragraphs as plain text, each on one line."""
    plain = re.sub(r"\[([^]]+)\]\([^)]*\)", r"\1", markdown.strip()).replace("`", "").replace("$", "")
    return [paragraph.replace("\n", " ") for paragraph in re.split(r"\n\s*\n", plain)]


def summary(markdown: str) -> str:
    """The first sentence, as plain text, for a tooltip."""
    plain = paragraphs(markdown)[0]
    sentence = re.match(r".+?[.?](?=\s|$)", plain)
    words = sentence[0] if sentence else plain
    return "" if "|" in words or "\\" in words else words


def description(markdown: str) -> str:
    """
    What a search engine shows below the title: the sentences that the first paragraph of text begins with, as
    many as fit into 200 characters, but at least one. It's escaped for HTML, because the templates of MkDocs
    don't do that.
    """
    for paragraph in paragraphs(re.sub(r"<[^>]+>", "", markdown)):
        plain = re.sub(r"\*{1,2}(\S.*?)\*{1,2}", r"\1", paragraph)
        text = ""
        for sentence in re.findall(r"\S.*?[.?!](?=\s|$)", plain):
            if set("|\\#") & set(sentence) or (text and len(text) + len(sentence) > 200):
                break
            text = f"{text} {sentence}".lstrip()
        if text:
            return html.escape(text)
    return ""


@dataclass
class Source:
    """A file and what was parsed from it."""

    path: str
    """The path from the project's root, such as `package/module.py`."""
    text: str
    rows: list[Row]
    tree: ast.Module
    symbols: dict[str, Symbol] = field(default_factory=dict)
    """The symbols by their qualified name within the file."""

    @property
    def page(self) -> str:
        """The path of the source's page, without the extension."""
        return self.path.rpartition(".")[0]

    @property
    def module(self) -> str:
        """The name that an import uses."""
        return self.page.replace("/", ".").removesuffix(".__init__")

    @property
    def anchor(self) -> str:
        """
        The anchor of the page's top: the file name without double underscores, which Markdown would
        interpret.
        """
        return self.path.rpartition("/")[2].replace("__", "")

    @cached_property
    def imports(self) -> list[str]:
        """The modules it imports names from, including those of other projects."""
        return [n.module for n in ast.walk(self.tree) if isinstance(n, ast.ImportFrom) and n.module]

    @property
    def is_script(self) -> bool:
        """Whether the file does something when you run it, that is, whether it tests for `__main__`."""
        tests = (node.test for node in self.tree.body if isinstance(node, ast.If))
        return any("__main__" in ast.unparse(test) for test in tests)

    @property
    def title(self) -> str:
        """The heading at the top of the file, or else the path."""
        return self.rows[0].heading or self.path


def read_source(root: Path, path: str) -> Source:
    """Reads the file at `path` under `root`. Raises `PageError` if its page would be wrong."""
    try:
        text = (root / path).read_bytes().decode("utf-8")
        source = Source(path, text, read_rows(text, path), ast.parse(text))
    except (SyntaxError, UnicodeDecodeError, tokenize.TokenError, RecursionError, MemoryError) as error:
        raise PageError(f"{path}: this isn't Python code in UTF-8 ({error}); correct it") from None
    for node in source.tree.body:
        # A constant has no row, so link to its line.
        if isinstance(node, ast.Assign | ast.AnnAssign):
            for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
                if isinstance(target, ast.Name):
                    source.symbols[target.id] = Symbol(source.page, f"L{node.lineno}", "")
    for row in source.rows:
        if row.name:
            source.symbols[row.name] = Symbol(source.page, row.name, summary(row.prose))
    return source


def in_reference(source: Source, package: str) -> bool:
    """
    Whether the file has a page in the reference: all modules of the package do that others can import and
    that define a function or a class.
    """
    is_importable = not source.path.endswith(("/__init__.py", "/__main__.py"))
    has_definitions = any(
        isinstance(node, ast.ClassDef | ast.FunctionDef) and not node.name.startswith("_")
        for node in source.tree.body
    )
    return source.path.startswith(f"{package}/") and is_importable and has_definitions


Sources = dict[str, Source]
"""All sources of a project by module name."""
Position = tuple[int, int]


def imported_symbols(source: Source, sources: Sources) -> dict[str, Symbol]:
    """The names in the file that are bound by imports from this project."""
    symbols: dict[str, Symbol] = {}
    for node in ast.walk(source.tree):
        if isinstance(node, ast.ImportFrom) and node.module in sources:
            origin = sources[node.module].symbols
            for alias in node.names:
                if alias.name in origin:
                    symbols[alias.asname or alias.name] = origin[alias.name]
                    prefix = f"{alias.name}."
                    for name, symbol in origin.items():
                        if name.startswith(prefix):
                            symbols[f"{alias.asname or alias.name}.{name.removeprefix(prefix)}"] = symbol
    return symbols


def local_names(function: ast.AST) -> set[str]:
    """The local names of a function: its parameters and everything it assigns."""
    names = {node.arg for node in ast.walk(function) if isinstance(node, ast.arg)}
    stores = (node for node in ast.walk(function) if isinstance(node, ast.Name))
    return names | {node.id for node in stores if not isinstance(node.ctx, ast.Load)}


def resolve(source: Source, sources: Sources) -> dict[Position, Symbol]:
    """
    ## Names by their position

    Maps the position of each name that can be resolved, as a line (from 1) and a column (from 0, in
    characters), to its symbol.
    """
    symbols = {**imported_symbols(source, sources), **source.symbols}
    lines = split_lines(source.text)

    def position(line: int, column: int) -> Position:
        # `ast` counts columns in bytes.
        return line, len(lines[line - 1].encode()[:column].decode())

    def walk(node: ast.AST, shadows: set[str], owner: str) -> Iterator[tuple[Position, Symbol]]:
        if isinstance(node, ast.ImportFrom):
            for alias in node.names:
                if alias.name in symbols and node.module in sources:
                    yield position(alias.lineno, alias.col_offset), symbols[alias.asname or alias.name]
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load) and node.id not in shadows:
            if node.id in symbols:
                yield position(node.lineno, node.col_offset), symbols[node.id]
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.end_lineno:
            parent = owner if node.value.id == "self" else node.value.id
            symbol = symbols.get(f"{parent}.{node.attr}")
            if symbol and (node.value.id == "self" or node.value.id not in shadows):
                start = (node.end_col_offset or 0) - len(node.attr.encode())
                yield position(node.end_lineno, start), symbol
        if isinstance(node, ast.ClassDef):
            owner = f"{owner}.{node.name}".lstrip(".")
        inside = shadows | local_names(node) if isinstance(node, ast.FunctionDef | ast.Lambda) else shadows
        for name, value in ast.iter_fields(node):
            # A function's decorators and return annotation are evaluated outside it.
            scope = shadows if name in ("decorator_list", "returns") else inside
            for child in value if isinstance(value, list) else [value]:
                if isinstance(child, ast.AST):
                    yield from walk(child, scope, owner)

    return dict(walk(source.tree, set(), ""))
