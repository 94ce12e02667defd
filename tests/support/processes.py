"""Detects which tests start processes."""

import multiprocessing.util
import sys
from collections.abc import Generator
from typing import Any

import pytest

EVENTS = {"subprocess.Popen", "os.fork", "os.forkpty", "os.posix_spawn", "os.system", "tests.spawn"}


class ProcessGuard:
    """
    Fails every test that starts a process but isn't marked with `processes`: `make test-fast` has to stay
    fast.

    A test also fails if it uses a fixture that started a process for another test.
    """

    def __init__(self) -> None:
        self.item: pytest.Item | None = None
        self.starts = 0
        self.fixtures: set[tuple[str, str]] = set()
        # Python reports every start of a process to an audit hook, except for multiprocessing's "spawn".
        spawn = multiprocessing.util.spawnv_passfds

        def spawn_with_audit(*arguments: Any) -> int:
            sys.audit("tests.spawn")
            return spawn(*arguments)

        multiprocessing.util.spawnv_passfds = spawn_with_audit
        sys.addaudithook(self.audit)

    def audit(self, event: str, arguments: tuple[object, ...]) -> None:
        if event in EVENTS and self.item is not None:
            self.starts += 1
            if self.item.get_closest_marker("processes") is None:
                pytest.fail(f"{self.item.nodeid} starts a process; mark it with @pytest.mark.processes")

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        self.item = item
        try:
            return (yield)
        finally:
            self.item = None

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef: pytest.FixtureDef[object]) -> Generator[None, object, object]:
        starts_before = self.starts
        try:
            return (yield)
        finally:
            if self.starts > starts_before:
                self.fixtures.add((fixturedef.func.__module__, fixturedef.argname))

    def pytest_runtest_call(self, item: pytest.Function) -> None:
        fixture_names = {
            (module, name)
            for module in (item.module.__name__, "tests.conftest")
            for name in item.fixturenames
        }
        if fixture_names & self.fixtures and item.get_closest_marker("processes") is None:
            pytest.fail(f"{item.nodeid} uses {fixture_names & self.fixtures}, which start a process; mark it")
