"""Queue workers that share a topic, under everything that can go wrong, with bugs that can be planted.

python -m penstock.testing.simulate penstock.testing.queue_scenarios:sharing --seeds 100
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

from penstock.ledger.codec import Record, encode
from penstock.queue.records import ALL, Paused, QueuesChanged, Resumed
from penstock.queue.terms import Terms
from penstock.testing.choices import Faults
from penstock.testing.claims_cluster import PARTITIONS as CLAIMS_PARTITIONS
from penstock.testing.claims_cluster import TOPIC as CLAIMS
from penstock.testing.queue_cluster import POLL_MS, ClaimingHost, QueueHost
from penstock.testing.queue_judge import QueueJudge
from penstock.testing.queue_ledger_judge import ATTEMPTS_MAX, LEASE_MS, LEDGER
from penstock.testing.queue_topic import Task, TopicPartition
from penstock.testing.queue_worker_bugs import BUGS
from penstock.testing.simulation import START_MS, Scenario, Simulation, judged

__all__ = ["BUGS", "NAME"]

NAME = "penstock.testing.queue_scenarios"

SLOW = Task(lasts_ms=LEASE_MS * 4 // 3)
SOON = Task(due_ms=START_MS + 400)
BRIEF = Task(expires_ms=START_MS + 350)
TASKS = (
    Task(),
    Task(),
    SLOW,
    Task("fails once"),
    SOON,
    Task("fails always"),
    BRIEF,
    Task(),
    Task("fails once", POLL_MS),
)

EVERYTHING = Faults(
    pause_ms=LEASE_MS * 2,
    delay_ms=LEASE_MS * 5 // 4,
    duplicates=True,
    lost_acks=True,
    drops=True,
    slow_reads=True,
    until_ms=700,
)

TERMS = Terms(lease_ms=LEASE_MS, attempts_max=ATTEMPTS_MAX, in_hand_max=4, take_max=3)

Filled = Callable[[Simulation, list[TopicPartition]], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """What a scenario is made of, beside its faults."""

    fill: Filled
    names: str = "ab"
    partitions: int = 1
    terms: Terms = TERMS
    is_exclusive: bool = True
    moves: int = 0
    """How often partitions change their owners."""
    has_stops: bool = False
    snapshot_every: int = 10**6
    deletes: int = 0
    """So many offsets of each partition are deleted before they are worked on, by a retention that is too short."""
    has_claims: bool = False
    """Owners agree by themselves, through real members."""
    is_choked: bool = False
    batch_max: int = 0
    """Handlers get so many messages at once."""
    has_orders: bool = False
    """Somebody pauses the group, or one queue, for a while, and changes what it serves."""
    lasts_ms: int = 40 * LEASE_MS
    rate: float = 0.02


# What is in the topic


def mixed(simulation: Simulation, topic: list[TopicPartition]) -> None:
    """Some of everything, with gaps between; part of it comes later."""
    shift, hole = simulation.shape(0, len(TASKS) - 1), simulation.shape(2, 4)
    for number, there in enumerate(topic):
        for place in range(8):
            if place % hole == 1:
                there.send(number, None)
            there.send(number, TASKS[(place + shift + number) % len(TASKS)])
    simulation.schedule(POLL_MS * 5, "more is sent", lambda: _send_more(topic, shift))


def _send_more(topic: list[TopicPartition], shift: int) -> None:
    for number, there in enumerate(topic):
        for place in range(2):
            there.send(number, TASKS[(place + shift) % len(TASKS)])
        there.send(number, None)


def few(simulation: Simulation, topic: list[TopicPartition]) -> None:
    for number, there in enumerate(topic):
        for task in (Task(), SLOW, None, Task("fails once"), SLOW, Task("fails always"), SOON, None):
            there.send(number, task)


def keyed(simulation: Simulation, topic: list[TopicPartition]) -> None:
    """Three keys, and some without one."""
    shift = simulation.shape(0, 3)
    keys = (b"a", b"b", b"a", None, b"a", b"b", b"c", b"a")
    tasks = (Task(), Task("fails once"), SLOW, Task("fails always"))
    for number, there in enumerate(topic):
        for place in range(12):
            if place % 5 == 1:
                there.send(number, None)
            there.send(number, tasks[(place + shift) % len(tasks)]._replace(key=keys[place % len(keys)]))


def poisoned(simulation: Simulation, topic: list[TopicPartition]) -> None:
    """One message among many kills whoever works on it."""
    deadly = simulation.shape(3, 60)
    for number, there in enumerate(topic):
        for place in range(70):
            there.send(number, Task("kills") if place == deadly else Task())


def deadly(simulation: Simulation, topic: list[TopicPartition]) -> None:
    """Two that kill, one of them slowly, among some that work for long."""
    shift = simulation.shape(0, 3)
    tasks = (Task("kills", lasts_ms=LEASE_MS), Task(), Task("kills"), SLOW, Task("fails once"))
    for number, there in enumerate(topic):
        for place in range(7):
            there.send(number, tasks[place - shift] if 0 <= place - shift < len(tasks) else Task())


def lengthy(simulation: Simulation, topic: list[TopicPartition]) -> None:
    """Each takes several leases."""
    shift = simulation.shape(0, 2)
    for number, there in enumerate(topic):
        for place in range(3):
            task = (Task(), Task("fails once"), Task("fails always"))[(place + shift) % 3]
            there.send(number, task._replace(lasts_ms=LEASE_MS * (2 + 3 * place)))


def simple(simulation: Simulation, topic: list[TopicPartition]) -> None:
    for number, there in enumerate(topic):
        for place in range(10):
            there.send(number, None if place % 4 == 2 else Task("fails once" if place == 3 else "succeeds"))


# Scenarios


def sharing(bug: str = "") -> Scenario:
    """Three workers, two partitions, owners that change and are several at times."""
    return _scenario("sharing", bug, EVERYTHING, Setting(fill=mixed, names="abc", partitions=2, moves=3))


def pair(bug: str = "") -> Scenario:
    """Two owners of one partition, with crashes and pauses only: small enough to enumerate."""
    return _scenario("pair", bug, Faults(pause_ms=LEASE_MS * 2, until_ms=1_000), Setting(fill=few))


def handing_over(bug: str = "") -> Scenario:
    """Nothing goes wrong, but owners change and processes are stopped and started: no lease is lost by that."""
    faults = Faults(crashes=False, until_ms=700)
    return _scenario(
        "handing_over", bug, faults, Setting(fill=mixed, names="abc", partitions=2, moves=4, has_stops=True)
    )


def lasting(bug: str = "") -> Scenario:
    """Work takes several leases, and a worker that lost one has it again before its handler is done."""
    faults = replace(EVERYTHING, pause_ms=LEASE_MS * 4 // 3, delay_ms=LEASE_MS // 2, until_ms=1_200)
    return _scenario("lasting", bug, faults, Setting(fill=lengthy))


def napping(bug: str = "") -> Scenario:
    """What a worker hears is nearly a lease old, and renewals get lost: its own clock alone tells it to stop."""
    faults = Faults(crashes=False, pause_ms=LEASE_MS * 3 // 4, deaf_ms=LEASE_MS * 3 // 4, drops=True, until_ms=900)
    return _scenario("napping", bug, faults, Setting(fill=mixed, rate=0.06))


def stopping(bug: str = "") -> Scenario:
    """Processes are stopped gracefully while everything goes wrong."""
    return _scenario("stopping", bug, EVERYTHING, Setting(fill=mixed, moves=2, has_stops=True))


def ordered(bug: str = "") -> Scenario:
    """Messages with keys wait for each other."""
    terms = replace(TERMS, in_hand_max=6, take_max=4, per_key_max=3, is_ordered=True)
    return _scenario("ordered", bug, EVERYTHING, Setting(fill=keyed, moves=2, terms=terms, snapshot_every=14))


def at_most_once(bug: str = "") -> Scenario:
    """Acked, read back, then handed out: nothing is ever handed out twice."""
    terms = replace(TERMS, is_acked_first=True)
    return _scenario("at_most_once", bug, EVERYTHING, Setting(fill=simple, moves=2, terms=terms, snapshot_every=10))


def poison(bug: str = "") -> Scenario:
    """A message that kills is found among its neighbours and buried; they are not."""
    terms = replace(TERMS, in_hand_max=70, take_max=70)
    faults = Faults(crashes=False, delay_ms=LEASE_MS // 4, duplicates=True, slow_reads=True, until_ms=900)
    return _scenario("poison", bug, faults, Setting(fill=poisoned, terms=terms, moves=1, lasts_ms=100 * LEASE_MS))


def poisons(bug: str = "") -> Scenario:
    """Several that kill, and processes that sleep beside it."""
    faults = Faults(crashes=False, pause_ms=LEASE_MS * 4 // 3, slow_reads=True, drops=True, until_ms=1_500)
    return _scenario("poisons", bug, faults, Setting(fill=deadly, lasts_ms=100 * LEASE_MS))


def with_snapshots(bug: str = "") -> Scenario:
    """The ledger is cut behind snapshots."""
    faults = Faults(pause_ms=LEASE_MS * 2, deaf_ms=LEASE_MS, drops=True, until_ms=900)
    return _scenario("with_snapshots", bug, faults, Setting(fill=mixed, snapshot_every=4, rate=0.03))


def with_retention(bug: str = "") -> Scenario:
    """Messages are deleted before they are worked on."""
    return _scenario("with_retention", bug, EVERYTHING, Setting(fill=mixed, deletes=5))


def with_clock_steps(bug: str = "") -> Scenario:
    """The log's clock steps: redelivery may come early then, but nothing is lost and no stale ack counts."""
    faults = Faults(pause_ms=2 * LEASE_MS, delay_ms=LEASE_MS, clock_step_ms=3 * LEASE_MS, until_ms=700)
    return _scenario("with_clock_steps", bug, faults, Setting(fill=mixed, moves=2, is_exclusive=False))


def with_outages(bug: str = "") -> Scenario:
    """The leader of the ledger is away for longer than a lease."""
    return _scenario(
        "with_outages", bug, Faults(crashes=False, outage_ms=2 * LEASE_MS, until_ms=700), Setting(fill=mixed, moves=2)
    )


def with_claims(bug: str = "") -> Scenario:
    """Owners agree through claims, as in production."""
    faults = replace(EVERYTHING, delay_ms=LEASE_MS // 2)
    return _scenario("with_claims", bug, faults, Setting(fill=mixed, partitions=2, has_claims=True))


def ordered_with_claims(bug: str = "") -> Scenario:
    """Messages with keys wait for each other, also for those of a former owner, and owners agree through claims."""
    terms = replace(TERMS, in_hand_max=6, take_max=4, per_key_max=2, is_ordered=True)
    faults = replace(EVERYTHING, delay_ms=LEASE_MS // 2)
    return _scenario(
        "ordered_with_claims", bug, faults, Setting(fill=keyed, partitions=2, terms=terms, has_claims=True)
    )


def in_batches(bug: str = "") -> Scenario:
    """Handlers get many messages at once, and fail with all of them for one."""
    terms = replace(TERMS, in_hand_max=8, take_max=5)
    return _scenario(
        "in_batches", bug, EVERYTHING, Setting(fill=mixed, partitions=2, moves=2, terms=terms, batch_max=5)
    )


def under_orders(bug: str = "") -> Scenario:
    """The group is paused and resumed while everything goes wrong."""
    setting = Setting(fill=mixed, partitions=2, moves=2, has_orders=True, snapshot_every=20)
    return _scenario("under_orders", bug, EVERYTHING, setting)


def with_full_clients(bug: str = "") -> Scenario:
    """A client cannot take a record over: nobody knows of it, and it is said again."""
    faults = Faults(pause_ms=2 * LEASE_MS, until_ms=700)
    return _scenario("with_full_clients", bug, faults, Setting(fill=mixed, moves=2, is_choked=True))


def _scenario(name: str, bug: str, faults: Faults, setting: Setting) -> Scenario:
    parts, terms = BUGS[bug], setting.terms
    kind = ClaimingHost if setting.has_claims else QueueHost

    def new_judge() -> QueueJudge:
        return QueueJudge(
            topic=[TopicPartition() for _ in range(setting.partitions)],
            is_exclusive=setting.is_exclusive,
            is_acked_first=terms.is_acked_first,
            is_ordered=terms.is_ordered,
            in_hand_max=terms.in_hand_max,
        )

    def build(simulation: Simulation, judge: QueueJudge) -> None:
        simulation.broker.create(LEDGER, setting.partitions)
        simulation.broker.create(f"{LEDGER}.snapshots", setting.partitions)
        if setting.has_claims:
            simulation.broker.create(CLAIMS, CLAIMS_PARTITIONS)
            simulation.broker.create(f"{CLAIMS}.snapshots", CLAIMS_PARTITIONS)
        setting.fill(simulation, judge.topic)
        _share(simulation, judge, setting, faults)
        for number, letter in enumerate(setting.names):
            simulation.spawn(
                letter,
                lambda host: kind(
                    host,
                    judge,
                    parts,
                    terms,
                    snapshot_every=setting.snapshot_every,
                    is_choked=setting.is_choked,
                    batch_max=setting.batch_max,
                ),
                after_ms=number,
            )

    return judged(
        f"{NAME}:{name}" + (f"({bug})" if bug else ""),
        new_judge,
        build,
        faults=faults,
        until_ms=faults.until_ms + setting.lasts_ms,
        rate=setting.rate,
        settles_ms=LEASE_MS,
    )


def _share(simulation: Simulation, judge: QueueJudge, setting: Setting, faults: Faults) -> None:
    """Who owns what, and when that changes: to another, to several, to nobody."""
    names = setting.names
    everybody, count = frozenset(names), len(names)
    judge.owners = [frozenset(names[number % count]) for number in range(setting.partitions)]
    if not setting.moves:
        judge.owners = [everybody for _ in judge.owners]

    def move(number: int, owners: frozenset[str]) -> None:
        judge.owners[number] = owners
        if len(owners) > 1:
            simulation.reach("several owners at once")

    for turn in range(setting.moves):
        at_ms = faults.until_ms * (turn + 1) // (setting.moves + 1)
        for number in range(setting.partitions):
            to = simulation.shape(0, count + 1)
            if to:
                owners = frozenset(names[to - 1]) if to <= count else everybody
                label = f"{number} goes to {''.join(sorted(owners))}"
                simulation.schedule(at_ms, label, partial(move, number, owners))
    if setting.has_stops:
        for name in names[: simulation.shape(0, count)]:
            judge.stops_at_ms[name] = START_MS + simulation.shape(1, faults.until_ms // POLL_MS) * POLL_MS
    if setting.has_orders:
        _give_orders(simulation, setting, faults)
    if setting.deletes:
        delete_at_ms = simulation.shape(0, 10) * POLL_MS
        simulation.schedule(delete_at_ms, "messages are deleted", lambda: _delete(judge.topic, setting.deletes))


def _give_orders(simulation: Simulation, setting: Setting, faults: Faults) -> None:
    """From somebody who is no worker: each partition gets them at a time of its own."""
    log = simulation.broker.log(LEDGER)

    def give(number: int, record: Record) -> None:
        simulation.reach(f"ordered: {type(record).__name__}")
        log.append(number, encode(record))

    for number in range(setting.partitions):
        queue = (ALL, "q")[simulation.shape(0, 1)]
        from_ms, upto_ms = sorted(simulation.shape(0, 12) * faults.until_ms // 10 for _ in range(2))
        runs_out = simulation.shape(0, 1)
        orders: dict[Record, int] = {
            QueuesChanged(("*", "q"), "ops"): from_ms // 2,
            Paused(queue, START_MS + upto_ms if runs_out else None, "ops"): from_ms,
        }
        if not runs_out:
            orders[Resumed(queue, "ops")] = upto_ms + 1
        for record, at_ms in orders.items():
            simulation.schedule(at_ms, f"an order for {number}", partial(give, number, record))


def _delete(topic: list[TopicPartition], count: int) -> None:
    for there in topic:
        there.start = max(there.start, count)
