"""What must hold whenever a queue's record was judged: invariants first, then the rule for that very record.

The checker watches transitions from outside. It asks the machine nothing: who is valid, what is finished and what may
be granted it works out itself, from plain values.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from penstock.ledger.machine import Kind
from penstock.queue.records import (
    Acked,
    Buried,
    Copied,
    Dropped,
    LeaseFenced,
    Progressed,
    Redriven,
    Released,
    Renewed,
    Taken,
)
from penstock.testing.queue_rules import expected
from penstock.testing.queue_view import Spot, Transition, View

_UNDER_A_LEASE = (Acked, Released, Buried, Progressed)


def violation(seen: Transition) -> str | None:
    """The first thing that is wrong with a transition: an invariant, or what only the record's own rule forbids."""
    for invariant in INVARIANTS:
        for wrong in invariant(seen):
            return f"{invariant.__name__}: {wrong}"
    return broken_rule(seen)


def broken_rule(seen: Transition) -> str | None:
    kind, covered, after = expected(seen.record, seen.offset, seen.clock_ms, seen.before)
    name = type(seen.record).__name__
    if (seen.kind, seen.covered) != (kind, covered):
        return f"rule of {name}: {seen.kind.value} {sorted(seen.covered)}, must be {kind.value} {sorted(covered)}"
    differing = [field for field in View._fields if getattr(seen.after, field) != getattr(after, field)]
    details = "; ".join(
        f"{field} is {getattr(seen.after, field)}, must be {getattr(after, field)}" for field in differing
    )
    return f"rule of {name}: {details}" if differing else None


def _moves(seen: Transition) -> Iterator[tuple[int, Spot, Spot]]:
    for number, (before, after) in enumerate(zip(seen.before.spots, seen.after.spots, strict=True)):
        if before != after:
            yield number, before, after


# The whole


def refused_records_change_nothing(seen: Transition) -> Iterator[str]:
    if seen.kind in (Kind.IGNORED, Kind.UNCHANGED) and seen.before != seen.after:
        yield f"{seen.kind.value}, yet the state changed"


def positions_never_go_back(seen: Transition) -> Iterator[str]:
    if seen.after.position < seen.before.position:
        yield f"from {seen.before.position} to {seen.after.position}"


def positions_stand_at_the_first_unfinished(seen: Transition) -> Iterator[str]:
    unfinished = [number for number, spot in enumerate(seen.after.spots) if not spot.is_finished]
    first = min(unfinished, default=seen.after.position)
    if seen.after.position != first:
        yield f"{seen.after.position}, but {first} is the first unfinished"


def leases_and_offsets_agree(seen: Transition) -> Iterator[str]:
    told = {epoch: lease.held for epoch, lease in seen.after.leases}
    epochs = {spot.epoch for spot in seen.after.spots if spot.status == "leased"}
    held = {
        epoch: tuple(
            number for number, spot in enumerate(seen.after.spots) if (spot.status, spot.epoch) == ("leased", epoch)
        )
        for epoch in epochs
    }
    if told != held:
        yield f"leases have {told}, offsets say {held}"


def epochs_are_offsets(seen: Transition) -> Iterator[str]:
    new = {epoch for epoch, _ in seen.after.leases} - {epoch for epoch, _ in seen.before.leases}
    if new - {seen.offset}:
        yield f"epochs {sorted(new)} by the record at {seen.offset}"


# Offsets


def finished_offsets_stay_finished(seen: Transition) -> Iterator[str]:
    for number, before, after in _moves(seen):
        if before.is_finished:
            yield f"{number} is {after.status} again"


def attempts_never_go_down(seen: Transition) -> Iterator[str]:
    for number, before, after in _moves(seen):
        if not after.is_finished and (after.charges < before.charges or after.losses < before.losses):
            yield f"{number} had {before.charges} charges, {before.losses} losses, and has {after}"


def charges_have_a_cause(seen: Transition) -> Iterator[str]:
    """A counted release, a burial, or the loss of a lease in which it was alone."""
    record = seen.record
    for number, before, after in _moves(seen):
        if after.is_finished or after.charges == before.charges:
            continue
        lease = seen.before.lease(before.epoch)
        is_alone_lost = lease is not None and lease.alone and after.losses == before.losses + 1
        is_counted = (isinstance(record, Released) and record.counts) or isinstance(record, Buried)
        if not is_alone_lost and not is_counted:
            yield f"{number} was charged by {type(record).__name__}"


def failures_are_charged(seen: Transition) -> Iterator[str]:
    record = seen.record
    for number, before, after in _moves(seen):
        lease = seen.before.lease(before.epoch) if before.status == "leased" else None
        is_lost = lease is not None and after.losses > before.losses
        is_alone_lost = is_lost and lease is not None and lease.alone
        is_counted = isinstance(record, Released) and record.counts
        if (is_counted or is_alone_lost) and not after.is_finished and after.charges == before.charges:
            yield f"{number} was not charged"


def losses_are_counted(seen: Transition) -> Iterator[str]:
    """Whoever leaves a lease by another's word has lost it; by its own word, it has not."""
    for number, before, after in _moves(seen):
        if before.status != "leased" or after.is_finished or after.epoch == before.epoch:
            continue
        is_own_word = isinstance(seen.record, _UNDER_A_LEASE)
        if (after.losses - before.losses) != (0 if is_own_word else 1):
            yield f"{number} had {before.losses} losses and has {after.losses}"


def waiting_offsets_wait(seen: Transition) -> Iterator[str]:
    for number, before, after in _moves(seen):
        if before.status == "waiting" and after.status == "leased" and before.due_ms > seen.clock_ms:
            yield f"{number} was to wait until {before.due_ms}, and was granted at {seen.clock_ms}"


def tokens_and_kept_copies_stay_to_the_end(seen: Transition) -> Iterator[str]:
    for number, before, after in _moves(seen):
        if after.is_finished:
            continue
        if before.is_kept and not after.is_kept:
            yield f"{number} is not kept any more"
        is_token_lost = before.progress != after.progress and not isinstance(seen.record, Progressed | Buried)
        if is_token_lost:
            yield f"{number} lost its resume token"


# Leases


def live_leases_are_left_alone(seen: Transition) -> Iterator[str]:
    """A valid one, or one whose producer may still commit, loses an offset only by its own epoch's word."""
    record = seen.record
    for epoch, lease in seen.before.leases:
        is_valid = lease.is_valid(seen.clock_ms)
        if not is_valid and lease.producer is None:
            continue
        gone = [number for number in lease.held if seen.after.spots[number].epoch != epoch]
        is_own_word = isinstance(record, _UNDER_A_LEASE) and record.epoch == epoch
        is_fence = isinstance(record, LeaseFenced) and record.epoch == epoch and not is_valid
        if gone and not is_own_word and not is_fence:
            yield f"{gone} of {lease.worker} under {epoch} went by {type(record).__name__}"


def leases_die_whole(seen: Transition) -> Iterator[str]:
    """Where one of its offsets was lost or went to another, nothing is held under it any more."""
    for epoch, lease in seen.before.leases:
        lost = [
            number
            for number in lease.held
            if seen.after.spots[number].epoch != epoch
            and isinstance(seen.record, Taken | LeaseFenced)
            and not seen.after.spots[number].is_finished
        ]
        rest = [
            number for number, spot in enumerate(seen.after.spots) if (spot.status, spot.epoch) == ("leased", epoch)
        ]
        if lost and rest:
            yield f"{lost} of epoch {epoch} went, yet it holds {rest}"


def over_is_over(seen: Transition) -> Iterator[str]:
    """A record that names no epoch but ones without a lease does nothing."""
    record = seen.record
    epochs = record.epochs if isinstance(record, Renewed) else (getattr(record, "epoch", None),)
    is_about_leases = isinstance(record, (*_UNDER_A_LEASE, LeaseFenced, Renewed))
    are_over = all(seen.before.lease(epoch) is None for epoch in epochs if epoch is not None)
    if is_about_leases and are_over and seen.kind is not Kind.IGNORED:
        yield f"{type(record).__name__} of {epochs} is {seen.kind.value}"


def only_leased_offsets_are_acked(seen: Transition) -> Iterator[str]:
    if isinstance(seen.record, Acked | Released | Buried):
        foreign = [n for n, before, _ in _moves(seen) if (before.status, before.epoch) != ("leased", seen.record.epoch)]
        if foreign:
            yield f"{foreign} were not leased under {seen.record.epoch}"


def late_words_count_until_it_is_over(seen: Transition) -> Iterator[str]:
    record = seen.record
    if isinstance(record, Acked | Renewed) and seen.kind is Kind.IGNORED:
        for epoch, lease in seen.before.leases:
            named = record.epochs if isinstance(record, Renewed) else (record.epoch,)
            is_its_own = not isinstance(record, Renewed) or record.worker == lease.worker
            is_about = isinstance(record, Renewed) or any(a <= n < b for n in lease.held for a, b in record.ranges)
            if epoch in named and is_its_own and is_about:
                yield f"{type(record).__name__} of {epoch} was refused though the lease is not over"


def only_its_worker_renews(seen: Transition) -> Iterator[str]:
    before = dict(seen.before.leases)
    for epoch, lease in seen.after.leases:
        is_renewed = epoch in before and before[epoch].renewed_ms != lease.renewed_ms
        if is_renewed and (not isinstance(seen.record, Renewed) or seen.record.worker != lease.worker):
            yield f"the lease of {lease.worker} was renewed by {seen.record}"


def nothing_is_granted_in_a_pause(seen: Transition) -> Iterator[str]:
    if isinstance(seen.record, Taken) and seen.before.is_paused(seen.clock_ms) and seen.kind is not Kind.IGNORED:
        yield f"{sorted(seen.covered)} were granted"


def what_is_free_is_granted(seen: Transition) -> Iterator[str]:
    """A partial grant is normal: one that is taken does not spoil the others."""
    if isinstance(seen.record, Taken) and seen.kind is Kind.IGNORED and not seen.before.is_paused(seen.clock_ms):
        asked = {n for start, end in seen.record.ranges for n in range(start, end)}
        free = [n for n in asked if seen.before.spots[n].status == "ready"]
        if free:
            yield f"{free} were free and were not granted"


# Graves


def buried_offsets_wait_for_their_copy(seen: Transition) -> Iterator[str]:
    for number, before, after in _moves(seen):
        is_copied = isinstance(seen.record, Copied) and after.is_finished
        is_gone = isinstance(seen.record, Dropped) and seen.record.is_by_retention and after.is_finished
        is_same = after.status == "buried" and after._replace(is_kept=before.is_kept) == before
        if before.status == "buried" and not is_copied and not is_gone and not is_same:
            yield f"{number} became {after.status} by {type(seen.record).__name__}"


def burials_are_not_yet_finished(seen: Transition) -> Iterator[str]:
    if isinstance(seen.record, Buried):
        finished = [number for number, _, after in _moves(seen) if after.is_finished]
        if finished:
            yield f"{finished} are finished before there is a copy"


def dead_letters_come_by_copies_and_go_by_redrives(seen: Transition) -> Iterator[str]:
    new, gone = seen.after.dead - seen.before.dead, seen.before.dead - seen.after.dead
    unburied = [number for number in new if seen.before.spots[number].status != "buried"]
    if unburied or (new and not isinstance(seen.record, Copied)):
        yield f"{sorted(new)} are dead by {type(seen.record).__name__}"
    if gone and not isinstance(seen.record, Redriven):
        yield f"{sorted(gone)} are not dead any more by {type(seen.record).__name__}"
    if isinstance(seen.record, Redriven) and seen.covered & seen.after.dead:
        yield f"{sorted(seen.covered & seen.after.dead)} can be redriven once more"
    if isinstance(seen.record, Copied) and seen.covered - seen.after.dead:
        yield f"{sorted(seen.covered - seen.after.dead)} were copied and cannot be redriven"


INVARIANTS: tuple[Callable[[Transition], Iterator[str]], ...] = (
    refused_records_change_nothing,
    positions_never_go_back,
    positions_stand_at_the_first_unfinished,
    leases_and_offsets_agree,
    epochs_are_offsets,
    finished_offsets_stay_finished,
    attempts_never_go_down,
    charges_have_a_cause,
    failures_are_charged,
    losses_are_counted,
    waiting_offsets_wait,
    tokens_and_kept_copies_stay_to_the_end,
    live_leases_are_left_alone,
    leases_die_whole,
    over_is_over,
    only_leased_offsets_are_acked,
    late_words_count_until_it_is_over,
    only_its_worker_renews,
    nothing_is_granted_in_a_pause,
    what_is_free_is_granted,
    buried_offsets_wait_for_their_copy,
    burials_are_not_yet_finished,
    dead_letters_come_by_copies_and_go_by_redrives,
)
