"""The table of a queue's records once more, offset by offset and without regard to speed: what each record must do.

Written from the description and not from the machine, so that the two can be compared. A lease is here nothing but the
offsets that name it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from penstock.ledger.codec import Record
from penstock.ledger.machine import Kind
from penstock.queue.ranges import OFFSET_MAX, Range
from penstock.queue.records import (
    Acked,
    Buried,
    Copied,
    Dropped,
    Kept,
    LeaseFenced,
    Paused,
    Progressed,
    QueuesChanged,
    Redriven,
    Released,
    Renewed,
    Resumed,
    Taken,
)
from penstock.testing.queue_view import BurialSeen, LeaseSeen, Spot, View, offsets_of

Answer = tuple[Kind, frozenset[int], View]

DONE = Spot("finished")


def expected(record: Record, offset: int, clock_ms: int, before: View) -> Answer:
    """What the protocol says to this record: the verdict, the offsets concerned, and the state after it."""
    case = _Case(offset, clock_ms, before)
    kind, covered = _RULES[type(record)](case, record)
    return kind, frozenset(covered), case.after()


Outcome = tuple[Kind, Iterable[int]]
REFUSED: Outcome = (Kind.IGNORED, ())
UNCHANGED: Outcome = (Kind.UNCHANGED, ())
ACCEPTED: Outcome = (Kind.ACCEPTED, ())


class _Case:
    """One record's circumstances, in the protocol's words."""

    def __init__(self, offset: int, clock_ms: int, before: View) -> None:
        self.offset, self.clock_ms, self.before = offset, clock_ms, before
        self.spots = list(before.spots)
        self.leases = dict(before.leases)
        self.burials = dict(before.burials)
        self.dead = set(before.dead)
        self.pauses = dict(before.pauses)
        self.queues = before.queues

    def asked(self, ranges: Iterable[Range]) -> list[int] | None:
        if not ranges or any(not 0 <= start < end <= OFFSET_MAX for start, end in ranges):
            return None
        return sorted(offsets_of(ranges))

    def held(self, epoch: int) -> list[int]:
        return [number for number, spot in enumerate(self.spots) if (spot.status, spot.epoch) == ("leased", epoch)]

    def is_live(self, spot: Spot) -> bool:
        """Whether nobody else may touch it: its lease is valid, or its producer could still commit."""
        if spot.status != "leased":
            return False
        lease = self.leases[spot.epoch]
        return lease.is_valid(self.clock_ms) or lease.producer is not None

    def lose(self, epoch: int) -> None:
        charge = 1 if self.leases[epoch].alone else 0
        for number in self.held(epoch):
            old = self.spots[number]
            self.spots[number] = Spot(
                "ready", old.charges + charge, old.losses + 1, progress=old.progress, is_kept=old.is_kept
            )

    def judged(self, asked: list[int], done: list[int], refused: list[int]) -> Outcome:
        if done == asked:
            return Kind.ACCEPTED, done
        if done:
            return Kind.PARTIAL, done
        return REFUSED if refused else UNCHANGED

    def after(self) -> View:
        leases = {epoch: lease._replace(held=tuple(self.held(epoch))) for epoch, lease in self.leases.items()}
        buried = {
            by: tuple(n for n, spot in enumerate(self.spots) if (spot.status, spot.epoch) == ("buried", by))
            for by in self.burials
        }
        unfinished = [number for number, spot in enumerate(self.spots) if not spot.is_finished]
        return View(
            min(unfinished, default=len(self.spots)),
            tuple(self.spots),
            tuple(sorted((epoch, lease) for epoch, lease in leases.items() if lease.held)),
            tuple(sorted((by, self.burials[by]._replace(held=held)) for by, held in buried.items() if held)),
            frozenset(self.dead),
            tuple(sorted(self.pauses.items())),
            self.queues,
        )


# Leases


def _taken(case: _Case, record: Taken) -> Outcome:
    asked = case.asked(record.ranges)
    if asked is None or record.lease_ms < 1 or case.before.is_paused(case.clock_ms):
        return REFUSED
    granted = [number for number in asked if _is_free(case, case.spots[number])]
    if not granted:
        return REFUSED
    for epoch in {case.spots[number].epoch for number in granted if case.spots[number].status == "leased"}:
        case.lose(epoch)
    for number in granted:
        old = case.spots[number]
        case.spots[number] = Spot(
            "leased", old.charges, old.losses, case.offset, progress=old.progress, is_kept=old.is_kept
        )
    lease = LeaseSeen(record.worker, case.clock_ms, record.lease_ms, record.producer, record.alone, ())
    case.leases[case.offset] = lease
    return case.judged(asked, granted, asked)


def _is_free(case: _Case, spot: Spot) -> bool:
    if spot.status in ("finished", "buried"):
        return False
    if spot.status == "waiting" and spot.due_ms > case.clock_ms:
        return False
    return not case.is_live(spot)


def _renewed(case: _Case, record: Renewed) -> Outcome:
    mine = [epoch for epoch in record.epochs if epoch in case.leases and case.leases[epoch].worker == record.worker]
    for epoch in mine:
        case.leases[epoch] = case.leases[epoch]._replace(renewed_ms=case.clock_ms)
    covered = [number for epoch in mine for number in case.held(epoch)]
    if not mine:
        return REFUSED
    return (Kind.ACCEPTED if len(mine) == len(record.epochs) else Kind.PARTIAL), covered


def _fenced(case: _Case, record: LeaseFenced) -> Outcome:
    lease = case.leases.get(record.epoch)
    if lease is None or lease.is_valid(case.clock_ms):
        return REFUSED
    held = case.held(record.epoch)
    case.lose(record.epoch)
    return Kind.ACCEPTED, held


# Under a lease


def _under_lease(case: _Case, epoch: int, ranges: Iterable[Range], changed: Callable[[Spot], Spot]) -> Outcome:
    asked = case.asked(ranges)
    if asked is None:
        return REFUSED
    held = [number for number in asked if number in case.held(epoch)]
    for number in held:
        case.spots[number] = changed(case.spots[number])
    return case.judged(asked, held, asked)


def _acked(case: _Case, record: Acked) -> Outcome:
    return _under_lease(case, record.epoch, record.ranges, lambda _: DONE)


def _released(case: _Case, record: Released) -> Outcome:
    def released(old: Spot) -> Spot:
        charges = old.charges + (1 if record.counts else 0)
        if record.delay_ms:
            due_ms = case.clock_ms + record.delay_ms
            return Spot("waiting", charges, old.losses, -1, due_ms, record.delay_ms, old.progress, old.is_kept)
        return Spot("ready", charges, old.losses, progress=old.progress, is_kept=old.is_kept)

    return REFUSED if record.delay_ms < 0 else _under_lease(case, record.epoch, record.ranges, released)


def _buried(case: _Case, record: Buried) -> Outcome:
    case.burials[case.offset] = BurialSeen(case.clock_ms, record.reason, record.error, ())
    return _under_lease(
        case,
        record.epoch,
        record.ranges,
        lambda old: Spot("buried", old.charges + 1, old.losses, case.offset, is_kept=old.is_kept),
    )


def _progressed(case: _Case, record: Progressed) -> Outcome:
    if len(record.data) > 1_024:
        return REFUSED
    place = [(record.offset, record.offset + 1)]
    return _under_lease(case, record.epoch, place, lambda old: old._replace(progress=record.data))


# Without one


def _copied(case: _Case, record: Copied) -> Outcome:
    asked = case.asked(record.ranges)
    if asked is None:
        return REFUSED
    buried = [number for number in asked if case.spots[number].status == "buried"]
    others = [number for number in asked if number not in buried and number not in case.dead]
    for number in buried:
        case.spots[number] = DONE
        case.dead.add(number)
    return case.judged(asked, buried, others)


def _redriven(case: _Case, record: Redriven) -> Outcome:
    asked = case.asked(record.ranges)
    if asked is None:
        return REFUSED
    letters = [number for number in asked if number in case.dead]
    case.dead.difference_update(letters)
    return case.judged(asked, letters, asked)


def _dropped(case: _Case, record: Dropped) -> Outcome:
    asked = case.asked(record.ranges)
    if asked is None:
        return REFUSED
    untouchable = [number for number in asked if case.is_live(case.spots[number])]
    if not record.reason.endswith("retention"):
        untouchable += [number for number in asked if case.spots[number].status == "buried"]
    dropped = [number for number in asked if number not in untouchable and not case.spots[number].is_finished]
    for number in dropped:
        case.spots[number] = DONE
    return case.judged(asked, dropped, untouchable)


def _kept(case: _Case, record: Kept) -> Outcome:
    asked = case.asked(record.ranges)
    if asked is None:
        return REFUSED
    finished = [number for number in asked if case.spots[number].is_finished]
    new = [number for number in asked if number not in finished and not case.spots[number].is_kept]
    for number in new:
        case.spots[number] = case.spots[number]._replace(is_kept=True)
    return case.judged(asked, new, finished)


def _paused(case: _Case, record: Paused) -> Outcome:
    pause = (record.by, record.until_ms, record.reason)
    if record.until_ms is not None and record.until_ms <= case.clock_ms:
        return ACCEPTED if case.pauses.pop(record.queue, None) else UNCHANGED
    if case.pauses.get(record.queue) == pause:
        return UNCHANGED
    case.pauses[record.queue] = pause
    return ACCEPTED


def _resumed(case: _Case, record: Resumed) -> Outcome:
    return ACCEPTED if case.pauses.pop(record.queue, None) else UNCHANGED


def _queues_changed(case: _Case, record: QueuesChanged) -> Outcome:
    is_so_already = case.queues == record.queues
    case.queues = record.queues
    return UNCHANGED if is_so_already else ACCEPTED


_RULES: Mapping[type[Record], Callable[[_Case, Any], Outcome]] = {
    Taken: _taken,
    Renewed: _renewed,
    LeaseFenced: _fenced,
    Acked: _acked,
    Released: _released,
    Buried: _buried,
    Progressed: _progressed,
    Copied: _copied,
    Redriven: _redriven,
    Dropped: _dropped,
    Kept: _kept,
    Paused: _paused,
    Resumed: _resumed,
    QueuesChanged: _queues_changed,
}
