"""Members with transactions on a real broker: a stopped one that wakes commits nothing, every effect is there once."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import uuid
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from real_kafka import append, eventually, values_in
from real_process import started

from penstock.broker import Embedded
from penstock.claims.batch import Batch
from penstock.claims.group import Group
from penstock.claims.operate import operator
from penstock.claims.records import Slot
from penstock.claims.transacting import TransactionalConsumption
from penstock.errors import Fenced, PenstockError, UsageError
from penstock.kafka.reader import Reader
from penstock.kafka.topics import Admin, TopicSpec
from penstock.kafka.transactions import Transactions, fence
from penstock.settings import ClaimsSettings, KafkaSettings, Settings
from penstock.values import TopicPartition, duration

COUNT = 200

# Begins a transaction, says so, and waits for a word before it commits.
CHILD = """
import sys
from penstock.claims.group import Group
from penstock.errors import PenstockError
from penstock.settings import ClaimsSettings, KafkaSettings, Settings
from penstock.values import duration

bootstrap, coordination, client, topic, effects = sys.argv[1:]
settings = Settings(
    kafka=KafkaSettings(bootstrap_servers=bootstrap),
    claims=ClaimsSettings(topic=coordination, partitions=2, heartbeat=duration("500ms")),
)
with Group(settings, "shop", client=client).transact([topic], transaction_timeout="2m") as orders:
    for batch in orders.batches():
        try:
            with orders.transaction(batch) as transaction:
                for order in batch:
                    transaction.send(effects, 0, order.value)
                print("open", flush=True)
                sys.stdin.readline()
            print("committed", flush=True)
        except PenstockError as failure:
            print(type(failure).__name__, flush=True)
            break
"""


@pytest.fixture
def settings(penstock_broker: Embedded) -> Settings:
    return Settings(
        kafka=KafkaSettings(bootstrap_servers=penstock_broker.bootstrap),
        claims=ClaimsSettings(topic=f"claims-{uuid.uuid4().hex[:8]}", partitions=2, heartbeat=duration("500ms")),
    )


@pytest.fixture
def topics(settings: Settings) -> tuple[str, str]:
    """The topic that is read, with a few records in it, and the one for effects."""
    orders, effects = f"orders-{uuid.uuid4().hex[:8]}", f"effects-{uuid.uuid4().hex[:8]}"
    with Admin(settings.kafka) as admin:
        admin.create([TopicSpec(name=name, partitions=1, config={}, reason="a test") for name in (orders, effects)])
    append(settings.kafka, TopicPartition(orders, 0), *(b"%d" % number for number in range(COUNT)))
    return orders, effects


@contextmanager
def child(settings: Settings, *topics: str, code: str = CHILD, client: str = "a") -> Iterator[subprocess.Popen[str]]:
    arguments = [settings.kafka.bootstrap_servers, settings.claims.topic, client, *topics]
    command = [sys.executable, "-c", code, *arguments]
    with started(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        yield process


def said(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


class Successor:
    """A member in a thread of this process that works off what it gets."""

    def __init__(self, settings: Settings, orders: str, effects: str, *, client: str = "b") -> None:
        self.count = 0
        self.failures: list[PenstockError] = []
        self.messages: TransactionalConsumption = Group(settings, "shop", client=client).transact(
            [orders], batch_max=50
        )
        self._effects = effects
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        with self.messages as messages:
            for batch in messages.batches():
                try:
                    with messages.transaction(batch) as transaction:
                        for message in batch:
                            transaction.send(self._effects, 0, message.value)
                    self.count += len(batch)
                except PenstockError as failure:
                    self.failures.append(failure)

    def close(self) -> None:
        self.messages.stop()
        self._thread.join(60)
        assert not self._thread.is_alive()


def numbers(settings: Settings, topic: str) -> Counter[int]:
    return Counter(int(value or b"-1") for value in values_in(settings.kafka, TopicPartition(topic, 0)))


def fail_in(messages: TransactionalConsumption, batch: Batch, effects: str) -> None:
    with messages.transaction(batch) as transaction:
        transaction.send(effects, 0, b"-1")
        raise ZeroDivisionError


def fenced(settings: Settings, transaction: Transactions) -> str:
    fence(settings.kafka, transaction.id)
    return transaction.id


def test_a_stopped_member_with_a_transaction_open_commits_nothing_when_it_wakes(
    settings: Settings, topics: tuple[str, str]
) -> None:
    orders, effects = topics
    with child(settings, *topics) as stopped:
        assert said(stopped) == "open"
        stopped.send_signal(signal.SIGSTOP)
        successor = Successor(settings, orders, effects)
        try:
            eventually(lambda: successor.count == COUNT, within_s=120)
            stopped.send_signal(signal.SIGCONT)
            assert stopped.stdin is not None
            stopped.stdin.write("go on\n")
            stopped.stdin.flush()

            assert said(stopped) == "Fenced"
        finally:
            successor.close()

    assert successor.failures == []
    assert numbers(settings, effects) == Counter(range(COUNT))


def test_a_rolled_back_batch_is_handed_out_again_and_the_next_member_goes_on_behind_the_committed_one(
    settings: Settings, topics: tuple[str, str]
) -> None:
    orders, effects = topics
    with Group(settings, "shop", client="a").transact([orders], batch_max=50) as messages:
        batches = messages.batches()
        first = next(batches)
        with messages.transaction(first) as transaction:
            for message in first:
                transaction.send(effects, 0, message.value)
        second = next(batches)
        with pytest.raises(ZeroDivisionError):
            fail_in(messages, second, effects)
        assert second.is_lost
        again = next(batches)
        assert again.records[0].offset() == second.records[0].offset()
    with Reader(settings.kafka, group="shop") as reader:
        assert reader.committed([TopicPartition(orders, 0)]) == {TopicPartition(orders, 0): len(first)}

    successor = Successor(settings, orders, effects)
    eventually(lambda: successor.count == COUNT - len(first), within_s=120)
    successor.close()

    assert numbers(settings, effects) == Counter(range(COUNT))


def test_a_fenced_member_that_still_has_its_claim_goes_on_under_a_fresh_id(
    settings: Settings, topics: tuple[str, str]
) -> None:
    orders, effects = topics
    with Group(settings, "shop", client="a").transact([orders], batch_max=50) as messages:
        batches, done = messages.batches(), 0
        batch = next(batches)
        with pytest.raises(Fenced), messages.transaction(batch) as transaction:
            first_id = fenced(settings, transaction)
        while done < COUNT:
            batch = next(batches)
            with messages.transaction(batch) as transaction:
                assert transaction.id != first_id
                for message in batch:
                    transaction.send(effects, 0, message.value)
            done += len(batch)

    assert numbers(settings, effects) == Counter(range(COUNT))


def test_a_reset_fences_who_has_a_transaction_open_and_the_next_member_goes_on_from_there(
    settings: Settings, topics: tuple[str, str]
) -> None:
    orders, effects = topics
    first = Successor(settings, orders, effects, client="a")
    eventually(lambda: first.count == COUNT, within_s=120)
    first.close()
    with child(settings, *topics) as killed:
        append(settings.kafka, TopicPartition(orders, 0), b"%d" % COUNT)
        assert said(killed) == "open"
        killed.kill()
        killed.wait(60)
        with operator(settings) as person:
            person.pause("shop", lasts=duration("1m"), by="ann")
            person.reset(Slot("shop", orders, 0), "earliest", by="ann")
            person.resume("shop", by="ann")

    again = Successor(settings, orders, effects)
    eventually(lambda: again.count == COUNT + 1, within_s=120)
    again.close()

    assert numbers(settings, effects) == Counter([*range(COUNT), *range(COUNT + 1)])


WORKER = CHILD.replace("sys.stdin.readline()", "").replace("break", "continue").replace("2m", "30s")


def test_members_that_are_killed_in_the_middle_of_transactions_leave_every_effect_there_once(
    settings: Settings, topics: tuple[str, str]
) -> None:
    orders, effects = topics
    with child(settings, *topics, code=WORKER, client="a") as first:
        assert said(first) == "open"
        first.kill()
    with child(settings, *topics, code=WORKER, client="b") as second:
        append(settings.kafka, TopicPartition(orders, 0), *(b"%d" % each for each in range(COUNT, 5 * COUNT)))
        assert said(second) == "open"
        second.kill()
        with child(settings, *topics, code=WORKER, client="c"):
            eventually(lambda: sum(numbers(settings, effects).values()) >= 5 * COUNT, within_s=120)

    assert numbers(settings, effects) == Counter(range(5 * COUNT))


def test_batches_must_be_worked_off_in_their_order(settings: Settings, topics: tuple[str, str]) -> None:
    orders, _ = topics
    with Group(settings, "shop", client="a").transact([orders], batch_max=50) as messages:
        batches = messages.batches()
        next(batches)
        second = next(batches)

        with pytest.raises(UsageError, match="not the next one"), messages.transaction(second) as transaction:
            assert isinstance(transaction, Transactions)
