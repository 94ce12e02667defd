"""Hypothesis strategies for damaged files: what disks, kills, editors and other programs do to a file."""

import contextlib
import io
import json
import re
import signal
from collections.abc import Callable, Iterator
from typing import Any

from hypothesis import strategies as st

from labml_bert.run.terminal import exit_on_bad_input

# Pieces that mean something in one of the file formats.
PIECES = [
    *[b"\0", b"\n", b"\r\n", b'"', b"'", b",", b":", b"{", b"}", b"[", b"]", b"\\", b"\xff", b"\xc3"],
    *[b"null", b"NaN", b"-Infinity", b"1e999", b"-1", b"0", b"9" * 30, b"9" * 5000, b"1e-400", b"true"],
    *[b"\\ud800", "\u202e\x1b[31m".encode(), b"[" * 100_000, b'{"a":' * 100_000, b"\x80" * 20],
    *[b"\xff\xff\xff\xff\xff\xff\xff\x7f", b"\0" * 8, b"PAR1", b"ARROW1"],
]
VALUES: list[Any] = [
    *[None, True, False, 0, 1, -1, 2, 7, 2**31, 2**63, -(2**63) - 1, 10**400, 0.5, -0.0, 1e308, 5e-324],
    *[float("nan"), float("inf"), "", "x", "0", "1", "x" * 5000, "\x1b[31m\u202e", "\ud800", "../../etc"],
    *[[], {}, [[]], {"": 1}, [1, 2], ["a", "b"], [None], {"type": None}, {"type": "x"}],
]
# A placeholder, because Python's JSON writer can't nest so deeply.
DEEP = "a string that becomes a hundred thousand brackets"


@st.composite
def damaged_bytes(draw: st.DrawFn, intact: bytes, most: int = 3) -> bytes:
    """`intact` with one to `most` changes: flipped bits, and pieces cut, repeated, moved or inserted."""
    data = intact
    for _ in range(draw(st.integers(1, most))):
        at = draw(st.integers(0, max(0, len(data) - 1)))
        kind = draw(st.sampled_from(["flip", "flip", "byte", "cut", "delete", "repeat", "insert", "move"]))
        size = draw(st.sampled_from([1, 2, 3, 4, 8, 16, 64, 256, 1024]))
        piece = data[at : at + size]
        if kind == "flip":
            data = data[:at] + bytes(b ^ (1 << draw(st.integers(0, 7))) for b in piece[:1]) + data[at + 1 :]
        elif kind == "byte":
            data = data[:at] + draw(st.binary(min_size=1, max_size=4)) + data[at + 1 :]
        elif kind == "cut":
            data = data[:at]
        elif kind == "delete":
            data = data[:at] + data[at + size :]
        elif kind == "repeat":
            data = data[:at] + piece * draw(st.integers(2, 5)) + data[at + size :]
        elif kind == "insert":
            data = data[:at] + draw(st.sampled_from(PIECES)) + data[at:]
        else:
            rest = data[:at] + data[at + size :]
            to = draw(st.integers(0, len(rest)))
            data = rest[:to] + piece + rest[to:]
    return data


def paths_in(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The path of each value inside some JSON, the whole included. Long lists and objects are cut short."""
    yield path
    if isinstance(value, dict):
        for key in list(value)[:50]:
            yield from paths_in(value[key], (*path, key))
    elif isinstance(value, list):
        for index in range(min(len(value), 5)):
            yield from paths_in(value[index], (*path, index))


@st.composite
def damaged_json(draw: st.DrawFn, intact: Any) -> str:
    """JSON in which one value has been replaced, deleted, renamed or repeated, or is nested deeply."""
    value = json.loads(json.dumps(intact))
    path = draw(st.sampled_from(list(paths_in(value))))
    other = draw(st.one_of(st.sampled_from(VALUES), st.just(DEEP), st.sampled_from(list(paths_in(value)))))
    if isinstance(other, tuple):
        # Another value of the same file.
        inner = value
        for key in other:
            inner = inner[key]
        other = json.loads(json.dumps(inner))
    if not path:
        value = other
    else:
        parent = value
        for key in path[:-1]:
            parent = parent[key]
        kind = draw(st.sampled_from(["replace", "replace", "replace", "delete", "add"]))
        if kind == "replace":
            parent[path[-1]] = other
        elif kind == "delete":
            del parent[path[-1]]
        elif isinstance(parent, dict):
            parent[draw(st.sampled_from(["", "x", "type", *parent]))] = other
        else:
            parent.insert(path[-1], other)
    text = json.dumps(value)
    return text.replace(json.dumps(DEEP), "[" * 100_000 + "]" * 100_000)


class TooSlow(BaseException):
    """Reading took too long. Not an `Exception`, so no reader can catch it."""


def read_as_commands_do(read: Callable[[], Any], *words: str) -> Any:
    """
    Calls `read` as the commands do. Returns its result, or `None` if it ended with one line on stderr and
    exit code 2; the line must contain one of the `words`, which name the file.

    Raises `TooSlow` after five seconds of work, and whatever else would end a command in a traceback.
    """

    def stop(number: int, frame: object) -> None:
        raise TooSlow

    # CPU time, so that other programs don't count, and then time by the clock, for a reader that waits.
    before = [(number, signal.signal(number, stop)) for number in (signal.SIGPROF, signal.SIGALRM)]
    signal.setitimer(signal.ITIMER_PROF, 5)
    signal.setitimer(signal.ITIMER_REAL, 60)
    errors = io.StringIO()
    try:
        with contextlib.redirect_stderr(errors), exit_on_bad_input():
            return read()
    except SystemExit as end:
        assert end.code == 2
        line = errors.getvalue()
        assert re.fullmatch(r"error: [^\n\x1b]+\n", line), line[:1000]
        assert not words or any(word in line for word in words), line[:1000]
        assert len(line) < 2000, f"{line[:500]}… has {len(line)} characters"
        assert "zip()" not in line
        return None
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.setitimer(signal.ITIMER_REAL, 0)
        for number, handler in before:
            signal.signal(number, handler)
