"""
# Tracking a run

How did the loss get to where it is? The learning curves show how. A run writes the points of these curves to
`metrics.jsonl` in the run's folder, as one line of JSON for each report:

    {"crc32": 1671186818, "step": 390, "seconds": 11.2, "loss": 2.913, "accuracy": 0.214}
    {"crc32": 2087523592, "step": 400, "seconds": 11.5, "loss": 2.902, "accuracy": 0.216, "valid.loss": 2.884}

Each line is written to disk immediately, so a kill can damage only the last one. A line's `crc32` shows
whether the line is intact. If all lines are intact, tools that read JSON lines, such as
`pandas.read_json(path, lines=True)`, can load the file.

If you have a [labml server](https://github.com/labmlai/labml), you can also watch a run in a browser, from
any computer that can reach the server. Set the server's address as `app_url` in the file `.labml.yaml`, or in
the environment variable `labml_app_url`:

    labml_app_url=http://localhost:5005/api/v1/default python experiments/mlm_tiny.py

If you set neither of them, this package starts no labml run and sends nothing anywhere.
"""

import contextlib
import io
import math
import os
import socket
import sys
import tempfile
import threading
import urllib.error
import urllib.request
import uuid
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any

from labml_bert.checksums import decode_line, encode_line
from labml_bert.files import append, open_to_append
from labml_bert.stdout import display_path, print_note

METRICS = "metrics.jsonl"
# We read at most this many bytes of the file. They are enough for weeks of reports, one every ten seconds.
LARGEST_METRICS = 100_000_000


def append_metrics(run_path: Path, step: int, values: dict[str, float]) -> None:
    """
    ## Writing

    Appends one line to `metrics.jsonl`. JSON has no NaN and no infinity, so these values become `null`.

    Raises `ValueError` if a metric is called `step` or `crc32`, and `OSError` if the line can't be written,
    for example on a full disk, or if the file is a link.
    """
    if reserved := {"step", "crc32"} & values.keys():
        raise ValueError(f"a metric can't be called {min(reserved)}; choose another name")
    finite = {name: value if math.isfinite(value) else None for name, value in values.items()}
    line = encode_line({"step": step, **finite})
    with open_to_append(run_path / METRICS) as file:
        if os.fstat(file.fileno()).st_size:
            file.seek(-1, os.SEEK_END)
            # A kill or a full disk can leave half a line. A line appended to that would be lost too.
            if file.read(1) != b"\n":
                line = b"\n" + line
        append(file, line)


def read_metrics(run_path: Path, up_to_step: float = math.inf) -> dict[str, list[tuple[int, float]]]:
    """
    ## Reading

    Returns all metrics of a run by name, each as a list of `(step, value)`, ordered by step. A resumed run
    repeats the steps after its last checkpoint, and first writes a line with the checkpoint's step. After a
    line with a smaller step than the one before, the earlier values of later steps are left out. If a step
    was reported twice, the later value counts. Values of `null` are skipped. Damaged lines are skipped too,
    with a note on stderr, and so are lines without `crc32`, which earlier versions of this package wrote.
    Steps after `up_to_step` are left out. If the folder has no metrics, the dictionary is empty.
    """
    path = run_path / METRICS
    metrics: dict[str, dict[int, float]] = {}
    lines = []
    if path.is_file():
        with open(path, "rb") as file:
            lines = file.read(LARGEST_METRICS).splitlines()
            if file.read(1):
                print_note(f"{display_path(path)} is read only up to byte {LARGEST_METRICS:,}")
    # Only count empty lines: a damaged file can have millions of them, and parsing those would take minutes.
    last_step, damaged = 0, lines.count(b"")
    for line in filter(None, lines):
        try:
            values = decode_line(line)
            step = int(values.pop("step"))
            finite = {name: v for name, v in values.items() if v is not None and math.isfinite(v)}
        except (ValueError, AttributeError, KeyError, TypeError, OverflowError):
            damaged += 1
            continue
        if step < last_step:
            metrics = {
                name: {s: value for s, value in points.items() if s <= step}
                for name, points in metrics.items()
            }
        last_step = step
        if step > up_to_step:
            continue
        for name, value in finite.items():
            metrics.setdefault(name, {})[step] = value
    if damaged:
        print_note(f"{damaged:,} damaged line{'s' * (damaged > 1)} of {display_path(path)} left out")
    return {name: sorted(points.items()) for name, points in metrics.items()}


class Tracker:
    """
    ## A tracker for a run

    Writes the metrics of one run, and sends them to a labml server if you have configured one:

        with Tracker(run_path, configuration) as tracker:
            tracker.save(400, {"seconds": 11.5, "loss": 2.902, "valid.loss": 2.884})

    The server shows `configuration` beside the curves. A resumed run continues its curves on the server. If
    `is_local` is true, nothing is sent.

    Training doesn't depend on the server. If labml fails, one line on stderr says so, and the run continues
    without labml. For example, labml fails if the server doesn't answer. labml also fails if the home folder
    isn't writable, because it saves an id for this computer there.
    """

    def __init__(self, run_path: Path, configuration: dict[str, Any], is_local: bool = False):
        self.run_path = run_path
        self.configuration = configuration
        self.is_local = is_local
        # Closing this stack ends labml's run and removes labml's files. Without a server, the stack is empty.
        self.server = contextlib.ExitStack()
        self.is_connected = False

    def __enter__(self) -> "Tracker":
        with self.without_server_on_error():
            url = None if self.is_local else server_url()
            if url is not None:
                connect(url, self.run_path, self.configuration, self.server)
                self.is_connected = True
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        with self.without_server_on_error(), silence():
            self.server.__exit__(kind, error, traceback)

    def save(self, step: int, values: dict[str, float]) -> None:
        """
        Writes the metrics of a step, by name, and sends them to the server if it's connected. The names of
        held-out metrics start with `valid.` during the run, and with `result.` at its end.

        Raises `OSError` if the metrics can't be written to disk.
        """
        append_metrics(self.run_path, step, values)
        if self.is_connected:
            from labml import tracker

            with self.without_server_on_error():
                tracker.save(step, values)

    @contextlib.contextmanager
    def without_server_on_error(self) -> Iterator[None]:
        """If labml raises an `Exception` in the block, prints it and continues without the server."""
        try:
            yield
        except Exception as error:
            self.is_connected = False
            reason = " ".join(f"{type(error).__name__}: {error}".split())
            print_note(f"labml failed ({reason}); metrics are only in {self.run_path / METRICS}")


def server_url() -> str | None:
    """
    The address of the labml server that the user configured, or `None`. labml reads each `.labml.yaml` in the
    folder of `tracking.py` and in all folders above that folder.

    Raises `RuntimeError` if `.labml.yaml` has a setting that labml doesn't know.
    """
    if "IPython" in sys.modules:
        from IPython import display
        from IPython.core import display as old_module

        # In a notebook, labml imports `display` from the module that contained `display` before IPython 9.
        vars(old_module)["display"] = display.display

    from labml import lab

    # Without a `.labml.yaml`, labml prints where it looked for one.
    with silence():
        url = lab.get_info()["configs"]["app_url"] or os.environ.get("labml_app_url")  # noqa: SIM112
    return (url or "").strip() or None


@contextlib.contextmanager
def silence() -> Iterator[None]:
    """Discards what labml prints in the block. The experiments print their own header and results."""
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        yield


def connect(url: str, run_path: Path, configuration: dict[str, Any], on_exit: contextlib.ExitStack) -> None:
    """
    Starts a labml run that reports to `url`. Closing `on_exit` ends the run.

    Raises `OSError` if the server doesn't answer or the home folder isn't writable.
    """
    wait_for_answer(url)
    from labml import experiment, lab
    from labml.internal import app

    # If the server fails later, labml's thread retries forever. Python doesn't wait for a daemon.
    vars(app)["AppTracker"] = partial(app.AppTracker, daemon=True)
    # labml writes the commit, the configuration and a process id to files. If the process id of a killed run
    # stayed there, labml couldn't resume the run, so the files are temporary.
    files = on_exit.enter_context(tempfile.TemporaryDirectory(ignore_cleanup_errors=True))
    with silence():
        lab.configure({"app_url": url, "experiments_path": files})
        experiment.create(
            # The id depends only on the host name and the run's folder, so it's the same after a resume.
            uuid=uuid.uuid5(uuid.NAMESPACE_URL, f"{socket.gethostname()}{run_path.resolve()}").hex,
            name=run_path.resolve().parent.name,
            python_file=os.path.abspath(sys.argv[0]) if os.path.isfile(sys.argv[0]) else None,
            writers={"app"},
        )
        experiment.configs(dict(configuration))
        # The stack closes in reverse order, so this call comes after labml has queued the last metrics.
        on_exit.callback(wait_for_server)
        on_exit.enter_context(experiment.start())


def wait_for_answer(url: str, seconds: float = 10.0) -> None:
    """
    Waits for any answer from the server.

    Raises `OSError` if there is none within `seconds`.
    """
    failures: list[Exception] = []

    def ask() -> None:
        try:
            urllib.request.urlopen(url, timeout=seconds).close()
        except urllib.error.HTTPError as answer:
            answer.close()
        except Exception as error:
            failures.append(error)

    # The timeout of `urlopen` starts again with each byte, so a slow answer could take forever.
    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    thread.join(seconds)
    if thread.is_alive():
        raise TimeoutError(f"the server hasn't answered within {seconds:g} s")
    if failures:
        raise failures[0]


def wait_for_server(seconds: float = 5.0) -> None:
    """
    Waits until labml's thread has sent all metrics.

    Raises `TimeoutError` if the thread hasn't sent them after `seconds`.
    """
    from labml.internal.app import _AppTrackThread

    for thread in threading.enumerate():
        if isinstance(thread, _AppTrackThread):
            thread.join(seconds)
            if thread.is_alive():
                raise TimeoutError(f"the server hasn't accepted the last metrics within {seconds:g} s")
