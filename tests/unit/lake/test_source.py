"""The client's properties in the words of Java."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.errors import ConfigError
from penstock.lake.source import java_properties, source_options
from penstock.settings import KafkaSettings


def test_only_committed_records_count_whatever_is_asked_for() -> None:
    found = source_options(
        KafkaSettings(bootstrap_servers="b:9092"), {"isolation.level": "read_uncommitted", "max.poll.records": "7"}
    )

    assert found["kafka.isolation.level"] == "read_committed"
    assert found["kafka.max.poll.records"] == "7"
    assert found["failOnDataLoss"] == "true"


def test_a_password_is_escaped_where_java_reads_it() -> None:
    found = java_properties(
        {"sasl.mechanisms": "SCRAM-SHA-512", "sasl.username": "ada", "sasl.password": 'a"b\\c', "batch.size": "1"}
    )

    assert found == {
        "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.jaas.config": "org.apache.kafka.common.security.scram.ScramLoginModule required "
        'username="ada" password="a\\"b\\\\c";',
    }


def test_certificates_travel_as_text(tmp_path: Path) -> None:
    authority = tmp_path / "ca.pem"
    authority.write_text("CERTIFICATE")

    found = java_properties(
        {
            "security.protocol": "SSL",
            "ssl.ca.location": str(authority),
            "ssl.key.pem": "KEY",
            "ssl.endpoint.identification.algorithm": "none",
        }
    )

    assert found == {
        "security.protocol": "SSL",
        "ssl.truststore.certificates": "CERTIFICATE",
        "ssl.truststore.type": "PEM",
        "ssl.keystore.key": "KEY",
        "ssl.keystore.type": "PEM",
        "ssl.endpoint.identification.algorithm": "",
    }


def test_what_java_cannot_honour_is_an_error_and_not_left_out() -> None:
    with pytest.raises(ConfigError, match=r"ssl\.ca\.location"):
        java_properties({"enable.ssl.certificate.verification": "false"})
    with pytest.raises(ConfigError, match="cannot be read"):
        java_properties({"ssl.ca.location": "/no/such/file"})
