"""
Every page in headless Chromium, as a reader meets it: wide and narrow, light and dark.

The browser is the one of the machine (`chromium` or `google-chrome` on the path, or $CHROMIUM); without
one these tests are skipped. axe comes from npm, with KaTeX.
"""

import functools
import http.server
import os
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

sync_api = pytest.importorskip("playwright.sync_api")
ROOT = Path(__file__).parents[2]
AXE = ROOT / "docs" / "node_modules" / "axe-core" / "axe.min.js"
CHROMIUM = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("google-chrome")
FLAGS = (
    "--no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking "
    "--disable-component-update --disable-sync"
)
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine")


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture(scope="module")
def server(site: Path) -> Iterator[str]:
    handler = functools.partial(Quiet, directory=str(site))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as served:
        threading.Thread(target=served.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{served.server_port}/"
        served.shutdown()


@pytest.fixture(scope="module")
def browser(server: str) -> Iterator["sync_api.Browser"]:
    with sync_api.sync_playwright() as playwright:
        # Playwright gives each start an empty user-data-dir of its own.
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS.split())
        yield browser
        browser.close()


def addresses(site: Path) -> list[str]:
    found = (path.relative_to(site).as_posix() for path in sorted(site.glob("**/index.html")))
    return [address.removesuffix("index.html") for address in found]


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1440, 390])
def test_every_page_is_sound(
    site: Path, server: str, browser: "sync_api.Browser", width: int, scheme: str
) -> None:
    context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
    page = context.new_page()
    wrong: list[str] = []
    page.on("console", lambda m: wrong.append(m.text) if m.type in ("error", "warning") else None)
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.on("request", lambda r: None if r.url.startswith((server, "data:")) else wrong.append(r.url))
    page.on("response", lambda r: wrong.append(f"{r.status} {r.url}") if r.status >= 400 else None)
    for address in addresses(site):
        page.goto(server + address, wait_until="networkidle")
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), f"{address} scrolls"
        used = page.evaluate("document.body.dataset.mdColorScheme")
        assert used == {"light": "default", "dark": "slate"}[scheme]
        page.evaluate("document.querySelectorAll('details').forEach(one => one.open = true)")
        page.add_script_tag(path=AXE)
        found = page.evaluate("axe.run({resultTypes: ['violations']}).then(result => result.violations)")
        wrong += [
            f"{address}: {one['id']}: {one['nodes'][0]['html'][:120]}: {one['nodes'][0]['failureSummary']}"
            for one in found
        ]
    context.close()
    assert not wrong, "\n".join(wrong)


@pytest.fixture
def page(browser: "sync_api.Browser") -> Iterator["sync_api.Page"]:
    context = browser.new_context(viewport={"width": 1440, "height": 900}, color_scheme="light")
    context.grant_permissions(["clipboard-read", "clipboard-write"])
    yield context.new_page()
    context.close()


@pytest.mark.parametrize(
    ("words", "place"),
    [
        ("masked_fill", "labml_bert/mlm/"),
        ("plateau", "experiments/mlm_tiny/"),
        ("NSP", "labml_bert/nsp/"),
        ("tied", "labml_bert/mlm/"),
    ],
)
def test_typing_in_the_search(server: str, page: "sync_api.Page", words: str, place: str) -> None:
    page.goto(server, wait_until="networkidle")
    page.keyboard.press("/")
    page.keyboard.type(words)
    page.wait_for_selector(".md-search-result__link")
    # The list follows the typing.
    page.wait_for_timeout(1000)
    links = page.eval_on_selector_all(".md-search-result__link", "all => all.map(one => one.href)")
    assert any(place in link for link in links), links


def test_the_keyboard_reaches_everything(server: str, page: "sync_api.Page") -> None:
    page.goto(server + "labml_bert/mlm/")
    wanted = page.eval_on_selector_all(
        "a[href]:not([tabindex='-1']):not([hidden]), button:not([tabindex='-1']), summary",
        "all => all.filter(one => one.checkVisibility({visibilityProperty: true})).length",
    )
    reached = set()
    for _ in range(wanted * 2):
        page.keyboard.press("Tab")
        mark = page.evaluate(
            "() => { const at = document.activeElement; if (!at || at === document.body) return null;"
            "if (!at.dataset.seen) at.dataset.seen = ++window.seen || (window.seen = 1);"
            "return at.dataset.seen }"
        )
        if mark is None:
            break
        reached.add(mark)
    missed = page.eval_on_selector_all(
        "a[href]:not([tabindex='-1']):not([hidden]), button:not([tabindex='-1']), summary",
        "all => all.filter(one => one.checkVisibility({visibilityProperty: true}) && !one.dataset.seen)"
        ".map(one => one.outerHTML.slice(0, 120))",
    )
    assert not missed


def test_the_first_stop_is_a_way_past_the_bar(server: str, page: "sync_api.Page") -> None:
    page.goto(server + "labml_bert/mlm/")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.classList.contains('md-skip')")
    page.wait_for_timeout(400)
    assert page.evaluate("getComputedStyle(document.activeElement).opacity") == "1"


def test_the_contents_open_and_close_by_keyboard(server: str, page: "sync_api.Page") -> None:
    page.goto(server + "labml_bert/mlm/")
    page.focus(".contents-button")
    page.keyboard.press("Enter")
    assert page.is_visible("#contents")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.closest('#contents') !== null")
    page.keyboard.press("Escape")
    assert not page.is_visible("#contents")


def test_copying(server: str, page: "sync_api.Page") -> None:
    page.goto(server + "labml_bert/mlm/")
    page.click("text=Copy file")
    page.wait_for_selector("text=Copied")
    assert page.evaluate("navigator.clipboard.readText()") == (ROOT / "labml_bert/mlm.py").read_text("utf-8")


def test_a_selection_holds_no_line_numbers(server: str, page: "sync_api.Page") -> None:
    page.goto(server + "labml_bert/mlm/")
    text = page.evaluate(
        "() => { const code = document.querySelector('#MaskedLM + .row pre.lines');"
        "getSelection().selectAllChildren(code); return getSelection().toString() }"
    )
    assert text.startswith("class MaskedLM(nn.Module):")


def test_a_name_explains_itself_on_focus(server: str, page: "sync_api.Page") -> None:
    page.goto(server + "experiments/mlm_tiny/")
    page.focus(".code a.ref[data-tip]")
    assert page.is_visible("#tip")
    assert page.inner_text("#tip")
    page.keyboard.press("Escape")
    assert not page.is_visible("#tip")


def test_a_link_into_folded_lines_unfolds_them(server: str, page: "sync_api.Page") -> None:
    page.goto(server + "labml_bert/mlm/#L5")
    assert page.evaluate("document.getElementById('L5').closest('details').open")
    page.focus("#L5")
    page.keyboard.press("ArrowDown")
    assert page.evaluate("document.activeElement.id") == "L6"


def test_a_section_is_where_its_link_leads(server: str, page: "sync_api.Page") -> None:
    page.goto(server + "labml_bert/mlm/#MaskedLM.forward")
    page.wait_for_timeout(300)
    top = page.evaluate("document.getElementById('MaskedLM.forward').getBoundingClientRect().top")
    assert 40 < top < 300


def test_the_theme_can_be_switched(server: str, page: "sync_api.Page") -> None:
    page.goto(server)
    page.click("label[title='Switch to dark']")
    assert page.evaluate("document.body.dataset.mdColorScheme") == "slate"
