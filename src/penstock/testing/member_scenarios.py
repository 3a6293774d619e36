"""What members do among themselves, simulated: they name themselves, obey pauses, share whole topics.

Each scenario takes the name of a planted bug, to show that it would find it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from penstock.claims.decide import Appetite, lead_of
from penstock.claims.member import Listener, Member
from penstock.claims.records import GroupPaused, Slot
from penstock.claims.sharing import Sharing, View
from penstock.claims.sight import Sight
from penstock.claims.state import Claims
from penstock.claims.tenure import Tenure
from penstock.ledger.codec import encode
from penstock.ledger.snapshot import Snapshots
from penstock.ledger.tail import Tail
from penstock.testing.choices import Faults
from penstock.testing.claims_cluster import FOUNDED, HB_MS, PARTITIONS, TOPIC, Judge, Worker, place, workers_of
from penstock.testing.simulation import START_MS, Host, Scenario, Simulation, Violated, judged

J = TypeVar("J", bound=Judge)

NAME = "penstock.testing.member_scenarios"
HOST = "box"
PAUSED_AT_MS = 1_500
PAUSED_FOR_MS = 4 * HB_MS


# Naming


@dataclass(slots=True)
class NamesJudge(Judge):
    """No two living members go on under one name."""

    _same_since_ms: dict[tuple[str, str], int] = field(default_factory=dict)

    def judge(self, simulation: Simulation) -> None:
        Judge.judge(self, simulation)
        awake = [worker for worker in workers_of(simulation) if not worker.host.is_asleep and worker.member.client]
        for worker in awake:
            simulation.reach(f"called {worker.member.client}")
        same = {
            (a.host.instance, b.host.instance)
            for a in awake
            for b in awake
            if a.host.name < b.host.name and a.member.client == b.member.client
        }
        self._same_since_ms = {pair: self._same_since_ms.get(pair, simulation.now_ms) for pair in same}
        for pair, since_ms in self._same_since_ms.items():
            simulation.reach("two of one name, for a moment")
            if simulation.now_ms - since_ms > 2 * HB_MS:
                raise Violated(f"{pair[0]} and {pair[1]} are both called the same, and go on")


class _KeepsALostName(Member):
    """Bug: a member whose name has another owner goes on under it."""

    def _has_lost_name(self) -> bool:
        return False


class _TakesAnyName(Member):
    """Bug: a name is taken without asking whether somebody has it."""

    def _ask_for_name(self) -> None:
        self.client, self._host = f"{self._host}-0", ""


NAMING_BUGS: dict[str, type[Member]] = {
    "": Member,
    "keeps_a_lost_name": _KeepsALostName,
    "takes_any_name": _TakesAnyName,
}


def naming(bug: str = "") -> Scenario:
    """Members of one host that were given no names; the last one comes when a sleeper may have lost its own."""

    def build(simulation: Simulation, judge: NamesJudge) -> None:
        for name, after_ms in {"a": 0, "b": 1, "c": 4 * HB_MS}.items():
            simulation.spawn(name, lambda host: built(host, judge, NAMING_BUGS[bug], host_name=HOST), after_ms=after_ms)

    faults = Faults(pause_ms=HB_MS * 8, until_ms=900)
    return _scenario("naming", bug, NamesJudge, build, faults, until_ms=30 * HB_MS)


# Pauses


@dataclass(slots=True)
class PauseJudge(Judge):
    """Soon after a pause nobody acts, and nobody asks, until it is over."""

    def judge(self, simulation: Simulation) -> None:
        Judge.judge(self, simulation)
        since_ms = simulation.now_ms - START_MS - PAUSED_AT_MS
        if not 2 * HB_MS <= since_ms < PAUSED_FOR_MS:
            return
        simulation.reach("paused for a while")
        for worker in workers_of(simulation):
            if worker.host.is_asleep:
                continue
            if any(worker.member.is_good(tenure) for tenure in worker.member.held.values()):
                raise Violated(f"{worker.host.instance} still acts, though the group is paused")
            if worker.member._questions:
                raise Violated(f"{worker.host.instance} asks, though the group is paused")


class _IgnoresPauses(Member):
    """Bug: what was held before goes on."""

    def _obey_pauses(self) -> None:
        pass


class _AsksWhilePaused(Member):
    """Bug: the log will refuse it anyway."""

    def __init__(self, tail: Tail[Claims], **given: Any) -> None:
        super().__init__(tail, **given)
        honest = self._may_claim

        def may_claim(slot: Slot, state: Any) -> bool:
            return honest(slot, state) or (state.owner is None and slot not in self._questions)

        self._may_claim = may_claim  # type: ignore[method-assign]


PAUSE_BUGS: dict[str, type[Member]] = {
    "": Member,
    "ignores_pauses": _IgnoresPauses,
    "asks_while_paused": _AsksWhilePaused,
}


def paused(bug: str = "") -> Scenario:
    """Somebody else pauses the group, and the pause runs out."""

    def build(simulation: Simulation, judge: PauseJudge) -> None:
        for number, name in enumerate("ab"):
            simulation.spawn(name, lambda host: built(host, judge, PAUSE_BUGS[bug], client=host.name), after_ms=number)
        simulation.schedule(PAUSED_AT_MS, "ops pauses the group", lambda: pause(simulation))

    def pause(simulation: Simulation) -> None:
        log = simulation.broker.log(TOPIC)
        for number in range(PARTITIONS):
            log.append(number, encode(GroupPaused("g", "ops", simulation.now_ms + PAUSED_FOR_MS)))

    faults = Faults(pause_ms=HB_MS * 3, until_ms=900)
    return _scenario("paused", bug, PauseJudge, build, faults, until_ms=PAUSED_AT_MS + PAUSED_FOR_MS + 10 * HB_MS)


# Whole topics

WHOLE = tuple(Slot("g", topic, number) for topic in ("t", "u") for number in range(3))


@dataclass(slots=True)
class WholeJudge(Judge):
    """Who acts on a part of a topic has its partition 0, or soon lets go; in the end each topic is in one hand."""

    slots: tuple[Slot, ...] = WHOLE
    is_fair: bool = False
    _headless_since_ms: dict[tuple[str, Slot], int] = field(default_factory=dict)

    def judge(self, simulation: Simulation) -> None:
        Judge.judge(self, simulation)
        headless = {
            (worker.host.instance, slot)
            for worker in workers_of(simulation)
            if not worker.host.is_asleep
            for slot, tenure in worker.member.held.items()
            if lead_of(slot) not in worker.member.held and worker.member.is_good(tenure)
        }
        self._headless_since_ms = {key: self._headless_since_ms.get(key, simulation.now_ms) for key in headless}
        for (who, slot), since_ms in self._headless_since_ms.items():
            if simulation.now_ms - since_ms > 2 * HB_MS:
                raise Violated(f"{who} acts on {slot}, but does not have its topic")

    def conclude(self, simulation: Simulation) -> None:
        Judge.conclude(self, simulation)
        hands = {
            topic: {w.host.name for w in workers_of(simulation) for slot in w.member.held if slot.topic == topic}
            for topic in ("t", "u")
        }
        if any(len(names) != 1 for names in hands.values()):
            raise Violated(f"at the end the topics are not in one hand each: {hands}")
        if len(workers_of(simulation)) == 2 and hands["t"] == hands["u"]:
            raise Violated(f"at the end one member has everything: {hands}")


class _LetsTheFirstGo(Sharing):
    """Bug: a topic is given back by its partition 0 alone."""

    def next_gone(self, view: View, now_ms: int) -> list[Slot] | None:
        gone = super().next_gone(view, now_ms)
        return None if gone is None else [slot for slot in gone if not slot.partition]

    def may_go(self, slot: Slot, held: object) -> bool:
        return True

    def _has_no_lead(self, slot: Slot, held: Mapping[Slot, Tenure]) -> bool:
        return False


class _CountsPartitions(Sharing):
    """Bug: shares are counted in partitions, and any of them is asked for."""

    def __init__(self, sight: Sight, appetite: Appetite, *, heartbeat_ms: int) -> None:
        super().__init__(sight, Appetite(), heartbeat_ms=heartbeat_ms)


WHOLE_BUGS: dict[str, type[Sharing]] = {
    "": Sharing,
    "lets_the_first_go": _LetsTheFirstGo,
    "counts_partitions": _CountsPartitions,
}


def whole_topics(bug: str = "") -> Scenario:
    """Two members share two topics of three partitions, whole."""
    appetite = Appetite(whole_topics=True)

    def build(simulation: Simulation, judge: WholeJudge) -> None:
        for number, name in enumerate("ab"):
            simulation.spawn(name, lambda host: made(host, judge), after_ms=number)

    def made(host: Host, judge: WholeJudge) -> Worker:
        worker = built(host, judge, Member, client=host.name, appetite=appetite)
        worker.member._sharing = WHOLE_BUGS[bug](worker.member._sight, appetite, heartbeat_ms=HB_MS)
        return worker

    faults = Faults(pause_ms=HB_MS * 3, until_ms=900)
    return _scenario("whole_topics", bug, WholeJudge, build, faults, until_ms=900 + 25 * HB_MS)


# All of them


def built(
    host: Host,
    judge: Judge,
    member: type[Member],
    *,
    client: str = "",
    host_name: str = "",
    appetite: Appetite | None = None,
) -> Worker:
    tail = Tail(
        host.log(TOPIC),
        Snapshots(host.log(f"{TOPIC}.snapshots")),
        machine=Claims,
        instance=host.instance,
        monotonic_ms=host.now_ms,
        fresh_ms=HB_MS // 2,
        snapshot_every=10**6,
    )
    made = member(
        tail,
        founded=FOUNDED,
        client=client,
        place=place,
        monotonic_ms=host.now_ms,
        listener=Listener(),
        reclaim=True,
        appetite=appetite,
        host=host_name,
    )
    made.want(judge.slots)
    return Worker(host, made, judge.seen)


def _scenario(
    name: str,
    bug: str,
    judge: Callable[[], J],
    build: Callable[[Simulation, J], None],
    faults: Faults,
    *,
    until_ms: int,
) -> Scenario:
    def begin(simulation: Simulation, judge: J) -> None:
        simulation.broker.create(TOPIC, PARTITIONS)
        simulation.broker.create(f"{TOPIC}.snapshots", PARTITIONS)
        build(simulation, judge)

    named = f"{NAME}:{name}" + (f"({bug})" if bug else "")
    return judged(named, judge, begin, faults=faults, until_ms=until_ms, rate=0.02)
