"""What a worker knows of one partition beside its ledger: how far it was read, what was read and not asked for yet,
and which offsets below have to be read again, and when.

    topic   0 …………………… position …… gap …… gap …………… head ……………………▶
            finished          to be read again          not read yet
                              when they are due
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field

from penstock.ledger.codec import Record
from penstock.ledger.tail import Ticket
from penstock.queue.cells import IS_BURIED, IS_FINISHED, IS_LEASED, Cell
from penstock.queue.gaps import Gaps, unfinished
from penstock.queue.hand import Hand
from penstock.queue.line import Line
from penstock.queue.order import KeyOrder
from penstock.queue.ranges import Range, Ranges, joined
from penstock.queue.records import Copied
from penstock.queue.state import QueueMachine
from penstock.queue.stretch import Stretch


@dataclass(frozen=True, slots=True)
class Asked:
    """A `Taken` that was not read back yet."""

    ticket: Ticket
    stretches: list[Stretch]
    count: int
    size_bytes: int
    losses: int
    """Of those among them that were lost most often."""
    alone: bool


@dataclass(slots=True, eq=False)
class Desk:
    partition: int
    is_ours: bool = True
    """Whether we hold the claim: else we only finish what is in hand."""
    is_open: bool = False
    openings: int = 0
    head: int = 0
    """Everything below was read from the topic, or the ledger knows of it."""
    buffer: Line = field(default_factory=Line)
    """Read, and to be asked for."""
    suspects: dict[int, Line] = field(default_factory=dict)
    """The same for those that were in lost leases, by the number of losses."""
    order: KeyOrder | None = None
    to_learn: deque[Range] = field(default_factory=deque)
    """Unfinished offsets whose keys have to be known before anything is handed out."""
    is_learning: bool = False
    asked: dict[int, Asked] = field(default_factory=dict)
    heard_sent_ms: int = 0
    """When the last of our records was sent that came back: the log is past all that we sent before."""
    hands: dict[int, Hand] = field(default_factory=dict)
    tells: dict[Ticket, None] = field(default_factory=dict)
    """Records that must get into the log: appended again until they are read back."""
    unsent: list[Record] = field(default_factory=list)
    """The same, that could not even be handed over."""
    renewal: Ticket | None = None
    renew_at_ms: int = 0
    is_rereading: bool = False
    """Whether the clerk owes us an answer."""
    reread_at_ms: int = 0
    """When gaps are looked at again, at the earliest, while there is much to read."""
    own_burials: set[int] = field(default_factory=set)
    """Those that we are to copy at once; others have a lease's time for it."""
    rescan_at_ms: int = 0
    calm_from_ms: int = 0
    """The log clock jumped ahead: until then nothing is asked for that belonged to others."""
    is_halted: bool = False
    fold: object = None
    """What we know was seen by: another one was built from a snapshot, and of what is in that we heard nothing."""
    gaps: Gaps = field(default_factory=Gaps)
    _copy_at_ms: dict[int, int] = field(default_factory=dict)
    clock_ms: int = 0
    clock_read_at_ms: int = 0

    # Time

    def watch_clock(self, clock_ms: int, now_ms: int, lease_ms: int) -> None:
        if clock_ms == self.clock_ms:
            return
        ahead_ms = clock_ms - self.log_ms(now_ms)
        if self.is_open and ahead_ms > lease_ms // 3:
            # Leases look expired that are not: their owners have a lease's time to renew them.
            self.calm_from_ms = now_ms + lease_ms
        self.clock_ms, self.clock_read_at_ms = clock_ms, now_ms

    def log_ms(self, now_ms: int) -> int:
        """What the log clock should say by now."""
        return self.clock_ms + now_ms - self.clock_read_at_ms

    # Gaps

    def open(self, machine: QueueMachine, order: KeyOrder | None) -> None:
        """Find out what is left to do below the first offset that nobody ever touched."""
        self.is_open, self.head = True, 0
        self.openings += 1
        self.scan(machine)
        self.order = order
        if order is not None:
            self.to_learn = deque(unfinished(machine, self.head))
            self.is_learning = bool(self.to_learn)

    def scan(self, machine: QueueMachine) -> None:
        self.rescan_at_ms = 0
        self.head = self.gaps.scan(machine, self.head, without=self._in_lines())

    def _in_lines(self) -> Ranges:
        """What was read already, and is asked for by and by."""
        lines: list[Iterable[Stretch]] = [self.buffer, *self.suspects.values()]
        lines += [asked.stretches for asked in self.asked.values()]
        return joined(sorted(part for line in lines for stretch in line for part in stretch.ranges))

    def note_expired(self, machine: QueueMachine, now_ms: int) -> None:
        """Leases that nobody renews any more: what is in them is due."""
        if now_ms < self.calm_from_ms:
            return
        log_ms = self.log_ms(now_ms)
        for epoch, lease in machine.leases.items():
            if epoch not in self.hands and lease.may_end(log_ms):
                self.gaps.add(lease.held)

    def to_copy(self, machine: QueueMachine, now_ms: int, lease_ms: int) -> Ranges:
        """Buried offsets whose copies it is our turn to make, again if nothing came of it for a lease."""
        self.own_burials &= machine.burials.keys()
        if not machine.burials:
            return ()
        self._copy_at_ms = {number: at for number, at in self._copy_at_ms.items() if number in machine.burials}
        found: list[Range] = []
        for number, burial in machine.burials.items():
            if not self.is_open and number not in self.own_burials:
                continue
            due_ms = self._copy_at_ms.setdefault(number, now_ms if number in self.own_burials else now_ms + lease_ms)
            if now_ms >= due_ms:
                self._copy_at_ms[number] = now_ms + lease_ms
                found += burial.held
        return joined(sorted(found))

    def copies_made(self) -> Ranges:
        """Of these the log is about to hear."""
        records = [*(ticket.record for ticket in self.tells), *self.unsent]
        return joined(sorted(part for record in records if isinstance(record, Copied) for part in record.ranges))

    # What is read

    def sort(self, machine: QueueMachine, stretches: Iterable[Stretch], now_ms: int) -> None:
        """Read again: those that were in lost leases go apart, in groups of their own."""
        log_ms = self.log_ms(now_ms)
        for stretch in stretches:
            for cell, ranges in machine.cells.by_value(stretch.ranges):
                part = stretch.within(ranges)
                if part is not None:
                    self.put_in_line(machine, cell, [part], log_ms)

    def put_in_line(self, machine: QueueMachine, cell: Cell, stretches: Iterable[Stretch], log_ms: int) -> None:
        """The same of those that the log treats alike."""
        if cell.status is IS_FINISHED or cell.status is IS_BURIED:
            # What is buried was read to be copied; nobody is granted it any more.
            return
        is_leased = cell.status is IS_LEASED
        if is_leased and not machine.may_be_granted(cell, log_ms):
            # Somebody was quicker. When that lease ends, we hear of it, or it is found as expired.
            return
        losses = cell.losses + is_leased
        line = self.suspects.setdefault(losses, Line()) if losses else self.buffer
        for stretch in stretches:
            line.append(stretch)

    def receive(self, stretches: Iterable[Stretch]) -> None:
        for stretch in stretches:
            self.buffer.append(stretch)

    def learn(self, machine: QueueMachine, stretches: Iterable[Stretch]) -> None:
        """Of messages that are not finished, remember which key is where."""
        if self.order is None:
            return
        for stretch in stretches:
            for cell, ranges in machine.cells.by_value(stretch.ranges):
                part = None if cell.status in (IS_FINISHED, IS_BURIED) else stretch.within(ranges)
                for record in part.records if part is not None else ():
                    self.order.learn(record)

    def welcome_freed(self, machine: QueueMachine, now_ms: int) -> None:
        """Those whose turn it is by now, because an earlier message with their key is finished."""
        if self.order is not None:
            stretches, to_read = self.order.freed()
            self.sort(machine, stretches, now_ms)
            self.gaps.add(to_read)

    def next_stretches(self, count_max: int) -> list[Stretch]:
        """The next messages to be asked for, at most so many."""
        return self._in_order(self.buffer.take(count_max))

    @property
    def losses_max(self) -> int:
        """How often the suspects were lost that are next."""
        return max(losses for losses, line in self.suspects.items() if line)

    def next_suspects(self, count_max: int) -> list[Stretch]:
        """The next group of those that were lost most often, at most so many."""
        return self._in_order(self.suspects[self.losses_max].take(count_max))

    def _in_order(self, stretches: list[Stretch]) -> list[Stretch]:
        return stretches if self.order is None else self.order.choose(stretches)

    def put_back(self, asked: Asked) -> None:
        """Its answer never came: ask again."""
        line = self.suspects.setdefault(asked.losses, Line()) if asked.losses else self.buffer
        line.put_back(asked.stretches)

    def disown(self) -> None:
        """What is in hand stays; what was only read is forgotten, and found again by whoever opens it next."""
        self.is_ours, self.is_open, self.is_learning = False, False, False
        self.buffer = Line()
        self.suspects.clear()
        self.to_learn.clear()
        if self.order is not None:
            self.order.clear()
        self.order = None

    @property
    def has_suspects(self) -> bool:
        return any(map(len, self.suspects.values()))

    @property
    def asks_for_suspects(self) -> bool:
        return any(asked.losses for asked in self.asked.values())

    @property
    def has_loner(self) -> bool:
        """Whether a message waits here that is to be taken with nothing beside it."""
        return any(line and suspects_max(losses) == 1 for losses, line in self.suspects.items())

    @property
    def waiting_count(self) -> int:
        """Messages that were read, and could be asked for."""
        return self.buffer.count + sum(line.count for line in self.suspects.values())

    @property
    def waiting_bytes(self) -> int:
        return self.buffer.size_bytes + sum(line.size_bytes for line in self.suspects.values())

    @property
    def unfinished_count(self) -> int:
        """Places below the head that have to be kept in mind."""
        return len(self.gaps) + (0 if self.order is None else len(self.order))

    @property
    def is_idle(self) -> bool:
        """Whether nothing of ours hangs on it any more."""
        return not (self.hands or self.asked or self.tells or self.unsent or self.own_burials)


def suspects_max(losses: int) -> int:
    """How many of those that were lost so often may be in hand at once: so the one that kills is soon alone."""
    return max(1, 500 // 8**losses) if losses < 4 else 1
