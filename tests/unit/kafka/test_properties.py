"""What a client is configured with, and how a property that it refuses is told."""

from __future__ import annotations

import logging

import pytest

from penstock.errors import ConfigError, UsageError
from penstock.kafka.properties import Repeats, properties
from penstock.kafka.reader import Reader
from penstock.kafka.topics import Admin
from penstock.kafka.transactions import Transactions
from penstock.kafka.writer import Writer
from penstock.settings import KafkaSettings

NOWHERE = "127.0.0.1:1"


def test_the_users_properties_win_over_our_preferences() -> None:
    settings = KafkaSettings(bootstrap_servers=NOWHERE, client={"linger.ms": "9", "sasl.username": "u"})

    merged = properties(settings, preferred={"linger.ms": 1, "batch.size": 2}, fixed={"acks": "all"})

    assert (merged["linger.ms"], merged["batch.size"], merged["acks"]) == ("9", 2, "all")
    assert (merged["sasl.username"], merged["bootstrap.servers"]) == ("u", NOWHERE)


def test_what_our_promises_rest_on_cannot_be_changed() -> None:
    settings = KafkaSettings(bootstrap_servers=NOWHERE, client={"acks": "1"})

    with pytest.raises(ConfigError, match=r"acks=1 cannot be used: Penstock relies on acks=all; remove it"):
        Writer(settings)


def test_a_fixed_property_may_be_repeated_with_its_value() -> None:
    settings = KafkaSettings(bootstrap_servers=NOWHERE, client={"acks": "all", "enable.idempotence": "true"})

    properties(settings, preferred={}, fixed={"acks": "all", "enable.idempotence": True})


@pytest.mark.parametrize("client", [Admin, Reader, Writer])
def test_no_address_is_told_before_anything_is_tried(client: type) -> None:
    with pytest.raises(ConfigError, match=r"no broker address .* bootstrap_servers"):
        client(KafkaSettings())


@pytest.mark.parametrize("client", [Admin, Reader, Writer])
def test_a_property_that_does_not_exist_is_named_with_its_place_and_the_near_ones(client: type) -> None:
    settings = KafkaSettings(bootstrap_servers=NOWHERE, client={"sasl.pasword": "canary-secret"})

    with pytest.raises(ConfigError, match=r"no property 'sasl\.pasword' .*\[kafka\.client\].*sasl\.password") as told:
        client(settings)
    assert "canary-secret" not in str(told.value)


def test_a_property_that_is_like_no_other_points_to_the_list() -> None:
    with pytest.raises(ConfigError, match=r"no property 'xyzzy'.*CONFIGURATION\.md"):
        Writer(KafkaSettings(bootstrap_servers=NOWHERE, client={"xyzzy": "1"}))


def test_a_value_that_does_not_fit_is_told() -> None:
    with pytest.raises(ConfigError, match=r"batch\.size"):
        Writer(KafkaSettings(bootstrap_servers=NOWHERE, client={"batch.size": "many"}))


def test_names_of_transactional_ids_are_checked() -> None:
    with pytest.raises(UsageError, match="instance name 'a b' is not allowed"):
        Transactions(KafkaSettings(), group="g", instance="a b", announce=print)


def test_the_same_line_of_the_client_passes_once_in_a_while() -> None:
    repeats = Repeats(every_s=30)

    def passes(text: str, *, at_s: float) -> bool:
        record = logging.LogRecord("n", logging.WARNING, "f", 1, text, None, None)
        record.created = at_s
        return repeats.filter(record)

    assert passes("connect failed (after 3ms in state CONNECT)", at_s=100)
    assert not passes("connect failed (after 17ms in state CONNECT)", at_s=129)
    assert passes("something else", at_s=129)
    assert passes("connect failed (after 1ms in state CONNECT)", at_s=131)
