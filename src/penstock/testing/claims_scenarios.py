"""Members sharing slots, under everything that can go wrong, with bugs that can be planted.

python -m penstock.testing.simulate penstock.testing.claims_scenarios:members --enumerate 1
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from penstock.claims.records import Slot
from penstock.testing.choices import Faults
from penstock.testing.claims_cluster import FOUNDED, HB_MS, PARTITIONS, POLL_MS, SLOTS, TOPIC, Judge, Worker, built
from penstock.testing.claims_member_bugs import BUGS
from penstock.testing.simulation import Host, Scenario, Simulation, judged

__all__ = ["BUGS", "FOUNDED", "HB_MS", "Host", "Judge", "PARTITIONS", "SLOTS", "TOPIC", "Worker", "built"]

NAME = "penstock.testing.claims_scenarios"


EVERYTHING = Faults(
    pause_ms=HB_MS * 3,
    delay_ms=HB_MS * 5 // 4,
    duplicates=True,
    lost_acks=True,
    drops=True,
    slow_reads=True,
    deaf_ms=HB_MS * 4,
    until_ms=1_200,
)


def members(bug: str = "") -> Scenario:
    """Three members and four slots."""
    return _scenario("members", bug, EVERYTHING)


def crowd(bug: str = "") -> Scenario:
    """Three to ten members, and four to twelve slots."""
    return _scenario("crowd", bug, EVERYTHING, shape=Shape(members_max=10, slots_max=12), rate=0.005)


def pair(bug: str = "") -> Scenario:
    """Two members, with pauses and crashes only: small enough to enumerate."""
    return _scenario("pair", bug, Faults(pause_ms=HB_MS * 3, until_ms=900), shape=Shape(names="ab"))


def pair_on_a_bad_network(bug: str = "") -> Scenario:
    """Two members who stay alive, while appends are late, doubled, lost or unacknowledged."""
    faults = replace(EVERYTHING, crashes=False, pause_ms=0, until_ms=900)
    return _scenario("pair_on_a_bad_network", bug, faults, shape=Shape(names="ab"))


def members_that_stay_dead(bug: str = "") -> Scenario:
    """Nobody is restarted: the living must take over all that the dead had."""
    return _scenario("members_that_stay_dead", bug, Faults(restart_ms=0, pause_ms=HB_MS * 3, until_ms=900))


def one_dead(bug: str = "") -> Scenario:
    """Somebody dies and nothing else happens: what it had is taken over in time (for at most one deviation)."""
    in_time = lambda: Judge(takeover_max_ms=2 * HB_MS + 3 * POLL_MS)  # noqa: E731
    return _scenario("one_dead", bug, Faults(restart_ms=0, until_ms=1_200), judge=in_time, rate=0)


def members_with_clock_steps(bug: str = "") -> Scenario:
    """Two may act on one slot for a moment if the clock steps while a question is late; the log stays right."""
    faults = Faults(pause_ms=HB_MS * 3, clock_step_ms=10 * HB_MS, delay_ms=HB_MS, until_ms=1_200)
    return _scenario(
        "members_with_clock_steps", bug, faults, judge=lambda: Judge(is_exclusive=False), settles_ms=10 * HB_MS
    )


def members_with_steps_ahead(bug: str = "") -> Scenario:
    """Nothing but a log clock that jumps: everybody looks expired, and nobody may lose anything by it."""
    faults = Faults(crashes=False, clock_step_ms=10 * HB_MS, clock_steps_back=False, until_ms=1_200)
    return _scenario("members_with_steps_ahead", bug, faults, judge=lambda: Judge(can_expire=False))


def members_with_outages(bug: str = "") -> Scenario:
    """Nothing but a leader that is away for longer than a lease: nobody may lose anything by it."""
    faults = Faults(crashes=False, outage_ms=3 * HB_MS, until_ms=1_200)
    return _scenario("members_with_outages", bug, faults, judge=lambda: Judge(can_expire=False))


def members_with_snapshots(bug: str = "") -> Scenario:
    """The coordination log is cut behind snapshots while members come and go."""
    faults = Faults(pause_ms=HB_MS * 3, delay_ms=HB_MS, drops=True, until_ms=1_200)
    return _scenario("members_with_snapshots", bug, faults, shape=Shape(snapshot_every=12))


def members_with_retention(bug: str = "") -> Scenario:
    """It is cut so close that the slow find themselves below the log start; snapshots lose parts, or are compacted."""
    faults = replace(EVERYTHING, compaction=True)
    return _scenario("members_with_retention", bug, faults, shape=Shape(snapshot_every=4, part_bytes_max=64))


def twins(bug: str = "") -> Scenario:
    """Two processes under one client id: the younger reclaims what the older has, once."""
    shape = Shape(names="abA", clients={"A": "a"})
    return _scenario(
        "twins", bug, Faults(pause_ms=HB_MS * 3, until_ms=1_200), shape=shape, judge=lambda: Judge(is_fair=False)
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """Who takes part, and how."""

    names: str = "abc"
    members_max: int = 0
    slots_max: int = 0
    """Above 0: at least as many members as there are names, and four slots; how many more, the run decides."""
    clients: Mapping[str, str] = field(default_factory=dict)
    """The client id of a host, where it is not its own name."""
    snapshot_every: int = 10**6
    part_bytes_max: int | None = None


def _scenario(
    name: str,
    bug: str,
    faults: Faults,
    *,
    shape: Shape = Shape(),  # noqa: B008 - it is frozen
    judge: Callable[[], Judge] = Judge,
    rate: float = 0.02,
    settles_ms: int = 3 * HB_MS,
) -> Scenario:
    """By default a run may end when all was well for longer than a lease: what goes on in secret has come to light."""

    def build(simulation: Simulation, judge: Judge) -> None:
        create_topics(simulation)
        if shape.slots_max:
            judge.slots = tuple(Slot("g", "t", number) for number in range(simulation.shape(4, shape.slots_max)))
        for number, letter in enumerate(_names(simulation, shape)):
            simulation.spawn(letter, lambda host: _built(host, judge), after_ms=number)

    def _built(host: Host, judge: Judge) -> Worker:
        return built(
            host,
            judge,
            BUGS[bug],
            snapshot_every=shape.snapshot_every,
            client=shape.clients.get(host.name, host.name),
            part_bytes_max=shape.part_bytes_max,
        )

    return judged(
        f"{NAME}:{name}" + (f"({bug})" if bug else ""),
        judge,
        build,
        faults=faults,
        until_ms=faults.until_ms + 20 * HB_MS,
        rate=rate,
        settles_ms=settles_ms,
    )


def _names(simulation: Simulation, shape: Shape) -> str:
    if not shape.members_max:
        return shape.names
    return "abcdefghijklmnopqrstuvwxyz"[: simulation.shape(len(shape.names), shape.members_max)]


def create_topics(simulation: Simulation) -> None:
    simulation.broker.create(TOPIC, PARTITIONS)
    simulation.broker.create(f"{TOPIC}.snapshots", PARTITIONS)
