"""What several tests need: a small text that can be learned, and a local web server."""

import contextlib
import http.server
import random
import runpy
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from labml_bert import corpora

# A shell that starts the tests in the background has them ignore Ctrl-C, and so would every program that they
# start, and be waited for in vain.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# The same examples each time; for others, and many: --hypothesis-profile=long
settings.register_profile("quick", deadline=None, derandomize=True)
settings.register_profile("long", deadline=None, max_examples=10_000, print_blob=True)
settings.load_profile("quick")


def small_text(sentences: int, seed: int = 0) -> str:
    """Sentences of a little grammar, one a line."""
    r = random.Random(seed)
    nouns = ["cat", "dog", "bird", "horse", "child", "teacher", "river", "mountain", "garden", "letter"]
    verbs = ["sees", "follows", "finds", "remembers", "paints", "likes"]
    ends = ["today.", "again.", "in the morning.", "near the old house."]
    return "\n".join(
        f"the {r.choice(nouns)} {r.choice(verbs)} the {r.choice(nouns)} {r.choice(ends)}"
        for _ in range(sentences)
    )


@pytest.fixture()
def corpus_file(tmp_path: Path) -> Path:
    """About 40,000 characters in a file."""
    path = tmp_path / "text.txt"
    path.write_text(small_text(1000))
    return path


def main_in_process(
    monkeypatch: pytest.MonkeyPatch, cwd: Path, *arguments: object, experiment: str = "mlm_tiny"
) -> None:
    """The experiment, started in the folder `cwd` as from a shell, but in this process."""
    monkeypatch.chdir(cwd)
    script = str(Path(__file__).parents[1] / "experiments" / f"{experiment}.py")
    monkeypatch.setattr(sys, "argv", [script, *map(str, arguments)])
    runpy.run_path(script, run_name="__main__")


def stopped_by_ctrl_c(command: list[str], cwd: Path) -> str:
    """Starts an experiment, stops it as soon as it trains, and returns what it printed."""
    process = subprocess.Popen(command, cwd=cwd, stdout=subprocess.PIPE, text=True)
    while not list(cwd.glob("logs/*/*/log.jsonl")):
        assert process.poll() is None
        time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    out, _ = process.communicate(timeout=60)
    assert process.returncode == 130
    return out


class Server:
    """
    A web server on this machine that answers every request with `body` and `status`. It says that there are
    `more` bytes than come, or sends them to `location`, or waits for `pause` seconds after each byte.
    """

    def __init__(self) -> None:
        outer = self
        self.body, self.status, self.requests = b"", 200, 0
        self.more, self.location, self.pause = 0, "", 0.0

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                outer.requests += 1
                self.send_response(outer.status)
                self.send_header("Content-Length", str(len(outer.body) + outer.more))
                if outer.location:
                    self.send_header("Location", outer.location)
                self.end_headers()
                if not outer.pause:
                    self.wfile.write(outer.body)
                    return
                with contextlib.suppress(OSError):
                    for at in range(len(outer.body)):
                        self.wfile.write(outer.body[at : at + 1])
                        time.sleep(outer.pause)

            def log_message(self, *args: object) -> None:
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}/input.txt"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()


@pytest.fixture()
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    # It has no certificate; everybody else needs one.
    monkeypatch.setattr(corpora, "HANDLERS", [*corpora.HANDLERS, urllib.request.HTTPHandler])
    running = Server()
    yield running
    running.server.shutdown()
    running.server.server_close()
