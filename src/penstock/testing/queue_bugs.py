"""Queue machines that each break one rule of leases, to show that a search finds it. Never for use."""

from __future__ import annotations

from msgspec.structs import replace as changed

from penstock.ledger.machine import ACCEPTED, Kind, Verdict, ignored
from penstock.queue.cells import FINISHED, READY, Cell, Status
from penstock.queue.leases import Lease
from penstock.queue.ranges import Ranges, packed
from penstock.queue.records import (
    Acked,
    LeaseFenced,
    Progressed,
    Released,
    Renewed,
    Taken,
)
from penstock.queue.state import QueueMachine
from penstock.testing.queue_grave_bugs import GRAVE_BUGS

# Grants


class LeaseDiesByHalves(QueueMachine):
    """Who is granted a part ends the old lease for that part only."""

    def _on_taken(self, record: Taken, offset: int, clock_ms: int) -> Verdict:
        for start, end in packed(record.ranges) or ():
            for run in self.cells.runs(start, end):
                if run.value.status is Status.LEASED and self.leases[run.value.epoch].may_end(clock_ms):
                    lease = self.leases[run.value.epoch]
                    self.cells.put(run.start, run.end, run.value.lost(alone=lease.alone))
                    self._leave(lease, [(run.start, run.end)])
        return super()._on_taken(record, offset, clock_ms)


class AttemptChargedAtTheTake(QueueMachine):
    """A crash then counts against every message that was in hand."""

    def _lease(self, ranges: Ranges, epoch: int) -> None:
        super()._lease(ranges, epoch)
        self.cells.change(ranges, lambda cell: cell._replace(charges=cell.charges + 1))


class OneRememberedProducer(QueueMachine):
    """Only the newest lease's producer is known; older ones are granted again without a fence."""

    def may_be_granted(self, cell: Cell, clock_ms: int) -> bool:
        if cell.status is Status.LEASED and cell.epoch != max(self.leases):
            return not self.leases[cell.epoch].is_valid(clock_ms)
        return super().may_be_granted(cell, clock_ms)


class UnfencedGranted(QueueMachine):
    def may_be_granted(self, cell: Cell, clock_ms: int) -> bool:
        if cell.status is Status.LEASED:
            return not self.leases[cell.epoch].is_valid(clock_ms)
        return super().may_be_granted(cell, clock_ms)


class WaitingGrantedEarly(QueueMachine):
    def may_be_granted(self, cell: Cell, clock_ms: int) -> bool:
        return cell.status is Status.WAITING or super().may_be_granted(cell, clock_ms)


class BuriedGrantedAgain(QueueMachine):
    def may_be_granted(self, cell: Cell, clock_ms: int) -> bool:
        return cell.status is Status.BURIED or super().may_be_granted(cell, clock_ms)


class ValidAtTheVeryEnd(QueueMachine):
    """`<=` where `<` is meant."""

    def may_be_granted(self, cell: Cell, clock_ms: int) -> bool:
        return super().may_be_granted(cell, clock_ms - 1 if cell.status is Status.LEASED else clock_ms)


class OwnLeaseTakenAgain(QueueMachine):
    """A doubled `Taken` gets a new epoch, and the work under the first is void."""

    def _on_taken(self, record: Taken, offset: int, clock_ms: int) -> Verdict:
        for lease in [lease for lease in self.leases.values() if lease.worker == record.worker]:
            self._lose(lease)
        return super()._on_taken(record, offset, clock_ms)


class AllOrNothing(QueueMachine):
    def _on_taken(self, record: Taken, offset: int, clock_ms: int) -> Verdict:
        _, refused = self._sorted_out(packed(record.ranges) or (), clock_ms, self.may_be_granted)
        return ignored("not all is free") if refused else super()._on_taken(record, offset, clock_ms)


class GrantsWhatWasAsked(QueueMachine):
    """The lease covers also what was refused."""

    def _on_taken(self, record: Taken, offset: int, clock_ms: int) -> Verdict:
        verdict = super()._on_taken(record, offset, clock_ms)
        if verdict.kind is Kind.PARTIAL:
            self.leases[offset].held = list(packed(record.ranges) or ())
        return verdict


class EpochIsACounter(QueueMachine):
    def _on_taken(self, record: Taken, offset: int, clock_ms: int) -> Verdict:
        return super()._on_taken(record, max(self.leases, default=0) + 1, clock_ms)


class PauseIgnored(QueueMachine):
    def _on_taken(self, record: Taken, offset: int, clock_ms: int) -> Verdict:
        pauses, self.pauses = self.pauses, {}
        verdict = super()._on_taken(record, offset, clock_ms)
        self.pauses = pauses
        return verdict


# The end of a lease


class LossNotCounted(QueueMachine):
    def _lose(self, lease: Lease) -> None:
        held = tuple(lease.held)
        super()._lose(lease)
        self.cells.change(held, lambda cell: cell._replace(losses=cell.losses - 1))


class AloneNotCharged(QueueMachine):
    """A message that kills its process is never found."""

    def _lose(self, lease: Lease) -> None:
        lease.alone = False
        super()._lose(lease)


class EveryLossCharged(QueueMachine):
    """The neighbours of a message that kills its process are buried with it."""

    def _lose(self, lease: Lease) -> None:
        lease.alone = True
        super()._lose(lease)


class LossForgetsTheToken(QueueMachine):
    def _lose(self, lease: Lease) -> None:
        held = tuple(lease.held)
        super()._lose(lease)
        self.cells.change(held, lambda cell: cell._replace(progress=None))


class LossForgetsTheKeptCopy(QueueMachine):
    def _lose(self, lease: Lease) -> None:
        held = tuple(lease.held)
        super()._lose(lease)
        self.cells.change(held, lambda cell: cell._replace(is_kept=False))


class FencedWhileValid(QueueMachine):
    def _on_fenced(self, record: LeaseFenced, offset: int, clock_ms: int) -> Verdict:
        lease = self.leases.get(record.epoch)
        return super()._on_fenced(record, offset, clock_ms if lease is None else lease.renewed_ms + lease.lease_ms)


class FenceIsNoLoss(QueueMachine):
    def _on_fenced(self, record: LeaseFenced, offset: int, clock_ms: int) -> Verdict:
        lease = self.leases.get(record.epoch)
        verdict = super()._on_fenced(record, offset, clock_ms)
        if lease is not None and verdict.is_accepted:
            self.cells.change(tuple(lease.held), lambda cell: READY)
        return verdict


class PositionIsTheHighest(QueueMachine):
    """Gaps are forgotten."""

    @property
    def position(self) -> int:
        return max((start for start, _ in self.cells), default=0)


# Renewals


class RenewedByAnybody(QueueMachine):
    def _renewed(self, worker: str, epoch: int, clock_ms: int) -> Verdict:
        lease = self.leases.get(epoch)
        return super()._renewed(worker if lease is None else lease.worker, epoch, clock_ms)


class LateRenewalRefused(QueueMachine):
    def _renewed(self, worker: str, epoch: int, clock_ms: int) -> Verdict:
        lease = self.leases.get(epoch)
        if lease is not None and not lease.is_valid(clock_ms):
            return ignored("expired")
        return super()._renewed(worker, epoch, clock_ms)


class RenewalBringsBack(QueueMachine):
    """A renewal under an epoch that is over gives the worker what is free."""

    def _on_renewed(self, record: Renewed, offset: int, clock_ms: int) -> Verdict:
        free = tuple(
            (run.start, run.end) for run in self.cells.runs(0, 2) if run.value.losses and run.value.status is READY[0]
        )
        for epoch in record.epochs:
            if epoch not in self.leases and free:
                self._lease(free, epoch)
                self.leases[epoch] = Lease(epoch, record.worker, clock_ms, 2, None, False, list(free))
        return super()._on_renewed(record, offset, clock_ms)


class OneVerdictForAllEpochs(QueueMachine):
    """One lease that is over, and the others are not renewed."""

    def _on_renewed(self, record: Renewed, offset: int, clock_ms: int) -> Verdict:
        mine = [epoch for epoch in record.epochs if epoch in self.leases]
        if any(self.leases[epoch].worker != record.worker for epoch in mine) or len(mine) < len(record.epochs):
            return ignored("not all of them")
        return super()._on_renewed(record, offset, clock_ms)


# Under a lease


class AckAfterTheEnd(QueueMachine):
    """What the zombie has finished is finished, it says."""

    def _on_acked(self, record: Acked, offset: int, clock_ms: int) -> Verdict:
        if record.epoch in self.leases:
            return super()._on_acked(record, offset, clock_ms)
        free, _ = self._sorted_out(packed(record.ranges) or (), clock_ms, lambda cell, _: cell.status is Status.READY)
        for run in free:
            self.cells.put(run.start, run.end, FINISHED)
        return ACCEPTED


class AckUnderTheNextLease(QueueMachine):
    """By offset, whoever has it now."""

    def _on_acked(self, record: Acked, offset: int, clock_ms: int) -> Verdict:
        for start, end in packed(record.ranges) or ():
            for run in self.cells.runs(start, end):
                if run.value.status is Status.LEASED:
                    return super()._on_acked(changed(record, epoch=run.value.epoch), offset, clock_ms)
        return super()._on_acked(record, offset, clock_ms)


class LateAckRefused(QueueMachine):
    """Work that nobody else wanted is thrown away."""

    def _on_acked(self, record: Acked, offset: int, clock_ms: int) -> Verdict:
        lease = self.leases.get(record.epoch)
        if lease is not None and not lease.is_valid(clock_ms):
            return ignored("expired")
        return super()._on_acked(record, offset, clock_ms)


class AckFinishesAllItNames(QueueMachine):
    def _on_acked(self, record: Acked, offset: int, clock_ms: int) -> Verdict:
        verdict = super()._on_acked(record, offset, clock_ms)
        if verdict.kind is Kind.PARTIAL:
            ready = [run for a, b in record.ranges for run in self.cells.runs(a, b) if run.value.status is READY[0]]
            for run in ready:
                self.cells.put(run.start, run.end, FINISHED)
        return verdict


class AckEndsTheLease(QueueMachine):
    """The first ack of a batch loses the rest of it."""

    def _on_acked(self, record: Acked, offset: int, clock_ms: int) -> Verdict:
        verdict = super()._on_acked(record, offset, clock_ms)
        if record.epoch in self.leases and verdict.kind is not Kind.IGNORED:
            self._lose(self.leases[record.epoch])
        return verdict


class CountedReleaseIsFree(QueueMachine):
    def _on_released(self, record: Released, offset: int, clock_ms: int) -> Verdict:
        return super()._on_released(changed(record, counts=False), offset, clock_ms)


class EveryReleaseCounts(QueueMachine):
    def _on_released(self, record: Released, offset: int, clock_ms: int) -> Verdict:
        return super()._on_released(changed(record, counts=True), offset, clock_ms)


class ReleaseForgetsTheDelay(QueueMachine):
    def _on_released(self, record: Released, offset: int, clock_ms: int) -> Verdict:
        return super()._on_released(changed(record, delay_ms=0), offset, clock_ms)


class ReleaseForgetsTheCharges(QueueMachine):
    """Who is released uncounted begins anew."""

    def _on_released(self, record: Released, offset: int, clock_ms: int) -> Verdict:
        verdict = super()._on_released(record, offset, clock_ms)
        if verdict.is_accepted and not record.counts:
            self.cells.change(packed(record.ranges) or (), lambda cell: cell._replace(charges=0))
        return verdict


class TokenFromOutside(QueueMachine):
    """A zombie's resume token overwrites that of the present attempt."""

    def _on_progressed(self, record: Progressed, offset: int, clock_ms: int) -> Verdict:
        if record.epoch not in self.leases and self.cells.at(record.offset) is not FINISHED:
            self.cells.change(((record.offset, record.offset + 1),), lambda cell: cell._replace(progress=record.data))
            return ACCEPTED
        return super()._on_progressed(record, offset, clock_ms)


LEASE_BUGS: tuple[type[QueueMachine], ...] = tuple(
    value
    for value in list(globals().values())
    if isinstance(value, type) and issubclass(value, QueueMachine) and value is not QueueMachine
)
BUGS = (*LEASE_BUGS, *GRAVE_BUGS)
