"""A coordination log of 200,000 records on a real broker, opened with and without a snapshot."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice

from long_claims_log import long_log
from real_kafka import unique

from penstock.broker import Embedded
from penstock.claims.state import Claims
from penstock.ledger.kafka_log import open_ledger
from penstock.ledger.tail import Tail, monotonic_ms, read_to_end
from penstock.ledger.topics import make_ledger
from penstock.settings import KafkaSettings

RECORDS, SNAPSHOT_AT = 200_000, 150_000


@contextmanager
def opened(kafka: KafkaSettings, ledger: str, *, snapshot_every: int = 10**9) -> Iterator[Tail[Claims]]:
    log, snapshots = open_ledger(kafka, ledger)
    tail = Tail(
        log,
        snapshots,
        machine=Claims,
        instance=unique("reader"),
        monotonic_ms=monotonic_ms,
        fresh_ms=1_000,
        snapshot_every=snapshot_every,
    )
    try:
        tail.follow([0])
        yield tail
    finally:
        tail.close()


def test_a_long_log_with_a_snapshot_opens_to_the_same_hash_as_its_full_replay(penstock_broker: Embedded) -> None:
    kafka = KafkaSettings(bootstrap_servers=penstock_broker.bootstrap)
    ledger = unique("claims")
    make_ledger(kafka, ledger, partitions=1)
    values = long_log(RECORDS)

    with opened(kafka, ledger, snapshot_every=SNAPSHOT_AT) as full:
        for wanted in (SNAPSHOT_AT, RECORDS):
            for value in islice(values, wanted - full.fold(0).next_offset):
                full.log.append(0, value)
            full.log.flush(120_000)
            full.ask_ends()
            read_to_end(full, [0])
            assert full.fold(0).next_offset == wanted
            full.keep_snapshots()  # due at the first stop only

        with opened(kafka, ledger) as late:
            assert late.fold(0).next_offset == SNAPSHOT_AT
            read_to_end(late, [0])
            assert late.fold(0).next_offset == RECORDS
            assert late.fold(0).hash() == full.fold(0).hash()
            assert late.fold(0).junk_count > 0
