"""
# Prose, prepared for Markdown

Docstrings, comments and chapters are Markdown with two additions: formulas between dollar signs, and names of
this project in backticks, which become links. Code stays as it is.
"""

import json
import re
from collections.abc import Callable

from docs.literate.maths import formula
from docs.literate.names import Source, Sources, Symbol, imported_symbols
from docs.literate.rows import PageError

Find = Callable[[str], Symbol | None]

TOKEN = re.compile(
    r"(?P<fence>^[ ]*(?P<f>`{3,}|~{3,})[^\n]*\n.*?^[ ]*(?P=f)[ ]*$)"
    r"|(?P<code>(?<!`)(?P<c>`+)(?!`)(?P<inner>.+?)(?<!`)(?P=c)(?!`))"
    r"|(?P<display>\$\$(?P<block>.+?)\$\$)"
    r"|(?P<maths>(?<![\\$\w])\$(?![\s$])(?P<tex>(?:[^$\n]|\n(?!\s*\n))+?)(?<![\s\\])\$(?![\d$]))",
    re.S | re.M,
)


def render_prose(text: str, page: str, find: Find, where: str) -> str:
    """
    Renders the formulas in `text` and links its names. `find` looks up a name, and `where` starts the message
    of the `PageError` that a bad formula raises.
    """

    def replace(match: re.Match[str]) -> str:
        try:
            if match["display"]:
                return formula(match["block"], True)
            if match["maths"]:
                return formula(match["tex"], False)
        except PageError as error:
            raise PageError(f"{where}: {error}") from None
        around = text[match.start() - 1 : match.start()] + text[match.end() : match.end() + 1]
        symbol = find(match["inner"]) if match["code"] and "[" not in around and "]" not in around else None
        # A heading is a link target; don't make it a link as well.
        line = text[text.rfind("\n", 0, match.start()) + 1 : match.start()]
        if symbol and not line.startswith("#"):
            return symbol.link(page, f"<code>{match['inner']}</code>")
        return match[0]

    return TOKEN.sub(replace, text)


def names_in_file(source: Source, sources: Sources) -> Find:
    """Looks up a name in backticks, for a docstring or a comment of `source`."""
    # A lower-case word may be a parameter here and a function elsewhere, so only its own file may link it.
    elsewhere = {
        name: one for name, one in project_symbols(sources).items() if "." in name or name.lower() != name
    }
    symbols = {**elsewhere, **imported_symbols(source, sources), **source.symbols}
    return lambda name: symbols.get(name)


def names_in_chapter(sources: Sources) -> Find:
    """Looks up a name in backticks, for a chapter."""
    symbols = project_symbols(sources)
    return lambda name: symbols.get(name)


def project_symbols(sources: Sources) -> dict[str, Symbol]:
    """
    Names with only one meaning in the whole project: files, classes, functions with an underscore, and all
    symbols qualified by their module. A plain `main` is not among them.
    """
    symbols: dict[str, Symbol] = {}
    ambiguous: set[str] = set()
    for source in sources.values():
        stem = source.module.rpartition(".")[2]
        top = Symbol(source.page, source.anchor, source.title)
        for name in (source.path, f"{stem}.py", source.module):
            symbols[name] = top
        for name, symbol in source.symbols.items():
            symbols[f"{stem}.{name}"] = symbol
            first = name.partition(".")[0]
            # A single capital such as `B` denotes a size everywhere, even if some file defines it.
            if len(first) > 1 and ("_" in first.strip("_") or first.lower() != first):
                ambiguous |= {name} & symbols.keys()
                symbols[name] = symbol
    return {name: symbol for name, symbol in symbols.items() if name not in ambiguous}


def fence_code(language: str, text: str) -> str:
    """A fenced code block, with a fence longer than any inside it."""
    fence = "`" * max(3, 1 + max(map(len, re.findall("`+", text)), default=0))
    return f"{fence}{language}\n{text}\n{fence}\n"


def cell(text: object) -> str:
    """
    Escapes text from a record for one line of Markdown. Corpora have the names of users' files, which may
    contain anything, so every character that means something in Markdown or HTML becomes a character
    reference.
    """
    return re.sub(r"[^\w .,:/()-]|_", lambda match: f"&#{ord(match[0])};", str(text)).replace("\n", " ")


def wide(table: str) -> str:
    """
    Wraps a Markdown table that is wider than a phone. On a phone, its rows are stacked; without a script, the
    table scrolls sideways instead of the page. Search skips the table, which is full of numbers.
    """
    return f'<div class="wide" markdown data-search-exclude>\n\n{table}\n</div>\n'


# Tables are never nested.
TABLE = re.compile(r'(<div class="wide"[^>]*>\s*)?<table>\s*(<thead>.*?</thead>)(.*?</table>)', re.S)


def label_cells(html: str) -> str:
    """
    Adds the header of its column to each cell of a table that is too wide for a phone, as the attribute
    `data-label`. On a phone, the theme stacks the cells of a row, each with its label.
    """

    def label_table(match: re.Match[str]) -> str:
        wrapper, head, body = match.groups(default="")
        heads = re.findall(r"<th\b[^>]*>(.*?)</th>", head, re.S)
        longest = max(len(re.sub(r"<[^>]+>", "", one)) for one in re.split(r"</t[dh]>", body))
        if not wrapper and (len(heads) < 3 or (len(heads) == 3 and longest < 20)):
            return match[0]

        def label_row(row: re.Match[str]) -> str:
            labels = (re.sub(r"<[^>]+>", "", one).strip() for one in heads)
            return re.sub(r"<(td|th)\b", lambda tag: f'<{tag[1]} data-label="{next(labels, "")}"', row[0])

        return f"{wrapper}<table>{head}{re.sub(r'<tr.*?</tr>', label_row, body, flags=re.S)}"

    return TABLE.sub(label_table, html)


def fold_parts(html: str) -> str:
    """
    Folds what stands between the comments `<!-- fold: TITLE -->` and `<!-- end of fold -->`. By then, the
    page is HTML: folds in Markdown couldn't hold charts, which have folds of their own.
    """
    html = re.sub(r"<!-- fold: (.+?) -->", r'<details class="part-fold"><summary>\1</summary>', html)
    return html.replace("<!-- end of fold -->", "</details>")


def prepare_for_search(html: str) -> str:
    """
    Puts the words of a comment such as `<!-- search: NER, tagging -->` where search can see them but readers
    can't. The imports of a sample are not indexed.
    """
    html = re.sub(r"<!-- (search: .+?) -->", r"<p hidden>\1</p>", html)
    # Material's search still indexes what is nested in an excluded element, so mark each word.
    return re.sub(
        r'(<span id="line-[\d-]+">)(<span class="kn">[^\n]*)',
        lambda match: match[1] + match[2].replace("<span class", "<span data-search-exclude class"),
        html,
    )


def keep_options(html: str) -> str:
    """
    Keeps each option in code, such as `--corpus`, on one line. Otherwise, a browser may break the line after
    the hyphens, and readers would type a space there.
    """
    # Only between tags, because attributes contain options too.
    option = re.compile(r"(?<=[\s>])--[a-z][a-z-]*(?![^\s<=])(?=[^<>]*<)")
    return re.sub(
        r"<code>.*?</code>",
        lambda code: option.sub(r'<span class="option">\g<0></span>', code[0]),
        html,
        flags=re.S,
    )


def tag_sections(index: str) -> str:
    """
    Makes tags of these words in Material's search index, which is JSON. A match in a tag counts for more
    than one in a title, so the section comes first if readers search for its words.
    """
    data = json.loads(index)
    for section in data["docs"]:
        words = re.findall(r"<p>search: (.+?)</p>", section["text"])
        if words:
            section["text"] = re.sub(r"<p>search: .+?</p>", "", section["text"])
            section["tags"] = ", ".join(words).split(", ")
    return json.dumps(data, separators=(",", ":"))
