"""What every client is configured with: the user's properties, ours, its log, and what it says of its connections."""

from __future__ import annotations

import difflib
import logging
import math
import re
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from confluent_kafka import KafkaException

from penstock.errors import ConfigError
from penstock.kafka.errors import ConnectionWatch, error_of, translated
from penstock.settings import KafkaSettings


class Repeats(logging.Filter):
    """Lets the same line of the client pass once in `every_s`: a broker that is away is told of at each attempt."""

    def __init__(self, *, every_s: float = 30.0, lines_max: int = 256) -> None:
        super().__init__()
        self._every_s, self._lines_max = every_s, lines_max
        self._told: dict[str, float] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        line = re.sub(r"\d+ms", "", record.getMessage())
        if record.created - self._told.get(line, -math.inf) < self._every_s:
            return False
        if len(self._told) >= self._lines_max:
            self._told.clear()
        self._told[line] = record.created
        return True


class OnlyStarting(logging.Filter):
    """Drops what the client says while a new broker loads its coordinators: it waits, and so do we."""

    def filter(self, record: logging.LogRecord) -> bool:
        return "Coordinator load in progress: retrying" not in record.getMessage()


CLIENT_LOG = logging.getLogger("penstock.kafka.client")
CLIENT_LOG.addFilter(OnlyStarting())
CLIENT_LOG.addFilter(Repeats())
# Without this, `logging` would print warnings on stderr where the application has configured nothing.
CLIENT_LOG.addHandler(logging.NullHandler())

Client = TypeVar("Client")

_GIVEN = "it is given in [kafka.client] of the configuration, or with -X"
_LIST = "https://github.com/confluentinc/librdkafka/blob/master/CONFIGURATION.md"

_COMMON: Mapping[str, object] = {
    # A commit or a ledger append is one small request: it must not wait for more to come.
    "socket.nagle.disable": True,
    # A broker that restarts is back in seconds; the client's own limit is ten.
    "reconnect.backoff.max.ms": 1_000,
    "client.id": "penstock",
}

# The client does not tell its list of properties; these are the ones that people set.
_KNOWN = (
    "acks",
    "allow.auto.create.topics",
    "api.version.request",
    "auto.offset.reset",
    "batch.num.messages",
    "batch.size",
    "bootstrap.servers",
    "broker.address.family",
    "check.crcs",
    "client.dns.lookup",
    "client.id",
    "client.rack",
    "compression.codec",
    "compression.level",
    "compression.type",
    "connections.max.idle.ms",
    "debug",
    "delivery.timeout.ms",
    "enable.auto.commit",
    "enable.idempotence",
    "enable.partition.eof",
    "enable.ssl.certificate.verification",
    "fetch.error.backoff.ms",
    "fetch.max.bytes",
    "fetch.message.max.bytes",
    "fetch.min.bytes",
    "fetch.queue.backoff.ms",
    "fetch.wait.max.ms",
    "group.id",
    "isolation.level",
    "linger.ms",
    "log.connection.close",
    "log_level",
    "max.in.flight.requests.per.connection",
    "max.partition.fetch.bytes",
    "message.max.bytes",
    "message.timeout.ms",
    "metadata.max.age.ms",
    "metadata.broker.list",
    "queue.buffering.max.kbytes",
    "queue.buffering.max.messages",
    "queue.buffering.max.ms",
    "queued.max.messages.kbytes",
    "queued.min.messages",
    "receive.message.max.bytes",
    "reconnect.backoff.max.ms",
    "reconnect.backoff.ms",
    "request.timeout.ms",
    "retries",
    "retry.backoff.max.ms",
    "retry.backoff.ms",
    "sasl.kerberos.keytab",
    "sasl.kerberos.principal",
    "sasl.kerberos.service.name",
    "sasl.mechanism",
    "sasl.mechanisms",
    "sasl.oauthbearer.client.id",
    "sasl.oauthbearer.client.secret",
    "sasl.oauthbearer.config",
    "sasl.oauthbearer.method",
    "sasl.oauthbearer.scope",
    "sasl.oauthbearer.token.endpoint.url",
    "sasl.password",
    "sasl.username",
    "security.protocol",
    "socket.connection.setup.timeout.ms",
    "socket.keepalive.enable",
    "socket.nagle.disable",
    "socket.receive.buffer.bytes",
    "socket.send.buffer.bytes",
    "socket.timeout.ms",
    "ssl.ca.location",
    "ssl.ca.pem",
    "ssl.certificate.location",
    "ssl.certificate.pem",
    "ssl.cipher.suites",
    "ssl.endpoint.identification.algorithm",
    "ssl.key.location",
    "ssl.key.password",
    "ssl.key.pem",
    "ssl.keystore.location",
    "ssl.keystore.password",
    "statistics.interval.ms",
    "transaction.timeout.ms",
    "transactional.id",
)


def properties(
    settings: KafkaSettings, *, preferred: Mapping[str, object], fixed: Mapping[str, object]
) -> dict[str, object]:
    """All properties of one client: what we prefer, then the user's, then what our promises rest on.

    Raises ConfigError without a broker address, and when the user gave another value for a fixed one.
    """
    if not settings.bootstrap_servers:
        raise ConfigError(
            "no broker address is known",
            next_step="set bootstrap_servers in [kafka], PENSTOCK_KAFKA_BOOTSTRAP_SERVERS or --bootstrap-servers",
        )
    for name, value in fixed.items():
        given = settings.client.get(name)
        if given is not None and _as_text(given) != _as_text(value):
            raise ConfigError(
                f"the client property {name}={given} cannot be used: Penstock relies on {name}={_as_text(value)}",
                next_step=f"remove it ({_GIVEN})",
            )
    return {
        **_COMMON,
        **preferred,
        "bootstrap.servers": settings.bootstrap_servers,
        **settings.client,
        **fixed,
    }


def connect(make: Callable[..., Client], config: Mapping[str, object], watch: ConnectionWatch) -> Client:
    """Make a client that logs to `logging` and tells the watch about its connections.

    Raises ConfigError that names a property which the client refused.
    """
    whole: dict[str, Any] = {**config, "error_cb": watch.heard}
    try:
        return make(whole, logger=CLIENT_LOG)
    except KafkaException as failure:
        raise _refused_property(failure, config) from failure
    except (TypeError, ValueError) as failure:
        raise ConfigError(
            f"a client property is not usable: {failure}", next_step=f"correct it ({_GIVEN})"
        ) from failure


def _refused_property(failure: KafkaException, config: Mapping[str, object]) -> Exception:
    text = error_of(failure).str()
    unknown = re.search(r'No such configuration property: "([^"]+)"', text)
    if unknown:
        near = difflib.get_close_matches(unknown[1], _KNOWN, n=3, cutoff=0.7)
        hint = f"did you mean {' or '.join(near)}?" if near else f"all properties: {_LIST}"
        return ConfigError(f"the client has no property {unknown[1]!r} ({_GIVEN})", next_step=hint)
    if "onfiguration" in text or "property" in text:
        return ConfigError(
            f"the client refuses its configuration: {text} ({_GIVEN})", next_step=f"all properties: {_LIST}"
        )
    return translated(failure, f"connecting to {config['bootstrap.servers']}")


def _as_text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
