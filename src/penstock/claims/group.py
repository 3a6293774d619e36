"""A group: members that share the partitions of topics among them, through the coordination ledger alone."""

from __future__ import annotations

from collections.abc import Sequence

from penstock.claims.broadcast import Broadcast
from penstock.claims.consume import PartitionConsumption
from penstock.claims.consumption import Consumption
from penstock.claims.range_consume import RangeConsumption
from penstock.claims.terms import Claim, Delivery, OnLost, OnOverdue, Prefer, Share, Start, Terms, topics_given
from penstock.claims.transacting import TransactionalConsumption
from penstock.errors import UsageError
from penstock.settings import Settings
from penstock.values import DurationLike, checked_name, duration


class Group:
    """Processes that give the same name share the work; each message goes to one of them."""

    def __init__(self, settings: Settings, name: str, *, client: str | None = None) -> None:
        """`client` names this member in the coordination ledger; it must differ between living members.

        Without it, the setting `claims.client` holds, or the member is called <host>-<ordinal>.
        """
        self.name = checked_name("group", name)
        self._settings = settings
        self._client = checked_name("client", client) if client else settings.claims.client

    def consume(
        self,
        topics: Sequence[str],
        *,
        delivery: Delivery = "at_least_once",
        share: Share = "partitions",
        start: Start = "earliest",
        batch_max: int = 500,
        outstanding_max: int = 10_000,
        ack_timeout: DurationLike | None = None,
        on_overdue: OnOverdue = "dead_letter",
        claim: Claim = "partition",
        prefer: Prefer = (),
        on_lost: OnLost | None = None,
    ) -> Consumption:
        """Use it as a context manager, and iterate.

        `share`: whole partitions among the members, ranges of offsets of one partition among many, or all to each.
        `start` holds for partitions that the group never had a position in. `outstanding_max` bounds what is handed
        out and not acked. What is not acked within `ack_timeout` is told, and goes the way that `on_overdue` says.
        `claim="topic"` shares whole topics. `prefer` are partitions to ask for first and to give back last. `on_lost`
        is told slot, token and reason of a claim that passed on, from the thread that keeps the claims.

        Raises UsageError.
        """
        terms = Terms(
            topics=topics_given(topics),
            delivery=delivery,
            share=share,
            start=start,
            batch_max=batch_max,
            outstanding_max=outstanding_max,
            ack_timeout=None if ack_timeout is None else duration(ack_timeout),
            on_overdue=on_overdue,
            claim=claim,
            prefer=prefer,
            on_lost=on_lost,
        )
        match share:
            case "partitions":
                return PartitionConsumption(self._settings, group=self.name, client=self._client, terms=terms)
            case "ranges":
                return RangeConsumption(self._settings, group=self.name, client=self._client, terms=terms)
            case "all":
                return Broadcast(self._settings, group=self.name, client=self._stable_client(), terms=terms)

    def transact(
        self,
        topics: Sequence[str],
        *,
        start: Start = "earliest",
        batch_max: int = 500,
        transaction_timeout: DurationLike = "10s",
        on_lost: OnLost | None = None,
    ) -> TransactionalConsumption:
        """Exactly once within Kafka: every batch is worked off in a transaction, with its effects and its end.

        `transaction_timeout` is how long one may take; then the broker aborts it. The rest is as in `consume`.
        """
        terms = Terms(topics=topics_given(topics), start=start, batch_max=batch_max, on_lost=on_lost, transactions=True)
        timeout = duration(transaction_timeout)
        return TransactionalConsumption(
            self._settings, group=self.name, client=self._client, terms=terms, transaction_timeout=timeout
        )

    def _stable_client(self) -> str:
        if not self._client:
            raise UsageError(
                'share="all" keeps positions for every client, so that each needs a name that stays',
                next_step='write app.group(client="printer-1"), with another name in every process',
            )
        return self._client
