"""Claims machines that each break one rule of whole slots, to show that a search finds it. Never for use."""

from __future__ import annotations

from msgspec.structs import replace as changed

from penstock.claims.intervals import Owner
from penstock.claims.records import Beat, Claimed, ClaimReleased, Intended, ProducersFenced
from penstock.claims.state import Claims
from penstock.ledger.machine import ACCEPTED, Kind, Verdict, ignored
from penstock.testing.claims_range_bugs import RANGE_BUGS

# Heartbeats


class HeartbeatGrants(Claims):
    """Marshal's: who heartbeats on a free slot has it."""

    def _on_beat(self, sender: Owner, beat: Beat, clock_ms: int) -> Verdict:
        state = self.slot(beat.slot)
        if self.valid_owner(state, clock_ms) is None and beat.epoch == state.epoch >= 0:
            state.owner = sender
        return super()._on_beat(sender, beat, clock_ms)


class HeartbeatOfAnyEpoch(Claims):
    def _on_beat(self, sender: Owner, beat: Beat, clock_ms: int) -> Verdict:
        return super()._on_beat(sender, beat._replace(epoch=self.slot(beat.slot).epoch), clock_ms)


class HeartbeatOfAnyInstance(Claims):
    def _on_beat(self, sender: Owner, beat: Beat, clock_ms: int) -> Verdict:
        owner = self.slot(beat.slot).owner
        return super()._on_beat(owner if owner is not None and owner[0] == sender[0] else sender, beat, clock_ms)


class HeartbeatReplacesProducers(Claims):
    """Forgets an id that is not fenced yet."""

    def _on_beat(self, sender: Owner, beat: Beat, clock_ms: int) -> Verdict:
        verdict = super()._on_beat(sender, beat, clock_ms)
        if verdict.is_accepted and beat.producer is not None:
            self.slots[beat.slot].producers = {beat.producer}
        return verdict


class HeartbeatFencesItself(Claims):
    """Adds the producer before it takes the fenced ones away."""

    def _on_beat(self, sender: Owner, beat: Beat, clock_ms: int) -> Verdict:
        fenced = (*beat.fenced, *self.slot(beat.slot).producers) if beat.fenced else ()
        verdict = super()._on_beat(sender, beat._replace(producer=None, fenced=fenced), clock_ms)
        if verdict.is_accepted and beat.producer is not None and not beat.fenced:
            self.slots[beat.slot].producers.add(beat.producer)
        return verdict


class HeartbeatMovesBack(Claims):
    def _on_beat(self, sender: Owner, beat: Beat, clock_ms: int) -> Verdict:
        verdict = super()._on_beat(sender, beat, clock_ms)
        if verdict.is_accepted and beat.position is not None:
            self.slots[beat.slot].position = beat.position
        return verdict


class LateHeartbeatRefused(Claims):
    """Loses a slot that nobody else wanted."""

    def _on_beat(self, sender: Owner, beat: Beat, clock_ms: int) -> Verdict:
        if self.valid_owner(self.slot(beat.slot), clock_ms) is None:
            return ignored("expired")
        return super()._on_beat(sender, beat, clock_ms)


# Claims


class ClaimIgnoresExpects(Claims):
    def _on_claimed(self, record: Claimed, offset: int, clock_ms: int) -> Verdict:
        return super()._on_claimed(changed(record, expects=None), offset, clock_ms)


class ClaimOverridesValidOwner(Claims):
    def _on_claimed(self, record: Claimed, offset: int, clock_ms: int) -> Verdict:
        state = self.slots.get(record.slot)
        if state is not None and state.owner is not None and state.owner[0] != record.client:
            state.owner = None
        return super()._on_claimed(record, offset, clock_ms)


class ReclaimByAnotherClient(Claims):
    def _on_claimed(self, record: Claimed, offset: int, clock_ms: int) -> Verdict:
        state = self.slots.get(record.slot)
        if state is not None and state.owner is not None and state.owner[0] != record.client and record.reclaim:
            state.owner = None
        return super()._on_claimed(record, offset, clock_ms)


class EveryClaimReclaims(Claims):
    def _on_claimed(self, record: Claimed, offset: int, clock_ms: int) -> Verdict:
        return super()._on_claimed(changed(record, reclaim=True), offset, clock_ms)


class OwnerGrantedAnew(Claims):
    """A doubled claim of the valid owner gets a new epoch, and its work under the old one is void."""

    def _on_claimed(self, record: Claimed, offset: int, clock_ms: int) -> Verdict:
        verdict = super()._on_claimed(record, offset, clock_ms)
        if verdict.kind is not Kind.UNCHANGED:
            return verdict
        self.slots[record.slot].epoch = offset
        return ACCEPTED


class EpochIsACounter(Claims):
    def _on_claimed(self, record: Claimed, offset: int, clock_ms: int) -> Verdict:
        return super()._on_claimed(record, self.slot(record.slot).epoch + 1, clock_ms)


class GrantForgetsProducers(Claims):
    """Keeps the id of the last one only."""

    def _on_claimed(self, record: Claimed, offset: int, clock_ms: int) -> Verdict:
        verdict = super()._on_claimed(record, offset, clock_ms)
        if verdict.is_accepted and record.producer is not None:
            self.slots[record.slot].producers = {record.producer}
        return verdict


class IntentSurvivesGrant(Claims):
    def _on_claimed(self, record: Claimed, offset: int, clock_ms: int) -> Verdict:
        intent = self.slot(record.slot).intent
        verdict = super()._on_claimed(record, offset, clock_ms)
        if verdict.is_accepted:
            self.slots[record.slot].intent = intent
        return verdict


class PauseIgnored(Claims):
    def _paused_for(self, group: str, client: str, clock_ms: int) -> Verdict | None:
        return None


class PauseForItsAuthorToo(Claims):
    def _paused_for(self, group: str, client: str, clock_ms: int) -> Verdict | None:
        return super()._paused_for(group, "", clock_ms)


class ValidAtTheVeryEnd(Claims):
    """`<=` where `<` is meant."""

    def is_valid(self, renewed_ms: int, clock_ms: int) -> bool:
        return clock_ms - renewed_ms <= self.lease_ms


# Releases, intents, fenced producers


class ReleaseOfAnyEpoch(Claims):
    def _on_released(self, record: ClaimReleased, offset: int, clock_ms: int) -> Verdict:
        return super()._on_released(changed(record, epoch=self.slot(record.slot).epoch), offset, clock_ms)


class ResetNeverGoesBack(Claims):
    def _on_released(self, record: ClaimReleased, offset: int, clock_ms: int) -> Verdict:
        return super()._on_released(changed(record, reset=False), offset, clock_ms)


class ReleaseForgetsTheEpoch(Claims):
    """A token from before the release is then as good as a new one."""

    def _on_released(self, record: ClaimReleased, offset: int, clock_ms: int) -> Verdict:
        verdict = super()._on_released(record, offset, clock_ms)
        if verdict.is_accepted:
            self.slots[record.slot].epoch = -1
        return verdict


class TokensComeAgain(Claims):
    """A counter that begins anew after a release: two owners with the same token."""

    def _on_claimed(self, record: Claimed, offset: int, clock_ms: int) -> Verdict:
        return super()._on_claimed(record, self.slot(record.slot).epoch + 1, clock_ms)

    def _on_released(self, record: ClaimReleased, offset: int, clock_ms: int) -> Verdict:
        verdict = super()._on_released(record, offset, clock_ms)
        if verdict.is_accepted:
            self.slots[record.slot].epoch = -1
        return verdict


class ReleaseKeepsFenced(Claims):
    def _on_released(self, record: ClaimReleased, offset: int, clock_ms: int) -> Verdict:
        return super()._on_released(changed(record, fenced=()), offset, clock_ms)


class IntendedAfterExpiry(Claims):
    def _on_intended(self, record: Intended, offset: int, clock_ms: int) -> Verdict:
        return super()._on_intended(record, offset, self.slot(record.slot).renewed_ms)


class FencedUnderAValidOwner(Claims):
    def _on_producers_fenced(self, record: ProducersFenced, offset: int, clock_ms: int) -> Verdict:
        return super()._on_producers_fenced(record, offset, clock_ms + self.lease_ms)


class FencedBeforeALaterGrant(Claims):
    """Clears an id that somebody has initialised anew since."""

    def _on_producers_fenced(self, record: ProducersFenced, offset: int, clock_ms: int) -> Verdict:
        return super()._on_producers_fenced(changed(record, epoch=None), offset, clock_ms)


OWNER_BUGS: tuple[type[Claims], ...] = (
    HeartbeatGrants,
    HeartbeatOfAnyEpoch,
    HeartbeatOfAnyInstance,
    HeartbeatReplacesProducers,
    HeartbeatFencesItself,
    HeartbeatMovesBack,
    LateHeartbeatRefused,
    ClaimIgnoresExpects,
    ClaimOverridesValidOwner,
    ReclaimByAnotherClient,
    EveryClaimReclaims,
    OwnerGrantedAnew,
    EpochIsACounter,
    GrantForgetsProducers,
    IntentSurvivesGrant,
    PauseIgnored,
    PauseForItsAuthorToo,
    ValidAtTheVeryEnd,
    ReleaseOfAnyEpoch,
    ResetNeverGoesBack,
    ReleaseForgetsTheEpoch,
    TokensComeAgain,
    ReleaseKeepsFenced,
    IntendedAfterExpiry,
    FencedUnderAValidOwner,
    FencedBeforeALaterGrant,
)
BUGS = (*OWNER_BUGS, *RANGE_BUGS)
