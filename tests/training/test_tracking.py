"""Metrics: written at once, readable after a kill, and sent to a labml server only if one is configured."""

import contextlib
import http.server
import json
import os
import socket
import subprocess
import sys
import threading
import zlib
from collections.abc import Iterator
from io import FileIO
from pathlib import Path

import pytest

from labml_bert.training import tracking
from labml_bert.training.tracking import METRICS, Tracker, append_metrics, read_metrics, wait_for_answer
from tests.support.damage import flip_bit

ROOT = Path(__file__).parents[2]


def test_a_report_is_written_immediately(tmp_path: Path) -> None:
    with Tracker(tmp_path, {}) as tracker:
        tracker.save(1, {"seconds": 0.5, "loss": 3.0})
        tracker.save(2, {"seconds": 1.0, "loss": 2.5, "valid.loss": 2.75})
        lines = (tmp_path / METRICS).read_text().splitlines()
    assert [{**json.loads(line), "crc32": 0} for line in lines] == [
        {"crc32": 0, "step": 1, "seconds": 0.5, "loss": 3.0},
        {"crc32": 0, "step": 2, "seconds": 1.0, "loss": 2.5, "valid.loss": 2.75},
    ]
    assert read_metrics(tmp_path) == {
        "seconds": [(1, 0.5), (2, 1.0)],
        "loss": [(1, 3.0), (2, 2.5)],
        "valid.loss": [(2, 2.75)],
    }


@pytest.mark.parametrize("name", ["step", "crc32"])
def test_a_metric_has_no_reserved_name(name: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=f"a metric can't be called {name}; choose another name"):
        append_metrics(tmp_path, 1, {"loss": 3.0, name: 7.0})
    assert not [*tmp_path.iterdir()]


def test_missing_metrics_are_not_an_error(tmp_path: Path) -> None:
    assert read_metrics(tmp_path) == {}


@pytest.mark.parametrize("truncation", range(1, len('{"crc32": 123456789, "step": 2, "loss": 2.5}\n')))
def test_a_truncated_line_does_not_affect_the_others(truncation: int, tmp_path: Path) -> None:
    append_metrics(tmp_path, 1, {"loss": 3.0})
    append_metrics(tmp_path, 2, {"loss": 2.5})
    path = tmp_path / METRICS
    path.write_bytes(path.read_bytes()[:-truncation])
    # With a truncation of 1, only the line break is missing.
    second_point = [(2, 2.5)] if truncation == 1 else []
    assert read_metrics(tmp_path) == {"loss": [(1, 3.0), *second_point]}
    append_metrics(tmp_path, 3, {"loss": 2.0})
    assert read_metrics(tmp_path) == {"loss": [(1, 3.0), *second_point, (3, 2.0)]}


def checked(line: bytes) -> bytes:
    """A JSON object with the checksum of its text."""
    return b'{"crc32": %d, ' % zlib.crc32(line) + line[1:]


@pytest.mark.parametrize(
    "junk",
    [
        *[b"\xff\xfe", b"\0\0\0", b"7", b"null", b"[1]", b"[" * 100_000, b'{"step": 3, "loss": 1.5}'],
        *[checked(b'{"loss": 1}'), checked(b'{"step": []}'), checked(b'{"step": 1e999, "loss": 2}')],
        *[checked(b'{"step": 3, "loss": "2"}'), checked(b'{"step": 3, "loss": [2]}'), checked(b"{" * 9)],
        checked(b'{"step": 3, "loss": 1%s}' % (b"0" * 400)),
    ],
)
def test_an_invalid_line_is_skipped_with_a_note(
    junk: bytes, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    append_metrics(tmp_path, 1, {"loss": 3.0})
    with open(tmp_path / METRICS, "ab") as file:
        file.write(junk + b"\n")
    append_metrics(tmp_path, 2, {"loss": 2.0})
    assert read_metrics(tmp_path) == {"loss": [(1, 3.0), (2, 2.0)]}
    assert f"damaged line of {tmp_path / METRICS} left out" in capsys.readouterr().err
    read_metrics(tmp_path)
    assert capsys.readouterr().err == "", "a command that reads the file again doesn't repeat the note"


def test_a_line_with_a_flipped_bit_is_skipped(tmp_path: Path) -> None:
    append_metrics(tmp_path, 1, {"loss": 3.0})
    append_metrics(tmp_path, 2, {"loss": 2.0})
    path = tmp_path / METRICS
    intact = path.read_bytes()
    length = len(intact.splitlines()[0])
    for at in range(length):
        path.write_bytes(flip_bit(intact, at))
        assert read_metrics(tmp_path) == {"loss": [(2, 2.0)]}


def test_a_value_that_is_not_finite_is_skipped(tmp_path: Path) -> None:
    (tmp_path / METRICS).write_bytes(checked(b'{"step": 1, "loss": 1e999, "accuracy": 0.5}'))
    assert read_metrics(tmp_path) == {"accuracy": [(1, 0.5)]}


def test_after_a_resume_the_steps_from_before_the_kill_do_not_count(tmp_path: Path) -> None:
    """With a budget of minutes, a run may report other steps after a resume, and end at an earlier step."""
    for step, loss in ((1, 3.0), (2, 2.5), (4, 2.25), (2, 2.0), (3, 1.0)):
        append_metrics(tmp_path, step, {"loss": loss})
    assert read_metrics(tmp_path) == {"loss": [(1, 3.0), (2, 2.0), (3, 1.0)]}
    append_metrics(tmp_path, 3, {"valid.loss": 1.5})
    assert read_metrics(tmp_path)["loss"][-1] == (3, 1.0)


def test_only_the_beginning_of_a_huge_file_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    append_metrics(tmp_path, 1, {"loss": 3.0})
    size = (tmp_path / METRICS).stat().st_size
    os.truncate(tmp_path / METRICS, 10**12)
    monkeypatch.setattr(tracking, "LARGEST_METRICS", size)
    assert read_metrics(tmp_path) == {"loss": [(1, 3.0)]}
    assert f"metrics.jsonl is read only up to byte {size}" in capsys.readouterr().err


def test_metrics_are_never_written_through_a_link(tmp_path: Path) -> None:
    target = tmp_path / "precious"
    target.write_text("kept")
    (tmp_path / METRICS).symlink_to(target)
    with pytest.raises(OSError, match="must be a file"):
        append_metrics(tmp_path, 1, {"loss": 3.0})
    assert target.read_text() == "kept"


def test_non_finite_values_are_null(tmp_path: Path) -> None:
    append_metrics(tmp_path, 1, {"loss": float("nan"), "norm": float("inf"), "accuracy": 0.5})
    assert '"step": 1, "loss": null, "norm": null, "accuracy": 0.5}\n' in (tmp_path / METRICS).read_text()
    assert read_metrics(tmp_path) == {"accuracy": [(1, 0.5)]}


def test_a_full_disk_raises_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tracking, "open_to_append", lambda path: FileIO("/dev/full", "a"))
    with pytest.raises(OSError, match="No space left"), Tracker(tmp_path, {}) as tracker:
        tracker.save(1, {"loss": 3.0})


# A labml server

# This code exits as soon as the process looks up a host or connects to one.
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


def run_tracked(work_folder: Path, *steps: int, **environment: str) -> subprocess.CompletedProcess[str]:
    """Runs the experiment `tiny` with a tracker, in a separate process."""
    (work_folder / "sitecustomize.py").write_text(OFFLINE)
    folder = work_folder / "tiny" / "first"
    folder.mkdir(parents=True, exist_ok=True)
    variables = {
        # Let coverage be measured in this process too.
        **{name: value for name, value in os.environ.items() if name.startswith("COVERAGE")},
        "HOME": str(work_folder / "home"),
        "PATH": os.environ["PATH"],
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONPATH": f"{ROOT}{os.pathsep}{work_folder}",
    }
    return subprocess.run(
        [sys.executable, "-c", RUN, folder, *map(str, steps)],
        cwd=work_folder,
        env={**variables, **environment},
        capture_output=True,
        text=True,
        timeout=60,
    )


class LabmlServer:
    """Accepts what labml sends, like labml's own server."""

    def __init__(self) -> None:
        self.packets: list[dict] = []
        self.status = 200
        outer = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self.send_error(405)

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                outer.packets += [{"path": self.path, **packet} for packet in json.loads(body)]
                self.send_response(outer.status)
                self.send_header("Content-Length", "2")
                self.end_headers()
                self.wfile.write(b"{}")

            def log_message(self, *args: object) -> None:
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}/api/v1/default"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def track(self, name: str) -> list[tuple[int, float]]:
        """The points of a metric, in order of arrival."""
        packets = [packet["track"][name] for packet in self.packets if name in packet.get("track", {})]
        return [point for t in packets for point in zip(t["step"], t["value"], strict=True)]


@pytest.fixture()
def labml_server() -> Iterator[LabmlServer]:
    server = LabmlServer()
    yield server
    server.server.shutdown()
    server.server.server_close()


@pytest.mark.processes
def test_without_configuration_there_is_no_network_and_no_other_file(tmp_path: Path) -> None:
    process = run_tracked(tmp_path, 1, 2)
    assert (process.returncode, process.stdout, process.stderr) == (0, "end\n", "")
    assert read_metrics(tmp_path / "tiny" / "first") == {"loss": [(1, 10.0), (2, 5.0)]}
    assert {path.name for path in tmp_path.rglob("*") if path.is_file()} <= {METRICS, "sitecustomize.py"}
    assert not (tmp_path / "home").exists()


@pytest.mark.processes
@pytest.mark.parametrize("home", ["/proc/nowhere", ""])
def test_without_configuration_no_home_folder_is_needed(home: str, tmp_path: Path) -> None:
    process = run_tracked(tmp_path, 1, HOME=home)
    assert (process.returncode, process.stdout, process.stderr) == (0, "end\n", "")


@pytest.mark.processes
def test_the_hook_detects_network_access(labml_server: LabmlServer, tmp_path: Path) -> None:
    process = run_tracked(tmp_path, 1, labml_app_url=labml_server.url)
    assert process.returncode == 9 and "contacted" in process.stderr


@pytest.mark.processes
def test_a_configured_server_gets_all_metrics_across_a_resume(
    labml_server: LabmlServer, tmp_path: Path
) -> None:
    for steps in ((1, 2, 4), (5,)):
        process = run_tracked(tmp_path, *steps, labml_app_url=labml_server.url, ONLINE="1")
        assert (process.returncode, process.stderr) == (0, "")
        # labml prints at the end that it is still sending.
        assert "end" in process.stdout.split()
    assert labml_server.track("loss") == [(1, 10.0), (2, 5.0), (4, 2.5), (5, 2.0)]
    assert len({packet["path"] for packet in labml_server.packets}) == 1
    assert {packet["name"] for packet in labml_server.packets if "name" in packet} == {"tiny"}
    (seed,) = {packet["configs"]["seed"]["value"] for packet in labml_server.packets if "configs" in packet}
    assert seed == 7
    statuses = [packet["status"]["status"] for packet in labml_server.packets if "status" in packet]
    assert statuses == ["completed", "completed"]
    # The metrics file has all metrics as well, and labml leaves no other files in the folder.
    assert read_metrics(tmp_path / "tiny" / "first")["loss"] == labml_server.track("loss")
    assert [path.name for path in (tmp_path / "tiny").rglob("*") if path.is_file()] == [METRICS]


@pytest.mark.processes
def test_the_settings_file_can_configure_a_server(labml_server: LabmlServer, tmp_path: Path) -> None:
    package = tmp_path / "labml_bert" / "training"
    package.mkdir(parents=True)
    for name in ("__init__.py", "training/__init__.py", "training/tracking.py"):
        (tmp_path / "labml_bert" / name).write_bytes((ROOT / "labml_bert" / name).read_bytes())
    (tmp_path / ".labml.yaml").write_text(
        (ROOT / ".labml.yaml").read_text() + f"app_url: {labml_server.url}\n"
    )
    process = run_tracked(tmp_path, 1, 2, PYTHONPATH=str(tmp_path), ONLINE="1")
    assert (process.returncode, process.stderr) == (0, "")
    assert labml_server.track("loss") == [(1, 10.0), (2, 5.0)]


@pytest.mark.processes
@pytest.mark.parametrize(
    ("environment", "words"),
    [
        # A port without a server.
        ({"labml_app_url": "http://127.0.0.1:9/api"}, "Connection refused"),
        ({"labml_app_url": "no address"}, "should be a valid URL"),
        # The reason repeats the address. A terminal would obey its control characters.
        ({"labml_app_url": "\x1bc is no address"}, "?c is no address"),
        ({"HOME": "/proc/nowhere"}, "No such file or directory"),
    ],
)
def test_a_run_continues_if_its_server_fails(
    environment: dict[str, str], words: str, labml_server: LabmlServer, tmp_path: Path
) -> None:
    process = run_tracked(tmp_path, 1, 2, **{"labml_app_url": labml_server.url, "ONLINE": "1", **environment})
    assert (process.returncode, process.stdout) == (0, "end\n")
    (line,) = process.stderr.splitlines()
    assert line.startswith("labml failed (") and words in line and line.endswith(METRICS)
    assert read_metrics(tmp_path / "tiny" / "first") == {"loss": [(1, 10.0), (2, 5.0)]}


def test_a_server_that_never_completes_its_answer_is_not_waited_for() -> None:
    """It sends a byte whenever the timeout of a single read is about to end."""
    is_over = threading.Event()

    def answer(server: socket.socket) -> None:
        connection, _ = server.accept()
        with connection, contextlib.suppress(OSError):
            connection.sendall(b"HTTP/1.1 200 OK\r\nX: ")
            while not is_over.wait(0.05):
                connection.sendall(b"x")

    with socket.create_server(("127.0.0.1", 0)) as server:
        threading.Thread(target=answer, args=[server], daemon=True).start()
        url = f"http://127.0.0.1:{server.getsockname()[1]}"
        with pytest.raises(TimeoutError, match=r"the server hasn't answered within 0\.3 s"):
            wait_for_answer(url, seconds=0.3)
        is_over.set()


@pytest.mark.long
@pytest.mark.processes
def test_a_server_that_fails_during_the_run_does_not_keep_the_process_alive(
    labml_server: LabmlServer, tmp_path: Path
) -> None:
    """labml's thread repeats a failed request forever."""
    labml_server.status = 500
    process = run_tracked(tmp_path, 1, 2, labml_app_url=labml_server.url, ONLINE="1")
    assert process.returncode == 0 and "end" in process.stdout.split()
    assert "labml failed (TimeoutError: the server hasn't accepted the last metrics" in process.stderr
    assert read_metrics(tmp_path / "tiny" / "first") == {"loss": [(1, 10.0), (2, 5.0)]}
