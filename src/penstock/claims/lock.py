"""A named lock through Kafka alone.

    with penstock.lock("nightly-report") as lock:
        write_report(token=lock.token)      # the resource refuses a lower token than it has seen
        if lock.lost.is_set(): ...

A lease cannot stop a process that sleeps: it wakes and goes on, while somebody else holds the lock. The token can, if
the resource that is written to checks it. `lost` tells as soon as this process itself can know.
"""

from __future__ import annotations

import os
import socket
import threading
import time
from types import TracebackType
from typing import Self

from penstock.claims.member import Listener, Member, Tenure, made
from penstock.claims.records import Slot
from penstock.claims.running import Running
from penstock.errors import NotAcquired, UsageError
from penstock.settings import Settings
from penstock.values import DurationLike, checked_name, duration

DEFAULT_GROUP = "penstock"
_LOOK_EVERY_S = 0.05


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
        self._client = client or f"{socket.gethostname()}-{os.getpid()}"
        self._gained = threading.Event()
        self._tenure: Tenure | None = None
        self._member: Running[Member] | None = None

    @property
    def token(self) -> int:
        """Grows with every holder: hand it on to what the lock protects."""
        if self._tenure is None:
            raise UsageError(f"lock {self.slot} is not held", next_step="acquire it first")
        return self._tenure.token

    def acquire(self, timeout: DurationLike | None = None) -> int:
        """Wait for the lock; returns the token.

        Raises NotAcquired when it is not ours in time, and whatever keeps us from coordinating at all.
        """
        if self._member is not None:
            raise UsageError(
                f"lock {self.slot} was acquired already", next_step="release it first, or make another Lock"
            )
        limit = self._timeout if timeout is None else duration(timeout)
        self.lost.clear()
        self._gained.clear()
        listener = Listener(gained=self._on_gained, lost=self._on_lost)
        make = made(self._settings.claims, client=self._client, listener=listener)
        self._member = Running(self._settings, make, client=self._client, on_step=self._look)
        self._member.start([self.slot])
        try:
            self._wait(self._member, None if limit is None else limit.seconds)
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

    def _wait(self, member: Running[Member], limit_s: float | None) -> None:
        deadline = None if limit_s is None else time.monotonic() + limit_s
        while not self._gained.wait(_LOOK_EVERY_S):
            if member.failure is not None:
                raise member.failure
            if deadline is not None and time.monotonic() > deadline:
                raise NotAcquired(
                    f"lock {self.slot} was not to be had in {limit_s:g} s",
                    next_step=f"see who has it with `penstock claims explain {self.slot}`, or wait longer",
                )

    def _on_gained(self, tenure: Tenure) -> None:
        self._tenure = tenure
        self._gained.set()

    def _on_lost(self, tenure: Tenure, reason: str) -> None:
        self.lost.set()

    def _look(self, member: Member) -> None:
        """Lost is also what we can no longer be sure of: nobody else can have it before, but soon may."""
        tenure = self._tenure
        if tenure is not None and self._member is not None and not member.is_good(tenure):
            self.lost.set()
