"""What a table has stored, remembered between batches, and who else wrote to it meanwhile."""

from __future__ import annotations

from collections.abc import Iterable

from penstock.errors import Fenced, Restored
from penstock.lake.offsets import Naming, Offsets
from penstock.lake.sink import Commit, Table, Transaction
from penstock.values import TopicPartition

_RESTORE = "RESTORE"


class StoredOffsets:
    """The offsets of one table under one name.

    Asking the table costs a Spark job where its log does not say them outright. So they are asked for once, and then
    only the few versions that others committed are looked at: they may be anything but a RESTORE or offsets of ours.
    """

    def __init__(self, table: Table, naming: Naming) -> None:
        self._table, self._naming = table, naming
        self._stored: dict[TopicPartition, int] = {}
        self._asked: set[TopicPartition] = set()
        self._judged_to: int | None = None
        self._own = -1

    def read(self, transaction: Transaction, partitions: Iterable[TopicPartition]) -> Offsets:
        """The offsets as of this transaction, which fails if somebody moves one of them before it commits.

        Raises Restored when rows were taken back, Fenced when another writer moves our offsets.
        """
        wanted = set(partitions)
        if self._judged_to is None:
            self._ask(transaction, wanted)
            if self._stored:
                self._judge(self._since_our_last(transaction.read_version))
        else:
            self._judge(self._table.commits(range(self._judged_to + 1, transaction.read_version + 1)))
            if wanted <= self._asked:
                transaction.guard(self._naming, wanted)
            else:
                self._ask(transaction, wanted)
        self._judged_to = transaction.read_version
        return self._stored

    def committed(self, version: int, *, read_version: int, versions: Offsets) -> None:
        """Our transaction is in the table, possibly behind others that came first."""
        self._stored.update(versions)
        self._own = version
        self._judged_to = version if version == read_version + 1 else read_version

    def _ask(self, transaction: Transaction, wanted: set[TopicPartition]) -> None:
        self._stored = transaction.stored(self._naming, wanted | self._asked)
        self._asked |= wanted

    def _since_our_last(self, latest: int) -> Iterable[Commit]:
        """Newest first, down to what the last one that moved our offsets was made from: that accounts for the rest."""
        ours = {self._naming.of(each) for each in self._asked}
        accounted = -1
        for commit in self._table.commits(range(latest, -1, -1)):
            if commit.version <= accounted:
                return
            if not ours & commit.txns.keys():
                yield commit
            elif accounted < 0:
                accounted = commit.read_version

    def _judge(self, commits: Iterable[Commit]) -> None:
        ours = {self._naming.of(each) for each in self._asked}
        for commit in commits:
            if commit.operation == _RESTORE:
                raise Restored(table=self._table.place, version=commit.version)
            if commit.version != self._own and ours & commit.txns.keys():
                raise Fenced(
                    f"version {commit.version} of {self._table.place} has offsets of {self._naming.app_id} that are "
                    "not from this run",
                    next_step="let one of the two run: `penstock lake status` says which",
                )
