"""Broadcasting: every member reads every partition, and has positions of its own. Nothing is claimed. At least once.

The positions are the offsets that Kafka keeps for the consumer group `<group>.<client>`. Nobody else writes them, so
that nothing has to be read back before it is believed, and the coordination ledger has no part in it.
"""

from __future__ import annotations

from collections.abc import Sequence

from penstock.claims.batch import Batch, PartitionBatch, TimedBatch, Work
from penstock.claims.consumption import Consumption
from penstock.claims.dead_letters import DeadLetters
from penstock.claims.overdue import Watch, Ways
from penstock.claims.reading import Reading
from penstock.claims.records import Slot
from penstock.claims.tenure import Tenure
from penstock.claims.terms import Terms
from penstock.errors import NotFound, TransientError
from penstock.kafka.reader import Received
from penstock.ledger.clock import LocalLease
from penstock.observe import events
from penstock.observe.events import tell
from penstock.settings import Settings
from penstock.values import TopicPartition

NO_TOKEN = -1
"""The epoch of a slot that nobody ever claimed: lower than any token."""


class Broadcast(Consumption):
    """All messages of all partitions, whoever else reads them."""

    def __init__(self, settings: Settings, *, group: str, client: str, terms: Terms) -> None:
        super().__init__()
        self._group, self._client = group, client
        self._reading = Reading(settings, terms, group=f"{group}.{client}", mend=self._mend)
        self._tenures: dict[TopicPartition, Tenure] = {}
        self._dead_letters = DeadLetters(settings, group=group)
        if terms.ack_timeout is not None:
            ways = Ways(bury=self._bury, release=self._start_over, stalled=self._stall)
            self._watch = Watch(terms.ack_timeout, terms.on_overdue, ways, group=group)

    @property
    def partitions(self) -> list[TopicPartition]:
        return sorted(self._reading.work)

    def is_good(self, work: Work) -> bool:
        return self.is_held(work)

    def is_held(self, work: Work) -> bool:
        slot = work.tenure.slot
        return self._tenures.get(TopicPartition(slot.topic, slot.partition or 0)) is work.tenure

    def _open(self) -> None:
        self._take(self._reading.discovery.known)
        if self._watch is not None:
            self._watch.start()

    def _close(self) -> None:
        if self._watch is not None:
            self._watch.close()
        self._dead_letters.close()
        self._reading.close()

    def _next_batches(self) -> Sequence[Batch]:
        self._reading.discovery.found_more()
        self._take(self._reading.discovery.known - self._tenures.keys())
        self._reading.follow(self._tenures)
        return [PartitionBatch(records, work, self) for _, work, records in self._reading.runs()]

    def _take(self, places: frozenset[TopicPartition]) -> None:
        if not places:
            return
        try:
            committed = self._reading.reader.committed(places)
        except (TransientError, NotFound):
            return  # asked again with the next batch
        for place in places:
            slot = Slot(f"{self._group}.{self._client}", *place)
            self._tenures[place] = Tenure(slot, NO_TOKEN, LocalLease(lasts_ms=0), committed.get(place), None)

    def _mend(self, topic: str) -> str:
        group = f"{self._group}.{self._client}"
        return f"stop this client, run `kafka-consumer-groups.sh --group {group} --topic {topic} --delete-offsets`"

    # Overdue messages, in the thread of their watch

    def _bury(self, records: list[Received], reason: str) -> None:
        self._dead_letters.bury(records, reason=reason)

    def _start_over(self, batch: TimedBatch) -> None:
        """Nobody else could have it: we read it again from its position."""
        if isinstance(batch, PartitionBatch):
            old = batch.work.tenure
            place = TopicPartition(old.slot.topic, old.slot.partition or 0)
            if self._tenures.get(place) is old:
                fresh = Tenure(old.slot, NO_TOKEN, LocalLease(lasts_ms=0), batch.work.position(), None)
                self._tenures = {**self._tenures, place: fresh}

    def _stall(self, away_s: float) -> None:
        """There is nobody to give anything to; it is told."""
        tell(events.ConsumerStalled(group=self._group, client=self._client, away_s=away_s))
