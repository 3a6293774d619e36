"""What is measured of handlers, and what is counted of a queue, without a broker."""

from __future__ import annotations

import threading
import time

from queue_records import hand, values

from penstock.ledger.codec import encode
from penstock.ledger.machine import Fold
from penstock.observe.events import Event, HandlersReturned, MessagesBegun, subscribed
from penstock.queue.batch_pile import BatchPile
from penstock.queue.calling import call_of
from penstock.queue.cells import Cell, Status
from penstock.queue.census import Tally
from penstock.queue.crew import crew_of
from penstock.queue.hand import Hand
from penstock.queue.look import Shown, partition_seen
from penstock.queue.message import Batch, Message
from penstock.queue.pile import Manner, MessagePile, Seat
from penstock.queue.records import Acked, QueueFounded, Released, Taken
from penstock.queue.retry import RetryRules
from penstock.queue.state import QueueMachine
from penstock.queue.times import Times, Worked
from penstock.values import Bounds


def told_by(times: Times) -> list[Event]:
    found: list[Event] = []
    with subscribed(found.append):
        times.report()
    return found


def worked(of: Hand, *noted: int) -> Worked:
    return Worked(of, of.stretches, *noted)


def test_a_run_of_messages_is_told_as_often_as_there_were_with_their_mean() -> None:
    times = Times("orders")
    now_ms, wall_ms = time.monotonic_ns() // 1_000_000, time.time_ns() // 1_000_000
    times.note(worked(hand(values(*[b""] * 10)), 3, 4, 4, now_ms - 2_000, now_ms - 1_000))

    [returned, begun] = told_by(times)

    assert (returned.count, returned.seconds) == (4, 0.25)  # type: ignore[attr-defined]
    assert isinstance(begun, MessagesBegun)
    # The records of these tests were written a second after 1970 began, and their offset in ms.
    assert begun.count == 4
    assert abs(begun.seconds - (wall_ms - 2_000 - 1_003) / 1_000) < 1


def test_who_waited_for_a_retry_was_not_due_before() -> None:
    times = Times("orders")
    now_ms, wall_ms = time.monotonic_ns() // 1_000_000, time.time_ns() // 1_000_000
    waited = Cell(Status.WAITING, charges=1, due_ms=wall_ms - 5_000)
    times.note(worked(hand(values(b"")), 0, 1, 1, now_ms, now_ms))
    times.note(worked(hand(values(b""), cell=waited), 0, 1, 1, now_ms, now_ms))

    first, second = [event.seconds for event in told_by(times) if isinstance(event, MessagesBegun)]
    assert first > 10**9
    assert 4 < second < 6


def test_how_long_a_message_waited_is_told_also_if_its_hand_lets_go_of_it_as_soon_as_it_is_acked() -> None:
    times, ours = Times("orders"), hand(values(b"", b""))

    def let_go(*_: object) -> None:
        ours.stretches = ()

    seat: Seat[Message] = Seat(let_go, times.note)
    seat.ack(ours, 0, 1)
    seat.flush()

    assert [type(event) for event in told_by(times)] == [HandlersReturned, MessagesBegun]


def test_what_nobody_listens_to_is_not_kept() -> None:
    times = Times("orders")
    times.note(worked(hand(values(b"")), 0, 1, 1, 0, 0))
    times.report()

    assert told_by(times) == []


def test_every_call_of_a_handler_is_measured_whether_it_fails_or_not() -> None:
    done = threading.Semaphore(0)
    told: list[object] = []

    def handle(message: Message) -> None:
        if message.offset % 3 == 0:
            raise ValueError

    def handle_many(messages: Batch) -> None:
        if len(messages) < 4:
            raise ValueError

    def tell(*given: object) -> None:
        told.append(given)
        done.release()

    ways = {"tell": tell, "is_good": lambda _: True, "note_progress": None}
    for function, batch, calls in ((handle, None, 10), (handle_many, 4, 3)):
        call = call_of(function, batch=batch)
        manner = Manner(queue="orders", rules=RetryRules(attempts_max=3), decode=call.decode)
        pile = MessagePile(manner, **ways) if batch is None else BatchPile(manner, batch_max=batch, **ways)
        crew = crew_of(call, pile, concurrency=1)
        found: list[Event] = []
        crew.give(hand(values(*[b""] * 10)))
        with subscribed(found.append):
            deadline_s = time.monotonic() + 60
            while sum(event.count for event in found if isinstance(event, HandlersReturned)) < calls:
                assert time.monotonic() < deadline_s
                done.acquire(timeout=0.1)
                crew.look()
        crew.close()

        assert sum(event.count for event in found if isinstance(event, HandlersReturned)) == calls
        assert sum(event.count for event in found if isinstance(event, MessagesBegun)) == 10


def test_counting_in_small_steps_comes_to_the_same() -> None:
    fold = Fold(QueueMachine())
    records = [QueueFounded(1, "t", 0, ("*",)), Taken("w", 1, ((0, 5_000),), 60_000)]
    records.append(Acked(1, tuple((n, n + 1) for n in range(0, 3_000, 2))))
    records.append(Released(1, tuple((n, n + 1) for n in range(1, 1_000, 2)), 60_000, True))
    for offset, record in enumerate(records):
        fold.feed(offset, 1_000, encode(record))
    bounds = Bounds(0, 6_000, 6_000)

    tally, steps = Tally({0: (0, 6_000)}, width=7), 0
    while tally.left:
        tally.go_on(0, fold.machine, 2_000)
        steps += 1

    seen = partition_seen(0, fold, bounds, 2_000)
    assert steps > 3
    assert tally.counts | {Shown.FINISHED: 0} == dict(seen.counts) | {Shown.FINISHED: 0}
    assert seen.counts[Shown.WAITING] == 500
    assert tally.firsts == {0: seen.first}
