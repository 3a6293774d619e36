"""Where a slot lives is part of the protocol: bytes written by hand, hashes computed from them once."""

from __future__ import annotations

from collections import Counter

import pytest
import xxhash

from penstock.claims.placement import check_partitions, coordination_topic, genesis, partition_of
from penstock.claims.records import ClaimsFounded, Slot
from penstock.errors import Refused
from penstock.settings import ClaimsSettings, Settings
from penstock.values import duration

GOLDEN = [
    (Slot("g", "t", 0), "93 a1 67 a1 74 00", 0x096B7E825A2B52AF),
    (Slot("shop", "orders", 7), "93 a4 73686f70 a6 6f7264657273 07", 0x8B7DAA720AFB52CA),
    (Slot("shop", "orders", 200), "93 a4 73686f70 a6 6f7264657273 cc c8", 0x84BFC7A830C9EF04),
    (Slot("shop", "orders", 70_000), "93 a4 73686f70 a6 6f7264657273 ce 00011170", 0x014DDC20E7A61AB6),
    (Slot("jobs", "nightly-report"), "92 a4 6a6f6273 ae 6e696768746c792d7265706f7274", 0xFC141DD5623B92AF),
    (Slot("jobs", "größe"), "92 a4 6a6f6273 a7 6772c3b6c39f65", 0x3EA446B992D67ADE),
]


@pytest.mark.parametrize(("slot", "written", "hashed"), GOLDEN, ids=lambda value: str(value))
def test_a_slot_lives_where_the_golden_vectors_say(slot: Slot, written: str, hashed: int) -> None:
    assert xxhash.xxh3_64_intdigest(bytes.fromhex(written)) == hashed

    assert [partition_of(slot, partitions) for partitions in (1, 8, 10_000)] == [0, hashed % 8, hashed % 10_000]


def test_a_lock_is_not_the_partition_zero_of_a_topic_of_its_name() -> None:
    assert partition_of(Slot("g", "t"), 10_000) != partition_of(Slot("g", "t", 0), 10_000)


def test_the_partitions_of_one_topic_are_spread() -> None:
    count = Counter(partition_of(Slot("shop", "orders", number), 8) for number in range(800))

    assert set(count) == set(range(8))
    assert max(count.values()) < 2 * min(count.values())


def test_the_genesis_holds_what_members_must_agree_on() -> None:
    settings = ClaimsSettings(
        partitions=3, heartbeat=duration("1m"), window=7, delivery_limit=2, topic="x", snapshot_every=9
    )

    assert genesis(settings) == ClaimsFounded(partitions=3, heartbeat_ms=60_000, window=7, delivery_limit=2)


def test_the_prefix_stands_before_the_coordination_topic() -> None:
    assert coordination_topic(Settings(topic_prefix="eu.")) == "eu.penstock.claims"
    assert coordination_topic(Settings(claims=ClaimsSettings(topic="who"))) == "who"


def test_another_number_of_partitions_is_refused_with_the_setting_that_mends_it() -> None:
    check_partitions("c", 8, ClaimsSettings())

    with pytest.raises(Refused, match=r"c has 4 partitions.*PENSTOCK_CLAIMS_PARTITIONS=4") as refused:
        check_partitions("c", 4, ClaimsSettings())
    assert refused.value.exit_code == 6
