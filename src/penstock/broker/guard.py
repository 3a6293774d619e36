"""Stands between a Python process and its broker, so that the broker does not outlive it.

    python guard.py LOCK_FD TEMPORARY_FOLDER COMMAND...

A process that is killed with -9 can clean nothing up, and the kernel's own help (PR_SET_PDEATHSIG) is tied to the
*thread* that started the child, and to Linux. So the broker is started by this small process (one thread, standard
library only, no package import), whose stdin is a pipe from the Python process: when that one ends in whatever way, the
pipe closes, and the guard ends the broker. It prints the broker's pid, leaves with the broker's exit code, lives in a
session of its own (Ctrl-C on the terminal does not reach it), and takes a temporary data folder away with it.
Should the guard itself be killed, Linux kills the broker: here the starting thread is the whole process.
"""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType

GRACE_S = 5.0
LOOK_AGAIN_S = 1.0


def main(lock_fd: int, temporary: Path | None, command: list[str]) -> int:
    parent = os.getppid()
    asked_to_end: list[int] = []

    def end(signal_number: int, _frame: FrameType | None) -> None:
        asked_to_end.append(signal_number)

    signal.signal(signal.SIGTERM, end)
    # The broker alone holds the writing end: its end of life is the end of this pipe.
    broker_lives, held_by_broker = os.pipe()
    broker = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=2, pass_fds=(lock_fd, held_by_broker), preexec_fn=_death_wish()
    )
    os.close(held_by_broker)
    os.close(lock_fd)
    print(broker.pid, flush=True)
    # stdin never carries data: readable means closed.
    while not asked_to_end and os.getppid() == parent:
        ended, _, _ = select.select([0, broker_lives], [], [], LOOK_AGAIN_S)
        if broker_lives in ended:
            return _exit_code(broker.wait())
        if ended:
            break
    _end(broker, grace_s=0 if temporary else GRACE_S)
    if temporary:
        shutil.rmtree(temporary, ignore_errors=True)
    return _exit_code(broker.returncode)


def _end(broker: subprocess.Popen[bytes], *, grace_s: float) -> None:
    if grace_s:
        broker.terminate()
        # A paused broker would only see the other signal when it is woken.
        broker.send_signal(signal.SIGCONT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            broker.wait(grace_s)
    broker.kill()
    broker.wait()


def _death_wish() -> Callable[[], None] | None:
    if sys.platform != "linux":
        return None
    import ctypes

    set_parent_death_signal = 1
    prctl = ctypes.CDLL(None, use_errno=True).prctl
    return lambda: prctl(set_parent_death_signal, signal.SIGKILL, 0, 0, 0) and None


def _exit_code(returned: int) -> int:
    """As a shell has it: 128 + n for signal n."""
    return 128 - returned if returned < 0 else returned


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), Path(sys.argv[2]) if sys.argv[2] else None, sys.argv[3:]))
