"""The holder of blocks, as a member that shares by ranges sees it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from penstock.claims.blocks import Block
from penstock.claims.records import Slot


@dataclass(slots=True)
class RangeListener:
    """What the holder of blocks is told and asked, from the member's own thread; it must not wait for anything."""

    lost: Callable[[Block, str], None] = lambda block, reason: None
    start_of: Callable[[Slot], int] = lambda slot: 0
    """Where to begin in a slot that has no position: the log start."""
    end_of: Callable[[Slot], int] = lambda slot: 0
    """Where the messages of a slot end, as far as is known."""
    bury: Callable[[Block], bool] = lambda block: True
    """Asked again and again: whether the copy of what is to be buried is written by now."""
    fence: Callable[[Slot, str], bool] = lambda slot, transactional_id: False
    """Asked again and again: whether the id is initialised by now. The first question begins it, a yes ends it."""
