"""How far the work on one slot is: what was handed out, what of it is finished, and the position behind it."""

from __future__ import annotations

from collections.abc import Sequence


class Lot:
    """Offsets that were handed out together. Finishing all of them at once costs nothing per offset."""

    __slots__ = ("_left", "end", "offsets", "start")

    def __init__(self, offsets: Sequence[int], start: int, end: int) -> None:
        """`offsets` are asked for only if single ones are finished."""
        self.offsets, self.start, self.end = offsets, start, end
        self._left: dict[int, None] | None = None

    @property
    def position(self) -> int:
        return self.start if self._left is None else next(iter(self._left), self.end)

    @property
    def count(self) -> int:
        return len(self.offsets) if self._left is None else len(self._left)

    def left(self) -> list[int]:
        """The offsets that are not finished, in order."""
        return list(self.offsets if self._left is None else self._left)

    def finished(self, offset: int) -> None:
        if self._left is None:
            self._left = dict.fromkeys(self.offsets)
        self._left.pop(offset, None)

    def finished_all(self) -> None:
        self._left = {}


class Progress:
    """Lots are handed out in order and finished in any order; the position moves over a finished prefix only."""

    def __init__(self, start: int) -> None:
        self._lots: list[Lot] = []
        self._end = start

    @property
    def position(self) -> int:
        """The lowest offset that is not finished; everything below it is."""
        return self._lots[0].position if self._lots else self._end

    @property
    def outstanding_count(self) -> int:
        return sum(lot.count for lot in self._lots)

    def handed_out(self, lot: Lot) -> None:
        self._lots.append(lot)
        self._end = max(self._end, lot.end)

    def passed(self, end: int) -> None:
        """Everything below `end` was read; offsets that never became visible need no work."""
        self._end = max(self._end, end)

    def settle(self) -> int:
        """Forget what is finished in front; the position."""
        while self._lots and self._lots[0].count == 0:
            self._lots.pop(0)
        return self.position
