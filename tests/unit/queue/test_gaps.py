from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from penstock.queue.desk import Desk
from penstock.queue.gaps import Gaps, unfinished
from penstock.queue.ranges import Range, Ranges, joined, outside, width
from penstock.queue.records import Acked, Buried, QueueFounded, Released, Taken
from penstock.queue.state import QueueMachine


def machine_of(*records: object) -> QueueMachine:
    machine = QueueMachine()
    for offset, record in enumerate((QueueFounded(1, "t", 0, ("*",)), *records)):
        machine.apply(record, offset, 1_000)
    return machine


def due(gaps: Gaps, machine: QueueMachine, log_ms: int, count_max: int) -> Ranges:
    """All that is due, after a look at what is said of it."""
    found = gaps.due(machine, log_ms, count_max)
    assert all(machine.cells.only(*part) == cell for cell, ranges in found for part in ranges)
    parts = sorted(part for _, ranges in found for part in ranges)
    assert width(parts) == width(joined(parts)), "each once"
    return joined(parts)


def test_what_was_given_back_uncounted_at_the_end_is_found_again() -> None:
    machine = machine_of(Taken("w", 1, ((0, 10),), 1_000), Released(1, ((8, 10),)))
    gaps = Gaps()

    assert gaps.scan(machine, 10, without=()) == 10
    assert due(gaps, machine, 1_500, 100) == ((8, 10),)


def test_what_waits_is_due_when_its_time_has_come() -> None:
    machine = machine_of(Taken("w", 1, ((0, 4),), 1_000), Released(1, ((1, 2),), 500, True), Acked(1, ((3, 4),)))
    gaps = Gaps()
    gaps.scan(machine, 0, without=())

    assert due(gaps, machine, 1_400, 100) == ()
    assert due(gaps, machine, 1_500, 100) == ((1, 2),)


def test_what_was_released_together_is_due_together() -> None:
    together = ((1, 2), (4, 5))
    machine = machine_of(Taken("w", 1, ((0, 6),), 1_000), Released(1, together, 500, True), Released(1, ((2, 4),)))
    gaps = Gaps()
    for ranges in (together, ((2, 4),), ()):
        gaps.note_released(machine, ranges)

    assert len(gaps) == 3
    assert due(gaps, machine, 1_400, 100) == ((2, 4),)
    assert [ranges for _, ranges in gaps.due(machine, 1_500, 100)] == [together]
    assert len(gaps) == 0


def test_at_most_so_many_are_taken_out_and_the_rest_stays() -> None:
    machine = machine_of(Taken("w", 1, ((0, 10),), 1_000), Released(1, ((0, 9),)))
    gaps = Gaps()
    gaps.scan(machine, 10, without=((2, 4),))

    assert due(gaps, machine, 1_000, 3) == ((0, 2), (4, 5))
    assert due(gaps, machine, 1_000, 100) == ((5, 9),)


def test_what_is_over_the_limit_stays_also_of_those_that_wait_otherwise() -> None:
    machine = machine_of(
        Taken("w", 1, ((0, 6),), 1_000), Released(1, ((0, 3),)), Released(1, ((3, 6),), delay_ms=100, counts=True)
    )
    gaps = Gaps()
    gaps.add([(0, 6)])

    assert [due(gaps, machine, 1_500, 2) for _ in range(4)] == [((0, 2),), ((2, 4),), ((4, 6),), ()]


states = st.lists(st.sampled_from(["ready", "waiting", "later", "leased", "acked"]), min_size=1, max_size=12)


@given(states, st.data())
def test_all_that_is_due_comes_out_once_in_portions_and_nothing_else(
    given_states: list[str], data: st.DataObject
) -> None:
    machine = machine_of(Taken("w", 1, ((0, len(given_states)),), 10_000))
    places: dict[str, list[Range]] = {}
    for offset, state in enumerate(given_states):
        places.setdefault(state, []).append((offset, offset + 1))
    records = {
        "ready": lambda ranges: Released(1, ranges),
        "waiting": lambda ranges: Released(1, ranges, 100, True),
        "later": lambda ranges: Released(1, ranges, 5_000, True),
        "acked": lambda ranges: Acked(1, ranges),
    }
    for number, (state, record) in enumerate(records.items()):
        if state in places:
            machine.apply(record(joined(places[state])), 10 + number, 1_000)
    gaps = Gaps()
    cuts = data.draw(st.lists(st.integers(1, len(given_states)), unique=True, max_size=2).map(sorted))
    for start, end in pairwise([0, *(cut for cut in cuts if cut < len(given_states)), len(given_states)]):
        data.draw(st.sampled_from([gaps.add, lambda ranges: gaps.note(machine, ranges)]))(((start, end),))

    found: list[int] = []
    for _ in range(len(given_states) + 1):
        count_max = data.draw(st.integers(1, 4))
        offsets = [offset for start, end in due(gaps, machine, 1_500, count_max) for offset in range(start, end)]
        assert len(offsets) <= count_max
        found += offsets

    assert sorted(found) == [n for n, state in enumerate(given_states) if state in ("ready", "waiting")]
    later = [offset for start, end in due(gaps, machine, 7_000, 100) for offset in range(start, end)]
    assert later == [n for n, state in enumerate(given_states) if state == "later"]
    assert len(gaps) == 0


def test_a_gap_that_is_finished_by_now_is_not_read_again() -> None:
    machine = machine_of(Taken("w", 1, ((0, 4),), 1_000))
    gaps = Gaps()
    gaps.add([(0, 4)])
    machine.apply(Acked(1, ((0, 4),)), 2, 1_000)

    assert due(gaps, machine, 1_000, 10) == ()


def test_unfinished_is_all_that_a_later_message_may_have_to_wait_for() -> None:
    machine = machine_of(Taken("w", 1, ((0, 6),), 1_000), Acked(1, ((1, 2),)), Buried(1, ((3, 4),)))

    assert unfinished(machine, 6) == [(0, 1), (2, 3), (4, 6)]
    assert unfinished(machine, 0) == []


def test_outside_is_what_is_left() -> None:
    assert outside((0, 10), ((2, 3), (5, 20))) == [(0, 2), (3, 5)]
    assert outside((0, 10), ((0, 10),)) == []


def test_a_log_clock_that_jumps_ahead_lets_nothing_of_others_be_asked_for() -> None:
    machine = machine_of(Taken("other", 1, ((0, 4),), 3_000))
    desk = Desk(0)
    desk.watch_clock(1_000, 0, 3_000)
    desk.open(machine, None)
    desk.watch_clock(60_000, 10, 3_000)
    desk.note_expired(machine, 20)
    assert len(desk.gaps) == 0

    desk.watch_clock(63_020, 3_030, 3_000)
    desk.note_expired(machine, 3_030)
    assert due(desk.gaps, machine, desk.log_ms(3_030), 10) == ((0, 4),)
