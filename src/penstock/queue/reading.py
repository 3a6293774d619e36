"""How messages come to a worker's desks: from the heads of its partitions, and again from the gaps below them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import groupby
from typing import Protocol

from penstock.claims.dead_letters import Letter
from penstock.kafka.reader import Received, every
from penstock.ledger.codec import Record
from penstock.ledger.tail import Tail
from penstock.observe import events
from penstock.observe.events import tell
from penstock.queue.cells import Cell
from penstock.queue.clerk import Clerk, CopiesMade, Reread
from penstock.queue.desk import Desk
from penstock.queue.hand import Hand
from penstock.queue.headers import marks_of, message_id
from penstock.queue.intake import Intake
from penstock.queue.kept import Kept
from penstock.queue.ranges import OFFSET_MAX, Range, Ranges, common, joined, packed, without
from penstock.queue.records import Copied, Dropped
from penstock.queue.retry import LOST_TOO_OFTEN, error_class
from penstock.queue.state import QueueMachine
from penstock.queue.stretch import Stretch, found_in, parts_within, row


class Source(Protocol):
    """Reads the topic with the messages, from the heads of our partitions on."""

    topic: str

    def assign(self, heads: Mapping[int, int]) -> None: ...

    def read(self, count_max: int, timeout_ms: int) -> Sequence[Received]: ...

    def deleted(self) -> Mapping[int, int]:
        """Where heads were deleted: from which offset on there is something. Each is said once."""
        ...

    def position(self, partition: int) -> int:
        """Up to where everything was read, what is invisible included."""
        ...


Append = Callable[[Desk, Record], None]

_AGAIN_MS = 1_000
_KEPT_MS = 10_000
"""What comes again later than that is read again: in memory it would only take the place of others."""
_TOGETHER_MS = 100
"""While there is more to read than room for it, gaps of a partition are looked at once in so long, and those that are
due wait as long again for new messages: one question asks for many, and for both.
"""
_READ_MAX = 4_000
"""At once: of more, the first are out of the processor's cache before they are looked at."""


class Reading:
    """Fills the lines of open desks, as far as there is room."""

    def __init__(
        self,
        tail: Tail[QueueMachine],
        source: Source,
        clerk: Clerk,
        intake: Intake,
        *,
        append: Append,
        room_max: int,
        room_max_bytes: int,
        gaps_max: int,
        monotonic_ms: Callable[[], int],
    ) -> None:
        """`append` gets a record into the ledger, whatever it takes."""
        self._tail, self._source, self._clerk, self._intake = tail, source, clerk, intake
        self._append, self._gaps_max, self._now_ms = append, gaps_max, monotonic_ms
        self._room_max, self._room_max_bytes = room_max, room_max_bytes
        self.is_flowing = False
        """Whether the last look at the heads found something: then there is probably more."""
        self._is_behind = False
        """Whether it found all that there was room for: then there is more."""
        self._kept = Kept(count_max=room_max, bytes_max=room_max_bytes // 4)
        self._assigned: dict[int, Desk] = {}
        self._openings: dict[int, int] = {}

    # From the heads

    def follow(self, desks: Iterable[Desk]) -> None:
        """Read the heads of these, and no others."""
        wanted = {desk.partition: desk for desk in desks if self._may_go_on(desk)}
        openings = {number: desk.openings for number, desk in wanted.items()}
        if wanted != self._assigned or openings != self._openings:
            self._source.assign({number: desk.head for number, desk in wanted.items()})
            self._assigned, self._openings = wanted, openings

    def _may_go_on(self, desk: Desk) -> bool:
        if desk.is_learning:
            return False
        # Not back and forth at the bound: every change lets the client fetch anew.
        return desk.unfinished_count < self._gaps_max * (1 if desk.partition in self._assigned else 0.9)

    @property
    def has_room(self) -> bool:
        """Whether there is something to read, and room for it."""
        return bool(self._assigned) and self._room() > 0

    def read(self, timeout_ms: int) -> None:
        room = self._room()
        if not self._assigned or room <= 0:
            return
        count_max = min(room, _READ_MAX)
        records = self._source.read(count_max, timeout_ms)
        self.is_flowing, self._is_behind = bool(records), len(records) >= count_max
        if deleted := self._source.deleted():
            self._pass_deleted(deleted)
        for partition, run in _by_partition(records).items():
            desk = self._assigned.get(partition)
            if desk is not None:
                self._received(desk, run)
        if not records:
            self._pass_invisible()

    def _room(self) -> int:
        """How many more may be read from the heads; what is read again from gaps has room of its own."""
        if sum(desk.waiting_bytes for desk in self._assigned.values()) >= self._room_max_bytes:
            return 0
        return self._room_max - sum(desk.waiting_count for desk in self._assigned.values())

    def _received(self, desk: Desk, run: list[Received]) -> None:
        if run[0].offset() < desk.head:
            run = [record for record in run if record.offset() >= desk.head]
        if run:
            stretch = row(run, desk.head)
            desk.head = stretch.end
            if desk.order is not None:
                desk.learn(self._tail.fold(desk.partition).machine, [stretch])
            self._sort_in(desk, [stretch], desk.receive)

    def _pass_deleted(self, starts: Mapping[int, int]) -> None:
        for number, start in starts.items():
            desk = self._assigned.get(number)
            if desk is not None and desk.head < start:
                self._drop_deleted(desk, ((desk.head, start),))
                desk.head = start

    def _drop_deleted(self, desk: Desk, ranges: Ranges) -> None:
        """Nothing kept them from the topic's retention: say exactly what is lost."""
        for start, end in ranges:
            tell(events.DataLost(topic=self._source.topic, partition=desk.partition, start=start, end=end))
        self._append(desk, Dropped(ranges, "deleted by retention"))

    def _pass_invisible(self) -> None:
        """At the end of a partition lie markers, and records of transactions that were rolled back."""
        for number, desk in self._assigned.items():
            position = self._source.position(number)
            if position > desk.head:
                self._append(desk, Dropped(((desk.head, position),), "invisible"))
                desk.head = position

    def _sort_in(self, desk: Desk, stretches: Iterable[Stretch], receive: Callable[[Iterable[Stretch]], None]) -> None:
        """What can be asked for now; the rest is put off or dropped, as its headers say."""
        log_ms = desk.log_ms(self._now_ms())
        wanted: list[Stretch] = []
        for stretch in stretches:
            found = self._intake.sorted(stretch, log_ms)
            wanted += found.wanted
            for part, due_ms in found.put_off:
                desk.gaps.put_off([part], due_ms)
            for reason, parts in found.dropped.items():
                self._append(desk, Dropped(joined(parts), reason))
        receive(wanted)

    # From the gaps

    def reread(self, desk: Desk) -> None:
        """Have the gaps read again that are due, the leases among them that nobody renews any more."""
        room = self._room_max - desk.waiting_count
        if desk.is_rereading or room <= 0:
            return
        machine, now_ms = self._tail.fold(desk.partition).machine, self._now_ms()
        if desk.is_learning:
            self._learn_on(desk)
            return
        if self._is_behind and now_ms < desk.reread_at_ms + (0 if desk.buffer else _TOGETHER_MS):
            return
        if not desk.has_suspects and not desk.asks_for_suspects:
            desk.note_expired(machine, now_ms)
        missing: list[Range] = []
        for cell, ranges in desk.gaps.due(machine, desk.log_ms(now_ms), room):
            kept, left = self._kept.take(desk.partition, ranges)
            self._come_again(desk, machine, cell, kept)
            missing += left
        # With an order, others may wait for what comes next.
        may_wait = desk.order is None and not desk.gaps.are_due(desk.log_ms(now_ms))
        desk.reread_at_ms = now_ms + _TOGETHER_MS if may_wait else 0
        if wanted := packed(tuple(missing)):
            desk.is_rereading = True
            self._clerk.reread(desk.partition, wanted)

    def keep(self, desk: Desk, hand: Hand, given_back: Ranges, delay_ms: int) -> None:
        """These may be wanted again after this time, and are at hand now; whether the log hears of it nobody knows."""
        if desk.is_open and delay_ms <= _KEPT_MS:
            self._kept.keep(desk.partition, parts_within(hand.stretches, given_back))

    def forget(self, partition: int) -> None:
        """It is not ours any more."""
        self._kept.forget(partition)

    def _learn_on(self, desk: Desk) -> None:
        """Read the next unfinished messages, for their keys alone."""
        wanted: list[Range] = []
        room = self._room_max
        while desk.to_learn and room > 0:
            start, end = desk.to_learn.popleft()
            upto = min(end, start + room)
            wanted.append((start, upto))
            room -= upto - start
            if upto < end:
                desk.to_learn.appendleft((upto, end))
        desk.is_learning = bool(wanted)
        if wanted:
            desk.is_rereading = True
            self._clerk.reread(desk.partition, tuple(wanted))

    def take_answers(self, desks: Mapping[int, Desk]) -> None:
        for answer in self._clerk.answers():
            desk = desks.get(answer.partition)
            if desk is None:
                continue
            if isinstance(answer, CopiesMade):
                self._append(desk, Copied(answer.ranges))
            else:
                desk.is_rereading = False
                self._reread(desk, answer)

    def _reread(self, desk: Desk, answer: Reread) -> None:
        machine = self._tail.fold(desk.partition).machine
        # What was deleted goes with no message: the next one must not be what finishes it.
        first = min([answer.log_start, *(record.offset() for record in answer.records[:1])])
        still_there = common(answer.ranges, [(first, OFFSET_MAX)])
        offsets = [record.offset() for record in answer.records]
        # Offsets without a record before a message are finished with it only if the log treats both alike.
        found = [
            (cell, stretch)
            for cell, parts in machine.cells.by_value(still_there)
            if (stretch := found_in(parts, answer.records, offsets)) is not None
        ]
        stretches = [stretch for _, stretch in found]
        self._pass_over(desk, answer, sorted(part for stretch in stretches for part in stretch.ranges))
        self._copy_buried(desk, machine, stretches)
        for cell, stretch in found if desk.is_open else ():
            self._come_again(desk, machine, cell, [stretch])

    def _come_again(self, desk: Desk, machine: QueueMachine, cell: Cell, stretches: Iterable[Stretch]) -> None:
        """These have all the same cell."""
        desk.learn(machine, stretches)
        if not desk.is_learning:
            log_ms = desk.log_ms(self._now_ms())
            self._sort_in(desk, stretches, lambda found: desk.put_in_line(machine, cell, found, log_ms))

    def _pass_over(self, desk: Desk, answer: Reread, seen: list[Range]) -> None:
        """Offsets without a record: deleted, invisible, or, for a moment after a leader change, not readable yet."""
        missing = joined(without(answer.ranges, seen))
        if deleted := common(missing, [(0, answer.log_start)]):
            self._drop_deleted(desk, tuple(deleted))
        if invisible := common(missing, [(answer.log_start, answer.reached)]):
            self._append(desk, Dropped(tuple(invisible), "invisible"))
            burials = self._tail.fold(desk.partition).machine.burials.values()
            if buried := sorted(part for burial in burials for part in common(tuple(invisible), burial.held)):
                # The message with which they were buried has its copy already, and they need none.
                self._append(desk, Copied(tuple(buried)))
        if beyond := common(missing, [(max(answer.log_start, answer.reached), OFFSET_MAX)]):
            desk.to_learn.extendleft(reversed(beyond) if desk.is_learning else ())
            desk.gaps.put_off(beyond, desk.log_ms(self._now_ms()) + _AGAIN_MS)

    # Dead letters

    def copy(self, desk: Desk, lease_ms: int) -> None:
        """Have the buried read again, to be copied: our own at once, those of others when they had time for it."""
        if desk.is_rereading:
            return
        wanted = desk.to_copy(self._tail.fold(desk.partition).machine, self._now_ms(), lease_ms)
        if wanted:
            desk.is_rereading = True
            self._clerk.reread(desk.partition, wanted)

    def _copy_buried(self, desk: Desk, machine: QueueMachine, stretches: list[Stretch]) -> None:
        made = desk.copies_made() if machine.burials else ()
        for burial in machine.burials.values():
            parts = parts_within(stretches, without(burial.held, made))
            letters = [
                Letter(
                    record,
                    burial.reason,
                    burial.error,
                    # Who was lost too often was buried without another attempt.
                    machine.cells.at(record.offset()).charges - (burial.reason == LOST_TOO_OFTEN),
                    error_class(burial.error),
                    # Its copy lies elsewhere: there the id of its place would be another.
                    "" if marks_of(record.headers()).id else message_id(record),
                )
                for part in parts
                for record in part.records
            ]
            if letters:
                ranges = joined(sorted(each for part in parts for each in part.ranges))
                self._clerk.copy(desk.partition, ranges, letters)


def _by_partition(records: Sequence[Received]) -> dict[int, list[Received]]:
    """Each partition's records in the order of offsets. They come in runs, so there is little to look up."""
    runs: dict[int, list[Received]] = {}
    start = 0
    for partition, run in groupby(every(records, "partition")):
        end = start + len(list(run))
        runs.setdefault(partition, []).extend(records[start:end])
        start = end
    return runs
