"""Replay of a queue's ledger: which offsets are finished, leased, waiting or buried, and how often they were tried.

A lease is valid for its time after the last renewal. Expiry writes no record: an expired lease can still be renewed and
acked under, until it is over. It is over when nothing is left in it, when another `Taken` is granted any of its
offsets, or by `LeaseFenced`; what was still in it is then free, with one more loss.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, ClassVar, NamedTuple

from penstock.ledger.codec import Record
from penstock.ledger.machine import ACCEPTED, UNCHANGED, Kind, Verdict, ignored, together
from penstock.queue import dumps
from penstock.queue.cells import FINISHED, IS_BURIED, IS_LEASED, IS_READY, IS_WAITING, READY, Cell
from penstock.queue.leases import Burial, Lease, Pause
from penstock.queue.ranges import OFFSET_MAX, Range, Ranges, common, joined, packed, remove, take_out
from penstock.queue.records import (
    ALL,
    ERROR_BYTES_MAX,
    PROGRESS_BYTES_MAX,
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
from penstock.queue.rulings import Ruling, ruled
from penstock.queue.spans import Run, Spans

NO_OFFSETS = ignored("there is no offset in it, or one that cannot be")
OVER = ignored("that lease is over")
NOT_IN_IT = ignored("none of it is in that lease")


class _Part(NamedTuple):
    """What a record acts on: offsets that were in its lease."""

    asked: Ranges
    covered: Ranges

    def ruled(self) -> Verdict:
        return ruled(self.asked, self.covered, "the rest is not in that lease")


class QueueMachine:
    """The machine of one partition of a queue's ledger."""

    record_types: ClassVar[tuple[type[Record], ...]] = RECORD_TYPES
    speaks: ClassVar[int] = 1

    def __init__(self) -> None:
        self.queues: tuple[str, ...] = ()
        self.cells: Spans[Cell] = Spans(READY)
        self.leases: dict[int, Lease] = {}
        """By epoch; none of them is over."""
        self.burials: dict[int, Burial] = {}
        """By the offset of their record, until all is copied."""
        self.dead: Spans[bool] = Spans(False)
        """Copied and not redriven."""
        self.pauses: dict[str, Pause] = {}
        self._rules: dict[type[Record], Callable[[Any, int, int], Verdict]] = {
            QueueFounded: self._on_founded,
            Taken: self._on_taken,
            Renewed: self._on_renewed,
            LeaseFenced: self._on_fenced,
            Acked: self._on_acked,
            Released: self._on_released,
            Buried: self._on_buried,
            Progressed: self._on_progressed,
            Copied: self._on_copied,
            Redriven: self._on_redriven,
            Dropped: self._on_dropped,
            Kept: self._on_kept,
            Paused: self._on_paused,
            Resumed: self._on_resumed,
            QueuesChanged: self._on_queues_changed,
        }

    def apply(self, record: Any, offset: int, clock_ms: int) -> Verdict:
        return self._rules[type(record)](record, offset, clock_ms)

    # Looking

    @property
    def position(self) -> int:
        """All below is finished; what is buried and not copied is not."""
        return (self.cells.end_of(0) or 0) if self.cells.at(0) is FINISHED else 0

    def pause_of(self, queue: str, clock_ms: int) -> Pause | None:
        pause = self.pauses.get(queue)
        return pause if pause is not None and pause.holds(clock_ms) else None

    def may_be_granted(self, cell: Cell, clock_ms: int) -> bool:
        status = cell.status
        if status is IS_LEASED:
            return self.leases[cell.epoch].may_end(clock_ms)
        return status is IS_READY or (status is IS_WAITING and cell.due_ms <= clock_ms)

    def why_not(self, run: Run[Cell], clock_ms: int) -> str:
        """Why these offsets cannot be granted or dropped."""
        cell, which = run.value, f"offset {run.start} is"
        if cell.status is IS_WAITING:
            return f"{which} waiting until {cell.due_ms}"
        if cell.status is not IS_LEASED:
            return f"{which} {cell.status.value}"
        lease = self.leases[cell.epoch]
        held = f"{which} leased by {lease.worker} under epoch {lease.epoch}"
        return held if lease.is_valid(clock_ms) else f"{held}, expired, and producer {lease.producer} is not fenced"

    # Leases

    def _on_founded(self, record: QueueFounded, offset: int, clock_ms: int) -> Verdict:
        if not 1 <= record.version <= self.speaks or not 0 <= record.start < OFFSET_MAX:
            return ignored("the version or the start cannot be")
        self.queues = record.queues
        if record.start:
            self.cells.put(0, record.start, FINISHED)
        return ACCEPTED

    def _on_taken(self, record: Taken, offset: int, clock_ms: int) -> Verdict:
        asked = packed(record.ranges)
        if asked is None:
            return NO_OFFSETS
        if not 1 <= record.lease_ms <= OFFSET_MAX:
            return ignored("a lease must have a time")
        pause = self.pause_of(ALL, clock_ms)
        if pause is not None:
            return ignored(f"paused by {pause.by}")
        cells, covered, refusal = self.cells.values_in(asked), asked, None
        if not all(self.may_be_granted(cell, clock_ms) for cell in cells):
            granted, refused = self._sorted_out(asked, clock_ms, self.may_be_granted)
            refusal = self.why_not(refused[0], clock_ms)
            if not granted:
                return ignored(refusal)
            cells, covered = [run.value for run in granted], _ranges_of(granted)
        ended = {cell.epoch for cell in cells if cell.status is IS_LEASED}
        for epoch in ended:
            self._lose(self.leases[epoch])
        self._lease(covered, offset)
        lease = Lease(offset, record.worker, clock_ms, record.lease_ms, record.producer, record.alone, list(covered))
        self.leases[offset] = lease
        return ruled(asked, covered, refusal, has_ended_leases=bool(ended))

    def _sorted_out(
        self, asked: Ranges, clock_ms: int, is_fit: Callable[[Cell, int], bool]
    ) -> tuple[list[Run[Cell]], list[Run[Cell]]]:
        fit: list[Run[Cell]] = []
        unfit: list[Run[Cell]] = []
        for start, end in asked:
            for run in self.cells.runs(start, end):
                (fit if is_fit(run.value, clock_ms) else unfit).append(run)
        return fit, unfit

    def _lease(self, ranges: Ranges, epoch: int) -> None:
        self.cells.change(ranges, lambda cell: cell.leased(epoch))

    def _lose(self, lease: Lease) -> None:
        """The lease is over, and what is left in it is free."""
        self.cells.change(lease.held, lambda cell: cell.lost(alone=lease.alone))
        del self.leases[lease.epoch]

    def _on_renewed(self, record: Renewed, offset: int, clock_ms: int) -> Verdict:
        verdicts = [self._renewed(record.worker, epoch, clock_ms) for epoch in record.epochs]
        judged = list(zip(record.epochs, verdicts, strict=True))
        held = sorted(part for epoch in {e for e, v in judged if v is ACCEPTED} for part in self.leases[epoch].held)
        refusal = next((f"epoch {epoch}: {verdict.reason}" for epoch, verdict in judged if verdict.reason), None)
        whole = together(verdicts)
        return Ruling(whole.kind, refusal or whole.reason, whole.parts, joined(held))

    def _renewed(self, worker: str, epoch: int, clock_ms: int) -> Verdict:
        lease = self.leases.get(epoch)
        if lease is None:
            return OVER
        if lease.worker != worker:
            return ignored(f"it is {lease.worker}'s lease")
        lease.renewed_ms = clock_ms
        return ACCEPTED

    def _on_fenced(self, record: LeaseFenced, offset: int, clock_ms: int) -> Verdict:
        lease = self.leases.get(record.epoch)
        if lease is None:
            return OVER
        if lease.is_valid(clock_ms):
            return ignored("the lease has not expired")
        covered = tuple(lease.held)
        self._lose(lease)
        return Ruling(Kind.ACCEPTED, "", (), covered)

    # What became of leased offsets

    def _taken_out(self, epoch: int, ranges: Ranges) -> _Part | Verdict:
        """These offsets are in the lease no more; without any it is over."""
        lease, asked = self.leases.get(epoch), packed(ranges)
        if lease is None or asked is None:
            return NO_OFFSETS if asked is None else OVER
        covered = take_out(lease.held, asked)
        if not lease.held:
            del self.leases[epoch]
        return _Part(asked, covered) if covered else NOT_IN_IT

    def _leave(self, lease: Lease, ranges: Sequence[Range]) -> None:
        remove(lease.held, ranges)
        if not lease.held:
            del self.leases[lease.epoch]

    def _on_acked(self, record: Acked, offset: int, clock_ms: int) -> Verdict:
        part = self._taken_out(record.epoch, record.ranges)
        if isinstance(part, Verdict):
            return part
        self.cells.put_all(part.covered, FINISHED)
        return part.ruled()

    def _on_released(self, record: Released, offset: int, clock_ms: int) -> Verdict:
        if record.delay_ms < 0:
            return ignored("a delay cannot be negative")
        part = self._taken_out(record.epoch, record.ranges)
        if isinstance(part, Verdict):
            return part
        due_ms = min(clock_ms + record.delay_ms, OFFSET_MAX)
        self.cells.change(
            part.covered,
            lambda cell: cell.released(counts=record.counts, due_ms=due_ms, delay_ms=record.delay_ms),
        )
        return part.ruled()

    def _on_buried(self, record: Buried, offset: int, clock_ms: int) -> Verdict:
        part = self._taken_out(record.epoch, record.ranges)
        if isinstance(part, Verdict):
            return part
        self.cells.change(part.covered, lambda cell: cell.buried(by=offset))
        error = record.error.encode()[:ERROR_BYTES_MAX].decode(errors="ignore")
        reason = record.reason.encode()[:ERROR_BYTES_MAX].decode(errors="ignore")
        self.burials[offset] = Burial(offset, clock_ms, reason, error, list(part.covered))
        return part.ruled()

    def _on_progressed(self, record: Progressed, offset: int, clock_ms: int) -> Verdict:
        if len(record.data) > PROGRESS_BYTES_MAX:
            return ignored(f"a resume token has at most {PROGRESS_BYTES_MAX} bytes")
        lease, asked = self.leases.get(record.epoch), packed(((record.offset, record.offset + 1),))
        if lease is None or asked is None:
            return NO_OFFSETS if asked is None else OVER
        if not common(asked, lease.held):
            return NOT_IN_IT
        self.cells.change(asked, lambda cell: cell._replace(progress=record.data))
        return ruled(asked, asked, None)

    # Dead letters

    def _on_copied(self, record: Copied, offset: int, clock_ms: int) -> Verdict:
        asked = packed(record.ranges)
        if asked is None:
            return NO_OFFSETS
        buried, others = self._sorted_out(asked, clock_ms, _is_buried)
        for run in buried:
            self._exhume(run)
            self.dead.put(run.start, run.end, True)
        is_so_already = all(letter.value for run in others for letter in self.dead.runs(run.start, run.end))
        return ruled(asked, _ranges_of(buried), None if is_so_already else f"offset {others[0].start} is not buried")

    def _exhume(self, run: Run[Cell]) -> None:
        """Nothing is left to do for these buried offsets."""
        burial = self.burials[run.value.epoch]
        remove(burial.held, [(run.start, run.end)])
        if not burial.held:
            del self.burials[burial.offset]
        self.cells.put(run.start, run.end, FINISHED)

    def _on_redriven(self, record: Redriven, offset: int, clock_ms: int) -> Verdict:
        asked = packed(record.ranges)
        if asked is None:
            return NO_OFFSETS
        letters = [run for start, end in asked for run in self.dead.runs(start, end) if run.value]
        for run in letters:
            self.dead.put(run.start, run.end, False)
        return ruled(asked, _ranges_of(letters), "what is no dead letter, or was one, cannot be redriven")

    # Without a lease

    def _on_dropped(self, record: Dropped, offset: int, clock_ms: int) -> Verdict:
        asked = packed(record.ranges)
        if asked is None:
            return NO_OFFSETS
        may_be_dropped = self.may_vanish if record.is_by_retention else self.may_be_dropped
        dropped, others = self._sorted_out(asked, clock_ms, may_be_dropped)
        for run in dropped:
            if run.value.status is IS_BURIED:
                self._exhume(run)
                continue
            if run.value.status is IS_LEASED:
                self._leave(self.leases[run.value.epoch], [(run.start, run.end)])
            self.cells.put(run.start, run.end, FINISHED)
        refused = next((run for run in others if run.value is not FINISHED), None)
        return ruled(asked, _ranges_of(dropped), None if refused is None else self.why_not(refused, clock_ms))

    def may_be_dropped(self, cell: Cell, clock_ms: int) -> bool:
        if cell.status is IS_LEASED:
            return self.leases[cell.epoch].may_end(clock_ms)
        return cell.status is IS_READY or cell.status is IS_WAITING

    def may_vanish(self, cell: Cell, clock_ms: int) -> bool:
        """Retention asks nobody: what was to be copied can be copied no more."""
        return cell.status is IS_BURIED or self.may_be_dropped(cell, clock_ms)

    def _on_kept(self, record: Kept, offset: int, clock_ms: int) -> Verdict:
        asked = packed(record.ranges)
        if asked is None:
            return NO_OFFSETS
        unkept, others = self._sorted_out(asked, clock_ms, _is_unkept)
        for run in unkept:
            self.cells.put(run.start, run.end, run.value._replace(is_kept=True))
        refused = next((run for run in others if run.value is FINISHED), None)
        return ruled(asked, _ranges_of(unkept), None if refused is None else self.why_not(refused, clock_ms))

    def _on_paused(self, record: Paused, offset: int, clock_ms: int) -> Verdict:
        pause = Pause(record.by, record.until_ms, record.reason)
        if not pause.holds(clock_ms):
            return self._resume(record.queue)
        if self.pauses.get(record.queue) == pause:
            return UNCHANGED
        self.pauses[record.queue] = pause
        return ACCEPTED

    def _on_resumed(self, record: Resumed, offset: int, clock_ms: int) -> Verdict:
        return self._resume(record.queue)

    def _resume(self, queue: str) -> Verdict:
        return UNCHANGED if self.pauses.pop(queue, None) is None else ACCEPTED

    def _on_queues_changed(self, record: QueuesChanged, offset: int, clock_ms: int) -> Verdict:
        if record.queues == self.queues:
            return UNCHANGED
        self.queues = record.queues
        return ACCEPTED

    # The ledger's own

    def reset_clock(self, clock_ms: int) -> None:
        for lease in self.leases.values():
            lease.renewed_ms = clock_ms
        for run in self.cells.runs(0, OFFSET_MAX):
            if run.value.status is IS_WAITING:
                # A delay that was counted from a clock far ahead would last for years.
                due_ms = min(run.value.due_ms, clock_ms + run.value.delay_ms)
                self.cells.put(run.start, run.end, run.value._replace(due_ms=due_ms))

    def dump(self) -> Any:
        return [
            self.queues,
            dumps.dumped_cells(self.cells),
            dumps.dumped_leases(self.leases.values()),
            dumps.dumped_burials(self.burials.values()),
            dumps.dumped_flags(self.dead),
            [[queue, *pause] for queue, pause in sorted(self.pauses.items())],
        ]

    def load(self, dumped: Any) -> None:
        queues, cells, leases, burials, dead, pauses = dumped
        self.queues = tuple(queues)
        self.cells = dumps.loaded_cells(cells)
        self.leases = dumps.loaded_leases(leases, self.cells)
        self.burials = dumps.loaded_burials(burials, self.cells)
        self.dead = dumps.loaded_flags(dead)
        self.pauses = {queue: Pause(by, until_ms, reason) for queue, by, until_ms, reason in pauses}


def _ranges_of(runs: Iterable[Run[Any]]) -> Ranges:
    return joined((run.start, run.end) for run in runs)


def _is_buried(cell: Cell, clock_ms: int) -> bool:
    return cell.status is IS_BURIED


def _is_unkept(cell: Cell, clock_ms: int) -> bool:
    return cell is not FINISHED and not cell.is_kept
