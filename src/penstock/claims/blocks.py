"""Blocks of offsets that a member holds, and what it should ask for, tell and give back: values in, choices out.

     start                        next                 stop         end
       | finished | outstanding | … |     untouched      |  given back |

What lies below `next` was handed out, or was never visible; what lies above was claimed ahead. A block leaves the
member's hands in pieces, each in one of three ways: finished (acked), failed (released, counted), or given back
(released, uncounted: as if it had never been delivered).
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from penstock.claims.intervals import Interval, Status, Tenancy
from penstock.claims.records import Slot
from penstock.claims.slots import SlotState
from penstock.ledger.clock import LocalLease

Span = tuple[int, int]

FIRST = 64
"""How many offsets to ask for before anything is known of the pace, and to keep while there is no work."""
GROWTH = 8
BLOCKS_IN_WINDOW = 3
"""The window has room for so many blocks of each member: one in work, one ahead, and one that waits for others."""
ACKS_AT_ONCE = 8
WORTH_MS = 1_000
"""How much work a block should be."""


class Spans:
    """A set of offsets, kept as sorted disjoint spans."""

    __slots__ = ("_ends", "_starts")

    def __init__(self, spans: Iterable[Span] = ()) -> None:
        self._starts: list[int] = []
        self._ends: list[int] = []
        for start, end in spans:
            self.add(start, end)

    def __iter__(self) -> Iterator[Span]:
        return iter(list(zip(self._starts, self._ends, strict=True)))

    def __bool__(self) -> bool:
        return bool(self._starts)

    @property
    def size(self) -> int:
        return sum(self._ends) - sum(self._starts)

    def add(self, start: int, end: int) -> None:
        if start >= end:
            return
        # Neighbours that touch become one.
        first, last = bisect_left(self._ends, start), bisect_right(self._starts, end)
        if first < last:
            start, end = min(start, self._starts[first]), max(end, self._ends[last - 1])
        self._starts[first:last], self._ends[first:last] = [start], [end]

    def remove(self, start: int, end: int) -> None:
        left = self.within(start, end)
        if not left:
            return
        first, last = bisect_right(self._ends, start), bisect_left(self._starts, end)
        starts, ends = self._starts[first:last], self._ends[first:last]
        kept = [(low, high) for low, high in ((starts[0], start), (end, ends[-1])) if low < high]
        self._starts[first:last] = [low for low, _ in kept]
        self._ends[first:last] = [high for _, high in kept]

    def within(self, start: int, end: int) -> list[Span]:
        """The parts of it that lie in these bounds."""
        if start >= end:
            return []
        first, last = bisect_right(self._ends, start), bisect_left(self._starts, end)
        parts = zip(self._starts[first:last], self._ends[first:last], strict=True)
        return [(max(start, low), min(end, high)) for low, high in parts if low < end and high > start]

    def covers(self, start: int, end: int) -> bool:
        return self.within(start, end) == [(start, end)]


@dataclass(slots=True, eq=False)
class Block:
    """Offsets that are ours under one epoch, as far as we know."""

    slot: Slot
    token: int
    """The epoch of the grant: hand it on to what must not be touched by a former holder."""
    start: int
    end: int
    lease: LocalLease
    is_to_bury: bool = False
    is_suspect: bool = False
    """A single offset that somebody had before and did not finish: whoever works on it holds nothing else."""
    is_held: bool = True
    next: int = 0
    stop: int = 0
    moved_ms: int = 0
    """When something of it was last handed out, or it was granted."""
    begun_ms: int | None = None
    """When something of it was first handed out."""
    told_ms: int = 0
    """When it was last told what is finished."""
    open: Spans = field(default_factory=Spans)
    """Neither finished, nor failed, nor given back."""
    finished: Spans = field(default_factory=Spans)
    """Not told yet; so are the next two."""
    failed: Spans = field(default_factory=Spans)
    returned: Spans = field(default_factory=Spans)
    minded: Spans = field(default_factory=Spans)
    """Whose loss is a loss: neither given back, nor known to the log as finished or failed."""
    settled: Spans = field(default_factory=Spans)
    """What the log is known to have, one way or another."""
    done: Spans = field(default_factory=Spans)
    """What the log is known to have as finished."""

    def __post_init__(self) -> None:
        self.next, self.stop = self.start, self.end
        self.open.add(self.start, self.end)
        self.minded.add(self.start, self.end)

    @property
    def untouched(self) -> int:
        return self.stop - self.next

    @property
    def outstanding(self) -> int:
        """How many offsets are handed out and not finished."""
        return self.open.size - self.untouched

    @property
    def is_settled(self) -> bool:
        return self.settled.covers(self.start, self.end)

    def take(self, upto: int, now_ms: int) -> None:
        self.next, self.moved_ms = upto, now_ms
        if self.begun_ms is None:
            self.begun_ms = now_ms

    def finish(self, start: int, end: int) -> None:
        self._move(start, end, self.finished)

    def fail(self, start: int, end: int) -> None:
        self._move(start, end, self.failed)

    def give_back(self, start: int) -> None:
        """Everything open from there on."""
        for low, high in self.open.within(start, self.end):
            self.minded.remove(low, high)
        self._move(start, self.end, self.returned)
        self.stop = min(self.stop, start)
        self.next = min(self.next, self.stop)

    def let_go(self) -> None:
        """Give back what was never handed out, and say nothing of the rest: to the others it will look lost."""
        self.give_back(self.next)
        for low, high in self.open:
            self.minded.remove(low, high)
        self._move(self.start, self.end, self.settled)

    def settle(self, start: int, end: int, *, is_done: bool) -> None:
        self.settled.add(start, end)
        if is_done:
            self.done.add(start, end)
        self.minded.remove(start, end)

    def _move(self, start: int, end: int, to: Spans) -> None:
        for low, high in self.open.within(start, end):
            to.add(low, high)
            self.open.remove(low, high)


def block_of(slot: Slot, granted: Interval, tenancy: Tenancy, *, sent_ms: int, lasts_ms: int) -> Block:
    """A grant that was read back, to a question from `sent_ms`."""
    lease = LocalLease(lasts_ms=lasts_ms)
    lease.renewed(sent_ms=sent_ms)
    is_alone = granted.size == 1 and granted.deliveries > 1 and not tenancy.is_to_bury
    return Block(
        slot,
        tenancy.epoch,
        granted.start,
        granted.end,
        lease,
        is_to_bury=tenancy.is_to_bury,
        is_suspect=is_alone,
        moved_ms=sent_ms,
    )


# How much to ask for


@dataclass(slots=True)
class Pace:
    """How much work one second is, by the blocks that were worked on."""

    size: int = FIRST

    def worked(self, count: int, elapsed_ms: int) -> None:
        """So many offsets in so much time. It grows by steps, so that one lucky block does not take all."""
        worth = count * WORTH_MS // max(1, elapsed_ms)
        self.size = max(1, min(worth, self.size * GROWTH))


def block_size(pace: Pace, *, window: int, members: int) -> int:
    """About one second of work, and no more than leaves room for everybody in the window."""
    return max(1, min(pace.size, window // (BLOCKS_IN_WINDOW * max(1, members))))


def holders(state: SlotState, since_ms: int) -> set[str]:
    """The clients that hold ranges and were heard of since then."""
    return {item.tenancy.owner[0] for item in state.map if item.tenancy and item.tenancy.renewed_ms > since_ms}


# What an answer would be


@dataclass(frozen=True, slots=True)
class Foreseen:
    """What the log would grant, as far as we have read it."""

    is_any: bool
    start: int = 0
    is_alone: bool = False
    """A single offset that was lost or failed before: a suspect."""
    is_expired: bool = False
    """It is taken from somebody whose lease has run out."""


def foreseen(state: SlotState, *, window: int, expired_before_ms: int) -> Foreseen:
    """The first candidate in the order of offsets, else room at the frontier."""
    for item in state.map:
        if item.status in (Status.FREE, Status.LOST):
            at_once = item.size if item.status is Status.FREE else item.most
            return Foreseen(True, item.start, is_alone=at_once == 1 and item.deliveries > 0)
        if item.tenancy is not None and item.tenancy.renewed_ms <= expired_before_ms and item.tenancy.producer is None:
            return Foreseen(True, item.start, is_alone=item.size < 16, is_expired=True)
    if state.position is None or state.map.frontier is None:
        return Foreseen(True)
    return Foreseen(state.map.frontier < state.position + window, state.map.frontier)


def has_room(blocks: Iterable[Block], prospect: Foreseen, *, end: int) -> bool:
    """Whether to ask for one more: one is in work, and one ahead is enough.

    Messages that are there go first: blocks that wait behind the end keep nobody from asking for those.
    """
    unread = [block for block in blocks if block.untouched]
    if prospect.start < end:
        unread = [block for block in unread if block.next < end]
    return not unread or (len(unread) == 1 and unread[0].begun_ms is not None)


# What to tell


def acks_due(finished: Spans, *, from_: int, is_last: bool) -> list[Span]:
    """Few records: what moves the position first, then the largest; the small rest waits until the block is over."""
    spans = list(finished)
    if is_last or len(spans) <= ACKS_AT_ONCE:
        return spans
    prefix = [span for span in spans[:1] if span[0] == from_]
    largest = sorted(spans[len(prefix) :], key=lambda span: span[0] - span[1])
    return prefix + sorted(largest[: ACKS_AT_ONCE - len(prefix)])


def kept(block: Block, *, now_ms: int, idle_ms: int) -> int:
    """How many untouched offsets to keep of a block that stands or is slow; the others shall have the rest."""
    if block.outstanding == 0:
        # It waits for messages: the next ones shall have an owner already.
        return block.untouched if now_ms - block.moved_ms < idle_ms else FIRST
    elapsed_ms = now_ms - (now_ms if block.begun_ms is None else block.begun_ms)
    if elapsed_ms < 2 * WORTH_MS:
        return block.untouched
    return max(1, 2 * WORTH_MS * (block.next - block.start) // elapsed_ms)
