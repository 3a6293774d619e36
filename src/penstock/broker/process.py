"""One node of the embedded Kafka: a Java process in a folder, from its start to its end."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from penstock.broker import guard, pidfile, recipe
from penstock.broker.java import Java
from penstock.broker.probe import membership
from penstock.broker.release import Release
from penstock.errors import BrokerFailed, UsageError
from penstock.observe.events import BrokerStarted, BrokerStopped

_TAIL_BYTES = 64_000
_TAIL_LINES = 25


class PortTaken(BrokerFailed):
    """Somebody took the port between our look and Kafka's start."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Engine:
    """What every node of a cluster is run with."""

    java: Java
    release: Release
    heap_mb: int
    cluster_id: str
    temporary: Path | None
    """The data folder, if it is to vanish with the process that started the broker."""

    outlives_us: bool
    """Whether the broker stays when that process ends, as `penstock broker start` wants it."""

    class_data: tuple[str, ...] = ()
    """Java options about the archive of classes, see `archive.py`."""

    def command(self) -> list[str]:
        java = [str(self.java.executable), *self.java.options, *recipe.java_options(heap_mb=self.heap_mb)]
        return [*java, *self.class_data, "-cp", self.release.classpath, "kafka.Kafka", recipe.SERVER_PROPERTIES]


class Node:
    """Numbered from 1; has a folder of its own; may be started again after it ended."""

    def __init__(self, number: int, folder: Path, engine: Engine, ports: Sequence[recipe.NodePorts]) -> None:
        self.number, self.folder = number, folder
        self.port = ports[number - 1].client
        self.bootstrap = recipe.bootstrap(ports[number - 1 : number])
        self.pid: int | None = None
        self._engine, self._ports = engine, ports
        # The guard; or the broker itself, if it is to outlive us.
        self._process: subprocess.Popen[bytes] | None = None
        self._began, self._log_began = 0.0, 0

    def __repr__(self) -> str:
        return f"Node({self.number}, {self.bootstrap}, {f'pid {self.pid}' if self.is_running else 'not running'})"

    @property
    def is_running(self) -> bool:
        """Also while it is paused."""
        return self._process is not None and self._process.poll() is None

    def launch(self) -> None:
        """Start the process and return at once; `is_ready` tells when it may be used.

        Raises BrokerRunning when a broker runs on this folder already.
        """
        if self.is_running:
            raise UsageError(f"node {self.number} runs already", next_step="end it first, with kill or terminate")
        self._forget_process()
        lock = pidfile.hold(self.folder)
        try:
            self._write_configuration()
            self._began, self._log_began = time.monotonic(), _size(self.folder / recipe.LOG_FILE)
            self._process, self.pid = _spawned(self._engine, self.folder, lock)
            if self.pid is not None:
                pidfile.note(lock, self.pid)
        finally:
            os.close(lock)

    def is_ready(self) -> bool:
        """Whether it answers, and as a member of the cluster that is open for work.

        Raises BrokerFailed, or PortTaken, when it has ended instead.
        """
        if not self.is_running:
            raise self._failure(f"ended with exit code {self._exit_code()} before it was ready")
        # The cluster's id tells our own broker from a stranger that was quicker to take the port.
        told = membership(self.port)
        return told.cluster_id == self._engine.cluster_id and self.number in told.nodes

    def started(self) -> BrokerStarted:
        """To be asked when it has just become ready."""
        seconds = time.monotonic() - self._began
        return BrokerStarted(node=self.number, bootstrap=self.bootstrap, pid=self.pid or 0, seconds=seconds)

    def not_ready_within(self, seconds: float) -> BrokerFailed:
        return self._failure(f"was not ready within {seconds:g} s")

    def send(self, signal_number: signal.Signals) -> None:
        """Raises UsageError when the node does not run."""
        if not self._sent(signal_number):
            raise UsageError(f"node {self.number} does not run", next_step=f"start({self.number}) starts it")

    def ask_to_end(self, signal_number: signal.Signals) -> None:
        if self._sent(signal_number):
            # A paused process sees nothing but SIGKILL before it is woken.
            self._sent(signal.SIGCONT)

    def see_end(self, *, within_s: float) -> BrokerStopped | None:
        """Wait for the end that it was asked for; past that time it is killed. Kafka recovers from that, too."""
        if self._process is None:
            return None
        try:
            self._process.wait(max(0.0, within_s))
        except subprocess.TimeoutExpired:
            self._sent(signal.SIGKILL)
            self._process.wait()
        stopped = BrokerStopped(node=self.number, pid=self.pid or 0, exit_code=self._exit_code())
        self._forget_process()
        return stopped

    def let_go(self) -> None:
        """Leave a broker that outlives us to itself."""
        if self._process is not None:
            # Else Popen would warn that a child is still running; that is what we want.
            self._process.returncode = 0
        self._process = None

    def log_tail(self, lines: int) -> str:
        """The end of Kafka's log, and of what Java itself said outside of it."""
        kafka, java = (_text_from(self.folder / name, 0) for name in (recipe.LOG_FILE, recipe.CONSOLE_FILE))
        return _last_lines(java, lines) + _last_lines(kafka, lines)

    def _sent(self, signal_number: signal.Signals) -> bool:
        if not self.is_running or self.pid is None:
            return False
        try:
            os.kill(self.pid, signal_number)
        except ProcessLookupError:
            return False
        return True

    def _write_configuration(self) -> None:
        properties = recipe.server_properties(self.number, self._ports)
        (self.folder / recipe.SERVER_PROPERTIES).write_text(properties, "ascii")
        (self.folder / recipe.LOGGING_PROPERTIES).write_text(recipe.logging_properties(), "ascii")

    def _failure(self, what: str) -> BrokerFailed:
        log = _text_from(self.folder / recipe.LOG_FILE, self._log_began)
        said = _text_from(self.folder / recipe.CONSOLE_FILE, 0) + log
        kind = PortTaken if "Address already in use" in said else BrokerFailed
        return kind(
            f"node {self.number} of the embedded broker {what}{_cause(said)}",
            log_tail=f"--- the end of {self.folder / recipe.LOG_FILE} ---\n{_last_lines(said, _TAIL_LINES)}---",
            next_step="`penstock doctor` checks this machine",
        )

    def _exit_code(self) -> int | None:
        return self._process.returncode if self._process is not None else None

    def _forget_process(self) -> None:
        if self._process is not None and self._process.stdin is not None:
            self._process.stdin.close()
        self._process = self.pid = None


def _spawned(engine: Engine, folder: Path, lock: int) -> tuple[subprocess.Popen[bytes], int | None]:
    """The process to wait for, and the pid of the broker (none if it could not even be started)."""
    # Java decodes file names by the locale, and under a plain C locale could not open a folder with an accent.
    environ = os.environ | {"LC_ALL": "C.UTF-8"}
    guarded = [sys.executable, "-I", "-S", guard.__file__, str(lock), str(engine.temporary or "")]
    with (folder / recipe.CONSOLE_FILE).open("wb") as console:
        process = subprocess.Popen(
            engine.command() if engine.outlives_us else [*guarded, *engine.command()],
            cwd=folder,
            env=environ,
            stdin=subprocess.DEVNULL if engine.outlives_us else subprocess.PIPE,
            stdout=console if engine.outlives_us else subprocess.PIPE,
            stderr=console,
            pass_fds=(lock,),
            # Out of reach of the terminal's Ctrl-C: whoever started the broker ends it, in order.
            start_new_session=True,
        )
    if process.stdout is None:
        return process, process.pid
    with process.stdout as told:
        pid = told.readline().strip()
    return process, int(pid) if pid else None


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _text_from(path: Path, offset: int) -> str:
    """What was written since, or, if the file was begun anew, all of it; of much, the end."""
    try:
        with path.open("rb") as content:
            size = content.seek(0, os.SEEK_END)
            content.seek(max(offset if offset <= size else 0, size - _TAIL_BYTES))
            return content.read().decode("utf-8", "replace")
    except OSError:
        return ""


def _last_lines(text: str, count: int) -> str:
    return "".join(f"{line}\n" for line in text.splitlines()[-count:])


def _cause(said: str) -> str:
    """The last complaint: of a chain of Java exceptions that is the innermost."""
    complaints = re.findall(
        r"^(?:Error: .*|\S+ \S*(?:ERROR|FATAL) .*|(?:Caused by: )?[\w.]+(?:Exception|Error): .*)$", said, re.M
    )
    return f": {complaints[-1].strip()}" if complaints else ""
