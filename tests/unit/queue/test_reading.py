"""When gaps below the head are looked at."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from queue_records import Record, values

from penstock.queue.desk import Desk
from penstock.queue.intake import Intake
from penstock.queue.order import KeyOrder, Shelf
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


def test_gaps_that_are_due_wait_a_moment_for_each_other_and_for_new_messages_while_there_is_a_backlog() -> None:
    topic, now_ms = Topic(), [1_000]
    fold = SimpleNamespace(machine=QueueMachine())
    given: dict[str, Any] = {"append": None, "room_max": 3, "room_max_bytes": 10_000, "gaps_max": 100}
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

    def read(*offsets: int) -> None:
        topic.waiting = [Record(offset) for offset in offsets]
        reading.read(0)
        desk.buffer.take(len(offsets))

    def due(at: int) -> None:
        desk.is_rereading = False
        desk.gaps.add([(at, at + 1)])

    def looked_at() -> Ranges:
        reading.reread(desk)
        return topic.reread_ranges.pop() if topic.reread_ranges else ()

    # Nothing to read, or little: at once.
    due(1)
    assert looked_at() == ((1, 2),)
    read(10, 11)
    due(2)
    assert looked_at() == ((2, 3),)

    # More than there is room for: once in a while, with new messages.
    read(12, 13, 14)
    due(3)
    desk.receive([values(b"new", start=15)])
    now_ms[0] += 99
    assert looked_at() == ()
    now_ms[0] += 1
    assert looked_at() == ((3, 4),)

    # Where nothing new comes, not for ever.
    desk.buffer.take(1)
    due(4)
    now_ms[0] += 199
    assert looked_at() == ()
    now_ms[0] += 1
    assert looked_at() == ((4, 5),)

    # The backlog is over.
    due(5)
    read(16)
    assert looked_at() == ((5, 6),)

    # More is due than there is room for: all of it goes on without a pause.
    read(17, 18, 19)
    desk.is_rereading = False
    desk.gaps.add([(6, 10)])
    now_ms[0] += 200
    assert looked_at() == ((6, 9),)
    desk.is_rereading = False
    assert looked_at() == ((9, 10),)

    # With an order nothing waits: it may be what others wait for.
    desk.order = KeyOrder(Shelf(3, 100), chain_max=3, chain_max_bytes=100)
    due(10)
    now_ms[0] += 200
    assert looked_at() == ((10, 11),)
    for at in (1, 2):
        due(at)
        assert looked_at() == ((at, at + 1),)
