"""A queue at work in this process: one thread drives the worker, claims say which partitions are ours.

        claims (their own thread) ──▶ partitions ──▶ worker ──▶ pile ──▶ handlers
                                                        ▲                   │
                                                        └───── outcomes ────┘

It stops in order: nothing more is taken, what was not begun is given back, and so are the claims, so that others go on
at once; what is being worked on has the time of grace to end, then it is given back too.
"""

from __future__ import annotations

import logging
import threading
import time
import uuid
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack
from functools import partial
from typing import Protocol

from penstock.claims.member import Member, made
from penstock.claims.records import Slot
from penstock.claims.running import Running, noted
from penstock.claims.tally import Tally
from penstock.claims.tenure import Listener, Tenure
from penstock.collector import SELDOM
from penstock.errors import Halted, PenstockError, TransientError
from penstock.ledger.kafka_log import open_ledger
from penstock.ledger.tail import Tail, monotonic_ms
from penstock.observe import events
from penstock.observe.events import tell
from penstock.queue.clerk import KafkaClerk
from penstock.queue.hand import Hand
from penstock.queue.solitude import Solitude
from penstock.queue.source import KafkaSource
from penstock.queue.state import QueueMachine
from penstock.queue.terms import Terms
from penstock.queue.upkeep import Upkeep
from penstock.queue.worker import Worker
from penstock.settings import Settings
from penstock.values import Duration

log = logging.getLogger("penstock.queue")

_STEP_MS = 5
_IDLE_STEP_MS = 50
_BACK_OFF_S = 0.2
_LOOK_S = 0.1
_GIVE_BACK_S = 5.0


class Handling(Protocol):
    """Whoever works on what is handed out."""

    def give(self, hand: Hand) -> object: ...

    def look(self) -> None: ...

    def stop_beginning(self) -> None: ...

    def close(self) -> None: ...


def keep_working(stations: Sequence[Station], stopping: threading.Event) -> None:
    """Return when somebody asks to stop, or one of them has ended."""
    while not stopping.wait(_LOOK_S) and all(station.is_running for station in stations):
        pass


def check_ends(stations: Sequence[Station]) -> None:
    """Raises what ended one of them."""
    for station in stations:
        if station.failure is not None:
            raise station.failure


class Station:
    """One queue in this process, from `start` to `stop`."""

    def __init__(
        self,
        settings: Settings,
        *,
        queue: str,
        topic: str,
        group: str,
        terms: Terms,
        handling: Callable[[Worker], Handling],
        solitude: Solitude,
        starts_at_end: bool = False,
    ) -> None:
        """`handling` makes those who work, for a worker that is there."""
        self.failure: PenstockError | None = None
        self.stepped_s: float | None = None
        """When the worker's thread last went round, on the monotonic clock. So it does while the broker is away."""
        self._settings, self.queue, self._topic, self._group = settings, queue, topic, group
        self._terms, self._handling, self._solitude = terms, handling, solitude
        self._upkeep = Upkeep(settings, queue=queue, topic=topic, group=group, starts_at_end=starts_at_end)
        self._upkeep.on_growth = lambda partitions: self._want()
        listener = Listener(
            gained=self._on_gained, is_drained=self._is_drained, lost=self._on_lost, released=self._on_released
        )
        make = made(settings.claims, client=settings.claims.client, listener=listener, reclaim=True)
        self._members = Running(settings, make, client=f"{group}-{topic}", on_step=self._look)
        self._tally = Tally(group, partitions=settings.claims.partitions)
        self._held: dict[int, Tenure] = {}
        self._owned: frozenset[int] = frozenset()
        self._refused: frozenset[int] = frozenset()
        self._wanting = threading.Lock()
        self._stopping = threading.Event()
        self._grace_s = 0.0
        self.is_ready = threading.Event()
        """Set when it can take messages from its first partitions, or has ended."""
        self._thread = threading.Thread(target=self._run, name=f"penstock-worker-{queue}", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self, grace: Duration) -> None:
        """Ask it to stop; returns at once. A second time changes nothing."""
        if not self._stopping.is_set():
            self._grace_s = grace.seconds
            self._stopping.set()

    def join(self, within_s: float | None = None) -> bool:
        """Whether it has ended."""
        self._thread.join(within_s)
        return not self._thread.is_alive()

    @property
    def is_running(self) -> bool:
        return self._thread.is_alive()

    @property
    def partitions(self) -> frozenset[int]:
        """Those that it takes messages from at the moment."""
        return self._owned

    # The worker's thread

    def _run(self) -> None:
        SELDOM.begin()
        # Read from below: each end comes whatever those before it raised.
        with ExitStack() as ends:
            ends.callback(self.is_ready.set)
            ends.callback(SELDOM.end)
            ends.callback(self._end, self._upkeep.close)
            ends.callback(self._end, partial(self._members.stop, within_s=10))
            with self._noted():
                self._work(ends)

    def _work(self, ends: ExitStack) -> None:
        """What is opened here is closed with `ends`."""
        if not self._is_prepared():
            return
        tail = self._opened_tail()
        ends.callback(self._end, tail.close)
        clerk = KafkaClerk(self._settings, self._topic, group=self._group)
        ends.callback(self._end, clerk.close)
        source = KafkaSource(self._settings.kafka, self._topic, group=self._group)
        ends.callback(self._end, source.close)
        worker = Worker(
            tail,
            source,
            clerk,
            terms=self._terms,
            founded=self._upkeep.founded,
            hand_out=lambda hand: handling.give(hand),
            monotonic_ms=monotonic_ms,
            solitude=self._solitude,
            queue=self.queue,
        )
        ends.callback(self._end, worker.close)
        ends.callback(self._own_nothing)
        handling = self._handling(worker)
        ends.callback(self._end, handling.close)
        self._upkeep.start()
        with self._wanting:
            self._members.start(self._slots())
        while not self._stopping.is_set():
            self._check(clerk)
            self._step(worker, handling, _patience_ms(worker))
        self._drain(worker, handling)

    def _noted(self) -> AbstractContextManager[None]:
        return noted(f"queue {self.queue}", self._fail, log)

    def _fail(self, failure: PenstockError) -> None:
        """This ended the queue, unless something did before."""
        if self.failure is None:
            self.failure = failure

    def _end(self, close: Callable[[], object]) -> None:
        with self._noted():
            close()

    def _own_nothing(self) -> None:
        self._owned = frozenset()

    def _is_prepared(self) -> bool:
        """Topics are there; a broker that is away is waited for."""
        while not self._stopping.is_set():
            try:
                self._upkeep.prepare()
                return True
            except TransientError as trouble:
                log.warning("queue %s cannot begin yet: %s", self.queue, trouble)
                self._stopping.wait(_BACK_OFF_S)
        return False

    def _opened_tail(self) -> Tail[QueueMachine]:
        ledger, snapshots = open_ledger(self._settings.kafka, self._upkeep.ledger, was_made=True)
        return Tail(
            ledger,
            snapshots,
            machine=QueueMachine,
            instance=uuid.uuid4().hex[:12],
            monotonic_ms=monotonic_ms,
            fresh_ms=self._terms.lease_ms // 3,
            snapshot_every=self._settings.queue.snapshot_every,
        )

    def _check(self, clerk: KafkaClerk) -> None:
        for failure in (self._members.failure, self._upkeep.failure, clerk.failure):
            if failure is not None:
                raise failure

    def _step(self, worker: Worker, handling: Handling, timeout_ms: int) -> None:
        try:
            self._own(worker)
            worker.step(timeout_ms)
        except TransientError as trouble:
            # The broker is away. Our own clock ends what we hold; when it is back, the log says what is left.
            log.warning("queue %s is out of reach: %s", self.queue, trouble)
            time.sleep(_BACK_OFF_S)
        self.stepped_s = time.monotonic()
        handling.look()
        if worker.is_open and not self.is_ready.is_set():
            self.is_ready.set()
        self._publish(worker)
        self._upkeep.census.count(worker.counted)

    def _own(self, worker: Worker) -> None:
        wanted = frozenset(
            number for number, tenure in self._held.items() if tenure.leaving is None and not tenure.draining
        )
        if wanted != self._owned:
            worker.own(wanted)
            self._owned = wanted

    def _publish(self, worker: Worker) -> None:
        """Positions, for heartbeats and lag tools; partitions where we may not go on, so that others may."""
        positions = worker.positions
        self._upkeep.positions = dict(positions)
        for number, tenure in self._held.items():
            if number in positions:
                tenure.position = positions[number]
        if worker.halted - self._refused:
            self._refused = worker.halted
            self._want()
            if self._refused == self._upkeep.partitions:
                self._raise_halt(worker)

    def _raise_halt(self, worker: Worker) -> None:
        for number in sorted(self._refused):
            halt = worker.tail.fold(number).halt
            if halt is not None:
                raise Halted(
                    ledger=self._upkeep.ledger,
                    partition=number,
                    offset=halt.offset,
                    reason=halt.reason,
                    next_step=halt.next_step,
                )

    # Stopping

    def _drain(self, worker: Worker, handling: Handling) -> None:
        worker.is_draining = True
        handling.stop_beginning()
        # Others may go on at once: what is being worked on stays ours without the claims.
        self._want()
        self._step_while(lambda: bool(worker.in_hand), worker, handling, within_s=self._grace_s)
        worker.release_all()
        self._step_while(lambda: bool(worker.in_hand) or not worker.is_idle, worker, handling, within_s=_GIVE_BACK_S)

    def _step_while(self, goes_on: Callable[[], bool], worker: Worker, handling: Handling, *, within_s: float) -> None:
        """So that the log hears what became of everything in hand."""
        deadline_s = time.monotonic() + within_s
        while goes_on() and time.monotonic() < deadline_s:
            self._step(worker, handling, _patience_ms(worker))

    # The member's thread

    def _want(self) -> None:
        """Claim what there is; once we stop, nothing. The worker's thread may do so, and that of the upkeep."""
        with self._wanting:
            self._members.want(() if self._stopping.is_set() else self._slots())

    def _slots(self) -> list[Slot]:
        return [Slot(self._group, self._topic, number) for number in sorted(self._upkeep.partitions - self._refused)]

    def _look(self, member: Member) -> None:
        self._tally.count(member.tail, self._slots())
        self._held = {slot.partition: tenure for slot, tenure in member.held.items() if slot.partition is not None}

    def _is_drained(self, tenure: Tenure) -> bool:
        """Leases outlive the claim: it is enough that nothing more is asked for."""
        return tenure.slot.partition not in self._owned

    def _on_gained(self, tenure: Tenure) -> None:
        tell(events.ClaimGained(slot=str(tenure.slot), token=tenure.token, position=tenure.position))

    def _on_released(self, tenure: Tenure) -> None:
        tell(events.ClaimGivenBack(slot=str(tenure.slot), token=tenure.token, position=tenure.position))

    def _on_lost(self, tenure: Tenure, reason: str) -> None:
        tell(events.ClaimLost(slot=str(tenure.slot), token=tenure.token, reason=reason))


def _patience_ms(worker: Worker) -> int:
    """How long a step may wait for something to happen: what handlers say wakes nobody, and while much is done, the log
    is to hear of it soon.
    """
    return min(2 ** min(worker.still_steps, 10), _STEP_MS) if worker.in_hand else _IDLE_STEP_MS
