"""What the topics around a queue are called. `penstock.claims.dead_letters` has the name of the dead letters."""

from __future__ import annotations

from penstock.claims.dead_letters import TOPIC_NAME_MAX
from penstock.errors import UsageError
from penstock.ledger.topics import SNAPSHOTS_SUFFIX
from penstock.settings import Settings

SUFFIX = ".ledger"


def ledger_topic(settings: Settings, *, topic: str, group: str) -> str:
    """The ledger of a consuming application. Raises UsageError if Kafka would not take the name."""
    name = f"{settings.topic_prefix}{topic}.{group}{SUFFIX}"
    if len(name) + len(SNAPSHOTS_SUFFIX) > TOPIC_NAME_MAX:
        raise UsageError(
            f"the topic {name}{SNAPSHOTS_SUFFIX} has a name of more than {TOPIC_NAME_MAX} characters",
            next_step="give the queue or the app a shorter name",
        )
    return name
