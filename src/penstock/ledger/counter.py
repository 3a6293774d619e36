"""A small machine to learn from: a counter that only its lease holder may move.

It shows the bones that every capability has: facts, replay, choices, and a worker that moves. The demo, the bench and
the simulator's own tests use it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

from penstock.crash import crash_point
from penstock.errors import Fenced, OutcomeUnknown, PenstockError, TransactionBroken
from penstock.ledger.clock import LocalLease
from penstock.ledger.codec import Record
from penstock.ledger.machine import ACCEPTED, Genesis, Verdict, ignored
from penstock.ledger.tail import ReadBack, Tail, Ticket

# Facts


class CounterFounded(Genesis, frozen=True):
    lease_ms: int


class CounterTaken(Record, frozen=True):
    """Asks for the lease; the offset of this record is its epoch."""

    worker: str


class CounterRenewed(Record, frozen=True):
    epoch: int


class CounterAdded(Record, frozen=True):
    """One more, the `number`-th of this epoch: so a doubled append counts once."""

    epoch: int
    number: int


class CounterReleased(Record, frozen=True):
    epoch: int


# Replay


class Counter:
    """Who holds the lease, since when, and how far the counter is."""

    record_types: ClassVar[tuple[type[Record], ...]] = (
        CounterFounded,
        CounterTaken,
        CounterRenewed,
        CounterAdded,
        CounterReleased,
    )
    speaks: ClassVar[int] = 1

    def __init__(self) -> None:
        self.lease_ms = 0
        self.holder: str | None = None
        self.epoch = -1
        self.renewed_ms = 0
        self.added_in_epoch = 0
        self.total = 0
        self._rules: dict[type[Record], Callable[[Any, int, int], Verdict]] = {
            CounterFounded: self._on_founded,
            CounterTaken: self._on_taken,
            CounterRenewed: self._on_renewed,
            CounterAdded: self._on_added,
            CounterReleased: self._on_released,
        }

    def apply(self, record: Any, offset: int, clock_ms: int) -> Verdict:
        return self._rules[type(record)](record, offset, clock_ms)

    def is_held(self, clock_ms: int) -> bool:
        return self.holder is not None and clock_ms - self.renewed_ms < self.lease_ms

    def _on_founded(self, record: CounterFounded, offset: int, clock_ms: int) -> Verdict:
        if record.lease_ms <= 0:
            return ignored("a lease must last")
        self.lease_ms = record.lease_ms
        return ACCEPTED

    def _on_taken(self, record: CounterTaken, offset: int, clock_ms: int) -> Verdict:
        if self.is_held(clock_ms):
            return ignored(f"held by {self.holder}")
        self.holder, self.epoch, self.renewed_ms, self.added_in_epoch = record.worker, offset, clock_ms, 0
        return ACCEPTED

    def _on_renewed(self, record: CounterRenewed, offset: int, clock_ms: int) -> Verdict:
        if not self._is_current(record.epoch):
            return ignored("another epoch")
        self.renewed_ms = clock_ms
        return ACCEPTED

    def _on_added(self, record: CounterAdded, offset: int, clock_ms: int) -> Verdict:
        if not self._is_current(record.epoch):
            return ignored("another epoch")
        if record.number != self.added_in_epoch:
            return ignored(f"number {self.added_in_epoch} is next")
        self.added_in_epoch += 1
        self.total += 1
        return ACCEPTED

    def _on_released(self, record: CounterReleased, offset: int, clock_ms: int) -> Verdict:
        if not self._is_current(record.epoch):
            return ignored("another epoch")
        self.holder = None
        return ACCEPTED

    def _is_current(self, epoch: int) -> bool:
        # Late is fine: an expired lease lives on until somebody else is granted it.
        return self.holder is not None and epoch == self.epoch

    def reset_clock(self, clock_ms: int) -> None:
        self.renewed_ms = clock_ms

    def dump(self) -> Any:
        return [self.lease_ms, self.holder, self.epoch, self.renewed_ms, self.added_in_epoch, self.total]

    def load(self, dumped: Any) -> None:
        self.lease_ms, self.holder, self.epoch, self.renewed_ms, self.added_in_epoch, self.total = dumped


# Moving

PARTITION = 0


@dataclass(slots=True)
class Tenure:
    """What a worker believes while it holds the lease."""

    epoch: int
    total_at_grant: int
    lease: LocalLease
    added: int = 0


class CounterWorker:
    """Takes the lease, adds one at a time, renews; stops on its own clock before anybody else can begin."""

    def __init__(self, tail: Tail[Counter], *, name: str, lease_ms: int, monotonic_ms: Callable[[], int]) -> None:
        self.tail, self.name, self.lease_ms = tail, name, lease_ms
        self.tenure: Tenure | None = None
        self._now_ms = monotonic_ms
        self._question: Ticket | None = None
        self._renewal: Ticket | None = None
        self._addition: Ticket | None = None
        self._ask_at_ms = 0

    def is_holding(self) -> bool:
        return self.tenure is not None and self.tenure.lease.is_good(self._now_ms())

    def step(self) -> int:
        """Read, then do what can be done now; in how many milliseconds to come back."""
        for read_back in self.tail.step(0):
            self._on_read_back(read_back)
        self.tail.keep_snapshots()
        self._move()
        return max(1, self.lease_ms // 10)

    def _move(self) -> None:
        if self.tail.fold(PARTITION).halt is not None or not self.tail.is_caught_up(PARTITION):
            return
        if self.tail.fold(PARTITION).genesis is None:
            self._question = self._asked_once(self._question, CounterFounded(self.lease_ms))
        elif self.is_holding():
            self._work()
        else:
            self.tenure = None
            self._ask()

    def _ask(self) -> None:
        if self._now_ms() >= self._ask_at_ms:
            self._question = self._asked_once(self._question, CounterTaken(self.name))

    def _work(self) -> None:
        tenure = self.tenure
        if tenure is None:
            return
        if tenure.lease.is_due(self._now_ms(), every_ms=self.lease_ms // 3):
            self._renewal = self._asked_once(self._renewal, CounterRenewed(tenure.epoch))
        self._add(tenure)

    def _add(self, tenure: Tenure) -> None:
        self._addition = self._asked_once(self._addition, CounterAdded(tenure.epoch, tenure.added))

    def _asked_once(self, ticket: Ticket | None, record: Record) -> Ticket:
        """Keep waiting for an earlier question, unless it failed or nothing came back for a whole lease."""
        if ticket is not None and ticket.failure is None and self._now_ms() - ticket.sent_ms < self.lease_ms:
            return ticket
        if ticket is not None:
            self.tail.forget(ticket)
        asked = self.tail.append(PARTITION, record)
        crash_point("counter.asked")
        return asked

    def _on_read_back(self, read_back: ReadBack) -> None:
        match read_back.record:
            case CounterTaken():
                self._on_answer(read_back)
            case CounterRenewed():
                self._on_renewed(read_back)
            case CounterAdded():
                self._on_added(read_back)
            case CounterFounded():
                self._question = None
            case _:
                pass

    def _on_answer(self, read_back: ReadBack) -> None:
        machine, clock_ms = self.tail.fold(PARTITION).machine, self.tail.fold(PARTITION).clock_ms
        ticket = read_back.ticket
        if ticket is not None:
            self._question = None
        if not read_back.verdict.is_accepted:
            # The log judges by its own clock: ask again after the log time that remains.
            self._ask_at_ms = self._now_ms() + max(1, machine.renewed_ms + machine.lease_ms - clock_ms)
        elif ticket is None:
            self.tail.append(PARTITION, CounterReleased(read_back.offset))
        else:
            self._begin(ticket, read_back.offset, machine.total)

    def _begin(self, ticket: Ticket, epoch: int, total: int) -> None:
        lease = LocalLease(lasts_ms=self.lease_ms)
        lease.renewed(sent_ms=ticket.sent_ms)
        self.tenure = Tenure(epoch, total, lease)
        self._renewal = self._addition = None

    def _on_renewed(self, read_back: ReadBack) -> None:
        ticket, tenure = read_back.ticket, self.tenure
        if ticket is None or tenure is None or not isinstance(ticket.record, CounterRenewed):
            return
        self._renewal = None
        if ticket.record.epoch != tenure.epoch:
            return
        if read_back.verdict.is_accepted:
            tenure.lease.renewed(sent_ms=ticket.sent_ms)
        else:
            self.tenure = None

    def _on_added(self, read_back: ReadBack) -> None:
        """Counts also without a ticket: what is in the log happened, whoever waits for it."""
        if read_back.ticket is not None:
            self._addition = None
        tenure, record = self.tenure, read_back.record
        if tenure is None or not isinstance(record, CounterAdded) or record.epoch != tenure.epoch:
            return
        if read_back.verdict.is_accepted:
            tenure.added = max(tenure.added, record.number + 1)
        elif record.number >= tenure.added:
            # Refused although we believed to hold the lease: stop believing.
            self.tenure = None


class TransactionalCounterWorker(CounterWorker):
    """Adds inside transactions. After a fence or an unknown outcome it settles its id and goes on under a fresh one."""

    def __init__(self, tail: Tail[Counter], *, name: str, lease_ms: int, monotonic_ms: Callable[[], int]) -> None:
        super().__init__(tail, name=name, lease_ms=lease_ms, monotonic_ms=monotonic_ms)
        # Nobody has to fence this worker: what it adds counts only under its lease.
        self._transactions = tail.log.transactions(
            group="counter", instance=name, announce=lambda transactional_id: None
        )
        self._transactions.open()

    def _add(self, tenure: Tenure) -> None:
        if self._addition is not None and self._addition.verdict is None and self._addition.failure is None:
            return
        try:
            self._transactions.begin()
            self._addition = self.tail.append_in(
                self._transactions, PARTITION, CounterAdded(tenure.epoch, tenure.added)
            )
            crash_point("counter.added_in_transaction")
            self._transactions.commit()
        except (Fenced, OutcomeUnknown, TransactionBroken) as doubt:
            self._settle(doubt)
        crash_point("counter.committed")

    def _settle(self, doubt: PenstockError) -> None:
        """What the old id left is wholly in the log now, or never will be: read on, then add again."""
        if self._addition is not None:
            self._addition.failure = doubt.what
            self.tail.forget(self._addition)
        self._transactions.settle_and_renew()
        crash_point("counter.settled")
        self.tail.ask_ends()
