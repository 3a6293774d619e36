"""Claims machines that each break one rule of ranges, to show that a search finds it. Never for use."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from msgspec.structs import replace as changed

from penstock.claims.intervals import Interval, Status, Tenancy
from penstock.claims.records import Claimed, RangeAcked, RangeClaimed, RangeFenced, RangeReleased, RangeRenewed
from penstock.claims.state import Claims, SlotState
from penstock.ledger.machine import ACCEPTED, Kind, Verdict


class RangeEpochDiesByHalves(Claims):
    """Only the part that is granted again leaves its old epoch."""

    def _candidate(self, state: SlotState, clock_ms: int) -> Interval | None:
        before = list(state.map.items)
        candidate = super()._candidate(state, clock_ms)
        if candidate is not None:
            state.map.items = before
        return candidate


class AckAfterTheEpochIsOver(Claims):
    def _on_range_acked(self, record: RangeAcked, offset: int, clock_ms: int) -> Verdict:
        verdict = super()._on_range_acked(record, offset, clock_ms)
        state = self.slot(record.slot)
        covering = [item for item in state.map if item.start <= record.start < record.end <= item.end]
        if verdict.kind is Kind.IGNORED and covering and covering[0].status is Status.LOST:
            return self._finish(state, replace(covering[0], start=record.start, end=record.end), Status.DONE)
        return verdict


class BurialAcked(Claims):
    """A poisonous message that was about to be buried counts as done."""

    def _on_range_acked(self, record: RangeAcked, offset: int, clock_ms: int) -> Verdict:
        held = self._held(record)
        return super()._on_range_acked(record, offset, clock_ms) if isinstance(held, Verdict) else self._done(held)

    def _done(self, held: tuple[SlotState, Interval]) -> Verdict:
        return self._finish(*held, Status.DONE)


class UnfencedRangeGranted(Claims):
    """The transaction of its last holder may still commit."""

    def _has_run_out(self, tenancy: Tenancy, clock_ms: int) -> bool:
        return not self.is_valid(tenancy.renewed_ms, clock_ms)


class ClaimBesideLiveRanges(Claims):
    def has_live_ranges(self, state: SlotState, clock_ms: int) -> bool:
        return False


class ClaimLeavesRangesAlive(Claims):
    """Who renews an expired range after the grant then shares the slot with its owner."""

    def _end_epochs(self, state: SlotState) -> None:
        return None


class ClaimForgetsRangeProducers(Claims):
    def _on_claimed(self, record: Claimed, offset: int, clock_ms: int) -> Verdict:
        producers = set(self.slot(record.slot).producers)
        verdict = super()._on_claimed(record, offset, clock_ms)
        if verdict.is_accepted:
            own = set() if record.producer is None else {record.producer}
            self.slots[record.slot].producers = producers | own
        return verdict


class FrontierBeyondWindow(Claims):
    def _grant(self, record: RangeClaimed, state: SlotState, tenancy: Tenancy, clock_ms: int) -> bool:
        founded = self.founded
        self.founded = changed(founded, window=founded.window + 1)
        is_granted = super()._grant(record, state, tenancy, clock_ms)
        self.founded = founded
        return is_granted


class LostRangeComesBackWhole(Claims):
    """Every crash then takes the innocent along with the poison."""

    def _block(self, candidate: Interval, n: int, tenancy: Tenancy) -> Interval:
        return super()._block(replace(candidate, most=candidate.size), n, tenancy)


class RangesBesideUnfencedProducers(Claims):
    def _on_range_claimed(self, record: RangeClaimed, offset: int, clock_ms: int) -> Verdict:
        state = self.slot(record.slot)
        producers, state.producers = state.producers, set()
        verdict = super()._on_range_claimed(record, offset, clock_ms)
        state.producers = producers
        return verdict


class RangeBesideAnOwner(Claims):
    def _on_range_claimed(self, record: RangeClaimed, offset: int, clock_ms: int) -> Verdict:
        state = self.slots.get(record.slot)
        owner = None if state is None else state.owner
        if state is not None:
            state.owner = None
        verdict = super()._on_range_claimed(record, offset, clock_ms)
        if state is not None:
            state.owner = owner
        return verdict


class LoneLossCostsNothing(Claims):
    """A poison alone in its block kills for ever."""

    def _candidate(self, state: SlotState, clock_ms: int) -> Interval | None:
        charges = {item.start: item.charges for item in state.map}
        candidate = super()._candidate(state, clock_ms)
        return None if candidate is None else replace(candidate, charges=charges[candidate.start])


class PoisonGrantedInCompany(Claims):
    """What must be buried is handed out once more."""

    def _block(self, candidate: Interval, n: int, tenancy: Tenancy) -> Interval:
        return super()._block(replace(candidate, charges=0), n, tenancy)


class UncountedReleaseCosts(Claims):
    """What was claimed ahead and never handed out dies of it."""

    def _on_range_released(self, record: RangeReleased, offset: int, clock_ms: int) -> Verdict:
        return super()._on_range_released(changed(record, counts=True), offset, clock_ms)


class IslandsNotSkipped(Claims):
    def _finish(self, state: SlotState, item: Interval, status: Status) -> Verdict:
        state.map.put(replace(item, status=status, tenancy=None))
        if state.position == item.start:
            state.position = item.end
            state.map.items = [left for left in state.map if left.start >= item.end]
        return ACCEPTED


class RenewedByAnybody(Claims):
    def _on_range_renewed(self, record: RangeRenewed, offset: int, clock_ms: int) -> Verdict:
        return super()._on_range_renewed(self._as_holder(record), offset, clock_ms)

    def _as_holder(self, record: Any) -> Any:
        for item in self.slot(record.slot).map.of_epoch(record.epoch):
            if item.tenancy is not None:
                return changed(record, client=item.tenancy.owner[0], instance=item.tenancy.owner[1])
        return record


class LiveRangeFenced(Claims):
    def _on_range_fenced(self, record: RangeFenced, offset: int, clock_ms: int) -> Verdict:
        return super()._on_range_fenced(record, offset, clock_ms + self.lease_ms)


class FinishedPrefixStays(Claims):
    """The position waits for somebody to own the whole slot."""

    def _finish(self, state: SlotState, item: Interval, status: Status) -> Verdict:
        state.map.put(replace(item, status=status, tenancy=None))
        return ACCEPTED


class ClaimForgetsIslands(Claims):
    """What was done above the position is done again."""

    def _end_epochs(self, state: SlotState) -> None:
        super()._end_epochs(state)
        state.map.items = [
            replace(item, status=Status.LOST, most=1) if item.status is Status.DONE else item for item in state.map
        ]


RANGE_BUGS: tuple[type[Claims], ...] = (
    RangeEpochDiesByHalves,
    AckAfterTheEpochIsOver,
    BurialAcked,
    UnfencedRangeGranted,
    ClaimBesideLiveRanges,
    ClaimLeavesRangesAlive,
    ClaimForgetsRangeProducers,
    FrontierBeyondWindow,
    LostRangeComesBackWhole,
    RangesBesideUnfencedProducers,
    RangeBesideAnOwner,
    LoneLossCostsNothing,
    PoisonGrantedInCompany,
    UncountedReleaseCosts,
    IslandsNotSkipped,
    RenewedByAnybody,
    LiveRangeFenced,
    FinishedPrefixStays,
    ClaimForgetsIslands,
)
