"""A group: members that share the partitions of topics among them, through the coordination ledger alone."""

from __future__ import annotations

import uuid
from collections.abc import Sequence

from penstock.claims.consume import Consumption, Start, checked_delivery
from penstock.errors import UsageError
from penstock.settings import Settings
from penstock.values import checked_name


class Group:
    """Processes that give the same name share the work; each message goes to one of them."""

    def __init__(self, settings: Settings, name: str, *, client: str | None = None) -> None:
        """`client` names this member in the coordination ledger; it must differ between living members."""
        self.name = checked_name("group", name)
        self._settings = settings
        self._client = checked_name("client", client or f"member-{uuid.uuid4().hex[:8]}")

    def consume(
        self,
        topics: Sequence[str],
        *,
        delivery: str = "at_least_once",
        start: Start = "earliest",
        batch_max: int = 500,
        outstanding_max: int = 10_000,
    ) -> Consumption:
        """Use it as a context manager, and iterate.

        `start` holds for partitions that the group never had a position in. `outstanding_max` bounds what is handed
        out and not acked.
        """
        if isinstance(topics, str) or not topics:
            raise UsageError("topics must be a list with at least one name", next_step='write consume(["orders"])')
        return Consumption(
            self._settings,
            group=self.name,
            client=self._client,
            topics=tuple(topics),
            delivery=checked_delivery(delivery),
            start=start,
            batch_max=batch_max,
            outstanding_max=outstanding_max,
        )
