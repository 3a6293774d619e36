"""Two promises of real members, each with a judge of its own: at most once (I5), and a takeover in time (I9).

python -m penstock.testing.simulate penstock.testing.claims_promises:at_most_once --enumerate 1
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count
from typing import Any

from penstock.claims.member import Listener, Member, Tenure
from penstock.claims.placement import partition_of
from penstock.claims.records import Claimed, ClaimReleased, Slot
from penstock.claims.sight import Sight
from penstock.claims.state import Claims
from penstock.crash import crash_point
from penstock.ledger.machine import Fold
from penstock.ledger.snapshot import Snapshots
from penstock.ledger.tail import Tail
from penstock.testing.choices import Faults
from penstock.testing.claims_cluster import FOUNDED, HB_MS, PARTITIONS, TOPIC
from penstock.testing.simulation import Actor, Host, Scenario, Simulation, Violated, judged

NAME = "penstock.testing.claims_promises"
SLOT = Slot("g", "t", 0)
STEP_MS = HB_MS // 10
POLL_MS = HB_MS // 4
"""A step of the claimer until it looks, one until its question is in the log, and what a tick of the clock is off."""


def member_on(host: Host, kind: type[Member]) -> Member:
    tail = Tail(
        host.log(TOPIC),
        Snapshots(host.log(f"{TOPIC}.snapshots")),
        machine=Claims,
        instance=host.instance,
        monotonic_ms=host.now_ms,
        fresh_ms=HB_MS // 2,
        snapshot_every=10**6,
    )
    member = kind(
        tail,
        founded=FOUNDED,
        client=host.name,
        place=partition_of,
        monotonic_ms=host.now_ms,
        listener=Listener(),
        reclaim=True,
    )
    member.want([SLOT])
    return member


# At most once


@dataclass(slots=True)
class Processed:
    """I5: no offset is processed twice."""

    counts: Counter[int] = field(default_factory=Counter)

    def judge(self, simulation: Simulation) -> None:
        twice = [offset for offset, times in self.counts.items() if times > 1]
        if twice:
            raise Violated(f"I5: {twice} were processed twice")

    def conclude(self, simulation: Simulation) -> None:
        if simulation.living() and not self.counts:
            raise Violated("nothing was processed")


class Careful:
    """Moves the position, waits until it was read back, and only then processes what lies below it."""

    def __init__(self, host: Host, processed: Processed) -> None:
        self.host, self.member, self._processed = host, member_on(host, Member), processed
        self._in_hand: tuple[Tenure, int] | None = None

    def step(self) -> int:
        self.member.step(0)
        if self._in_hand is not None:
            self._go_on(*self._in_hand)
        else:
            for tenure in self.member.held.values():
                if self.member.is_good(tenure):
                    self._commit(tenure)
        return STEP_MS

    def _commit(self, tenure: Tenure) -> None:
        offset = tenure.position or 0
        tenure.position = offset + 1
        self.member.beat_now(tenure.slot)
        self._in_hand = tenure, offset
        crash_point("worker.committed")

    def _go_on(self, tenure: Tenure, offset: int) -> None:
        if self._is_committed(tenure, offset):
            self._in_hand = None
            crash_point("worker.processes")
            self._processed.counts[offset] += 1
            self.host.simulation.reach("processed")
        elif self.member.held.get(tenure.slot) is not tenure:
            self._in_hand = None
            self.host.simulation.reach("dropped: its commit was not accepted")

    def _is_committed(self, tenure: Tenure, offset: int) -> bool:
        return tenure.told is not None and tenure.told > offset


class _ProcessesAtOnce(Careful):
    """Bug: handed over counts as committed."""

    def _is_committed(self, tenure: Tenure, offset: int) -> bool:
        return True


class _ProcessesWhatWasRefused(Careful):
    """Bug: what it had in hand when it lost the slot is processed all the same."""

    def _is_committed(self, tenure: Tenure, offset: int) -> bool:
        return super()._is_committed(tenure, offset) or self.member.held.get(tenure.slot) is not tenure


CARELESS: dict[str, type[Careful]] = {
    "": Careful,
    "processes_at_once": _ProcessesAtOnce,
    "processes_what_was_refused": _ProcessesWhatWasRefused,
}


def at_most_once(bug: str = "") -> Scenario:
    faults = Faults(
        pause_ms=3 * HB_MS, delay_ms=3 * HB_MS, drops=True, duplicates=True, lost_acks=True, until_ms=2 * HB_MS
    )
    worker = CARELESS[bug]
    return _scenario("at_most_once", bug, Processed, faults, lambda host, processed: worker(host, processed))


# A takeover in time


@dataclass(slots=True)
class Prompt:
    """I9: what a silent owner had is granted 2 HB and a poll after its last sign; what is given back, within a poll."""

    latest_ms: int = 0
    _fold: Fold[Claims] = field(default_factory=lambda: Fold(Claims()))
    _free_since_ms: int | None = None

    def judge(self, simulation: Simulation) -> None:
        partition = simulation.broker.partitions(TOPIC)[partition_of(SLOT, PARTITIONS)]
        for entry in partition.history(self._fold.next_offset):
            before = self._fold.machine.slot(SLOT)
            owner, due_ms = before.owner, before.renewed_ms + 2 * HB_MS
            record, verdict = self._fold.feed(entry.offset, entry.time_ms, entry.value)
            if isinstance(record, ClaimReleased) and verdict.is_accepted:
                self._free_since_ms = entry.time_ms
            if isinstance(record, Claimed) and verdict.is_accepted and before.epoch >= 0:
                self._granted(simulation, entry.time_ms, due_ms if owner is not None else self._free_since_ms)
        self._still_in_time(simulation)

    def _granted(self, simulation: Simulation, at_ms: int, due_ms: int | None) -> None:
        simulation.reach("granted after a silence" if due_ms != self._free_since_ms else "granted after a release")
        self._free_since_ms = None
        self._in_time(at_ms, due_ms)

    def _still_in_time(self, simulation: Simulation) -> None:
        """Also what was never granted is late."""
        state = self._fold.machine.slot(SLOT)
        leavers = (host.actor for host in simulation.living() if isinstance(host.actor, Leaver))
        if state.epoch >= 0 and any(leaver.wants for leaver in leavers):
            due_ms = self._free_since_ms if state.owner is None else state.renewed_ms + 2 * HB_MS
            self._in_time(simulation.now_ms, due_ms)

    def _in_time(self, at_ms: int, due_ms: int | None) -> None:
        if due_ms is None:
            return
        self.latest_ms = max(self.latest_ms, at_ms - due_ms)
        if at_ms - due_ms > POLL_MS:
            raise Violated(f"I9: the slot could be had {at_ms - due_ms} ms ago, and nobody was granted it")

    def conclude(self, simulation: Simulation) -> None:
        """Everything is said after each step."""


class Leaver:
    """Holds what it gets; `b`, who is granted it first, gives it back after a while."""

    def __init__(self, host: Host, kind: type[Member]) -> None:
        self.member, self.wants, self._host, self._steps = member_on(host, kind), True, host, count()

    def step(self) -> int:
        if self._host.name == "b" and next(self._steps) == 25:
            self.wants = False
            self.member.want(())
        self.member.step(0)
        return STEP_MS


class _LooksAway(Member):
    """Bug: looks around every HB only."""

    def step(self, timeout_ms: int) -> None:
        self._is_stirred = False
        super().step(timeout_ms)
        self._look_at_ms = max(self._look_at_ms, self._now_ms() // HB_MS * HB_MS + HB_MS)


class _SleepsOnIt(Member):
    """Bug: reckons with a lease of 3 HB."""

    def __init__(self, *arguments: object, **named: object) -> None:
        super().__init__(*arguments, **named)  # type: ignore[arg-type]
        self._sight.log_ms = lambda slot: Sight.log_ms(self._sight, slot) - HB_MS  # type: ignore[method-assign]


SLOW: dict[str, type[Member]] = {"": Member, "looks_away": _LooksAway, "sleeps_on_it": _SleepsOnIt}


def in_time(bug: str = "") -> Scenario:
    """Who dies stays dead; the other one is well, and must have the slot in time."""
    faults = Faults(restart_ms=0, until_ms=3 * HB_MS)
    return _scenario("in_time", bug, Prompt, faults, lambda host, prompt: Leaver(host, SLOW[bug]))


def _scenario(
    name: str, bug: str, judge: Callable[[], Processed | Prompt], faults: Faults, worker: Callable[[Host, Any], Actor]
) -> Scenario:
    def build(simulation: Simulation, judge: Processed | Prompt) -> None:
        simulation.broker.create(TOPIC, PARTITIONS)
        simulation.broker.create(f"{TOPIC}.snapshots", PARTITIONS)
        for number, letter in enumerate("ab"):
            simulation.spawn(letter, lambda host: worker(host, judge), after_ms=number)

    return judged(
        f"{NAME}:{name}" + (f"({bug})" if bug else ""),
        judge,
        build,
        faults=faults,
        until_ms=faults.until_ms + 6 * HB_MS,
    )
