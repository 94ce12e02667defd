"""Settings for all tests, and the fixtures that several files share."""

import os
import shutil
import signal
import subprocess
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from labml_bert import stdout
from labml_bert.data import corpora
from tests.support.processes import ProcessGuard
from tests.support.runs import small_text
from tests.support.server import Server

# A shell that starts the tests in the background makes them ignore Ctrl-C. The programs that they start would
# ignore it too, and a test that interrupts such a program would wait forever.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
# Likewise, `nohup` makes the tests ignore SIGHUP.
if hasattr(signal, "SIGHUP") and signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
    signal.signal(signal.SIGHUP, signal.SIG_DFL)

# The first two profiles run the same examples every time. For many new ones: --hypothesis-profile=long
settings.register_profile("quick", deadline=None, derandomize=True)
settings.register_profile("fast", deadline=None, derandomize=True, max_examples=10)
settings.register_profile("long", deadline=None, max_examples=10_000, print_blob=True)
settings.load_profile("quick")


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(ProcessGuard())


@pytest.fixture(autouse=True)
def fresh_process() -> None:
    """
    Undoes what earlier tests did to the process. A script that is imported makes Ctrl-C end the process, and
    a note that has been printed isn't printed again.
    """
    signal.signal(signal.SIGINT, signal.default_int_handler)
    stdout.printed_notes.clear()


@pytest.fixture(autouse=True)
def unchanged_environment() -> Iterator[None]:
    """Fails a test that changes one of Python's variables: programs of later tests would inherit it."""
    before = dict(os.environ)
    yield
    # Libraries set some variables of their own when they are imported, but none of Python's.
    names = [name for name, _ in before.items() ^ os.environ.items() if name.startswith("PYTHON")]
    assert not names, f"this test changed {', '.join(names)}; use monkeypatch.setenv"


@pytest.fixture()
def corpus_file(tmp_path: Path) -> Path:
    """About 40,000 characters in a file."""
    path = tmp_path / "text.txt"
    path.write_text(small_text(1000))
    return path


@pytest.fixture()
def remountable_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk that a test can remount read-only. Permissions don't stop a test that runs as root."""
    path = tmp_path / "disk"
    path.mkdir()
    words = ["mount", "-t", "tmpfs", "tmpfs", str(path)]
    if shutil.which("mount") is None or subprocess.run(words, capture_output=True).returncode:
        pytest.skip("mounting a read-only disk needs privileges")
    yield path
    subprocess.run(["umount", "--lazy", str(path)], check=True)


@pytest.fixture()
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    # The test server has no certificate, so allow plain HTTP, which `corpora` otherwise refuses.
    monkeypatch.setattr(corpora, "HANDLERS", [*corpora.HANDLERS, urllib.request.HTTPHandler])
    test_server = Server()
    yield test_server
    test_server.server.shutdown()
    test_server.server.server_close()
