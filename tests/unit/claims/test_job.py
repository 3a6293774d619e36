"""When a job is due: values in, values out; and on the coordination machine, through deaths at every point."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.claims.job import period_at, remaining_ms
from penstock.claims.lock import Seen
from penstock.claims.records import Beat, Claimed, ClaimReleased, ClaimsFounded, Heartbeat, Slot
from penstock.claims.state import Claims

HOUR = 3_600_000


def test_periods_begin_on_the_hour() -> None:
    assert period_at(10 * HOUR, HOUR) == 10 * HOUR
    assert period_at(11 * HOUR - 1, HOUR) == 10 * HOUR


def test_a_job_that_nobody_ever_ran_is_due() -> None:
    assert remaining_ms(Seen(None, 10 * HOUR)) == 0


def test_a_job_is_due_when_the_log_clock_has_reached_its_position() -> None:
    assert remaining_ms(Seen(11 * HOUR, 11 * HOUR - 1)) == 1
    assert remaining_ms(Seen(11 * HOUR, 11 * HOUR)) == 0
    assert remaining_ms(Seen(11 * HOUR, 20 * HOUR)) == 0


@given(clocks=st.lists(st.integers(0, 40), max_size=30), every_ms=st.sampled_from([1, 3, 7, 10]))
def test_each_period_is_run_at_most_once_and_the_position_always_moves_on(clocks: list[int], every_ms: int) -> None:
    position: int | None = None
    runs: list[int] = []
    for clock_ms in sorted(clocks):
        if remaining_ms(Seen(position, clock_ms)) == 0:
            begins_ms = period_at(clock_ms, every_ms)
            runs.append(begins_ms)
            assert position is None or begins_ms + every_ms > position
            position = begins_ms + every_ms

    assert runs == sorted({period_at(clock_ms, every_ms) for clock_ms in clocks})


@given(clocks=st.lists(st.tuples(st.integers(0, 200), st.sampled_from([1, 7, 30])), max_size=30))
def test_when_the_period_is_changed_the_job_still_goes_on_within_the_longer_of_both(
    clocks: list[tuple[int, int]],
) -> None:
    position: int | None = None
    for clock_ms, every_ms in sorted(clocks):
        left_ms = remaining_ms(Seen(position, clock_ms))
        assert left_ms <= 30
        if left_ms == 0:
            position = period_at(clock_ms, every_ms) + every_ms


# On the machine: two processes, every order of their steps, every place to die

SLOT = Slot("jobs", "report")
HB = 10
EVERY = 1_000


@dataclass
class World:
    """A coordination log and what was run; its clock stays within one period."""

    machine: Claims = field(default_factory=Claims)
    offset: int = 0
    clock_ms: int = 5 * EVERY
    runs: Counter[int] = field(default_factory=Counter)

    def append(self, record: object) -> bool:
        self.offset += 1
        return self.machine.apply(record, self.offset, self.clock_ms).is_accepted

    def seen(self) -> Seen:
        return Seen(self.machine.slot(SLOT).position, self.clock_ms)


def process(world: World, client: str, moves_first: bool) -> Iterator[None]:
    """A process with the job, step by step: it may die, or sleep beyond its lease, wherever it yields."""
    while not world.append(Claimed(SLOT, client, "i")):
        yield
    epoch = world.machine.slot(SLOT).epoch
    yield
    if remaining_ms(world.seen()) == 0:
        begins_ms = period_at(world.clock_ms, EVERY)
        beat = Heartbeat(client, "i", (Beat(SLOT, epoch, begins_ms + EVERY),))
        yield
        if moves_first and not world.append(beat):
            return
        yield
        world.runs[begins_ms] += 1
        yield
        if not moves_first and not world.append(beat):
            return
        yield
    world.append(ClaimReleased(SLOT, client, "i", epoch, world.machine.slot(SLOT).position))


def all_runs(moves_first: bool) -> Counter[int]:
    """How often the period was run, in every interleaving of two processes with a lease running out somewhere."""
    outcomes: Counter[int] = Counter()
    for order in product("ab-", repeat=9):
        world = World()
        world.append(ClaimsFounded(partitions=1, heartbeat_ms=HB, window=1, delivery_limit=1))
        processes = {client: process(world, client, moves_first) for client in "ab"}
        for step in order:
            if step == "-":
                world.clock_ms += 2 * HB  # whoever had the lock has it no more, if somebody else asks
            else:
                next(processes[step], None)
        outcomes[world.runs[5 * EVERY]] += 1
    return outcomes


def test_at_most_once_no_order_and_no_death_runs_a_period_twice() -> None:
    outcomes = all_runs(moves_first=True)

    assert max(outcomes) == 1
    assert min(outcomes.values()) > 100, "the search reached both: run, and lost"


def test_at_least_once_a_period_can_be_run_twice_so_the_law_above_can_fail() -> None:
    assert all_runs(moves_first=False)[2] > 0


@pytest.mark.parametrize("moves_first", [True, False])
def test_undisturbed_both_run_it_once(moves_first: bool) -> None:
    world = World()
    world.append(ClaimsFounded(partitions=1, heartbeat_ms=HB, window=1, delivery_limit=1))
    for client in "ab":
        for _ in process(world, client, moves_first):
            pass

    assert world.runs == {5 * EVERY: 1}
    assert world.machine.slot(SLOT).position == 6 * EVERY
