"""Members that break one rule each, to show that the simulator finds it."""

from __future__ import annotations

from typing import Any

from penstock.claims.decide import Standing
from penstock.claims.member import Member, Tenure
from penstock.claims.records import Beat, Heartbeat, Slot
from penstock.claims.sight import Partition
from penstock.claims.state import Claims, SlotState
from penstock.ledger.clock import LocalLease
from penstock.ledger.tail import Tail
from penstock.testing.claims_cluster import HB_MS


class _NoLocalLease(Member):
    """Bug: a member believes in its slots until the log says otherwise."""

    def is_good(self, tenure: Tenure) -> bool:
        return self.held.get(tenure.slot) is tenure and tenure.leaving is None


class _ActsOnAppend(Member):
    """Bug: a question that was handed over counts as a grant."""

    def _claim(self, slot: Slot, state: SlotState) -> None:
        super()._claim(slot, state)
        lease = LocalLease(lasts_ms=HB_MS)
        lease.renewed(sent_ms=self._now_ms())
        self.held[slot] = Tenure(slot, -1, lease, state.position, state.position)


class _WorksWhileLeaving(Member):
    """Bug: work goes on while the release is under way."""

    def is_good(self, tenure: Tenure) -> bool:
        return self.held.get(tenure.slot) is tenure and tenure.lease.is_good(self._now_ms())


class _TellsAhead(Member):
    """Bug: the position that is told is ahead of what was processed."""

    def _beats(self, number: int) -> tuple[Beat, ...]:
        return tuple(beat._replace(position=(beat.position or 0) + 1) for beat in super()._beats(number))


class _BeatsTooSeldom(Member):
    """Bug: a heartbeat every HB, which is when the local lease is over."""

    def _heartbeat(self, partition: Partition) -> None:
        before = partition.heartbeat
        super()._heartbeat(partition)
        if partition.heartbeat is not before:
            partition.heartbeat_at_ms = self._now_ms() + HB_MS


class _TakesWithoutCalm(Member):
    """Bug: what looks expired is asked for at once, also after an outage or a jump of the log clock."""

    def _may_claim(self, slot: Slot, state: SlotState) -> bool:
        looks_expired = self._sight.standing(slot, state) is Standing.EXPIRED
        return super()._may_claim(slot, state) or (looks_expired and slot not in self._questions)


class _KeepsStrays(Member):
    """Bug: a grant that nobody waits for any more is not given back."""

    def _is_stray(self, slot: Slot, state: SlotState) -> bool:
        return False


class _CountsTheDead(Member):
    """Bug: who has expired keeps its share."""

    def __init__(self, tail: Tail[Claims], **given: Any) -> None:
        super().__init__(tail, **given)
        self._is_asking = False
        honest = self._sight.standing

        def standing(slot: Slot, state: SlotState) -> Standing:
            found = honest(slot, state)
            return Standing.SILENT if found is Standing.EXPIRED and not self._is_asking else found

        self._sight.standing = standing  # type: ignore[method-assign]

    def _may_claim(self, slot: Slot, state: SlotState) -> bool:
        self._is_asking = True
        may = super()._may_claim(slot, state)
        self._is_asking = False
        return may


class _ReleasesInAHurry(Member):
    """Bug: a release does not wait for the heartbeat that is under way."""

    def _give_back(self, partition: Partition) -> None:
        waiting, partition.heartbeat = partition.heartbeat, None
        super()._give_back(partition)
        partition.heartbeat = waiting


class _ReclaimsAgain(Member):
    """Bug: who lost by a reclaim reclaims."""

    def _is_older_self(self, slot: Slot, state: SlotState) -> bool:
        owner = state.owner
        return owner is not None and owner[0] == self.client and owner[1] != self.instance


class _WaitsInVain(Member):
    """Bug: a release waits for a heartbeat that was given up, for ever."""

    def _is_beating(self, partition: Partition, slot: Slot) -> bool:
        record = None if partition.heartbeat is None else partition.heartbeat.record
        return isinstance(record, Heartbeat) and slot in {beat.slot for beat in record.beats}


class _AsksAgainBlindly(Member):
    """Bug: a question that was given up is repeated, whatever became of the slot since."""

    def _drop_overdue_questions(self) -> None:
        pass

    def _may_claim(self, slot: Slot, state: SlotState) -> bool:
        question = self._questions.get(slot)
        return super()._may_claim(slot, state) if question is None else self._sight.is_overdue(question)


class _WaitsAfterPlea(Member):
    """Bug: who has pleaded for a slot does not ask for it for a while, also when it expires meanwhile."""

    def _plead(self, slot: Slot) -> None:
        before = self._plead_at_ms
        super()._plead(slot)
        if self._plead_at_ms != before:
            self._ask_at_ms[slot] = self._plead_at_ms


BUGS: dict[str, type[Member]] = {
    "": Member,
    "no_local_lease": _NoLocalLease,
    "acts_on_append": _ActsOnAppend,
    "works_while_leaving": _WorksWhileLeaving,
    "tells_ahead": _TellsAhead,
    "beats_too_seldom": _BeatsTooSeldom,
    "takes_without_calm": _TakesWithoutCalm,
    "keeps_strays": _KeepsStrays,
    "counts_the_dead": _CountsTheDead,
    "releases_in_a_hurry": _ReleasesInAHurry,
    "reclaims_again": _ReclaimsAgain,
    "waits_in_vain": _WaitsInVain,
    "asks_again_blindly": _AsksAgainBlindly,
    "waits_after_plea": _WaitsAfterPlea,
}
