"""The frame proxy before a real broker: it is passed unnoticed, and bothers exactly what it is told to."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import pytest
from real_kafka import append, eventually, new_topic, settings_for, values_in

from penstock.errors import BrokerUnavailable, UsageError
from penstock.kafka.topics import Admin
from penstock.kafka.writer import Writer
from penstock.settings import KafkaSettings
from penstock.testing.proxy import Api, FrameProxy, Side, _Link
from penstock.values import TopicPartition


@pytest.fixture
def direct(penstock_broker: Any) -> KafkaSettings:
    return settings_for(penstock_broker.bootstrap)


@pytest.fixture
def proxy(penstock_broker: Any) -> Iterator[FrameProxy]:
    with FrameProxy(penstock_broker.bootstrap) as standing:
        yield standing


@pytest.fixture
def partition(direct: KafkaSettings) -> TopicPartition:
    with Admin(direct) as admin:
        return TopicPartition(new_topic(admin), 0)


def test_a_client_of_the_proxy_never_learns_the_brokers_own_address(
    proxy: FrameProxy, direct: KafkaSettings, partition: TopicPartition
) -> None:
    through = settings_for(proxy.bootstrap)
    append(through, partition, b"a", b"b")

    assert values_in(through, partition) == [b"a", b"b"]
    with Admin(through) as admin:
        brokers = admin.cluster().brokers
    assert {f"{each.host}:{each.port}" for each in brokers} == {proxy.bootstrap}
    assert proxy.bootstrap != direct.bootstrap_servers
    assert proxy.seen(Api.PRODUCE) >= 1
    assert proxy.seen(Api.FETCH) >= 1
    assert proxy.seen(Api.END_TXN) == 0


def test_a_held_request_reaches_the_broker_only_when_released_also_without_its_client(
    proxy: FrameProxy, direct: KafkaSettings, partition: TopicPartition
) -> None:
    held = proxy.hold(Api.PRODUCE)
    writer = Writer(settings_for(proxy.bootstrap))
    writer.send(*partition, b"late")
    writer.poll()
    held.wait()
    assert writer.close(timeout_ms=100) == 1
    assert values_in(direct, partition) == []

    assert held.release() == 1
    eventually(lambda: values_in(direct, partition) == [b"late"])


def test_a_rule_for_one_frame_lets_the_next_ones_pass(proxy: FrameProxy, partition: TopicPartition) -> None:
    lost = proxy.drop(Api.METADATA, times=1)
    append(settings_for(proxy.bootstrap, socket_timeout_ms="1000"), partition, b"x")

    assert lost.caught == 1
    assert proxy.seen(Api.METADATA) >= 2


def test_a_delay_holds_up_its_connection_and_no_more(proxy: FrameProxy, partition: TopicPartition) -> None:
    delayed = proxy.delay(Api.PRODUCE, 0.5, times=1)
    with Writer(settings_for(proxy.bootstrap)) as writer:
        writer.send(*partition, b"x")
        delayed.wait()
        began = time.monotonic()
        assert writer.flush(30_000) == 0
    assert time.monotonic() - began > 0.3


def test_a_refusing_proxy_is_a_broker_that_is_away_until_it_accepts_again(proxy: FrameProxy) -> None:
    proxy.refuse()
    with Admin(settings_for(proxy.bootstrap, request_timeout="500ms")) as admin:
        with pytest.raises(BrokerUnavailable):
            admin.cluster()
        proxy.accept()
        eventually(lambda: _answers(admin))


def _answers(admin: Admin) -> bool:
    try:
        return bool(admin.cluster())
    except BrokerUnavailable:
        return False


def test_a_cut_connection_is_opened_again(proxy: FrameProxy, direct: KafkaSettings, partition: TopicPartition) -> None:
    with Writer(settings_for(proxy.bootstrap)) as writer:
        writer.send(*partition, b"before")
        assert writer.flush(30_000) == 0
        proxy.cut()
        writer.send(*partition, b"after")
        assert writer.flush(30_000) == 0

    assert values_in(direct, partition) == [b"before", b"after"]


def test_a_connection_that_is_cut_while_it_is_opened_is_closed(
    proxy: FrameProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = _Link.start
    cutter = ThreadPoolExecutor(1)
    cuts: list[Future[None]] = []

    def opened_late(link: _Link) -> None:
        cuts.append(cutter.submit(proxy.cut))
        # A cut either comes before the link is known, or waits until it runs.
        with suppress(TimeoutError):
            cuts[0].result(0.2)
        opened(link)

    monkeypatch.setattr(_Link, "start", opened_late)
    with cutter, socket.create_connection(("127.0.0.1", int(proxy.bootstrap.split(":")[1])), timeout=30) as client:
        assert client.recv(1) == b""
        cuts[0].result(30)


def test_waiting_for_a_frame_that_does_not_come_ends(proxy: FrameProxy) -> None:
    with pytest.raises(TimeoutError, match="0 of 1 responses of api 26"):
        proxy.drop(Api.END_TXN, side=Side.RESPONSE).wait(timeout_s=0.05)


def test_a_closed_proxy_leaves_no_thread_behind(penstock_broker: Any) -> None:
    before = set(threading.enumerate())
    with FrameProxy(penstock_broker.bootstrap) as proxy, Admin(settings_for(proxy.bootstrap)) as admin:
        admin.cluster()
    eventually(lambda: not {each for each in set(threading.enumerate()) - before if "frame-proxy" in each.name})


def test_an_address_that_is_none_is_refused() -> None:
    with pytest.raises(UsageError, match="'kafka' is no broker address"):
        FrameProxy("kafka")
