"""Names that mean something else already are no names for queues."""

from __future__ import annotations

import pytest

import penstock
from penstock.errors import UsageError
from penstock.queue.sending import Sender
from penstock.settings import KafkaSettings, LedgerSettings, Settings

NOWHERE = KafkaSettings(bootstrap_servers="127.0.0.1:1")


@pytest.fixture
def app() -> penstock.App:
    settings = Settings(kafka=NOWHERE, topic_prefix="test.", ledgers={"books": LedgerSettings()})
    return penstock.App("shop", settings=settings)


def test_no_queue_is_called_as_all_of_them_are_but_its_topic_may_be(app: penstock.App) -> None:
    with pytest.raises(UsageError, match="no queue can be called all"):
        app.queue("all")
    with pytest.raises(UsageError, match="no queue can be called all"):
        Sender(NOWHERE, "all")

    assert app.queue("everything", topic="all").topic == "all"


@pytest.mark.parametrize(
    "name",
    ["orders.shop.ledger", "orders.shop.ledger.snapshots", "orders.shop.dead", "orders.shop.kept", "__share_groups"],
)
def test_no_queue_has_the_topic_of_what_is_kept_for_another(app: penstock.App, name: str) -> None:
    for refused in (lambda: app.queue(name), lambda: app.queue("mine", topic=name), lambda: Sender(NOWHERE, name)):
        with pytest.raises(UsageError, match=f"topic {name} .* its name"):
            refused()


@pytest.mark.parametrize("name", ["test.penstock.claims", "test.books"])
def test_no_queue_has_the_topic_of_a_ledger(app: penstock.App, name: str) -> None:
    with pytest.raises(UsageError, match=f"topic {name} is a ledger"):
        app.queue(name)


def test_two_queues_of_an_app_have_neither_a_topic_nor_a_name_in_common(app: penstock.App) -> None:
    app.queue("orders")

    with pytest.raises(UsageError, match="topic orders has the queue orders already"):
        app.queue("others", topic="orders")
    with pytest.raises(UsageError, match="there is a queue orders already, on topic orders"):
        app.queue("orders", topic="others")
