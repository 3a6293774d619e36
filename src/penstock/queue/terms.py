"""Under which terms a worker works."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    lease_ms: int = 30_000
    attempts_max: int = 5
    in_hand_max: int = 1_000
    in_hand_bytes_max: int = 64 * 1024 * 1024
    per_key_max: int = 100
    per_key_bytes_max: int = 8 * 1024 * 1024
    """Of the messages in hand, where those with the same key wait for each other."""
    gaps_max: int = 1_000_000
    take_max: int = 500
    """At most so many messages under one lease."""
    is_acked_first: bool = False
    """At most once: acked, read back, then handed over."""
    is_ordered: bool = False
    """Whether messages with the same key wait for each other."""
