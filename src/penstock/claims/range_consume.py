"""Consuming partitions that many members share by ranges: each works on blocks of offsets that the log handed out.

At least once: a message is handed out, acked, and told as finished. What a member had in hand when it died comes back,
in ever smaller pieces, until a message that kills whoever works on it stands alone; that one is buried, and no other.
At most once: a batch is told as finished, that is read back, and then it is handed out.
"""

from __future__ import annotations

import logging
import threading
import uuid
from collections.abc import Mapping, Sequence
from contextlib import suppress
from types import TracebackType

from penstock.claims.batch import Batch, TimedBatch
from penstock.claims.blocks import Block
from penstock.claims.consumption import Consumption
from penstock.claims.dead_letters import DeadLetters
from penstock.claims.discovery import Discovery
from penstock.claims.display import Display
from penstock.claims.ends import Ends
from penstock.claims.fencing import Sweeping, in_a_thread
from penstock.claims.naming import this_host
from penstock.claims.overdue import Watch, Ways
from penstock.claims.range_batch import RangeBatch
from penstock.claims.range_burying import RangeBurying
from penstock.claims.range_listener import RangeListener
from penstock.claims.range_member import RangeMember, made
from penstock.claims.range_reading import READ_TIMEOUT_MS, RangeReading
from penstock.claims.records import Slot
from penstock.claims.running import Running
from penstock.claims.terms import Terms
from penstock.errors import Fenced, NotFound, TransientError
from penstock.kafka.reader import Received
from penstock.kafka.topics import Admin
from penstock.kafka.transactions import fence
from penstock.observe import events
from penstock.observe.events import tell
from penstock.settings import Settings
from penstock.values import Duration, TopicPartition

STOP_WITHIN_S = 10

log = logging.getLogger("penstock.claims")


class RangeConsumption(Consumption):
    """Messages of the blocks that are ours."""

    def __init__(self, settings: Settings, *, group: str, client: str, terms: Terms) -> None:
        super().__init__()
        # No range is ever reclaimed: any name will do, as long as nobody else has it.
        client = client or f"{this_host()}-{uuid.uuid4().hex[:8]}"
        self._group, self._terms = group, terms
        self.hands_out_lost = terms.delivery == "at_most_once"
        self._member: RangeMember | None = None
        self._changed = threading.Condition()
        self._admin = Admin(settings.kafka)
        self._discovery = Discovery(self._admin, terms.topics, group=group, mend=self._mend)
        # Each is written by one thread and read by another: a new one takes its place, so that nobody sees it grow.
        self._starts: Mapping[Slot, int] = {}
        self._positions: Mapping[TopicPartition, int] = {}
        self._last: dict[Slot, int] = {}
        self._dead_letters = DeadLetters(settings, group=group)
        limit = settings.claims.delivery_limit
        burying = RangeBurying(settings.kafka, self._dead_letters, reason=f"it failed {limit} times")
        listener = RangeListener(
            lost=self._on_lost,
            start_of=lambda slot: self._starts.get(slot, 0),
            end_of=lambda slot: self._last.get(slot, 0),
            bury=burying.is_copied,
            fence=Sweeping(in_a_thread(lambda name: fence(settings.kafka, name))).is_fenced,
        )
        self._running = Running(
            settings, made(settings.claims, client=client, listener=listener), client=client, on_step=self._look
        )
        burying.nudge = self._running.nudge
        self._reading = RangeReading(settings.kafka, self._admin, group=group)
        self._display = Display(self._reading.reader)
        self._ends = Ends(self._admin, every=Duration(int(settings.claims.heartbeat) // 6))
        if terms.ack_timeout is not None:
            ways = Ways(bury=self._bury, release=_fail, stalled=lambda away_s: None)
            self._watch = Watch(terms.ack_timeout, terms.on_overdue, ways, group=group)

    @property
    def partitions(self) -> list[TopicPartition]:
        """Those of which blocks are ours at the moment."""
        blocks = [] if self._member is None else self._member.blocks
        return sorted({TopicPartition(block.slot.topic, block.slot.partition or 0) for block in blocks})

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if isinstance(error, Exception) and self._member is not None:
            # Perhaps one of the messages in hand did it: they come back as after a crash, in smaller pieces.
            self._member.let_go()
        super().__exit__(kind, error, trace)

    def _open(self) -> None:
        self._running.start(self._slots())
        if self._watch is not None:
            self._watch.start()

    def _close(self) -> None:
        if self._watch is not None:
            self._watch.close()
        self._running.stop(within_s=STOP_WITHIN_S)
        self._dead_letters.close()
        self._show(at_once=True)
        self._reading.close()
        self._admin.close()

    # One batch

    def _next_batches(self) -> Sequence[Batch]:
        if self._running.failure is not None:
            raise self._running.failure
        if self._discovery.found_more():
            self._running.want(self._slots())
        self._show()
        member = self._member
        if member is None:
            self._wait()
            return []
        member.attend()
        wanted = {
            place: blocks
            for place in self._discovery.known
            if (blocks := member.to_read(Slot(self._group, *place))) and place.topic not in self._discovery.missing
        }
        if len(wanted) < len(self._discovery.known):
            self._look_for_ends()
        if not wanted or sum(block.outstanding for block in member.blocks) >= self._terms.outstanding_max:
            self._wait()
            return []
        return self._handed_out(member, wanted)

    def _handed_out(self, member: RangeMember, wanted: dict[TopicPartition, list[Block]]) -> list[RangeBatch]:
        batches: list[RangeBatch] = []
        for block, (_, end), records in self._reading.read(wanted, self._terms.batch_max):
            is_first = block.begun_ms is None
            taken = member.take(block, end)
            if taken[0] == taken[1]:
                continue  # it was given back, or is not good: it comes again, if it is ours
            if is_first:
                self._running.nudge()
            if records:
                batches.append(RangeBatch(records, member, block, taken))
            else:
                member.finish(block, *taken)
        for place, end in self._reading.ends():
            slot = Slot(self._group, *place)
            self._last[slot] = max(end, self._last.get(slot, 0))
        if self._terms.delivery == "at_most_once":
            return self._told_first(member, batches)
        return batches

    def _told_first(self, member: RangeMember, batches: list[RangeBatch]) -> list[RangeBatch]:
        """Tell them as finished, read that back, and only then hand them out."""
        for batch in batches:
            member.finish(batch.block, batch.start, batch.end, tell_at_once=True)
        self._running.nudge()
        return [batch for batch in batches if self._is_told(member, batch)]

    def _is_told(self, member: RangeMember, batch: RangeBatch) -> bool:
        """Wait until the log is known to have it, or the block is gone."""
        with self._changed:
            while not member.is_done(batch.block, batch.start, batch.end):
                if not batch.block.is_held or self._running.failure is not None:
                    return False
                self._changed.wait(0.2)
        return True

    def _wait(self) -> None:
        with self._changed:
            self._changed.wait(READ_TIMEOUT_MS / 1_000)

    def _show(self, *, at_once: bool = False) -> None:
        try:
            self._display.show(self._positions, at_once=at_once)
        except (TransientError, NotFound) as trouble:
            log.warning("positions are not committed to Kafka: %s", trouble)

    def _look_for_ends(self) -> None:
        for place, end in (self._ends.look(self._discovery.known) or {}).items():
            self._last[Slot(self._group, *place)] = end

    # Claims come and go

    def _slots(self) -> frozenset[Slot]:
        slots = {Slot(self._group, *place): place for place in self._discovery.known}
        new = {slot: place for slot, place in slots.items() if slot not in self._starts}
        bounds = self._admin.bounds(new.values())
        is_earliest = self._terms.start == "earliest"
        starts = {slot: bounds[at].start if is_earliest else bounds[at].stable_end for slot, at in new.items()}
        self._starts = {**self._starts, **starts}
        return frozenset(slots)

    def _look(self, member: RangeMember) -> None:
        """In the member's thread: wake who waits for blocks or verdicts."""
        self._member = member
        self._positions = {
            TopicPartition(slot.topic, slot.partition or 0): position
            for slot in self._starts
            if (position := member.position(slot)) is not None
        }
        with self._changed:
            self._changed.notify_all()

    def _on_lost(self, block: Block, reason: str) -> None:
        tell(events.ClaimLost(slot=str(block.slot), token=block.token, reason=reason))
        if self._terms.on_lost is not None:
            try:
                self._terms.on_lost(block.slot, block.token, reason)
            except Exception as failure:  # noqa: BLE001 - whatever the user's function raises, the member must go on
                tell(events.CallbackFailed(callback="on_lost", reason=f"{type(failure).__name__}: {failure}"))

    def _bury(self, records: list[Received], reason: str) -> None:
        self._dead_letters.bury(records, reason=reason)

    def _mend(self, topic: str) -> str:
        slots = f"{self._group}/{topic}/{{0..N}}"
        return f"stop the group, run `penstock claims reset {slots} --to earliest`, and start it again"


def _fail(batch: TimedBatch) -> None:
    """Overdue, and to be given back: with ranges, that is a failure of what is left of the batch."""
    if not batch.is_lost:
        # The member's thread may lose it between the question and this.
        with suppress(Fenced):
            batch.fail()
