"""What is counted and measured of a queue, as a server of metrics shows it."""

from __future__ import annotations

import threading
import urllib.request
from collections.abc import Iterator

import pytest
from prometheus_client.parser import text_string_to_metric_families
from queue_consumers import Consumer, lag, queue_settings, queue_topic, sender, working
from real_kafka import eventually

from penstock import Message
from penstock.broker import Embedded
from penstock.observe.events import subscribed
from penstock.observe.health import Health, HealthServer
from penstock.observe.metrics import Metrics
from penstock.settings import Settings

COUNT = 400


@pytest.fixture
def settings(penstock_broker: Embedded) -> Settings:
    return queue_settings(penstock_broker)


@pytest.fixture
def name(settings: Settings) -> Iterator[str]:
    with queue_topic(settings) as name:
        yield name


class Served:
    """`/metrics` of a process, as Prometheus reads it."""

    def __init__(self, server: HealthServer, queue: str) -> None:
        self._address, self._queue = f"http://127.0.0.1:{server.port}/metrics", queue

    def __call__(self, metric: str, **labels: str) -> float:
        """The sample with these labels; 0 if there is none."""
        with urllib.request.urlopen(self._address) as answer:
            text = answer.read().decode()
        labels = {"queue": self._queue} | labels
        samples = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
        return sum(sample.value for sample in samples if sample.name == metric and sample.labels == labels)


@pytest.fixture
def served(name: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Served]:
    monkeypatch.setattr("penstock.queue.census.EVERY_S", 0.2)
    metrics = Metrics()
    with subscribed(metrics), HealthServer(Health(), metrics.exposition) as server:
        yield Served(server, name)


def test_everything_that_becomes_of_messages_is_counted_and_how_long_it_took_is_measured(
    settings: Settings, name: str, served: Served
) -> None:
    def fail(message: Message) -> None:
        if message.payload == 7 or (message.payload == 8 and message.attempt == 1):
            raise ValueError("it fails")

    consumer = Consumer(settings, name, do=fail, concurrency=4, attempts_max=2)
    with working(consumer):
        consumer.queue.send_many(range(COUNT - 1))
        consumer.queue.send(COUNT)
        eventually(lambda: lag(settings, name) == 0)

    assert served("penstock_messages_sent_total") == COUNT
    assert served("penstock_send_seconds_count") == 2
    assert served("penstock_messages_received_total") == COUNT + 2
    assert served("penstock_messages_acked_total") == COUNT - 1
    assert served("penstock_messages_redelivered_total", cause="retry") == 2
    assert served("penstock_messages_buried_total", reason="attempts used up") == 1
    assert served("penstock_message_handler_seconds_count") == COUNT + 2
    assert served("penstock_message_wait_seconds_count") == COUNT + 2
    # What was measured began after the send, and a handler that does nothing takes no time.
    assert 0 < served("penstock_message_wait_seconds_sum") < COUNT * 60
    assert served("penstock_message_handler_seconds_sum") < 30


def test_the_state_of_the_queue_is_shown_with_delays_that_only_the_messages_know(
    settings: Settings, name: str, served: Served
) -> None:
    go_on = threading.Event()
    consumer = Consumer(settings, name, do=lambda _: go_on.wait(60), in_hand_max=300, lease="10s")
    with sender(settings, name) as queue:
        # What is behind the backlog, nobody has read yet.
        queue.send_many(range(5), delay="1h")
        queue.send_many(range(COUNT))
    with working(consumer):
        eventually(lambda: served("penstock_queue_waiting") == 5)
        eventually(lambda: served("penstock_queue_leased") == 300)
        eventually(lambda: served("penstock_queue_ready") == COUNT - 300)
        first_age_s = served("penstock_queue_oldest_age_seconds")
        eventually(lambda: served("penstock_queue_oldest_age_seconds") > first_age_s)
        go_on.set()
        eventually(lambda: served("penstock_queue_ready") == 0)
        eventually(lambda: served("penstock_queue_leased") == 0)

    assert 0 < first_age_s < 120
