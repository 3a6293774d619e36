"""A member that drives itself: one thread owns it, and everybody else talks to that thread."""

from __future__ import annotations

import logging
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Generic, Protocol, TypeVar, runtime_checkable

from penstock.claims.placement import check_partitions, coordination_topic
from penstock.claims.records import Slot
from penstock.claims.state import Claims
from penstock.errors import InvariantBroken, PenstockError, TransientError
from penstock.ledger.kafka_log import open_ledger
from penstock.ledger.tail import Tail, monotonic_ms
from penstock.ledger.topics import make_ledger
from penstock.settings import Settings

_STEP_MS = 20
_BACK_OFF_S = 0.2

log = logging.getLogger("penstock.claims")


def opened_tail(settings: Settings, instance: str) -> Tail[Claims]:
    """The coordination ledger, made if it is missing.

    Raises Refused if its topics could not keep the promises, or are partitioned otherwise than our settings say.
    """
    topic = coordination_topic(settings)
    make_ledger(settings.kafka, topic, partitions=settings.claims.partitions)
    ledger, snapshots = open_ledger(settings.kafka, topic, was_made=True)
    check_partitions(topic, ledger.partition_count(), settings.claims)
    return Tail(
        ledger,
        snapshots,
        machine=Claims,
        instance=instance,
        monotonic_ms=monotonic_ms,
        fresh_ms=int(settings.claims.heartbeat) // 2,
        snapshot_every=settings.claims.snapshot_every,
    )


def broken_by(bug: Exception, what: str) -> InvariantBroken:
    """What users of a thread are told when a bug ended it."""
    failure = InvariantBroken(
        f"{what} stopped: {type(bug).__name__}: {bug}", next_step="please report it, with the log"
    )
    failure.__cause__ = bug
    return failure


@contextmanager
def noted(what: str, fail: Callable[[PenstockError], object], log: logging.Logger = log) -> Iterator[None]:
    """What is raised inside ended this thread: it is logged, and handed to `fail`."""
    try:
        yield
    except PenstockError as failure:
        log.error("%s stopped: %s", what, failure)
        fail(failure)
    except Exception as bug:
        log.exception("%s stopped by a bug", what)
        fail(broken_by(bug, what))


class Driven(Protocol):
    """What such a thread can drive: it holds parts of the slots that it wants, and moves by steps."""

    @property
    def holds(self) -> int:
        """How much would have to be given back before it may go."""
        ...

    def want(self, slots: Iterable[Slot], /) -> None: ...

    def step(self, timeout_ms: int, /) -> None: ...


@runtime_checkable
class Restful(Driven, Protocol):
    """One that knows when nothing is due: meanwhile its thread sleeps, instead of reading the log all the time."""

    def rest_ms(self) -> int:
        """For how long nothing can be due, if no wish comes."""
        ...


D = TypeVar("D", bound=Driven)


class Running(Generic[D]):
    """A member in a thread of its own, from `start` to `stop`."""

    def __init__(
        self,
        settings: Settings,
        make: Callable[[Tail[Claims]], D],
        *,
        client: str,
        on_step: Callable[[D], None] | None = None,
    ) -> None:
        """`on_step` is called after every step, in the member's thread: the place to look at it."""
        self.failure: PenstockError | None = None
        self._settings, self._make, self._on_step = settings, make, on_step
        self._wanted: frozenset[Slot] = frozenset()
        self._has_wish = False
        self._nudged = threading.Event()
        self._stopping = threading.Event()
        self._stop_within_s = 0.0
        self._thread = threading.Thread(target=self._run, name=f"penstock-member-{client}", daemon=True)

    def start(self, slots: Iterable[Slot]) -> None:
        self.want(slots)
        self._thread.start()

    def want(self, slots: Iterable[Slot]) -> None:
        self._wanted = frozenset(slots)
        self._has_wish = True
        self.nudge()

    def nudge(self) -> None:
        """Something is to be done at once: do not rest."""
        self._nudged.set()

    def stop(self, *, within_s: float) -> None:
        """Give everything back, so that the next member can begin at once; after `within_s` go all the same."""
        self._stop_within_s = within_s
        self._stopping.set()
        self.nudge()
        if self._thread.is_alive() and threading.current_thread() is not self._thread:
            self._thread.join(within_s + 10)

    def _run(self) -> None:
        with noted("coordination", self._fail):
            tail = opened_tail(self._settings, uuid.uuid4().hex[:12])
            try:
                # Noted before the end, which may take its time and fail, too.
                with noted("coordination", self._fail):
                    self._drive(tail)
            finally:
                tail.close()

    def _drive(self, tail: Tail[Claims]) -> None:
        member = self._make(tail)
        restful = member if isinstance(member, Restful) else None
        while not self._stopping.is_set():
            has_rested = restful is not None and self._rest(restful)
            self._step(member, 0 if has_rested else _STEP_MS)
        self._has_wish = True
        deadline = time.monotonic() + self._stop_within_s
        while (self._has_wish or member.holds) and time.monotonic() < deadline:
            self._step(member, _STEP_MS)

    def _rest(self, member: Restful) -> bool:
        rest_ms = member.rest_ms()
        if rest_ms:
            self._nudged.wait(rest_ms / 1_000)
        self._nudged.clear()
        return rest_ms > 0

    def _heed_wish(self, member: D) -> None:
        if not self._has_wish:
            return
        self._has_wish = False
        try:
            member.want(() if self._stopping.is_set() else self._wanted)
        except TransientError:
            self._has_wish = True
            raise

    def _step(self, member: D, timeout_ms: int) -> None:
        try:
            self._heed_wish(member)
            member.step(timeout_ms)
        except TransientError as trouble:
            # The broker is away. Our own clock ends what we hold; when it is back, the log says what is left.
            log.warning("coordination is out of reach: %s", trouble)
            time.sleep(_BACK_OFF_S)
        if self._on_step is not None:
            self._on_step(member)

    def _fail(self, failure: PenstockError) -> None:
        """This ended it, unless something did before."""
        if self.failure is None:
            self.failure = failure
