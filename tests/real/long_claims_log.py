"""A long coordination log: members come and go, renew, give back, claim ranges, and some of it is junk or too late."""

from __future__ import annotations

import random
from collections.abc import Iterator

from penstock.claims.records import (
    Beat,
    Claimed,
    ClaimReleased,
    ClaimsFounded,
    GroupPaused,
    Heartbeat,
    RangeAcked,
    RangeClaimed,
    RangeRenewed,
    Slot,
)
from penstock.ledger.codec import Record, encode

HB_MS = 100
FOUNDED = ClaimsFounded(partitions=1, heartbeat_ms=HB_MS, window=60, delivery_limit=3)
SLOTS = [Slot("g", "t", number) for number in range(40)]
RANGED = [Slot("r", "t", number) for number in range(4)]
MEMBERS = [(f"m{number}", "i1") for number in range(6)]


def long_log(count: int, *, seed: int = 17) -> Iterator[bytes]:
    """So many values, as a writer that has the partition to itself appends them: the n-th is at offset n."""
    choices = random.Random(seed)
    tenures: dict[Slot, tuple[tuple[str, str], int, int]] = {}
    blocks: dict[Slot, tuple[tuple[str, str], int, int]] = {}
    yield encode(FOUNDED)
    for offset in range(1, count):
        kind = choices.random()
        if kind < 0.001:
            yield b"junk"
        elif kind < 0.002:
            yield encode(GroupPaused("g", "somebody", choices.randrange(10)))
        elif kind < 0.12:
            yield encode(_ranged(choices, blocks, offset))
        else:
            yield encode(_whole(choices, tenures, offset, kind))


def _whole(
    choices: random.Random, tenures: dict[Slot, tuple[tuple[str, str], int, int]], offset: int, kind: float
) -> Record:
    slot, member = choices.choice(SLOTS), choices.choice(MEMBERS)
    if kind < 0.3 or not tenures:
        if slot not in tenures or choices.random() < 0.1:
            tenures[slot] = (member, offset, tenures.get(slot, (member, 0, 0))[2])
        return Claimed(slot, *member)
    if kind < 0.35 and slot in tenures:
        owner, epoch, position = tenures.pop(slot)
        return ClaimReleased(slot, *owner, epoch=epoch, position=position)
    beats = []
    for other, (owner, epoch, position) in tenures.items():
        if owner == member:
            tenures[other] = (owner, epoch, position + 3)
            beats.append(Beat(other, epoch, position + 3))
    return Heartbeat(*member, beats=tuple(beats))


def _ranged(choices: random.Random, blocks: dict[Slot, tuple[tuple[str, str], int, int]], offset: int) -> Record:
    slot, member = choices.choice(RANGED), choices.choice(MEMBERS)
    held = blocks.pop(slot, None)
    if held is None:
        # One block at a time and all acked in order: where it begins is known without a replay.
        blocks[slot] = (member, offset, 0)
        return RangeClaimed(slot, *member, n=10)
    owner, epoch, renewals = held
    if choices.random() < 0.3 and renewals < 3:
        blocks[slot] = (owner, epoch, renewals + 1)
        return RangeRenewed(slot, *owner, epoch=epoch)
    start = choices.randrange(0, 60)
    return RangeAcked(slot, *owner, epoch=epoch, start=start, end=start + 10)
