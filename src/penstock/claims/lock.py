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
from penstock.errors import Fenced, NotAcquired, PenstockError, UsageError
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
        self._gained = threading.Event()
        self._tenure: Tenure | None = None
        self._member: Running[Member] | None = None
        self._seen: Seen | None = None
        self._is_eager = False

    @property
    def token(self) -> int:
        """Grows with every holder: hand it on to what the lock protects."""
        if self._tenure is None:
            raise UsageError(f"lock {self.slot} is not held", next_step="acquire it first")
        return self._tenure.token

    @property
    def failure(self) -> PenstockError | None:
        """What ended the thread that renews it, if something did: then it is as good as lost."""
        return None if self._member is None else self._member.failure

    @property
    def seen(self) -> Seen:
        """What the log says of it by now; the holder sees the present."""
        if self._seen is None:
            raise UsageError(f"lock {self.slot} was not looked at yet", next_step="acquire it first")
        return self._seen if self._tenure is None else self._seen._replace(position=self._tenure.told)

    def acquire(self, timeout: DurationLike | None = None, *, unless: Callable[[Seen], bool] | None = None) -> int:
        """Wait for the lock; returns the token. Whether waiting has become pointless is for `unless` to say.

        Raises NotAcquired when it is not ours in time, and whatever keeps us from coordinating at all.
        """
        if self._member is not None:
            raise UsageError(
                f"lock {self.slot} was acquired already", next_step="release it first, or make another Lock"
            )
        limit = self._timeout if timeout is None else duration(timeout)
        self.lost.clear()
        self._gained.clear()
        self._seen, self._is_eager = None, False
        listener = Listener(gained=self._on_gained, lost=self._on_lost)
        make = made(self._settings.claims, client=self._client, listener=listener)
        self._member = Running(self._settings, make, client=self._client, on_step=self._look)
        self._member.start([self.slot])
        try:
            self._wait(self._member, None if limit is None else limit.seconds, unless)
        except BaseException:
            self.release()
            raise
        return self.token

    def release(self) -> None:
        """Give the lock back; the next one waiting has it at once. Idempotent."""
        member, self._member = self._member, None
        if member is not None:
            member.stop(within_s=5)
        self._tenure = None

    def __enter__(self) -> Self:
        self.acquire()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()

    def move_to(self, position: int) -> None:
        """Leave a number for later holders; when this returns, all of them will find it, or a higher one.

        Raises Fenced if the lock is lost before that is sure.
        """
        tenure = self._tenure
        if tenure is None:
            raise UsageError(f"lock {self.slot} is not held", next_step="acquire it first")
        tenure.position = position
        self._is_eager = True
        while tenure.told is None or tenure.told < position:
            if self.lost.wait(_LOOK_EVERY_S / 5):
                raise Fenced(
                    f"lock {self.slot} was lost under token {tenure.token}",
                    next_step="stop this work; whoever has the lock now does it",
                )

    def _wait(self, member: Running[Member], limit_s: float | None, unless: Callable[[Seen], bool] | None) -> None:
        deadline = None if limit_s is None else time.monotonic() + limit_s
        while not self._gained.wait(_LOOK_EVERY_S):
            if member.failure is not None:
                raise member.failure
            if unless is not None and self._seen is not None and unless(self._seen):
                raise NotAcquired(f"lock {self.slot} is not needed any more")
            if deadline is not None and time.monotonic() > deadline:
                raise NotAcquired(
                    f"lock {self.slot} was not to be had in {limit_s:g} s",
                    next_step=f"see who has it with `penstock claims explain {self.slot}`, or wait longer",
                )

    def _on_gained(self, tenure: Tenure) -> None:
        # Once lost, it stays lost until the next `acquire`: the holder must not find a newer token under its hands.
        if self._tenure is None:
            self._tenure = tenure

    def _on_lost(self, tenure: Tenure, reason: str) -> None:
        self.lost.set()
        if self._member is not None:
            self._member.want(())

    def _look(self, member: Member) -> None:
        """Lost is also what we can no longer be sure of: nobody else can have it before, but soon may."""
        tenure = self._tenure
        if tenure is not None and self._member is not None and not member.is_good(tenure):
            self.lost.set()
        self._see(member)
        if self._is_eager and self.slot in member.held:
            self._is_eager = False
            member.beat_now(self.slot)
        if tenure is not None:
            self._gained.set()

    def _see(self, member: Member) -> None:
        if self._member is None:
            return  # released, perhaps before the member ever followed the log
        number = partition_of(self.slot, self._settings.claims.partitions)
        if member.tail.is_caught_up(number):
            fold = member.tail.fold(number)
            self._seen = Seen(fold.machine.slot(self.slot).position, fold.clock_ms)
