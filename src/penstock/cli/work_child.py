"""One process of `penstock work`, started by its supervisor.

    python -m penstock.cli.work_child MODULE:APP LINE GRACE_MS [METRICS_PORT]

LINE is the file descriptor by which it says how it fares (see `queue/supervise.py`). When the line closes the
supervisor is gone: then it drains as if it had been asked to, and kills itself when that takes too long.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
import threading
import traceback
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from penstock.cli.loading import loaded_app
from penstock.cli.logs import logging_to_stderr
from penstock.cli.work_health import Watch, watched
from penstock.config import load
from penstock.errors import PenstockError
from penstock.queue.running import check_ends, keep_working
from penstock.queue.supervise import AWAY, FAILED, READY
from penstock.signals import heeded
from penstock.values import Duration

if TYPE_CHECKING:
    from penstock.app import App

GIVING_BACK_MS = 5_000


def main(arguments: Sequence[str]) -> int:
    target, line_number, grace_ms, *metrics_port = arguments
    line = socket.socket(fileno=int(line_number))
    # What the handlers start must not keep it open.
    line.set_inheritable(False)
    stopping, grace = threading.Event(), Duration(int(grace_ms))
    with heeded(lambda _: stopping.set()):
        return _serve(target, line, stopping, grace, int(metrics_port[0]) if metrics_port else None)


def _serve(
    target: str, line: socket.socket, stopping: threading.Event, grace: Duration, metrics_port: int | None
) -> int:
    threading.Thread(target=_outlive_nobody, args=(line, stopping, grace), name="penstock-line", daemon=True).start()
    try:
        with (
            logging_to_stderr(load().settings.log),
            # A port that is taken is found before anything else begins.
            watched(metrics_port, stopping=stopping) as watch,
        ):
            app = loaded_app(target)
            app.check_workable()
            _say(line, READY)
            _work(app, watch, stopping=stopping, grace=_own_part(grace))
    except PenstockError as problem:
        _say(line, AWAY if problem.retriable else FAILED)
        _print(f"error: {problem.what}", *([f"next:  {problem.next_step}"] if problem.next_step else []))
        return problem.exit_code
    except Exception:  # noqa: BLE001 - whatever the user's module raises
        _say(line, FAILED)
        traceback.print_exc()
        return 1
    return 0


def _work(app: App, watch: Watch, *, stopping: threading.Event, grace: Duration) -> None:
    """As `App.work`, while somebody watches its queues. Raises what ended one."""
    with app.working(grace=grace) as stations:
        watch.look_at(stations)
        keep_working(stations, stopping)
    check_ends(stations)


def _own_part(grace: Duration) -> Duration:
    """For the handlers; the rest is for giving back what they did not finish."""
    return Duration(grace - min(GIVING_BACK_MS, grace // 2))


def _outlive_nobody(line: socket.socket, stopping: threading.Event, grace: Duration) -> None:
    with suppress(OSError):
        line.recv(1)  # nothing is ever said to us: it returns when the other end is closed
    stopping.set()
    threading.Event().wait(grace.seconds)
    os.kill(os.getpid(), signal.SIGKILL)


def _say(line: socket.socket, word: bytes) -> None:
    with suppress(OSError):
        line.sendall(word)


def _print(*lines: str) -> None:
    print(*lines, sep="\n", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
