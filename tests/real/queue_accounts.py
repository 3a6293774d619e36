"""What the log says became of every message of a queue: the books against which tests hold what handlers saw."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from queue_process import Line
from real_kafka import eventually

from penstock.kafka.reader import EARLIEST, Reader, Received
from penstock.kafka.topics import Admin
from penstock.ledger.history import opened_history
from penstock.queue.names import ledger_topic
from penstock.queue.records import Acked, Buried, Copied, Dropped, Released, Renewed, Taken
from penstock.queue.rulings import Ruling
from penstock.queue.state import QueueMachine
from penstock.settings import Settings
from penstock.values import TopicPartition

Place = tuple[int, int]


@dataclass(slots=True)
class Fate:
    """What became of one offset, as accepted records tell it."""

    grants: list[int] = field(default_factory=list)
    """Epochs."""
    failures: int = 0
    acks: list[int] = field(default_factory=list)
    """Epochs."""
    burials: int = 0
    copies: int = 0
    drops: int = 0
    is_disturbed: bool = False
    """Whether anything was granted or said of it after its end."""

    @property
    def ends(self) -> int:
        return len(self.acks) + self.burials + self.drops


def fates(settings: Settings, name: str) -> dict[Place, Fate]:
    """By partition and offset; the ledger must not have been cut."""
    ledger = ledger_topic(settings, topic=name, group="shop")
    found: dict[Place, Fate] = {}
    with Admin(settings.kafka) as admin:
        partitions = admin.describe([name])[name].partitions
    for partition in range(partitions):
        with opened_history(settings.kafka, ledger, partition, QueueMachine) as history:
            assert history.start == 0
            for entry, judged in history:
                covered = judged.verdict.covered if isinstance(judged.verdict, Ruling) else ()
                for offset in (offset for start, end in covered for offset in range(start, end)):
                    _note(found.setdefault((partition, offset), Fate()), judged.record, entry.offset)
    return found


def renewals(settings: Settings, name: str) -> Counter[int]:
    """How often the leases of each partition were renewed."""
    ledger = ledger_topic(settings, topic=name, group="shop")
    found: Counter[int] = Counter()
    with Admin(settings.kafka) as admin:
        partitions = admin.describe([name])[name].partitions
    for partition in range(partitions):
        with opened_history(settings.kafka, ledger, partition, QueueMachine) as history:
            found[partition] = sum(
                isinstance(judged.record, Renewed) and judged.record.epochs != () for _, judged in history
            )
    return found


def _note(fate: Fate, record: object, epoch: int) -> None:
    match record:
        case Taken() | Released() | Acked() | Buried() | Dropped() if fate.ends:
            fate.is_disturbed = True
    match record:
        case Taken():
            fate.grants.append(epoch)
        case Released(counts=True):
            fate.failures += 1
        case Acked():
            fate.acks.append(record.epoch)
        case Buried():
            fate.burials += 1
        case Copied():
            fate.copies += 1
        case Dropped():
            fate.drops += 1


def messages_in(settings: Settings, topic: str) -> dict[Place, Received]:
    """Every message that the topic still has."""
    with Admin(settings.kafka) as admin:
        places = [TopicPartition(topic, number) for number in range(admin.describe([topic])[topic].partitions)]
    found: dict[Place, Received] = {}
    with Reader(settings.kafka) as reader:
        ends = {place: reader.bounds(place)[1] for place in places}
        reader.assign(dict.fromkeys(places, EARLIEST))

        def is_all() -> bool:
            found.update({(each.partition(), each.offset()): each for each in reader.read(10_000, 200)})
            return all(reader.position(place) >= end for place, end in ends.items())

        eventually(is_all, within_s=120)
    return found


def check_accounts(lines: Iterable[Line], books: dict[Place, Fate], numbers: dict[Place, int]) -> Counter[str]:
    """Hold what handlers saw against the log; how many messages are acked, dead and pending.

    Nothing is handled without a grant, acked without having been handled to its end, or touched after its end.
    """
    lines = list(lines)
    seen = {(line.n, line.token) for line in lines}
    # Who thought that the lease was lost was careful: as long as nobody else was granted it, the ack counts.
    ended = {(line.n, line.token) for line in lines if line.what in ("end", "lost")}
    granted: set[tuple[int, int]] = set()
    states: Counter[str] = Counter()
    for place, number in numbers.items():
        fate = books.get(place, Fate())
        assert not fate.is_disturbed, f"message {number} was touched after its end: {fate}"
        assert fate.ends <= 1
        granted |= {(number, epoch) for epoch in fate.grants}
        assert {(number, epoch) for epoch in fate.acks} <= ended, f"message {number} was acked and not handled"
        states["acked" if fate.acks else "dead" if fate.copies else "pending"] += 1
    assert seen <= granted, f"handled without a grant: {seen - granted}"
    return states
