"""Order by key: a message waits while an earlier one with the same key in its partition is unfinished in the log.

    key a    4 ◀── 9 ◀── 12         9 and 12 wait until 4 is acked, buried or dropped; whether 4 is in hand here, leased
    key b    7 ◀── 8                by a former owner, or waiting for a retry makes no difference

Those that are asked for together may follow each other: 4, 9 and 12 under one lease are a chain, which is worked off
in order. A chain has a bound, so that a busy key, whose messages go one after another, leaves room in hand for the
others; and so has what is kept in memory of those that wait. Pure.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from penstock.queue.ranges import Range
from penstock.queue.stretch import Stretch, spanned

if TYPE_CHECKING:
    from penstock.kafka.reader import Received

_PASSED_MAX = 100


class Shelf:
    """Room for messages that wait for their turn, of all partitions of a worker together."""

    def __init__(self, count_max: int, bytes_max: int) -> None:
        self._count, self._bytes = count_max, bytes_max

    def has_room(self, size_bytes: int) -> bool:
        return self._count > 0 and self._bytes >= size_bytes

    def put(self, size_bytes: int) -> None:
        self._count -= 1
        self._bytes -= size_bytes

    def take(self, size_bytes: int) -> None:
        self._count += 1
        self._bytes += size_bytes


class _Waiting(list[int]):
    """The unfinished offsets of one key, in order; those before `passed` are done with."""

    __slots__ = ("key", "passed")

    def __init__(self, key: bytes) -> None:
        super().__init__()
        self.key, self.passed = key, 0

    def add(self, offset: int) -> None:
        if not self or offset > self[-1]:
            self.append(offset)
        else:
            insort(self, offset, self.passed)

    def before(self, offset: int) -> int | None:
        index = bisect_left(self, offset, self.passed)
        return self[index - 1] if index > self.passed else None

    def finish(self, offset: int) -> bool:
        """Whether it was the first of them, so that another one is by now."""
        index = bisect_left(self, offset, self.passed)
        if index > self.passed:
            del self[index]
            return False
        self.passed += 1
        if self.passed > _PASSED_MAX and 2 * self.passed > len(self):
            del self[: self.passed]
            self.passed = 0
        return self.passed < len(self)


class KeyOrder:
    """The unfinished messages of one partition that have a key, as far as they were read."""

    def __init__(self, shelf: Shelf, *, chain_max: int, chain_max_bytes: int) -> None:
        """Those that wait are kept on the shelf, of one key at most a chain; the others are read again in time."""
        self._shelf, self._chain_max, self._chain_max_bytes = shelf, chain_max, chain_max_bytes
        self._full = chain_max, chain_max_bytes
        """As a chain to which nothing can be added."""
        self._by_key: dict[bytes, _Waiting] = {}
        self._by_offset: dict[int, _Waiting] = {}
        self._held: dict[int, Stretch] = {}
        self._held_of: dict[bytes, int] = {}
        self._forgotten: set[int] = set()
        self._starts: dict[int, int] = {}
        """Of the forgotten, where their spans begin, if not with themselves."""
        self._freed: list[Stretch] = []
        self._to_read: list[Range] = []

    def __len__(self) -> int:
        return len(self._by_offset)

    # What is unfinished

    def learn(self, record: Received) -> None:
        """This message was read, and it is not finished. To say it again changes nothing."""
        key, offset = record.key(), record.offset()
        if key is None or offset in self._by_offset:
            return
        waiting = self._by_key.get(key)
        if waiting is None:
            waiting = self._by_key[key] = _Waiting(key)
        self._by_offset[offset] = waiting
        waiting.add(offset)

    def finish(self, start: int, end: int) -> None:
        """These offsets are finished in the log: who waited for them goes on."""
        if end - start > len(self._by_offset):
            offsets: Iterable[int] = [offset for offset in self._by_offset if start <= offset < end]
        else:
            offsets = range(start, end)
        for offset in offsets:
            waiting = self._by_offset.pop(offset, None)
            if waiting is not None:
                self._finish(waiting, offset)

    def _finish(self, waiting: _Waiting, offset: int) -> None:
        self._unheld(offset, waiting.key)
        self._remembered(offset)
        if waiting.finish(offset):
            self._free(waiting)
        elif waiting.passed == len(waiting):
            del self._by_key[waiting.key]

    def clear(self) -> None:
        """Nobody asks any more: the shelf is for others."""
        for offset in list(self._held):
            self._unheld(offset, self._by_offset[offset].key)

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
        return [part for is_free, stretch in self._sorted(stretches) if not is_free for part in stretch.ranges]

    def _sorted(self, stretches: Iterable[Stretch]) -> Iterator[tuple[bool, Stretch]]:
        """Parts of them in turn, with whether they are free: nothing of their keys is before them but in here."""
        seen: dict[int, tuple[int, int]] = {}
        """How long the chain is that ends with it, and how large."""
        for stretch in stretches:
            run: list[tuple[Received, Range]] = []
            for record, part in stretch.spans():
                offset = part[1] - 1
                waiting = self._by_offset.get(offset)
                before = None if waiting is None else waiting.before(offset)
                count, size_bytes = (0, 0) if before is None else seen.get(before, self._full)
                if count < self._chain_max and size_bytes < self._chain_max_bytes:
                    seen[offset] = count + 1, size_bytes + len(record)
                    run.append((record, part))
                else:
                    yield False, Stretch([record], (part,))
            if run:
                yield True, spanned(run)

    def _hold(self, stretch: Stretch) -> None:
        offset = stretch.end - 1
        key = self._by_offset[offset].key
        self._unheld(offset, key)
        if self._held_of.get(key, 0) < self._chain_max and self._shelf.has_room(stretch.size_bytes):
            self._shelf.put(stretch.size_bytes)
            self._held[offset] = stretch
            self._held_of[key] = self._held_of.get(key, 0) + 1
            return
        self._forgotten.add(offset)
        if stretch.start != offset:
            self._starts[offset] = stretch.start

    def _unheld(self, offset: int, key: bytes) -> Stretch | None:
        """Take it from the shelf, if it is there."""
        stretch = self._held.pop(offset, None)
        if stretch is not None:
            self._shelf.take(stretch.size_bytes)
            self._held_of[key] -= 1
            if not self._held_of[key]:
                del self._held_of[key]
        return stretch

    def _remembered(self, offset: int) -> Range | None:
        """Where it lies, if it was forgotten."""
        if offset not in self._forgotten:
            return None
        self._forgotten.remove(offset)
        return self._starts.pop(offset, offset), offset + 1

    def _free(self, waiting: _Waiting) -> None:
        """It is the first one's turn: with it go those behind it, for they may follow under one lease."""
        for index in range(waiting.passed, min(len(waiting), waiting.passed + self._chain_max)):
            offset = waiting[index]
            if (stretch := self._unheld(offset, waiting.key)) is not None:
                self._freed.append(stretch)
            elif (part := self._remembered(offset)) is not None:
                self._to_read.append(part)
            else:
                return

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
                found.append(Stretch([record], (part,)))
            elif key in by_key:
                by_key[key].append((record, part))
            else:
                found.append(chain := [(record, part)])
                by_key[key] = chain
    return found
