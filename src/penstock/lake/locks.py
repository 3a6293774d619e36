"""Who may write to a table: one process at a time, by locks through Kafka.

A run holds `lake/<app_id>` and, for each of its tables, `lake-table/<name>-<hash of the place>`. Delta's own check at
the commit is what keeps rows from landing twice; the locks keep a second writer from even starting, and stand in for
the log store of a plain disk, which is only safe within one process. That is why pipelines of one process share them.
"""

from __future__ import annotations

import os
import re
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import NamedTuple
from weakref import WeakValueDictionary

import xxhash

from penstock.claims.lock import Lock
from penstock.claims.look import opened, read_all, slot_seen
from penstock.claims.placement import coordination_topic, partition_of
from penstock.claims.records import Slot
from penstock.errors import Fenced, NotAcquired, NotFound
from penstock.lake.options import LakeOptions
from penstock.settings import Settings

APP_GROUP, TABLE_GROUP = "lake", "lake-table"

# Two heartbeats until a dead holder is out, one of calm, and what a restarted process needs to hear of it.
PATIENCE_HEARTBEATS = 6

_LOCAL = re.compile(r"file:/*", re.IGNORECASE)
_S3 = re.compile(r"s3[an]?://", re.IGNORECASE)
_NOT_A_NAME = re.compile(r"[^a-zA-Z0-9._-]+")
_WAIT_S = 0.1


class LockName(NamedTuple):
    group: str
    name: str

    def __str__(self) -> str:
        return f"{self.group}/{self.name}"


def normalised(place: str) -> str:
    """One spelling for one table: absolute, links resolved, no slash at the end, one name for S3."""
    if _LOCAL.match(place):
        place = "/" + _LOCAL.sub("", place, count=1)
    if "://" not in place:
        return os.path.realpath(place)
    scheme, _, rest = _S3.sub("s3a://", place).partition("://")
    return f"{scheme.lower()}://{re.sub('/+', '/', rest).rstrip('/')}"


def table_lock(place: str) -> LockName:
    """The name says which table is meant; the hash tells tables of the same name apart."""
    there = normalised(place)
    last = _NOT_A_NAME.sub("-", there.rpartition("/")[2])[:80] or "table"
    return LockName(TABLE_GROUP, f"{last}-{xxhash.xxh3_64_hexdigest(there.encode())}")


def locks_of(options: LakeOptions) -> tuple[LockName, ...]:
    """Everything that a pipeline must hold, in the order in which everybody takes it: nobody waits in a circle."""
    places = {landing.table for landing in options.landings()} | ({options.dead_letters} - {""})
    return (LockName(APP_GROUP, options.app_id), *sorted(map(table_lock, places)))


def owners(settings: Settings, names: Iterable[LockName]) -> dict[LockName, str]:
    """Which process has which of these locks now; nothing where nobody has ever coordinated."""
    try:
        with opened(settings) as tail:
            folds = read_all(tail, settings)
    except NotFound:
        return {}
    now_ms, found = time.time_ns() // 1_000_000, {}
    for name in names:
        slot = Slot(name.group, name.name)
        partition = partition_of(slot, settings.claims.partitions)
        if partition in folds:
            seen = slot_seen(folds, slot, now_ms, partition=partition)
            if seen.owner is not None:
                found[name] = seen.owner[0]
    return found


class LockLost(Fenced):
    """We can no longer be sure of a lock: what was under way is given up, because soon somebody else may be at work."""

    def __init__(self, lock: LockName) -> None:
        self.lock = lock
        super().__init__(f"the lock {lock} was lost", next_step=f"`penstock claims explain {lock}` says who has it")


@dataclass
class _Shared:
    """A lock that several pipelines of this process may hold together: within one process Delta is safe."""

    mutex: threading.Lock = field(default_factory=threading.Lock)
    lock: Lock | None = None
    holders: int = 0


class Held:
    """The locks of one pipeline, while it runs."""

    def __init__(self, locks: list[tuple[LockName, Lock]]) -> None:
        self._locks = locks

    @property
    def lost(self) -> LockName | None:
        """One that we can no longer be sure of."""
        return next((name for name, lock in self._locks if _is_lost(lock)), None)

    def check(self) -> None:
        """Raises LockLost."""
        if (lost := self.lost) is not None:
            raise LockLost(lost)


class Locks:
    """Locks that whoever has this object shares."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._patience_s = settings.claims.heartbeat.seconds * PATIENCE_HEARTBEATS
        self._mutex = threading.Lock()
        self._shared: dict[LockName, _Shared] = {}

    @contextmanager
    def held(
        self, names: Iterable[LockName], *, is_standby: bool = False, given_up: Callable[[], bool] = lambda: False
    ) -> Iterator[Held]:
        """Hold all of them while the block lasts.

        As a standby wait for as long as it takes, or until `given_up` says so. Raises NotAcquired.
        """
        taken: list[tuple[LockName, Lock]] = []
        try:
            for name in names:
                taken.append((name, self._take(name, is_standby=is_standby, given_up=given_up)))
            yield Held(taken)
        finally:
            for name, _ in reversed(taken):
                self._give_back(name)

    def _take(self, name: LockName, *, is_standby: bool, given_up: Callable[[], bool]) -> Lock:
        with self._mutex:
            shared = self._shared.setdefault(name, _Shared())
        # Longer than one who is not a standby has the mutex.
        deadline = time.monotonic() + 2 * self._patience_s
        while not shared.mutex.acquire(timeout=_WAIT_S):
            if given_up():
                raise NotAcquired(f"waiting for lock {name} was given up")
            if not is_standby and time.monotonic() > deadline:
                raise NotAcquired(f"a standby of this process waits for {name}", next_step="wait for it with standby")
        try:
            if shared.lock is None or (_is_lost(shared.lock) and not shared.holders):
                shared.lock = self._acquired(name, is_standby=is_standby, given_up=given_up)
            elif name.group == APP_GROUP:
                raise NotAcquired(
                    f"two pipelines of this process have the app_id {name.name}", next_step="give each its own"
                )
            shared.holders += 1
            return shared.lock
        finally:
            shared.mutex.release()

    def _acquired(self, name: LockName, *, is_standby: bool, given_up: Callable[[], bool]) -> Lock:
        while True:
            lock = Lock(self._settings, name.name, group=name.group)
            try:
                lock.acquire(None if is_standby else self._patience_s, unless=lambda _: given_up())
            except NotAcquired as refused:
                if given_up():
                    raise
                # It may also be that we are slow: then nobody has it.
                if (owner := owners(self._settings, [name]).get(name)) is not None:
                    raise NotAcquired(
                        f"another process ({owner}) has {name}",
                        next_step="stop it, or wait for it with --standby, in Python standby=True",
                    ) from refused
            else:
                return lock

    def _give_back(self, name: LockName) -> None:
        shared = self._shared[name]
        with shared.mutex:
            shared.holders -= 1
            if not shared.holders and shared.lock is not None:
                lock, shared.lock = shared.lock, None
                lock.release()


_OF_PROCESS: WeakValueDictionary[tuple[str, str], Locks] = WeakValueDictionary()
_FINDING = threading.Lock()


def locks_of_process(settings: Settings) -> Locks:
    """Those that all pipelines of this process share, while one of them runs."""
    with _FINDING:
        return _OF_PROCESS.setdefault((settings.kafka.bootstrap_servers, coordination_topic(settings)), Locks(settings))


def _is_lost(lock: Lock) -> bool:
    return lock.lost.is_set() or lock.failure is not None
