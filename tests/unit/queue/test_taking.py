"""What is asked for together, and what is asked for alone."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from queue_records import hand, values

from penstock.ledger.codec import Record
from penstock.ledger.tail import Ticket
from penstock.queue.cells import FINISHED, READY, Cell
from penstock.queue.desk import Desk
from penstock.queue.line import Line
from penstock.queue.records import Taken
from penstock.queue.solitude import Solitude
from penstock.queue.state import QueueMachine
from penstock.queue.taking import Taking
from penstock.queue.terms import Terms


class Log:
    """A tail that only notes what is asked."""

    instance = "w"

    def __init__(self) -> None:
        self.asked: list[Record] = []

    def fold(self, _: int) -> Any:
        return SimpleNamespace(machine=QueueMachine())

    def append(self, partition: int, record: Record) -> Ticket:
        self.asked.append(record)
        return Ticket(partition, record, b"", 0)


def taking_from(desk: Desk, log: Log, **terms: Any) -> Taking:
    telling: Any = None
    return Taking(
        log,  # type: ignore[arg-type]
        {0: desk},
        telling,
        queue="orders",
        terms=Terms(lease_ms=1_000, attempts_max=3, **terms),
        hand_out=lambda hand: None,
        monotonic_ms=lambda: 0,
        solitude=Solitude(),
    )


def test_a_message_that_was_lost_often_is_taken_alone_also_when_it_came_after_we_looked_around() -> None:
    log, desk = Log(), Desk(0)
    taking = taking_from(desk, log)
    taking.look_around()
    desk.suspects[3] = Line()
    desk.suspects[3].append(values(b"deadly", start=7))
    desk.buffer.append(values(b"harmless", start=20))

    taking.take(desk)

    assert log.asked == [Taken("w", 1, ((7, 8),), 1_000, None, True)]


@pytest.mark.parametrize(
    ("cell", "is_asked_for"),
    [
        (READY, True),
        (READY.leased(0).released(counts=True, due_ms=100, delay_ms=100), True),
        (READY.leased(0).buried(by=5), False),
        (FINISHED, False),
    ],
)
def test_what_nobody_is_granted_any_more_is_not_asked_for(cell: Cell, is_asked_for: bool) -> None:
    desk = Desk(0)

    desk.put_in_line(QueueMachine(), cell, [values(b"read again", start=7)], log_ms=1_000)

    assert desk.waiting_count == is_asked_for


@pytest.mark.parametrize(
    ("untold", "is_dense", "is_acked_first", "are_needed"),
    [
        pytest.param([], True, False, False, id="all is told"),
        pytest.param([(2, 3)], True, False, True, id="one is still worked on"),
        pytest.param([], False, False, True, id="to count them they have to be looked at"),
        pytest.param([], True, True, True, id="acked first: they are handed out when the log has answered"),
    ],
)
def test_messages_of_which_all_was_told_are_not_kept_in_memory_until_the_log_answers(
    untold: list[tuple[int, int]], is_dense: bool, is_acked_first: bool, are_needed: bool
) -> None:
    taking = taking_from(Desk(0), Log(), is_acked_first=is_acked_first)
    ours = hand(values(b"a", b"b", b"c"))
    ours.untold, ours.is_dense = untold, is_dense

    taking.told(ours, ((0, 2),) if untold else ((0, 3),))

    assert bool(ours.stretches) == are_needed
    assert (ours.done, ours.count_in([(0, 2)])) == (2 if untold else 3, 2)
