"""
# What a name in the code refers to

A reader who meets `TokenMasker` in an experiment wants to go to where it is defined. This file finds,
for each name in a source, the definition in this project that it stands for, and stays silent
where it cannot know: a wrong link is worse than none.
"""

import ast
import posixpath
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from markupsafe import Markup

from docs.literate.rows import Row, read_rows


@dataclass(frozen=True)
class Symbol:
    """A place in the site and one line about it."""

    page: str
    """The page without `.md`, such as `package/module`."""
    anchor: str
    summary: str

    def link(self, page: str, inner: str, kind: str = "ref") -> str:
        """HTML of a link from `page` to here, around `inner`, which is HTML already."""
        tip = Markup(' data-tip="{}"').format(self.summary) if self.summary else ""
        home = relative(page, self.page)
        link = Markup('<a class="{}" href="{}#{}"{}>{}</a>')
        # Plain text, as it becomes a part of Markdown, which must not be escaped with it.
        return str(link.format(kind, home, self.anchor, tip, Markup(inner)))


def relative(page: str, target: str) -> str:
    """The address of one page seen from another, where each is a folder of its own."""
    ends = [name.removesuffix("index").rstrip("/") or "." for name in (page, target)]
    return posixpath.relpath(ends[1], ends[0]) + "/"


def summary(markdown: str) -> str:
    """The first sentence, as plain text, for a tooltip."""
    paragraph = re.split(r"\n\s*\n", markdown.strip(), maxsplit=1)[0].replace("\n", " ")
    plain = re.sub(r"\[([^]]+)\]\([^)]*\)", r"\1", paragraph).replace("`", "").replace("$", "")
    sentence = re.match(r".+?[.?](?=\s|$)", plain)
    words = sentence[0] if sentence else plain
    return "" if "|" in words or "\\" in words else words


@dataclass
class Source:
    """One file, read once."""

    path: str
    """From the top of the tree, such as `package/module.py`."""
    text: str
    rows: list[Row]
    tree: ast.Module
    symbols: dict[str, Symbol] = field(default_factory=dict)
    """By qualified name within the file."""

    @property
    def page(self) -> str:
        """Where its page is, without the ending."""
        return self.path.rpartition(".")[0]

    @property
    def module(self) -> str:
        """Its name in an import."""
        return self.page.replace("/", ".").removesuffix(".__init__")

    @property
    def anchor(self) -> str:
        """What the top of its page is called: its name, without underscores that Markdown would read."""
        return self.path.rpartition("/")[2].replace("__", "")

    @cached_property
    def imports(self) -> list[str]:
        """The modules from which it imports names, those of others too."""
        return [n.module for n in ast.walk(self.tree) if isinstance(n, ast.ImportFrom) and n.module]

    @property
    def is_script(self) -> bool:
        """Whether it does something if it is started: it asks whether it is `__main__`."""
        tests = (node.test for node in self.tree.body if isinstance(node, ast.If))
        return any("__main__" in ast.unparse(test) for test in tests)

    @property
    def title(self) -> str:
        """The heading at its top, or its path."""
        return self.rows[0].heading or self.path


def read_source(root: Path, path: str) -> Source:
    """Reads the file at `path` under `root`. Raises `PageError` where its page would be wrong."""
    text = (root / path).read_bytes().decode("utf-8")
    source = Source(path, text, read_rows(text, path), ast.parse(text))
    for node in source.tree.body:
        # A constant has no row of its own; its line will do.
        if isinstance(node, ast.Assign | ast.AnnAssign):
            for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
                if isinstance(target, ast.Name):
                    source.symbols[target.id] = Symbol(source.page, f"L{node.lineno}", "")
    for row in source.rows:
        if row.name:
            source.symbols[row.name] = Symbol(source.page, row.name, summary(row.prose))
    return source


def in_reference(source: Source, package: str) -> bool:
    """Whether the file has a page in the reference: the modules of the package do."""
    return source.path.startswith(f"{package}/") and not source.path.endswith("/__init__.py")


Sources = dict[str, Source]
"""All sources of a project by module name."""
Place = tuple[int, int]


def imported(source: Source, sources: Sources) -> dict[str, Symbol]:
    """The names that imports of this project's modules bind in the file."""
    found: dict[str, Symbol] = {}
    for node in ast.walk(source.tree):
        if isinstance(node, ast.ImportFrom) and node.module in sources:
            origin = sources[node.module].symbols
            for alias in node.names:
                if alias.name in origin:
                    found[alias.asname or alias.name] = origin[alias.name]
                    prefix = f"{alias.name}."
                    for name, symbol in origin.items():
                        if name.startswith(prefix):
                            found[f"{alias.asname or alias.name}.{name.removeprefix(prefix)}"] = symbol
    return found


def bound(function: ast.AST) -> set[str]:
    """The names that are local to a function: its parameters and whatever it assigns."""
    names = {node.arg for node in ast.walk(function) if isinstance(node, ast.arg)}
    stores = (node for node in ast.walk(function) if isinstance(node, ast.Name))
    return names | {node.id for node in stores if not isinstance(node.ctx, ast.Load)}


def resolve(source: Source, sources: Sources) -> dict[Place, Symbol]:
    """
    ## Names by their place

    The line (from 1) and column (from 0, in characters) of each name that can be followed.
    """
    known = {**imported(source, sources), **source.symbols}
    lines = source.text.splitlines()

    def place(line: int, column: int) -> Place:
        # `ast` counts bytes.
        return line, len(lines[line - 1].encode()[:column].decode())

    def walk(node: ast.AST, hidden: set[str], owner: str) -> Iterator[tuple[Place, Symbol]]:
        if isinstance(node, ast.ImportFrom):
            for alias in node.names:
                if alias.name in known and node.module in sources:
                    yield place(alias.lineno, alias.col_offset), known[alias.asname or alias.name]
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load) and node.id not in hidden:
            if node.id in known:
                yield place(node.lineno, node.col_offset), known[node.id]
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.end_lineno:
            parent = owner if node.value.id == "self" else node.value.id
            symbol = known.get(f"{parent}.{node.attr}")
            if symbol and (node.value.id == "self" or node.value.id not in hidden):
                start = (node.end_col_offset or 0) - len(node.attr.encode())
                yield place(node.end_lineno, start), symbol
        if isinstance(node, ast.ClassDef):
            owner = f"{owner}.{node.name}".lstrip(".")
        inside = hidden | bound(node) if isinstance(node, ast.FunctionDef | ast.Lambda) else hidden
        for name, value in ast.iter_fields(node):
            # Annotations and decorators of a function are read outside it.
            scope = hidden if name in ("decorator_list", "returns") else inside
            for child in value if isinstance(value, list) else [value]:
                if isinstance(child, ast.AST):
                    yield from walk(child, scope, owner)

    return dict(walk(source.tree, set(), ""))
