"""What the fault tests share: hooks on crash points, transactions left in all states, and the books of a ground."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import confluent_kafka
from lake_checker import Books, Place, books_of, feed_of, is_no_object, messages_in
from lake_ground import Ground
from lake_table import stored_in
from real_kafka import unique

import penstock.lake
from penstock.crash import armed
from penstock.kafka.writer import Writer

SOURCES = Path(penstock.lake.__file__).parent


def crash_points() -> list[str]:
    """Every point that the code of a running stream names."""
    calls = (
        node
        for name in ("landing", "pipeline", "stream", "group_offsets")
        for node in ast.walk(ast.parse((SOURCES / f"{name}.py").read_text("utf-8")))
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "crash_point"
    )
    return sorted({ast.literal_eval(call.args[0]) for call in calls})


class Died(Exception):
    """Stands for the end of the process, where one session serves many tests."""


@contextmanager
def once_at(point: str, act: Callable[[], object]) -> Iterator[list[str]]:
    """Do something when this point is passed for the first time; yields what is still to be done."""
    waiting = [point]

    def passing(name: str) -> None:
        if waiting and name == point:
            waiting.pop()
            act()

    with armed(passing):
        yield waiting


def die() -> None:
    raise Died("died here")


def clear(ground: Ground) -> None:
    """End what a test that failed left running: the next one uses the same session."""
    for query in ground.spark.streams.active:
        query.stop()
    ground.close()


def partitions_of(ground: Ground) -> range:
    return range(ground.partitions())


def send(ground: Ground, count: int, *, poison: bool = True) -> None:
    """Good messages to every partition, and one bad one at the very end of the last, all at once."""
    with Writer(ground.kafka, linger_ms=50) as writer:
        for number in range(count):
            for partition in partitions_of(ground):
                writer.send(*ground.at(partition), b'{"id": %d, "name": "n"}' % number)
        if poison:
            writer.send(*ground.at(partitions_of(ground)[-1]), b"poison")
        assert writer.flush(30_000) == 0


def books(
    ground: Ground,
    *,
    messages: dict[Place, bytes | None] | None = None,
    is_bad: Callable[[bytes | None], bool] = is_no_object,
    is_late: Callable[[bytes | None], bool] | None = None,
    is_whole: bool = True,
    readable_from: int = 0,
    kept_from: int = 0,
) -> Books:
    """The table and the dead letters against everything that is in the topic, or that was in it once."""
    seen = messages_of(ground) if messages is None else messages
    return books_of(
        ground.table,
        feed_of(ground.app_id, seen, is_bad=is_bad, is_late=is_late),
        dead_letters=ground.dead if ground.dead.exists() else None,
        is_whole=is_whole,
        readable_from=readable_from,
        kept_from=kept_from,
    )


def messages_of(ground: Ground) -> dict[Place, bytes | None]:
    return messages_in(ground.kafka, *(ground.at(each) for each in partitions_of(ground)))


def next_offsets(ground: Ground) -> dict[int, int]:
    """What the table goes on at, by partition."""
    return {int(name.rpartition("-")[2]): last + 1 for name, last in stored_in(ground.table).items()}


def ends(ground: Ground) -> dict[int, int]:
    """Ends of the partitions that have something."""
    found = ground.admin.bounds([ground.at(each) for each in partitions_of(ground)])
    return {each.partition: has.end for each, has in found.items() if has.end}


@contextmanager
def transactional(ground: Ground) -> Iterator[confluent_kafka.Producer]:
    """The bare client: it may leave a transaction in any state."""
    producer = confluent_kafka.Producer(
        {"bootstrap.servers": ground.kafka.bootstrap_servers, "transactional.id": unique("tx")}
    )
    producer.init_transactions(30)
    yield producer


def within_transaction(
    producer: confluent_kafka.Producer, ground: Ground, partitions: Iterable[int], *, end: str = ""
) -> None:
    """Three messages to each of these partitions, then `commit`, `abort`, or nothing."""
    producer.begin_transaction()
    for partition in partitions:
        for number in range(3):
            producer.produce(ground.topic, b'{"id": %d, "name": "tx"}' % number, partition=partition)
    producer.flush(30)
    if end:
        getattr(producer, f"{end}_transaction")(30)
