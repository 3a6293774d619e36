"""Consuming topics whose partitions are shared by claims.

At least once: a message is handed out, acked, and then the position moves. A takeover repeats what no heartbeat had
told yet. At most once: the position moves first, is read back, and then the messages are handed out; a crash loses at
most one batch, and nothing is processed twice.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence

from penstock.claims.batch import Batch, PartitionBatch, TimedBatch, Work
from penstock.claims.consumption import Consumption
from penstock.claims.dead_letters import DeadLetters
from penstock.claims.fencing import Fencing
from penstock.claims.member import Member, made
from penstock.claims.overdue import Watch, Ways
from penstock.claims.reading import Reading
from penstock.claims.records import Slot
from penstock.claims.running import Running
from penstock.claims.tally import Tally
from penstock.claims.tenure import Listener, Tenure
from penstock.claims.terms import Terms
from penstock.kafka.reader import Received
from penstock.observe import events
from penstock.observe.events import tell
from penstock.settings import Settings
from penstock.values import TopicPartition


class PartitionConsumption(Consumption):
    """Messages of the partitions that are ours, as they come and go."""

    def __init__(
        self, settings: Settings, *, group: str, client: str, terms: Terms, fencing: Fencing | None = None
    ) -> None:
        super().__init__()
        self._group, self._client, self._terms = group, client, terms
        self.hands_out_lost = terms.delivery == "at_most_once"
        self._member: Member | None = None
        self._held: dict[Slot, Tenure] = {}
        self._told = threading.Condition()
        listener = Listener(
            gained=self._on_gained, is_drained=self._is_drained, lost=self._on_lost, released=self._on_released
        )
        appetite = terms.appetite(give_up_lag=settings.claims.give_up_lag)
        make = made(settings.claims, client=client, listener=listener, reclaim=True, appetite=appetite, fencing=fencing)
        self._running = Running(settings, make, client=client, on_step=self._look)
        self._reading = Reading(settings, terms, group=group, mend=self._mend)
        self._tally = Tally(group, partitions=settings.claims.partitions)
        self._to_give_back: list[Tenure] = []
        self._is_stalled = False
        self._dead_letters = DeadLetters(settings, group=group)
        if terms.ack_timeout is not None:
            ways = Ways(bury=self._bury, release=self._give_back, stalled=self._stall)
            self._watch = Watch(terms.ack_timeout, terms.on_overdue, ways, group=group)

    @property
    def partitions(self) -> list[TopicPartition]:
        return sorted(self._reading.work)

    def is_good(self, work: Work) -> bool:
        member = self._member
        if member is None or work.is_spoiled:
            return False
        # For good: whoever was told that it is lost drops it. If a late heartbeat renews the claim after all, it is
        # begun anew, else its messages would be missing behind a position that never moves again.
        if not member.is_good(work.tenure):
            work.is_spoiled = True
        return not work.is_spoiled

    def is_held(self, work: Work) -> bool:
        return self._held.get(work.tenure.slot) is work.tenure

    def _open(self) -> None:
        self._running.start(self._slots())
        if self._watch is not None:
            self._watch.start()

    def _close(self) -> None:
        if self._watch is not None:
            self._watch.close()
        self._running.stop(within_s=10)
        self._dead_letters.close()
        self._reading.close()

    # One batch

    def _next_batches(self) -> Sequence[Batch]:
        self._check_running()
        if self._reading.discovery.found_more() or self._is_stalled:
            self._is_stalled = False
            self._running.want(self._slots())
        self._reading.forget(self._spoiled())
        self._reading.follow(
            {
                TopicPartition(slot.topic, slot.partition or 0): tenure
                for slot, tenure in self._held.items()
                if tenure.is_ready and tenure.leaving is None
            }
        )
        self._tell_ends()
        batches = self._handed_out()
        return self._committed_first(batches) if self._terms.delivery == "at_most_once" else batches

    def _check_running(self) -> None:
        """Raises what has ended the member."""
        if self._running.failure is not None:
            raise self._running.failure

    def _spoiled(self) -> list[TopicPartition]:
        """What was dropped while its claim was in doubt, and is ours after all."""
        member = self._member
        if member is None:
            return []
        return [place for place, work in self._reading.work.items() if work.is_spoiled and member.is_good(work.tenure)]

    def _tell_ends(self) -> None:
        """So that the member can see whether it keeps up; alone it has no choice anyway."""
        member = self._member
        if member is None or not member.has_rivals:
            return
        ends = self._reading.ends.look(self._reading.discovery.known)
        if ends is not None:
            member.ends = {Slot(self._group, *place): end for place, end in ends.items()}

    def _handed_out(self) -> list[PartitionBatch]:
        batches: list[PartitionBatch] = []
        for place, work, records in self._reading.runs():
            if not work.tenure.draining and self.is_good(work):
                batches.append(PartitionBatch(records, work, self))
            else:
                self._reading.again(place)
        return batches

    def _committed_first(self, batches: list[PartitionBatch]) -> list[PartitionBatch]:
        """Move the positions over the batches, read that back, and only then hand them out."""
        for batch in batches:
            batch.pass_over()
            if self._member is not None:
                self._member.beat_now(batch.work.tenure.slot)
                self._running.nudge()
        return [batch for batch in batches if self._is_told(batch.work)]

    def _is_told(self, work: Work) -> bool:
        """Wait until the log is known to have the position, or the claim is gone."""
        wanted = work.position()
        with self._told:
            while work.tenure.told is None or work.tenure.told < wanted:
                if not self.is_held(work) or self._running.failure is not None:
                    return False
                self._told.wait(0.2)
        return True

    # Claims come and go

    def _slots(self) -> frozenset[Slot]:
        return frozenset(Slot(self._group, place.topic, place.partition) for place in self._reading.discovery.known)

    def _look(self, member: Member) -> None:
        """In the member's thread: publish what is held, and wake who waits for a position."""
        self._member = member
        self._tally.count(member.tail, self._slots())
        while self._to_give_back:
            tenure = self._to_give_back.pop()
            if member.held.get(tenure.slot) is tenure and tenure.leaving is None:
                member.release(tenure.slot)
        with self._told:
            self._held = dict(member.held)
            self._told.notify_all()

    def _is_drained(self, tenure: Tenure) -> bool:
        works = (work for work in list(self._reading.work.values()) if work.tenure is tenure)
        return all(work.outstanding() == 0 for work in works)

    def _on_gained(self, tenure: Tenure) -> None:
        tell(events.ClaimGained(slot=str(tenure.slot), token=tenure.token, position=tenure.position))

    def _on_released(self, tenure: Tenure) -> None:
        tell(events.ClaimGivenBack(slot=str(tenure.slot), token=tenure.token, position=tenure.position))

    def _on_lost(self, tenure: Tenure, reason: str) -> None:
        tell(events.ClaimLost(slot=str(tenure.slot), token=tenure.token, reason=reason))
        if self._terms.on_lost is not None:
            try:
                self._terms.on_lost(tenure.slot, tenure.token, reason)
            except Exception as failure:  # noqa: BLE001 - whatever the user's function raises, the member must go on
                tell(events.CallbackFailed(callback="on_lost", reason=f"{type(failure).__name__}: {failure}"))

    def _mend(self, topic: str) -> str:
        slots = f"{self._group}/{topic}/{{0..N}}"
        return f"stop the group, run `penstock claims reset {slots} --to earliest`, and start it again"

    # Overdue messages, in the thread of their watch

    def _bury(self, records: list[Received], reason: str) -> None:
        self._dead_letters.bury(records, reason=reason)

    def _give_back(self, batch: TimedBatch) -> None:
        if isinstance(batch, PartitionBatch):
            self._to_give_back.append(batch.work.tenure)

    def _stall(self, away_s: float) -> None:
        """Whoever iterates is stuck: what it holds would stand still, so others shall have it."""
        self._is_stalled = True
        self._running.want(())
        tell(events.ConsumerStalled(group=self._group, client=self._client, away_s=away_s))
