"""A coordination log of 200,000 records, opened with and without a snapshot."""

from __future__ import annotations

from itertools import count

from long_claims_log import long_log

from penstock.claims.state import Claims
from penstock.ledger.machine import Fold
from penstock.ledger.memory_log import MemoryBroker
from penstock.ledger.snapshot import Snapshots
from penstock.ledger.tail import Tail, read_to_end

RECORDS, SNAPSHOT_AT = 200_000, 150_000


def opened(broker: MemoryBroker) -> Tail[Claims]:
    tail = Tail(
        broker.log("claims"),
        Snapshots(broker.log("claims.snapshots")),
        machine=Claims,
        instance="reader",
        monotonic_ms=lambda: 0,
        fresh_ms=1_000,
        snapshot_every=10**9,
    )
    tail.follow([0])
    return tail


def test_a_long_log_with_a_snapshot_opens_to_the_same_hash_as_its_full_replay() -> None:
    clock = count(1_000_000)
    broker = MemoryBroker(now_ms=lambda: next(clock))
    broker.create("claims", 1)
    broker.create("claims.snapshots", 1)
    for value in long_log(RECORDS):
        broker.append("claims", 0, value, None)
    full = Fold(Claims())
    accepted = 0
    for entry in broker.partitions("claims")[0].history():
        accepted += full.feed(entry.offset, entry.time_ms, entry.value).verdict.is_accepted
        if entry.offset == SNAPSHOT_AT - 1:
            Snapshots(broker.log("claims.snapshots")).write(0, entry.offset, full.dump(), writer="w")
            hash_then = full.hash()

    for is_cut in (False, True):
        if is_cut:
            broker.cut("claims", 0, SNAPSHOT_AT)
        tail = opened(broker)
        assert tail.fold(0).next_offset == SNAPSHOT_AT
        assert tail.fold(0).hash() == hash_then
        read_to_end(tail, [0])
        assert tail.fold(0).next_offset == RECORDS
        assert tail.fold(0).hash() == full.hash() != hash_then

    assert RECORDS // 4 < accepted < RECORDS, "both verdicts are in it"
