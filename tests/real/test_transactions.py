"""Transactions on a real broker: what is committed, aborted, fenced, unknown, and what comes late."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import confluent_kafka
import pytest
from real_kafka import append, eventually, new_topic, recorded_events, settings_for, unique, values_in

from penstock.crash import armed
from penstock.errors import (
    BrokerUnavailable,
    Fenced,
    OutcomeUnknown,
    TransactionAborted,
    TransactionBroken,
    UsageError,
)
from penstock.kafka.topics import Admin
from penstock.kafka.transactions import Transactions, fence
from penstock.observe.events import ProducerFenced, TransactionalIdChanged, TransactionUnsettled
from penstock.settings import KafkaSettings
from penstock.testing.proxy import Api, FrameProxy, Side
from penstock.values import TopicPartition, duration


@pytest.fixture
def settings(penstock_broker: Any) -> KafkaSettings:
    return settings_for(penstock_broker.bootstrap)


@pytest.fixture
def admin(settings: KafkaSettings) -> Iterator[Admin]:
    with Admin(settings) as opened:
        yield opened


@pytest.fixture
def partition(admin: Admin) -> TopicPartition:
    return TopicPartition(new_topic(admin), 0)


@pytest.fixture
def proxy(penstock_broker: Any) -> Iterator[FrameProxy]:
    with FrameProxy(penstock_broker.bootstrap) as standing:
        yield standing


Open = Callable[..., Transactions]


@pytest.fixture
def opened(settings: KafkaSettings) -> Iterator[Open]:
    made: list[Transactions] = []

    def make(over: KafkaSettings = settings, **options: Any) -> Transactions:
        options.setdefault("announce", lambda transactional_id: None)
        made.append(Transactions(over, group="g", instance=unique("i"), **options))
        made[-1].open()
        return made[-1]

    yield make
    for each in made:
        each.close()


def begin(transactions: Transactions) -> None:
    """Begin; on a machine so busy that a call was slow, under a fresh id."""
    if transactions.is_spent:
        transactions.settle_and_renew()
    transactions.begin()


def bare_producer(bootstrap: str, transactional_id: str, **more: Any) -> Any:
    config = {"bootstrap.servers": bootstrap, "transactional.id": transactional_id, "linger.ms": 0, **more}
    producer = confluent_kafka.Producer(config)
    producer.init_transactions(30)
    return producer


# --- commit and abort


def test_committed_records_are_visible_and_aborted_ones_are_not(
    settings: KafkaSettings, partition: TopicPartition, opened: Open
) -> None:
    transactions = opened()
    transactions.begin()
    transactions.send(*partition, b"aborted")
    transactions.send_offsets({partition: 1}, unique("g"))  # which waits until the record is in the log
    transactions.abort()
    begin(transactions)
    transactions.send(*partition, b"committed", key=b"k", headers=[("h", b"1")])
    transactions.commit()

    assert values_in(settings, partition) == [b"committed"]
    assert values_in(settings, partition, isolation="uncommitted") == [b"aborted", b"committed"]


def test_stable_end_stands_below_the_end_while_a_transaction_is_open(
    admin: Admin, settings: KafkaSettings, partition: TopicPartition, opened: Open
) -> None:
    append(settings, partition, b"before")
    transactions = opened()
    transactions.begin()
    transactions.send(*partition, b"open")
    transactions.send_offsets({partition: 1}, unique("g"))
    during = admin.bounds([partition])[partition]
    transactions.commit()

    assert (during.start, during.stable_end, during.end) == (0, 1, 2)
    eventually(lambda: admin.bounds([partition])[partition] == (0, 3, 3))


def test_offsets_are_committed_with_the_transaction_and_without_membership(
    admin: Admin, partition: TopicPartition, opened: Open
) -> None:
    group, transactions = unique("g"), opened()
    transactions.begin()
    transactions.send(*partition, b"out")
    transactions.send_offsets({partition: 7}, group)
    transactions.commit()
    begin(transactions)
    transactions.send_offsets({partition: 9}, group)
    transactions.abort()

    assert admin.group_offsets(group) == {partition: 7}
    assert admin.groups()[group] == "empty"


def test_group_offsets_wait_for_a_transaction_that_is_about_to_change_them(
    admin: Admin, partition: TopicPartition, opened: Open
) -> None:
    group, transactions = unique("g"), opened()
    admin.set_group_offsets(group, {partition: 1})
    transactions.begin()
    transactions.send_offsets({partition: 2}, group)
    found: list[dict[TopicPartition, int]] = []
    asking = threading.Thread(target=lambda: found.append(admin.group_offsets(group)))
    asking.start()
    asking.join(1)  # there is no event for what must not happen
    assert found == []

    transactions.commit()
    asking.join(60)
    assert found == [{partition: 2}]


def test_a_record_that_the_broker_refuses_rolls_the_whole_transaction_back(
    admin: Admin, settings: KafkaSettings, partition: TopicPartition, opened: Open
) -> None:
    narrow = TopicPartition(new_topic(admin, config={"max.message.bytes": "1000"}), 0)
    transactions = opened()
    transactions.begin()
    transactions.send(*partition, b"fits")
    transactions.send(*narrow, b"x" * 5_000)
    with pytest.raises(TransactionAborted, match=r"appending 5000 bytes to .* too large"):
        transactions.commit()

    begin(transactions)
    transactions.send(*partition, b"again")
    transactions.commit()
    assert values_in(settings, partition) == [b"again"]
    assert values_in(settings, narrow) == []


def test_sending_on_after_a_refusal_rolls_back_too(admin: Admin, partition: TopicPartition, opened: Open) -> None:
    narrow = TopicPartition(new_topic(admin, config={"max.message.bytes": "1000"}), 0)
    transactions = opened()
    transactions.begin()
    transactions.send(*narrow, b"x" * 5_000)

    with pytest.raises(TransactionAborted, match="appending 5000 bytes"):
        eventually(lambda: transactions.send(*partition, b"more"))


def test_a_record_that_is_too_large_for_the_client_leaves_the_transaction_going(
    settings: KafkaSettings, partition: TopicPartition, opened: Open
) -> None:
    transactions = opened()
    transactions.begin()
    with pytest.raises(UsageError, match="2000000 bytes"):
        transactions.send(*partition, b"x" * 2_000_000)
    transactions.send(*partition, b"small")
    transactions.commit()

    assert values_in(settings, partition) == [b"small"]


# --- the order of calls


def test_calls_in_the_wrong_order_are_refused_in_words(settings: KafkaSettings, opened: Open) -> None:
    unopened = Transactions(settings, group="g", instance=unique("i"), announce=lambda transactional_id: None)
    with pytest.raises(UsageError, match=r"begin of transactions of g-.*-0, which is not open yet"):
        unopened.begin()
    transactions = opened()
    with pytest.raises(UsageError, match=r"commit .* ready to begin"):
        transactions.commit()
    with pytest.raises(UsageError, match=r"send .* ready to begin"):
        transactions.send("t", 0, b"")
    transactions.begin()
    with pytest.raises(UsageError, match=r"begin .* in a transaction"):
        transactions.begin()
    with pytest.raises(UsageError, match=r"settle_and_renew .* in a transaction"):
        transactions.settle_and_renew()
    transactions.close()
    transactions.close()
    with pytest.raises(UsageError, match=r"begin .* closed"):
        transactions.begin()


def test_an_id_is_announced_after_it_is_initialised_and_before_it_is_used(settings: KafkaSettings) -> None:
    story: list[str] = []
    transactions = Transactions(settings, group="g", instance=unique("i"), announce=story.append)
    with armed(story.append), transactions:
        first = transactions.open()
        second = transactions.settle_and_renew()
        transactions.begin()

    assert story == [
        *("transactions.initialised", first, "transactions.announced"),
        *("transactions.fenced", "transactions.settled"),
        *("transactions.initialised", second, "transactions.announced", "transactions.begun"),
        "transactions.aborted",
    ]
    assert (first[-2:], second[-2:]) == ("-1", "-2")


def test_a_successor_that_fences_as_soon_as_it_is_told_the_id_comes_in_time(
    settings: KafkaSettings, partition: TopicPartition, opened: Open
) -> None:
    transactions = opened(announce=lambda transactional_id: fence(settings, transactional_id))
    transactions.begin()
    transactions.send(*partition, b"too late")

    with pytest.raises(Fenced):
        transactions.commit()
    assert values_in(settings, partition) == []


def test_an_id_that_could_not_be_announced_is_never_used(settings: KafkaSettings) -> None:
    answers = iter([RuntimeError("no claim"), None])

    def announce(transactional_id: str) -> None:
        if answer := next(answers):
            raise answer

    with Transactions(settings, group="g", instance=unique("i"), announce=announce) as transactions:
        with pytest.raises(RuntimeError, match="no claim"):
            transactions.open()
        with pytest.raises(TransactionBroken, match="settle_and_renew"):
            transactions.begin()
        assert transactions.settle_and_renew().endswith("-2")


# --- fencing


def test_a_zombie_is_fenced_and_cannot_unfence_itself(
    settings: KafkaSettings, partition: TopicPartition, opened: Open
) -> None:
    zombie = opened()
    before = zombie.id
    zombie.begin()
    zombie.send(*partition, b"zombie")
    fence(settings, before)

    with recorded_events() as events, pytest.raises(Fenced, match=before):
        zombie.commit()
    assert events == [ProducerFenced(transactional_id=before, call="commit")]
    for again in (zombie.begin, zombie.commit, zombie.abort):
        with pytest.raises(TransactionBroken, match="settle_and_renew"):
            again()
    with recorded_events() as events:
        after = zombie.settle_and_renew()
    assert after != before
    assert TransactionalIdChanged(old=before, new=after) in events
    assert values_in(settings, partition) == []


def test_the_bare_client_unfences_itself_which_is_why_ids_are_used_once(
    settings: KafkaSettings, partition: TopicPartition
) -> None:
    transactional_id = unique("bare")
    rightful = bare_producer(settings.bootstrap_servers, transactional_id)
    zombie = bare_producer(settings.bootstrap_servers, transactional_id)
    zombie.begin_transaction()
    zombie.produce(partition.topic, b"zombie", partition=0)
    zombie.commit_transaction(30)
    rightful.begin_transaction()
    rightful.produce(partition.topic, b"rightful", partition=0)

    with pytest.raises(confluent_kafka.KafkaException, match="fenced"):
        rightful.commit_transaction(30)
    assert values_in(settings, partition) == [b"zombie"]


def test_a_fence_at_any_call_is_told_as_fenced(
    settings: KafkaSettings, partition: TopicPartition, opened: Open
) -> None:
    for call in (
        lambda transactions: transactions.send_offsets({partition: 1}, "g"),
        lambda transactions: transactions.abort(),
        lambda transactions: eventually(lambda: transactions.send(*partition, b"more")),
    ):
        transactions = opened()
        transactions.begin()
        transactions.send(*partition, b"one")
        transactions.send_offsets({partition: 1}, "g")
        fence(settings, transactions.id)
        with pytest.raises(Fenced):
            call(transactions)
        assert transactions.is_spent


CRASHING = """
import os, signal, sys
from penstock.crash import armed
from penstock.kafka.transactions import Transactions
from penstock.settings import KafkaSettings

bootstrap, topic, instance = sys.argv[1:]

def die(name):
    if name == "transactions.flushed":
        os.kill(os.getpid(), signal.SIGKILL)

settings = KafkaSettings(bootstrap_servers=bootstrap)
transactions = Transactions(settings, group="g", instance=instance, announce=print)
transactions.open()
transactions.begin()
transactions.send(topic, 0, b"never")
with armed(die):
    transactions.commit()
"""


def test_what_a_killed_process_left_open_is_gone_as_soon_as_it_is_fenced(
    admin: Admin, settings: KafkaSettings, partition: TopicPartition
) -> None:
    instance = unique("i")
    arguments = [settings.bootstrap_servers, partition.topic, instance]
    killed = subprocess.run(
        [sys.executable, "-c", CRASHING, *arguments], timeout=60, check=False, stdout=subprocess.DEVNULL, env=os.environ
    )
    assert killed.returncode == -signal.SIGKILL
    append(settings, partition, b"behind it")
    assert admin.bounds([partition])[partition] == (0, 0, 2)

    began = time.monotonic()
    fence(settings, f"g-{instance}-1")
    took_s = time.monotonic() - began

    assert admin.bounds([partition])[partition] == (0, 3, 3)
    assert values_in(settings, partition) == [b"behind it"]
    assert took_s < 8, "waiting for the transaction to time out would take 10 s"


# --- outcomes that are not known


def test_a_commit_that_comes_late_does_not_hurt_a_later_transaction(
    admin: Admin, settings: KafkaSettings, partition: TopicPartition, proxy: FrameProxy, opened: Open
) -> None:
    transactions = opened(settings_for(proxy.bootstrap), call_timeout=duration("2s"))
    before = transactions.id
    transactions.begin()
    transactions.send(*partition, b"first")
    held = proxy.hold(Api.END_TXN, times=1)
    with recorded_events() as events, pytest.raises(OutcomeUnknown, match=before):
        transactions.commit()
    assert [type(each) for each in events] == [TransactionUnsettled]
    assert held.caught == 1

    after = transactions.settle_and_renew()
    settled = values_in(settings, partition)
    transactions.begin()
    transactions.send(*partition, b"second")
    transactions.send_offsets({partition: 5}, unique("g"))
    end_txns = proxy.seen(Api.END_TXN)
    answer = proxy.hold(Api.END_TXN, side=Side.RESPONSE)
    assert held.release() == 1
    answer.wait()
    answer.release()

    assert after != before
    assert values_in(settings, partition) == settled == [], "settled as rolled back, and so it stays"
    assert values_in(settings, partition, isolation="uncommitted") == [b"first", b"second"]
    assert proxy.seen(Api.END_TXN) == end_txns, "the spent producer sends nothing more"
    transactions.commit()
    assert values_in(settings, partition) == [b"second"]


def test_with_the_bare_client_a_late_commit_does_hurt_the_next_transaction(
    settings: KafkaSettings, partition: TopicPartition, proxy: FrameProxy
) -> None:
    """The client repeats an EndTxn by itself and tells nobody; then the first one commits what is open later."""
    producer = bare_producer(proxy.bootstrap, unique("bare"), **{"socket.timeout.ms": 1_000, "log_level": 2})
    producer.begin_transaction()
    producer.produce(partition.topic, b"first", partition=0)
    held = proxy.hold(Api.END_TXN, times=1)
    producer.commit_transaction(30)
    assert (held.caught, proxy.seen(Api.END_TXN)) == (1, 2)

    producer.begin_transaction()
    producer.produce(partition.topic, b"open, never committed", partition=0)
    assert producer.flush(30) == 0
    assert values_in(settings, partition) == [b"first"]
    held.release()

    eventually(lambda: values_in(settings, partition) == [b"first", b"open, never committed"])


def test_a_commit_that_the_client_repeated_is_the_last_one_of_its_id(
    settings: KafkaSettings, partition: TopicPartition, proxy: FrameProxy, opened: Open
) -> None:
    impatient = settings_for(proxy.bootstrap, socket_timeout_ms="1000")
    transactions = opened(impatient)
    before = transactions.id
    transactions.begin()
    transactions.send(*partition, b"first")
    held = proxy.hold(Api.END_TXN, times=1)
    transactions.commit()
    assert proxy.seen(Api.END_TXN) == 2
    assert values_in(settings, partition) == [b"first"]

    with pytest.raises(TransactionBroken, match="settle_and_renew"):
        transactions.begin()
    assert transactions.settle_and_renew() != before
    transactions.begin()
    transactions.send(*partition, b"second")
    transactions.send_offsets({partition: 1}, unique("g"))
    answer = proxy.hold(Api.END_TXN, side=Side.RESPONSE)
    held.release()
    answer.wait()
    answer.release()
    assert values_in(settings, partition) == [b"first"]
    transactions.abort()
    assert values_in(settings, partition) == [b"first"]


def test_when_only_the_answer_to_a_commit_is_lost_the_offsets_tell_that_it_happened(
    admin: Admin, settings: KafkaSettings, partition: TopicPartition, proxy: FrameProxy, opened: Open
) -> None:
    group = unique("g")
    transactions = opened(settings_for(proxy.bootstrap), call_timeout=duration("2s"))
    transactions.begin()
    transactions.send(*partition, b"out")
    transactions.send_offsets({partition: 4}, group)
    proxy.drop(Api.END_TXN, side=Side.RESPONSE, times=1)
    with pytest.raises(OutcomeUnknown):
        transactions.commit()

    transactions.settle_and_renew()

    assert admin.group_offsets(group) == {partition: 4}
    assert values_in(settings, partition) == [b"out"]


def test_a_rollback_that_is_not_answered_still_shows_nothing(
    settings: KafkaSettings, partition: TopicPartition, proxy: FrameProxy, opened: Open
) -> None:
    transactions = opened(settings_for(proxy.bootstrap), call_timeout=duration("1s"))
    transactions.begin()
    transactions.send(*partition, b"never")
    transactions.send_offsets({partition: 1}, unique("g"))
    proxy.drop(Api.END_TXN, times=1)
    with pytest.raises(TransactionBroken):
        transactions.abort()

    transactions.settle_and_renew()
    assert values_in(settings, partition) == []


def test_records_that_are_not_acknowledged_in_time_are_rolled_back(
    settings: KafkaSettings, partition: TopicPartition, proxy: FrameProxy, opened: Open
) -> None:
    transactions = opened(settings_for(proxy.bootstrap), call_timeout=duration("1s"))
    transactions.begin()
    transactions.send(*partition, b"slow")
    held = proxy.hold(Api.PRODUCE)
    with pytest.raises((TransactionAborted, TransactionBroken)):
        transactions.commit()
    held.release()

    if transactions.is_spent:
        transactions.settle_and_renew()
    assert values_in(settings, partition) == []


def test_settling_waits_for_a_broker_that_is_away_and_may_be_called_again(
    settings: KafkaSettings, partition: TopicPartition, proxy: FrameProxy, opened: Open
) -> None:
    transactions = opened(settings_for(proxy.bootstrap, request_timeout="2s"), call_timeout=duration("1s"))
    transactions.begin()
    transactions.send(*partition, b"first")
    transactions.send_offsets({partition: 1}, unique("g"))
    proxy.refuse()
    with pytest.raises(OutcomeUnknown):
        transactions.commit()
    with pytest.raises(BrokerUnavailable, match="initialising"):
        transactions.settle_and_renew()
    assert transactions.is_spent

    proxy.accept()
    eventually(lambda: _renewed(transactions), within_s=60)
    transactions.begin()
    transactions.send(*partition, b"second")
    transactions.commit()
    assert values_in(settings, partition) == [b"second"]


def _renewed(transactions: Transactions) -> bool:
    try:
        transactions.settle_and_renew()
    except BrokerUnavailable:
        return False
    return True
