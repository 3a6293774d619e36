"""One Delta commit with rows and offsets: the only module that knows Delta's internal classes.

They are reached through py4j, pinned to the versions of our jars, and judged in the tests by the JSON that they leave
in the table's log. Everything here runs on the driver; the one Spark job is `Transaction.write`.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from penstock.errors import ConfigError, Fenced, NotFound, PenstockError, Refused
from penstock.lake.offsets import Naming, Offsets
from penstock.values import TopicPartition

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructField, StructType

# Where the size of rows is looked for: so many versions back, in files with so many rows.
_RECENT, _TELLING_ROWS = 20, 1_000
_RETENTION = "delta.setTransactionRetentionDuration"
_AGAIN = ("MetadataChangedException", "ProtocolChangedException", "ConcurrentWriteException")
_FENCING = ("ConcurrentTransactionException",)
_HALF_MADE = ("DELTA_TABLE_NOT_FOUND", "DELTA_CREATE_TABLE_WITH_NON_EMPTY_LOCATION")
_APPEARS_S = 10.0


class ChangedMeanwhile(PenstockError):
    """Somebody changed the table's form during the transaction; the same work may be done again on the new one."""

    retriable = True


@dataclass(frozen=True, slots=True)
class Commit:
    """What one version of a table's log says about itself, rows aside."""

    version: int
    operation: str
    txns: Mapping[str, int]
    """The stored offsets that it moved, by name."""
    read_version: int
    """The version that it was made from; what came between the two, it did not see."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """Data files that are on the disk and not yet in the table."""

    files: tuple[Any, ...]
    rows: int
    bytes: int
    count: int

    def __add__(self, other: Written) -> Written:
        return Written(
            files=self.files + other.files,
            rows=self.rows + other.rows,
            bytes=self.bytes + other.bytes,
            count=self.count + other.count,
        )


class Table:
    """A Delta table by its place. Cheap to make; Delta keeps what it knows of the log for the whole process."""

    def __init__(self, session: SparkSession, place: str) -> None:
        self.place = place
        self._session = session
        self._jvm: Any = session._jvm
        self._delta = self._jvm.org.apache.spark.sql.delta
        self._known: tuple[str, StructType, dict[str, str]] | None = None

    def exists(self) -> bool:
        log = self._log()
        path = log.logPath()
        if path.getFileSystem(log.newDeltaHadoopConf()).exists(path):
            # It looks at the log as it is now; the log itself remembers how it was.
            return int(log.startTransaction().readVersion()) >= 0
        # Delta remembers tables by their place, also those whose folder was removed.
        self._delta.DeltaLog.invalidateCache(self._session._jsparkSession, log.dataPath())
        return False

    def schema(self) -> StructType:
        return self.begin().schema

    def properties(self) -> dict[str, str]:
        self.begin()
        return {} if self._known is None else self._known[2]

    def make(
        self,
        schema: StructType,
        *,
        partition_by: Iterable[str] = (),
        cluster_by: Iterable[str] = (),
        properties: Mapping[str, str],
    ) -> None:
        """Make the table if it is not there; who made it first does not matter."""
        from delta.tables import DeltaTable

        builder = DeltaTable.createIfNotExists(self._session).location(self.place).addColumns(schema)
        if folders := list(partition_by):
            builder = builder.partitionedBy(folders)
        if clustered := list(cluster_by):
            builder = builder.clusterBy(clustered)
        for name, value in properties.items():
            builder = builder.property(name, value)
        try:
            builder.execute()
        except Exception as failure:
            # Of those that make it at the same moment all but one are told so, in several ways: it is there soon.
            is_beaten = _named(failure, _AGAIN) or any(word in str(failure) for word in _HALF_MADE)
            if not is_beaten or not self._appears():
                raise

    def _appears(self) -> bool:
        deadline = time.monotonic() + _APPEARS_S
        while not self.exists():
            if time.monotonic() > deadline:
                return False
            time.sleep(0.1)
        return True

    def begin(self) -> Transaction:
        """A transaction on the table as it is now.

        Raises ConfigError when the table is set to forget its offsets, Refused when it is gone.
        """
        with _translated(self.place):
            txn = self._log().startTransaction()
            if txn.readVersion() < 0:
                raise Refused(
                    f"there is no table at {self.place}", next_step="it was there before: find out who removed it"
                )
            described = txn.metadata().json()
        if self._known is None or self._known[0] != described:
            self._known = (described, *self._described(described))
        return Transaction(self, txn, schema=self._known[1])

    def stored(self, naming: Naming, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """The offsets in the table as it is now; partitions without one are left out."""
        return self.begin().stored(naming, partitions)

    def store(self, naming: Naming, offsets: Offsets, *, batch_id: int = 0) -> int:
        """Commit these offsets and nothing else, also lower ones; returns the new version."""
        transaction = self.begin()
        transaction.stored(naming, offsets)
        return transaction.commit(naming, offsets, batch_id=batch_id)

    def stored_at(self, version: int) -> dict[str, int]:
        """The offsets of all writers as of a version, by their names. Raises NotFound when the log lacks it."""
        none = self._jvm.scala.Option.empty()
        try:
            snapshot = self._log().getSnapshotAt(version, none, none, False)
            text = self._delta.util.JsonUtils.mapper().writeValueAsString(snapshot.setTransactions())
        except Exception as failure:
            raise NotFound(
                f"{self.place} has no version {version}, or its log does not reach back to it",
                next_step=f"see what it has: DESCRIBE HISTORY delta.`{self.place}`",
            ) from failure
        return {each["appId"]: int(each["version"]) for each in json.loads(text)}

    def files(self) -> DataFrame:
        """The data files of the newest version, as its log has them: path, partitionValues, size, stats and so on."""
        from pyspark.sql import DataFrame

        none = self._jvm.scala.Option.empty()
        return DataFrame(self._log().update(False, none, none).allFiles().toDF(), self._session)

    def commits(self, versions: Iterable[int]) -> Iterator[Commit]:
        """These versions of the log, as long as it still has them."""
        for version in versions:
            text = self._text(version)
            if text is None:
                return
            yield read_commit(version, text)

    def rows(self, version: int) -> DataFrame:
        return self._session.read.format("delta").option("versionAsOf", version).load(self.place)

    def file_bytes_per_row(self) -> float | None:
        """What a row takes in the newest files, if the log tells without much reading."""
        latest = int(self._log().unsafeVolatileSnapshot().version())
        for version in range(latest, max(latest - _RECENT, -1), -1):
            text = self._text(version)
            rows, size = _added(text or "")
            if rows >= _TELLING_ROWS:
                return size / rows
        return None

    def _text(self, version: int) -> str | None:
        """The log's file of this version, unless it was cleaned up."""
        log = self._log()
        path = self._delta.util.FileNames.unsafeDeltaFile(log.logPath(), version)
        try:
            return str(log.store().read(path, log.newDeltaHadoopConf()).mkString("\n"))
        except Exception as failure:
            if _named(failure, ("FileNotFoundException",)):
                return None
            raise

    def _log(self) -> Any:
        return self._delta.DeltaLog.forTable(self._session._jsparkSession, self.place)

    def _described(self, described: str) -> tuple[StructType, dict[str, str]]:
        from pyspark.sql.types import StructType

        metadata = json.loads(described)["metaData"]
        configuration = metadata.get("configuration") or {}
        if any(name.lower() == _RETENTION.lower() for name in configuration):
            raise ConfigError(
                f"{self.place} has {_RETENTION}, so it would forget the offsets that keep rows from landing twice",
                next_step=f"ALTER TABLE delta.`{self.place}` UNSET TBLPROPERTIES ('{_RETENTION}')",
            )
        return StructType.fromJson(json.loads(metadata["schemaString"])), configuration


class Transaction:
    """Reads the table as it was when it began, and commits once."""

    def __init__(self, table: Table, txn: Any, *, schema: StructType) -> None:
        self.schema = schema
        self.read_version = int(txn.readVersion())
        self._table, self._txn = table, txn
        self._jvm, self._delta = table._jvm, table._delta

    def stored(self, naming: Naming, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """The offsets that the table has. Whoever else moves one of them before our commit makes that one fail."""
        wanted = {naming.of(each): each for each in partitions}
        self._guard(wanted)
        return {wanted[name]: version for name, version in self.all_stored().items() if name in wanted}

    def all_stored(self) -> dict[str, int]:
        """The offsets of all writers, by their names."""
        snapshot = self._txn.snapshot()
        known = snapshot.setTransactionsIfKnown()
        # Where the log does not say it outright, Spark has to go through all of it.
        every = known.get() if known.isDefined() else snapshot.setTransactions()
        text = self._delta.util.JsonUtils.mapper().writeValueAsString(every)
        return {each["appId"]: int(each["version"]) for each in json.loads(text)}

    def committed_ms(self) -> int:
        """When the version that it reads was committed."""
        return int(self._txn.snapshot().timestamp())

    def guard(self, naming: Naming, partitions: Iterable[TopicPartition]) -> None:
        """The same without asking: for who knows the offsets, since nobody has committed since."""
        self._guard(naming.of(each) for each in partitions)

    def add_columns(self, columns: Iterable[StructField]) -> None:
        """Give the table these columns with the same commit, beside its own."""
        from pyspark.sql.types import StructType

        schema = StructType([*self.schema.fields, *columns])
        old = self._txn.metadata()
        new = old.copy(
            *(old.id(), old.name(), old.description(), old.format(), schema.json()),
            *(old.partitionColumns(), old.configuration(), old.createdTime()),
        )
        self._txn.updateMetadata(new, False)
        self.schema = schema

    def write(self, rows: DataFrame, *, compression: str, rows_per_file: int = 0) -> Written:
        """Write data files; this is the one action on the frame. Rows must have the table's types already."""
        options = {"compression": compression}
        if rows_per_file:
            options["maxRecordsPerFile"] = str(rows_per_file)
        files = self._txn.writeFiles(rows._jdf, self._jvm.scala.Option.apply(self._options(options)))
        return Written(
            files=(files,),
            rows=self._metric("numOutputRows"),
            bytes=self._metric("numOutputBytes"),
            count=int(files.size()),
        )

    def commit(self, naming: Naming, versions: Offsets, *, batch_id: int, written: Written | None = None) -> int:
        """Rows and offsets become part of the table at once; returns its new version.

        Raises Fenced when another writer moved our offsets meanwhile, ChangedMeanwhile when the table got another form.
        """
        now = self._jvm.scala.Option.apply(int(time.time() * 1_000))
        actions = self._jvm.java.util.ArrayList()
        for partition, version in versions.items():
            actions.add(self._delta.actions.SetTransaction(naming.of(partition), version, now))
        for files in written.files if written is not None else ():
            actions.addAll(self._jvm.scala.jdk.javaapi.CollectionConverters.asJava(files))
        append = self._jvm.org.apache.spark.sql.streaming.OutputMode.Append()
        operation = self._delta.DeltaOperations.StreamingUpdate(
            append, naming.app_id, batch_id, self._jvm.scala.Option.empty()
        )
        with _translated(self._table.place):
            return int(self._txn.commit(self._jvm.PythonUtils.toSeq(actions), operation))

    def _guard(self, names: Iterable[str]) -> None:
        read = self._txn.readTxn()
        for name in names:
            read.append(name)

    def _metric(self, name: str) -> int:
        found = self._txn.getMetric(name)
        return int(found.get().value()) if found.isDefined() else 0

    def _options(self, options: Mapping[str, str]) -> Any:
        java = self._jvm.java.util.HashMap()
        for name, value in options.items():
            java.put(name, value)
        scala = self._jvm.PythonUtils.toScalaMap(java)
        return self._delta.DeltaOptions(scala, self._table._session._jsparkSession.sessionState().conf())


def read_commit(version: int, text: str) -> Commit:
    """What a file of the log says, rows aside: those are most of it, so their lines are not even parsed."""
    operation, read_version, txns = "", version - 1, {}
    for line in text.splitlines():
        if line.startswith(('{"add"', '{"remove"', '{"cdc"')):
            continue
        action = json.loads(line)
        if "commitInfo" in action:
            operation = action["commitInfo"].get("operation") or ""
            read_version = int(action["commitInfo"].get("readVersion", read_version))
        elif "txn" in action:
            txns[action["txn"]["appId"]] = int(action["txn"]["version"])
    return Commit(version, operation, txns, read_version)


def _added(text: str) -> tuple[int, int]:
    """Rows and bytes of the files that a version added."""
    rows = size = 0
    for line in text.splitlines():
        if line.startswith('{"add"'):
            add = json.loads(line)["add"]
            count = json.loads(add.get("stats") or "{}").get("numRecords")
            if count:
                rows, size = rows + count, size + add["size"]
    return rows, size


@contextmanager
def _translated(place: str) -> Iterator[None]:
    try:
        yield
    except PenstockError:
        raise
    except Exception as failure:
        if _named(failure, _FENCING):
            raise Fenced(
                f"another writer landed the same offsets in {place}",
                next_step="let one of the two run: `penstock lake status` says which",
            ) from failure
        if _named(failure, _AGAIN):
            raise ChangedMeanwhile(f"the form of {place} was changed meanwhile") from failure
        raise


def _named(failure: BaseException, names: tuple[str, ...]) -> bool:
    """Whether Java, or Python's name for it, calls the failure or one of its causes so."""
    if type(failure).__name__ in names:
        return True
    java = getattr(failure, "java_exception", None)
    while java is not None:
        if java.getClass().getSimpleName() in names:
            return True
        java = java.getCause()
    return False
