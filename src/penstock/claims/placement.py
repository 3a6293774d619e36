"""Where a slot lives in the coordination ledger, and what all members must have agreed on before they meet there."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import msgspec
import xxhash

from penstock.claims.records import ClaimsFounded, Slot
from penstock.errors import Refused
from penstock.ledger.machine import Genesis
from penstock.settings import ClaimsSettings, Settings
from penstock.values import Duration

if TYPE_CHECKING:
    from penstock.claims.state import Claims
    from penstock.ledger.tail import Tail

_encode = msgspec.msgpack.Encoder().encode


def partition_of(slot: Slot, partitions: int) -> int:
    """The coordination partition of a slot: the same in every process, version and language."""
    named = (slot.group, slot.topic) if slot.partition is None else tuple(slot)
    return xxhash.xxh3_64_intdigest(_encode(named)) % partitions


def coordination_topic(settings: Settings) -> str:
    """The topic of the coordination ledger, as the broker knows it."""
    return settings.topic_prefix + settings.claims.topic


def genesis(settings: ClaimsSettings) -> ClaimsFounded:
    return ClaimsFounded(
        partitions=settings.partitions,
        heartbeat_ms=int(settings.heartbeat),
        window=settings.window,
        delivery_limit=settings.delivery_limit,
    )


def check_partitions(topic: str, there: int, settings: ClaimsSettings) -> None:
    """Raises Refused if the coordination topic has another number of partitions than we place slots by."""
    if there != settings.partitions:
        raise Refused(
            f"coordination topic {topic} has {there} partitions, this process has partitions = {settings.partitions}: "
            "it would look for slots where nobody else does",
            next_step=f"set PENSTOCK_CLAIMS_PARTITIONS={there} (or [claims] partitions = {there}), or another topic",
        )


def check_genesis(tail: Tail[Claims], partitions: Iterable[int], settings: ClaimsSettings) -> None:
    """Raises GenesisMismatch, with the settings that mend it, if the ledger was founded for other values than ours.

    A partition without a genesis is fine: whoever comes first founds it.
    """
    ours = genesis(settings)
    for partition in partitions:
        tail.check_genesis(partition, ours, mend=mend_for(tail.checked_fold(partition).genesis))


def mend_for(theirs: Genesis | None) -> str:
    """What to set so that this process fits a ledger that was founded with `theirs`."""
    if not isinstance(theirs, ClaimsFounded):
        return "set another [claims] topic"
    return (
        f'set [claims] partitions = {theirs.partitions}, heartbeat = "{Duration(theirs.heartbeat_ms)}", '
        f"window = {theirs.window}, delivery_limit = {theirs.delivery_limit}, or another topic; "
        "`penstock config show --origin` tells where yours come from"
    )
