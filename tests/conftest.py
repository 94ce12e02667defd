"""What all tests run with, and the fixtures that several need."""

import signal
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from labml_bert.data import corpora
from tests.support.processes import ProcessGuard
from tests.support.runs import small_text
from tests.support.server import Server

# A shell that starts the tests in the background has them ignore Ctrl-C, and so would every program that they
# start, and be waited for in vain.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# The same examples each time; for others, and many: --hypothesis-profile=long
settings.register_profile("quick", deadline=None, derandomize=True)
settings.register_profile("long", deadline=None, max_examples=10_000, print_blob=True)
settings.load_profile("quick")


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(ProcessGuard())


@pytest.fixture()
def corpus_file(tmp_path: Path) -> Path:
    """About 40,000 characters in a file."""
    path = tmp_path / "text.txt"
    path.write_text(small_text(1000))
    return path


@pytest.fixture()
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    # It has no certificate; everybody else needs one.
    monkeypatch.setattr(corpora, "HANDLERS", [*corpora.HANDLERS, urllib.request.HTTPHandler])
    running = Server()
    yield running
    running.server.shutdown()
    running.server.server_close()
