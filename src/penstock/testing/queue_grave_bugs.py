"""Queue machines that each break one rule of burials, or of what needs no lease. Never for use."""

from __future__ import annotations

from msgspec.structs import replace as changed

from penstock.ledger.machine import ACCEPTED, Kind, Verdict
from penstock.queue.cells import FINISHED, READY, Cell, Status
from penstock.queue.leases import Burial
from penstock.queue.ranges import packed
from penstock.queue.records import Buried, Copied, Dropped, Kept, Redriven
from penstock.queue.spans import Run
from penstock.queue.state import QueueMachine

# Graves


class PositionPassesBuried(QueueMachine):
    """Finished at once: after a crash before the copy, nobody knows that one was owed."""

    def _on_buried(self, record: Buried, offset: int, clock_ms: int) -> Verdict:
        verdict = super()._on_buried(record, offset, clock_ms)
        if verdict.kind is not Kind.IGNORED:
            for start, end in self.burials.pop(offset).held:
                self.cells.put(start, end, FINISHED)
        return verdict


class BurialByAZombie(QueueMachine):
    """Bury by offset, whoever has it now."""

    def _on_buried(self, record: Buried, offset: int, clock_ms: int) -> Verdict:
        if record.epoch in self.leases:
            return super()._on_buried(record, offset, clock_ms)
        for start, end in packed(record.ranges) or ():
            for run in self.cells.runs(start, end):
                if run.value.status is Status.LEASED:
                    return super()._on_buried(changed(record, epoch=run.value.epoch), offset, clock_ms)
        return super()._on_buried(record, offset, clock_ms)


class BurialWithoutCharge(QueueMachine):
    def _on_buried(self, record: Buried, offset: int, clock_ms: int) -> Verdict:
        verdict = super()._on_buried(record, offset, clock_ms)
        if verdict.kind is not Kind.IGNORED:
            held = tuple(self.burials[offset].held)
            self.cells.change(held, lambda cell: cell._replace(charges=cell.charges - 1))
        return verdict


class BurialForgetsTheError(QueueMachine):
    def _on_buried(self, record: Buried, offset: int, clock_ms: int) -> Verdict:
        verdict = super()._on_buried(record, offset, clock_ms)
        if offset in self.burials:
            self.burials[offset] = Burial(offset, clock_ms, record.reason, "", self.burials[offset].held)
        return verdict


class CopiedWithoutBurial(QueueMachine):
    """The copy is believed, whatever the log says."""

    def _on_copied(self, record: Copied, offset: int, clock_ms: int) -> Verdict:
        verdict = super()._on_copied(record, offset, clock_ms)
        if verdict.kind is not Kind.IGNORED:
            return verdict
        for start, end in packed(record.ranges) or ():
            self.dead.put(start, end, True)
        return ACCEPTED


class CopiedIsNotDead(QueueMachine):
    def _on_copied(self, record: Copied, offset: int, clock_ms: int) -> Verdict:
        dead = list(self.dead)
        verdict = super()._on_copied(record, offset, clock_ms)
        self.dead.load(dead)
        return verdict


class RedrivenTwice(QueueMachine):
    def _on_redriven(self, record: Redriven, offset: int, clock_ms: int) -> Verdict:
        dead = list(self.dead)
        verdict = super()._on_redriven(record, offset, clock_ms)
        self.dead.load(dead)
        return verdict


# Without a lease


class DroppedUnderALease(QueueMachine):
    def may_be_dropped(self, cell: Cell, clock_ms: int) -> bool:
        return cell.status is Status.LEASED or super().may_be_dropped(cell, clock_ms)


class DroppedBeforeTheFence(QueueMachine):
    def may_be_dropped(self, cell: Cell, clock_ms: int) -> bool:
        if cell.status is Status.LEASED:
            return not self.leases[cell.epoch].is_valid(clock_ms)
        return super().may_be_dropped(cell, clock_ms)


class BuriedIsDropped(QueueMachine):
    """A purge takes the dead letters that are still to be written."""

    def may_be_dropped(self, cell: Cell, clock_ms: int) -> bool:
        return cell.status is Status.BURIED or super().may_be_dropped(cell, clock_ms)


class DroppedEndsTheLease(QueueMachine):
    def _on_dropped(self, record: Dropped, offset: int, clock_ms: int) -> Verdict:
        for start, end in packed(record.ranges) or ():
            for run in self.cells.runs(start, end):
                if run.value.status is Status.LEASED and self.leases[run.value.epoch].may_end(clock_ms):
                    self._lose(self.leases[run.value.epoch])
        return super()._on_dropped(record, offset, clock_ms)


class KeptIsFinished(QueueMachine):
    def _on_kept(self, record: Kept, offset: int, clock_ms: int) -> Verdict:
        verdict = super()._on_kept(record, offset, clock_ms)
        for start, end in packed(record.ranges) or ():
            self._finish_kept(self.cells.runs(start, end))
        return verdict

    def _finish_kept(self, runs: list[Run[Cell]]) -> None:
        for run in runs:
            if run.value.is_kept and run.value.status is Status.READY:
                self.cells.put(run.start, run.end, FINISHED)


class FinishedComesBack(QueueMachine):
    """A redriven letter opens its old offset again."""

    def _on_redriven(self, record: Redriven, offset: int, clock_ms: int) -> Verdict:
        verdict = super()._on_redriven(record, offset, clock_ms)
        if verdict.is_accepted:
            for start, end in packed(record.ranges) or ():
                self.cells.put(start, end, READY)
        return verdict


GRAVE_BUGS: tuple[type[QueueMachine], ...] = tuple(
    value
    for value in list(globals().values())
    if isinstance(value, type) and issubclass(value, QueueMachine) and value is not QueueMachine
)
