"""The renderer on small sources and chapters of its own."""

import html
import json
from pathlib import Path

import markdown
import pytest
from bs4 import BeautifulSoup
from mkdocs.config import load_config

from docs.figures import attention
from docs.figures.quotable import quotable
from docs.figures.records import Record
from docs.figures.runs import recorded_runs
from docs.literate.expressions import chapter, evaluate, read_glossary
from docs.literate.names import Source, read_source, resolve
from docs.literate.page import notebook, source_page
from docs.literate.prose import fold_parts, keep_options, label_cells, prepare_for_search, tag_sections
from docs.literate.rows import PageError, read_rows
from docs.literate.samples import run_samples, update_outputs
from docs.literate.scripts import read_script, script_rows
from docs.literate.site import read_sources
from docs.site import SITE

ROOT = SITE.root
SOURCES = read_sources(ROOT, SITE.folders)
SMALL = '''r"""
# A title

What is $x$?
"""

import math

# Why it is two.
TWO = 2


class Thing:
    """
    ## A thing

    Has a `part`.
    """

    part: int
    """One line about it."""

    def work(self) -> int:
        """Works."""
        # A reason.
        return TWO * self.part  # (B, T)


def use(TWO: int) -> int:
    """Uses it."""
    return Thing().work() + TWO
'''


def small(tmp_path: Path, text: str = SMALL) -> dict[str, Source]:
    (tmp_path / "labml_bert").mkdir(exist_ok=True)
    (tmp_path / "labml_bert" / "small.py").write_text(text)
    return {"labml_bert.small": read_source(tmp_path, "labml_bert/small.py")}


def record(**changes: object) -> Record:
    points = [[n, 4.0 / n] for n in range(1, 11)]
    data = {
        "experiment": "mlm_tiny",
        "command": "python experiments/mlm_tiny.py",
        "date": "2026-01-01",
        "commit": None,
        "corpus": {"name": "c", "sha256": "0" * 64, "train_characters": 10, "valid_characters": 1},
        "parameters": 5,
        "versions": {"python": "3.11"},
        "hardware": {"device": "cpu", "name": "a_b", "cores": 2, "threads": 2, "precision": "float32"},
        "baselines": [{"name": "unigram", "loss": 3.0, "accuracy": 0.1}],
        "history": {"seconds": [[n, 2.0 * n] for n in range(1, 11)], "loss": points, "valid.loss": points},
        "result": {"loss": 0.4, "accuracy": 0.9, "steps": 10, "training_seconds": 20.0},
    }
    return Record("tiny", {**data, **changes})


def test_rows_begin_at_definitions_and_comments() -> None:
    rows = read_rows(SMALL, "small.py")
    assert [(row.first, row.name, row.heading) for row in rows] == [
        (1, "", "A title"),
        (9, "", ""),
        (13, "Thing", "A thing"),
        (20, "Thing.part", ""),
        (23, "Thing.work", "`Thing.work`"),
        (25, "", ""),
        (29, "use", "`use`"),
    ]
    assert rows[-1].last == len(SMALL.splitlines())


def test_names_are_followed_but_not_guessed(tmp_path: Path) -> None:
    sources = small(tmp_path)
    symbols = resolve(sources["labml_bert.small"], sources)
    anchors = {position: symbol.anchor for position, symbol in symbols.items()}
    assert anchors[(26, 15)] == "L10"
    assert anchors[(26, 26)] == "Thing.part"
    assert anchors[(31, 11)] == "Thing"
    # A parameter of the same name is not the constant.
    assert (31, 28) not in anchors


def test_anchors_stay_when_lines_are_put_above(tmp_path: Path) -> None:
    before = source_page(*(lambda s: (s["labml_bert.small"], s))(small(tmp_path)))
    moved = SMALL.replace("import math\n", "import math\n" + "x = 1\n" * 50)
    after = source_page(*(lambda s: (s["labml_bert.small"], s))(small(tmp_path, moved)))
    for anchor in ("{#Thing}", 'id="Thing.part"', "{#Thing.work}", "{#use}"):
        assert anchor in before and anchor in after


def test_a_swallowed_backslash_fails(tmp_path: Path) -> None:
    with pytest.raises(PageError, match=r"labml_bert/small.py:1: this docstring has a backslash"):
        small(tmp_path, '"""$\\nu$"""\n')
    small(tmp_path, '"""A doubled \\\\n is meant."""\n')


def test_a_bad_formula_fails_with_its_line(tmp_path: Path) -> None:
    sources = small(tmp_path, 'r"""$\\frac{$"""\n')
    with pytest.raises(PageError, match=r"^labml_bert/small.py:1: the formula"):
        source_page(sources["labml_bert.small"], sources)


@pytest.mark.parametrize("source", SOURCES.values(), ids=lambda source: source.path)
def test_the_notebook_holds_all_code(source: Source) -> None:
    book = json.loads(notebook(source))
    code = "".join("".join(c["source"]) + "\n" for c in book["cells"] if c["cell_type"] == "code")
    compile(code, source.path, "exec")
    folded = {n for row in source.rows for a, b in row.folded for n in range(a, b + 1)}
    for number, line in enumerate(source.text.splitlines(), 1):
        if number not in folded:
            assert line in code
    assert len({cell["id"] for cell in book["cells"]}) == len(book["cells"])


def test_expressions() -> None:
    names = quotable({"tiny": record()}, {}, "page")
    assert evaluate("1000 + 1", names) == "1,001"
    assert evaluate("ln(8) / ln(2):.1f", names) == "3.0"
    assert evaluate('run("tiny").result.loss:.2f', names) == "0.40"
    assert evaluate('baseline("tiny", "unigram").loss:.1f', names) == "3.0"
    assert evaluate('value_at("tiny", "valid.loss", 5):.1f', names) == "2.0"
    assert evaluate('seconds_until("tiny", "valid.loss", 3):.0f', names) == "4"
    assert evaluate('steps_until("tiny", "valid.loss", 3)', names) == "2"


def test_all_seeds_of_a_run() -> None:
    def seed(number: int, loss: float) -> Record:
        result = {"loss": loss, "accuracy": 0.5, "steps": 10, "training_seconds": 20.0}
        one = record(result=result, configuration={"seed": number})
        return Record(f"run-{number}", one.data)

    runs = [seed(0, 1.0), seed(1, 2.0), seed(10, 6.0)]
    names = quotable({"run-fixed-0": record(), **{one.name: one for one in runs}}, {}, "page")
    assert evaluate('over_seeds("run-*", "loss").mean:.1f', names) == "3.0"
    assert evaluate('over_seeds("run-*", "loss").max:.1f', names) == "6.0"
    table = evaluate('seed_table("run-*", labels=["short"], steps_below=3)', names)
    assert "| result | seed 0 | seed 1 | seed 10 | mean |" in table
    assert "| short: held-out loss, nats | 1.000 | 2.000 | 6.000 | 3.000 |" in table
    assert "| short: first step below 3 nats | 2 | 2 | 2 | |" in table
    assert "| never | never | never |" in evaluate('seed_table("run-*", labels=["a"], steps_below=0)', names)
    chart = BeautifulSoup(evaluate('chart("run-*", title="Loss", labels=["short"])', names), "html.parser")
    columns = [cell.string for cell in chart.select("thead th")]
    assert columns[1:] == ["short, seed 0", "short, seed 1", "short, seed 10"]
    assert len(chart.select(".key span, figcaption a")) >= 3 and "run-fixed" not in chart.get_text()
    with pytest.raises(PageError, match=r"no seed of walk-\*"):
        evaluate('provenance("walk-*")', names)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("open('x')", "no name 'open'"),
        ("ln.__self__", "private"),
        ('run("other")', "docs/runs has no other.json"),
        ("1 / 3", "say how many digits"),
        ("1 +", "not an expression"),
        ("1 / 0", "division by zero"),
        ('value_at("tiny", "lass", 5):.1f', "no metric 'lass'"),
        ('steps_until("tiny", "valid.loss", 0.1)', "never falls below 0.1"),
    ],
)
def test_expressions_that_fail(text: str, message: str) -> None:
    with pytest.raises(PageError, match=message):
        evaluate(text, quotable({"tiny": record()}, {}, "page"))


def test_text_of_a_record_is_text_where_it_is_quoted() -> None:
    one = record()
    bad = "<img src=x onerror=alert(1)>"
    one.data |= {"date": bad, "commit": "<b>"}
    provenance = quotable({"tiny": one}, {}, "page")["provenance"]
    page = BeautifulSoup(provenance("tiny"), "html.parser")
    assert bad in page.get_text() and "commit <b>" in page.get_text() and not page.select("img, b")


def test_a_chapter(tmp_path: Path) -> None:
    sources = small(tmp_path)
    glossary = "# Glossary\n\n## plateau\n\n<!-- also: plateaus -->\n\nA flat part. More.\n"
    text = (
        "# Title\n\nPlateaus, `Thing`, `plateau`, {{ 6 * 7 }}, $x_1$, `{{ 1 }}`. A plateau.\n\n"
        '{{ chart("tiny", title="Loss") }}\n\n{{ source("small.use") }}\n'
    )
    path = tmp_path / "chapter.md"
    path.write_text(text)
    names = quotable({"tiny": record()}, sources, "chapter")
    page = chapter(path, "chapter", sources, names, read_glossary(glossary))
    assert 'data-tip="A flat part.">Plateaus</a>' in page
    assert page.count('class="term"') == 1
    assert 'href="../labml_bert/small/#Thing"' in page
    assert "`plateau`, 42, <span" in page and "`{{ 1 }}`" in page
    assert page.count("<figure") == 2 and "maths: true" in page
    assert "Not checked against later code" in html.unescape(page)
    path.write_text("one\n\ntwo {{ nothing }}\n")
    with pytest.raises(PageError, match=r"^docs/pages/chapter.md:3: .*no name 'nothing'"):
        chapter(path, "chapter", sources, {}, [])
    path.write_text("one `{{ 1` two\n\n{{ 1 } } three\n")
    with pytest.raises(PageError, match=r"^docs/pages/chapter.md:3: {{ without }}"):
        chapter(path, "chapter", sources, {}, [])


def test_samples_run_in_order_and_are_rewritten() -> None:
    text = "a\n\n```python\nx = 2\n```\n\n    ```python\n    print(x)\n    ```\n\n"
    text += "    ```output\n    3\n    ```\n"
    assert [output for _, output in run_samples(text, "page")] == ["", "2\n"]
    assert update_outputs(text, "page") == text.replace("    3\n", "    2\n")
    for page in (text, '```python\nprint("# Card\\n\\n```sh\\nmake train\\n```\\n\\nend")\n```\n\nAfter.\n'):
        once = update_outputs(page, "page")
        assert update_outputs(once, "page") == once
    # The fence of an output is longer than any in it.
    assert once.endswith("\n\n````output\n# Card\n\n```sh\nmake train\n```\n\nend\n````\n\nAfter.\n")


def test_an_experiment_shows_its_runs() -> None:
    page = recorded_runs(SOURCES["experiments.mlm_tiny"], {"tiny": record()})
    assert (
        "{#run-tiny data-search-exclude}" in page and "<svg" in page and "| unigram | 3.000 | 10.0% |" in page
    )
    assert "No run has been recorded" in recorded_runs(SOURCES["experiments.mlm_tiny"], {})
    assert recorded_runs(SOURCES["labml_bert.mlm"], {}) == ""


HOSTILE = "<script>alert(1)</script> & a | b `c` **d** </td><img src=x onerror=alert(1)> [e](javascript:f)"


def test_what_a_run_met_is_text_on_every_page() -> None:
    """Names of corpora, machines and methods, and tokens in figures, never become HTML."""
    weights = [[[[0.25] * 4] * 4] * 2] * 2
    tokens = [HOSTILE, "[MASK]", "</svg><script>", "&|"]
    run = record(
        corpus={"name": HOSTILE, "sha256": "0" * 64, "train_characters": 10, "valid_characters": 1},
        hardware={"device": "cpu", "name": HOSTILE, "cores": 2, "threads": 2, "precision": "float32"},
        baselines=[{"name": HOSTILE, "loss": 3.0, "accuracy": 0.1}],
        versions={"python": HOSTILE},
        date=HOSTILE,
        command=f"python x.py {HOSTILE}\n```\n{HOSTILE}",
    )
    answers = {
        "tokens": tokens,
        "masks": [1],
        "guesses": [[[HOSTILE, 0.9], ["<b>", 0.1]]],
        "attentions": weights,
    }
    attention_record = record(result=answers)
    pages = [
        recorded_runs(SOURCES["experiments.mlm_tiny"], {"tiny": run}),
        *(
            figure(attention_record)
            for figure in (attention.predictions, attention.mask_rows, attention.head_map)
        ),
    ]
    for page in pages:
        soup = BeautifulSoup(rendered(page), "html.parser")
        assert soup.find_all(["script", "img", "b"]) == []
        assert [a for a in soup.find_all("a") if "javascript" in a.get("href", "")] == []
        assert not any(name.startswith("on") for tag in soup.find_all() for name in tag.attrs)
        assert "alert(1)" in soup.get_text()
    table = BeautifulSoup(rendered(pages[0]), "html.parser").find_all("table")[-1]
    assert {len(row.find_all(["td", "th"])) for row in table.find_all("tr")} == {2}, "a bar made a column"
    assert HOSTILE in table.get_text()


def rendered(page: str) -> str:
    """Renders a page as the site does, with the Markdown extensions of mkdocs.yml."""
    config = load_config(str(ROOT / "mkdocs.yml"))
    return markdown.markdown(
        page, extensions=config.markdown_extensions, extension_configs=config.mdx_configs
    )


def test_a_script_has_rows_too() -> None:
    text = (
        "// # Title\n//\n// Words.\n\n// ## Part\n//\n// More.\nexport class A {\n  constructor(x) {\n"
        "    this.x = x;\n  }\n\n  // Why.\n  go() {\n    // Here.\n    return 1; // (T, D)\n  }\n}\n\n"
        "function bare() {\n}\nfunction one() { return 1; }\n"
    )
    rows = script_rows(text, "a.js")
    assert [(row.first, row.last, row.ends, row.name, row.heading, row.prose) for row in rows] == [
        (1, 4, 0, "", "Title", "Words."),
        (5, 12, 18, "A", "Part", "More."),
        (13, 14, 17, "A.go", "", "Why."),
        (15, 19, 0, "", "", "Here."),
        (20, 21, 21, "bare", "", ""),
        (22, 22, 22, "one", "", ""),
    ]
    assert [row.folded for row in rows] == [[(1, 3)], [(5, 7)], [(13, 13)], [(15, 15)], [], []]


def test_a_definition_in_a_script_that_does_not_end_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.js").write_text("// Words.\nfunction f() {\n  return 1;\n  }\n")
    with pytest.raises(PageError, match=r"^a\.js, line 2: this definition needs a line with only"):
        read_script(tmp_path, "a.js")


def test_code_without_an_explanation_continues_beside_the_last_one(tmp_path: Path) -> None:
    (tmp_path / "small.py").write_text(
        'class Thing:\n    """Explains itself."""\n\n    def __init__(self):\n        self.one = 1\n\n'
        '    def work(self) -> int:\n        """Explains itself too."""\n        return self.one\n'
    )
    source = read_source(tmp_path, "small.py")
    rows = BeautifulSoup(source_page(source, {"small": source}), "html.parser").select(".row")
    lines = [[int(one["data-n"]) for one in row.select(".l [data-n]")] for row in rows]
    assert lines[-2:] == [[1, 2, 3, 4, 5, 6], [7, 8, 9]]
    assert rows[-2].select_one("#Thing\\.__init__ .l") is not None, "the definition keeps its anchor"


def test_a_table_that_is_too_wide_for_a_phone_has_labels() -> None:
    head = "<table>\n<thead><tr><th>a</th><th><i>b</i></th></tr></thead>"
    body = "<tbody><tr><th>1</th><td>2</td></tr></tbody></table>"
    labeled = '<tbody><tr><th data-label="a">1</th><td data-label="b">2</td></tr></tbody></table>'
    assert label_cells(f'<div class="wide">{head}{body}') == f'<div class="wide">{head}{labeled}'.replace(
        "<table>\n", "<table>"
    )
    assert label_cells(head + body) == head + body
    four = "<table><thead><tr>" + "<th>n</th>" * 4 + "</tr></thead><tbody><tr><td>1</td></tr></tbody></table>"
    assert '<td data-label="n">1</td>' in label_cells(four)


def test_folds_and_words_for_search() -> None:
    folded = fold_parts("<!-- fold: More -->\n<p>x</p>\n<!-- end of fold -->")
    assert folded == '<details class="part-fold"><summary>More</summary>\n<p>x</p>\n</details>'
    assert prepare_for_search("<!-- search: NER -->") == "<p hidden>search: NER</p>"
    line = '<span id="line-0-1"><span class="kn">import</span> <span class="nn">torch</span>\n</span>'
    assert prepare_for_search(line).count("<span data-search-exclude") == 2
    assert prepare_for_search(line.replace("kn", "k")) == line.replace("kn", "k")


def test_an_option_stays_on_one_line() -> None:
    html = '<p>--a</p><code><i title="x --b y">run</i> --to-c=web --D --e\n--f</code>'
    kept = html.replace("--to-c", "<o>--to-c</o>").replace("--e\n--f", "<o>--e</o>\n<o>--f</o>")
    assert keep_options(html) == kept.replace("<o>", '<span class="option">').replace("</o>", "</span>")


def test_the_words_of_a_search_comment_become_tags() -> None:
    sections = [
        {"text": "<p>search: NER, tagging</p> <p>Label each token.</p>"},
        {"text": "<p>A search: none</p>"},
    ]
    index = json.loads(tag_sections(json.dumps({"docs": sections})))
    assert index["docs"] == [{"text": " <p>Label each token.</p>", "tags": ["NER", "tagging"]}, sections[1]]
