"""The ledger on real brokers: restarts, kills, wrong topics, and what a second process sees."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from penstock.broker import Embedded
from penstock.errors import Halted, NotFound, Refused, TransientError, UsageError
from penstock.kafka.topics import Admin, TopicSpec
from penstock.ledger.codec import encode, enveloped
from penstock.ledger.counter import Counter, CounterAdded, CounterFounded, CounterTaken
from penstock.ledger.kafka_log import KafkaLog, open_ledger
from penstock.ledger.operator import reset_clock
from penstock.ledger.tail import Tail, Ticket, monotonic_ms, read_to_end
from penstock.ledger.topics import ledger_topics, make_ledger
from penstock.settings import KafkaSettings, Settings

LEASE_MS = 600_000


@pytest.fixture
def kafka(penstock_broker: Embedded) -> KafkaSettings:
    return KafkaSettings(bootstrap_servers=penstock_broker.bootstrap)


def new_ledger(settings: KafkaSettings) -> str:
    name = f"ledger-{uuid.uuid4().hex[:8]}"
    make_ledger(settings, name, partitions=1)
    return name


@contextmanager
def opened(settings: KafkaSettings, ledger: str, *, snapshot_every: int = 10**9) -> Iterator[Tail[Counter]]:
    log, snapshots = open_ledger(settings, ledger)
    tail = Tail(
        log,
        snapshots,
        machine=Counter,
        instance=uuid.uuid4().hex[:8],
        monotonic_ms=monotonic_ms,
        fresh_ms=1_000,
        snapshot_every=snapshot_every,
    )
    try:
        tail.follow([0])
        yield tail
    finally:
        tail.close()


def until(is_so: Callable[[], bool], step: Callable[[], object], *, within_s: float = 60) -> None:
    deadline = time.monotonic() + within_s
    while not is_so():
        assert time.monotonic() < deadline, f"waited for {within_s} s in vain"
        step()


def read_back(tail: Tail[Counter], tickets: list[Ticket], *, within_s: float = 60) -> None:
    def step() -> None:
        with suppress(TransientError):  # the broker is away; it comes back
            tail.step(200)

    until(lambda: all(ticket.verdict is not None for ticket in tickets), step, within_s=within_s)


def counted(tail: Tail[Counter], count: int, *, start: int = 0) -> list[Ticket]:
    return [tail.append(0, CounterAdded(1, number)) for number in range(start, start + count)]


def founded(tail: Tail[Counter]) -> None:
    read_back(tail, [tail.append(0, CounterFounded(LEASE_MS)), tail.append(0, CounterTaken("test"))])


def test_two_processes_come_to_the_same_state_and_a_snapshot_changes_nothing(kafka: KafkaSettings) -> None:
    ledger = new_ledger(kafka)
    with opened(kafka, ledger, snapshot_every=100) as writer:
        founded(writer)
        for start in range(0, 500, 50):
            read_back(writer, counted(writer, 50, start=start))
            writer.keep_snapshots()

        with opened(kafka, ledger) as reader:
            assert reader.log.bounds([0])[0].start > 0, "the log was not cut"
            assert reader.fold(0).next_offset > 0, "it did not start from a snapshot"
            read_to_end(reader, [0])
            assert reader.fold(0).machine.total == 500
            assert reader.fold(0).hash() == writer.fold(0).hash()


def test_a_snapshot_of_several_parts_is_written_and_read(kafka: KafkaSettings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.ledger.snapshot.PART_BYTES_MAX", 16)
    ledger = new_ledger(kafka)
    with opened(kafka, ledger, snapshot_every=1) as writer:
        founded(writer)
        writer.keep_snapshots()
        with opened(kafka, ledger) as reader:
            assert reader.fold(0).next_offset == 2
            assert reader.fold(0).hash() == writer.fold(0).hash()


def test_a_reader_that_falls_behind_a_cut_rebuilds(kafka: KafkaSettings) -> None:
    ledger = new_ledger(kafka)
    with opened(kafka, ledger) as slow, opened(kafka, ledger, snapshot_every=100) as writer:
        founded(writer)
        read_to_end(slow, [0])
        slow.log.assign({})  # it reads nothing while the others go on
        for start in range(0, 400, 100):
            read_back(writer, counted(writer, 100, start=start))
            writer.keep_snapshots()

        slow._assign()  # wakes where it was, below the log start
        until(lambda: slow.fold(0).machine.total == 400, lambda: slow.step(200))
        assert slow.fold(0).hash() == writer.fold(0).hash()


def test_a_broker_that_restarts_loses_nothing_and_every_client_goes_on(tmp_path: Path) -> None:
    with Embedded(data=tmp_path / "kafka") as broker:
        kafka = KafkaSettings(bootstrap_servers=broker.bootstrap)
        ledger = new_ledger(kafka)
        with opened(kafka, ledger, snapshot_every=10) as tail:
            founded(tail)
            before = counted(tail, 2_000)
            broker.kill(1)
            during = counted(tail, 2_000, start=2_000)
            broker.start(1)
            read_back(tail, [*before, *during])

            assert tail.fold(0).machine.total == 4_000
            assert len({ticket.offset for ticket in (*before, *during)}) == 4_000
            # The snapshots' clients were idle meanwhile: what they remember of the leader is out of date.
            tail.keep_snapshots()
            with opened(kafka, ledger) as reader:
                read_to_end(reader, [0])
                assert reader.fold(0).hash() == tail.fold(0).hash()


def test_a_leader_that_is_killed_under_load_loses_nothing_with_three_brokers() -> None:
    with Embedded(brokers=3) as cluster:
        kafka = KafkaSettings(bootstrap_servers=cluster.bootstrap)
        ledger = new_ledger(kafka)
        with opened(kafka, ledger) as tail, Admin(kafka) as admin:
            founded(tail)
            info = admin.describe([ledger])[ledger]
            assert (info.replication, info.config["min.insync.replicas"]) == (3, "2")
            tickets = counted(tail, 3_000)
            cluster.kill(1)
            tickets += counted(tail, 3_000, start=3_000)
            read_back(tail, tickets)
            assert tail.fold(0).machine.total == 6_000


def test_a_newer_version_in_the_log_halts_with_what_to_do(kafka: KafkaSettings) -> None:
    ledger = new_ledger(kafka)
    with opened(kafka, ledger) as tail:
        founded(tail)
        tail.log.append(0, enveloped(b"from the future", version=7))
        until(lambda: tail.fold(0).halt is not None, lambda: tail.step(200))

        with pytest.raises(Halted, match="protocol version 7"):
            tail.checked_fold(0)


def test_junk_in_the_log_is_passed_over(kafka: KafkaSettings) -> None:
    ledger = new_ledger(kafka)
    with opened(kafka, ledger) as tail:
        for junk in (b"", None, b"\x00" * 50, b"Ps\x01broken", encode(CounterTaken("x"))[:-2]):
            tail.log.append(0, junk)
        founded(tail)

        assert tail.fold(0).junk_count == 5
        assert tail.fold(0).machine.holder == "test"


def test_an_operator_resets_the_clock(kafka: KafkaSettings) -> None:
    ledger = new_ledger(kafka)
    reset_clock(Settings(kafka=kafka), ledger, by="test")

    log = KafkaLog(kafka, ledger)
    log.assign({0: 0})
    entries = []
    until(lambda: bool(entries), lambda: entries.extend(log.read(10, 200)))
    log.close()
    assert b"clock_reset" in (entries[0].value or b"")


def test_a_missing_ledger_is_named_with_the_command_that_makes_it(kafka: KafkaSettings) -> None:
    with pytest.raises(NotFound, match=r"there is no topic no-such-ledger; .*penstock topics apply"):
        open_ledger(kafka, "no-such-ledger")


@pytest.mark.parametrize(
    ("setting", "value"),
    [("message.timestamp.type", "CreateTime"), ("cleanup.policy", "compact"), ("retention.ms", "1000")],
)
def test_a_ledger_topic_with_a_wrong_setting_is_refused(kafka: KafkaSettings, setting: str, value: str) -> None:
    name = f"wrong-{uuid.uuid4().hex[:8]}"
    facts, snapshots = ledger_topics(name, 1)
    wrong = TopicSpec(name=name, partitions=1, config={**facts.config, setting: value}, reason="a test")
    with Admin(kafka) as admin:
        admin.create([wrong, snapshots])

    with pytest.raises(Refused, match=rf"{setting}={value} \(must be .*penstock doctor --fix"):
        open_ledger(kafka, name)


def test_a_message_that_is_too_large_is_refused_at_once(kafka: KafkaSettings) -> None:
    ledger = new_ledger(kafka)
    with opened(kafka, ledger) as tail, pytest.raises(UsageError, match="20000000 bytes"):
        tail.log.append(0, b"x" * 20_000_000)
