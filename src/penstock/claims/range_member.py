"""A member that shares slots with others by ranges: it asks for blocks of offsets, keeps them, tells what is finished.

It does not name a range: the log hands out the next block. While it works on one it asks for the next one ahead.

    RangeClaimed ──▶ read back: granted ──▶ Block ── RangeRenewed every HB/3 ──▶ …
                                              ├── RangeAcked      what is finished, packed
                                              ├── RangeReleased   what failed (counted), what was never handed out (not)
                                              ├── RangeBuried     what was granted to be buried, and was
                                              └── another epoch has a part of it ──▶ all that is left is lost

One thread drives it by `step`; the simulator does the same. Another thread may take, finish and fail meanwhile.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

from penstock.claims.blocks import Block, Foreseen, Pace, Spans, block_of, block_size, foreseen, has_room, holders, kept
from penstock.claims.intervals import Interval, Tenancy
from penstock.claims.placement import genesis, partition_of
from penstock.claims.range_fencing import RangeFencing
from penstock.claims.range_listener import RangeListener
from penstock.claims.range_telling import Settling, Teller
from penstock.claims.records import ClaimsFounded, Heartbeat, RangeClaimed, RangeReleased, RangeRenewed, Slot
from penstock.claims.sight import Sight
from penstock.claims.state import Claims
from penstock.crash import crash_point
from penstock.ledger.log import Entry
from penstock.ledger.machine import Judged, Kind
from penstock.ledger.tail import ReadBack, Tail, Ticket, monotonic_ms
from penstock.settings import ClaimsSettings


@dataclass(slots=True)
class _Shared:
    """What the member remembers of one slot."""

    looked_at: int = -1
    blocks: list[Block] = field(default_factory=list)
    pace: Pace = field(default_factory=Pace)
    question: Ticket | None = None
    ask_at_ms: int = 0
    others: dict[str, int] = field(default_factory=dict)
    """Who else asked for ranges of it, and when."""


class RangeMember:
    """Holds blocks of the slots that it wants: one in work and one ahead, each about a second of work."""

    def __init__(
        self,
        tail: Tail[Claims],
        *,
        founded: ClaimsFounded,
        client: str,
        place: Callable[[Slot, int], int],
        monotonic_ms: Callable[[], int],
        listener: RangeListener | None = None,
        producer: str | None = None,
    ) -> None:
        """`place` tells the coordination partition of a slot; `producer` is the transactional id of our effects."""
        self.tail, self.client, self.instance = tail, client, tail.instance
        self.lock = threading.RLock()
        """Guards the blocks: the thread that works on them is not the one that drives."""
        self._founded, self._now_ms, self._producer = founded, monotonic_ms, producer
        self._sight = Sight(tail, founded=founded, place=place, monotonic_ms=monotonic_ms)
        self._listener = listener or RangeListener()
        self._teller = Teller(tail, self._sight, client=client, heartbeat_ms=founded.heartbeat_ms)
        self._fencing = RangeFencing(self._teller, self._listener.fence)
        self._shared: dict[Slot, _Shared] = {}
        self._leaving: dict[Slot, _Shared] = {}
        self._let_go: set[int] = set()
        self._is_going = False
        self._attended_ms = monotonic_ms()
        tail.witness = self._saw

    # What the holder says and asks, from its own thread

    @property
    def blocks(self) -> list[Block]:
        with self.lock:
            return [block for shared in self._all() for block in shared.blocks]

    @property
    def holds(self) -> int:
        with self.lock:
            return len(self.blocks) + self._questions + self._teller.under_way

    def want(self, slots: Iterable[Slot]) -> None:
        """From now on share exactly these; what is held of others is given back, also what is in hand."""
        with self.lock:
            wanted = set(slots)
            for slot in wanted - set(self._shared):
                known = self._leaving.pop(slot) if slot in self._leaving else None
                self._shared[slot] = known if known is not None else _Shared()
            for slot in set(self._shared) - wanted:
                self._leaving[slot] = self._shared.pop(slot)
                for block in self._leaving[slot].blocks:
                    block.give_back(block.start)
        self._sight.follow(self._shared)

    def attend(self) -> None:
        """There is somebody who works. Without a sign for one HB, what was claimed ahead is for the others."""
        self._attended_ms = self._now_ms()

    def is_good(self, block: Block) -> bool:
        """Whether work on the block may be handed out or acked now: nobody else can hold it."""
        return block.is_held and block.lease.is_good(self._now_ms())

    def to_read(self, slot: Slot) -> list[Block]:
        """The blocks that have something to hand out now, in the order of offsets."""
        with self.lock:
            shared = self._shared.get(slot)
            blocks = [] if shared is None else [b for b in shared.blocks if b.untouched and self._may_hand_out(b)]
            return sorted(blocks, key=lambda block: block.start)

    def take(self, block: Block, upto: int) -> tuple[int, int]:
        """Hand out what is untouched below `upto`: from where to where it is the caller's now, perhaps nothing."""
        with self.lock:
            start, end = block.next, min(upto, block.stop)
            if start >= end or not self._may_hand_out(block):
                return start, start
            block.take(end, self._now_ms())
            return start, end

    def left(self, block: Block, start: int, end: int) -> Spans:
        """What is neither finished nor failed."""
        with self.lock:
            return Spans(block.open.within(start, end))

    def is_done(self, block: Block, start: int, end: int) -> bool:
        """Whether the log is known to have it as finished."""
        with self.lock:
            return block.done.covers(start, end)

    def finish(self, block: Block, start: int, end: int, *, tell_at_once: bool = False) -> bool:
        """Whether it is still ours to say so; again is no change."""
        with self.lock:
            if block.done.covers(start, end):
                return True
            if not self.is_good(block) or end > block.next:
                return False
            block.finish(start, end)
            if tell_at_once:
                block.told_ms = 0
            shared = self._shared.get(block.slot)
            if shared is not None and not block.open and block.begun_ms is not None:
                shared.pace.worked(block.stop - block.start, self._now_ms() - block.begun_ms)
            return True

    def fail(self, block: Block, start: int, end: int) -> bool:
        """Let somebody try again; it counts towards burial. Whether it is still ours to say so."""
        with self.lock:
            if not self.is_good(block) or end > block.next:
                return False
            block.fail(start, end)
            return True

    def let_go(self) -> None:
        """Give back what was never handed out, and say nothing of the rest: it comes back as after a crash."""
        with self.lock:
            self._is_going = True
            for block in self.blocks:
                self._let_go.add(block.token)
                block.let_go()

    def position(self, slot: Slot) -> int | None:
        """How far the group is, as far as we have read."""
        return self._sight.state(slot).position if self._sight.is_followed(slot) else None

    # Driving

    def step(self, timeout_ms: int) -> None:
        """Read what is new, then ask, renew, tell and give back what is due."""
        read_backs = self.tail.step(timeout_ms)
        with self.lock:
            for read_back in read_backs:
                self._on_read_back(read_back)
            ready = {partition.number for partition in self._sight.look()}
            for slot, shared in [*self._shared.items(), *self._leaving.items()]:
                if self._sight.number(slot) in ready:
                    self._look(slot, shared)
                    self._tend(shared)
                    self._tick(slot)
            self._teller.say_again()
            self._ask([slot for slot in self._shared if self._sight.number(slot) in ready])
        if self.holds:
            self.tail.keep_snapshots()

    def _all(self) -> Iterator[_Shared]:
        yield from self._shared.values()
        yield from self._leaving.values()

    @property
    def _questions(self) -> int:
        return sum(shared.question is not None for shared in self._all())

    def _may_hand_out(self, block: Block) -> bool:
        is_alone = not block.is_suspect or (len(self.blocks) == 1 and not self._questions)
        return is_alone and not block.is_to_bury and self.is_good(block)

    # What the log says of us

    def _look(self, slot: Slot, shared: _Shared) -> None:
        """Notice what is settled and what is lost; give back what we were granted and do not wait for."""
        read_to = self.tail.fold(self._sight.number(slot)).next_offset
        if shared.looked_at == read_to:
            return
        shared.looked_at = read_to
        ours = list(self._ours(slot))
        epochs = {tenancy.epoch for _, tenancy in ours}
        for block in list(shared.blocks):
            if not block.is_settled and block.token in epochs:
                continue
            block.is_held = False
            shared.blocks.remove(block)
            self._teller.forget(block.token)
            if block.minded:
                self._listener.lost(block, f"what was left of epoch {block.token} of {slot} has passed on")
        expected = self._let_go | {block.token for block in shared.blocks}
        for item, tenancy in ours:
            if tenancy.epoch not in expected:
                self._teller.stray(slot, tenancy.epoch, (item.start, item.end))

    def _ours(self, slot: Slot) -> Iterator[tuple[Interval, Tenancy]]:
        for item in self._sight.state(slot).map:
            if item.tenancy is not None and item.tenancy.owner == (self.client, self.instance):
                yield item, item.tenancy

    def _on_read_back(self, read_back: ReadBack) -> None:
        record = read_back.record
        ticket = self._teller.answered(read_back)
        if isinstance(record, RangeClaimed):
            self._on_answer(record.slot, read_back)
        elif isinstance(record, RangeRenewed) and ticket is not None and read_back.verdict.is_accepted:
            for block in self._of_epoch(record.slot, record.epoch):
                self._on_renewed(block, ticket.sent_ms)
        elif isinstance(record, Settling):
            for block in self._of_epoch(record.slot, record.epoch):
                self._on_settled(block, record, read_back)

    def _on_renewed(self, block: Block, sent_ms: int) -> None:
        # Once its lease was over, somebody may have dropped the work for that: it is not revived.
        if self.is_good(block):
            block.lease.renewed(sent_ms=sent_ms)

    def _on_settled(self, block: Block, record: Settling, read_back: ReadBack) -> None:
        held = self._sight.state(block.slot).map.of_epoch(block.token)
        is_held = any(item.start < record.end and item.end > record.start for item in held)
        if read_back.verdict.kind is not Kind.IGNORED or (held and not is_held):
            block.settle(record.start, record.end, is_done=not isinstance(record, RangeReleased))
        elif is_held:
            self._teller.once(record)  # the log was cut before we read it back

    def _of_epoch(self, slot: Slot, epoch: int) -> list[Block]:
        shared = self._shared.get(slot) or self._leaving.get(slot)
        return [] if shared is None else [block for block in shared.blocks if block.token == epoch]

    # Tending what we hold

    def _tend(self, shared: _Shared) -> None:
        for block in shared.blocks:
            if not self.is_good(block):
                self._lapse(block)
            elif block.is_to_bury:
                self._bury(block)
            else:
                self._trim(shared, block)
            self._teller.progress(block, self._now_ms())
            self._teller.renewal(block, self._now_ms())

    def _lapse(self, block: Block) -> None:
        """For a whole HB nobody answered. Whoever works on it was told so, and has dropped it: it must come again."""
        if block.outstanding:
            self._listener.lost(block, f"epoch {block.token} of {block.slot} could not be renewed in time")
        block.give_back(block.start)

    def _bury(self, block: Block) -> None:
        if block.open and self._listener.bury(block):
            crash_point("claims.copied")
            block.finish(block.start, block.end)

    def _trim(self, shared: _Shared, block: Block) -> None:
        """Nobody works, or too slowly for so much: the others shall have the rest."""
        heartbeat_ms = self._founded.heartbeat_ms
        if not self._is_attended or self._sight.is_paused(block.slot, self.client):
            block.give_back(block.next)
            return
        keep = kept(block, now_ms=self._now_ms(), idle_ms=heartbeat_ms)
        if block.untouched > 2 * keep:
            block.give_back(block.next + keep)
            shared.pace = Pace(keep)

    @property
    def _is_attended(self) -> bool:
        return self._now_ms() - self._attended_ms < self._founded.heartbeat_ms

    def _tick(self, slot: Slot) -> None:
        """Somebody is silent: to take over from it, we must have been at the end for a while."""
        state, partition, now_ms = self._sight.state(slot), self._sight.of(slot), self._now_ms()
        silent_before_ms = self._sight.log_ms(slot) - self._founded.heartbeat_ms
        is_owner_silent = state.owner is not None and state.renewed_ms <= silent_before_ms
        is_watched = is_owner_silent or any(i.tenancy and i.tenancy.renewed_ms <= silent_before_ms for i in state.map)
        if is_watched and now_ms >= partition.heartbeat_at_ms:
            partition.heartbeat_at_ms = now_ms + self._founded.heartbeat_ms // 3
            self.tail.forget(self.tail.append(partition.number, Heartbeat(self.client, self.instance, ())))

    # Asking

    def _ask(self, ready: list[Slot]) -> None:
        for shared in self._all():
            if shared.question is not None and self._sight.is_overdue(shared.question):
                self.tail.forget(shared.question)
                shared.question = None
        prospects = {slot: self._foreseen(slot) for slot in ready}
        alone = next((slot for slot, prospect in prospects.items() if prospect.is_any and prospect.is_alone), None)
        blocks = self.blocks
        if any(block.is_suspect for block in blocks) or not self._is_attended or self._is_going:
            return
        if alone is None:
            for slot, prospect in prospects.items():
                if prospect.is_any and self._wants_more(slot, prospect):
                    self._claim(slot, self._shared[slot])
        elif not blocks and not self._questions:
            self._claim(alone, self._shared[alone])
        else:
            for block in blocks:
                if block.next >= self._listener.end_of(block.slot):
                    block.give_back(block.next)

    def _foreseen(self, slot: Slot) -> Foreseen:
        """What a question now would give; nothing, if it is not the time to ask."""
        nothing = Foreseen(False)
        state, log_ms, is_calm = self._sight.state(slot), self._sight.log_ms(slot), self._sight.is_calm(slot)
        lease_ms = 2 * self._founded.heartbeat_ms
        if is_calm:
            self._fencing.sweep(slot, state, expired_before_ms=log_ms - lease_ms)
        is_owned = state.owner is not None and (log_ms - state.renewed_ms < lease_ms or not is_calm)
        if is_owned or state.producers or self._sight.is_paused(slot, self.client):
            return nothing
        prospect = foreseen(state, window=self._founded.window, expired_before_ms=log_ms - lease_ms)
        # A suspect that nobody has sent yet would only be blamed for whatever happens to us meanwhile.
        is_too_early = prospect.is_alone and prospect.start >= self._listener.end_of(slot)
        return nothing if is_too_early or (prospect.is_expired and not is_calm) else prospect

    def _wants_more(self, slot: Slot, prospect: Foreseen) -> bool:
        blocks = self._shared[slot].blocks
        # None while the log might take our own for expired: the answer would be a part of them.
        return has_room(blocks, prospect, end=self._listener.end_of(slot)) and all(map(self.is_good, blocks))

    def _claim(self, slot: Slot, shared: _Shared) -> None:
        now_ms = self._now_ms()
        if now_ms < shared.ask_at_ms or shared.question is not None:
            return
        state, recently_ms = self._sight.state(slot), 2 * self._founded.heartbeat_ms
        others = {client for client, at_ms in shared.others.items() if now_ms - at_ms < recently_ms}
        others |= holders(state, self._sight.log_ms(slot) - recently_ms)
        n = block_size(shared.pace, window=self._founded.window, members=len(others | {self.client}))
        start = self._listener.start_of(slot) if state.position is None else None
        question = RangeClaimed(slot, self.client, self.instance, n, start, self._producer)
        shared.question = self.tail.append(self._sight.number(slot), question)
        crash_point("claims.range_asked")

    def _on_answer(self, slot: Slot, read_back: ReadBack) -> None:
        shared = self._shared.get(slot) or self._leaving.get(slot)
        if shared is None or read_back.ticket is None or shared.question is not read_back.ticket:
            return  # if it was granted, `_look` gives it back
        shared.question = None
        granted = self._sight.state(slot).map.of_epoch(read_back.offset) if read_back.verdict.is_accepted else []
        if not granted or granted[0].tenancy is None:
            shared.ask_at_ms = self._now_ms() + self._founded.heartbeat_ms // 6
            return
        sent_ms, lasts_ms = read_back.ticket.sent_ms, self._founded.heartbeat_ms
        block = block_of(slot, granted[0], granted[0].tenancy, sent_ms=sent_ms, lasts_ms=lasts_ms)
        if slot in self._leaving or self._is_crowded(block):
            block.give_back(block.start)
        shared.blocks.append(block)

    def _is_crowded(self, block: Block) -> bool:
        """Who works on a suspect holds nothing else: a crash would be blamed on both."""
        return bool(self.blocks) and (block.is_suspect or any(other.is_suspect for other in self.blocks))

    def _saw(self, entry: Entry, judged: Judged) -> None:
        record = judged.record
        if isinstance(record, RangeClaimed) and record.client != self.client and record.slot in self._shared:
            self._shared[record.slot].others[record.client] = self._now_ms()


def made(settings: ClaimsSettings, *, client: str, listener: RangeListener) -> Callable[[Tail[Claims]], RangeMember]:
    """How a running member is made, on real clocks."""
    return lambda tail: RangeMember(
        tail,
        founded=genesis(settings),
        client=client,
        place=partition_of,
        monotonic_ms=monotonic_ms,
        listener=listener,
    )
