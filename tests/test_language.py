"""
Prose and names use the field's terms: each retired word has a standard term that replaces it.

Prose is what people read: the README, the chapters, docstrings, comments, and all strings outside the tests.
Names are those of functions, classes, parameters, variables, keys of records, CSS classes, and anchors of
headings. Run as a script, this file prints every retired word with its replacement:

    python tests/test_language.py
"""

import ast
import io
import re
import subprocess
import sys
import tokenize
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
# The field's term, and a pattern for the retired words that it replaces, in prose and in names.
PROSE = {
    "learning rate": r"(?<!learning[ -])(?<!mask[ -])(?<!masking )(?<!decay )(?<!error )(?<!sampling )"
    r"(?<!warmup )(?<!frame )\brates?\b(?! of (?:the )?(?:mask|decay))",
    "position": r"(?<!\bin )(?<!in its )(?<!to )(?<!take )(?<!takes )(?<!changed )(?<!people or )\bplaces?\b"
    r"(?! (?:of|label|the|a)\b)|\b(?:at|from|many|all|random|masked) places? of\b|\bin (?:\w+ )?places\b",
    "standard deviation": r"(?<!-)\bspread\b(?! (?:over|to|across)\b)",
    "baseline": r"(?<!\.)\bfloors?\b|\b(?:line|entropy|loss) of the frequencies\b",
    "masked": r"\bcovered\b|\bcover(?:s|ing)? (?:\w+ )?(?:tokens?|letters?|words?|characters?)\b"
    r"|\b(?:is|are|was|were|be|stays?) (?:\w+ly |still |not )?hidden\b"
    r"|\bhidden (?:tokens?|letters?|words?|characters?|pieces?|places?|positions?)\b",
    "fraction": r"\bshares? of (?!the work)|\bshares? (?:adds?|sums?) up\b"
    r"|\b(?:an?|this|what|same|fair) share\b"
    r"|\b(?:the|its|their|equal|(?:larg|small|high|low|great)(?:e|er|est)?) shares?\b",
    "accuracy": r"\|\s*right\s*\||\bright answers\b",
    "results": r"\bledgers?\b",
    "inconclusive": r"\bundecided\b",
    "special tokens": r"\b(?:special|the \w+|unprintable|of|other) signs\b",
    "encoder": r"\bbody of (?:the (?:model|network|encoder)|bert)\b|\b(?:frozen|pretrained|shared) body\b"
    r"|\b(?:freez|unfreez|train|pretrain|fine-tun)(?:e|es|ed|ing)? (?:the|a|its|this) body\b",
    "feed-forward network": r"\bwide layers?\b",
    "matrix multiplications": r"\b(?:large|matrix|big|projection|feed-forward|attention) products?\b"
    r"|\bproducts? (?:of matrices|in the|for quer(?:y|ies))\b|\bin (?:one|two|three) products?\b"
    r"|\b(?:into|on|by|for|many|fewer|more) products\b",
    "FLOPs": r"\bfloating-point operations\b|\boperations (?:a|per) (?:second|byte|token|step)\b"
    r"|\b(?:thousand|million|billion|trillion|\d+) operations\b",
    "GPU": r"\bgraphics? cards?\b|\bon a card\b|\ba card's\b"
    r"|\b(?:your|our|one|two|\d+|per|num) cards?\b|\bcards? (?:has|have|with) \d",
    "NaN": r"(?<!draws )(?<!draw )\bno number\b",
    "credit assignment": r"\bblame[sd]?\b",
    "American spelling": r"\b\w*(?:neighbour|colour|behaviour|favour|honour|labour)\w*\b"
    # Any word that ends like "realise", except for those that have no form with a z.
    r"|\b(?!\w*(?:wise|nois|rais|promis|exercis|surpris|precis|concis|advis|supervis|revis|devis|compris"
    r"|disguis|enterpris|expertis|prais|advertis|improvis|premis|crises)|a?ris[ei])"
    r"\w+is(?:e[drs]?|ing|ations?)\b|\banalys(?:ed?|er|ing)\b|\bgrey(?:s|ed)?\b"
    r"|\b\w*(?:centre|metre|litre)[sd]?\b|\b\w*(?:label|model|travel|cancel|signal)l(?:ed|ing|er)\b",
}
# Words that are retired in names only: in prose, they are verbs or have another meaning too.
IN_NAMES = {
    "fraction": r"\bshares?\b",
    "special tokens": r"\bsigns\b",
    "encoder": r"\b(?:model|network|bert|freeze) body\b|\bbody (?:is|parameters|weights)\b",
    "matrix multiplications": r"\bproducts\b",
    "FLOPs": r"\boperations\b",
}
# Whole names that are retired in Python: most are participles, which don't say what a value is.
NAMES = frozenset(
    [
        "about",
        "asked",
        "changed",
        "chosen",
        "drawn",
        "fill",
        "fitting",
        "found",
        "frequencies",
        "given",
        "joined",
        "known",
        "made",
        "marks",
        "printed",
        "recorded",
        "requested",
        "shown",
        "suited",
        "told",
        "trained",
        "turns",
        "wanted",
    ]
)
# Pages that explain or quote a retired word once.
ALLOWED = {
    ("docs/pages/stuck.md", "credit assignment"),
}
# Names in which a word has another meaning, or that are in old links and in the commands of records.
ALLOWED_NAMES = {
    "initial-spread",
    "mask-shares",
}
COMMENT_OR_STRING = r"""//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*'|`(?:\\.|[^`\\])*`"""


def tracked(*patterns: str) -> list[Path]:
    """The matching files of the repository, except the change log, which mentions old names."""
    output = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "--", *patterns],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    return [Path(line) for line in output.splitlines() if line != "CHANGELOG.md" and (ROOT / line).is_file()]


@cache
def read(path: Path) -> str:
    """The text of a file of the repository."""
    return (ROOT / path).read_text("utf-8")


@cache
def nodes_of(path: Path) -> list[ast.AST]:
    """All nodes of a Python file's syntax tree."""
    return [*ast.walk(ast.parse(read(path)))]


def strings_in(path: Path) -> Iterator[tuple[int, str]]:
    """The strings of a Python file that people may read. In tests, these are only the docstrings."""
    nodes = nodes_of(path)
    if path.parts[0] == "tests":
        nodes = [node.value for node in nodes if isinstance(node, ast.Expr)]
    for node in nodes:
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.lineno, node.value


def blank(match: re.Match[str]) -> str:
    """As many lines as the match, without its text."""
    return re.sub(r"[^\n]", " ", match[0])


def line_of(text: str, offset: int) -> int:
    return 1 + text.count("\n", 0, offset)


def prose_of(path: Path) -> Iterator[tuple[int, str]]:
    """The texts in a file that people read, each with the number of its first line."""
    text = read(path)
    if path.suffix == ".py":
        yield from strings_in(path)
        for token in tokenize.generate_tokens(io.StringIO(text).readline):
            if token.type == tokenize.COMMENT:
                yield token.start[0], token.string
    elif path.suffix in (".js", ".mjs"):
        # Consecutive lines of comments are one text.
        for match in re.finditer(rf"(?:[ \t]*//[^\n]*\n)+|{COMMENT_OR_STRING}", text, re.S):
            yield line_of(text, match.start()), re.sub(r"^\s*//", "", match[0], flags=re.M)
    elif path.suffix == ".css":
        for match in re.finditer(r"/\*.*?\*/", text, re.S):
            yield line_of(text, match.start()), match[0]
    else:
        for match in re.finditer(r'\b(?:alt|title|aria-label|content)="([^"]*)"', text):
            yield line_of(text, match.start()), match[1]
        # Links and expressions contain the names of files and records.
        closed = r"```.*?```|`[^`\n]*`|\{\{.*?\}\}|\{%.*?%\}|\]\([^)]*\)|<[^>]*>|\{#[^}]*\}"
        yield 1, re.sub(closed, blank, text, flags=re.S)


def names_in(path: Path) -> Iterator[tuple[int, str]]:
    """The names that a Python file defines, with their line numbers."""
    for node in nodes_of(path):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.lineno, node.name
        elif isinstance(node, ast.arg):
            yield node.lineno, node.arg
        elif isinstance(node, ast.alias) and node.asname:
            yield node.lineno, node.asname
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.lineno, node.id
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.lineno, node.attr


def other_names_in(path: Path) -> Iterator[tuple[int, str]]:
    """Keys of records in Python, all names in JavaScript, CSS classes, and the anchors of headings."""
    if path.suffix == ".py":
        for line, text in strings_in(path):
            for name in re.findall(r'^[\w-]+$|(?<=class=")[\w -]+', text):
                yield line, name
        return
    text = read(path)
    if path.suffix in (".js", ".mjs"):
        pattern = r"(?<!Math\.)\b[A-Za-z_]\w*"
        for match in re.finditer(COMMENT_OR_STRING, text, re.S):
            if re.fullmatch(r"[\w-]+", match[0][1:-1]):
                yield line_of(text, match.start()), match[0][1:-1]
        text = re.sub(COMMENT_OR_STRING, blank, text, flags=re.S)
    elif path.suffix == ".css":
        pattern = r"(?<=\.)[A-Za-z][\w-]*|--[\w-]+"
        text = re.sub(r"/\*.*?\*/", blank, text, flags=re.S)
    else:
        pattern = r"(?<=\{#)[\w-]+|(?<=class=\")[^\"]+|(?<=id=\")[^\"]+"
    for match in re.finditer(pattern, text):
        yield line_of(text, match.start()), match[0]


def retired_in_prose(path: Path) -> Iterator[str]:
    """Each retired word in the prose of a file, as `file:line of the paragraph: word, say term`."""
    for first_line, text in prose_of(path):
        for paragraph in re.finditer(r"(?:.+\n?)+", text):
            # A line may end between the two words of a term.
            words = " ".join(paragraph[0].split())
            line = first_line + text.count("\n", 0, paragraph.start())
            for term, pattern in PROSE.items():
                if (path.as_posix(), term) not in ALLOWED:
                    for match in re.finditer(pattern, words, re.I):
                        yield f"{path}:{line}: {match[0]!r}, say {term}"


@cache
def terms_for(name: str) -> str:
    """The terms that belong into a name instead of its retired parts, or an empty text."""
    # `numShares`, `num_shares` and `num-shares` have the same parts.
    parts = re.sub(r"(?<=[a-z\d])(?=[A-Z])|[\W_]+", " ", name)
    # The name of a test is a sentence.
    tables = [PROSE] if name.startswith("test_") else [PROSE, IN_NAMES]
    terms = {term for table in tables for term, pattern in table.items() if re.search(pattern, parts, re.I)}
    return "" if name in ALLOWED_NAMES else " or ".join(sorted(terms))


def retired_in_names(path: Path) -> Iterator[str]:
    """Each name of a file that is retired or that has a retired word among its parts."""
    names = [*names_in(path)] if path.suffix == ".py" else []
    for line, name in names:
        if name.lower() in NAMES:
            yield f"{path}:{line}: the name {name!r}"
    for line, name in [*names, *other_names_in(path)]:
        if terms := terms_for(name):
            yield f"{path}:{line}: the name {name!r}, say {terms}"


def retired_words(path: Path) -> list[str]:
    """All retired words in the prose and in the names of a file."""
    return [*retired_in_prose(path), *retired_in_names(path)]


def everything_retired() -> list[str]:
    """All retired words in the repository."""
    pages = ["README.md", "CONTRIBUTING.md", "docs/pages/*.md", ".github/*.md", "experiments/*.toml"]
    site = ["docs/*.html", "docs/literate/templates/*", "docs/*.js", "docs/*.mjs", "docs/*.css"]
    paths = tracked("*.py", *pages, *site)
    return [line for path in paths if path.name != Path(__file__).name for line in retired_words(path)]


PLANTED = {
    "page.md": [
        ("the rate rises", "learning rate"),
        ("It looks at every place.", "position"),
        ("a large spread", "standard deviation"),
        ("15% of the tokens are covered", "masked"),
        ("Guess what is hidden here", "masked"),
        ("a hidden letter", "masked"),
        ("a larger share", "fraction"),
        ("The shares add up to 1", "fraction"),
        ("the ledger of claims", "results"),
        ("Freeze the body", "encoder"),
        ("Most time goes into products", "matrix multiplications"),
        ("attention in two products", "matrix multiplications"),
        ("2 billion operations", "FLOPs"),
        ("Your card has 8 GB", "GPU"),
        ("on a graphics card", "GPU"),
        ("the optimiser", "American spelling"),
        ("to analyse", "American spelling"),
        ("to realise", "American spelling"),
        ("It travelled a metre.", "American spelling"),
        ("a grey square", "American spelling"),
        ("the centre", "American spelling"),
        ("two neighbours", "American spelling"),
        ("![The floor](chart.svg)", "baseline"),
        ('<img src="chart.svg" alt="The floor">', "baseline"),
        ("## FLOPs {#operations}", "FLOPs"),
        ("## Pretraining {#what-the-pretrained-body-is-worth}", "encoder"),
        ('<p class="share">', "fraction"),
    ],
    "module.py": [
        ("def test_the_rate_rises(): pass", "learning rate"),
        ("async def find_place(): pass", "position"),
        ("class WideLayer: pass", "feed-forward network"),
        ("def f(mean_spread): pass", "standard deviation"),
        ("lambda place: 0", "position"),
        ("import numpy as floor_of", "baseline"),
        ("from a import b as share", "fraction"),
        ("rates = [1e-3]", "learning rate"),
        ("self.head_shares = 1", "fraction"),
        ("for colour in row: pass", "American spelling"),
        ('record = {"operations_per_second": 1}', "FLOPs"),
        ('record = {"places": 1}', "position"),
        ('parser.add_argument("--corpus", help="the ledger")', "results"),
        ('print(f"{n} tokens are covered")', "masked"),
        ('svg = f"<text>{n} undecided</text>"', "inconclusive"),
        ("""svg = f'<path class="share n{i}"/>'""", "fraction"),
        ("# It has no number.", "NaN"),
    ],
    "script.js": [
        ("const shares = [];", "fraction"),
        ("this.numShares = 1;", "fraction"),
        ("function place(x) {}", "position"),
        ("// The rate of a step\n", "learning rate"),
        ("/* A hidden letter */", "masked"),
        ('draw("path", { class: "shares" });', "fraction"),
        ("say(`${n} undecided`);", "inconclusive"),
    ],
    "style.css": [
        (".live .share.n2 { fill: red; }", "fraction"),
        (".bar-spread { fill: red; }", "standard deviation"),
        ("a { width: var(--share); }", "fraction"),
        ("/* The colour of a bar */", "American spelling"),
    ],
}


@pytest.mark.parametrize(
    ("file", "text", "term"), [(file, *row) for file, rows in PLANTED.items() for row in rows]
)
def test_a_retired_word_is_detected(tmp_path: Path, file: str, text: str, term: str) -> None:
    path = tmp_path / file
    path.write_text(text, "utf-8")
    (problem, *_) = retired_words(path)
    assert problem.endswith(f"say {term}")


def test_the_guide_lists_every_term() -> None:
    guide = (ROOT / "LANGUAGE.md").read_text("utf-8")
    assert [term for term in PROSE if term not in guide] == []


STANDARD = {
    "page.md": [
        "the learning rate, a mask rate of 30%",
        "hidden states, and the hidden size is $D$",
        "It takes the place of a layer, changes it in place, and puts one in its place.",
        "it draws no number",
        "A shares words with B, and tokens that share a word",
        "a dot product, and the product of two numbers; the products are independent",
        "a model card, a function without its body, vowel signs, a graph of operations",
        "The samples are spread over all files, and a vocabulary covers nearly all words.",
        "a wise exercise raises otherwise precise noise, and comparisons and analyses arise",
    ],
    "module.py": [
        "from itertools import product",
        "hidden_size = num_hidden_layers = body = model_card = 1",
        "class InPlaceOutput: pass",
        "def test_two_layers_share_a_weight(): pass",
        "math.floor(x)",
    ],
    "script.js": ["const learningRate = Math.floor(document.body.offsetWidth); // in place"],
    "style.css": ["body { overflow: hidden; } .cards { color: var(--ink); }"],
}


@pytest.mark.parametrize(
    ("file", "text"), [(file, text) for file, texts in STANDARD.items() for text in texts]
)
def test_standard_terms_are_accepted(tmp_path: Path, file: str, text: str) -> None:
    path = tmp_path / file
    path.write_text(text, "utf-8")
    assert retired_words(path) == []


def test_a_participle_is_no_name(tmp_path: Path) -> None:
    path = tmp_path / "module.py"
    path.write_text("def test_given_words(shown: float) -> None:\n    given_words = 1\n")
    assert [line.partition("the name ")[2] for line in retired_words(path)] == ["'shown'"]


@pytest.mark.processes
def test_no_prose_and_no_name_uses_a_retired_word() -> None:
    assert everything_retired() == []


if __name__ == "__main__":
    print("\n".join(everything_retired()))
    sys.exit(bool(everything_retired()))
