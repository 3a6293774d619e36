"""A former holder is refused by real resources: PostgreSQL and files, after real pauses of real processes."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import psycopg
import pytest
from real_kafka import append, eventually, unique
from real_postgres import Postgres
from real_process import started

from penstock.broker import Embedded
from penstock.claims.fenced import FencedFile, create_fences, fenced
from penstock.claims.group import Group
from penstock.claims.lock import Lock
from penstock.errors import Fenced, NotFound, TransientError, UsageError
from penstock.kafka.topics import Admin, TopicSpec
from penstock.settings import ClaimsSettings, KafkaSettings, Settings
from penstock.values import TopicPartition, duration

# The law


def older_after_newer(history: list[int]) -> list[tuple[int, int]]:
    """Where the order in which writes were committed breaks the order of their tokens."""
    return [(before, after) for before, after in pairwise(history) if after < before]


Fence = Callable[[Any, str, int], Any]


@contextmanager
def checked_before(connection: Any, resource: str, token: int) -> Iterator[None]:
    """A planted bug: the check has a transaction of its own, and the writes come after it."""
    with fenced(connection, resource, token):
        pass
    with connection.transaction():
        yield


@contextmanager
def read_and_compared(connection: Any, resource: str, token: int) -> Iterator[None]:
    """Another: in the same transaction, but it only reads, so that nobody waits."""
    with connection.transaction():
        row = connection.execute("SELECT token FROM penstock_fences WHERE resource = %s", (resource,)).fetchone()
        if row is not None and row[0] > token:
            raise Fenced("older")
        yield
        connection.execute(
            "INSERT INTO penstock_fences VALUES (%s, %s) ON CONFLICT (resource) DO UPDATE SET token = excluded.token",
            (resource, token),
        )


@pytest.fixture
def database(postgres: Postgres) -> Iterator[str]:
    """A schema of its own; the DSN leads there."""
    schema = f"s{uuid.uuid4().hex[:10]}"
    with psycopg.connect(postgres.dsn) as connection:
        connection.execute(f"CREATE SCHEMA {schema}")
    dsn = f"{postgres.dsn} options=-csearch_path={schema}"
    with psycopg.connect(dsn) as connection:
        create_fences(connection)
        connection.execute("CREATE TABLE orders (id bigserial PRIMARY KEY, token bigint)")
    yield dsn
    with psycopg.connect(postgres.dsn) as connection:
        connection.execute(f"DROP SCHEMA {schema} CASCADE")


def put(connection: Any, token: int) -> None:
    connection.execute("INSERT INTO orders (token) VALUES (%s)", (token,))


def committed(dsn: str) -> list[int]:
    """Tokens in the order of commits: one resource is written by one transaction at a time."""
    with psycopg.connect(dsn) as connection:
        return [token for (token,) in connection.execute("SELECT token FROM orders ORDER BY id")]


def the_old_one_pauses_between_check_and_write(dsn: str, fence: Fence) -> list[int]:
    """The old holder passes the check and stops; the new one does its work, if it may; then the old one goes on."""
    is_in, goes_on, is_done = threading.Event(), threading.Event(), threading.Event()

    def old() -> None:
        with psycopg.connect(dsn, autocommit=True) as connection, fence(connection, "orders", 41):
            is_in.set()
            goes_on.wait(60)
            put(connection, 41)

    def new() -> None:
        with psycopg.connect(dsn, autocommit=True) as connection, fence(connection, "orders", 57):
            put(connection, 57)
        is_done.set()

    threads = [threading.Thread(target=old, daemon=True), threading.Thread(target=new, daemon=True)]
    threads[0].start()
    assert is_in.wait(60)
    threads[1].start()
    eventually(lambda: is_done.is_set() or waits_for_a_row(dsn), within_s=60)
    goes_on.set()
    for thread in threads:
        thread.join(60)
    return committed(dsn)


def waits_for_a_row(dsn: str) -> bool:
    with psycopg.connect(dsn) as connection:
        waiting = connection.execute("SELECT 1 FROM pg_locks WHERE NOT granted AND locktype = 'transactionid'")
        return waiting.fetchone() is not None


def test_a_newer_holder_waits_for_an_older_one_that_passed_the_check(database: str) -> None:
    history = the_old_one_pauses_between_check_and_write(database, fenced)

    assert history == [41, 57]
    assert older_after_newer(history) == []


@pytest.mark.parametrize("fence", [checked_before, read_and_compared])
def test_a_check_that_is_not_one_with_the_write_is_caught(database: str, fence: Fence) -> None:
    history = the_old_one_pauses_between_check_and_write(database, fence)

    assert older_after_newer(history) == [(57, 41)]


def test_many_concurrent_writers_never_let_an_older_token_through_after_a_newer_one(database: str) -> None:
    refused: list[int] = []

    def write(tokens: list[int]) -> None:
        with psycopg.connect(database, autocommit=True) as connection:
            for token in tokens:
                try:
                    with fenced(connection, "orders", token):
                        put(connection, token)
                except Fenced:
                    refused.append(token)

    threads = [threading.Thread(target=write, args=(list(range(first, 120, 3)),)) for first in (0, 1, 2, 0, 1, 2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    history = committed(database)
    assert older_after_newer(history) == []
    assert len(history) + len(refused) == 240
    assert history[-1] == 119


def test_a_refusal_rolls_back_and_the_connection_goes_on(database: str) -> None:
    with psycopg.connect(database, autocommit=True) as connection:
        with fenced(connection, "orders", 57):
            put(connection, 57)
        with (
            pytest.raises(Fenced, match="orders was written under token 57, ours is 41"),
            fenced(connection, "orders", 41),
        ):
            put(connection, 41)
        with fenced(connection, "orders", 57):
            put(connection, 57)

    assert committed(database) == [57, 57]


def test_in_an_open_transaction_the_resource_stays_taken_until_its_end(database: str) -> None:
    with psycopg.connect(database) as connection:
        connection.execute("SELECT 1")
        with fenced(connection, "orders", 41):
            put(connection, 41)
        connection.rollback()
        with fenced(connection, "orders", 7):  # neither the write nor the token was kept
            put(connection, 7)

    assert committed(database) == [7]


def test_a_holder_that_falls_silent_in_its_transaction_does_not_keep_its_successor_waiting(database: str) -> None:
    old = psycopg.connect(database, autocommit=True)
    block = fenced(old, "orders", 41, idle_timeout="500ms")
    block.__enter__()
    put(old, 41)

    with psycopg.connect(database, autocommit=True) as new, fenced(new, "orders", 57):
        put(new, 57)  # waited until the server had ended the silent one

    with pytest.raises(psycopg.Error):
        block.__exit__(None, None, None)
    old.close()
    assert committed(database) == [57]


def test_a_block_that_swallows_the_end_of_its_connection_does_not_end_as_if_it_had_written(database: str) -> None:
    old = psycopg.connect(database, autocommit=True)
    block = fenced(old, "orders", 41)
    block.__enter__()
    with psycopg.connect(database, autocommit=True) as other:
        other.execute("SELECT pg_terminate_backend(%s)", (old.info.backend_pid,))
    with pytest.raises(psycopg.Error):
        put(old, 41)

    with pytest.raises(TransientError, match="nothing of it was written"):
        block.__exit__(None, None, None)
    assert committed(database) == []


def test_two_may_create_the_table_at_once(postgres: Postgres) -> None:
    schema = f"s{uuid.uuid4().hex[:10]}"
    failures: list[Exception] = []

    def create() -> None:
        try:
            with psycopg.connect(f"{postgres.dsn} options=-csearch_path={schema}") as connection:
                create_fences(connection)
        except psycopg.Error as failure:
            failures.append(failure)

    with psycopg.connect(postgres.dsn, autocommit=True) as connection:
        connection.execute(f"CREATE SCHEMA {schema}")
        threads = [threading.Thread(target=create) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        connection.execute(f"DROP SCHEMA {schema} CASCADE")

    assert failures == []


def test_without_the_table_or_with_another_driver_it_says_what_to_do(postgres: Postgres) -> None:
    with (
        psycopg.connect(f"{postgres.dsn} options=-csearch_path=pg_temp") as connection,
        pytest.raises(NotFound, match=r"no table penstock_fences .*create_fences\(connection\)"),
        fenced(connection, "orders", 1),
    ):
        pass
    with pytest.raises(UsageError, match="no connection that can be fenced"), fenced(psycopg, "orders", 1):
        pass


# The whole way: a real process sleeps beyond its lease, and wakes

CHILD = """
import sys
import psycopg
from penstock.claims.fenced import FencedFile, fenced
from penstock.claims.group import Group
from penstock.claims.lock import Lock
from penstock.errors import Fenced
from penstock.settings import ClaimsSettings, KafkaSettings, Settings
from penstock.values import duration

kind, bootstrap, topic, path, dsn, name = sys.argv[1:]
settings = Settings(
    kafka=KafkaSettings(bootstrap_servers=bootstrap),
    claims=ClaimsSettings(topic=topic, partitions=2, heartbeat=duration("500ms")),
)

def work(token):
    print(token, flush=True)
    sys.stdin.readline()  # here it sleeps, and does not look at `lost` when it wakes
    try:
        FencedFile(path).write("old", token=token)
        print("written", flush=True)
    except Fenced as refused:
        print("refused by the file", flush=True)
    try:
        with psycopg.connect(dsn) as connection, fenced(connection, "orders", token):
            connection.execute("INSERT INTO orders (token) VALUES (%s)", (token,))
        print("written", flush=True)
    except Fenced as refused:
        print("refused by the database", flush=True)

if kind == "lock":
    with Lock(settings, name, client="child") as lock:
        work(lock.token)
else:
    with Group(settings, "shop", client="child").consume([name]) as messages:
        work(next(iter(messages)).token)
"""


@pytest.fixture
def settings(penstock_broker: Embedded) -> Settings:
    return Settings(
        kafka=KafkaSettings(bootstrap_servers=penstock_broker.bootstrap),
        claims=ClaimsSettings(topic=unique("claims"), partitions=2, heartbeat=duration("500ms")),
    )


@contextmanager
def child(kind: str, settings: Settings, path: Path, dsn: str, name: str) -> Iterator[subprocess.Popen[str]]:
    given = [kind, settings.kafka.bootstrap_servers, settings.claims.topic, str(path), dsn, name]
    command = [sys.executable, "-c", CHILD, *given]
    with started(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        yield process


def said(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def write_both(path: Path, dsn: str, token: int) -> None:
    FencedFile(path).write("new", token=token)
    with psycopg.connect(dsn) as connection, fenced(connection, "orders", token):
        put(connection, token)


def woken(process: subprocess.Popen[str]) -> list[str]:
    """Let it go on from where it slept; what its two writes came to."""
    process.send_signal(signal.SIGCONT)
    assert process.stdin is not None
    process.stdin.write("\n")
    process.stdin.flush()
    return [said(process), said(process)]


REFUSED = ["refused by the file", "refused by the database"]


def test_a_holder_that_slept_beyond_its_lease_is_refused_when_it_wakes(
    settings: Settings, database: str, tmp_path: Path
) -> None:
    path = tmp_path / "report"
    with child("lock", settings, path, database, "report") as old:
        old_token = int(said(old))
        old.send_signal(signal.SIGSTOP)
        with Lock(settings, "report", client="successor", timeout="60s") as lock:
            assert lock.token > old_token
            write_both(path, database, lock.token)

            assert woken(old) == REFUSED

            assert path.read_text() == "new"
            assert committed(database) == [lock.token]


def test_a_member_that_slept_with_a_message_in_hand_is_refused_when_it_wakes(
    settings: Settings, database: str, tmp_path: Path
) -> None:
    path, topic = tmp_path / "report", unique("orders")
    with Admin(settings.kafka) as admin:
        admin.create([TopicSpec(name=topic, partitions=1, config={}, reason="a test")])
    append(settings.kafka, TopicPartition(topic, 0), b"an order")

    with child("group", settings, path, database, topic) as old:
        old_token = int(said(old))
        old.send_signal(signal.SIGSTOP)
        with Group(settings, "shop", client="successor").consume([topic]) as messages:
            message = next(iter(messages))
            assert (message.value, message.token > old_token) == (b"an order", True)
            write_both(path, database, message.token)
            message.ack()

            assert woken(old) == REFUSED

            assert path.read_text() == "new"
            assert committed(database) == [message.token]


def test_without_a_successor_a_holder_that_slept_may_still_write(
    settings: Settings, database: str, tmp_path: Path
) -> None:
    """The other side: what refuses is the newer token, not the pause. So the tests above can fail."""
    path = tmp_path / "report"
    with child("lock", settings, path, database, "report") as old:
        token = int(said(old))
        old.send_signal(signal.SIGSTOP)

        assert woken(old) == ["written", "written"]

        assert path.read_text() == "old"
        assert committed(database) == [token]
