r"""
# Chapters

A chapter is a Markdown file in `docs/pages`. Beyond Markdown, it can use:

- **Numbers.** `{{ expression }}`, spaces included, is evaluated when the site is built. The project decides
  which names it may use. A format follows a colon, as in an f-string:
  `{{ run("small").result.loss:.2f }}`, `{{ count("base", "encoder") }}`. Integers get thousands
  separators automatically; a float needs a format that says how many decimals to print.
- **Figures.** An expression on a line of its own may return HTML: `{{ chart("small") }}`.
- **Samples.** The tests run each fence marked `python`, all fences of a page in order and in one
  process. A fence marked `output` right below holds what the sample printed: the tests compare it, and
  `python -m docs samples` updates it. A fence marked `py` is displayed but not run.
- **Asides.** `!!! aside` followed by an indented paragraph appears in the margin.
- **Folds.** What stands between the lines `<!-- fold: Title -->` and `<!-- end of fold -->` is folded until a
  reader clicks on the title.
- **Synonyms.** `<!-- search: NER, tagging -->` below a heading lets readers find the section by these words.
- **Exercises.** `!!! exercise "Title"`, with a collapsible `??? answer "Answer"` inside.
- **Terms.** The first time a page uses a term of `glossary.md` (a heading `## term`), it becomes a link that
  shows the first sentence of the definition on hover and focus. Synonyms follow in parentheses,
  `## term (other, names)`, and can be searched for; inflected forms follow in a comment,
  `<!-- also: terms -->`.
- **Formulas and names** as in docstrings: `$…$`, and `` `TokenMasker` `` becomes a link.

A mistake fails the build with the file, the line and the reason.
"""

import ast
import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from docs.literate.names import Sources, Symbol, description, summary
from docs.literate.prose import TOKEN, names_in_chapter, render_prose
from docs.literate.rows import PageError, read_page

# Matches `{{ ` alone too if the rest of the page has no ` }}`, so that we can report it.
EXPRESSION = re.compile(r"\{\{ (?:(.+?) \}\})?", re.S)
FRONT = re.compile(r"\A---\n(.*?)\n---\n", re.S)


def evaluate(text: str, names: dict[str, Any]) -> str:
    """Evaluates an expression and formats its value as text. Raises `PageError` if that fails."""
    try:
        # Parse it as an f-string, so that the colon means what Python readers expect.
        expression = ast.parse(f"f'''{{{text}}}'''", mode="eval").body
    except SyntaxError as error:
        raise PageError(f"{{{{ {text} }}}} is not an expression: {error.msg}") from None
    assert isinstance(expression, ast.JoinedStr)
    if len(expression.values) != 1 or not isinstance(expression.values[0], ast.FormattedValue):
        raise PageError(f"{{{{ {text} }}}} is not one expression")
    node = expression.values[0]
    local_names = {
        name.id
        for name in ast.walk(node.value)
        if isinstance(name, ast.Name) and isinstance(name.ctx, ast.Store)
    }
    for name in ast.walk(node.value):
        if isinstance(name, ast.Name) and name.id not in names and name.id not in local_names:
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
            f"{{{{ {text} }}}} is {value}; say how many digits after the point you want, "
            f"as in {{{{ {text}:.2f }}}}"
        )
    return f"{value:,}" if isinstance(value, int) else str(value)


@dataclass
class Term:
    """An entry of the glossary."""

    symbol: Symbol
    forms: list[str]


def read_glossary(text: str) -> list[Term]:
    """The terms of `glossary.md`: its second-level headings."""
    terms = []
    entries = r"^## ([^(\n]+)(?: \((.+)\))?\n+((?:.|\n)*?)(?=^## |\Z)"
    for match in re.finditer(entries, FRONT.sub("", text), re.M):
        name, others, body = match[1].strip(), match[2], match[3]
        also = re.search(r"<!-- also: (.+?) -->", body)
        definition = summary(re.sub(r"<!--.*?-->", "", body))
        forms = [name] + [form for part in (others, also and also[1]) if part for form in part.split(", ")]
        terms.append(Term(Symbol("glossary", anchor_of(name), definition), forms))
    return terms


def anchor_of(term: str) -> str:
    """The anchor of a term: lower-case letters and digits, joined by hyphens."""
    return re.sub(r"\W+", "-", term.lower()).strip("-")


# Where terms are never linked: fences, code, formulas, headings, links, tags and the attributes in braces.
CLOSED = re.compile(
    TOKEN.pattern
    + r"|^[ ]*\#[^\n]*$|^[ ]*(?:!!!|\?\?\?)[^\n]*$|\[[^\]]*\]\([^)]*\)|<a\b.*?</a>|<[^>]+>|\{[^}\n]*\}",
    re.S | re.M,
)


def link_terms(text: str, terms: list[Term], page: str) -> str:
    """Links each term at its first use on the page, "attention mask" before "attention"."""
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

    `name` is the page, and `names` are the ones its expressions may use. Raises `PageError` with the file and
    the line.
    """
    text = read_page(path)
    where = f"docs/pages/{name}.md"
    finished_html: list[str] = []

    def evaluate_match(match: re.Match[str]) -> str:
        try:
            if match[1] is None:
                raise PageError("{{ without }}; close it, or write it in a fence or between backticks")
            value = evaluate(match[1].strip(), names)
        except PageError as error:
            line = text.count("\n", 0, match.start()) + 1
            raise PageError(f"{where}:{line}: {error}") from None
        if not value.startswith("<"):
            return value
        # This HTML is finished: set it aside, so that none of the steps below changes it.
        finished_html.append(value)
        return f"<!--{len(finished_html) - 1}-->"

    # Braces inside a fence are code, not an expression.
    fences = [match.span() for match in TOKEN.finditer(text) if match["fence"] or match["code"]]

    def outside(match: re.Match[str]) -> str:
        inside = any(a <= match.start() and match.end() <= b for a, b in fences)
        return match[0] if inside else evaluate_match(match)

    body = EXPRESSION.sub(outside, text)
    front = FRONT.match(body)
    meta = front[1] + "\n" if front else ""
    body = body[front.end() :] if front else body
    lead = description(body)
    if name == "glossary":
        body = re.sub(r"^## ([^(\n]+).*$", lambda m: f"{m[0]} {{#{anchor_of(m[1])}}}", body, flags=re.M)
    else:
        body = link_terms(body, terms, name)
    body = render_prose(body, name, names_in_chapter(sources), where)
    body = re.sub(r"^(`{3,})output$", r'\1text { .output data-search-exclude="" }', body, flags=re.M)
    body = re.sub(r"^(`{3,}) ?py(?:thon)?$", r"\1python", body, flags=re.M)
    body = re.sub(r"<!--(\d+)-->", lambda match: finished_html[int(match[1])], body)
    added = {"description": lead, "maths": 'class="katex' in body, "source": where}
    added_lines = "".join(f"{key}: {json.dumps(value)}\n" for key, value in added.items())
    return f"---\n{meta}{added_lines}---\n{body}"
