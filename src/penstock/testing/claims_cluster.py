"""Members on simulated hosts, and the judge who knows the whole coordination log and what each member believes."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from functools import cache
from typing import NamedTuple

from penstock.claims.intervals import Owner
from penstock.claims.member import Listener, Member, Tenure
from penstock.claims.placement import partition_of
from penstock.claims.records import Claimed, ClaimReleased, ClaimsFounded, Heartbeat, Slot
from penstock.claims.state import Claims
from penstock.crash import crash_point
from penstock.ledger.log import Entry
from penstock.ledger.machine import Fold, Judged
from penstock.ledger.snapshot import Snapshots
from penstock.ledger.tail import Tail
from penstock.testing.simulation import Host, Simulation, Violated

TOPIC = "claims"
HB_MS = 300
POLL_MS = HB_MS // 10
PARTITIONS = 2
FOUNDED = ClaimsFounded(partitions=PARTITIONS, heartbeat_ms=HB_MS, window=100, delivery_limit=5)
SLOTS = tuple(Slot("g", "t", number) for number in range(4))

place = cache(partition_of)


class Worker:
    """Processes the offsets of the slots that its member holds, one at a time, and moves the position behind them."""

    def __init__(self, host: Host, member: Member, seen: dict[Slot, set[int]]) -> None:
        self.host, self.member, self._seen = host, member, seen

    def step(self) -> int:
        self.member.step(0)
        for tenure in list(self.member.held.values()):
            if self.member.is_good(tenure):
                self._process(tenure)
        return POLL_MS

    def _process(self, tenure: Tenure) -> None:
        offset = tenure.position or 0
        self._seen.setdefault(tenure.slot, set()).add(offset)
        crash_point("worker.processed")
        tenure.position = offset + 1


class Known(NamedTuple):
    """What the log said of a slot before an entry."""

    owner: Owner | None
    epoch: int
    position: int | None


NOTHING = Known(None, -1, None)


@dataclass(slots=True)
class Judge:
    """Knows the whole coordination log, what each member believes, and what was processed.

    `is_exclusive`: two who act on one slot at a time are a fault. `is_fair`: shares must be equal at the end.
    `can_expire`: an owner may lose a slot to another. `takeover_max_ms`: how long after its last renewal at most.
    """

    is_exclusive: bool = True
    seen: dict[Slot, set[int]] = field(default_factory=dict)
    slots: tuple[Slot, ...] = SLOTS
    can_expire: bool = True
    is_fair: bool = True
    takeover_max_ms: int = 0
    _folds: list[Fold[Claims]] = field(default_factory=lambda: [Fold(Claims()) for _ in range(PARTITIONS)])
    _hashes: list[list[str]] = field(default_factory=lambda: [[] for _ in range(PARTITIONS)])
    _known: dict[Slot, Known] = field(default_factory=dict)
    _renewed_ms: dict[Slot, int] = field(default_factory=dict)
    _given_up_by: dict[Slot, str] = field(default_factory=dict)
    _reclaimed: Counter[tuple[Slot, Owner]] = field(default_factory=Counter)
    _finished: dict[Slot, int] = field(default_factory=dict)
    _compared: dict[tuple[str, int], tuple[Fold[Claims], int]] = field(default_factory=dict)
    _stray_since_ms: dict[tuple[Slot, Owner], int] = field(default_factory=dict)

    def judge(self, simulation: Simulation) -> None:
        self._replay(simulation)
        workers = workers_of(simulation)
        if self.is_exclusive:
            self._one_believer(workers)
        stepped = simulation.stepped
        for worker in workers if stepped is None else [worker for worker in workers if worker.host is stepped]:
            self._same_state(worker)
            self._releases_in_order(worker)
            self._no_stray(simulation, worker)
            if not simulation.is_disturbed:
                self._held_without_a_gap(worker)

    # The log

    def _replay(self, simulation: Simulation) -> None:
        """The reference: one fold over everything that was ever appended."""
        for fold, hashes, partition in zip(self._folds, self._hashes, simulation.broker.partitions(TOPIC), strict=True):
            if fold.next_offset >= len(partition.stored):
                continue
            for entry in partition.history(fold.next_offset):
                self._feed(simulation, fold, entry)
                hashes.extend([fold.hash()] * (entry.offset + 1 - len(hashes)))

    def _feed(self, simulation: Simulation, fold: Fold[Claims], entry: Entry) -> None:
        judged = fold.feed(entry.offset, entry.time_ms, entry.value)
        self._reclaims_once(judged)
        for slot, state in fold.machine.slots.items():
            before, after = self._known.get(slot, NOTHING), Known(state.owner, state.epoch, state.position)
            if after != before:
                self._known[slot] = after
                self._lawful(slot, before, after)
                self._in_time(slot, before, after, entry.time_ms)
                self._nothing_skipped(slot, after.position or 0)
                self._count(simulation, slot, before, after, judged)
            self._renewed_ms[slot] = state.renewed_ms

    def _lawful(self, slot: Slot, before: Known, after: Known) -> None:
        if after.owner not in (None, before.owner) and after.epoch <= before.epoch:
            raise Violated(f"{slot} passed from {before.owner} to {after.owner} without a larger epoch")
        if before.position is not None and (after.position is None or after.position < before.position):
            raise Violated(f"the position of {slot} went back from {before.position} to {after.position}")
        if not self.can_expire and before.owner is not None and after.owner not in (None, before.owner):
            raise Violated(f"{slot} was taken from {before.owner}, who is alive and well")

    def _in_time(self, slot: Slot, before: Known, after: Known, time_ms: int) -> None:
        if not self.takeover_max_ms or before.owner is None or after.owner in (None, before.owner):
            return
        silent_ms = time_ms - self._renewed_ms[slot]
        if silent_ms > self.takeover_max_ms:
            raise Violated(f"{slot} was taken over from {before.owner} only {silent_ms} ms after its last renewal")

    def _nothing_skipped(self, slot: Slot, position: int) -> None:
        """At least once: below the position of the log everything was processed."""
        finished, seen = self._finished.get(slot, 0), self.seen.get(slot, ())
        while finished in seen:
            finished += 1
        self._finished[slot] = finished
        if finished < position:
            raise Violated(f"the position of {slot} is {position}, but not all below it was processed")

    def _reclaims_once(self, judged: Judged) -> None:
        record = judged.record
        if isinstance(record, Claimed) and record.reclaim and judged.verdict.is_accepted:
            who = (record.client, record.instance)
            self._reclaimed[record.slot, who] += 1
            if self._reclaimed[record.slot, who] > 1:
                raise Violated(f"{who} has reclaimed {record.slot} before: an older self does not ask again")

    def _count(self, simulation: Simulation, slot: Slot, before: Known, after: Known, judged: Judged) -> None:
        if after.owner == before.owner:
            return
        if after.owner is None and before.owner is not None:
            simulation.reach("released")
            self._given_up_by[slot] = before.owner[0]
        elif after.owner is not None and before.owner is None:
            if self._given_up_by.pop(slot, after.owner[0]) != after.owner[0]:
                simulation.reach("moved by a release")
        elif isinstance(judged.record, Claimed) and judged.record.reclaim:
            simulation.reach("reclaimed")
        else:
            simulation.reach("taken over after expiry")

    # The members

    def _one_believer(self, workers: list[Worker]) -> None:
        """Of two under one client id the younger may fence the older: only the token tells them apart."""
        believers: dict[Slot, Worker] = {}
        for worker in workers:
            for tenure in worker.member.held.values():
                if not worker.member.is_good(tenure):
                    continue
                other = believers.setdefault(tenure.slot, worker)
                if other.member.client != worker.member.client:
                    raise Violated(f"{other.host.instance} and {worker.host.instance} both act on {tenure.slot}")

    def _same_state(self, worker: Worker) -> None:
        """A state moves only with its offset, so each is compared once."""
        tail = worker.member.tail
        for number, hashes in enumerate(self._hashes):
            fold, who = tail.fold(number), (worker.host.instance, number)
            compared = self._compared.get(who)
            if compared is not None and compared[0] is fold and compared[1] == fold.next_offset:
                continue
            self._compared[who] = fold, fold.next_offset
            if 0 < fold.next_offset <= len(hashes) and fold.hash() != hashes[fold.next_offset - 1]:
                raise Violated(f"{tail.instance} has another state at offset {fold.next_offset - 1} than a full replay")

    def _releases_in_order(self, worker: Worker) -> None:
        """No heartbeat for a slot is on its way when its release is sent; one that was given up does not count."""
        for followed in worker.member.tail._followed.values():
            beating: dict[Slot, int] = {}
            for ticket in followed.pending.values():
                record = ticket.record
                if isinstance(record, Heartbeat) and ticket.failure is None:
                    beating |= {beat.slot: ticket.sent_ms for beat in record.beats}
                elif isinstance(record, ClaimReleased) and ticket.sent_ms - beating.get(record.slot, -HB_MS) < HB_MS:
                    raise Violated(f"{worker.host.instance} released {record.slot} with a heartbeat under way")

    def _no_stray(self, simulation: Simulation, worker: Worker) -> None:
        """A grant that its owner does not act on is given back as soon as it was read back."""
        member = worker.member
        me = (member.client, member.instance)
        for slot in self.slots:
            state = member.tail.fold(place(slot, PARTITIONS)).machine.slots.get(slot)
            stray = (slot, me)
            if state is None or state.owner != me or slot in member.held or worker.host.is_asleep:
                self._stray_since_ms.pop(stray, None)
            elif stray not in self._stray_since_ms:
                self._stray_since_ms[stray] = simulation.now_ms
                simulation.reach("granted though nobody waited")
            elif not self._is_asked_about(member, slot) and simulation.now_ms - self._stray_since_ms[stray] >= HB_MS:
                raise Violated(f"{worker.host.instance} owns {slot} in the log, does not act on it, and keeps it")

    def _is_asked_about(self, member: Member, slot: Slot) -> bool:
        pending = member.tail._followed[place(slot, PARTITIONS)].pending.values()
        return any(isinstance(t.record, Claimed | ClaimReleased) and t.record.slot == slot for t in pending)

    def _held_without_a_gap(self, worker: Worker) -> None:
        """Undisturbed, who was granted a slot may act on it until it is given back."""
        for tenure in worker.member.held.values():
            if tenure.leaving is None and not worker.member.is_good(tenure):
                raise Violated(f"{worker.host.instance} may not act on {tenure.slot} for a while, undisturbed")

    # The end

    def conclude(self, simulation: Simulation) -> None:
        workers = workers_of(simulation)
        if not self.is_exclusive or not workers:
            return
        counts = {w.host.name: sum(w.member.is_good(t) for t in w.member.held.values()) for w in workers}
        if sum(counts.values()) != len(self.slots):
            raise Violated(f"at the end {counts} are held of {len(self.slots)} slots")
        if self.is_fair and max(counts.values()) - min(counts.values()) > 1:
            raise Violated(f"at the end the shares are not fair: {counts}")


def workers_of(simulation: Simulation) -> list[Worker]:
    return [host.actor for host in simulation.living() if isinstance(host.actor, Worker)]


def built(
    host: Host,
    judge: Judge,
    member: type[Member],
    *,
    snapshot_every: int,
    client: str = "",
    part_bytes_max: int | None = None,
) -> Worker:
    """A member on a host that wants all slots of the judge, as `client` (else under the host's name)."""
    tail = Tail(
        host.log(TOPIC),
        Snapshots(host.log(f"{TOPIC}.snapshots"), part_bytes_max=part_bytes_max),
        machine=Claims,
        instance=host.instance,
        monotonic_ms=host.now_ms,
        fresh_ms=HB_MS // 2,
        snapshot_every=snapshot_every,
    )
    made = member(
        tail,
        founded=FOUNDED,
        client=client or host.name,
        place=place,
        monotonic_ms=host.now_ms,
        listener=Listener(),
        reclaim=True,
    )
    made.want(judge.slots)
    return Worker(host, made, judge.seen)
