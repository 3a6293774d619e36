"""What is not on offer is told with what is, before anything is opened."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.claims.group import Group
from penstock.errors import UsageError
from penstock.settings import KafkaSettings, Settings

NOWHERE = Settings(kafka=KafkaSettings(bootstrap_servers="127.0.0.1:1"))


@pytest.mark.parametrize(
    ("given", "what", "next_step"),
    [
        ({"delivery": "exactly_twice"}, "'exactly_twice' is no delivery", '"at_least_once" or "at_most_once"'),
        ({"share": "halves"}, "'halves' is no share", '"partitions" or "ranges" or "all"'),
        ({"start": 17}, "17 is no start", '"earliest" or "latest"'),
        ({"batch_max": 0}, "batch_max is 0", "from 1 on"),
        ({"batch_max": 1.5}, "batch_max is 1.5", "from 1 on"),
        ({"outstanding_max": -1}, "outstanding_max is -1", "from 1 on"),
        ({"on_overdue": "burn"}, "'burn' is no on_overdue", "or a function of the message"),
        ({"ack_timeout": "soon"}, "'soon' is not a duration", "30s"),
        ({"ack_timeout": 0}, "ack_timeout 0ms is no time", "30s"),
        ({"ack_timeout": "1s", "delivery": "at_most_once"}, "none can be overdue", "at_least_once"),
        ({"share": "all", "delivery": "at_most_once"}, "at least once only", "at_least_once"),
        ({"share": "all"}, "a name that stays", "client="),
        ({"topics": "orders"}, "topics must be a list", "consume("),
        ({"topics": []}, "topics must be a list", "consume("),
        ({"topics": [""]}, "topics must be a list", "consume("),
    ],
)
def test_a_wrong_argument_is_told_with_what_to_do(given: dict[str, Any], what: str, next_step: str) -> None:
    with pytest.raises(UsageError) as refusal:
        Group(NOWHERE, "shop").consume(**{"topics": ["orders"], **given})

    assert what in refusal.value.what
    assert next_step in refusal.value.next_step
