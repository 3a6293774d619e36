"""The log clock of a ledger, found without knowing its machine."""

from __future__ import annotations

from penstock.doctor.clocks import ClockOnly, log_clock
from penstock.ledger.codec import encode
from penstock.ledger.machine import ClockReset, Fold
from penstock.ledger.memory_log import MemoryBroker
from penstock.ledger.snapshot import Snapshots

FUTURE_MS = 10**12


class Ledger:
    """A ledger in memory whose broker's clock is set by hand."""

    def __init__(self) -> None:
        self.now_ms = 1_000
        self.broker = MemoryBroker(now_ms=lambda: self.now_ms)
        self.broker.create("facts", 1)
        self.broker.create("facts.snapshots", 1)

    def append(self, at_ms: int, value: bytes | None = b"whatever") -> None:
        self.now_ms = at_ms
        self.broker.append("facts", 0, value, None)

    def clock(self, *, time_is_up: bool = False) -> tuple[int, bool]:
        snapshots = Snapshots(self.broker.log("facts.snapshots"))
        return log_clock(self.broker.log("facts"), snapshots, 0, is_time_up=lambda: time_is_up)


def test_an_empty_ledger_has_no_time_yet() -> None:
    assert Ledger().clock() == (0, True)


def test_one_append_in_the_future_freezes_the_clock_although_the_newest_record_is_fine() -> None:
    ledger = Ledger()
    for at_ms in (1_000, FUTURE_MS, 2_000, 3_000):
        ledger.append(at_ms)

    assert ledger.clock() == (FUTURE_MS, True)


def test_a_clock_reset_mends_it() -> None:
    ledger = Ledger()
    ledger.append(FUTURE_MS)
    ledger.append(2_000, encode(ClockReset(by="somebody")))
    ledger.append(2_500)

    assert ledger.clock() == (2_500, True)


def test_the_clock_of_a_snapshot_counts_when_the_record_that_froze_it_was_cut_away() -> None:
    ledger = Ledger()
    ledger.append(FUTURE_MS)
    ledger.append(2_000)
    fold = Fold(ClockOnly())
    for entry in ledger.broker.partitions("facts")[0].history():
        fold.feed(entry.offset, entry.time_ms, entry.value)
    Snapshots(ledger.broker.log("facts.snapshots")).write(0, 1, fold.dump(), writer="w")
    ledger.broker.log("facts").cut(0, 2)
    ledger.append(3_000)

    assert ledger.clock() == (FUTURE_MS, True)


def test_a_ledger_that_is_too_long_is_told_as_not_read_whole() -> None:
    ledger = Ledger()
    ledger.append(1_500)

    assert ledger.clock(time_is_up=True) == (0, False)
