from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from penstock.broker import pidfile
from penstock.errors import BrokerRunning


def _sleeper(lock: int) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, pass_fds=(lock,))


def test_a_folder_without_a_pid_file_has_no_holder(tmp_path: Path) -> None:
    assert pidfile.holder(tmp_path) is None


def test_the_process_that_inherited_the_lock_is_the_holder_until_its_end(tmp_path: Path) -> None:
    lock = pidfile.hold(tmp_path)
    with _sleeper(lock) as process:
        pidfile.note(lock, process.pid)
        os.close(lock)

        assert pidfile.holder(tmp_path) == pidfile.Holder(process.pid)
        with pytest.raises(BrokerRunning, match=f"pid {process.pid}") as refused:
            pidfile.hold(tmp_path)
        assert refused.value.pid == process.pid

        process.kill()
    assert pidfile.holder(tmp_path) is None


def test_a_pid_without_a_lock_is_stale_even_if_a_process_has_it(tmp_path: Path) -> None:
    (tmp_path / pidfile.NAME).write_text(f"{os.getpid()}\n")

    assert pidfile.holder(tmp_path) is None
    lock = pidfile.hold(tmp_path)
    os.close(lock)


def test_between_lock_and_start_there_is_a_holder_without_a_pid(tmp_path: Path) -> None:
    (tmp_path / pidfile.NAME).write_text("12345\n")
    lock = pidfile.hold(tmp_path)

    assert pidfile.holder(tmp_path) == pidfile.Holder(None)
    os.close(lock)
