"""Writers that a former holder cannot get past: what is written to remembers the highest token that it has seen.

    file = FencedFile("report.csv")
    file.write(rows, token=lock.token)                  # raises Fenced if a newer holder has written

    with fenced(connection, "orders", message.token):   # PostgreSQL (psycopg 3) or SQLite
        connection.execute("update orders set ...")     # commits together with the check, or not at all

The check and the write are one: nobody with a newer token comes between. Only tokens of one lock, or of one partition
of a group, can be compared; give each its own file or resource name.
"""

from __future__ import annotations

import fcntl
import inspect
import os
import re
import sqlite3
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from penstock.crash import crash_point
from penstock.errors import Fenced, NotAcquired, NotFound, Refused, TransientError, UsageError
from penstock.values import DurationLike, duration

TOKEN_MAX = 2**63 - 1
_LOOK_EVERY_S = 0.01


def _checked(token: int) -> int:
    if type(token) is not int or not 0 <= token <= TOKEN_MAX:
        raise UsageError(f"{token!r} is no token", next_step="give lock.token, run.token or message.token")
    return token


def _refused(what: str, token: int, highest: int | None) -> Fenced:
    seen = "a newer one" if highest is None else str(highest)
    return Fenced(
        f"{what} was written under token {seen}, ours is {token}",
        next_step="stop this work; whoever has the newer token does it",
    )


# Files


class FencedFile:
    """A file that is replaced as a whole, and only by who has the highest token so far.

    Beside it stand `.NAME.fence`, the highest token, and `.NAME.fence.lock`, which writers hold while they write; they
    must stay. The file itself is plain, and whoever reads it sees one whole content. It holds on a file system of one
    machine. On NFS it does not: a server may take the lock from a client that it does not hear, and that client's
    rename may still arrive.
    """

    def __init__(self, path: str | os.PathLike[str], *, timeout: DurationLike = "30s") -> None:
        """`timeout`: how long a write may wait for another that is under way."""
        # The same file by another name must meet the same fence.
        self.path = Path(os.path.realpath(path))
        self._timeout = duration(timeout)
        self._fence = self.path.with_name(f".{self.path.name}.fence")
        self._lock = self.path.with_name(f".{self.path.name}.fence.lock")

    @property
    def token(self) -> int | None:
        """The highest that was seen; none before the first write."""
        try:
            text = self._fence.read_text("ascii")
        except FileNotFoundError:
            return None
        if not re.fullmatch(r"\d{1,19}\n", text):
            raise Refused(
                f"{self._fence} holds no token", next_step="write the newest token into it, as digits and a line break"
            )
        return int(text)

    def read(self) -> bytes:
        return self.path.read_bytes()

    def write(self, data: bytes | str, token: int) -> None:
        """Replace the content; when this returns it is on disk.

        Raises Fenced if a higher token was seen, and NotAcquired if another write takes longer than `timeout`.
        A crash at any point leaves the old content or the new one.
        """
        content = data.encode() if isinstance(data, str) else data
        with self._locked():
            self._admit(token)
            # The token first: were the content first, a crash in between would let an older token replace it.
            _replace(self.path, content)
            crash_point("fenced.content_kept")

    def _admit(self, token: int) -> None:
        """Remember a token, if it is not older than what was seen. The writer's lock must be held."""
        highest = self.token
        if highest is not None and _checked(token) < highest:
            raise _refused(str(self.path), token, highest)
        if highest is None or token > highest:
            _replace(self._fence, b"%d\n" % _checked(token))
            crash_point("fenced.token_kept")

    @contextmanager
    def _locked(self) -> Iterator[None]:
        deadline = time.monotonic() + self._timeout.seconds
        descriptor = os.open(self._lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            while not _is_taken(descriptor):
                if time.monotonic() > deadline:
                    raise NotAcquired(
                        f"somebody has been writing {self.path} for {self._timeout}",
                        next_step=f"see who holds it with `fuser {self._lock}`",
                    )
                time.sleep(_LOOK_EVERY_S)
            yield
        finally:
            os.close(descriptor)


def _is_taken(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _replace(path: Path, content: bytes) -> None:
    """Atomically, and on disk when it returns. One writer at a time, so one name for what is not finished is enough."""
    unfinished = path.with_name(f".{path.name}.new")
    with open(unfinished, "wb") as file:
        if path.exists():
            os.fchmod(file.fileno(), path.stat().st_mode & 0o7777)
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    crash_point("fenced.written")
    os.replace(unfinished, path)
    crash_point("fenced.renamed")
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


# Databases

FENCES_SQL = "CREATE TABLE IF NOT EXISTS penstock_fences (resource text PRIMARY KEY, token bigint NOT NULL)"
"""The table that remembers tokens; for those who make their tables themselves."""

_TAKE = (
    "INSERT INTO penstock_fences (resource, token) VALUES ({0}, {0}) "
    "ON CONFLICT (resource) DO UPDATE SET token = excluded.token WHERE penstock_fences.token <= excluded.token"
)
_HIGHEST = "SELECT token FROM penstock_fences WHERE resource = {0}"
_MISSING_TABLE = "42P01"
_CREATING = 0x70656E73  # any number that all of us agree on


def create_fences(connection: Any) -> None:
    """Make the table `penstock_fences`, if it is not there."""
    if isinstance(connection, sqlite3.Connection):
        connection.execute(FENCES_SQL)
        return
    with _checked_connection(connection).transaction():
        # Two that create at once would both find it missing, and one would fail.
        connection.execute("SELECT pg_advisory_xact_lock(%s)", (_CREATING,))
        connection.execute(FENCES_SQL)


@contextmanager
def fenced(connection: Any, resource: str, token: int, *, idle_timeout: DurationLike = "1m") -> Iterator[None]:
    """A transaction in which nobody with another token can write to the resource, if all writers use this.

    The block's writes commit together with the check when it ends; in a transaction that is open already they are part
    of that, and the resource stays taken until its end. Take it before you read what you are going to change.

    Raises Fenced, and rolls back, if the resource has seen a higher token. PostgreSQL ends the transaction of a process
    that falls silent within the block for `idle_timeout`: else a paused holder would keep its successor waiting.
    """
    if isinstance(connection, sqlite3.Connection):
        with _sqlite_transaction(connection):
            _take_in_sqlite(connection, resource, _checked(token))
            yield
    else:
        with _checked_connection(connection).transaction():
            limit_ms = int(duration(idle_timeout))
            connection.execute("SELECT set_config('idle_in_transaction_session_timeout', %s, true)", (str(limit_ms),))
            _take_in_postgres(connection, resource, _checked(token))
            yield
            if connection.closed:
                # The driver says nothing at the end of a block whose connection broke before.
                raise TransientError(
                    f"the connection broke while {resource} was written; nothing of it was written",
                    next_step="connect again, and do the whole block again while the token is ours",
                )


def _take_in_postgres(connection: Any, resource: str, token: int) -> None:
    # The row stays locked until the transaction ends: whoever has a newer token waits for us, or we find it here.
    try:
        taken = connection.execute(_TAKE.format("%s"), (resource, token))
    except Exception as failure:
        if getattr(failure, "sqlstate", None) == _MISSING_TABLE:
            raise _no_table() from failure
        raise
    if taken.rowcount == 0:
        row = connection.execute(_HIGHEST.format("%s"), (resource,)).fetchone()
        raise _refused(resource, token, _first(row))


def _take_in_sqlite(connection: sqlite3.Connection, resource: str, token: int) -> None:
    try:
        taken = connection.execute(_TAKE.format("?"), (resource, token))
    except sqlite3.OperationalError as failure:
        if "no such table: penstock_fences" in str(failure):
            raise _no_table() from failure
        raise
    if taken.rowcount == 0:
        raise _refused(resource, token, _first(connection.execute(_HIGHEST.format("?"), (resource,)).fetchone()))


def _first(row: Any) -> int | None:
    """Rows are tuples, unless the user chose mappings."""
    values = row.values() if hasattr(row, "values") else row if isinstance(row, tuple) else ()
    return next(iter(values), None)


@contextmanager
def _sqlite_transaction(connection: sqlite3.Connection) -> Iterator[None]:
    if connection.in_transaction:
        yield  # it is the caller's, to be committed or rolled back there
        return
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
    except BaseException:
        connection.rollback()
        raise
    connection.commit()


def _checked_connection(connection: Any) -> Any:
    execute = getattr(connection, "execute", None)
    if not hasattr(connection, "transaction") or execute is None or inspect.iscoroutinefunction(execute):
        raise UsageError(
            f"{type(connection).__module__}.{type(connection).__name__} is no connection that can be fenced",
            next_step="give one of psycopg 3 (pip install 'penstock[postgres]') or of sqlite3",
        )
    return connection


def _no_table() -> NotFound:
    return NotFound(
        "there is no table penstock_fences in this database",
        next_step=f"call penstock.claims.fenced.create_fences(connection) once, or run: {FENCES_SQL}",
    )
