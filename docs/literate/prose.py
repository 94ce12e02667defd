"""
# Prose, made ready for Markdown

Docstrings, comments and chapters are Markdown with two additions: formulas between dollars, and
names of this project in backticks, which become links. Code stays as it is.
"""

import re
from collections.abc import Callable

from docs.literate.maths import formula
from docs.literate.names import Source, Sources, Symbol, imported
from docs.literate.rows import PageError

Find = Callable[[str], Symbol | None]

TOKEN = re.compile(
    r"(?P<fence>^[ ]*(?P<f>`{3,}|~{3,})[^\n]*\n.*?^[ ]*(?P=f)[ ]*$)"
    r"|(?P<code>(?<!`)(?P<c>`+)(?!`)(?P<inner>.+?)(?<!`)(?P=c)(?!`))"
    r"|(?P<display>\$\$(?P<block>.+?)\$\$)"
    r"|(?P<maths>(?<![\\$\w])\$(?![\s$])(?P<tex>(?:[^$\n]|\n(?!\s*\n))+?)(?<![\s\\])\$(?![\d$]))",
    re.S | re.M,
)


def prepared(text: str, page: str, find: Find, where: str) -> str:
    """
    `text` with its formulas set and its names linked. `find` knows the names, and `where` begins the
    message of the `PageError` that a bad formula raises.
    """

    def put(match: re.Match[str]) -> str:
        try:
            if match["display"]:
                return formula(match["block"], True)
            if match["maths"]:
                return formula(match["tex"], False)
        except PageError as error:
            raise PageError(f"{where}: {error}") from None
        around = text[match.start() - 1 : match.start()] + text[match.end() : match.end() + 1]
        symbol = find(match["inner"]) if match["code"] and "[" not in around and "]" not in around else None
        # A heading is a link target and should not be a link elsewhere as well.
        line = text[text.rfind("\n", 0, match.start()) + 1 : match.start()]
        if symbol and not line.startswith("#"):
            return symbol.link(page, f"<code>{match['inner']}</code>")
        return match[0]

    return TOKEN.sub(put, text)


def names_in_file(source: Source, sources: Sources) -> Find:
    """What a name in backticks means in a docstring or a comment of `source`."""
    # A lower-case word may be a parameter here and a function elsewhere; only its own file knows it.
    elsewhere = {
        name: one for name, one in everywhere(sources).items() if "." in name or name.lower() != name
    }
    known = {**elsewhere, **imported(source, sources), **source.symbols}
    return lambda name: known.get(name)


def names_in_chapter(sources: Sources) -> Find:
    """What a name in backticks means in a chapter."""
    known = everywhere(sources)
    return lambda name: known.get(name)


def everywhere(sources: Sources) -> dict[str, Symbol]:
    """
    Names that mean one thing in the whole project: files, classes, functions with an underscore,
    and all of these with their module in front. `main` is not among them.
    """
    known: dict[str, Symbol] = {}
    twice: set[str] = set()
    for source in sources.values():
        stem = source.module.rpartition(".")[2]
        top = Symbol(source.page, source.anchor, source.title)
        for name in (source.path, f"{stem}.py", source.module):
            known[name] = top
        for name, symbol in source.symbols.items():
            known[f"{stem}.{name}"] = symbol
            first = name.partition(".")[0]
            # A single capital is a size everywhere, whatever a file may call by it.
            if len(first) > 1 and ("_" in first.strip("_") or first.lower() != first):
                twice |= {name} & known.keys()
                known[name] = symbol
    return {name: symbol for name, symbol in known.items() if name not in twice}


def fenced(language: str, text: str) -> str:
    """A fence around some code, longer than any that stands in it."""
    fence = "`" * max(3, 1 + max(map(len, re.findall("`+", text)), default=0))
    return f"{fence}{language}\n{text}\n{fence}\n"


def cell(text: object) -> str:
    """
    A text of a run for a line of Markdown. The name of a corpus is the name of somebody's file, and may hold
    anything: every sign that means something to Markdown or HTML becomes its number.
    """
    return re.sub(r"[^\w .,:/()-]|_", lambda sign: f"&#{ord(sign[0])};", str(text)).replace("\n", " ")


def wide(table: str) -> str:
    """
    Around a Markdown table with more columns than a phone has room for: it scrolls, not the page. It is full
    of numbers, which nobody looks for by name.
    """
    return f'<div class="wide" markdown data-search-exclude>\n\n{table}\n</div>\n'
