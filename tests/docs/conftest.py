"""The site, built once for all tests, and a browser to read it."""

import functools
import http.server
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NoReturn

import pytest

from labml_bert.files import lock
from tests.support.serving import CHROMIUM, FLAGS, Quiet

ROOT = Path(__file__).parents[2]

MISSING = [name for name in ("mkdocs", "pygments", "bs4", "lxml", "playwright") if find_spec(name) is None]


class SkippedModule(pytest.Module):
    """A test module that needs packages that aren't installed."""

    def collect(self) -> NoReturn:
        reason = f"not installed: {', '.join(MISSING)}; `make test-site` installs what tests/docs needs"
        pytest.skip(reason, allow_module_level=True)


def pytest_pycollect_makemodule(module_path: Path, parent: pytest.Collector) -> pytest.Module | None:
    return SkippedModule.from_parent(parent, path=module_path) if MISSING else None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Building the site starts a process, so mark all tests in this folder."""
    for item in items:
        if item.path.is_relative_to(Path(__file__).parent):
            item.add_marker("processes")
    # Of two workers, one gets the first half of the tests and the other the second half. So one builds the
    # site while the other runs tests that don't need it.
    items.sort(key=lambda item: "site" in getattr(item, "fixturenames", ()))


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With several workers, the first builds the site and the others wait."""
    base = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        base = base.parent
    out, marker = base / "site", base / "site-is-built"
    # pytest has a `.lock` of its own in this folder.
    with lock(base, on_wait=lambda: None, name=".site.lock"):
        if not marker.exists():
            subprocess.run(
                [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(out)],
                cwd=ROOT,
                check=True,
            )
            marker.touch()
    return out


@pytest.fixture(scope="session")
def server(site: Path) -> Iterator[str]:
    handler = functools.partial(Quiet, directory=str(site))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as http_server:
        threading.Thread(target=http_server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{http_server.server_port}/"
        http_server.shutdown()


@pytest.fixture(scope="session")
def browser(server: str) -> Iterator[Any]:
    """The browser of this machine: `chromium` or `google-chrome` on the path, or $CHROMIUM."""
    if CHROMIUM is None:
        pytest.skip("no Chromium on this machine")
    sync_api = pytest.importorskip("playwright.sync_api")
    with sync_api.sync_playwright() as playwright:
        # Playwright gives each launch a new, empty user-data-dir.
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS.split())
        yield browser
        browser.close()


@pytest.fixture
def page(browser: Any) -> Iterator[Any]:
    context = browser.new_context(viewport={"width": 1440, "height": 900}, color_scheme="light")
    context.grant_permissions(["clipboard-read", "clipboard-write"])
    yield context.new_page()
    context.close()
