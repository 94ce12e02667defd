"""
How the pages look, measured in headless Chromium: what fits on a phone, what forced colors and print keep,
how full the column of code is, and how large its type is.
"""

import gzip
import json
import re
from pathlib import Path

import pytest

from tests.support.serving import CHROMIUM, FLAGS, first_search_results, type_in_search

sync_api = pytest.importorskip("playwright.sync_api")
ROOT = Path(__file__).parents[2]
AXE = ROOT / "docs" / "node_modules" / "axe-core" / "axe.min.js"
SHEETS = [ROOT / "docs" / "theme" / "assets" / "book.css", ROOT / "docs" / "live" / "live.css"]
UNFOLD = "document.querySelectorAll('details').forEach(one => (one.open = true))"


def addresses(site: Path) -> list[str]:
    paths = (path.relative_to(site).as_posix() for path in sorted(site.glob("**/index.html")))
    return [address.removesuffix("index.html") for address in paths]


# The pages are divided, so that several test processes can share the work.
PARTS = 8


@pytest.mark.parametrize("part", [0, *(pytest.param(n, marks=pytest.mark.long) for n in range(1, PARTS))])
def test_every_page_fits_on_a_phone(site: Path, server: str, page: "sync_api.Page", part: int) -> None:
    """No page scrolls sideways at 320 pixels. At 390, no table, sample or drawing of a chapter is cut off."""
    cut = """[...document.querySelectorAll("#content :is(table, .highlight pre > code)")].filter((one) => {
      for (let at = one; at.id !== "content"; at = at.parentElement)
        if (at.scrollWidth > at.clientWidth + 3 && getComputedStyle(at).overflowX !== "visible") return true;
      return one.getBoundingClientRect().right > innerWidth;
    }).length + [...document.querySelectorAll("#content svg text")].filter((one) => {
      const [text, frame] = [one, one.ownerSVGElement].map((box) => box.getBoundingClientRect());
      return text.left < frame.left - 3 || text.right > frame.right + 3;
    }).length"""
    widths, counts = {}, {}
    for address in addresses(site)[part::PARTS]:
        page.set_viewport_size({"width": 390, "height": 844})
        page.goto(server + address)
        page.evaluate(UNFOLD)
        if not address.startswith("reference/"):
            counts[address] = page.evaluate(cut)
        page.set_viewport_size({"width": 320, "height": 700})
        widths[address] = page.evaluate("document.documentElement.scrollWidth")
    assert {address: width for address, width in widths.items() if width > 320} == {}
    assert {address: count for address, count in counts.items() if count} == {}


@pytest.mark.parametrize("font_size", [16, 20, pytest.param(24, marks=pytest.mark.long)])
def test_asides_and_outline_have_room_beside_the_scrollbar(
    server: str, browser: "sync_api.Browser", font_size: int
) -> None:
    """`font_size` is the browser's setting. The page hides what is wider than the window."""
    flags = [*FLAGS.split(), f"--blink-settings=defaultFontSize={font_size}"]
    other = browser.browser_type.launch(
        executable_path=CHROMIUM, args=flags, ignore_default_args=["--hide-scrollbars"]
    )
    page = other.new_page()
    page.goto(server + "idea/")
    assert page.evaluate("innerWidth > document.documentElement.clientWidth"), "no scrollbar"
    faults, counts = [], set()
    for width in (390, 960, 1100, 1220, 1240, 1280, 1311, 1312, 1440, 1640, 1920, 1968):
        page.set_viewport_size({"width": width, "height": 800})
        edges = page.evaluate("""
          [...document.querySelectorAll("#content > :is(p, h2, .aside), .masthead label, .masthead button")]
            .filter((one) => one.checkVisibility()).map((one) => one.getBoundingClientRect().right)""")
        if max(edges) > page.evaluate("document.documentElement.clientWidth") + 1:
            faults.append(f"cut off at {width}")
        outline, text = (page.locator(name).first.bounding_box() for name in (".outline", "#content > p"))
        counts.add(outline is not None)
        if outline and text and outline["x"] + outline["width"] > text["x"]:
            faults.append(f"the outline covers text at {width}")
    other.close()
    assert not faults and counts == {True, False}


def test_a_stacked_row_names_each_cell(server: str, page: "sync_api.Page") -> None:
    page.set_viewport_size({"width": 390, "height": 844})
    page.goto(server + "claims/")
    page.evaluate(UNFOLD)
    labels = page.eval_on_selector_all(
        "#short-to-long ~ details .wide td",
        "all => all.slice(0, 5).map(one => getComputedStyle(one, '::before').content)",
    )
    assert all(label not in ("none", '""') for label in labels) and len(labels) == 5


def test_the_claims_are_short_until_their_evidence_is_opened(server: str, page: "sync_api.Page") -> None:
    page.set_viewport_size({"width": 390, "height": 844})
    page.goto(server + "claims/", wait_until="networkidle")
    assert page.evaluate("document.documentElement.scrollHeight") <= 15_200
    verdicts = page.locator("#content > p > strong:has-text('Verdict:')")
    assert verdicts.count() == 20 and all(verdicts.nth(i).is_visible() for i in range(20))
    evidence = page.locator("#tying ~ .part-fold").first
    assert page.is_visible("#content > figure svg") and not evidence.locator("figure").is_visible()
    evidence.locator("> summary").click()
    assert evidence.locator("figure").first.is_visible()


EMPTY = """() => {
  let total = 0, used = 0;
  for (const code of document.querySelectorAll(".row > .code")) {
    total += code.getBoundingClientRect().height;
    for (const one of code.querySelectorAll(".l, summary, figure"))
      if (one.checkVisibility() && !one.parentElement.closest("figure"))
        used += one.getBoundingClientRect().height;
  }
  return 1 - used / total;
}"""


@pytest.mark.parametrize("address", ["labml_bert/mlm/", "labml_bert/bert/", "experiments/mlm_tiny/"])
def test_at_most_a_quarter_of_the_code_column_is_empty(
    server: str, page: "sync_api.Page", address: str
) -> None:
    page.goto(server + address, wait_until="networkidle")
    assert 0 < page.evaluate(EMPTY) < 0.25


def test_the_first_experiment_is_short(server: str, page: "sync_api.Page") -> None:
    page.goto(server + "experiments/mlm_tiny/", wait_until="networkidle")
    assert page.evaluate("document.documentElement.scrollHeight") <= 6_000


def test_the_typefaces_are_our_own(server: str, page: "sync_api.Page") -> None:
    page.goto(server + "labml_bert/mlm/", wait_until="networkidle")
    loaded = page.evaluate("[...document.fonts].filter(f => f.status === 'loaded').map(f => f.family)")
    assert {name.strip('"') for name in loaded} >= {"Text", "Code"}
    size = "getComputedStyle(document.querySelector('.code pre > code')).fontSize"
    assert page.evaluate(size) == "13.5px"


@pytest.mark.parametrize("address", ["", "labml_bert/mlm/", "live/", "claims/", "experiments/mlm_tiny/"])
def test_a_page_with_its_fonts_is_small(site: Path, server: str, page: "sync_api.Page", address: str) -> None:
    """Sizes are those after compression by the server. Font files are compressed already."""
    urls: set[str] = set()
    page.on("request", lambda request: urls.add(request.url.split("?")[0]))
    page.goto(server + address, wait_until="networkidle")
    sizes = {}
    for url in urls:
        path = site / url.removeprefix(server)
        data = (path / "index.html" if path.is_dir() else path).read_bytes()
        sizes[url] = len(data) if path.suffix == ".woff2" else len(gzip.compress(data, 9))
    assert any(url.endswith("fonts/text.woff2") for url in sizes)
    assert sum(sizes.values()) < 200_000, sizes


def test_the_text_of_all_charts_has_one_size(server: str, page: "sync_api.Page") -> None:
    sizes = set()
    for address in ("claims/", "stuck/", "experiments/mlm_tiny/", "ladder/"):
        page.goto(server + address)
        page.evaluate(UNFOLD)
        sizes |= {
            round(size, 1)
            for size in page.eval_on_selector_all(
                ".chart:not(.attention) svg[role] text:not(.token)",
                "all => all.map(t => t.getScreenCTM().a * parseFloat(getComputedStyle(t).fontSize))",
            )
        }
    assert len(sizes) == 1, sizes


@pytest.mark.parametrize("address", ["attention/", "scores/", "labml_bert/bert/", "labml_bert/mlm/"])
def test_the_text_of_a_diagram_is_legible_on_a_phone(
    server: str, page: "sync_api.Page", address: str
) -> None:
    page.set_viewport_size({"width": 390, "height": 844})
    page.goto(server + address)
    page.evaluate(UNFOLD)
    sizes = page.eval_on_selector_all(
        ".diagram .narrow text",
        "all => all.map(t => t.getScreenCTM().a * parseFloat(t.getAttribute('font-size')))",
    )
    assert sizes and min(sizes) >= 11


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_middle_lines_of_the_claims_are_visible(
    server: str, browser: "sync_api.Browser", scheme: str
) -> None:
    context = browser.new_context(color_scheme=scheme)
    page = context.new_page()
    page.goto(server + "claims/")
    style = "one => ['stroke', 'strokeWidth', 'vectorEffect'].map(name => getComputedStyle(one)[name])"
    stroke, width, effect = page.eval_on_selector(".zero", style)
    background = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert contrast(stroke, background) >= 4.5 and (width, effect) == ("1.5px", "non-scaling-stroke")
    context.close()


def contrast(one: str, other: str) -> float:
    """The contrast of two colors, as WCAG 2 defines it."""
    luminances = []
    for color in (one, other):
        parts = (int(part) / 255 for part in re.findall(r"\d+", color))
        red, green, blue = (c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts)
        luminances.append(0.2126 * red + 0.7152 * green + 0.0722 * blue + 0.05)
    return max(luminances) / min(luminances)


@pytest.mark.parametrize("width", [390, pytest.param(1440, marks=pytest.mark.long)])
def test_no_label_touches_a_curve(server: str, page: "sync_api.Page", width: int) -> None:
    """
    The labels of levels are placed where no curve passes, right of the axis, and the shapes tell the lines
    apart.
    """
    page.set_viewport_size({"width": width, "height": 844})
    touching = """[...document.querySelectorAll(".chart svg[role]:has(.grid)")].flatMap((svg) => {
      const curves = [...svg.querySelectorAll("path.line")];
      return [...svg.querySelectorAll("text.level")].filter((label) => {
        const box = label.getBBox();
        return box.x < svg.querySelector(".grid").getBBox().x || curves.some((curve) => {
          const length = curve.getTotalLength();
          for (let at = 0; at <= length; at += 3) {
            const { x, y } = curve.getPointAtLength(at);
            const isInside = x > box.x && x < box.x + box.width;
            if (isInside && y > box.y + 3 && y < box.y + box.height - 3) return true;
          }
          return false;
        });
      }).map((label) => svg.querySelector("title").textContent + ": " + label.textContent);
    })"""
    for address in ("stuck/", "experiments/mlm_tiny/", "experiments/mlm_modern/", "experiments/bert_tiny/"):
        page.goto(server + address)
        page.evaluate(UNFOLD)
        assert page.evaluate(touching) == [], address
        lines = page.eval_on_selector_all("svg[role] .line.n2", "all => all.length")
        assert lines == page.eval_on_selector_all("svg[role] .mark.n2", "all => all.length") > 0


def test_a_sample_can_be_copied(server: str, page: "sync_api.Page") -> None:
    page.goto(server + "idea/")
    sample = page.locator(".highlight:not(.output)").first
    sample.hover()
    sample.locator(".copy").click()
    page.wait_for_selector("text=Copied")
    copied = page.evaluate("navigator.clipboard.readText()")
    assert copied == sample.locator("code").text_content() and copied.count("\n") > 1


@pytest.mark.parametrize("scheme", ["light", pytest.param("dark", marks=pytest.mark.long)])
def test_forced_colors_keep_bars_and_squares(server: str, browser: "sync_api.Browser", scheme: str) -> None:
    context = browser.new_context(color_scheme=scheme, forced_colors="active")
    page = context.new_page()
    page.goto(server)
    color = "all => all.map(one => getComputedStyle(one).backgroundColor)"
    canvas = page.evaluate("getComputedStyle(document.body).backgroundColor")
    bars = page.eval_on_selector_all(".guesses i", color)
    assert bars and canvas not in bars and "rgba(0, 0, 0, 0)" not in bars
    for address in ("", "labml_bert/mlm/", "claims/", "attention/"):
        page.goto(server + address)
        page.evaluate("reachable()")
        page.evaluate(AXE.read_text("utf-8"))
        violations = page.evaluate("axe.run({resultTypes: ['violations']}).then(result => result.violations)")
        assert [(address, one["id"], one["nodes"][0]["html"][:200]) for one in violations] == []
    context.close()


def test_print_repeats_no_docstring_and_keeps_figures_whole(server: str, page: "sync_api.Page") -> None:
    page.goto(server + "labml_bert/mlm/")
    page.eval_on_selector(".fold", "one => (one.open = true)")
    page.emulate_media(media="print")
    visible_lines = "[...document.querySelectorAll('.fold .l')].filter(one => one.checkVisibility()).length"
    assert page.evaluate(visible_lines) == 0
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    for selector, name, value in (("h2", "breakAfter", "avoid"), ("figure", "breakInside", "avoid")):
        style = f"getComputedStyle(document.querySelector('#content {selector}')).{name}"
        assert page.evaluate(style) == value


def test_webkit_can_read_our_underlines() -> None:
    """WebKit ignores the shorthand `text-decoration` if it has a style, a color or a thickness."""
    for sheet in SHEETS:
        assert set(re.findall(r"text-decoration: ([^;]+);", sheet.read_text("utf-8"))) <= {
            "none",
            "underline",
        }


def test_no_seam_shows_between_two_rows(server: str, page: "sync_api.Page") -> None:
    """Without a shadow, Firefox shows a line between rows whose heights aren't whole numbers of pixels."""
    page.goto(server + "labml_bert/mlm/")
    leaf, shadow = page.eval_on_selector(
        ".row > .code",
        "one => [getComputedStyle(one).backgroundColor, getComputedStyle(one).boxShadow]",
    )
    assert shadow == f"{leaf} 0px 1px 0px 0px"


@pytest.mark.parametrize("width", [390, 1440])
def test_three_search_results_fit_on_a_screen(server: str, page: "sync_api.Page", width: int) -> None:
    page.goto(server, wait_until="networkidle")
    page.set_viewport_size({"width": width, "height": 844})
    type_in_search(page, "attention")
    bottoms = page.eval_on_selector_all(
        ".md-search-result__item", "all => all.map(one => one.getBoundingClientRect().bottom)"
    )
    assert len(bottoms) > 3 and bottoms[2] < 844
    links = page.eval_on_selector_all(
        ".md-search-result__item", "all => all.map(one => one.querySelector('a').href)"
    )
    assert not any("labml_bert/" in link.removeprefix(server) for link in links[:2]), "chapters come first"


SYNONYMS = {
    "OOM": "cost/#does-it-fit-into-the-gpus-memory",
    "NER": "heads/#tokens-and-spans",
    "huggingface": "decoder/#published-checkpoints",
    "Colab": "about/#code",
    "lr": "glossary/#learning-rate",
    "fp16": "glossary/#mixed-precision",
    "finetuning": "glossary/#fine-tuning",
    "vocab": "glossary/#vocabulary",
}


def test_search_knows_the_words_that_people_type(server: str, page: "sync_api.Page") -> None:
    assert first_search_results(page, server, SYNONYMS) == SYNONYMS


def test_the_search_index_holds_no_imports_and_no_runs(site: Path) -> None:
    index = json.loads((site / "search" / "search_index.json").read_text("utf-8"))
    text = {entry["location"]: re.sub(r"<[^>]+>", "", entry["text"]) for entry in index["docs"]}
    imports = {
        at for at, words in text.items() if re.search(r"^import \w+$|^from [\w.]+ import \w", words, re.M)
    }
    # A few functions import what only they need.
    assert not {at for at in imports if not at.startswith("labml_bert/")}
    assert not [at for at, words in text.items() if re.search(r"\bsha256 [0-9a-f]{8}|\d+ steps, loss", words)]
