"""Order by key: a message waits while an earlier one with the same key in its partition is unfinished in the log.

    key a    4 ◀── 9 ◀── 12         9 and 12 wait until 4 is acked, buried or dropped; whether 4 is in hand here, leased
    key b    7 ◀── 8                by a former owner, or waiting for a retry makes no difference

Those that are asked for together may follow each other: 4, 9 and 12 under one lease are a chain, which is worked off
in order. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from penstock.queue.ranges import Range
from penstock.queue.stretch import Stretch

if TYPE_CHECKING:
    from penstock.kafka.reader import Received


class KeyOrder:
    """The unfinished messages of one partition that have a key, as far as they were read."""

    def __init__(self, *, held_max: int) -> None:
        """At most so many that wait are kept in memory; the others are read again when it is their turn."""
        self._held_max = held_max
        self._key_of: dict[int, bytes] = {}
        self._before: dict[int, int] = {}
        self._after: dict[int, int] = {}
        self._last: dict[bytes, int] = {}
        self._held: dict[int, Stretch] = {}
        self._forgotten: dict[int, Range] = {}
        self._freed: list[Stretch] = []
        self._to_read: list[Range] = []

    def __len__(self) -> int:
        return len(self._key_of)

    # What is unfinished

    def learn(self, record: Received) -> None:
        """This message was read, and it is not finished. To say it again changes nothing."""
        key, offset = record.key(), record.offset()
        if key is None or offset in self._key_of:
            return
        self._key_of[offset] = key
        before, after = self._last.get(key), None
        while before is not None and before > offset:
            before, after = self._before.get(before), before
        self._link(key, before, offset)
        self._link(key, offset, after)

    def finish(self, start: int, end: int) -> None:
        """These offsets are finished in the log: who waited for them goes on."""
        if end - start > len(self._key_of):
            offsets: Iterable[int] = [offset for offset in self._key_of if start <= offset < end]
        else:
            offsets = range(start, end)
        for offset in offsets:
            key = self._key_of.pop(offset, None)
            if key is not None:
                self._finish(key, offset)

    def _finish(self, key: bytes, offset: int) -> None:
        self._held.pop(offset, None)
        self._forgotten.pop(offset, None)
        before, after = self._before.pop(offset, None), self._after.pop(offset, None)
        self._link(key, before, after)
        if after is not None and before is None:
            self._free(after)

    def _link(self, key: bytes, before: int | None, after: int | None) -> None:
        """Make these two neighbours; None is beyond either end."""
        if before is not None and after is not None:
            self._after[before], self._before[after] = after, before
        elif before is not None:
            self._last[key] = before
            self._after.pop(before, None)
        elif after is not None:
            self._before.pop(after, None)
        else:
            del self._last[key]

    # Who may go

    def choose(self, stretches: Iterable[Stretch]) -> list[Stretch]:
        """Those of these messages that may be asked for together; the others are held until it is their turn."""
        chosen: list[Stretch] = []
        for is_free, stretch in self._sorted(stretches):
            if is_free:
                chosen.append(stretch)
            else:
                self._hold(stretch)
        return chosen

    def out_of_turn(self, stretches: Iterable[Stretch]) -> list[Range]:
        """Those of these messages, granted together, that must not be worked on: an earlier one was not granted."""
        return [stretch.range for is_free, stretch in self._sorted(stretches) if not is_free]

    def _sorted(self, stretches: Iterable[Stretch]) -> Iterator[tuple[bool, Stretch]]:
        """Parts of them in turn, with whether they are free: nothing of their keys is before them but in here."""
        seen: set[int] = set()
        for stretch in stretches:
            run: list[Received] = []
            start = stretch.start
            for record, (first, end) in stretch.spans():
                offset = end - 1
                before = self._before.get(offset)
                if before is None or before in seen:
                    seen.add(offset)
                    run.append(record)
                    continue
                if run:
                    yield True, Stretch(run, start)
                    run = []
                yield False, Stretch([record], first)
                start = end
            if run:
                yield True, Stretch(run, start)

    def _hold(self, stretch: Stretch) -> None:
        offset = stretch.end - 1
        if len(self._held) < self._held_max:
            self._held[offset] = stretch
        else:
            self._forgotten[offset] = stretch.range

    def _free(self, offset: int) -> None:
        """It is its turn: with it go those of its key behind it, for they may follow under one lease."""
        following: int | None = offset
        while following is not None and (stretch := self._held.pop(following, None)) is not None:
            self._freed.append(stretch)
            following = self._after.get(following)
        if offset in self._forgotten:
            self._to_read.append(self._forgotten.pop(offset))

    def freed(self) -> tuple[list[Stretch], list[Range]]:
        """Whose turn it is since the last time: messages, and offsets that have to be read again."""
        found = self._freed, self._to_read
        self._freed, self._to_read = [], []
        return found


def chains(stretches: Iterable[Stretch]) -> list[Stretch | list[tuple[Received, Range]]]:
    """What one lease holds, so that each part may be worked on by itself: the messages of one key, in order."""
    by_key: dict[bytes, list[tuple[Received, Range]]] = {}
    found: list[Stretch | list[tuple[Received, Range]]] = []
    for stretch in stretches:
        for record, part in stretch.spans():
            key = record.key()
            if key is None:
                found.append(Stretch([record], part[0]))
            elif key in by_key:
                by_key[key].append((record, part))
            else:
                found.append(chain := [(record, part)])
                by_key[key] = chain
    return found
