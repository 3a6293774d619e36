"""Bugs in a member that shares by ranges, for the simulation to find."""

from __future__ import annotations

from penstock.claims.blocks import Block
from penstock.claims.range_member import RangeMember


class _NoLocalLease(RangeMember):
    """Bug: a member believes in its blocks until the log says otherwise."""

    def is_good(self, block: Block) -> bool:
        return block.is_held


class _KeepsStrays(RangeMember):
    """Bug: what was granted to a question that nobody waits for any more is kept."""

    def _look(self, slot, shared) -> None:  # type: ignore[no-untyped-def]
        self._let_go |= {tenancy.epoch for _, tenancy in self._ours(slot)}
        super()._look(slot, shared)


class _CountsWhatIsReturned(RangeMember):
    """Bug: what was never handed out is given back as if it had failed."""

    def _tend(self, shared) -> None:  # type: ignore[no-untyped-def]
        for block in shared.blocks:
            self._trim(shared, block)
            for start, end in block.returned:
                block.returned.remove(start, end)
                block.failed.add(start, end)
        super()._tend(shared)


class _AcksWhatIsTaken(RangeMember):
    """Bug: what is handed out is told as finished."""

    def take(self, block: Block, upto: int) -> tuple[int, int]:
        start, end = super().take(block, upto)
        if start < end:
            block.finished.add(start, end)
        return start, end


class _CrowdsSuspects(RangeMember):
    """Bug: a suspect is worked on beside other blocks."""

    def _is_crowded(self, block: Block) -> bool:
        return False

    def _may_hand_out(self, block: Block) -> bool:
        return not block.is_to_bury and self.is_good(block)


class _GivesBackWhatIsInWork(RangeMember):
    """Bug: an idle member gives back also what it has handed out, and its holder goes on."""

    def _trim(self, shared, block) -> None:  # type: ignore[no-untyped-def]
        if block.outstanding:
            block.returned.add(block.start, block.end)


class _RevivesLeases(RangeMember):
    """Bug: a lease that was over is good again, though its work was dropped meanwhile."""

    def _on_renewed(self, block: Block, sent_ms: int) -> None:
        block.lease.renewed(sent_ms=sent_ms)


BUGS: dict[str, type[RangeMember]] = {
    "": RangeMember,
    "no_local_lease": _NoLocalLease,
    "keeps_strays": _KeepsStrays,
    "counts_what_is_returned": _CountsWhatIsReturned,
    "acks_what_is_taken": _AcksWhatIsTaken,
    "crowds_suspects": _CrowdsSuspects,
    "revives_leases": _RevivesLeases,
    "gives_back_what_is_in_work": _GivesBackWhatIsInWork,
}
