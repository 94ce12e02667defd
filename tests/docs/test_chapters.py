"""The chapters: their samples run and print exactly what the page shows."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

from docs.figures.attention import head_map, mask_rows, most_focused, predictions
from docs.figures.records import Record
from docs.literate.rows import PageError
from docs.literate.samples import run_samples

ROOT = Path(__file__).parents[2]
PAGES = sorted((ROOT / "docs" / "pages").glob("**/*.md"))


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.stem)
def test_samples_print_what_the_page_shows(path: Path) -> None:
    for match, output in run_samples(path.read_text("utf-8"), str(path)):
        expected = re.sub(rf"^{match['indent']}", "", match["output"] or "", flags=re.M)
        line = path.read_text("utf-8").count("\n", 0, match.start()) + 1
        assert output == expected, f"{path.name}:{line}; run: python -m docs samples {path.name}"


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.stem)
def test_no_expression_is_a_literal_number(path: Path) -> None:
    """A measured number must come from a record; a literal in braces would only look as if it did."""
    for expression in re.findall(r"\{\{ (.+?) \}\}", path.read_text("utf-8"), re.S):
        assert not re.fullmatch(r"[\d_.]+", expression.strip()), expression


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.stem)
def test_a_box_has_its_text_below_its_title(path: Path) -> None:
    """With text after its title, it would be a paragraph that begins with `!!!` or `???`."""
    assert not re.findall(r'^ *(?:!!!|\?\?\?)\+? \w+ "[^"]*" +\S.*', path.read_text("utf-8"), re.MULTILINE)


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.stem)
def test_no_expression_is_inside_backticks(path: Path) -> None:
    """Inside backticks, an expression would not be evaluated."""
    prose = re.sub(r"```.*?```", "", path.read_text("utf-8"), flags=re.S)
    assert not re.findall(r"`[^`\n]*\{\{ [^`\n]*`", prose)


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.stem)
def test_chapters_avoid_empty_words_and_exclamation_marks(path: Path) -> None:
    prose = re.sub(r"```.*?```|`[^`]*`|\{\{.*?\}\}|\([^)]*\)", "", path.read_text("utf-8"), flags=re.S)
    assert not re.findall(r"\b(?:simply|just|obviously|easy-peasy)\b", prose, re.I)
    assert not re.findall(r"\w![\s\"]", prose)


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.stem)
def test_samples_are_python(path: Path) -> None:
    for block in re.findall(r"^```py\n(.*?)^```", path.read_text("utf-8"), re.S | re.M):
        ast.parse(block)


def small_map() -> Record:
    """Three tokens, one layer, two heads: one attends uniformly, the other only to the last token."""
    even, last = [[1 / 3] * 3] * 3, [[0.0, 0.0, 1.0]] * 3
    result = {
        "text": "a[MASK]<",
        "tokens": ["a", "[MASK]", "<"],
        "masks": [1],
        "guesses": [[["b", 0.75], ["&", 0.25]]],
        "attentions": [[even, last]],
    }
    return Record("small", {"result": result})


def test_a_prediction_fills_the_sentence() -> None:
    figure = predictions(small_map())
    assert '<th scope="row">a<mark>b</mark>&lt;</th>' in figure
    assert "75.0%" in figure and "&amp;" in figure


def test_the_size_of_a_square_is_the_attention_weight() -> None:
    figure = mask_rows(small_map())
    assert figure.count("<path d=") == 3 + 1
    assert "h17.0v17.0" in figure and "&lt;" in figure
    assert "\n" not in figure


def test_the_most_focused_head_is_the_default() -> None:
    record = small_map()
    assert most_focused(record.data["result"]["attentions"]) == (0, 1)
    assert "Layer 1, head 2" in head_map(record)


def test_a_record_without_attention_weights_is_rejected() -> None:
    with pytest.raises(PageError, match="has no attention weights"):
        predictions(Record("other", {"result": {"loss": 1.0}}))


def test_the_name_of_a_page_cannot_control_the_terminal(tmp_path: Path) -> None:
    words = [sys.executable, "-m", "docs", "samples", str(tmp_path / "x\x1b[31m.md")]
    process = subprocess.run(words, cwd=ROOT, capture_output=True, text=True)
    assert process.returncode == 2
    assert re.fullmatch(r"error: .*x\?\[31m\.md.*\n", process.stderr)
