"""Reading blocks: a consumer jumps from one to the next, and goes on where they touch."""

from __future__ import annotations

import logging
import time
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

from penstock.claims.blocks import Block, Span
from penstock.claims.reading import by_partition
from penstock.errors import NotFound, OffsetGone, TransientError
from penstock.kafka.reader import Reader, Received
from penstock.kafka.topics import Admin
from penstock.observe import events
from penstock.observe.events import tell
from penstock.settings import KafkaSettings
from penstock.values import TopicPartition

READ_TIMEOUT_MS = 50
BACK_OFF_S = 0.2
# Reading over a short gap is cheaper than a new fetch behind it.
SEEK_WORTH = 500
UNKNOWN = -1
# What was fetched ahead is thrown away at every jump, so it should not be much more than a block can be.
FETCH_AHEAD = {"queued.min.messages": "20000"}

log = logging.getLogger("penstock.claims")


class Part(NamedTuple):
    """What was read of one block: its records, and the offsets that they stand for."""

    block: Block
    span: Span
    records: list[Received]


@dataclass(slots=True)
class _Place:
    at: int = UNKNOWN
    """The next offset that the client gives."""
    end: int = 0
    """Where the log ended when we last heard of it. Beyond that there is nothing to jump to."""
    is_paused: bool = False

    def read(self, upto: int) -> int:
        self.at = max(self.at, upto)
        self.end = max(self.end, self.at)
        return self.at


class RangeReading:
    """Reads what blocks have untouched, by one thread."""

    def __init__(self, settings: KafkaSettings, admin: Admin, *, group: str) -> None:
        self.reader = Reader(replace(settings, client={**FETCH_AHEAD, **settings.client}), group=group)
        self._admin = admin
        self._places: dict[TopicPartition, _Place] = {}

    def read(self, wanted: Mapping[TopicPartition, list[Block]], count_max: int) -> Iterator[Part]:
        """The next of each block that has any; nothing after a moment without."""
        try:
            self._follow(wanted)
            yield from self._parts(wanted, self.reader.read(count_max, READ_TIMEOUT_MS))
        except OffsetGone as gone:
            yield from self._gone(wanted, TopicPartition(gone.topic, gone.partition))
        except (NotFound, TransientError) as trouble:
            log.warning("blocks cannot be read: %s", trouble)
            time.sleep(BACK_OFF_S)

    def ends(self) -> Iterator[tuple[TopicPartition, int]]:
        """How far each log went when we last heard of it."""
        return ((place, state.end) for place, state in self._places.items())

    def close(self) -> None:
        self.reader.close()

    # Where to read

    def _follow(self, wanted: Mapping[TopicPartition, list[Block]]) -> None:
        if wanted.keys() - self._places.keys():
            self._assign(wanted)
        for place, state in self._places.items():
            blocks = wanted.get(place)
            if not blocks:
                self._pause(place, state)
            elif state.is_paused or _is_far(state, blocks[0].next):
                self._jump(place, state, blocks[0].next)

    def _assign(self, wanted: Mapping[TopicPartition, list[Block]]) -> None:
        known = {place: self._places.get(place) or _Place() for place in {*self._places, *wanted}}
        # Never from the beginning, to jump from there: its late answer could take us back to it.
        starts = {
            place: self._reachable(place, state, _next_of(wanted.get(place), state))
            if state.at == UNKNOWN
            else state.at
            for place, state in known.items()
        }
        self.reader.assign(starts)
        for place, state in known.items():
            state.at, state.is_paused = starts[place], False
        self._places = known

    def _pause(self, place: TopicPartition, state: _Place) -> None:
        # Alone it needs no pause: nobody reads, and what was fetched ahead stays.
        if not state.is_paused and len(self._places) > 1:
            self.reader.pause([place])
            state.is_paused = True

    def _jump(self, place: TopicPartition, state: _Place, to: int) -> None:
        to = self._reachable(place, state, to)
        self.reader.seek(place, to)
        if state.is_paused:
            self.reader.resume([place])
        state.at, state.is_paused = to, False

    def _reachable(self, place: TopicPartition, state: _Place, to: int) -> int:
        """The block's next, or as near as the log goes: what is claimed ahead is waited for at the end."""
        if to > state.end:
            state.end = self.reader.bounds(place)[1]
        return min(to, state.end)

    # What was read

    def _parts(self, wanted: Mapping[TopicPartition, list[Block]], records: list[Received]) -> Iterator[Part]:
        if not records:
            for place, blocks in wanted.items():
                yield from _cut(blocks, [], self._places[place].read(self.reader.position(place)))
            return
        # Looking at every record costs more than reading it; with one partition there is nothing to look for.
        runs = by_partition(records) if len(self._places) > 1 else {next(iter(self._places)): records}
        for place, run in runs.items():
            yield from _cut(wanted.get(place, ()), run, self._places[place].read(run[-1].offset() + 1))

    def _gone(self, wanted: Mapping[TopicPartition, list[Block]], place: TopicPartition) -> Iterator[Part]:
        """Retention deleted what was to be read: say exactly what, and go on behind it."""
        try:
            bounds = self._admin.bounds([place])[place]
        except (TransientError, NotFound):
            return  # the reader says it again
        self._places[place] = _Place(end=bounds.stable_end)
        blocks = wanted.get(place, [])
        for part in _cut(blocks, [], bounds.start):
            start, end = part.span
            tell(events.DataLost(topic=place.topic, partition=place.partition, start=start, end=end))
            yield part
        if blocks and bounds.start <= blocks[0].next:
            time.sleep(BACK_OFF_S)  # a new leader may not know for a moment how far its log goes


def _next_of(blocks: list[Block] | None, state: _Place) -> int:
    return blocks[0].next if blocks else state.end


def _is_far(state: _Place, to: int) -> bool:
    """Whether to jump there, instead of reading on."""
    return to < state.at or (to - state.at > SEEK_WORTH and state.at < state.end) or state.at == UNKNOWN


def _cut(blocks: Iterable[Block], run: list[Received], read_to: int) -> Iterator[Part]:
    """The parts of the blocks that lie in what was read, whether there are records in them or not."""
    for block in blocks:
        start, end = block.next, min(block.stop, read_to)
        if start < end:
            yield Part(block, (start, end), _between(run, start, end))


def _between(run: list[Received], start: int, end: int) -> list[Received]:
    if run and start <= run[0].offset() and run[-1].offset() < end:
        return run
    low = bisect_left(run, start, key=_offset_of)
    return run[low : bisect_left(run, end, lo=low, key=_offset_of)]


def _offset_of(record: Received) -> int:
    return record.offset()
