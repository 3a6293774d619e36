"""Topics that somebody else is just making."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from penstock.errors import TransientError, UsageError
from penstock.kafka.topics import Admin, TopicSpec
from penstock.settings import KafkaSettings
from penstock.values import duration

ORDERS = TopicSpec(name="orders", partitions=1, config={}, reason="a test")


class Cluster:
    """Its controller has the topic already; the broker that we ask hears of it after so many questions."""

    def __init__(self, questions: int) -> None:
        self.timeout_s, self.questions = 0.5, questions

    def answer(self, doing: str, ask: Any) -> Any:
        if "creating" in doing:
            raise UsageError(doing) from KafkaException(KafkaError(KafkaError.TOPIC_ALREADY_EXISTS))
        return type("Found", (), {"nodes": [1]})

    def asked(self, _things: Iterable[str], _ask: Callable[..., Any]) -> Callable[[str], Any]:
        return lambda name: name

    def described(self, names: Iterable[str]) -> dict[str, Any]:
        self.questions -= bool(list(names))
        return {} if self.questions > 0 else dict.fromkeys(names)


def admin_of(cluster: Cluster) -> Admin:
    admin = Admin.__new__(Admin)
    admin._client, admin._limit = cluster, {}  # type: ignore[assignment]
    admin._settings = KafkaSettings(request_timeout=duration("500ms"))
    return admin


def test_what_somebody_else_made_is_waited_for_until_we_can_see_it() -> None:
    cluster = Cluster(questions=3)

    assert admin_of(cluster).create([ORDERS]) == ()
    assert cluster.questions == 0


def test_what_is_never_seen_is_not_taken_as_made() -> None:
    with pytest.raises(TransientError, match="waiting for orders"):
        admin_of(Cluster(questions=1_000_000)).create([ORDERS])
