"""The built pages, checked without a browser."""

import base64
import gzip
import hashlib
import json
import re
import subprocess
import sys
from functools import cache
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
from bs4 import BeautifulSoup
from lxml import html

ROOT = Path(__file__).parents[2]
SOURCES = sorted(
    path.relative_to(ROOT).as_posix()
    for files in ("labml_bert/**/*.py", "experiments/**/*.py", "docs/live/bert.js", "docs/live/modern.js")
    for path in ROOT.glob(files)
    if path.stat().st_size
)


@cache
def parse_page(page: Path) -> html.HtmlElement:
    # There are about 230 pages, and lxml parses them 30 times as fast as BeautifulSoup.
    return html.document_fromstring(page.read_bytes(), parser=html.HTMLParser(encoding="utf-8"))


@pytest.mark.parametrize("path", SOURCES)
def test_each_file_can_be_rebuilt_from_its_page(site: Path, path: str) -> None:
    page = parse_page(site / path.rpartition(".")[0] / "index.html")
    lines = [line for part in page.find_class("code") for line in part.find_class("l")]
    links = [line.find(".//a[@data-n]") for line in lines]
    numbers = [int(link.get("data-n")) for link in links]
    assert numbers == list(range(1, len(numbers) + 1))
    assert [link.get("id") for link in links] == [f"L{n}" for n in numbers]
    assert "".join(line.text_content() for line in lines).encode() == (ROOT / path).read_bytes()
    assert (site / path).read_bytes() == (ROOT / path).read_bytes()


def pages(site: Path) -> list[Path]:
    return sorted(site.glob("**/*.html"))


@pytest.mark.long
def test_the_command_alone_writes_the_pages(site: Path) -> None:
    subprocess.run([sys.executable, "-m", "docs"], cwd=ROOT, check=True)


def test_every_link_and_fragment_has_a_target(site: Path) -> None:
    anchors = {page: set(parse_page(page).xpath("//@id")) for page in pages(site)}
    for page in anchors:
        for link in parse_page(page).xpath("//a/@href"):
            address = urlsplit(link)
            if address.scheme or (page.name == "404.html"):
                continue
            target = (page.parent / unquote(address.path)).resolve() if address.path else page
            target = target / "index.html" if target.is_dir() else target
            assert target.is_file(), f"{page}: {link}"
            if address.fragment:
                assert unquote(address.fragment) in anchors[target], f"{page}: {link}"


def test_ids_are_unique_within_a_page(site: Path) -> None:
    for page in pages(site):
        ids = parse_page(page).xpath("//@id")
        assert len(ids) == len(set(ids)), page


def test_scripts_of_formulas_have_one_base(site: Path) -> None:
    # Firefox draws `T_{\max}` as an error: KaTeX gives it an invisible third part.
    for page in pages(site):
        for tag in parse_page(page).iter("msub", "msup", "munder", "mover"):
            assert len(tag) == 2, f"{page}: {html.tostring(tag)}"


def test_no_page_loads_from_another_host(site: Path) -> None:
    for page in pages(site):
        for address in parse_page(page).xpath("//@src | //link/@href"):
            assert not urlsplit(address).netloc, f"{page}: {address}"
    for sheet in site.glob("**/*.css"):
        assert not re.search(r"url\(['\"]?(https?:)?//", sheet.read_text("utf-8")), sheet


def test_every_page_has_a_strict_content_security_policy(site: Path) -> None:
    for page in pages(site):
        tree = parse_page(page)
        (policy,) = tree.xpath("/html/head/meta[@http-equiv='Content-Security-Policy']/@content")
        rules = dict(rule.strip().split(" ", 1) for rule in policy.split(";"))
        assert rules["default-src"] == "'self'" and "unsafe" not in rules["script-src"]
        for script in tree.xpath("//script[not(@src) and not(@type)]/text()"):
            digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
            assert f"'sha256-{digest}'" in rules["script-src"], f"{page}: {script}"
        assert not tree.xpath("//style"), page


def test_each_page_has_one_first_level_heading(site: Path) -> None:
    for page in pages(site):
        if page.name != "404.html":
            assert len(parse_page(page).xpath("//article//h1")) == 1, page


@pytest.mark.parametrize(
    ("word", "location"),
    [
        ("masked_fill", "labml_bert/mlm/#TokenMasker"),
        ("tying", "labml_bert/mlm/#BertLMPredictionHead"),
        ("plateau", "experiments/mlm_tiny/"),
    ],
)
def test_the_search_index_has_the_word_at_its_section(site: Path, word: str, location: str) -> None:
    index = json.loads((site / "search" / "search_index.json").read_text("utf-8"))
    assert any(location == entry["location"] and word in entry["text"] for entry in index["docs"])


def test_the_search_index_has_each_formula_once(site: Path) -> None:
    index = json.loads((site / "search" / "search_index.json").read_text("utf-8"))
    texts = [entry["text"] for entry in index["docs"] if entry["location"].startswith("stuck/")]
    assert any("where p is the probability" in text for text in texts)
    assert not any("pp is" in text or "katex" in text for text in texts)


def test_search_index_and_headings_contain_no_markup(site: Path) -> None:
    index = json.loads((site / "search" / "search_index.json").read_text("utf-8"))
    for entry in index["docs"]:
        title = BeautifulSoup(entry["title"], "html.parser").get_text()
        assert title and not re.search(r"[{}#`<>¶]|\*\*", title), entry
        # A paragraph may begin with "Copy", but the label of a button doesn't belong in the index.
        assert not re.search(r"(?<!<p>)\bCopy\b", entry["text"]), entry
    for page in pages(site):
        for heading in parse_page(page).iter("h1", "h2", "h3", "title"):
            assert "{" not in heading.text_content(), f"{page}: {heading.text_content()}"


def test_a_first_visit_downloads_little(site: Path) -> None:
    """
    The files for search are counted apart, because they are loaded later. (The browser tests check that.)
    """

    def compressed_size(name: str) -> int:
        return sum(len(gzip.compress(path.read_bytes(), 9)) for path in site.glob(name))

    common_size = (
        compressed_size("assets/stylesheets/*.css")
        + compressed_size("assets/book.*")
        + compressed_size("assets/katex/katex.css")
    )
    common_size += compressed_size("assets/images/*")
    search_size = compressed_size("assets/javascripts/bundle.*.js") + compressed_size(
        "assets/javascripts/workers/*.js"
    )
    search_size += compressed_size("search/search_index.json")
    for page in pages(site):
        assert common_size + len(gzip.compress(page.read_bytes(), 9)) < 120_000, page
    assert search_size < 270_000
