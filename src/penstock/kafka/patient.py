"""The admin client, with patience: what is asked is asked again as long as the broker is not ready for it."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Hashable, Iterable, Mapping
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from typing import Any, TypeVar

import confluent_kafka
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient

from penstock.errors import BrokerUnavailable, NotFound, UsageError
from penstock.kafka.errors import NOT_READY, ConnectionWatch, error_of, translated
from penstock.kafka.properties import connect, properties
from penstock.settings import KafkaSettings
from penstock.values import TopicPartition

Key = TypeVar("Key", bound=Hashable)
Ask = Callable[[Any], Future[Any]]
"""Puts a question to the client."""

log = logging.getLogger("penstock.kafka")

PAUSE_S = 0.02
_OTHER_BROKER_S = 3.0
_LOOK_S = 0.2
_SILENCE_S = 3.0
"""After so long without an answer whoever waits is told why; a broker that starts anew is quicker."""

# The admin client goes on asking the leader that it knows, until it reads the metadata again.
_STALE_LEADER = frozenset(
    {
        KafkaError.NOT_LEADER_FOR_PARTITION,
        KafkaError.LEADER_NOT_AVAILABLE,
        KafkaError.FENCED_LEADER_EPOCH,
        KafkaError.UNKNOWN_LEADER_EPOCH,
    }
)


class PatientClient:
    """Raises errors of ours; each answer is bounded by `settings.request_timeout`. For several threads."""

    def __init__(self, settings: KafkaSettings) -> None:
        self.timeout_s = settings.request_timeout.seconds
        self.limit = {"request_timeout": self.timeout_s}
        self._watch = ConnectionWatch(settings.bootstrap_servers)
        self._client: Any = connect(AdminClient, properties(settings, preferred={}, fixed={}), self._watch)
        self._has_answered = self._has_warned = False

    def opened(self) -> Any:
        """The client itself. Raises UsageError when this is closed."""
        if self._client is None:
            raise UsageError("this Admin is closed", next_step="make a new one")
        return self._client

    def close(self) -> None:
        """Idempotent."""
        self._client = None

    def answer(self, doing: str, ask: Ask, *, about: TopicPartition | None = None) -> Any:
        """Ask, and ask again as long as the broker is not ready."""
        began = time.monotonic()
        while True:
            try:
                client = self.opened()
                answer = self._waited_for(ask(client), client)
                self._watch.forget()
                self._has_answered, self._has_warned = True, False
                return answer
            except KafkaException as raised:
                failure = raised
            except FutureTimeout as silence:
                raise BrokerUnavailable(f"{doing} had no answer", next_step="run `penstock doctor`") from silence
            asked_s = time.monotonic() - began
            if asked_s > self.timeout_s or not self._may_pass(error_of(failure), about, asked_s=asked_s):
                raise self._translated(failure, doing) from failure
            time.sleep(PAUSE_S)

    def _waited_for(self, asked: Future[Any], client: Any) -> Any:
        """Its answer. Who waits for long hears why meanwhile: the client tells of its connections when it is polled."""
        began = time.monotonic()
        while (waited_s := time.monotonic() - began) < self.timeout_s + 5:
            try:
                return asked.result(_LOOK_S)
            except FutureTimeout:
                client.poll(0)
            trouble = self._watch.trouble()
            if trouble is not None and waited_s >= _SILENCE_S and not self._has_warned:
                self._has_warned = True
                told = (self._watch.where, waited_s, trouble.str(), self.timeout_s)
                log.warning("no answer from %s for %.0f s: %s; it is waited for up to %.0f s", *told)
        return asked.result(0)

    def present(self, doing: str, ask: Ask) -> Any:
        """The answer, or None when what was asked about does not exist."""
        try:
            return self.answer(doing, ask)
        except NotFound:
            return None

    def asked(
        self, wanted: Iterable[Key], ask: Callable[[Any, Iterable[Key]], Mapping[Key, Future[Any]]]
    ) -> Callable[[Key], Ask]:
        """Ask for all at once; who then wants one answer gets it, or asks for that one again."""
        first = dict(ask(self.opened(), list(wanted)))
        return lambda key: lambda client: first.pop(key, None) or ask(client, [key])[key]

    def topics(self, name: str | None = None) -> dict[str, Any]:
        """All topics but Kafka's own, or one, with their partitions; it learns anew who leads them."""
        doing = "listing topics" if name is None else f"looking for topic {name}"
        if not self._has_answered:
            # Of a first contact that fails, the call below would say nothing until its time is over.
            self.answer(doing, lambda client: client.describe_cluster(**self.limit))
        try:
            topics = self.opened().list_topics(name, timeout=self.timeout_s).topics
        except KafkaException as failure:
            raise self._translated(failure, doing) from failure
        return {name: topic for name, topic in topics.items() if not name.startswith("__")}

    def described(self, names: Iterable[str]) -> dict[str, Any]:
        """The same of these topics, with their replicas; those that do not exist are left out."""
        wanted = sorted(set(names))
        if not wanted:
            return {}
        description = self.asked(
            wanted,
            lambda client, some: client.describe_topics(confluent_kafka.TopicCollection(list(some)), **self.limit),
        )
        found = {name: self.present(f"describing topic {name}", description(name)) for name in wanted}
        return {name: topic for name, topic in found.items() if topic is not None}

    def _may_pass(self, failure: KafkaError, about: TopicPartition | None, *, asked_s: float) -> bool:
        """Whether the same question may have an answer in a moment."""
        if failure.code() == KafkaError._TRANSPORT:
            # One broker of several went away; the next question goes to another.
            return asked_s < _OTHER_BROKER_S
        if failure.code() == KafkaError._NOENT and about is not None:
            # "No leader found" is said of a partition that does not exist as well as of one whose leader is moving.
            topic = self.described([about.topic]).get(about.topic)
            return topic is not None and about.partition < len(topic.partitions)
        if failure.code() in _STALE_LEADER:
            self.topics()
            return True
        return failure.code() in NOT_READY

    def _translated(self, failure: KafkaException | KafkaError, doing: str) -> Exception:
        # The client tells of its connections, and logs, only when it is polled.
        self.opened().poll(0)
        return translated(failure, doing, watch=self._watch)
