"""Keeps some processes at work: started again when they die, replaced when they grow, drained when we are to stop.

A child is a command that is told the number of a file descriptor, its *line* to us. It says `ready` there when it
begins to work, and `failed` when it ends by an error of its own, or `away` if that error may pass: a broker that cannot
be reached. When we are gone, however that came about, the line closes, and the child has to end by itself.

*Giving up.* A message may kill the process that handles it, several times, until it is known which one it was: so
children that were at work are started again for ever. Children that never come to work, or fail right away for a reason
that does not pass, end it all.
"""

from __future__ import annotations

import select
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import NamedTuple

from penstock.errors import UsageError
from penstock.observe import events
from penstock.observe.events import tell
from penstock.values import Duration, duration

READY = b"ready\n"
FAILED = b"failed\n"
AWAY = b"away\n"

INTERRUPTED = 130

_LOOK_EVERY_S = 0.1
_MEASURE_EVERY_S = 1.0
_WATCH_EVERY_S = 0.5
_WORDS_MAX = 4_096


class Terms(NamedTuple):
    """How children are treated."""

    processes: int = 1
    grace: Duration = duration("30s")
    """From being asked to end to being killed."""
    memory_max_mb: float | None = None
    back_off: Duration = duration("500ms")
    back_off_max: Duration = duration("30s")
    quiet: Duration = duration("30s")
    """Who lived that long was well: the next back-off is the first again."""
    failures_max: int = 5
    """So many in a row that never came to work, or failed at once, and we give up."""


class Tools(NamedTuple):
    """What a supervisor needs of the world."""

    command: Callable[[int, int], Sequence[str]]
    """From the number of a process, from 1 on, and its line."""
    environ: Callable[[int], Mapping[str, str] | None] = lambda number: None
    stdout: int | None = None
    resident_mb: Callable[[int], float | None] = lambda pid: None
    changed_file: Callable[[], str | None] | None = None
    """Which file of the code has changed since it was asked last; without it, code is not watched."""


class BackOff:
    """Doubles while children die young."""

    def __init__(self, terms: Terms) -> None:
        self._terms = terms
        self._next_s = terms.back_off.seconds

    def after(self, lived_s: float) -> float:
        """How long to wait until the next start."""
        if lived_s >= self._terms.quiet.seconds:
            self._next_s = self._terms.back_off.seconds
        wait_s, self._next_s = self._next_s, min(2 * self._next_s, self._terms.back_off_max.seconds)
        return wait_s


@dataclass(slots=True, eq=False)
class _Child:
    process: subprocess.Popen[bytes]
    line: socket.socket
    started: float
    is_ready: bool = False
    has_failed: bool = False
    is_away: bool = False
    kill_at: float | None = None
    """Set when it was asked to end."""
    is_too_large: bool = False
    is_silent: bool = False
    """It has closed its line: there is nothing more to hear."""

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def has_ended_well(self) -> bool:
        # While it loads nobody listens to the signal yet, and nothing is lost.
        fine = (0,) if self.is_ready else (0, -signal.SIGTERM)
        return self.process.returncode in fine

    def hear(self) -> None:
        try:
            said = self.line.recv(_WORDS_MAX)
        except BlockingIOError:
            return
        except ConnectionError:
            said = b""
        self.is_silent = not said
        self.is_ready |= READY in said
        self.has_failed |= FAILED in said
        self.is_away |= AWAY in said

    def signal(self, number: signal.Signals) -> None:
        # By its own handle: once it was waited for, the same id may be anybody's.
        if self.process.poll() is None:
            self.process.send_signal(number)


@dataclass(slots=True)
class _Seat:
    """The place of one child after the other."""

    number: int
    back_off: BackOff
    start_at: float = 0.0
    failures: int = 0
    child: _Child | None = field(default=None)


class Supervisor:
    """Belongs to the main thread, whose signals it handles while it runs."""

    def __init__(self, terms: Terms, tools: Tools) -> None:
        self._terms, self._tools = terms, tools
        self._seats = [_Seat(number, BackOff(terms)) for number in range(1, terms.processes + 1)]
        self._signals: list[int] = []
        self._exit_code: int | None = None
        """Set when we are to stop: what to leave with if all goes well."""
        self._is_proven = False
        """Whether a child came to work with the present code; until then one tries, for all."""
        self._measured = self._watched = 0.0

    def run(self) -> int:
        """Until SIGTERM or SIGINT, or until we give up; the exit code."""
        try:
            with self._heard_signals():
                while self._exit_code is None or self._living():
                    if self._signals.count(signal.SIGINT) > 1:
                        return INTERRUPTED
                    self._step()
        finally:
            self._kill_all()
        return self._exit_code

    def _step(self) -> None:
        if self._signals and self._exit_code is None:
            self._stop(0)
        for seat in self._seats:
            self._look_at(seat)
        self._measure()
        self._watch_code()
        lines = [child.line for child in self._living() if not child.is_silent]
        heard, _, _ = select.select(lines, [], [], _LOOK_EVERY_S)
        for seat in self._seats:
            if seat.child is not None and seat.child.line in heard:
                self._hear(seat.number, seat.child)

    def _hear(self, number: int, child: _Child) -> None:
        was_ready = child.is_ready
        child.hear()
        if child.is_ready and not was_ready:
            self._is_proven = True
            tell(events.ProcessReady(number=number, pid=child.pid, seconds=time.monotonic() - child.started))

    # Starting and ending

    def _look_at(self, seat: _Seat) -> None:
        child, now = seat.child, time.monotonic()
        if child is None:
            is_first = self._is_proven or seat is self._seats[0]
            if self._exit_code is None and is_first and now >= seat.start_at:
                self._start(seat)
        elif child.process.poll() is not None:
            seat.child = None
            child.hear()
            child.line.close()
            self._after_end(seat, child, now)
        elif child.kill_at is not None and now >= child.kill_at:
            tell(events.ProcessKilled(number=seat.number, pid=child.pid, grace_s=self._terms.grace.seconds))
            child.signal(signal.SIGKILL)
            child.process.wait()

    def _start(self, seat: _Seat) -> None:
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        with theirs:
            process = subprocess.Popen(
                self._tools.command(seat.number, theirs.fileno()),
                stdin=subprocess.DEVNULL,
                stdout=self._tools.stdout,
                env=self._tools.environ(seat.number),
                pass_fds=(theirs.fileno(),),
                # Ctrl-C on a terminal goes to a whole group of processes; what it means for children is our decision.
                process_group=0,
            )
        seat.child = _Child(process, ours, time.monotonic())
        tell(events.ProcessStarted(number=seat.number, pid=process.pid))

    def _after_end(self, seat: _Seat, child: _Child, now: float) -> None:
        code, lived_s = child.process.returncode, now - child.started
        if child.kill_at is not None:
            tell(events.ProcessStopped(number=seat.number, pid=child.pid, exit_code=code))
            if self._exit_code == 0 and not child.has_ended_well:
                self._exit_code = 1
            # One that is too large from the start would be replaced as fast as it can be.
            seat.start_at = now + (seat.back_off.after(lived_s) if child.is_too_large else 0)
            return
        seat.failures = seat.failures + 1 if self._has_failed_at_once(child, lived_s) else 0
        is_misused = child.has_failed and code == UsageError.exit_code
        is_hopeless = is_misused or seat.failures >= self._terms.failures_max
        wait_s = seat.back_off.after(lived_s)
        seat.start_at = now + wait_s
        restart_in_s = None if is_hopeless else wait_s
        tell(events.ProcessDied(number=seat.number, pid=child.pid, exit_code=code, restart_in_s=restart_in_s))
        if is_hopeless:
            self._hopeless(seat, code if is_misused else 1)

    def _has_failed_at_once(self, child: _Child, lived_s: float) -> bool:
        if child.is_away or lived_s >= self._terms.quiet.seconds:
            return False
        return child.has_failed or not child.is_ready

    def _hopeless(self, seat: _Seat, exit_code: int) -> None:
        """It would not go better the next time; unless somebody is at the code right now."""
        if self._tools.changed_file is None:
            self._stop(exit_code)
        else:
            seat.start_at = float("inf")

    def _stop(self, exit_code: int) -> None:
        self._exit_code = exit_code
        for child in self._living():
            self._drain(child)

    def _drain(self, child: _Child) -> None:
        if child.kill_at is None:
            child.kill_at = time.monotonic() + self._terms.grace.seconds
            child.signal(signal.SIGTERM)

    def _kill_all(self) -> None:
        for child in self._living():
            child.signal(signal.SIGKILL)
            child.process.wait()
            child.line.close()

    def _living(self) -> list[_Child]:
        return [seat.child for seat in self._seats if seat.child is not None]

    # Watching

    def _measure(self) -> None:
        limit, now = self._terms.memory_max_mb, time.monotonic()
        if limit is None or now - self._measured < _MEASURE_EVERY_S:
            return
        self._measured = now
        for seat in self._seats:
            child = seat.child
            if child is None or child.kill_at is not None:
                continue
            resident_mb = self._tools.resident_mb(child.pid)
            if resident_mb is not None and resident_mb > limit:
                tell(
                    events.ProcessTooLarge(
                        number=seat.number, pid=child.pid, resident_mb=resident_mb, memory_max_mb=limit
                    )
                )
                child.is_too_large = True
                self._drain(child)

    def _watch_code(self) -> None:
        now = time.monotonic()
        if self._tools.changed_file is None or self._exit_code is not None or now - self._watched < _WATCH_EVERY_S:
            return
        self._watched = now
        path = self._tools.changed_file()
        if path is None:
            return
        tell(events.CodeChanged(path=path))
        self._is_proven = False
        for seat in self._seats:
            seat.back_off, seat.failures, seat.start_at = BackOff(self._terms), 0, 0.0
            if seat.child is not None:
                self._drain(seat.child)

    @contextmanager
    def _heard_signals(self) -> Iterator[None]:
        """The handler only takes a note: it may come at any moment."""
        numbers = (signal.SIGTERM, signal.SIGINT)
        before = {number: signal.getsignal(number) for number in numbers}
        for number in numbers:
            signal.signal(number, lambda heard, _frame: self._signals.append(heard))
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
