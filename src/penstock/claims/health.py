"""Whether an owner keeps up with its slots, and whether somebody else might: values in, choices out.

A slot is *behind* when its lag grew from each look to the next, though its position moved: its owner lives and works,
and is too slow. It is given up only if another member could take it: one that has no more slots than we have, and is
behind with none of them. So a lone member never gives up, nor does anybody in a group that is too slow as a whole.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Mapping
from itertools import pairwise
from typing import NamedTuple

from penstock.claims.records import Slot

LOOKS = 6
SHUN_HB = 30
"""For so many HB nobody asks again for what it gave up, unless nobody else takes it."""


class Look(NamedTuple):
    """A slot at one time: where its owner was, and where the partition ended."""

    position: int
    end: int

    @property
    def lag(self) -> int:
        return max(0, self.end - self.position)


class Pace:
    """The last looks at each slot."""

    def __init__(self) -> None:
        self._looks: dict[Slot, deque[Look]] = {}

    def observe(self, positions: Mapping[Slot, int | None], ends: Mapping[Slot, int]) -> None:
        for slot, end in ends.items():
            position = positions.get(slot)
            if position is not None:
                self._looks.setdefault(slot, deque(maxlen=LOOKS)).append(Look(position, end))

    def forget(self, slot: Slot) -> None:
        """It has another owner: what was seen says nothing about that one."""
        self._looks.pop(slot, None)

    def lag(self, slot: Slot) -> int:
        looks = self._looks.get(slot)
        return looks[-1].lag if looks else 0

    def is_behind(self, slot: Slot, *, lag_min: int) -> bool:
        looks = self._looks.get(slot, deque[Look]())
        return (
            len(looks) == LOOKS
            and all(later.lag > earlier.lag for earlier, later in pairwise(looks))
            and looks[-1].position > looks[0].position
            and looks[-1].lag >= lag_min
        )


def to_give_up(pace: Pace, *, ours: Collection[Slot], others: Iterable[Collection[Slot]], lag_min: int) -> Slot | None:
    """The slot of ours that is worst behind, if another member could take it. `others`: what each of them has."""
    behind = [slot for slot in ours if pace.is_behind(slot, lag_min=lag_min)]
    could = any(
        len(theirs) <= len(ours) and not any(pace.is_behind(slot, lag_min=lag_min) for slot in theirs)
        for theirs in others
    )
    return max(behind, key=pace.lag) if behind and could else None
