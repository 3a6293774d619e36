"""Invariants of the claims machine on random logs: skewed times, forged epochs, duplicates, junk."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.claims.ndjson import line_of
from penstock.claims.records import (
    RECORD_TYPES,
    Beat,
    Claimed,
    ClaimReleased,
    ClaimsFounded,
    GroupPaused,
    Heartbeat,
    Intended,
    ProducersFenced,
    RangeAcked,
    RangeBuried,
    RangeClaimed,
    RangeFenced,
    RangeReleased,
    RangeRenewed,
    Slot,
)
from penstock.claims.state import Claims
from penstock.ledger.codec import Record, encode
from penstock.ledger.machine import ClockReset, Fold, Judged, Kind, VersionRaised
from penstock.testing.claims_bugs import BUGS
from penstock.testing.claims_invariants import violation
from penstock.testing.claims_view import Setting, Transition, view_of

SETTING = Setting(heartbeat_ms=5, window=12, delivery_limit=2)
FOUNDED = ClaimsFounded(1, *SETTING)
SLOTS = (Slot("g", "t", 0), Slot("g", "lock"))
PRODUCERS = ("pa", "pb", "pc")

Entry = tuple[int, bytes | None]


class Writer:
    """Draws records that mostly make sense: epochs that were granted, offsets that are held, and now and then not."""

    def __init__(self, chance: random.Random) -> None:
        self._chance = chance
        self.fold = Fold(Claims())
        self.entries: list[Entry] = []
        self._feed(0, encode(FOUNDED))

    def write(self, count: int) -> list[Entry]:
        now_ms = 0
        for _ in range(count):
            now_ms += self._chance.choice((0, 0, 1, 1, 3, 10))
            skew_ms = self._chance.choice((0, 0, 0, -7, 4))
            self._feed(max(0, now_ms + skew_ms), self._value())
        return self.entries

    def _feed(self, time_ms: int, value: bytes | None) -> None:
        self.entries.append((time_ms, value))
        self.fold.feed(self.fold.next_offset, time_ms, value)

    def _value(self) -> bytes | None:
        roll = self._chance.random()
        if roll < 0.03:
            return self._chance.choice((None, b"", b"junk", encode(Claimed(SLOTS[0], "a", "1"))[:-1]))
        if roll < 0.10 and len(self.entries) > 1:
            return self._chance.choice(self.entries)[1]  # a duplicate, or a very late one
        if roll < 0.11:
            return encode(self._chance.choice((ClockReset("ops"), VersionRaised(1, "ops"), FOUNDED)))
        return encode(self._record())

    def _record(self) -> Record:
        pick, slot = self._chance.choice, self._chance.choice(SLOTS)
        state = self.fold.machine.slot(slot)
        me = pick((("a", "1"), ("a", "2"), ("b", "1"), ("c", "1")))
        if state.owner is not None and self._chance.random() < 0.6:
            me = state.owner
        epochs = [state.epoch, self._chance.randrange(-1, len(self.entries) + 2)]
        held = [item for item in state.map if item.tenancy is not None]
        start, end, epoch = self._chance.randrange(0, 14), self._chance.randrange(0, 16), pick(epochs)
        if held and self._chance.random() < 0.8:
            item = pick(held)
            assert item.tenancy is not None
            epoch, start = item.tenancy.epoch, self._chance.randrange(item.start, item.end)
            end = self._chance.randrange(start + 1, item.end + 1)
            me = item.tenancy.owner if self._chance.random() < 0.8 else me
        position = pick((None, 0, start, (state.position or 0) + self._chance.randrange(4)))
        producer, fenced = pick((None, f"p{me[0]}")), tuple(self._chance.sample(PRODUCERS, pick((0, 1, 3))))
        whole: tuple[Record, ...] = (
            Claimed(slot, *me, pick((None, None, epoch)), pick((True, False)), producer),
            Heartbeat(*me, (Beat(slot, pick(epochs), position, producer, fenced),)),
            ClaimReleased(slot, *me, pick(epochs), position, pick((True, False, False)), fenced),
            Intended(slot, *me, pick(epochs), start),
            ProducersFenced(slot, *me, fenced, pick((None, *epochs))),
            GroupPaused("g", me[0], self.fold.clock_ms + self._chance.randrange(-3, 8)),
        )
        ranges: tuple[Record, ...] = (
            RangeClaimed(slot, *me, self._chance.randrange(0, 9), pick((None, 3)), producer),
            RangeClaimed(slot, *me, self._chance.randrange(1, 4)),
            RangeAcked(slot, *me, epoch, start, end),
            RangeAcked(slot, *me, epoch, start, end),
            RangeReleased(slot, *me, epoch, start, end, pick((True, False))),
            RangeBuried(slot, *me, epoch, start, end),
            RangeRenewed(slot, *me, epoch),
            RangeFenced(slot, *me, epoch),
        )
        return pick(pick((whole, ranges)))


def written(seed: int, count: int = 60) -> list[Entry]:
    return Writer(random.Random(seed)).write(count)


def replayed(entries: list[Entry], machine: type[Claims] = Claims) -> Fold[Claims]:
    fold = Fold(machine())
    for offset, (time_ms, value) in enumerate(entries):
        fold.feed(offset, time_ms, value)
    return fold


# I1, I2, I4, I8 and every rule, on every transition


def faults(entries: list[Entry], fold: Fold[Claims] | None = None) -> list[str]:
    """What the checker, which knows the protocol offset by offset, has against any transition of the log."""
    fold, wrong = fold or Fold(Claims()), list[str]()
    for offset, (time_ms, value) in enumerate(entries):
        before, clock_ms = {slot: view_of(fold.machine, slot) for slot in SLOTS}, fold.clock_ms
        record, verdict = fold.feed(offset, time_ms, value)
        if fold.clock_ms < clock_ms and not isinstance(record, ClockReset):
            wrong.append(f"{offset}: the clock went back")
        for slot in SLOTS:
            after = view_of(fold.machine, slot)
            if isinstance(record, ClockReset):
                continue
            if record is None or not _is_about(record, slot):
                wrong += [f"{offset}: {record} changed {slot}"] if before[slot] != after else []
                continue
            seen = Transition(record, offset, fold.clock_ms, verdict.kind, before[slot], after)
            fault = violation(seen, SETTING, slot)
            wrong += [f"{offset}: {record}: {fault}"] if fault is not None else []
    return wrong


def _is_about(record: Record, slot: Slot) -> bool:
    if isinstance(record, Heartbeat):
        return record.beats[0].slot == slot
    return isinstance(record, GroupPaused) or getattr(record, "slot", None) == slot


@settings(max_examples=150)
@given(st.integers(0, 2**32))
def test_no_transition_of_a_random_log_breaks_an_invariant_or_a_rule(seed: int) -> None:
    assert faults(written(seed)) == []


@pytest.mark.parametrize("bug", BUGS)
def test_random_logs_break_every_machine_with_a_planted_bug(bug: type[Claims]) -> None:
    assert any(faults(written(seed), Fold(bug())) for seed in range(600))


class ClockFollowsTheBroker(Fold[Claims]):
    """Planted: the clock is the last append time, and not the latest."""

    def feed(self, offset: int, time_ms: int, value: bytes | None) -> Judged:
        judged = super().feed(offset, time_ms, value)
        self.clock_ms = time_ms
        return judged


def test_random_logs_break_a_clock_that_goes_back() -> None:
    wrong = [fault for seed in range(20) for fault in faults(written(seed), ClockFollowsTheBroker(Claims()))]

    assert any("the clock went back" in fault for fault in wrong)


@pytest.mark.long
@pytest.mark.parametrize("block", range(10))
def test_no_transition_of_many_long_random_logs_breaks_an_invariant_or_a_rule(block: int) -> None:
    for seed in range(block * 300, block * 300 + 300):
        assert faults(written(seed, 150)) == [], seed


def test_random_logs_are_worth_something() -> None:
    """A generator whose records are all refused would prove nothing."""
    kinds: dict[tuple[str, Kind], int] = {}
    for seed in range(90):
        fold = Fold(Claims())
        for offset, (time_ms, value) in enumerate(written(seed, 120)):
            record, verdict = fold.feed(offset, time_ms, value)
            if record is not None:
                kinds[type(record).__name__, verdict.kind] = kinds.get((type(record).__name__, verdict.kind), 0) + 1

    for kind in RECORD_TYPES:
        if kind is not ClaimsFounded:
            assert kinds.get((kind.__name__, Kind.ACCEPTED), 0) >= 5, kind
            if kind is not GroupPaused:
                assert kinds.get((kind.__name__, Kind.IGNORED), 0) >= 5, kind


# I3


@settings(max_examples=60)
@given(st.integers(0, 2**32), st.integers(0, 40))
def test_a_snapshot_at_any_record_and_the_tail_are_the_full_replay(seed: int, at: int) -> None:
    entries = written(seed, 40)
    whole = replayed(entries)
    head = replayed(entries[: at + 1])

    resumed = Fold(Claims(log_start=17))
    resumed.load(head.dump(), offset=at)
    verdicts = [resumed.feed(offset, *entries[offset]).verdict for offset in range(at + 1, len(entries))]

    assert resumed.dump() == whole.dump()
    again = Fold(Claims())
    expected = [again.feed(offset, *entry).verdict for offset, entry in enumerate(entries)]
    assert verdicts == expected[at + 1 :]


class AdoptsBesideSnapshot(Claims):
    """Goes by where its own reader began, and not by what the snapshot says."""

    def load(self, dumped: Any) -> None:
        own = self.log_start
        super().load(dumped)
        self.log_start = own


@pytest.mark.parametrize(("machine", "is_wrong"), [(Claims, False), (AdoptsBesideSnapshot, True)])
def test_a_reader_of_a_snapshot_that_adopts_would_be_caught(machine: type[Claims], is_wrong: bool) -> None:
    wrong = 0
    for seed in range(60):
        entries = written(seed, 60)
        resumed = Fold(machine(log_start=31))
        resumed.load(replayed(entries[:31]).dump(), offset=30)
        for offset in range(31, len(entries)):
            resumed.feed(offset, *entries[offset])
        state = (resumed.machine.slots, resumed.machine.pauses)
        whole = replayed(entries).machine
        wrong += state != (whole.slots, whole.pauses)

    assert (wrong > 0) == is_wrong


def test_a_snapshot_loads_to_the_very_state_that_was_dumped() -> None:
    for seed in range(40):
        fold, loaded = replayed(written(seed)), Fold(Claims())
        loaded.load(fold.dump(), offset=fold.next_offset - 1)

        assert loaded.machine.slots == fold.machine.slots
        assert loaded.machine.pauses == fold.machine.pauses


@pytest.mark.parametrize("hash_seed", ["1", "2"])
def test_another_process_with_another_hash_seed_comes_to_the_same_hash(hash_seed: str, tmp_path: Path) -> None:
    entries = written(7, 200)
    fold, lines = Fold(Claims()), []
    for offset, (time_ms, value) in enumerate(entries):
        lines.append(json.dumps(line_of(offset, time_ms, value, fold.feed(offset, time_ms, value))))
    dump = tmp_path / "log.ndjson"
    dump.write_text("\n".join(lines))

    command = [sys.executable, "-m", "penstock", "claims", "replay", str(dump), "--json", "--snapshot-at", "120"]
    environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
    shown = subprocess.run(command, capture_output=True, env=environment, check=True, timeout=120).stdout

    assert json.loads(shown.splitlines()[-1])["hash"] == fold.hash()


# Totality


numbers = st.one_of(st.integers(-3, 45), st.sampled_from([2**64 - 1, 2**64 - 9, 2**63, -(2**63)]))
texts = st.sampled_from(["a", "a", "b", "", "ß\0"])
slots = st.sampled_from([Slot("a", "t", 0), Slot("a", "t"), Slot("", "", -1)])
names = st.lists(texts, max_size=2).map(tuple)
maybe = st.one_of(st.none(), numbers)


def _fields(kind: type[Record]) -> dict[str, st.SearchStrategy[Any]]:
    beats = st.lists(st.builds(Beat, slots, numbers, maybe, st.one_of(st.none(), texts), names), max_size=3)
    known = {
        "slot": slots,
        "beats": beats.map(tuple),
        "fenced": names,
        "ids": names,
        "expects": maybe,
        "start": maybe if kind is RangeClaimed else numbers,
        "position": maybe,
        "producer": st.one_of(st.none(), texts),
        "reclaim": st.booleans(),
        "reset": st.booleans(),
        "counts": st.booleans(),
        **dict.fromkeys(("client", "instance", "group", "by"), texts),
    }
    return {name: known.get(name, numbers) for name in kind.__struct_fields__}


KINDS: tuple[type[Record], ...] = (*RECORD_TYPES, ClockReset)
wild = st.one_of([st.builds(kind, **_fields(kind)) for kind in KINDS])


@settings(max_examples=300)
@given(st.lists(st.one_of(wild.map(encode), st.binary(max_size=30), st.none()), max_size=25), st.booleans())
def test_no_record_ever_raises_and_every_state_can_be_written_down(values: list[bytes | None], cut: bool) -> None:
    fold = Fold(Claims(log_start=30 if cut else 0))
    fold.found(FOUNDED)
    for offset, value in enumerate(values, start=30):
        fold.feed(offset, offset, value)

    loaded = Fold(Claims())
    loaded.load(fold.dump(), offset=fold.next_offset - 1)
    assert loaded.hash() == fold.hash()
