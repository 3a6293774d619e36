"""Where messages go: Java's hash, and turns."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.queue.partitioning import Turns, murmur2, partition_of


@pytest.mark.parametrize(
    ("key", "signed"),
    [
        # The values that Apache Kafka's own tests expect of it.
        (b"21", -973932308),
        (b"foobar", -790332482),
        (b"a-little-bit-long-string", -985981536),
        (b"a-little-bit-longer-string", -1486304829),
        (b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58897971),
        (b"abc", 479470107),
        (b"", 275646681),
    ],
)
def test_the_hash_is_that_of_java(key: bytes, signed: int) -> None:
    assert murmur2(key) == signed % 2**32


def test_the_sign_is_cut_off_before_the_partition_is_reckoned() -> None:
    assert partition_of(b"foobar", 100) == (-790332482 & 0x7FFFFFFF) % 100


@given(st.binary(max_size=40), st.integers(1, 1_000))
def test_a_key_has_one_partition_and_it_exists(key: bytes, partitions: int) -> None:
    assert 0 <= partition_of(key, partitions) < partitions
    assert partition_of(key, partitions) == partition_of(bytes(bytearray(key)), partitions)


@given(st.integers(1, 20), st.lists(st.integers(0, 30), max_size=20), st.integers(0, 2**32))
def test_in_turn_no_partition_ever_has_two_more_than_another(partitions: int, counts: list[int], first: int) -> None:
    turns = Turns(first)
    got: Counter[int] = Counter(dict.fromkeys(range(partitions), 0))
    for count in counts:
        begin = turns.take(count, partitions)
        got.update((begin + number) % partitions for number in range(count))

        assert max(got.values()) - min(got.values()) <= 1


def test_many_senders_of_one_message_do_not_all_begin_at_the_same_partition() -> None:
    assert len({Turns().take(1, 8) for _ in range(200)}) == 8
