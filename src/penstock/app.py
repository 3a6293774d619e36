"""What an application holds in its hand: one name for all its processes, one set of settings.

app = penstock.App("shop")
with app.lock("nightly-report") as lock: ...
with app.group().consume(["orders"]) as messages: ...
"""

from __future__ import annotations

from penstock.claims.group import Group
from penstock.claims.lock import Lock
from penstock.config import load
from penstock.errors import ConfigError
from penstock.settings import Settings
from penstock.values import DurationLike, checked_name

DEFAULT_NAME = "penstock"


class App:
    """The consuming application: processes that give the same name share the work."""

    def __init__(self, name: str, *, settings: Settings | None = None) -> None:
        """Without `settings` they come from the environment and penstock.toml."""
        self.name = checked_name("app", name)
        self.settings = settings or load().settings
        if not self.settings.kafka.bootstrap_servers:
            raise ConfigError(
                "no Kafka is named",
                next_step="set PENSTOCK_KAFKA_BOOTSTRAP_SERVERS, or [kafka] bootstrap_servers in penstock.toml",
            )

    def group(self, *, client: str | None = None) -> Group:
        """For consuming topics whose partitions its members share. `client` names this one."""
        return Group(self.settings, self.name, client=client)

    def lock(self, name: str, *, timeout: DurationLike | None = None) -> Lock:
        """A named lock; use it as a context manager. `timeout`: how long entering may wait."""
        return Lock(self.settings, name, group=self.name, timeout=timeout)


def lock(name: str, *, timeout: DurationLike | None = None) -> Lock:
    """A named lock of the default app, on the settings of environment and file."""
    return App(DEFAULT_NAME).lock(name, timeout=timeout)
