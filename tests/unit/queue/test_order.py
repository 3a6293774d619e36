"""Order by key, without a broker: who waits for whom, and a model that is run at random."""

from __future__ import annotations

import random
from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st
from queue_records import Record, offsets, stretch

from penstock.queue.order import KeyOrder, Shelf, chains
from penstock.queue.ranges import Range
from penstock.queue.stretch import Stretch, row


def new_order(*, held_max: int = 100, chain_max: int = 100, held_max_bytes: int = 10**6) -> KeyOrder:
    return KeyOrder(Shelf(held_max, held_max_bytes), chain_max=chain_max, chain_max_bytes=10**6)


def order_of(keys: list[str | None], **bounds: int) -> tuple[KeyOrder, Stretch]:
    order, read = new_order(**bounds), stretch(keys)
    for record in read.records:
        order.learn(record)
    return order, read


def parts(read: Stretch, *numbers: int) -> list[Stretch]:
    return [row([read.records[number]], number) for number in numbers]


def test_a_chain_may_be_asked_for_together() -> None:
    order, read = order_of(["a", "b", "a", None, "a"])

    assert offsets(order.choose([read])) == [0, 1, 2, 3, 4]


def test_a_later_message_waits_while_an_earlier_one_is_elsewhere() -> None:
    order, read = order_of(["a", "b", "a", None, "a"])

    assert offsets(order.choose(parts(read, 1, 2, 3, 4))) == [1, 3]
    assert order.freed() == ([], [])

    order.finish(0, 1)
    freed, to_read = order.freed()
    assert offsets(freed) == [2, 4]
    assert to_read == []
    assert offsets(order.choose(freed)) == [2, 4]


def test_one_that_finishes_in_the_middle_frees_nobody() -> None:
    order, read = order_of(["a", "a", "a"])
    order.choose(parts(read, 2))

    order.finish(1, 2)
    assert order.freed() == ([], [])
    order.finish(0, 1)
    assert offsets(order.freed()[0]) == [2]


def test_those_that_there_is_no_room_for_are_read_again_with_the_offsets_before_them() -> None:
    order = new_order(held_max=1, chain_max=1)
    read = row([Record(0, b"a"), Record(3, b"a"), Record(7, b"a")], 0)
    for record in read.records:
        order.learn(record)
    order.choose([row(read.records[1:], 1)])

    order.finish(0, 1)
    assert [each.ranges for each in order.freed()[0]] == [((1, 4),)]
    order.finish(1, 4)
    assert order.freed() == ([], [(4, 8)])


def test_a_chain_ends_at_its_bound_and_the_others_of_its_key_leave_the_room_to_others() -> None:
    order, read = order_of(["a", "a", "a", "a", "b", "a", "b"], chain_max=2)

    assert offsets(order.choose([read])) == [0, 1, 4, 6]
    order.finish(0, 1)
    assert order.freed() == ([], []), "the second one of the chain is not done"
    order.finish(1, 2)
    # Of one key no more are kept than go together: the last one is read again when it is its turn.
    freed, to_read = order.freed()
    assert offsets(freed) == [2, 3]
    assert to_read == []
    assert offsets(order.choose(freed)) == [2, 3]
    order.finish(2, 4)
    assert order.freed() == ([], [(5, 6)])


def test_a_chain_has_a_bound_in_bytes_too_but_its_first_message_goes_whatever_its_size() -> None:
    order = KeyOrder(Shelf(100, 10**6), chain_max=100, chain_max_bytes=1_000)
    read = row([Record(n, b"a", b"x" * size) for n, size in enumerate((5_000, 1, 600, 600, 600))], 0)
    for record in read.records:
        order.learn(record)

    assert offsets(order.choose([read])) == [0]
    order.finish(0, 1)
    assert offsets(order.choose(order.freed()[0])) == [1, 2, 3]


def test_what_waits_in_memory_is_bounded_in_number_and_bytes_for_all_partitions_together() -> None:
    for shelf in (Shelf(3, 10**6), Shelf(100, 1_000)):
        first, second = (KeyOrder(shelf, chain_max=100, chain_max_bytes=10**6) for _ in range(2))
        read = row([Record(n, b"a", b"x" * 300) for n in range(3)], 0)
        for order in (first, second):
            for record in read.records:
                order.learn(record)
            order.choose(parts(read, 1, 2))

        second.finish(0, 1)
        freed, to_read = second.freed()
        assert (offsets(freed), to_read) == ([1], [(2, 3)]), "there was room for three of four"
        first.clear()
        assert (shelf._count, shelf._bytes) in ((3, 10**6), (100, 1_000))


def test_what_was_granted_without_its_predecessor_is_out_of_turn() -> None:
    order, read = order_of(["a", "b", "a", "b"])

    assert order.out_of_turn(parts(read, 1, 2, 3)) == [(2, 3)]
    assert order.out_of_turn([read]) == []


def test_a_huge_range_that_finishes_costs_no_more_than_what_is_known() -> None:
    order, _ = order_of(["a", "b"])

    order.finish(0, 2**62)

    assert len(order) == 0


def test_a_message_that_is_read_later_than_its_successor_comes_before_it_all_the_same() -> None:
    order, read = new_order(), stretch(["a", "a", "a"])
    for number in (0, 2, 1, 2):
        order.learn(read.records[number])

    assert offsets(order.choose(parts(read, 2))) == []
    order.finish(0, 1)
    assert order.freed() == ([], [])
    order.finish(1, 2)
    assert offsets(order.freed()[0]) == [2]


def test_chains_of_a_lease_have_the_messages_of_a_key_in_order() -> None:
    found = chains([stretch(["a", None, "b", "a"])])

    assert [each.ranges[0] if isinstance(each, Stretch) else [part for _, part in each] for each in found] == [
        [(0, 1), (3, 4)],
        (1, 2),
        [(2, 3)],
    ]


@settings(max_examples=300)
@given(
    st.lists(st.sampled_from(["a", "b", "c", None]), min_size=1, max_size=12),
    st.integers(0, 3),
    st.integers(1, 4),
    st.integers(0, 2**32),
)
def test_whatever_happens_each_key_is_worked_off_in_order_and_nothing_is_forgotten(
    keys: list[str | None], held_max: int, chain_max: int, seed: int
) -> None:
    chance = random.Random(seed)
    shelf = Shelf(held_max, 10**6)
    order, read = KeyOrder(shelf, chain_max=chain_max, chain_max_bytes=10**6), stretch(keys)
    for record in read.records:
        order.learn(record)
    waiting = [row([record], record.offset()) for record in read.records]
    leases: list[list[Stretch]] = []
    done: list[int] = []
    while len(done) < len(keys):
        chance.shuffle(waiting)
        take = sorted(waiting[: chance.randint(0, 4)], key=lambda each: each.start)
        waiting = [each for each in waiting if each not in take]
        if chosen := order.choose(take):
            leases.append(chosen)
            in_chains = Counter(keys[offset] for offset in offsets(chosen) if keys[offset])
            assert max(in_chains.values(), default=0) <= chain_max
        assert shelf._count >= 0
        if leases and chance.random() < 0.5:
            for each in leases.pop(chance.randrange(len(leases))):
                _work_off(order, each, keys, done)
        freed, to_read = order.freed()
        waiting += freed + [_read_again(read, part) for part in to_read]

    assert sorted(done) == list(range(len(keys)))
    assert len(order) == 0
    assert (shelf._count, shelf._bytes) == (held_max, 10**6)


def _work_off(order: KeyOrder, each: Stretch, keys: list[str | None], done: list[int]) -> None:
    for record in each.records:
        key, offset = keys[record.offset()], record.offset()
        earlier = [number for number, other in enumerate(keys[:offset]) if other == key and key is not None]
        assert set(earlier) <= set(done)
        done.append(offset)
        order.finish(offset, offset + 1)


def _read_again(read: Stretch, part: Range) -> Stretch:
    return row([read.records[part[1] - 1]], part[0])
