"""What was seen, and what it means: values in, findings out. Each finding says what would mend it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import NamedTuple

from penstock.claims.placement import mend_for
from penstock.claims.records import ClaimsFounded
from penstock.errors import BrokerUnavailable, CheckFailed
from penstock.kafka.topics import ClusterInfo, TopicInfo, TopicSpec
from penstock.topics import Step, steps
from penstock.values import Duration

PYTHON_MIN = (3, 11)
DISK_LOW_BYTES = 2 * 1024**3
DISK_EMPTY_BYTES = 200 * 1024**2
CLOCK_AHEAD_MS = 5_000
CLOCK_FROZEN_MS = 60_000
BROKERS_WANTED = 3


class Status(Enum):
    GREEN = "green"
    YELLOW = "yellow"
    RED = "red"
    SKIPPED = "skipped"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    name: str
    status: Status
    what: str
    mend: str = ""
    """The command or sentence that mends it."""


class Disk(NamedTuple):
    use: str
    path: Path
    free_bytes: int


class LedgerClock(NamedTuple):
    """The log clock of the partition of a ledger that is furthest ahead."""

    ledger: str
    partition: int
    clock_ms: int
    unread: str = ""
    """Why the ledger was not read to its end; nothing if it was."""


class Founded(NamedTuple):
    """What the coordination ledger was founded for, next to what the settings say."""

    ledger: str
    ours: ClaimsFounded
    theirs: Mapping[int, ClaimsFounded | None]
    """By partition; None where nobody has founded it yet."""


def furthest(clocks: Iterable[LedgerClock]) -> LedgerClock:
    """The clock of a ledger's partitions that is furthest ahead; it is unread as soon as any of them is."""
    found = tuple(clocks)
    ahead = max(found, key=lambda clock: clock.clock_ms)
    return ahead._replace(unread=next((clock.unread for clock in found if clock.unread), ""))


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """Everything that was looked at. What could not be seen is a sentence that says why, or None."""

    python: tuple[int, int, int]
    java: str = ""
    java_problem: tuple[str, str] | None = None
    jars: str = ""
    jars_problem: tuple[str, str] | None = None
    disks: tuple[Disk, ...] = ()
    bootstrap_servers: str = ""
    cluster: ClusterInfo | None = None
    unreachable: tuple[str, str] | None = None
    specs: tuple[TopicSpec, ...] = ()
    topics: Mapping[str, TopicInfo] | None = None
    clocks: tuple[LedgerClock, ...] = ()
    founded: Founded | None = None
    now_ms: int = 0

    def topic_steps(self) -> tuple[Step, ...]:
        if self.cluster is None or self.topics is None:
            return ()
        return steps(self.specs, self.topics, brokers=len(self.cluster.brokers))


def judged(seen: Seen) -> tuple[Finding, ...]:
    return tuple(_findings(seen))


def verdict_of(findings: tuple[Finding, ...]) -> BrokerUnavailable | CheckFailed | None:
    """The error to end with: no broker is worse than anything that is red."""
    red = [finding for finding in findings if finding.status is Status.RED]
    unreachable = next((finding for finding in red if finding.name == "broker"), None)
    if unreachable is not None:
        return BrokerUnavailable(unreachable.what, next_step=unreachable.mend)
    if red:
        return CheckFailed(f"{len(red)} of {len(findings)} checks are red", next_step=red[0].mend)
    return None


def _findings(seen: Seen) -> Iterator[Finding]:
    yield _python(seen.python)
    yield _present("java", seen.java, seen.java_problem)
    yield _present("jars", seen.jars, seen.jars_problem)
    yield from map(_disk, seen.disks)
    yield from _broker(seen)
    yield from _topics(seen)
    if seen.founded is not None:
        yield _founded(seen.founded)
    yield from (_clock(clock, seen.now_ms) for clock in seen.clocks)


def _python(version: tuple[int, int, int]) -> Finding:
    text = ".".join(map(str, version))
    if version[:2] < PYTHON_MIN:
        return _red("python", f"Python {text} is too old", "install Python 3.11 or newer")
    return _green("python", f"Python {text}")


def _present(name: str, found: str, problem: tuple[str, str] | None) -> Finding:
    """Java and jars are for the embedded broker only: whoever has a Kafka does without."""
    if problem is None:
        return _green(name, found)
    what, next_step = problem
    return Finding(name=name, status=Status.YELLOW, what=f"{what} (the embedded broker needs it)", mend=next_step)


def _disk(disk: Disk) -> Finding:
    name, what = f"disk: {disk.use}", f"{disk.free_bytes / 1024**3:.1f} GB free at {disk.path}"
    if disk.free_bytes < DISK_EMPTY_BYTES:
        return _red(name, what, "make room there, or set another folder")
    if disk.free_bytes < DISK_LOW_BYTES:
        return Finding(name=name, status=Status.YELLOW, what=what, mend="make room there before it runs full")
    return _green(name, what)


def _broker(seen: Seen) -> Iterator[Finding]:
    if not seen.bootstrap_servers:
        yield Finding(
            name="broker",
            status=Status.SKIPPED,
            what="no broker is named: development commands would use the embedded one",
            mend="set [kafka] bootstrap_servers to check yours, or try: penstock broker start",
        )
    elif seen.cluster is None:
        yield _red("broker", *(seen.unreachable or (f"{seen.bootstrap_servers} does not answer", "start it")))
    else:
        version = f"Kafka {seen.cluster.version}" if seen.cluster.version else "Kafka"
        yield _green("broker", f"{version} at {seen.bootstrap_servers}, cluster {seen.cluster.cluster_id}")
        yield _replication(len(seen.cluster.brokers))


def _replication(brokers: int) -> Finding:
    if brokers >= BROKERS_WANTED:
        return _green("brokers", f"{brokers} brokers")
    what = "one broker: no replication" if brokers == 1 else f"{brokers} brokers: no two copies beside a lost one"
    mend = "good for development; for work that must survive a lost disk use a cluster of three"
    return Finding(name="brokers", status=Status.YELLOW, what=what, mend=mend)


def _topics(seen: Seen) -> Iterator[Finding]:
    for step in seen.topic_steps():
        info = (seen.topics or {}).get(step.spec.name)
        yield _topic(step)
        if info is not None and (info.leaderless or info.under_replicated):
            yield _replicas(info)


def _topic(step: Step) -> Finding:
    name = f"topic: {step.spec.name}"
    if step.action == "create":
        return _red(name, f"is missing ({step.spec.reason})", "penstock topics apply")
    wrong = [*step.problems, *(f"{c.setting} is {c.is_now or 'unset'}, not {c.should_be}" for c in step.changes)]
    if wrong:
        return _red(name, "; ".join(wrong), step.next_step or "penstock topics apply")
    return _green(name, f"{step.spec.partitions} partitions, settings as needed")


def _replicas(info: TopicInfo) -> Finding:
    name = f"replicas: {info.name}"
    if info.leaderless:
        return _red(name, f"partitions {_listed(info.leaderless)} have no leader", "start the brokers that are down")
    what = f"partitions {_listed(info.under_replicated)} have replicas that are not in sync"
    return Finding(name=name, status=Status.YELLOW, what=what, mend="start the broker that is down, or wait for it")


def _founded(founded: Founded) -> Finding:
    name = f"genesis: {founded.ledger}"
    for partition, theirs in founded.theirs.items():
        if theirs is not None and theirs != founded.ours:
            wrong = "; ".join(_differences(theirs, founded.ours))
            return _red(name, f"partition {partition} was founded otherwise: {wrong}", mend_for(theirs))
    if all(theirs is None for theirs in founded.theirs.values()):
        return _green(name, "not founded yet: the first member does it")
    return _green(name, "founded as the settings say")


def _differences(theirs: ClaimsFounded, ours: ClaimsFounded) -> Iterator[str]:
    for field in ("partitions", "heartbeat_ms", "window", "delivery_limit"):
        if getattr(theirs, field) != getattr(ours, field):
            yield f"{field} {getattr(theirs, field)}, the settings say {getattr(ours, field)}"


def _clock(clock: LedgerClock, now_ms: int) -> Finding:
    name = f"clock: {clock.ledger}"
    ahead_ms = clock.clock_ms - now_ms
    where = f"the log clock of partition {clock.partition}"
    if ahead_ms > CLOCK_FROZEN_MS:
        return _red(
            name,
            f"{where} stands {Duration(ahead_ms // 1_000 * 1_000)} in the future: until then nothing there expires",
            "set the clocks of the brokers right, then: penstock doctor --fix (appends ClockReset)",
        )
    if ahead_ms > CLOCK_AHEAD_MS:
        what = f"{where} is {Duration(ahead_ms)} ahead of this machine"
        return Finding(name=name, status=Status.YELLOW, what=what, mend="let a time service set the clocks")
    if clock.unread:
        what = f"not in the future as far as it could be read: {clock.unread}"
        return Finding(name=name, status=Status.YELLOW, what=what, mend="run `penstock doctor` again in a minute")
    return _green(name, "not in the future")


def _listed(partitions: tuple[int, ...]) -> str:
    return ", ".join(map(str, partitions))


def _green(name: str, what: str) -> Finding:
    return Finding(name=name, status=Status.GREEN, what=what)


def _red(name: str, what: str, mend: str) -> Finding:
    return Finding(name=name, status=Status.RED, what=what, mend=mend)
