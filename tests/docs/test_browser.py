"""
Every page in headless Chromium as readers see it: wide and narrow, light and dark.

Without a browser, these tests are skipped. axe comes from npm, together with KaTeX.
"""

import ast
import re
from pathlib import Path
from urllib.parse import urljoin

import pytest

from tests.support.serving import first_search_results, type_in_search

sync_api = pytest.importorskip("playwright.sync_api")
ROOT = Path(__file__).parents[2]
AXE = ROOT / "docs" / "node_modules" / "axe-core" / "axe.min.js"


PAPER = {"light": "rgb(252, 250, 245)", "dark": "rgb(26, 25, 23)"}


def paper(page: "sync_api.Page") -> str:
    return str(page.evaluate("getComputedStyle(document.body).backgroundColor"))


def addresses(site: Path) -> list[str]:
    paths = (path.relative_to(site).as_posix() for path in sorted(site.glob("**/index.html")))
    return [address.removesuffix("index.html") for address in paths]


PRELOAD = "was preloaded using link preload but not used within a few seconds"
# The pages are divided, so that several test processes can share the work.
PARTS = 24


# Layout depends on the width and colors on the scheme, so two of the four combinations cover both.
# Every 24th page is tested each time, and the others in `make test-long`.
@pytest.mark.parametrize(("width", "scheme"), [(1440, "light"), (390, "dark")])
@pytest.mark.parametrize("part", [0, *(pytest.param(n, marks=pytest.mark.long) for n in range(1, PARTS))])
def test_every_page_is_accessible_and_has_no_errors(
    site: Path, server: str, browser: "sync_api.Browser", width: int, scheme: str, part: int
) -> None:
    context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
    page = context.new_page()
    problems: list[str] = []
    # On a busy machine, Chromium warns about fonts that it will use later. The next test checks them.
    page.on(
        "console",
        lambda m: (
            problems.append(m.text) if m.type in ("error", "warning") and PRELOAD not in m.text else None
        ),
    )
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.on("request", lambda r: None if r.url.startswith((server, "data:")) else problems.append(r.url))
    page.on("response", lambda r: problems.append(f"{r.status} {r.url}") if r.status >= 400 else None)
    axe = AXE.read_text("utf-8")
    for address in addresses(site)[part::PARTS]:
        page.goto(server + address)
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), f"{address} scrolls"
        assert paper(page) == PAPER[scheme]
        page.evaluate("document.querySelectorAll('details').forEach(one => one.open = true)")
        page.evaluate("reachable()")
        # Evaluate axe rather than adding a script tag, which the page's Content Security Policy would block.
        page.evaluate(axe)
        violations = page.evaluate("axe.run({resultTypes: ['violations']}).then(result => result.violations)")
        problems += [
            f"{address}: {one['id']}: {one['nodes'][0]['html'][:120]}: {one['nodes'][0]['failureSummary']}"
            for one in violations
        ]
    context.close()
    assert not problems, "\n".join(problems)


def test_each_preloaded_font_is_one_that_the_page_uses(server: str, page: "sync_api.Page") -> None:
    preloaded: list[str] = []

    def without_preload(route: "sync_api.Route") -> None:
        response = route.fetch()
        preload = r'<link rel="preload" as="font" [^>]*href="([^"]+)"[^>]*>'
        preloaded.extend(urljoin(route.request.url, name) for name in re.findall(preload, response.text()))
        route.fulfill(response=response, body=re.sub(preload, "", response.text()))

    page.route("**/labml_bert/mlm/", without_preload)
    page.goto(server + "labml_bert/mlm/", wait_until="networkidle")
    page.evaluate("document.fonts.ready.then(() => true)")
    loaded = page.evaluate("performance.getEntriesByType('resource').map(one => one.name)")
    assert preloaded
    assert {*preloaded} <= {*loaded}, loaded


@pytest.mark.parametrize(
    "keys", [["Enter"], pytest.param(["ArrowDown", "Enter"], marks=pytest.mark.long)], ids=" ".join
)
@pytest.mark.parametrize(
    ("words", "target"),
    [
        ("ordinary_ids", "labml_bert/mlm/?h=ordinary_ids#TokenMasker"),
        ("plateau", "glossary/?h=plateau#plateau"),
        ("NSP", "glossary/?h=nsp#next-sentence-prediction"),
        ("tied", "glossary/?h=tied#weight-tying"),
    ],
)
def test_the_first_search_result_is_the_right_section(
    server: str, page: "sync_api.Page", words: str, target: str, keys: list[str]
) -> None:
    page.goto(server, wait_until="networkidle")
    type_in_search(page, words)
    first = page.eval_on_selector_all(".md-search-result__link", "all => all[0].href")
    assert first == server + target
    for key in keys:
        page.keyboard.press(key)
    page.wait_for_url(server + target)
    assert page.evaluate("document.querySelector(':target').getBoundingClientRect().top < innerHeight")
    assert page.evaluate("CSS.highlights.get('found').size") > 0


# The words that a newcomer searches for, and the page or section that should come first.
QUERIES = {
    "learning rate": "glossary/#learning-rate",
    "learning rate schedule": "glossary/#learning-rate",
    "“learning rate” —schedule": "glossary/#learning-rate",
    "«perplexity»": "glossary/#perplexity",
    "cross\u2011entropy": "glossary/#cross-entropy",
    "perplexity": "glossary/#perplexity",
    "loss not decreasing": "stuck/",
    "why 80/10/10": "masking/",
    "segment embeddings": "embeddings/",
    "position embeddings": "embeddings/",
    "GPU": "glossary/#gpu",
    "fine-tune": "heads/",
    "warmup": "glossary/#warm-up",
    "weight tying": "glossary/#weight-tying",
    "attention mask": "glossary/#attention-mask",
    "padding": "glossary/#padding",
    "next sentence prediction": "next-sentence/",
    "vocabulary size": "glossary/#vocabulary",
    "WordPiece": "glossary/#wordpiece",
    "pretrain my own language": "own-language/",
    "how much does BERT cost": "cost/",
    "number of parameters": "glossary/#parameter",
    "decoder": "decoder/",
    "whole word masking": "masking/#whole-word-masking",
    "RoBERTa": "before-and-after/#roberta-how-good-is-bert-with-a-better-recipe",
    "gradient accumulation": "glossary/#gradient-accumulation",
    "batch size": "glossary/#batch-size",
    "confidence interval": "glossary/#confidence-interval",
    "data loader": "tensors/#do-you-need-a-dataloader",
    "what is BERT": "",
    "what is masked language modeling": "idea/",
    "what is [CLS]": "glossary/#special-token",
    "[SEP]": "glossary/#special-token",
    "what is a token": "glossary/#token",
    "multi-head attention": "attention/",
    "positional encoding": "glossary/#position-embedding",
    "layer norm": "glossary/#layernorm",
    "how many layers": "heads/#the-sizes-that-people-compare",
    "BERT vs GPT": "before-and-after/",
    "difference between BERT and GPT": "before-and-after/",
    "how to train BERT from scratch": "own-language/",
    "how much data do I need": "own-language/#step-1-the-text",
    "how long does training take": "cost/",
    "CUDA out of memory": "cost/",
    "training on multiple GPUs": "glossary/#data-parallelism",
    "loss is nan": "glossary/#nan",
    "model predicts the same word": "stuck/",
    "why is my loss 10": "idea/",
    "resume training": "glossary/#checkpoint",
    "save and load a model": "decoder/",
    "get started": "",
    "named entity recognition": "heads/#tokens-and-spans",
    "sentiment analysis": "heads/#fine-tune-on-your-own-labels",
    "sentence embeddings": "sentence-vectors/",
    "labels -100": "idea/#mask-some-tokens",
    "ignore_index -100": "idea/#mask-some-tokens",
    "text longer than 512 tokens": "embeddings/",
    # Contractions, possessives and curly apostrophes are left out.
    "why doesn't my loss decrease": "stuck/",
    "why doesn’t my loss fall": "stuck/",
    "BERT's decoder": "decoder/",
    # Signs of the query language are left out.
    "loss:": "glossary/#cross-entropy",
    "perplexity:": "glossary/#perplexity",
    "~GPU^": "glossary/#gpu",
    "-padding": "glossary/#padding",
}


@pytest.mark.parametrize("part", [0, *(pytest.param(n, marks=pytest.mark.long) for n in (1, 2))])
def test_the_first_result_answers_a_newcomers_query(server: str, page: "sync_api.Page", part: int) -> None:
    queries = dict([*QUERIES.items()][part::3])
    assert first_search_results(page, server, queries) == queries


def test_a_negative_number_in_a_query_excludes_no_page(server: str, page: "sync_api.Page") -> None:
    results = first_search_results(page, server, ["ignore_index -100", "ignore_index 100"])
    assert len({*results.values()}) == 1


def test_the_words_of_a_search_comment_stay_invisible(server: str, page: "sync_api.Page") -> None:
    page.goto(server, wait_until="networkidle")
    type_in_search(page, "named entity recognition")
    assert page.locator(".md-tag").count() > 0
    assert not page.locator(".md-tag >> visible=true").count()


@pytest.mark.parametrize(
    ("words", "count"), [("nsp", 0), ("in", 1), ("in%20%26%20beside", 2), ("%5C%28", None)]
)
def test_highlights_begin_at_the_start_of_a_word(
    server: str, page: "sync_api.Page", words: str, count: int | None
) -> None:
    """The letters nsp also occur inside "transposed", and parentheses are not words."""
    page.goto(server)
    page.evaluate("document.getElementById('content').textContent = 'Transposed beside and in.'")
    page.evaluate("words => history.replaceState(null, '', '?h=' + words)", words)
    page.evaluate("highlight()")
    highlight_count = page.evaluate("CSS.highlights.get('found')?.size")
    assert highlight_count == count


def test_search_on_a_phone(server: str, page: "sync_api.Page") -> None:
    page.set_viewport_size({"width": 390, "height": 844})
    page.goto(server)
    page.click(".masthead nav > label[for=__search]")
    sync_api.expect(page.locator("[data-md-component=search-query]")).to_be_focused()
    page.keyboard.type("plateau")
    page.wait_for_selector(".md-search-result__link")
    page.wait_for_timeout(500)
    box = page.evaluate("document.querySelector('.md-search__output').getBoundingClientRect().toJSON()")
    assert box["width"] == 390 and box["bottom"] == 844 and box["height"] > 700


def test_code_on_a_phone(server: str, page: "sync_api.Page") -> None:
    """No code is cut off, and selected text keeps its indentation."""
    page.set_viewport_size({"width": 390, "height": 844})
    page.goto(server + "labml_bert/bert/")
    # The browser skips the layout of what is far off screen.
    page.eval_on_selector_all("#content *", "all => all.map(one => one.style.contentVisibility = 'visible')")
    widths = page.eval_on_selector_all(
        ".code pre > code", "all => all.map(c => [c.scrollWidth, c.clientWidth])"
    )
    assert len(widths) > 50 and all(width <= available for width, available in widths)
    selected = """() => {
      const all = [...document.querySelectorAll("pre.lines")];
      const code = all.filter((one) => one.querySelectorAll("[data-n]").length > 5).at(-1);
      getSelection().selectAllChildren(code);
      return [String(getSelection()), [...code.querySelectorAll("[data-n]")].map((one) => +one.dataset.n)];
    }"""
    text, numbers = page.evaluate(selected)
    lines = (ROOT / "labml_bert" / "bert.py").read_text("utf-8").split("\n")[numbers[0] - 1 : numbers[-1]]
    assert text.rstrip("\n").split("\n") == lines and any(line.startswith("    ") for line in lines)


def test_the_search_code_is_fetched_only_for_a_search(server: str, page: "sync_api.Page") -> None:
    urls: list[str] = []
    page.on("request", lambda request: urls.append(request.url))
    page.goto(server + "labml_bert/mlm/")
    page.mouse.move(300, 500)
    page.mouse.wheel(0, 2000)
    page.keyboard.press("ArrowDown")
    page.click("#content a.ref", modifiers=["Alt"], trial=True)
    page.wait_for_timeout(500)
    search_files = "javascripts/bundle", "search_index", "workers/"
    assert urls and not [url for url in urls if any(part in url for part in search_files)]
    type_in_search(page, "plateau")
    page.wait_for_selector(".md-search-result__link")
    for part in search_files:
        assert any(part in url for url in urls), part


def test_search_tries_again_if_it_could_not_be_loaded(server: str, page: "sync_api.Page") -> None:
    page.route("**/javascripts/bundle*", lambda route: route.abort())
    page.goto(server + "labml_bert/mlm/", wait_until="networkidle")
    page.focus("[data-md-component=search-query]")
    page.wait_for_selector(".md-search-result__meta >> text=couldn't be loaded")
    page.keyboard.press("Escape")
    page.wait_for_selector(".md-search-result__meta", state="hidden")
    page.focus("[data-md-component=search-query]")
    page.unroute("**/javascripts/bundle*")
    page.keyboard.press("p")
    page.wait_for_selector("text=matching")


def test_search_takes_text_without_a_key(server: str, page: "sync_api.Page") -> None:
    """For example, a word that the mouse pastes."""
    page.goto(server, wait_until="networkidle")
    page.click("[data-md-component=search-query]")
    page.wait_for_selector("text=Type to start searching")
    page.keyboard.insert_text("plateau")
    page.wait_for_selector(".md-search-result__link")


def test_without_storage_the_scheme_still_changes(server: str, page: "sync_api.Page") -> None:
    errors: list[str] = []
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.add_init_script(
        "Object.defineProperty(window, 'localStorage',"
        "{ get() { throw new DOMException('', 'SecurityError') } })"
    )
    page.goto(server + "idea/", wait_until="networkidle")
    before = paper(page)
    page.click("#scheme")
    assert paper(page) != before and errors == []


def test_escape_returns_focus_from_the_search(server: str, page: "sync_api.Page") -> None:
    page.goto(server + "labml_bert/mlm/")
    page.focus("#content a.ref")
    link = page.evaluate("document.activeElement.href")
    for keys in ([], ["ArrowDown"]):
        type_in_search(page, "plateau")
        for key in keys:
            page.keyboard.press(key)
        assert page.evaluate("document.activeElement.closest('.md-search') !== null")
        page.keyboard.press("Escape")
        page.wait_for_timeout(300)
        assert page.evaluate("document.activeElement.href") == link


def test_tab_stops_only_at_visible_elements(server: str, page: "sync_api.Page") -> None:
    page.goto(server + "labml_bert/mlm/")
    stops = []
    while True:
        page.keyboard.press("Tab")
        stop = page.evaluate(
            "() => { const at = document.activeElement, box = at.getBoundingClientRect();"
            "return [at.closest('.masthead') !== null, at.outerHTML.slice(0, 120), box.width * box.height,"
            "at.checkVisibility({ opacityProperty: true, visibilityProperty: true })] }"
        )
        if stops and not stop[0]:
            break
        if stop[0]:
            stops.append(stop)
    # The five controls are the name, the contents, the sections, the theme and the search.
    assert len(stops) == 5, stops
    assert all(area > 100 and visible for _, _, area, visible in stops), stops


@pytest.mark.parametrize("address", ["labml_bert/mlm/", "masking/", "own-language/"])
def test_the_bar_names_the_section_that_is_being_read(
    server: str, page: "sync_api.Page", address: str
) -> None:
    page.goto(server + address)
    names = page.eval_on_selector_all(
        "#content > :is(h2, h3)", "hs => hs.map(h => h.textContent.slice(0, -1))"
    )
    assert page.inner_text("#section") == ""
    for i in (1, len(names) // 2, -1):
        page.click("button.here")
        page.click(f"#sections li >> a:text-is({names[i]!r})")
        page.locator("#section").get_by_text(names[i], exact=True).wait_for()
        assert not page.is_visible("#sections")
        current = "as => as.filter(a => a.ariaCurrent === 'true').map(a => a.textContent)"
        assert page.eval_on_selector_all("#sections a", current) == [names[i]]
    before = page.evaluate("scrollY")
    page.focus("button.here")
    assert page.evaluate("scrollY") == before > 0, "the focus in the bar leaves the page where it is"
    page.evaluate("scrollTo(0, 0)")
    page.wait_for_selector("#section:empty", state="attached")


def test_the_outline_names_the_section_above_a_subsection(server: str, page: "sync_api.Page") -> None:
    page.goto(server + "recipe/#batch-size")
    page.wait_for_selector(".outline [aria-current=true]")
    assert page.inner_text(".outline [aria-current]") == "Why the numbers differ"
    assert page.text_content("#sections [aria-current]") == "Batch size"


def test_letters_open_no_other_page_after_a_search(server: str, page: "sync_api.Page") -> None:
    """Material's script, which loads with the search, has keys of its own."""
    page.goto(server + "masking/")
    type_in_search(page, "tokens")
    page.keyboard.press("Escape")
    page.focus("#scheme")
    for key in "np,.fs":
        page.keyboard.press(key)
    page.wait_for_timeout(300)
    assert page.url.startswith(server + "masking/") and not page.is_checked("#__search")


def test_a_link_to_a_folded_line_scrolls_to_it(server: str, page: "sync_api.Page") -> None:
    page.set_viewport_size({"width": 390, "height": 844})
    page.goto(server + "labml_bert/bert/")
    page.evaluate("scrollTo(0, document.documentElement.scrollHeight)")
    for line in ("L60", "L100"):
        page.evaluate(f"location.hash = '{line}'")
        page.wait_for_timeout(300)
        assert 0 < page.evaluate(f"document.getElementById('{line}').getBoundingClientRect().top") < 844


@pytest.mark.parametrize("address", ["course/", "ladder/", "claims/", "stuck/"])
def test_tables_are_whole_on_paper(server: str, page: "sync_api.Page", address: str) -> None:
    page.set_viewport_size({"width": 718, "height": 1000})  # A4 with Chromium's margins
    page.emulate_media(media="print")
    page.goto(server + address)
    edges = page.eval_on_selector_all(
        ".wide table", "all => all.map((one) => one.getBoundingClientRect().right)"
    )
    assert max(edges) <= 718


def test_the_outline_of_a_chapter_stays_in_view(server: str, page: "sync_api.Page") -> None:
    page.set_viewport_size({"width": 1440, "height": 900})
    page.goto(server + "masking/#read-on")
    page.wait_for_selector(".outline [aria-current=true]")
    assert page.inner_text(".outline [aria-current]") == "Read on"
    assert page.evaluate("document.querySelector('.outline').getBoundingClientRect().top") > 0


def test_the_front_page_shows_code_and_model_on_the_first_screen(server: str, page: "sync_api.Page") -> None:
    page.set_viewport_size({"width": 1440, "height": 900})
    page.goto(server)
    for selector in ("text=make train", "text=Start reading", ".live .guesses", ".live .start"):
        box = page.locator(selector).first.bounding_box()
        assert box is not None and box["y"] + box["height"] < 900, selector
    # Each card leads to its page, wherever you click on it.
    box = page.locator(".cards li").nth(1).bounding_box()
    assert box is not None
    page.locator(".cards li").nth(1).click(position={"x": box["width"] - 5, "y": box["height"] - 5})
    page.wait_for_url("**/masking/")


def test_every_control_can_be_reached_with_the_keyboard(server: str, page: "sync_api.Page") -> None:
    page.goto(server + "labml_bert/mlm/")
    control_count = page.eval_on_selector_all(
        "a[href]:not([tabindex='-1']):not([hidden]), button:not([tabindex='-1']), summary",
        "all => all.filter(one => one.checkVisibility({visibilityProperty: true})).length",
    )
    reached = set()
    for _ in range(control_count * 2):
        page.keyboard.press("Tab")
        element_id = page.evaluate(
            "() => { const at = document.activeElement; if (!at || at === document.body) return null;"
            "if (!at.dataset.seen) at.dataset.seen = ++window.seen || (window.seen = 1);"
            "return at.dataset.seen }"
        )
        if element_id is None:
            break
        reached.add(element_id)
    unreached = page.eval_on_selector_all(
        "a[href]:not([tabindex='-1']):not([hidden]), button:not([tabindex='-1']), summary",
        "all => all.filter(one => one.checkVisibility({visibilityProperty: true}) && !one.dataset.seen)"
        ".map(one => one.outerHTML.slice(0, 120))",
    )
    assert not unreached


def test_the_first_tab_stop_skips_to_the_content(server: str, page: "sync_api.Page") -> None:
    page.goto(server + "labml_bert/mlm/")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.classList.contains('md-skip')")
    page.wait_for_timeout(400)
    assert page.evaluate("getComputedStyle(document.activeElement).opacity") == "1"


def test_the_contents_open_and_close_with_the_keyboard(server: str, page: "sync_api.Page") -> None:
    page.goto(server + "labml_bert/mlm/")
    page.focus(".contents-button")
    page.keyboard.press("Enter")
    assert page.is_visible("#contents")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.closest('#contents') !== null")
    page.keyboard.press("Escape")
    assert not page.is_visible("#contents")


def test_copying_a_file(server: str, page: "sync_api.Page") -> None:
    page.goto(server + "labml_bert/mlm/")
    page.click("text=Copy file")
    page.wait_for_selector("text=Copied")
    assert page.evaluate("navigator.clipboard.readText()") == (ROOT / "labml_bert/mlm.py").read_text("utf-8")


def test_a_copy_button_gets_its_label_back(server: str, page: "sync_api.Page") -> None:
    page.goto(server + "labml_bert/mlm/")
    button = page.locator("button", has_text="Copy file").element_handle()
    click = "async button => { await copy(button); return button.textContent; }"
    for _ in range(2):
        assert page.evaluate(click, button) == "Copied"
    page.wait_for_function("button => button.textContent === 'Copy file'", arg=button)
    page.evaluate("Object.defineProperty(navigator, 'clipboard', { value: undefined })")
    assert page.evaluate(click, button) == "Not allowed", "over plain HTTP there's no clipboard"


class WithoutDocstrings(ast.NodeTransformer):
    def visit_Expr(self, node: ast.Expr) -> ast.Expr | None:
        return None if isinstance(node.value, ast.Constant) and isinstance(node.value.value, str) else node


@pytest.mark.parametrize("path", ["labml_bert/mlm", "labml_bert/modern", "experiments/mlm_tiny"])
def test_copying_a_file_without_docstrings(server: str, page: "sync_api.Page", path: str) -> None:
    page.goto(f"{server}{path}/")
    page.click("text=Copy without docstrings")
    page.wait_for_selector("text=Copied")
    code = WithoutDocstrings().visit(ast.parse((ROOT / f"{path}.py").read_text("utf-8")))
    assert ast.dump(ast.parse(page.evaluate("navigator.clipboard.readText()"))) == ast.dump(code)


def test_a_selection_contains_no_line_numbers(server: str, page: "sync_api.Page") -> None:
    page.goto(server + "labml_bert/mlm/")
    text = page.evaluate(
        "() => { const code = document.querySelector('#MaskedLM + .row pre.lines');"
        "getSelection().selectAllChildren(code); return getSelection().toString() }"
    )
    assert text.startswith("class MaskedLM(nn.Module):")


def test_the_keyboard_focus_is_always_visible(server: str, page: "sync_api.Page") -> None:
    for address in ("masking/", "live/", "claims/", "labml_bert/mlm/"):
        page.goto(server + address)
        page.keyboard.press("Tab")
        hidden = page.evaluate("""() => {
            const stops = [...document.querySelectorAll("a[href], button, summary, input, textarea")]
            return stops.filter(e => {
                if (!e.checkVisibility({ visibilityProperty: true }) || e.tabIndex < 0) return false
                e.focus()
                return document.activeElement === e && getComputedStyle(e).outlineStyle === "none"
            }).map(e => e.outerHTML.slice(0, 80))
        }""")
        assert [html for html in hidden if "md-search__input" not in html] == []


def test_a_name_shows_its_tooltip_on_focus(server: str, page: "sync_api.Page") -> None:
    page.goto(server + "experiments/mlm_tiny/")
    page.focus(".code a.ref[data-tip]")
    assert page.is_visible("#tip")
    assert page.inner_text("#tip")
    page.keyboard.press("Escape")
    assert not page.is_visible("#tip")


def test_a_link_to_a_folded_line_unfolds_it(server: str, page: "sync_api.Page") -> None:
    page.goto(server + "labml_bert/mlm/#L5")
    assert page.evaluate("document.getElementById('L5').closest('details').open")
    page.focus("#L5")
    page.keyboard.press("ArrowDown")
    assert page.evaluate("document.activeElement.id") == "L6"


def test_an_address_with_a_wrong_fragment_still_highlights(server: str, page: "sync_api.Page") -> None:
    problems: list[str] = []
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.goto(server + "masking/?h=masking#100%")
    assert page.evaluate("CSS.highlights.get('found').size") > 0 and not problems


def test_a_link_scrolls_to_its_section(server: str, page: "sync_api.Page") -> None:
    page.goto(server + "labml_bert/mlm/#MaskedLM.forward")
    page.wait_for_timeout(300)
    top = page.evaluate("document.getElementById('MaskedLM.forward').getBoundingClientRect().top")
    assert 40 < top < 300


def test_the_theme_can_be_switched(server: str, page: "sync_api.Page") -> None:
    page.goto(server)
    page.focus("#scheme")
    page.keyboard.press("Enter")
    assert paper(page) == PAPER["dark"]
    page.goto(server + "stuck/")
    assert paper(page) == PAPER["dark"]
    page.click("#scheme")
    assert paper(page) == PAPER["light"]


def test_the_dark_scheme_works_without_javascript(server: str, browser: "sync_api.Browser") -> None:
    context = browser.new_context(color_scheme="dark", java_script_enabled=False)
    page = context.new_page()
    page.goto(server)
    # Playwright can evaluate its own code even if the page has no JavaScript.
    assert paper(page) == PAPER["dark"]
    assert not page.is_visible("#scheme")
    page.goto(server + "labml_bert/mlm/")
    assert not page.locator("button.copy >> visible=true").count()
    context.close()


def test_the_scheme_is_set_before_the_first_paint(site: Path) -> None:
    html = (site / "labml_bert" / "mlm" / "index.html").read_text("utf-8")
    assert 0 < html.index("dataset.scheme =") < html.index('rel="stylesheet"') < html.index("<body")


def test_a_printed_page_is_white_and_unfolded(server: str, browser: "sync_api.Browser") -> None:
    """Only the docstrings stay folded, because the prose repeats them."""
    context = browser.new_context(color_scheme="dark")
    page = context.new_page()
    page.goto(server + "masking/")
    page.click("#scheme")
    page.click("#scheme")
    assert page.evaluate("document.documentElement.dataset.scheme") == "dark"
    hidden = "[...document.querySelectorAll('details p')].filter(one => !one.checkVisibility()).length"
    assert page.evaluate(hidden) > 0
    page.emulate_media(media="print")
    assert page.evaluate(hidden) == 0
    assert paper(page) == "rgb(255, 255, 255)"
    page.goto(server + "labml_bert/mlm/")
    assert page.is_visible(".tools code") and not page.is_visible(".tools button")
    context.close()


def test_the_copy_button_does_not_overlap_the_code(server: str, page: "sync_api.Page") -> None:
    page.set_viewport_size({"width": 390, "height": 844})
    page.goto(server + "labml_bert/mlm/")
    touching = page.evaluate(
        "[...document.querySelectorAll('.code > .copy')].filter(one => one.getBoundingClientRect().bottom >"
        "one.nextElementSibling.getBoundingClientRect().top).length"
    )
    assert touching == 0


def test_all_charts_of_runs_are_equally_wide(server: str, page: "sync_api.Page") -> None:
    page.goto(server + "experiments/mlm_tiny/")
    page.eval_on_selector_all("details.run", "all => all.forEach(one => (one.open = true))")
    widths = page.eval_on_selector_all("#runs ~ * svg[role]", "all => all.map(one => one.clientWidth)")
    assert len(widths) > 1 and max(widths) == min(widths) <= 880


def test_no_page_violates_its_content_security_policy(server: str, page: "sync_api.Page") -> None:
    """The search, its worker and the highlighting must obey the policy as well."""
    problems: list[str] = []
    page.on("console", lambda m: problems.append(m.text) if m.type in ("error", "warning") else None)
    page.goto(server + "labml_bert/mlm/?h=plateau&q=plateau", wait_until="networkidle")
    page.wait_for_selector(".md-search-result__link")
    assert not problems
    page.evaluate("document.body.append(Object.assign(document.createElement('script'), {text: '1'}))")
    page.wait_for_timeout(100)
    assert "Content Security Policy" in " ".join(problems)
