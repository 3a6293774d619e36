"""Consuming with transactions: what a batch caused in Kafka, and how far it is, become visible together or not at all.

    with group.transact(["orders"]) as orders:
        for batch in orders.batches():
            with orders.transaction(batch) as transaction:
                for order in batch:
                    transaction.send("totals", 0, total_of(order.value))

The group's committed offset is the truth here, since it is committed with the effects; the claim's position follows.
Whoever takes a partition over first fences every producer that may have a transaction open there.
"""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from penstock.claims.batch import Batch, PartitionBatch, Work
from penstock.claims.consume import PartitionConsumption
from penstock.claims.fencing import Fencing, in_a_thread
from penstock.claims.terms import Terms
from penstock.errors import Fenced, OutcomeUnknown, TransactionBroken, TransientError, UsageError
from penstock.kafka.transactions import Transactions, fence
from penstock.settings import Settings
from penstock.values import Duration, TopicPartition

BACK_OFF_S = 0.2

log = logging.getLogger("penstock.claims")


class TransactionalConsumption(PartitionConsumption):
    """Batches of the partitions that are ours, each to be worked off in a transaction. One thread does all of it."""

    def __init__(
        self, settings: Settings, *, group: str, client: str, terms: Terms, transaction_timeout: Duration
    ) -> None:
        self._fencing = Fencing(in_a_thread(lambda name: fence(settings.kafka, name)))
        super().__init__(settings, group=group, client=client, terms=terms, fencing=self._fencing)
        self._transactions = Transactions(
            settings.kafka,
            group=group,
            instance=uuid.uuid4().hex[:12],
            announce=self._fencing.announce,
            timeout=transaction_timeout,
        )
        self._is_open = False

    @contextmanager
    def transaction(self, *batches: Batch) -> Iterator[Transactions]:
        """Commits on leaving, with the end of these batches; rolls back if that is left by an exception.

        Raises Fenced if the claim passed on, TransactionAborted, OutcomeUnknown or TransactionBroken if it did not
        work out. After each of them one may go on: what was not committed is handed out again.
        """
        ours = [batch for batch in batches if isinstance(batch, PartitionBatch)]
        if len(ours) < len(batches) or not ours:
            raise UsageError("a transaction needs the batches that it works off", next_step="give it a batch of these")
        self._fencing.begun(batch.work.tenure.slot for batch in ours)
        try:
            self._begin(ours)
            yield self._transactions
            self._transactions.send_offsets({_place(batch.work): batch.end for batch in ours}, self._group)
            self._transactions.commit()
            self._is_open = False
            for batch in ours:
                batch.pass_over()
        finally:
            self._end(ours)

    def is_good(self, work: Work) -> bool:
        """Not what was rolled back, either: it is read again."""
        return self._reading.work.get(_place(work)) is work and super().is_good(work)

    # Inside

    def _open(self) -> None:
        self._transactions.open()
        super()._open()

    def _close(self) -> None:
        if self._is_open:
            self._end([])
        super()._close()
        self._transactions.close()

    def _next_batches(self) -> Sequence[Batch]:
        # First: without a member no fresh id is ever announced.
        self._check_running()
        if self._transactions.is_spent and not self._has_renewed():
            return []
        return super()._next_batches()

    def _has_renewed(self) -> bool:
        try:
            self._transactions.settle_and_renew()
        except TransientError as trouble:
            log.warning("what %s left is not settled yet: %s", self._transactions.id, trouble)
            time.sleep(BACK_OFF_S)
            return False
        self._reading.forget(list(self._reading.work))
        return True

    def _begin(self, batches: Sequence[PartitionBatch]) -> None:
        reached: dict[TopicPartition, int] = {}
        for batch in batches:
            place = _place(batch.work)
            if batch.is_lost:
                raise Fenced(f"{place} is not ours any more, or was rolled back", next_step="go on with the next batch")
            if batch.start != reached.get(place, batch.work.position()):
                raise UsageError(
                    f"offset {batch.start} of {place} is not the next one to be worked off",
                    next_step="give the batches of a partition to transactions in the order in which they came",
                )
            reached[place] = batch.end
        self._transactions.begin()
        self._is_open = True

    def _end(self, batches: Sequence[PartitionBatch]) -> None:
        """Roll back what is still open; what is not committed is read again."""
        is_known = not self._transactions.is_spent
        if self._is_open and is_known:
            is_known = self._has_rolled_back()
        if self._is_open:
            self._is_open = False
            self._reading.forget(_place(batch.work) for batch in batches)
        self._fencing.ended(is_known=is_known)

    def _has_rolled_back(self) -> bool:
        try:
            self._transactions.abort()
        except (Fenced, OutcomeUnknown, TransactionBroken, UsageError):
            # Whoever failed inside the transaction has ended it, or it is spent: nothing of it will ever be visible.
            return not self._transactions.is_spent
        return True


def _place(work: Work) -> TopicPartition:
    slot = work.tenure.slot
    return TopicPartition(slot.topic, slot.partition or 0)
