"""The pages as they were built, without a browser."""

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

ROOT = Path(__file__).parents[2]
SOURCES = sorted(
    path.relative_to(ROOT).as_posix()
    for files in ("labml_bert/**/*.py", "experiments/**/*.py", "docs/live/bert.js")
    for path in ROOT.glob(files)
    if path.stat().st_size
)


@cache
def parsed(page: Path) -> BeautifulSoup:
    return BeautifulSoup(page.read_text("utf-8"), "html.parser")


@pytest.mark.parametrize("path", SOURCES)
def test_each_file_can_be_rebuilt_from_its_page(site: Path, path: str) -> None:
    page = parsed(site / path.rpartition(".")[0] / "index.html")
    lines = page.select(".code .l")
    numbers = [int(line.a["data-n"]) for line in lines]
    assert numbers == list(range(1, len(numbers) + 1))
    assert [line.a["id"] for line in lines] == [f"L{n}" for n in numbers]
    assert "".join(line.get_text() for line in lines).encode() == (ROOT / path).read_bytes()
    assert (site / path).read_bytes() == (ROOT / path).read_bytes()


def pages(site: Path) -> list[Path]:
    return sorted(site.glob("**/*.html"))


def test_another_generator_needs_only_the_command(site: Path) -> None:
    subprocess.run([sys.executable, "-m", "docs"], cwd=ROOT, check=True)


def test_every_link_and_fragment_leads_somewhere(site: Path) -> None:
    places = {page: {tag["id"] for tag in parsed(page).select("[id]")} for page in pages(site)}
    for page in places:
        for tag in parsed(page).select("a[href]"):
            address = urlsplit(tag["href"])
            if address.scheme or (page.name == "404.html"):
                continue
            target = (page.parent / unquote(address.path)).resolve() if address.path else page
            target = target / "index.html" if target.is_dir() else target
            assert target.is_file(), f"{page}: {tag['href']}"
            if address.fragment:
                assert unquote(address.fragment) in places[target], f"{page}: {tag['href']}"


def test_no_page_has_an_id_twice(site: Path) -> None:
    for page in pages(site):
        ids = [tag["id"] for tag in parsed(page).select("[id]")]
        assert len(ids) == len(set(ids)), page


def test_no_page_loads_from_another_host(site: Path) -> None:
    for page in pages(site):
        html = parsed(page)
        for tag in html.select("[src], link[href]"):
            assert not urlsplit(tag.get("src") or tag["href"]).netloc, f"{page}: {tag}"
    for sheet in site.glob("**/*.css"):
        assert not re.search(r"url\(['\"]?(https?:)?//", sheet.read_text("utf-8")), sheet


def test_every_page_has_a_strict_policy(site: Path) -> None:
    for page in pages(site):
        html = parsed(page)
        policy = html.head.select_one("meta[http-equiv='Content-Security-Policy']")
        assert policy is not None, page
        rules = dict(rule.strip().split(" ", 1) for rule in policy["content"].split(";"))
        assert rules["default-src"] == "'self'" and "unsafe" not in rules["script-src"]
        for script in html.select("script:not([src]):not([type])"):
            digest = base64.b64encode(hashlib.sha256(script.string.encode()).digest()).decode()
            assert f"'sha256-{digest}'" in rules["script-src"], f"{page}: {script}"
        assert not html.select("style"), page


def test_each_page_has_one_heading_of_the_first_level(site: Path) -> None:
    for page in pages(site):
        if page.name != "404.html":
            assert len(parsed(page).select("article h1")) == 1, page


@pytest.mark.parametrize(
    ("word", "place"),
    [
        ("masked_fill", "labml_bert/mlm/#TokenMasker"),
        ("tying", "labml_bert/mlm/#BertLMPredictionHead"),
        ("plateau", "experiments/mlm_tiny/"),
    ],
)
def test_the_search_has_the_word_at_the_place(site: Path, word: str, place: str) -> None:
    index = json.loads((site / "search" / "search_index.json").read_text("utf-8"))
    assert any(place == entry["location"] and word in entry["text"] for entry in index["docs"])


def test_titles_in_the_search_are_clean(site: Path) -> None:
    index = json.loads((site / "search" / "search_index.json").read_text("utf-8"))
    for entry in index["docs"]:
        title = BeautifulSoup(entry["title"], "html.parser").get_text()
        assert title and not re.search(r"[{}#`<>¶]|\*\*", title), entry
        # A paragraph may begin with the word; what a button says is no text.
        assert not re.search(r"(?<!<p>)\bCopy\b", entry["text"]), entry
    for page in pages(site):
        for heading in parsed(page).select("h1, h2, h3, title"):
            assert "{" not in heading.get_text(), f"{page}: {heading}"


def test_a_first_visit_is_light(site: Path) -> None:
    """That the search comes later is tested in the browser."""

    def weight(name: str) -> int:
        return sum(len(gzip.compress(path.read_bytes(), 9)) for path in site.glob(name))

    shared = weight("assets/stylesheets/*.css") + weight("assets/book.*") + weight("assets/katex/katex.css")
    shared += weight("assets/images/*")
    search = weight("assets/javascripts/bundle.*.js") + weight("assets/javascripts/workers/*.js")
    search += weight("search/search_index.json")
    for page in pages(site):
        assert shared + len(gzip.compress(page.read_bytes(), 9)) < 120_000, page
    assert search < 250_000
