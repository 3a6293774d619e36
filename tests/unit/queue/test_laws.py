"""Laws of the queue's machine on random logs: skewed times, forged epochs, duplicates, junk."""

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

from penstock.ledger.codec import Record, encode
from penstock.ledger.machine import ClockReset, Fold, Judged, Kind, VersionRaised
from penstock.queue.cells import Status
from penstock.queue.ndjson import line_of
from penstock.queue.records import (
    RECORD_TYPES,
    Acked,
    Buried,
    Copied,
    Dropped,
    Kept,
    LeaseFenced,
    Paused,
    Progressed,
    QueueFounded,
    QueuesChanged,
    Redriven,
    Released,
    Renewed,
    Resumed,
    Taken,
)
from penstock.queue.rulings import Ruling
from penstock.queue.state import QueueMachine
from penstock.testing.queue_invariants import violation
from penstock.testing.queue_view import Transition, offsets_of, view_of

FOUNDED = QueueFounded(version=1, topic_id="t", start=2, queues=("a",))
UPTO = 24
WORKERS = ("w1", "w2", "w3")

Entry = tuple[int, bytes | None]
Ranges = tuple[tuple[int, int], ...]


class Writer:
    """Draws records that mostly make sense: epochs that were granted, offsets that are held, and now and then not."""

    def __init__(self, chance: random.Random) -> None:
        self._chance = chance
        self.fold = Fold(QueueMachine())
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
            return self._chance.choice((None, b"", b"junk", encode(Copied(((0, 1),)))[:-1]))
        if roll < 0.10 and len(self.entries) > 1:
            return self._chance.choice(self.entries)[1]  # a duplicate, or a very late one
        if roll < 0.11:
            return encode(self._chance.choice((ClockReset("ops"), VersionRaised(1, "ops"), FOUNDED)))
        return encode(self._record())

    def _ranges(self) -> Ranges:
        """One to three stretches anywhere, in any order, perhaps on top of each other."""
        starts = [self._chance.randrange(0, UPTO - 1) for _ in range(self._chance.choice((1, 1, 2, 3)))]
        return tuple((start, self._chance.randrange(start + 1, min(UPTO, start + 9) + 1)) for start in starts)

    def _record(self) -> Record:
        pick, machine = self._chance.choice, self.fold.machine
        epoch, ranges, worker = self._chance.randrange(-1, len(self.entries) + 2), self._ranges(), pick(WORKERS)
        if machine.leases and self._chance.random() < 0.85:
            lease = pick(list(machine.leases.values()))
            epoch = lease.epoch
            worker = lease.worker if self._chance.random() < 0.8 else worker
            if self._chance.random() < 0.8:
                start, end = pick(lease.held)
                start = self._chance.randrange(start, end)
                ranges = ((start, self._chance.randrange(start + 1, end + 1)),)
        delay_ms, until_ms = pick((0, 0, 3, 8)), pick((None, self.fold.clock_ms + self._chance.randrange(-2, 6)))
        buried = tuple((run.start, run.end) for run in machine.cells.runs(0, UPTO) if run.value.status is Status.BURIED)
        dead = tuple((run.start, run.end) for run in machine.dead.runs(0, UPTO) if run.value)
        taken = Taken(
            worker, 0, self._ranges(), pick((5, 5, 20)), pick((None, None, f"p{worker}")), pick((True, False))
        )
        choices: tuple[Record, ...] = (
            taken,
            taken,
            Renewed(worker, (epoch,)),
            Renewed(worker, (epoch, *machine.leases)),
            LeaseFenced(epoch),
            Acked(epoch, ranges),
            Released(epoch, ranges, delay_ms, pick((True, False)), "E"),
            Released(epoch, ranges, delay_ms, pick((True, False)), "E"),
            Buried(epoch, ranges, "poison", "E"),
            Progressed(epoch, ranges[0][0], pick((b"1", b"2", b"x" * 1_025))),
            Copied(pick((buried, buried, ranges))),
            Redriven(pick((dead, ranges)), "ops"),
            Dropped(ranges, pick(("purged", "retention", "foreign")), "ops"),
            Kept(ranges),
            Paused(pick(("all", "a")), until_ms, "ops", "why") if self._chance.random() < 0.3 else taken,
            Resumed(pick(("all", "all", "a")), "ops"),
            QueuesChanged(pick((("a",), ("a", "b"))), "ops"),
        )
        return pick(choices)


def written(seed: int, count: int = 60) -> list[Entry]:
    return Writer(random.Random(seed)).write(count)


def replayed(entries: list[Entry], machine: type[QueueMachine] = QueueMachine) -> Fold[QueueMachine]:
    fold = Fold(machine())
    for offset, (time_ms, value) in enumerate(entries):
        fold.feed(offset, time_ms, value)
    return fold


def told(judged: Judged) -> frozenset[int]:
    return offsets_of(judged.verdict.covered) if isinstance(judged.verdict, Ruling) else frozenset()


# Every invariant and every rule, on every transition


def faults(entries: list[Entry]) -> list[str]:
    """What the checker, which knows the protocol offset by offset, has against any transition of the log."""
    fold, wrong = Fold(QueueMachine()), []
    for offset, (time_ms, value) in enumerate(entries):
        before, clock_ms = view_of(fold.machine, UPTO), fold.clock_ms
        judged = fold.feed(offset, time_ms, value)
        record, after = judged.record, view_of(fold.machine, UPTO)
        if isinstance(record, ClockReset):
            continue
        if fold.clock_ms < clock_ms:
            wrong.append(f"{offset}: the clock went back")
        if record is None or isinstance(record, QueueFounded | VersionRaised):
            wrong += [f"{offset}: {record} changed the state"] if before != after and offset else []
            continue
        seen = Transition(record, offset, fold.clock_ms, judged.verdict.kind, told(judged), before, after)
        fault = violation(seen)
        wrong += [f"{offset}: {record}: {fault}"] if fault is not None else []
    return wrong


@settings(max_examples=150)
@given(st.integers(0, 2**32))
def test_no_transition_of_a_random_log_breaks_an_invariant_or_a_rule(seed: int) -> None:
    assert faults(written(seed)) == []


@pytest.mark.long
@pytest.mark.parametrize("block", range(10))
def test_no_transition_of_many_long_random_logs_breaks_an_invariant_or_a_rule(block: int) -> None:
    for seed in range(block * 300, block * 300 + 300):
        assert faults(written(seed, 150)) == [], seed


def test_random_logs_are_worth_something() -> None:
    """A generator whose records are all refused would prove nothing."""
    kinds: dict[tuple[str, Kind], int] = {}
    for seed in range(80):
        fold = Fold(QueueMachine())
        for offset, (time_ms, value) in enumerate(written(seed, 120)):
            record, verdict = fold.feed(offset, time_ms, value)
            if record is not None:
                kinds[type(record).__name__, verdict.kind] = kinds.get((type(record).__name__, verdict.kind), 0) + 1

    for kind in RECORD_TYPES:
        if kind is not QueueFounded:
            assert kinds.get((kind.__name__, Kind.ACCEPTED), 0) >= 5, kind
            if kind not in (Paused, Resumed, QueuesChanged):
                assert kinds.get((kind.__name__, Kind.IGNORED), 0) >= 5, kind
    for kind in (Taken, Acked, Released, Buried, Dropped, Renewed):
        assert kinds.get((kind.__name__, Kind.PARTIAL), 0) >= 5, kind


@settings(max_examples=60)
@given(st.integers(0, 2**32))
def test_every_offset_is_in_exactly_one_state_and_the_sum_covers_all(seed: int) -> None:
    fold = Fold(QueueMachine())
    for offset, (time_ms, value) in enumerate(written(seed)):
        fold.feed(offset, time_ms, value)
        machine = fold.machine
        runs = machine.cells.runs(0, UPTO)
        leased = [n for lease in machine.leases.values() for n in offsets_of(lease.held)]
        buried = [n for burial in machine.burials.values() for n in offsets_of(burial.held)]

        assert [run.start for run in runs] == [0, *(run.end for run in runs[:-1])]
        assert runs[-1].end == UPTO
        by_status = {
            status: sorted(n for run in runs if run.value.status is status for n in range(run.start, run.end))
            for status in Status
        }
        assert by_status[Status.LEASED] == sorted(leased)
        assert by_status[Status.BURIED] == sorted(buried)
        assert all(machine.cells.at(n).status is Status.FINISHED for n in range(machine.position))


# The same prefix is the same state


@settings(max_examples=60)
@given(st.integers(0, 2**32), st.integers(0, 40))
def test_a_snapshot_at_any_record_and_the_tail_are_the_full_replay(seed: int, at: int) -> None:
    entries = written(seed, 40)
    whole = Fold(QueueMachine())
    verdicts = [whole.feed(offset, *entry).verdict for offset, entry in enumerate(entries)]

    resumed = Fold(QueueMachine())
    resumed.load(replayed(entries[: at + 1]).dump(), offset=at)
    tail = [resumed.feed(offset, *entries[offset]).verdict for offset in range(at + 1, len(entries))]

    assert resumed.dump() == whole.dump()
    assert tail == verdicts[at + 1 :]


def test_a_snapshot_at_every_record_changes_nothing() -> None:
    for seed in range(20):
        entries = written(seed, 100)
        fold = Fold(QueueMachine())
        for offset, entry in enumerate(entries):
            fold.feed(offset, *entry)
            after = Fold(QueueMachine())
            after.load(fold.dump(), offset=offset)
            assert after.machine.cells == fold.machine.cells
            assert after.machine.dead == fold.machine.dead
            assert (after.machine.leases, after.machine.burials) == (fold.machine.leases, fold.machine.burials)
            assert (after.machine.pauses, after.machine.queues) == (fold.machine.pauses, fold.machine.queues)
            fold = after

        assert fold.hash() == replayed(entries).hash()


@pytest.mark.parametrize("hash_seed", ["1", "2"])
def test_another_process_with_another_hash_seed_comes_to_the_same_hash(hash_seed: str, tmp_path: Path) -> None:
    entries = written(7, 200)
    fold, lines = Fold(QueueMachine()), []
    for offset, (time_ms, value) in enumerate(entries):
        lines.append(json.dumps(line_of(offset, time_ms, value, fold.feed(offset, time_ms, value))))
    dump = tmp_path / "log.ndjson"
    dump.write_text("\n".join(lines))

    command = [sys.executable, "-m", "penstock", "queue", "replay", str(dump), "--json", "--snapshot-at", "120"]
    environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
    shown = subprocess.run(command, capture_output=True, env=environment, check=True, timeout=120).stdout

    assert json.loads(shown.splitlines()[-1])["state"]["hash"] == fold.hash()


# Totality


numbers = st.one_of(st.integers(-3, 45), st.sampled_from([2**64 - 1, 2**64 - 9, 2**63, 2**63 - 1, -(2**63)]))
texts = st.sampled_from(["w1", "w1", "all", "", "ß\0", "retention"])
ranges = st.lists(st.tuples(numbers, numbers), max_size=4).map(tuple)
sound = st.lists(
    st.tuples(st.integers(0, 40), st.integers(1, 9)).map(lambda pair: (pair[0], sum(pair))), min_size=1, max_size=4
).map(tuple)
KNOWN: dict[str, st.SearchStrategy[Any]] = {
    "ranges": st.one_of(ranges, sound, sound, st.just(((0, 2**63 - 1),))),
    "epochs": st.lists(numbers, max_size=3).map(tuple),
    "producer": st.one_of(st.none(), texts),
    "until_ms": st.one_of(st.none(), numbers),
    "data": st.sampled_from([b"", b"\xff", b"x" * 2_000]),
    "error": st.sampled_from(["", "E", "ß" * 3_000]),
    **dict.fromkeys(("alone", "counts"), st.booleans()),
    **dict.fromkeys(("ids", "queues"), st.lists(texts, max_size=2).map(tuple)),
    **dict.fromkeys(("worker", "queue", "by", "reason", "topic_id"), texts),
}
KINDS: tuple[type[Record], ...] = (*RECORD_TYPES, Taken, Taken, ClockReset)
wild = st.one_of(
    [st.builds(kind, **{name: KNOWN.get(name, numbers) for name in kind.__struct_fields__}) for kind in KINDS]
)


@settings(max_examples=300)
@given(st.lists(st.one_of(wild.map(encode), st.binary(max_size=30), st.none()), max_size=25))
def test_no_record_ever_raises_and_every_state_can_be_written_down(values: list[bytes | None]) -> None:
    fold = Fold(QueueMachine())
    fold.found(FOUNDED)
    for offset, value in enumerate(values):
        fold.feed(offset, offset, value)

    loaded = Fold(QueueMachine())
    loaded.load(fold.dump(), offset=fold.next_offset - 1)
    assert loaded.hash() == fold.hash()
