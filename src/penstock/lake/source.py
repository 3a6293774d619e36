"""Kafka as a Spark source: the same broker and the same secrets, in the words of the Java client."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from penstock.errors import ConfigError
from penstock.settings import KafkaSettings

_LOGIN = "org.apache.kafka.common.security"
_LOGIN_MODULES = {
    "PLAIN": f"{_LOGIN}.plain.PlainLoginModule",
    "SCRAM-SHA-256": f"{_LOGIN}.scram.ScramLoginModule",
    "SCRAM-SHA-512": f"{_LOGIN}.scram.ScramLoginModule",
}

# Reading is faster in large pieces: the Java client's own sizes are made for small consumers.
_PREFERRED = {
    "max.poll.records": "20000",
    "fetch.max.bytes": str(64 << 20),
    "max.partition.fetch.bytes": str(8 << 20),
    "receive.buffer.bytes": str(1 << 20),
    # A task ends with a fetch under way, and the next one on that partition has to wait for its answer first. Where
    # nothing comes that is as long as this; by default half a second, for one partition after the other.
    "fetch.max.wait.ms": "10",
}

_SAME = (
    "security.protocol",
    "client.rack",
    "fetch.max.bytes",
    "fetch.min.bytes",
    "max.partition.fetch.bytes",
    "metadata.max.age.ms",
    "sasl.kerberos.service.name",
    "ssl.cipher.suites",
    "ssl.key.password",
    "sasl.oauthbearer.token.endpoint.url",
)
_INLINE = {
    # librdkafka's name of the text, its name of a file, and the Java client's name of the text.
    "ssl.truststore.certificates": ("ssl.ca.pem", "ssl.ca.location"),
    "ssl.keystore.certificate.chain": ("ssl.certificate.pem", "ssl.certificate.location"),
    "ssl.keystore.key": ("ssl.key.pem", "ssl.key.location"),
}


def source_options(kafka: KafkaSettings, consumer: Mapping[str, str]) -> dict[str, str]:
    """Options of Spark's Kafka source: where the broker is, how to log in, and that only committed records count.

    Raises ConfigError for a property that the Java client cannot honour.
    """
    properties = {
        **_PREFERRED,
        "bootstrap.servers": kafka.bootstrap_servers,
        **java_properties(kafka.client),
        **consumer,
        "isolation.level": "read_committed",
    }
    return {f"kafka.{name}": value for name, value in properties.items()} | {"failOnDataLoss": "true"}


def java_properties(client: Mapping[str, str]) -> dict[str, str]:
    """What librdkafka was told, as the Java client is told it. Certificates go as text: executors have no such file."""
    java = {name: client[name] for name in _SAME if name in client}
    for java_name, (text, file) in _INLINE.items():
        if text in client:
            java[java_name] = client[text]
        elif file in client:
            java[java_name] = _content(file, client[file])
    if "ssl.truststore.certificates" in java:
        java["ssl.truststore.type"] = "PEM"
    if "ssl.keystore.key" in java:
        java["ssl.keystore.type"] = "PEM"
    if "ssl.endpoint.identification.algorithm" in client:
        told = client["ssl.endpoint.identification.algorithm"]
        java["ssl.endpoint.identification.algorithm"] = "" if told == "none" else told
    if client.get("enable.ssl.certificate.verification", "true").lower() == "false":
        raise ConfigError(
            "the lake cannot leave certificates unchecked (enable.ssl.certificate.verification=false)",
            next_step="give the broker's certificate authority as ssl.ca.location",
        )
    return java | _login(client)


def _login(client: Mapping[str, str]) -> dict[str, str]:
    mechanism = client.get("sasl.mechanism") or client.get("sasl.mechanisms")
    if not mechanism:
        return {}
    java = {"sasl.mechanism": mechanism}
    if mechanism in _LOGIN_MODULES:
        java["sasl.jaas.config"] = _jaas(
            _LOGIN_MODULES[mechanism],
            username=client.get("sasl.username", ""),
            password=client.get("sasl.password", ""),
        )
    elif mechanism == "OAUTHBEARER":
        java["sasl.login.callback.handler.class"] = f"{_LOGIN}.oauthbearer.OAuthBearerLoginCallbackHandler"
        java["sasl.jaas.config"] = _jaas(
            f"{_LOGIN}.oauthbearer.OAuthBearerLoginModule",
            clientId=client.get("sasl.oauthbearer.client.id", ""),
            clientSecret=client.get("sasl.oauthbearer.client.secret", ""),
            scope=client.get("sasl.oauthbearer.scope", ""),
        )
    return java


def _jaas(module: str, **values: str) -> str:
    quoted = " ".join(f'{name}="{_escaped(value)}"' for name, value in values.items() if value)
    return f"{module} required {quoted};"


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"')


def _content(name: str, path: str) -> str:
    try:
        return Path(path).expanduser().read_text("utf-8")
    except OSError as failure:
        raise ConfigError(
            f"{name} names {path}, which cannot be read: {failure.strerror or failure}",
            next_step="correct it (it is given in [kafka.client] of the configuration, or with -X)",
        ) from failure
