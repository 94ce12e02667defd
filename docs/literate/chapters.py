r"""
# Chapters

A chapter is a Markdown file in `docs/pages`. What it can do beyond Markdown:

- **Numbers.** `{{ expression }}`, with the spaces, is worked out when the site is built. The project says
  which names it may use. A format follows a colon, as in an f-string:
  `{{ run("small").result.loss:.2f }}`, `{{ count("base", "encoder") }}`. Whole numbers get their
  commas by themselves; a fraction must say how many decimals it wants.
- **Figures.** An expression may return HTML if it stands on a line of its own: `{{ chart("small") }}`.
- **Samples.** A fence marked `python` is run by the tests, all fences of a page in order in one
  process. A fence marked `output` right below holds what it printed: the tests compare, and
  `python -m docs.literate.samples` writes it anew. A fence marked `py` is shown and not run.
- **Asides.** `!!! aside` and an indented paragraph stand in the margin.
- **Exercises.** `!!! exercise "Title"`, and in it `??? answer "Answer"`, which folds.
- **Terms.** Each `## term` of `glossary.md` is linked where a page first uses the word, with its
  first sentence on hover and focus. Other names follow in brackets, `## term (other, names)`, and are
  found by the search; inflections follow in a comment, `<!-- also: terms -->`.
- **Formulas and names** as in docstrings: `$…$`, and `` `TokenMasker` `` becomes a link.

Anything unknown fails the build with the file, the line and the reason.
"""

import ast
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from docs.literate.names import Sources, Symbol, summary
from docs.literate.prose import TOKEN, names_in_chapter, prepared
from docs.literate.rows import PageError

EXPRESSION = re.compile(r"\{\{ (.+?) \}\}", re.S)
FRONT = re.compile(r"\A---\n(.*?)\n---\n", re.S)


def evaluate(text: str, names: dict[str, Any]) -> str:
    """
    The value of an expression with its format, as text. Raises `PageError` where it has none.
    """
    try:
        # The grammar of an f-string, so that the colon means what Python readers expect.
        parsed = ast.parse(f"f'''{{{text}}}'''", mode="eval").body
    except SyntaxError as error:
        raise PageError(f"{{{{ {text} }}}} is not an expression: {error.msg}") from None
    assert isinstance(parsed, ast.JoinedStr)
    if len(parsed.values) != 1 or not isinstance(parsed.values[0], ast.FormattedValue):
        raise PageError(f"{{{{ {text} }}}} is not one expression")
    node = parsed.values[0]
    bound = {
        name.id
        for name in ast.walk(node.value)
        if isinstance(name, ast.Name) and isinstance(name.ctx, ast.Store)
    }
    for name in ast.walk(node.value):
        if isinstance(name, ast.Name) and name.id not in names and name.id not in bound:
            raise PageError(f"{{{{ {text} }}}}: no name {name.id!r}; known are {', '.join(sorted(names))}")
        if isinstance(name, ast.Attribute) and name.attr.startswith("_"):
            raise PageError(f"{{{{ {text} }}}}: {name.attr!r} is private")
    code = compile(ast.Expression(node.value), "<chapter>", "eval")
    try:
        value = eval(code, {"__builtins__": {}, **names})
        if node.format_spec is not None:
            spec = eval(compile(ast.Expression(node.format_spec), "<chapter>", "eval"), {"__builtins__": {}})
            return format(value, spec)
    except PageError:
        raise
    except Exception as error:
        raise PageError(f"{{{{ {text} }}}}: {error or type(error).__name__}") from None
    if isinstance(value, float):
        raise PageError(
            f"{{{{ {text} }}}} is {value}; say how many places it wants, as in {{{{ {text}:.2f }}}}"
        )
    return f"{value:,}" if isinstance(value, int) else str(value)


@dataclass
class Term:
    """An entry of the glossary."""

    symbol: Symbol
    forms: list[str]


def read_glossary(text: str) -> list[Term]:
    """The terms of `glossary.md`: its headings of the second level."""
    found = []
    entries = r"^## ([^(\n]+)(?: \((.+)\))?\n+((?:.|\n)*?)(?=^## |\Z)"
    for match in re.finditer(entries, FRONT.sub("", text), re.M):
        name, others, body = match[1].strip(), match[2], match[3]
        also = re.search(r"<!-- also: (.+?) -->", body)
        definition = summary(re.sub(r"<!--.*?-->", "", body))
        forms = [name] + [form for part in (others, also and also[1]) if part for form in part.split(", ")]
        found.append(Term(Symbol("glossary", anchor_of(name), definition), forms))
    return found


def anchor_of(term: str) -> str:
    """The anchor of a term: its letters and digits."""
    return re.sub(r"\W+", "-", term.lower()).strip("-")


# What no term is looked for in: fences, code, formulas, headings, links, tags, tables' rules.
CLOSED = re.compile(
    TOKEN.pattern
    + r"|^[ ]*\#[^\n]*$|^[ ]*(?:!!!|\?\?\?)[^\n]*$|\[[^\]]*\]\([^)]*\)|<a\b.*?</a>|<[^>]+>|\{[^}\n]*\}",
    re.S | re.M,
)


def link_terms(text: str, terms: list[Term], page: str) -> str:
    """Links each term where the page uses it first, "attention mask" before "attention"."""
    for term in sorted(terms, key=lambda term: -max(map(len, term.forms))):
        word = "|".join(re.escape(form) for form in sorted(term.forms, key=len, reverse=True))
        pattern = re.compile(
            rf"(?P<shut>{CLOSED.pattern})|(?<![\w-])(?P<term>{word})(?![\w-])", re.S | re.M | re.I
        )
        for match in pattern.finditer(text):
            if match["term"]:
                link = term.symbol.link(page, match[0], "term")
                text = text[: match.start()] + link + text[match.end() :]
                break
    return text


def chapter(path: Path, name: str, sources: Sources, names: dict[str, Any], terms: list[Term]) -> str:
    """
    ## A chapter as plain Markdown

    `name` is its page, and `names` are those that its expressions may use. Raises `PageError` with file and
    line.
    """
    text = path.read_text("utf-8")
    where = f"docs/pages/{name}.md"
    put_aside: list[str] = []

    def work_out(match: re.Match[str]) -> str:
        try:
            value = evaluate(match[1].strip(), names)
        except PageError as error:
            line = text.count("\n", 0, match.start()) + 1
            raise PageError(f"{where}:{line}: {error}") from None
        if not value.startswith("<"):
            return value
        # HTML is finished, and none of what follows may touch it.
        put_aside.append(value)
        return f"<!--{len(put_aside) - 1}-->"

    # A fence may show braces of its own.
    fences = [match.span() for match in TOKEN.finditer(text) if match["fence"] or match["code"]]

    def outside(match: re.Match[str]) -> str:
        inside = any(a <= match.start() and match.end() <= b for a, b in fences)
        return match[0] if inside else work_out(match)

    body = EXPRESSION.sub(outside, text)
    front = FRONT.match(body)
    meta = front[1] + "\n" if front else ""
    body = body[front.end() :] if front else body
    if name == "glossary":
        body = re.sub(r"^## ([^(\n]+).*$", lambda m: f"{m[0]} {{#{anchor_of(m[1])}}}", body, flags=re.M)
    else:
        body = link_terms(body, terms, name)
    body = prepared(body, name, names_in_chapter(sources), where)
    body = re.sub(r"^```output$", "```text { .output }", body, flags=re.M)
    body = re.sub(r"^``` ?py(?:thon)?$", "```python", body, flags=re.M)
    body = re.sub(r"<!--(\d+)-->", lambda match: put_aside[int(match[1])], body)
    maths = "true" if 'class="katex' in body else "false"
    return f"---\n{meta}maths: {maths}\n---\n{body}"
