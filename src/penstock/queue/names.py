"""What a queue may be called, and what the topics around it are. The dead letters' is in `claims/dead_letters.py`."""

from __future__ import annotations

from penstock.claims.dead_letters import SUFFIX as DEAD_SUFFIX
from penstock.claims.dead_letters import TOPIC_NAME_MAX
from penstock.errors import UsageError
from penstock.ledger.topics import SNAPSHOTS_SUFFIX
from penstock.queue.records import ALL
from penstock.settings import Settings
from penstock.values import checked_name

SUFFIX = ".ledger"
KEPT_SUFFIX = ".kept"

_OWN_SUFFIXES = (SUFFIX, SNAPSHOTS_SUFFIX, DEAD_SUFFIX, KEPT_SUFFIX)
_KAFKAS_PREFIX = "__"


def checked_queue(name: str) -> str:
    """The rule for names of queues. Raises UsageError."""
    if checked_name("queue", name) == ALL:
        raise UsageError(
            f"no queue can be called {ALL}: what is paused under that name is every queue",
            next_step="give it another name; its topic may keep this one, as topic=",
        )
    return name


def checked_topic(name: str, settings: Settings | None = None) -> str:
    """The rule for topics with messages: none that Penstock or Kafka keeps its own records in. Raises UsageError."""
    checked_name("topic", name)
    own = next((suffix for suffix in _OWN_SUFFIXES if name.endswith(suffix)), None)
    if own is not None:
        raise UsageError(
            f"topic {name} would be taken for one that Penstock keeps for a queue: its name ends in {own}",
            next_step="give the queue, or its topic=, another name",
        )
    if name.startswith(_KAFKAS_PREFIX):
        raise UsageError(
            f"topic {name} is, or could become, Kafka's own: its name begins with {_KAFKAS_PREFIX}",
            next_step="give the queue, or its topic=, another name",
        )
    if settings is not None and name in _ledgers(settings):
        raise UsageError(f"topic {name} is a ledger of Penstock's own", next_step="give the queue another name")
    return name


def _ledgers(settings: Settings) -> list[str]:
    return [settings.topic_prefix + name for name in (settings.claims.topic, *settings.ledgers)]


def ledger_topic(settings: Settings, *, topic: str, group: str) -> str:
    """The ledger of a consuming application. Raises UsageError if Kafka would not take the name."""
    name = f"{settings.topic_prefix}{topic}.{group}{SUFFIX}"
    if len(name) + len(SNAPSHOTS_SUFFIX) > TOPIC_NAME_MAX:
        raise UsageError(
            f"the topic {name}{SNAPSHOTS_SUFFIX} has a name of more than {TOPIC_NAME_MAX} characters",
            next_step="give the queue or the app a shorter name",
        )
    return name
