"""Serving the built site, and the browser that reads it."""

import http.server
import os
import re
import shutil
from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from playwright import sync_api

CHROMIUM = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("google-chrome")
FLAGS = (
    "--no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking "
    "--disable-component-update --disable-sync"
)


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        pass


def type_in_search(page: "sync_api.Page", words: str) -> None:
    # On a busy machine, the browser drops keys that are pressed before it has drawn the new page.
    field = page.locator("[data-md-component=search-query]")
    for _ in range(100):
        page.keyboard.press("/")
        page.wait_for_timeout(50)
        if field.evaluate("field => field === document.activeElement"):
            break
    field.clear()
    page.wait_for_selector(".md-search-result__link", state="detached")
    # The search starts at each key, and its results lag behind. With a single key there's one search.
    page.keyboard.insert_text(words)
    page.keyboard.press("End")
    page.wait_for_selector(".md-search-result__link")
    page.wait_for_timeout(100)


def first_search_results(page: "sync_api.Page", address: str, queries: Iterable[str]) -> dict[str, str]:
    """The first result of each query, relative to `address` and without the words to highlight."""
    page.goto(address, wait_until="networkidle")
    results = {}
    for words in queries:
        type_in_search(page, words)
        link = page.eval_on_selector_all(".md-search-result__link", "all => all[0].href")
        results[words] = re.sub(r"\?[^#]*", "", link.removeprefix(address))
    return results
