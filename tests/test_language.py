"""
Prose and names use the field's terms: each retired word has a standard term that replaces it.

Prose is what people read: the README, the chapters, docstrings and comments. Names are those of functions,
classes, parameters and variables. Run as a script, this file prints every retired word with its replacement:

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
# The field's term, and a pattern for the retired words that it replaces.
PROSE = {
    "learning rate": r"(?<!learning )(?<!learning-)(?<!mask )(?<!masking )(?<!decay )(?<!error )"
    r"(?<!sampling )(?<!warmup )(?<!frame )\brates?\b(?! of (?:the )?(?:mask|decay))",
    "position": r"\b(?:at|from|of|many|these|which|random|masked|other|all|two|its|right|one) places?\b"
    r"(?! of\b)|\bin (?:\w+ )?places\b",
    "standard deviation": r"\b(?:of|a|the|its|with|initial|large|small) spread\b",
    "baseline": r"\bfloors?\b|\b(?:line|entropy|loss) of the frequencies\b",
    "masked": r"\b(?:covered|covering|covers) (?:\w+ )?(?:tokens?|letters?|words?|characters?|positions?)\b"
    r"|\bhidden (?:tokens?|letters?|words?|characters?|pieces?|places?|positions?)\b",
    "fraction": r"\bshares? of (?!the work)",
    "accuracy": r"\|\s*right\s*\||\bright answers\b|\bshare of right\b",
    "results": r"\bledgers?\b",
    "inconclusive": r"\bundecided\b",
    "special tokens": r"\b(?:special|the \w+|unprintable|of|other) signs\b",
    "encoder": r"\bthe body of the (?:model|network)\b",
    "feed-forward network": r"\bwide layers?\b",
    "matrix multiplications": r"\b(?:large|matrix|big) products?\b|\bproducts? of matrices\b",
    "FLOPs": r"\bfloating-point operations\b|\boperations a (?:second|byte|token)\b",
    "GPU": r"\bgraphics? cards?\b|\bon a card\b|\ba card's\b",
    "NaN": r"(?<!draws )(?<!draw )\bno number\b",
    "credit assignment": r"\bblame[sd]?\b",
    "American spelling": r"\b\w*(?:neighbour|colour|behaviour|favour)\w*\b"
    r"|\b\w*(?:optimi|normali|initiali|tokeni|memori|summari|regulari)s(?:e|ed|es|er|ers|ing|ation)\b"
    r"|\b(?:un)?labelled\b|\bmodelling\b",
}
# Retired names, and participles, which don't say what a value is.
NAMES = frozenset(
    [
        "about",
        "asked",
        "changed",
        "chosen",
        "covered",
        "drawn",
        "fill",
        "fitting",
        "floor",
        "floors",
        "found",
        "frequencies",
        "given",
        "joined",
        "known",
        "ledger",
        "made",
        "marks",
        "printed",
        "recorded",
        "requested",
        "share",
        "shares",
        "shown",
        "spread",
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
# Names in which a word has another meaning than the retired one.
ALLOWED_NAMES = {
    # A line of a file, not a position in a sequence.
    "test_a_bad_formula_fails_with_its_place",
}


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


def prose_of(path: Path) -> Iterator[tuple[int, str]]:
    """The texts in a file that people read, each with the number of its first line."""
    text = read(path)
    if path.suffix == ".py":
        for node in nodes_of(path):
            if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
                text_of_node = node.value.value
                if isinstance(text_of_node, str):
                    yield node.lineno, text_of_node
        for token in tokenize.generate_tokens(io.StringIO(text).readline):
            if token.type == tokenize.COMMENT:
                yield token.start[0], token.string
    else:
        # Code has its own check; links and expressions contain the names of files and records.
        closed = r"```.*?```|`[^`\n]*`|\{\{.*?\}\}|\]\([^)]*\)|<[^>]*>|\{#[^}]*\}"
        yield 1, re.sub(closed, lambda match: re.sub(r"[^\n]", " ", match[0]), text, flags=re.S)


def retired_words(path: Path) -> Iterator[str]:
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


def names_in(path: Path) -> Iterator[tuple[int, str]]:
    """The names that a Python file defines, with their line numbers."""
    for node in nodes_of(path):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            yield node.lineno, node.name
        elif isinstance(node, ast.arg):
            yield node.lineno, node.arg
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.lineno, node.id
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.lineno, node.attr


def retired_names(path: Path) -> Iterator[str]:
    """
    Each retired name in a Python file, and each name of a function or class that contains a retired word.
    """
    for line, name in names_in(path):
        if name.lower() in NAMES:
            yield f"{path}:{line}: the name {name!r}"
    for node in nodes_of(path):
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and node.name not in ALLOWED_NAMES:
            for term, pattern in PROSE.items():
                if re.search(pattern, node.name.replace("_", " "), re.I):
                    yield f"{path}:{node.lineno}: the name {node.name!r}, say {term}"


def everything_retired() -> list[str]:
    """All retired words and names in the repository."""
    python = [path for path in tracked("*.py") if path != Path(__file__).relative_to(ROOT)]
    pages = tracked("README.md", "CONTRIBUTING.md", "docs/pages/*.md", ".github/*.md")
    words = [line for path in [*python, *pages] for line in retired_words(path)]
    return words + [line for path in python for line in retired_names(path)]


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("the rate rises", "learning rate"),
        ("the optimiser", "American spelling"),
        ("the ledger of claims", "results"),
        ("on a graphics card", "GPU"),
        ("a hidden letter", "masked"),
    ],
)
def test_a_retired_word_is_detected(text: str, word: str) -> None:
    assert re.search(PROSE[word], text, re.I)


def test_the_guide_lists_every_term() -> None:
    guide = (ROOT / "LANGUAGE.md").read_text("utf-8")
    assert [term for term in PROSE if term not in guide] == []


@pytest.mark.parametrize(
    "text",
    ["the learning rate", "a mask rate of 30%", "hidden states", "take place of", "it draws no number"],
)
def test_standard_terms_are_accepted(text: str) -> None:
    assert not [word for word, pattern in PROSE.items() if re.search(pattern, text, re.I)]


def test_a_retired_word_in_a_name_is_detected(tmp_path: Path) -> None:
    path = tmp_path / "module.py"
    path.write_text("def test_the_rate_rises(shown: float) -> None:\n    learning_rate = 1\n")
    assert [line.partition("the name ")[2] for line in retired_names(path)] == [
        "'shown'",
        "'test_the_rate_rises', say learning rate",
    ]


@pytest.mark.processes
def test_no_prose_and_no_name_uses_a_retired_word() -> None:
    assert everything_retired() == []


if __name__ == "__main__":
    print("\n".join(everything_retired()))
    sys.exit(bool(everything_retired()))
