"""Real queue workers on simulated hosts: each takes what it owns, and its handlers do what the messages' tasks say."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from penstock.claims.member import Listener, Member
from penstock.claims.records import Slot
from penstock.claims.state import Claims
from penstock.crash import crash_point
from penstock.errors import BrokerUnavailable, TransientError
from penstock.ledger.snapshot import Snapshots
from penstock.ledger.tail import Tail, Ticket
from penstock.queue.batch_pile import BatchPile
from penstock.queue.desk import Desk
from penstock.queue.hand import Hand
from penstock.queue.intake import Intake
from penstock.queue.message import Batch, Message, Retry
from penstock.queue.pile import Manner, MessagePile, Pile, Seat
from penstock.queue.reading import Reading
from penstock.queue.records import QueueFounded, Taken
from penstock.queue.retry import Backoff, RetryRules
from penstock.queue.state import QueueMachine
from penstock.queue.taking import Taking
from penstock.queue.telling import Telling
from penstock.queue.terms import Terms
from penstock.queue.worker import Worker
from penstock.testing.claims_cluster import FOUNDED, HB_MS, place
from penstock.testing.claims_cluster import TOPIC as CLAIMS
from penstock.testing.queue_judge import QueueJudge
from penstock.testing.queue_ledger_judge import ATTEMPTS_MAX, LEASE_MS, LEDGER
from penstock.testing.queue_topic import TOPIC, Task, TopicClerk, TopicSource
from penstock.testing.simulated_log import SimulatedLog
from penstock.testing.simulation import Host
from penstock.values import Duration

POLL_MS = LEASE_MS // 10
SEATS = 3
AT_ONCE = 4
"""How many quick messages a seat works off in one step."""


@dataclass(frozen=True, slots=True)
class Parts:
    """Of what a worker is made; a planted bug replaces one."""

    worker: type[Worker] = Worker
    taking: type[Taking] = Taking
    telling: type[Telling] = Telling
    reading: type[Reading] = Reading
    intake: type[Intake] = Intake
    desk: type[Desk] = Desk
    pile: type[MessagePile] = MessagePile
    batch_pile: type[BatchPile] = BatchPile


class _Watched(Tail[QueueMachine]):
    """The judge hears which questions nobody waits for any more."""

    judge: QueueJudge

    def forget(self, ticket: Ticket) -> None:
        if isinstance(ticket.record, Taken):
            self.judge.gave_up(ticket.record)
        super().forget(ticket)


class _Choked(SimulatedLog):
    """A client whose queue is full at times."""

    def append(self, partition: int, value: bytes | None, key: bytes | None = None) -> None:
        simulation = self._host.simulation
        if simulation.choose(f"{self._host.instance} hands over", ["taken", "refused"]) == "refused":
            simulation.reach("a record was refused")
            raise BrokerUnavailable("the client's queue is full")
        super().append(partition, value, key)


class QueueHost:
    """One process: a worker, and seats in which its messages are worked on."""

    def __init__(
        self,
        host: Host,
        judge: QueueJudge,
        parts: Parts,
        terms: Terms,
        *,
        snapshot_every: int,
        is_choked: bool = False,
        batch_max: int = 0,
    ) -> None:
        """`is_choked`: the client may refuse to take a record over. `batch_max`: handlers get so many at once."""
        self._log = _Choked(host, host.simulation.broker.log(LEDGER)) if is_choked else host.log(LEDGER)
        self.host, self._judge, self._parts, self._owned = host, judge, parts, frozenset[int]()
        self.clerk = TopicClerk(host, judge.topic, written=judge.copied)
        self.worker = self._worker(parts, terms, snapshot_every)
        manner = Manner(
            queue="q",
            rules=RetryRules(attempts_max=ATTEMPTS_MAX, backoff=Backoff(Duration(POLL_MS * 2), Duration(LEASE_MS))),
            decode=lambda value, content_type: value,
            is_ordered=terms.is_ordered,
            is_acked_first=terms.is_acked_first,
            chance=lambda: 0.0,
        )
        ways: dict[str, Any] = {
            "tell": self.worker.tell,
            "is_good": self.worker.is_good,
            "note_progress": self.worker.note_progress,
        }
        self.pile: Pile[Any] = (
            parts.batch_pile(manner, batch_max=batch_max, **ways) if batch_max else parts.pile(manner, **ways)
        )
        self.seats: list[Seat[Any]] = [Seat(self.worker.tell) for _ in range(SEATS)]
        self._done_at_ms: dict[int, int] = {}
        self._stops_at_ms = judge.stops_at_ms.pop(host.name, None)

    def _worker(self, parts: Parts, terms: Terms, snapshot_every: int) -> Worker:
        tail = _Watched(
            self._log,
            Snapshots(self.host.log(f"{LEDGER}.snapshots")),
            machine=QueueMachine,
            instance=self.host.instance,
            monotonic_ms=self.host.now_ms,
            fresh_ms=LEASE_MS // 3,
            snapshot_every=snapshot_every,
        )
        tail.judge = self._judge
        worker = parts.worker(
            tail,
            TopicSource(self.host, self._judge.topic),
            self.clerk,
            terms=terms,
            founded=lambda number: QueueFounded(1, "topic-id", 0, ("*",)),
            hand_out=self._give,
            monotonic_ms=self.host.now_ms,
            intake=parts.intake(),
            queue="q",
        )
        worker._taking.__class__ = parts.taking
        worker._telling.__class__ = parts.telling
        worker._reading.__class__ = parts.reading
        return worker

    # One step

    def step(self) -> int:
        stops = self._stops_at_ms is not None and self.host.now_ms() >= self._stops_at_ms
        if stops:
            self._drain()
        self._own(frozenset() if stops else self.claimed())
        try:
            self.worker.step(0)
        except TransientError:
            self.host.simulation.reach("could not hand a record over")
        for number, seat in enumerate(self.seats):
            self._sit(number, seat)
        return POLL_MS

    def claimed(self) -> frozenset[int]:
        """The partitions that are ours to take from."""
        return self._judge.owned_by(self.host.name)

    def _own(self, partitions: frozenset[int]) -> None:
        if partitions != self._owned:
            self.worker.own(partitions)
            self._owned = partitions
            for desk in self.worker.desks.values():
                desk.__class__ = self._parts.desk

    def _drain(self) -> None:
        """As a process that is told to stop: nothing new is begun, the rest is given back, then it ends."""
        simulation, since_ms = self.host.simulation, self.host.now_ms() - (self._stops_at_ms or 0)
        if not self.worker.is_draining:
            self.worker.is_draining = True
            self.pile.is_closing = True
            self.pile.empty()
        if since_ms >= LEASE_MS:
            self.worker.release_all()
        if since_ms and self.worker.is_idle and not self.worker.in_hand:
            simulation.reach("stopped gracefully")
            simulation.die()

    def _give(self, hand: Hand) -> None:
        self._judge.given(self, hand)
        self.pile.give(hand)

    def _sit(self, number: int, seat: Seat[Any]) -> None:
        for _ in range(AT_ONCE):
            if seat.current is None:
                piece = self.pile.take(seat)
                if piece is None:
                    break
                self._begin(number, messages_of(piece))
            if self.host.now_ms() < self._done_at_ms[number]:
                break
            self._finish(seat, seat.current)

    def _begin(self, number: int, messages: Sequence[Message]) -> None:
        for message in messages:
            self._judge.begun(self, message._record, message._hand)
        self._done_at_ms[number] = self.host.now_ms() + max(self._task(message).lasts_ms for message in messages)

    def _finish(self, seat: Seat[Any], piece: Any) -> None:
        messages = messages_of(piece)
        for message in messages:
            if self._task(message).kind == "kills":
                self._judge.killed(self.host, message._record)
                self.host.simulation.die()
        failing = [message for message in messages if self._fails(message)]
        # Of a batch that raises nobody knows who was to blame; one of an even number answers for each.
        answers = isinstance(piece, Batch) and len(piece) % 2 == 0
        if not failing or answers or len(messages) == 1:
            for message in messages:
                failed = message in failing
                self._judge.worked(message._record, message.token, attempt=message.attempt, failed=failed)
        crash_point("worker.processed")
        if not failing:
            self.pile.done(seat, piece, None)
            seat.flush()
        elif answers:
            self.host.simulation.reach("a batch answered for each")
            self.pile.done(seat, piece, [Retry() if message in failing else None for message in messages])
        else:
            if len(messages) > 1:
                self.host.simulation.reach("a batch failed")
            self.pile.failed(seat, piece, ValueError("no"))

    def _task(self, message: Message) -> Task:
        return self._judge.task_of(message.partition, message.offset)

    def _fails(self, message: Message) -> bool:
        kind = self._task(message).kind
        return kind == "fails always" or (kind == "fails once" and message.attempt == 1)


def messages_of(piece: Message | Batch) -> Sequence[Message]:
    return [piece] if isinstance(piece, Message) else piece


class ClaimingHost(QueueHost):
    """Its partitions are those that its member holds, as in a real process."""

    def __init__(self, host: Host, judge: QueueJudge, parts: Parts, terms: Terms, **given: Any) -> None:
        super().__init__(host, judge, parts, terms, **given)
        tail = Tail(
            host.log(CLAIMS),
            Snapshots(host.log(f"{CLAIMS}.snapshots")),
            machine=Claims,
            instance=host.instance,
            monotonic_ms=host.now_ms,
            fresh_ms=HB_MS // 2,
            snapshot_every=10**6,
        )
        listener = Listener(is_drained=lambda tenure: tenure.slot.partition not in self._owned)
        self.member = Member(
            tail,
            founded=FOUNDED,
            client=host.name,
            place=place,
            monotonic_ms=host.now_ms,
            listener=listener,
            reclaim=True,
        )
        self.member.want(Slot("g", TOPIC, number) for number in range(len(judge.topic)))

    def step(self) -> int:
        self.member.step(0)
        return super().step()

    def claimed(self) -> frozenset[int]:
        held = self.member.held.items()
        return frozenset(slot.partition or 0 for slot, tenure in held if tenure.leaving is None and not tenure.draining)
