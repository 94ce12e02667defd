"""
# Formulas, rendered while the site is built

KaTeX turns `$…$` and `$$…$$` into HTML to look at and MathML for screen readers, so a page needs no script to
display them. KaTeX comes from npm and runs in the virtual environment's Node; one process serves the whole
build.
"""

import atexit
import html
import json
import re
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path

from docs.literate.rows import PageError

DOCS = Path(__file__).parents[1]
KATEX = DOCS / "node_modules" / "katex" / "dist"


@cache
def node() -> subprocess.Popen[str]:
    """The process that renders formulas."""
    program = shutil.which("node", path=Path(sys.executable).parent) or shutil.which("node")
    if program is None or not KATEX.is_dir():
        raise PageError("KaTeX is not installed: type make site")
    process = subprocess.Popen(
        [program, str(DOCS / "literate" / "katex.mjs")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        encoding="utf-8",
        # In a process group of its own, Node doesn't get Ctrl-C. It ends when Python does.
        process_group=0,
    )
    atexit.register(process.kill)
    return process


@cache
def formula(tex: str, display: bool) -> str:
    """The HTML of a formula. Raises `PageError` with KaTeX's message if the formula has an error."""
    process = node()
    assert process.stdin and process.stdout
    process.stdin.write(json.dumps({"tex": tex, "display": display}) + "\n")
    process.stdin.flush()
    answer = json.loads(process.stdout.readline())
    if "error" in answer:
        raise PageError(f"the formula {tex.strip()!r} cannot be set: {answer['error']}")
    markup = answer["html"].replace("\n", " ")
    # KaTeX writes each formula three times; search should index only one of them. Material ends an exclusion
    # at the first end tag of the same name, so the excluded element can't be a `span` like those in it.
    ends = "</span>" * (2 if display else 1)
    markup = markup.replace("<annotation", "<annotation data-search-exclude")
    markup = re.sub(
        rf'<span (class="katex-html".*)</span>{ends}$', rf"<bdi data-search-exclude \1</bdi>{ends}", markup
    )
    return safe_in_markdown(markup)


def safe_in_markdown(markup: str) -> str:
    """Escapes every Markdown character in the text between the tags."""

    def spell(match: re.Match[str]) -> str:
        # A character reference such as `&lt;` counts as one character.
        text = html.unescape(match[0])
        return re.sub(r"[\\`*_{}\[\]()#+.!|~^=:$&<>-]", lambda match: f"&#{ord(match[0])};", text)

    return re.sub(r"(?<=>)[^<>]+(?=<)", spell, markup)


def write_assets(folder: Path) -> None:
    """Copies KaTeX's style sheet and its fonts, keeping only WOFF2 of the three font formats."""
    folder.mkdir(parents=True, exist_ok=True)
    css = (KATEX / "katex.min.css").read_text("utf-8")
    css = re.sub(r",url\(fonts/[^)]+\.(?:woff|ttf)\) format\(\"?\w+\"?\)", "", css)
    (folder / "katex.css").write_text(css, "utf-8")
    shutil.copytree(
        KATEX / "fonts",
        folder / "fonts",
        dirs_exist_ok=True,
        ignore=shutil.ignore_patterns("*.ttf", "*.woff"),
    )
