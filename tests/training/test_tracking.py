"""Metrics: on disk at once, readable after a kill, and on a labml server only if one is configured."""

import http.server
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from labml_bert.training.tracking import METRICS, Tracker, append_metrics, read_metrics

ROOT = Path(__file__).parents[2]


def test_a_report_is_on_disk_at_once(tmp_path: Path) -> None:
    with Tracker(tmp_path, {}) as tracker:
        tracker.save(1, {"seconds": 0.5, "loss": 3.0})
        tracker.save(2, {"seconds": 1.0, "loss": 2.5, "valid.loss": 2.75})
        lines = (tmp_path / METRICS).read_text().splitlines()
    assert [json.loads(line) for line in lines] == [
        {"step": 1, "seconds": 0.5, "loss": 3.0},
        {"step": 2, "seconds": 1.0, "loss": 2.5, "valid.loss": 2.75},
    ]
    assert read_metrics(tmp_path) == {
        "seconds": [(1, 0.5), (2, 1.0)],
        "loss": [(1, 3.0), (2, 2.5)],
        "valid.loss": [(2, 2.75)],
    }


def test_no_metrics_are_no_error(tmp_path: Path) -> None:
    assert read_metrics(tmp_path) == {}


@pytest.mark.parametrize("cut", range(1, len('{"step": 2, "loss": 2.5}\n')))
def test_a_line_cut_off_anywhere_spoils_no_other(cut: int, tmp_path: Path) -> None:
    append_metrics(tmp_path, 1, {"loss": 3.0})
    append_metrics(tmp_path, 2, {"loss": 2.5})
    path = tmp_path / METRICS
    path.write_bytes(path.read_bytes()[:-cut])
    # Only the end of the line is gone.
    whole = [(2, 2.5)] if cut == 1 else []
    assert read_metrics(tmp_path) == {"loss": [(1, 3.0), *whole]}
    append_metrics(tmp_path, 3, {"loss": 2.0})
    assert read_metrics(tmp_path) == {"loss": [(1, 3.0), *whole, (3, 2.0)]}


@pytest.mark.parametrize(
    "junk", [b"\xff\xfe", b"\0\0\0", b"7", b"null", b"[1]", b'{"loss": 1}', b'{"step": []}']
)
def test_a_line_that_is_no_report_is_skipped(junk: bytes, tmp_path: Path) -> None:
    append_metrics(tmp_path, 1, {"loss": 3.0})
    with open(tmp_path / METRICS, "ab") as file:
        file.write(junk + b"\n")
    append_metrics(tmp_path, 2, {"loss": 2.0})
    assert read_metrics(tmp_path) == {"loss": [(1, 3.0), (2, 2.0)]}


def test_after_a_resume_the_later_value_of_a_step_counts(tmp_path: Path) -> None:
    for step, loss in ((1, 3.0), (2, 2.5), (3, 2.25), (2, 2.0), (4, 1.0)):
        append_metrics(tmp_path, step, {"loss": loss})
    assert read_metrics(tmp_path) == {"loss": [(1, 3.0), (2, 2.0), (3, 2.25), (4, 1.0)]}


def test_what_is_not_finite_is_null(tmp_path: Path) -> None:
    append_metrics(tmp_path, 1, {"loss": float("nan"), "norm": float("inf"), "accuracy": 0.5})
    assert (tmp_path / METRICS).read_text() == '{"step": 1, "loss": null, "norm": null, "accuracy": 0.5}\n'
    assert read_metrics(tmp_path) == {"accuracy": [(1, 0.5)]}


def test_a_full_disk_reaches_the_caller(tmp_path: Path) -> None:
    (tmp_path / METRICS).symlink_to("/dev/full")
    with pytest.raises(OSError, match="No space left"), Tracker(tmp_path, {}) as tracker:
        tracker.save(1, {"loss": 3.0})


# A labml server

# Ends the process if it looks up a host or connects to one.
OFFLINE = """
import os, sys
def refuse(event, arguments):
    if event in ("socket.connect", "socket.getaddrinfo", "socket.gethostbyname", "socket.sendto"):
        os.write(2, f"contacted {arguments}".encode())
        os._exit(9)
if "ONLINE" not in os.environ:
    sys.addaudithook(refuse)
"""

RUN = """
import sys
from pathlib import Path
from labml_bert.training.tracking import Tracker
with Tracker(Path(sys.argv[1]), {"seed": 7, "model": {"hidden_size": 16}}) as tracker:
    for step in map(int, sys.argv[2:]):
        tracker.save(step, {"loss": 10.0 / step})
print("end")
"""


def run_tracked(place: Path, *steps: int, **environment: str) -> subprocess.CompletedProcess[str]:
    """A tracked run of the experiment `tiny` in a process of its own."""
    (place / "sitecustomize.py").write_text(OFFLINE)
    folder = place / "tiny" / "first"
    folder.mkdir(parents=True, exist_ok=True)
    variables = {
        "HOME": str(place / "home"),
        "PATH": os.environ["PATH"],
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONPATH": f"{ROOT}{os.pathsep}{place}",
    }
    return subprocess.run(
        [sys.executable, "-c", RUN, folder, *map(str, steps)],
        cwd=place,
        env={**variables, **environment},
        capture_output=True,
        text=True,
        timeout=60,
    )


class LabmlServer:
    """Takes what labml sends, as the server of labml would."""

    def __init__(self) -> None:
        self.packets: list[dict] = []
        outer = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self.send_error(405)

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                outer.packets += [{"path": self.path, **packet} for packet in json.loads(body)]
                self.send_response(200)
                self.send_header("Content-Length", "2")
                self.end_headers()
                self.wfile.write(b"{}")

            def log_message(self, *args: object) -> None:
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}/api/v1/default"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def track(self, name: str) -> list[tuple[int, float]]:
        """The points of a metric, in the order in which they arrived."""
        tracked = [packet["track"][name] for packet in self.packets if name in packet.get("track", {})]
        return [point for t in tracked for point in zip(t["step"], t["value"], strict=True)]


@pytest.fixture()
def labml_server() -> Iterator[LabmlServer]:
    server = LabmlServer()
    yield server
    server.server.shutdown()
    server.server.server_close()


@pytest.mark.processes
def test_without_configuration_nothing_is_contacted_and_nothing_written_elsewhere(tmp_path: Path) -> None:
    done = run_tracked(tmp_path, 1, 2)
    assert (done.returncode, done.stdout, done.stderr) == (0, "end\n", "")
    assert read_metrics(tmp_path / "tiny" / "first") == {"loss": [(1, 10.0), (2, 5.0)]}
    assert {path.name for path in tmp_path.rglob("*") if path.is_file()} <= {METRICS, "sitecustomize.py"}
    assert not (tmp_path / "home").exists()


@pytest.mark.processes
@pytest.mark.parametrize("home", ["/proc/nowhere", ""])
def test_without_configuration_no_home_is_needed(home: str, tmp_path: Path) -> None:
    done = run_tracked(tmp_path, 1, HOME=home)
    assert (done.returncode, done.stdout, done.stderr) == (0, "end\n", "")


@pytest.mark.processes
def test_what_is_tested_above_would_be_noticed(labml_server: LabmlServer, tmp_path: Path) -> None:
    done = run_tracked(tmp_path, 1, labml_app_url=labml_server.url)
    assert done.returncode == 9 and "contacted" in done.stderr


@pytest.mark.processes
def test_a_configured_server_gets_the_metrics_and_a_resume_continues_them(
    labml_server: LabmlServer, tmp_path: Path
) -> None:
    for steps in ((1, 2, 4), (5,)):
        done = run_tracked(tmp_path, *steps, labml_app_url=labml_server.url, ONLINE="1")
        assert (done.returncode, done.stderr) == (0, "")
        # labml says at the end that it is still sending.
        assert "end" in done.stdout.split()
    assert labml_server.track("loss") == [(1, 10.0), (2, 5.0), (4, 2.5), (5, 2.0)]
    assert len({packet["path"] for packet in labml_server.packets}) == 1
    assert {packet["name"] for packet in labml_server.packets if "name" in packet} == {"tiny"}
    (seed,) = {packet["configs"]["seed"]["value"] for packet in labml_server.packets if "configs" in packet}
    assert seed == 7
    statuses = [packet["status"]["status"] for packet in labml_server.packets if "status" in packet]
    assert statuses == ["completed", "completed"]
    # And the file has them all the same. labml leaves nothing else with them.
    assert read_metrics(tmp_path / "tiny" / "first")["loss"] == labml_server.track("loss")
    assert [path.name for path in (tmp_path / "tiny").rglob("*") if path.is_file()] == [METRICS]


@pytest.mark.processes
def test_the_settings_file_names_a_server_too(labml_server: LabmlServer, tmp_path: Path) -> None:
    package = tmp_path / "labml_bert" / "training"
    package.mkdir(parents=True)
    for name in ("__init__.py", "training/__init__.py", "training/tracking.py"):
        (tmp_path / "labml_bert" / name).write_bytes((ROOT / "labml_bert" / name).read_bytes())
    (tmp_path / ".labml.yaml").write_text(
        (ROOT / ".labml.yaml").read_text() + f"app_url: {labml_server.url}\n"
    )
    done = run_tracked(tmp_path, 1, 2, PYTHONPATH=str(tmp_path), ONLINE="1")
    assert (done.returncode, done.stderr) == (0, "")
    assert labml_server.track("loss") == [(1, 10.0), (2, 5.0)]


@pytest.mark.processes
@pytest.mark.parametrize(
    ("environment", "words"),
    [
        # A port at which nobody listens.
        ({"labml_app_url": "http://127.0.0.1:9/api"}, "Connection refused"),
        ({"labml_app_url": "no address"}, "should be a valid URL"),
        ({"HOME": "/proc/nowhere"}, "No such file or directory"),
    ],
)
def test_a_run_does_not_depend_on_its_server(
    environment: dict[str, str], words: str, labml_server: LabmlServer, tmp_path: Path
) -> None:
    done = run_tracked(tmp_path, 1, 2, **{"labml_app_url": labml_server.url, "ONLINE": "1", **environment})
    assert (done.returncode, done.stdout) == (0, "end\n")
    (line,) = done.stderr.splitlines()
    assert line.startswith("labml failed (") and words in line and line.endswith(METRICS)
    assert read_metrics(tmp_path / "tiny" / "first") == {"loss": [(1, 10.0), (2, 5.0)]}
