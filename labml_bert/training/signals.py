"""
# Signals

How does a run notice Ctrl-C? The system sends the program a signal. It also does so if somebody closes the
terminal or shuts the machine down. Without a handler, most signals end the program at once.
"""

import contextlib
import os
import signal
import threading
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any


@contextlib.contextmanager
def handle_signals(handlers: dict[str, Callable[[int, FrameType | None], Any]]) -> Iterator[None]:
    """
    While the block runs, signals call `handlers`, by name. Leaves out signals that the system doesn't have:
    Windows has neither SIGHUP nor SIGCONT. Also leaves out signals that the program ignores, such as SIGHUP
    under `nohup`. Outside the main thread, where Python sets no handlers, does nothing. SIGTERM still ends
    a process that the block forks, and the other signals do nothing there.
    """
    process = os.getpid()

    def handle(number: int, frame: FrameType | None) -> None:
        if os.getpid() == process:
            numbers[number](number, frame)
        elif number == signal.SIGTERM:  # of a forked process
            signal.signal(number, before[number])
            os.kill(os.getpid(), number)

    numbers = {getattr(signal, name): handler for name, handler in handlers.items() if hasattr(signal, name)}
    if threading.current_thread() is not threading.main_thread():
        numbers = {}
    before = {
        number: signal.signal(number, handle)
        for number in numbers
        if signal.getsignal(number) is not signal.SIG_IGN
    }
    try:
        yield
    finally:
        for number, old_handler in before.items():
            signal.signal(number, old_handler)
