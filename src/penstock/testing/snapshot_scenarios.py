"""Workers of the example machine write snapshots and cut the log while visitors open it; with planted bugs.

python -m penstock.testing.simulate penstock.testing.snapshot_scenarios:snapshots --enumerate 1
"""

from __future__ import annotations

from dataclasses import dataclass

from penstock.crash import crash_point
from penstock.ledger import tail as tail_module
from penstock.ledger.counter import PARTITION, Counter
from penstock.ledger.machine import Fold
from penstock.ledger.snapshot import Keeper, PartKey, Shelf, Snapshots, Whole
from penstock.ledger.tail import Tail
from penstock.testing.choices import Faults
from penstock.testing.counter_scenarios import (
    LEASE_MS,
    LEDGER,
    CounterJudge,
    SnapshotParts,
    built,
    create_topics,
    opened_tail,
)
from penstock.testing.simulation import Host, Scenario, Simulation, Violated, judged

NAME = "penstock.testing.snapshot_scenarios"


# What may be wrong


class _OneKey(Snapshots):
    """Bug: all snapshots of a partition share their keys, so a late writer erases the newer one."""

    def scan(self, partition: int) -> Shelf:
        return _OneKeyShelf(partition, super().scan(partition))


class _OneKeyShelf(Shelf):
    def __init__(self, partition: int, full: Shelf) -> None:
        super().__init__(partition)
        for key, part in full._parts.items():  # in the order of the log
            self._parts = {other: kept for other, kept in self._parts.items() if other.offset == key.offset}
            self._parts[key] = part

    def keys_below(self, offset: int) -> list[PartKey]:
        return []


class _CutsUnread(Keeper):
    """Bug: what was sent counts as there; the cut does not wait for the read-back."""

    def cut(self, partition: int) -> None:
        own = sorted(self._own_hashes.get(partition, {}))
        if len(own) >= 2:
            self._log.cut(partition, own[-2] + 1)


class _CutsBehindNewest(Keeper):
    """What goes with one key: a single whole snapshot has to be enough to cut."""

    def cut(self, partition: int) -> None:
        whole = self._snapshots.scan(partition).newest()
        own = sorted(self._own_hashes.get(partition, {}))
        if whole is not None and len(own) >= 2 and own[-2] <= whole.offset:
            crash_point("bug.cut_decided")
            self._log.cut(partition, own[-2] + 1)


class _EmptyWhenCut(Tail[Counter]):
    """Bug: a log that was cut beyond every snapshot counts as an empty ledger."""

    def _base(self, partition: int, fold: Fold[Counter]) -> Whole | None:
        whole = self._snapshots.scan(partition).newest()
        start = self.log.bounds([partition])[partition].start
        if start > tail_module._next_offset(whole):
            fold.next_offset = start
            return None
        return whole


class _LooksOnce(Tail[Counter]):
    """Bug: a reader that races a cut does not look at the snapshots again."""

    def _base(self, partition: int, fold: Fold[Counter]) -> Whole | None:
        first = self._snapshots.scan(partition)
        kept, self._snapshots.scan = self._snapshots.scan, lambda partition: first  # type: ignore[method-assign]
        crash_point("bug.scanned")
        try:
            return super()._base(partition, fold)
        finally:
            self._snapshots.scan = kept  # type: ignore[method-assign]


SNAPSHOT_BUGS: dict[str, SnapshotParts] = {
    "": SnapshotParts(),
    "one_key": SnapshotParts(snapshots=_OneKey, keeper=_CutsBehindNewest),
    "cuts_unread": SnapshotParts(keeper=_CutsUnread),
    "empty_when_cut": SnapshotParts(tail=_EmptyWhenCut, snapshots=_OneKey, keeper=_CutsBehindNewest),
    "looks_once": SnapshotParts(tail=_LooksOnce),
}


@dataclass(slots=True)
class Visitor:
    """Opens the ledger again and again, as a process that has just started does."""

    host: Host
    parts: SnapshotParts
    judge: CounterJudge
    visits: int = 0

    def step(self) -> int:
        tail = opened_tail(self.host, Counter, snapshot_every=1_000_000, parts=self.parts)
        for _ in range(100):
            tail.step(0)
            if tail.fold(PARTITION).halt is not None or tail.is_caught_up(PARTITION):
                break
        self._look(tail)
        self.visits += 1
        return LEASE_MS // 2

    def _look(self, tail: Tail[Counter]) -> None:
        simulation, fold = self.host.simulation, tail.fold(PARTITION)
        if fold.halt is not None:
            raise Violated(f"a reader cannot open the ledger: {fold.halt.reason}")
        self.judge.replay(simulation)
        self.judge.same_state(tail)
        if simulation.broker.partitions(LEDGER)[PARTITION].start:
            simulation.reach("opened a ledger that was cut")


@dataclass(slots=True)
class SnapshotJudge(CounterJudge):
    def conclude(self, simulation: Simulation) -> None:
        CounterJudge.conclude(self, simulation)
        if simulation.broker.partitions(LEDGER)[PARTITION].start == 0:
            raise Violated("the log was never cut")


def snapshots(bug: str = "") -> Scenario:
    parts = SNAPSHOT_BUGS[bug]

    def build(simulation: Simulation, judge: SnapshotJudge) -> None:
        create_topics(simulation)
        for number, letter in enumerate("ab"):
            simulation.spawn(letter, lambda host: built(host, snapshot_every=5, parts=parts), after_ms=number)
        simulation.spawn("visitor", lambda host: Visitor(host, parts, judge), after_ms=LEASE_MS)

    return judged(
        f"{NAME}:snapshots" + (f"({bug})" if bug else ""),
        SnapshotJudge,
        build,
        faults=Faults(pause_ms=2 * LEASE_MS, delay_ms=LEASE_MS, drops=True, until_ms=900),
        until_ms=2_100,
    )
