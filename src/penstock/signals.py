"""Signals, heard at once and where locks may be taken."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

ENDING = (signal.SIGTERM, signal.SIGINT)

_to_forget: list[Callable[[], None]] = []
"""What a child has to undo that is forked while signals are heeded."""
_forking = threading.local()


def _hold_back() -> None:
    """A signal to the child that comes before it has forgotten would still go to its parent."""
    _forking.mask_before = signal.pthread_sigmask(signal.SIG_BLOCK, ENDING)


def _let_go() -> None:
    signal.pthread_sigmask(signal.SIG_SETMASK, _forking.mask_before)


def _forget_in_child() -> None:
    while _to_forget:
        _to_forget.pop()()
    _let_go()


os.register_at_fork(before=_hold_back, after_in_parent=_let_go, after_in_child=_forget_in_child)


@contextmanager
def heeded(heed: Callable[[int], None], *, once: bool = False) -> Iterator[None]:
    """SIGTERM and Ctrl-C call `heed` with their number; with `once` the second one does what it would do without us.

    It is called in a thread of its own, which reads the signals from a pipe. A handler in Python runs in the main
    thread, between two of its steps: within `Event.wait`, while that holds the event's lock, setting the same event
    would wait for ever; and a signal that comes just before the wait begins runs its handler only after the wait.
    Call it in the main thread.

    A forked child, as `multiprocessing` makes them, is as if it had never been called: else the signal that ends the
    child would go into the pipe, and be heeded here instead.
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

    def forget() -> None:
        restore()
        signal.set_wakeup_fd(-1)
        os.close(writing)
        os.close(reading)

    listening = threading.Thread(target=listen, name="penstock-signals", daemon=True)
    listening.start()
    pipe_before = signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    for number in ENDING:
        signal.signal(number, lambda *_: restore() if once else None)
    _to_forget.append(forget)
    try:
        yield
    finally:
        _to_forget.remove(forget)
        restore()
        signal.set_wakeup_fd(pipe_before)
        os.close(writing)
        listening.join()
        os.close(reading)
