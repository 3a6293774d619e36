"""Signals that set an event the main thread waits for."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading

import pytest

from penstock.signals import heeded

# Each alarm comes at another moment of the wait. Set in the handler itself, the event hung within the first few 100.
WAITS = """
import random, signal, threading
from penstock import signals

signals.ENDING = (signal.SIGALRM,)
now = []
with signals.heeded(lambda _: now[-1].set()):
    for each in range(5_000):
        now.append(threading.Event())
        signal.setitimer(signal.ITIMER_REAL, 1e-6 + random.random() * 3e-5)
        assert now[-1].wait(30)
print("done")
"""

# As a handler does that has a process of its own: it runs in a thread.
FORKS = """
import multiprocessing, threading, time
from penstock import signals

def fork():
    child = multiprocessing.get_context("fork").Process(target=time.sleep, args=(60,))
    child.start()
    child.terminate()
    child.join(30)
    ends.append(child.exitcode)

heard, ends = [], []
for once in (False, True):
    with signals.heeded(heard.append, once=once):
        thread = threading.Thread(target=fork)
        thread.start()
        thread.join()
print(ends, heard)
"""


def test_a_signal_at_any_moment_of_a_wait_ends_it() -> None:
    done = subprocess.run([sys.executable, "-c", WAITS], capture_output=True, text=True, timeout=120, check=False)

    assert (done.stdout, done.stderr) == ("done\n", "")


def test_the_end_of_a_forked_child_is_nothing_to_its_parent() -> None:
    done = subprocess.run([sys.executable, "-c", FORKS], capture_output=True, text=True, timeout=120, check=False)

    assert (done.stdout, done.stderr) == ("[-15, -15] []\n", "")


def test_the_handlers_of_before_are_there_again_and_no_thread_is_left() -> None:
    before = signal.getsignal(signal.SIGTERM)
    heard: list[int] = []

    with heeded(heard.append):
        signal.raise_signal(signal.SIGTERM)
        signal.raise_signal(signal.SIGINT)

    assert heard == [signal.SIGTERM, signal.SIGINT]
    assert signal.getsignal(signal.SIGTERM) is before
    assert "penstock-signals" not in [thread.name for thread in threading.enumerate()]


def test_once_means_that_the_second_signal_is_not_ours() -> None:
    heard: list[int] = []

    with heeded(heard.append, once=True):
        signal.raise_signal(signal.SIGTERM)
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)

    assert heard == [signal.SIGTERM]
