"""A named lock through Kafka alone.

    with penstock.lock("nightly-report") as lock:
        write_report(token=lock.token)      # the resource refuses a lower token than it has seen
        if lock.lost.is_set(): ...

A lease cannot stop a process that sleeps: it wakes and goes on, while somebody else holds the lock. The token can, if
the resource that is written to checks it. `lost` tells as soon as this process itself can know.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import NamedTuple, Self

from penstock.claims.member import Listener, Member, Tenure, made
from penstock.claims.naming import this_host
from penstock.claims.placement import partition_of
from penstock.claims.records import Slot
from penstock.claims.running import Running
from penstock.claims.state import Claims
from penstock.errors import Fenced, NotAcquired, PenstockError, UsageError
from penstock.ledger.tail import Tail
from penstock.settings import Settings
from penstock.values import DurationLike, checked_name, duration

DEFAULT_GROUP = "penstock"
_LOOK_EVERY_S = 0.05


class Seen(NamedTuple):
    """What the log says of a lock, as far as it was read."""

    position: int | None
    """A number that holders leave for later ones; it only grows."""
    clock_ms: int
    """The log clock: when the newest record beside it was appended."""


class Lock:
    """Held from `acquire` (or entering) to `release` (or leaving), renewed by a thread of its own."""

    def __init__(
        self,
        settings: Settings,
        name: str,
        *,
        group: str = DEFAULT_GROUP,
        timeout: DurationLike | None = None,
        client: str | None = None,
    ) -> None:
        """`timeout`: how long entering may wait; none waits for as long as it takes."""
        self.slot = Slot(checked_name("group", group), checked_name("lock", name))
        self.lost = threading.Event()
        self._settings = settings
        self._timeout = None if timeout is None else duration(timeout)
        # Not one of the numbers that members are called by.
        self._client = client or f"{this_host()}-pid{os.getpid()}"
        self._acquisition: _Acquisition | None = None
        """The last one, also when it is over."""

    @property
    def token(self) -> int:
        """Grows with every holder: hand it on to what the lock protects."""
        return self._held()[1].token

    @property
    def failure(self) -> PenstockError | None:
        """What ended the thread that renews it, if something did: then it is as good as lost."""
        return None if self._acquisition is None or self._acquisition.is_over else self._acquisition.failure

    @property
    def seen(self) -> Seen:
        """What the log says of it by now; the holder sees the present."""
        acquisition = self._acquisition
        if acquisition is None or acquisition.seen is None:
            raise UsageError(f"lock {self.slot} was not looked at yet", next_step="acquire it first")
        tenure = None if acquisition.is_over else acquisition.tenure
        return acquisition.seen if tenure is None else acquisition.seen._replace(position=tenure.told)

    def acquire(self, timeout: DurationLike | None = None, *, unless: Callable[[Seen], bool] | None = None) -> int:
        """Wait for the lock; returns the token. Whether waiting has become pointless is for `unless` to say.

        Raises NotAcquired when it is not ours in time, and whatever keeps us from coordinating at all.
        """
        if self._acquisition is not None and not self._acquisition.is_over:
            raise UsageError(
                f"lock {self.slot} was acquired already", next_step="release it first, or make another Lock"
            )
        limit = self._timeout if timeout is None else duration(timeout)
        self.lost.clear()
        acquisition = self._acquisition = _Acquisition(self._settings, self.slot, self._client, self.lost)
        acquisition.begin()
        try:
            self._wait(acquisition, None if limit is None else limit.seconds, unless)
        except BaseException:
            self.release()
            raise
        return self.token

    def release(self) -> None:
        """Give the lock back; the next one waiting has it at once. Idempotent."""
        if self._acquisition is not None:
            self._acquisition.end()

    def __enter__(self) -> Self:
        self.acquire()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()

    def move_to(self, position: int) -> None:
        """Leave a number for later holders; when this returns, all of them will find it, or a higher one.

        Raises Fenced if the lock is lost, or released by another thread, before that is sure.
        """
        acquisition, tenure = self._held()
        tenure.position = position
        acquisition.is_eager = True
        while tenure.told is None or tenure.told < position:
            if self.lost.wait(_LOOK_EVERY_S / 5) or acquisition.is_over:
                raise Fenced(
                    f"lock {self.slot} was lost under token {tenure.token}",
                    next_step="stop this work; whoever has the lock now does it",
                ) from acquisition.failure

    def _held(self) -> tuple[_Acquisition, Tenure]:
        acquisition = self._acquisition
        if acquisition is None or acquisition.is_over or acquisition.tenure is None:
            raise UsageError(f"lock {self.slot} is not held", next_step="acquire it first")
        return acquisition, acquisition.tenure

    def _wait(self, acquisition: _Acquisition, limit_s: float | None, unless: Callable[[Seen], bool] | None) -> None:
        deadline = None if limit_s is None else time.monotonic() + limit_s
        while not acquisition.gained.wait(_LOOK_EVERY_S):
            if acquisition.failure is not None:
                raise acquisition.failure
            if unless is not None and acquisition.seen is not None and unless(acquisition.seen):
                raise NotAcquired(f"lock {self.slot} is not needed any more")
            if deadline is not None and time.monotonic() > deadline:
                raise NotAcquired(
                    f"lock {self.slot} was not to be had in {limit_s:g} s",
                    next_step=f"see who has it with `penstock claims explain {self.slot}`, or wait longer",
                )


class _Acquisition:
    """From one `acquire` to its `release`. A thread that outlives it finds it over, and touches no later one."""

    def __init__(self, settings: Settings, slot: Slot, client: str, lost: threading.Event) -> None:
        """`lost` is shared by all acquisitions of the lock."""
        self.gained = threading.Event()
        self.tenure: Tenure | None = None
        self.seen: Seen | None = None
        self.is_eager = False
        """Whether a position is to be told at once."""
        self.is_over = False
        self._slot, self._lost = slot, lost
        self._number = partition_of(slot, settings.claims.partitions)
        # Whoever releases in a signal handler may have it already.
        self._ending = threading.RLock()
        listener = Listener(gained=self._on_gained, lost=self._on_lost)
        make = made(settings.claims, client=client, listener=listener)
        self._running = _Renewal(settings, make, client=client, on_step=self._look, on_end=self._on_end)

    @property
    def failure(self) -> PenstockError | None:
        return self._running.failure

    def begin(self) -> None:
        self._running.start([self._slot])

    def end(self) -> None:
        with self._ending:
            was_over, self.is_over = self.is_over, True
        if not was_over:
            self._running.stop(within_s=5)

    # In the member's thread

    def _lose(self) -> None:
        with self._ending:
            if not self.is_over:
                self._lost.set()

    def _on_gained(self, tenure: Tenure) -> None:
        # Once lost, it stays lost until the next `acquire`: the holder must not find a newer token under its hands.
        if self.tenure is None:
            self.tenure = tenure

    def _on_lost(self, tenure: Tenure, reason: str) -> None:
        self._lose()
        self._running.want(())

    def _on_end(self) -> None:
        """Nobody renews it any more."""
        if self.tenure is not None:
            self._lose()

    def _look(self, member: Member) -> None:
        """Lost is also what we can no longer be sure of: nobody else can have it before, but soon may."""
        tenure = self.tenure
        if tenure is not None and not member.is_good(tenure):
            self._lose()
        self._see(member)
        if self.is_eager and self._slot in member.held:
            self.is_eager = False
            member.beat_now(self._slot)
        if tenure is not None:
            self.gained.set()

    def _see(self, member: Member) -> None:
        if self.is_over or not member.follows(self._slot):
            return  # released, or the broker was away: perhaps the member never followed the log
        if member.tail.is_caught_up(self._number):
            fold = member.tail.fold(self._number)
            self.seen = Seen(fold.machine.slot(self._slot).position, fold.clock_ms)


class _Renewal(Running[Member]):
    """Also tells when its thread has ended, for whatever reason."""

    def __init__(
        self,
        settings: Settings,
        make: Callable[[Tail[Claims]], Member],
        *,
        client: str,
        on_step: Callable[[Member], None],
        on_end: Callable[[], None],
    ) -> None:
        super().__init__(settings, make, client=client, on_step=on_step)
        self._on_end = on_end

    def _fail(self, failure: PenstockError) -> None:
        super()._fail(failure)
        # Not only at the very end: to close the clients may take longer than the lease lasts.
        self._on_end()

    def _run(self) -> None:
        try:
            super()._run()
        finally:
            self._on_end()
