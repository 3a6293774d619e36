"""When gaps below the head are looked at."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from queue_records import Record, values

from penstock.queue.desk import Desk
from penstock.queue.intake import Intake
from penstock.queue.ranges import Ranges
from penstock.queue.reading import Reading
from penstock.queue.state import QueueMachine


class Topic:
    """A source that has what is put into it, and a clerk that only notes what is to be read again."""

    topic = "orders"

    def __init__(self) -> None:
        self.waiting: list[Record] = []
        self.reread_ranges: list[Ranges] = []

    def assign(self, heads: object) -> None: ...

    def read(self, count_max: int, timeout_ms: int) -> list[Record]:
        found, self.waiting = self.waiting, []
        return found

    def deleted(self) -> dict[int, int]:
        return {}

    def position(self, partition: int) -> int:
        return 0

    def reread(self, partition: int, ranges: Ranges) -> None:
        self.reread_ranges.append(ranges)


def test_a_gap_that_is_due_waits_a_moment_for_new_messages_of_its_partition() -> None:
    topic, now_ms = Topic(), [1_000]
    fold = SimpleNamespace(machine=QueueMachine())
    given: dict[str, Any] = {"append": None, "room_max": 100, "room_max_bytes": 10_000, "gaps_max": 100}
    reading = Reading(
        SimpleNamespace(fold=lambda _: fold),  # type: ignore[arg-type]
        topic,  # type: ignore[arg-type]
        topic,  # type: ignore[arg-type]
        Intake(),
        monotonic_ms=lambda: now_ms[0],
        **given,
    )
    desk, other = Desk(0, is_open=True, head=10), Desk(1, is_open=True)
    reading.follow([desk, other])

    def due(at: int) -> None:
        desk.is_rereading = False
        desk.gaps.add([(at, at + 1)])

    # Nothing flows: at once.
    due(1)
    reading.reread(desk)
    assert topic.reread_ranges.pop() == ((1, 2),)

    # Others flow: with the next of its own, or soon.
    topic.waiting = [Record(10)]
    reading.read(0)
    desk.buffer.take(1)
    due(2)
    reading.reread(desk)
    assert not topic.reread_ranges
    desk.receive([values(b"new", start=11)])
    reading.reread(desk)
    assert topic.reread_ranges.pop() == ((2, 3),)

    desk.buffer.take(1)
    due(3)
    reading.reread(desk)
    assert not topic.reread_ranges
    now_ms[0] += 99
    reading.reread(desk)
    assert not topic.reread_ranges
    now_ms[0] += 1
    reading.reread(desk)
    assert topic.reread_ranges.pop() == ((3, 4),)
