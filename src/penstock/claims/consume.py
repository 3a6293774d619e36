"""Consuming topics whose partitions are shared by claims.

    with group.consume(["orders"]) as messages:
        for message in messages:
            charge(message.value, token=message.token)
            message.ack()

At least once: a message is handed out, acked, and then the position moves. A takeover repeats what no heartbeat had
told yet. At most once: the position moves first, is read back, and then the messages are handed out; a crash loses at
most one batch, and nothing is processed twice.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from types import TracebackType
from typing import Literal, Self

from penstock.claims.batch import Batch, Message, Work
from penstock.claims.discovery import Discovery
from penstock.claims.display import Display
from penstock.claims.member import Listener, Member, Tenure, made
from penstock.claims.progress import Progress
from penstock.claims.records import Slot
from penstock.claims.running import Running
from penstock.errors import OffsetGone, UsageError
from penstock.kafka.reader import Reader, Received
from penstock.kafka.topics import Admin
from penstock.observe import events
from penstock.observe.events import tell
from penstock.settings import Settings
from penstock.values import TopicPartition

Delivery = Literal["at_least_once", "at_most_once"]
Start = Literal["earliest", "latest"]

READ_TIMEOUT_MS = 50


class Consumption:
    """Yields messages of the partitions that are ours, as they come and go. One thread iterates."""

    def __init__(
        self,
        settings: Settings,
        *,
        group: str,
        client: str,
        topics: tuple[str, ...],
        delivery: Delivery,
        start: Start,
        batch_max: int,
        outstanding_max: int,
    ) -> None:
        self._settings, self._group, self._topics = settings, group, topics
        self._delivery, self._start, self._batch_max, self._outstanding_max = (
            delivery,
            start,
            batch_max,
            outstanding_max,
        )
        self._work: dict[TopicPartition, Work] = {}
        self._member: Member | None = None
        self._held: dict[Slot, Tenure] = {}
        self._told = threading.Condition()
        make = made(settings.claims, client=client, listener=Listener(lost=self._on_lost, is_drained=self._is_drained))
        self._running = Running(settings, make, client=client, on_step=self._look)
        self._admin = Admin(settings.kafka)
        self._reader = Reader(settings.kafka, group=group)
        self._discovery = Discovery(self._admin, topics)
        self._display = Display(self._reader)
        self._is_closed = False

    def __enter__(self) -> Self:
        self._running.start(self._slots())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __iter__(self) -> Iterator[Message]:
        for batch in self.batches():
            for message in batch:
                if self._delivery == "at_most_once" or not message.is_lost:
                    yield message

    def batches(self, timeout_s: float | None = None) -> Iterator[Batch]:
        """Records as they come, many of one partition at a time; ends after `timeout_s` without any, or when closed."""
        quiet_since = time.monotonic()
        while not self._is_closed:
            batches = self._next_batches()
            if batches:
                yield from batches
                quiet_since = time.monotonic()
            elif timeout_s is not None and time.monotonic() - quiet_since > timeout_s:
                return

    @property
    def partitions(self) -> list[TopicPartition]:
        """Those that are ours at the moment."""
        return sorted(self._work)

    def is_good(self, work: Work) -> bool:
        member = self._member
        return member is not None and member.is_good(work.tenure)

    def close(self) -> None:
        """Give every partition back with its position, so that the next member goes on from there. Idempotent."""
        if self._is_closed:
            return
        self._is_closed = True
        self._running.stop(within_s=10)
        self._display.show(self._positions(), at_once=True)
        self._reader.close()
        self._admin.close()

    # One batch

    def _next_batches(self) -> list[Batch]:
        if self._running.failure is not None:
            raise self._running.failure
        if self._discovery.found_more():
            self._running.want(self._slots())
        self._follow_claims()
        self._display.show(self._positions())
        records = self._read()
        if not records:
            self._pass_invisible()
            return []
        return self._committed_first(records) if self._delivery == "at_most_once" else self._handed_out(records)

    def _read(self) -> list[Received]:
        if not self._work or self._is_full():
            time.sleep(READ_TIMEOUT_MS / 1_000)
            return []
        try:
            return self._reader.read(self._batch_max, READ_TIMEOUT_MS)
        except OffsetGone as gone:
            self._pass_over(TopicPartition(gone.topic, gone.partition), gone.offset)
            return []

    def _pass_invisible(self) -> None:
        """Nothing more to read: what lies between the last message and the end is markers and aborted records."""
        for place, work in self._work.items():
            if work.progress.outstanding_count == 0 and not work.tenure.draining:
                work.next_offset = max(work.next_offset, self._reader.position(place))
                work.progress.passed(work.next_offset)
                work.settle()

    def _is_full(self) -> bool:
        return sum(work.progress.outstanding_count for work in self._work.values()) >= self._outstanding_max

    def _handed_out(self, records: list[Received]) -> list[Batch]:
        batches: list[Batch] = []
        for place, run in _by_partition(records).items():
            work = self._work.get(place)
            if work is None:
                continue
            if run[0].offset() < work.next_offset:
                run = [record for record in run if record.offset() >= work.next_offset]
            if run and not work.tenure.draining and self.is_good(work):
                batches.append(Batch(run, work, self.is_good))
            elif run:
                # Read, but not to be handed out now: it must come again, else the position would pass it unprocessed.
                self._reader.seek(place, work.next_offset)
        return batches

    def _committed_first(self, records: list[Received]) -> list[Batch]:
        """Move the positions over the batches, read that back, and only then hand them out."""
        batches = self._handed_out(records)
        for batch in batches:
            batch.pass_over()
            if self._member is not None:
                self._member.beat_now(batch.work.tenure.slot)
        return [batch for batch in batches if self._is_told(batch.work)]

    def _is_told(self, work: Work) -> bool:
        """Wait until the log is known to have the position, or the claim is gone."""
        wanted = work.progress.position
        with self._told:
            while work.tenure.told is None or work.tenure.told < wanted:
                if self._held.get(work.tenure.slot) is not work.tenure or self._running.failure is not None:
                    return False
                self._told.wait(0.2)
        return True

    # Claims come and go

    def _slots(self) -> frozenset[Slot]:
        return frozenset(Slot(self._group, place.topic, place.partition) for place in self._discovery.known)

    def _look(self, member: Member) -> None:
        """In the member's thread: publish what is held, and wake who waits for a position."""
        self._member = member
        with self._told:
            self._held = dict(member.held)
            self._told.notify_all()

    def _is_drained(self, tenure: Tenure) -> bool:
        works = (work for work in list(self._work.values()) if work.tenure is tenure)
        return all(work.progress.outstanding_count == 0 for work in works)

    def _on_lost(self, tenure: Tenure, reason: str) -> None:
        tell(events.ClaimLost(slot=str(tenure.slot), token=tenure.token, reason=reason))

    def _follow_claims(self) -> None:
        """Read exactly what is ours now, each from where its work is."""
        held = {
            TopicPartition(slot.topic, slot.partition or 0): tenure
            for slot, tenure in self._held.items()
            if tenure.leaving is None
        }
        if {place: work.tenure for place, work in self._work.items()} == held:
            return
        kept = {place: work for place, work in self._work.items() if held.get(place) is work.tenure}
        new = {place: self._begun(place, tenure) for place, tenure in held.items() if place not in kept}
        self._work = kept | new
        self._reader.assign({place: work.next_offset for place, work in self._work.items()})

    def _begun(self, place: TopicPartition, tenure: Tenure) -> Work:
        bounds = self._admin.bounds([place])[place]
        start = tenure.position
        if start is None:
            start = bounds.start if self._start == "earliest" else bounds.stable_end
            tenure.position = start
        elif start < bounds.start:
            self._tell_lost_data(place, start, bounds.start)
            start = bounds.start
        return Work(tenure, Progress(start), start)

    def _pass_over(self, place: TopicPartition, offset: int) -> None:
        """Retention deleted what we were about to read: say exactly what, and go on behind it."""
        start = self._admin.bounds([place])[place].start
        work = self._work.get(place)
        if work is None:
            return
        self._tell_lost_data(place, work.next_offset, start)
        work.next_offset = max(work.next_offset, start)
        work.progress.passed(work.next_offset)
        self._reader.seek(place, work.next_offset)

    def _tell_lost_data(self, place: TopicPartition, start: int, end: int) -> None:
        tell(events.DataLost(topic=place.topic, partition=place.partition, start=start, end=end))

    def _positions(self) -> dict[TopicPartition, int]:
        return {place: work.progress.position for place, work in self._work.items()}


def _by_partition(records: list[Received]) -> dict[TopicPartition, list[Received]]:
    """Each partition's records in the order of offsets. They come in runs, so most need no look-up."""
    runs: dict[TopicPartition, list[Received]] = {}
    topic, partition, run = "", -1, list[Received]()
    for record in records:
        if record.partition() != partition or record.topic() != topic:
            topic, partition = record.topic(), record.partition()
            run = runs.setdefault(TopicPartition(topic, partition), [])
        run.append(record)
    return runs


def checked_delivery(delivery: str) -> Delivery:
    if delivery == "at_least_once":
        return "at_least_once"
    if delivery == "at_most_once":
        return "at_most_once"
    raise UsageError(f"{delivery!r} is no delivery of a group", next_step='use "at_least_once" or "at_most_once"')
