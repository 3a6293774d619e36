"""Signals, heard at once and where locks may be taken."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

ENDING = (signal.SIGTERM, signal.SIGINT)


@contextmanager
def heeded(heed: Callable[[int], None], *, once: bool = False) -> Iterator[None]:
    """SIGTERM and Ctrl-C call `heed` with their number; with `once` the second one does what it would do without us.

    It is called in a thread of its own, which reads the signals from a pipe. A handler in Python runs in the main
    thread, between two of its steps: within `Event.wait`, while that holds the event's lock, setting the same event
    would wait for ever; and a signal that comes just before the wait begins runs its handler only after the wait.
    Call it in the main thread.
    """
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    before = {number: signal.getsignal(number) for number in ENDING}

    def restore() -> None:
        for number, handler in before.items():
            signal.signal(number, handler)

    def listen() -> None:
        while numbers := os.read(reading, 64):
            for number in filter(ENDING.__contains__, numbers):
                heed(number)
                if once:
                    return

    listening = threading.Thread(target=listen, name="penstock-signals", daemon=True)
    listening.start()
    pipe_before = signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    for number in ENDING:
        signal.signal(number, lambda *_: restore() if once else None)
    try:
        yield
    finally:
        restore()
        signal.set_wakeup_fd(pipe_before)
        os.close(writing)
        listening.join()
        os.close(reading)
