"""Members that share one slot by ranges, under everything that can go wrong, with bugs that can be planted.

python -m penstock.testing.simulate penstock.testing.range_scenarios:sharing --seeds 100
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace

from penstock.claims.blocks import Block
from penstock.claims.intervals import Status
from penstock.claims.placement import partition_of
from penstock.claims.range_listener import RangeListener
from penstock.claims.range_member import RangeMember
from penstock.claims.records import ClaimsFounded, Slot
from penstock.claims.slots import SlotState
from penstock.claims.state import Claims
from penstock.crash import crash_point
from penstock.ledger.machine import Fold
from penstock.ledger.snapshot import Snapshots
from penstock.ledger.tail import Tail
from penstock.testing.choices import Faults
from penstock.testing.range_bugs import BUGS
from penstock.testing.simulation import Host, Scenario, Simulation, Violated, judged

__all__ = ["BUGS", "pair", "poison", "sharing", "sharing_with_outages", "sharing_with_snapshots", "transacting"]

TOPIC = "claims"
HB_MS = 300
SLOT = Slot("g", "t", 0)
FOUNDED = ClaimsFounded(partitions=1, heartbeat_ms=HB_MS, window=24, delivery_limit=3)
NAME = "penstock.testing.range_scenarios"


class Worker:
    """Takes a few offsets at a time from the blocks of its member, and finishes the last one first."""

    def __init__(self, host: Host, judge: Judge, member: type[RangeMember], *, snapshot_every: int) -> None:
        self.host, self._judge, self._kind, self._snapshot_every = host, judge, member, snapshot_every
        self._deaths = 0
        self._dead_until_ms = 0
        self._in_hand: list[tuple[Block, int]] = []
        self.member = self._born()

    def _born(self) -> RangeMember:
        tail = Tail(
            self.host.log(TOPIC),
            Snapshots(self.host.log(f"{TOPIC}.snapshots")),
            machine=Claims,
            instance=f"{self.host.instance}.{self._deaths}",
            monotonic_ms=self.host.now_ms,
            fresh_ms=HB_MS // 2,
            snapshot_every=self._snapshot_every,
        )
        member = self._kind(
            tail,
            founded=FOUNDED,
            client=self.host.name,
            place=partition_of,
            monotonic_ms=self.host.now_ms,
            listener=RangeListener(
                bury=self._bury, lost=self._lost, end_of=lambda slot: self._judge.data, fence=self._fence
            ),
            producer=tail.instance if self._judge.is_transactional else None,
        )
        member.want([SLOT])
        return member

    @property
    def is_dead(self) -> bool:
        """Of a poisonous offset; it comes back as another instance."""
        return self.host.now_ms() < self._dead_until_ms

    def step(self) -> int:
        if self.is_dead:
            return self._dead_until_ms - self.host.now_ms()
        if self._dead_until_ms:
            self._dead_until_ms = 0
            self.member = self._born()
        self.member.attend()
        self.member.step(0)
        self._process()
        self._take()
        return HB_MS // 10

    def _take(self) -> None:
        for block in self.member.to_read(SLOT):
            start, end = self.member.take(block, min(block.next + 2, self._judge.data))
            self._judge.handed_out.update(range(start, end))
            self._in_hand += [(block, offset) for offset in range(start, end)]

    def _process(self) -> None:
        for _ in range(min(2, len(self._in_hand))):
            block, offset = self._in_hand.pop()
            if not self.member.is_good(block):
                continue
            if offset in self._judge.poisonous:
                self._die()
                return
            self._judge.seen.add(offset)
            crash_point("worker.processed")
            if offset == self._judge.failing:
                self.member.fail(block, offset, offset + 1)
            else:
                self.member.finish(block, offset, offset + 1)

    def _die(self) -> None:
        self.host.simulation.note(f"{self.host.instance} dies of a poisonous offset")
        self._in_hand.clear()
        self._deaths += 1
        self._dead_until_ms = self.host.now_ms() + HB_MS

    def _bury(self, block: Block) -> bool:
        self._judge.copied.add(block.start)
        return True

    def _fence(self, slot: Slot, transactional_id: str) -> bool:
        self._judge.fenced.add(transactional_id)
        return True

    def _lost(self, block: Block, reason: str) -> None:
        self.host.simulation.reach("lost")


@dataclass(slots=True, kw_only=True)
class Judge:
    """Knows the whole coordination log, what each member believes, and what was worked on."""

    data: int = 60
    """How many messages there are."""
    poisonous: frozenset[int] = frozenset()
    failing: int | None = None
    is_transactional: bool = False
    fenced: set[str] = field(default_factory=set)
    seen: set[int] = field(default_factory=set)
    copied: set[int] = field(default_factory=set)
    handed_out: Counter[int] = field(default_factory=Counter)
    _fold: Fold[Claims] = field(default_factory=lambda: Fold(Claims()))
    _hashes: list[str] = field(default_factory=list)
    _was_lost: bool = False
    _strays: dict[int, int] = field(default_factory=dict)
    """Epochs that their holder does not know, and since when."""

    def judge(self, simulation: Simulation) -> None:
        for entry in simulation.broker.partitions(TOPIC)[0].history(self._fold.next_offset):
            before = self._fold.machine.slot(SLOT).position
            held = _producers(self._fold.machine.slot(SLOT))
            self._fold.feed(entry.offset, entry.time_ms, entry.value)
            self._hashes.extend([self._fold.hash()] * (entry.offset + 1 - len(self._hashes)))
            self._lawful(simulation, before)
            self._fenced_first(simulation, held)
        workers = [host.actor for host in simulation.living() if isinstance(host.actor, Worker)]
        self._one_believer([worker for worker in workers if not worker.is_dead])
        self._no_strays(simulation, [worker for worker in workers if not worker.is_dead and not worker.host.is_asleep])
        for worker in workers:
            self._same_state(worker.member.tail)

    def _lawful(self, simulation: Simulation, before: int | None) -> None:
        state = self._fold.machine.slot(SLOT)
        if before is not None and (state.position is None or state.position < before):
            raise Violated(f"the position went back from {before} to {state.position}")
        finished = self.seen | self.copied
        if state.position is not None and not finished.issuperset(range(state.position)):
            raise Violated(f"the position is {state.position}, but not all below it was worked on")
        self._is_covered(state)
        for item in state.map:
            self._was_lost |= item.status is Status.LOST
            offsets = range(item.start, item.end)
            if item.status is Status.DEAD:
                simulation.reach("buried")
                if not (self.poisonous | {self.failing}).issuperset(offsets):
                    raise Violated(f"{item} is dead, and was harmless")
            if item.status is Status.FREE and not self._was_lost:
                simulation.reach("given back")
                if item.deliveries and not any(self.handed_out[offset] for offset in offsets):
                    raise Violated(f"{item} was never handed out, and counts as delivered")
            if item.tenancy is not None and item.deliveries > 1:
                simulation.reach("granted again")

    def _fenced_first(self, simulation: Simulation, before: dict[tuple[int, int], str]) -> None:
        """What a transactional holder had is nobody else's before its id was initialised."""
        state = self._fold.machine.slot(SLOT)
        now = _producers(state)
        for (start, epoch), producer in before.items():
            item = next((item for item in state.map if item.start <= start < item.end), None)
            is_taken = item is not None and item.status is Status.LOST and (start, epoch) not in now
            if is_taken:
                simulation.reach("fenced")
                if producer not in self.fenced:
                    raise Violated(f"{start} was taken from {producer}, which is not fenced")

    def _is_covered(self, state: SlotState) -> None:
        at = state.position
        for item in state.map:
            if item.start != at or item.end <= item.start:
                raise Violated(f"the map has a gap or an overlap at {at}: {item}")
            at = item.end
        if state.map.frontier is not None and at != state.map.frontier:
            raise Violated(f"the map ends at {at}, the frontier is {state.map.frontier}")

    def _one_believer(self, workers: list[Worker]) -> None:
        believers: dict[int, str] = {}
        for worker in workers:
            for block in worker.member.blocks:
                if not worker.member.is_good(block):
                    continue
                for offset in (offset for span in block.open for offset in range(*span)):
                    if offset in believers:
                        raise Violated(f"{believers[offset]} and {worker.host.instance} both act on {offset}")
                    believers[offset] = worker.host.instance
                if block.is_suspect and block.outstanding and len(worker.member.blocks) > 1:
                    raise Violated(f"{worker.host.instance} works on the suspect {block.start}, and holds more")

    def _no_strays(self, simulation: Simulation, workers: list[Worker]) -> None:
        """What was granted to a question that nobody waits for any more is given back, long before it expires."""
        if simulation.is_away():
            self._strays.clear()
            return
        known = {(w.member.client, w.member.instance): {block.token for block in w.member.blocks} for w in workers}
        tenancies = [item.tenancy for item in self._fold.machine.slot(SLOT).map if item.tenancy is not None]
        strays = {held.epoch for held in tenancies if held.owner in known and held.epoch not in known[held.owner]}
        self._strays = {epoch: self._strays.get(epoch, simulation.now_ms) for epoch in strays}
        for epoch, since_ms in self._strays.items():
            if simulation.now_ms - since_ms > HB_MS * 3 // 2:
                raise Violated(f"epoch {epoch} belongs to somebody who does not know it")

    def _same_state(self, tail: Tail[Claims]) -> None:
        fold = tail.fold(0)
        if 0 < fold.next_offset <= len(self._hashes) and fold.hash() != self._hashes[fold.next_offset - 1]:
            raise Violated(f"{tail.instance} has another state at offset {fold.next_offset - 1} than a full replay")

    def conclude(self, simulation: Simulation) -> None:
        if not any(isinstance(host.actor, Worker) for host in simulation.living()):
            return
        state = self._fold.machine.slot(SLOT)
        if state.position is None or state.position < self.data:
            raise Violated(f"at the end the position is {state.position} of {self.data}: {list(state.map)}")
        expected = self.poisonous | ({self.failing} if self.failing is not None else set())
        if self.copied != expected:
            raise Violated(f"the dead letters are {self.copied}, not {set(expected)}")


def _producers(state: SlotState) -> dict[tuple[int, int], str]:
    held = [(item.start, item.tenancy) for item in state.map if item.tenancy is not None]
    return {(start, tenancy.epoch): tenancy.producer for start, tenancy in held if tenancy.producer is not None}


EVERYTHING = Faults(
    pause_ms=HB_MS * 3,
    delay_ms=HB_MS * 5 // 4,
    duplicates=True,
    lost_acks=True,
    drops=True,
    slow_reads=True,
    until_ms=1_200,
)


def sharing(bug: str = "") -> Scenario:
    """Three members on one slot."""
    return _scenario("sharing", bug, EVERYTHING, Judge())


def pair(bug: str = "") -> Scenario:
    """Two members, with pauses and crashes only: small enough to enumerate."""
    return _scenario("pair", bug, Faults(pause_ms=HB_MS * 3, until_ms=300), Judge(data=16), names="ab")


def poison(bug: str = "") -> Scenario:
    """One offset kills whoever works on it, another fails; both end as dead letters, and nothing else does."""
    faults = replace(EVERYTHING, crashes=False, pause_ms=0, delay_ms=HB_MS // 4, lost_acks=False, drops=False)
    return _scenario("poison", bug, faults, Judge(poisonous=frozenset({7}), failing=13, data=30), lasts_ms=60 * HB_MS)


def transacting(bug: str = "") -> Scenario:
    """Every member names a transactional id: what it leaves is taken only after that was initialised."""
    return _scenario("transacting", bug, replace(EVERYTHING, slow_reads=False), Judge(is_transactional=True))


def sharing_with_outages(bug: str = "") -> Scenario:
    """The leader of the coordination ledger is away for longer than a lease."""
    return _scenario("sharing_with_outages", bug, Faults(crashes=False, outage_ms=3 * HB_MS, until_ms=1_200), Judge())


def sharing_with_snapshots(bug: str = "") -> Scenario:
    """The coordination log is cut behind snapshots while members come and go."""
    faults = Faults(pause_ms=HB_MS * 3, delay_ms=HB_MS, drops=True, until_ms=1_200)
    return _scenario("sharing_with_snapshots", bug, faults, Judge(), snapshot_every=12)


def _scenario(
    name: str,
    bug: str,
    faults: Faults,
    judge: Judge,
    *,
    names: str = "abc",
    snapshot_every: int = 10**6,
    lasts_ms: int = 30 * HB_MS,
) -> Scenario:
    def build(simulation: Simulation, judge: Judge) -> None:
        simulation.broker.create(TOPIC, 1)
        simulation.broker.create(f"{TOPIC}.snapshots", 1)
        for number, letter in enumerate(names):
            simulation.spawn(
                letter, lambda host: Worker(host, judge, BUGS[bug], snapshot_every=snapshot_every), after_ms=number
            )

    def new_judge() -> Judge:
        return Judge(
            data=judge.data,
            poisonous=judge.poisonous,
            failing=judge.failing,
            is_transactional=judge.is_transactional,
        )

    return judged(
        f"{NAME}:{name}" + (f"({bug})" if bug else ""),
        new_judge,
        build,
        faults=faults,
        until_ms=faults.until_ms + lasts_ms,
        rate=0.02,
        settles_ms=3 * HB_MS,
    )
