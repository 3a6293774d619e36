"""Flags over environment over file over defaults, and every value knows where it came from."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import penstock
from penstock.config import OTHER_VARIABLES, Config, env_name, load
from penstock.errors import ConfigError
from penstock.settings import MASK, LedgerSettings
from penstock.values import duration

CANARY = "canary-Zq7"


def loaded(folder: Path, toml: str = "", /, flags: dict[str, object] | None = None, **environ: str) -> Config:
    if toml:
        (folder / "penstock.toml").write_text(toml)
    return load(flags, environ=environ, folder=folder)


def test_without_anything_every_value_is_the_default(tmp_path: Path) -> None:
    config = loaded(tmp_path)

    assert config.settings.broker.heap_mb == 512
    assert config.file is None
    assert {str(one.origin) for one in config.shown()} == {"default"}


def test_a_flag_beats_the_environment_which_beats_the_file_which_beats_the_default(tmp_path: Path) -> None:
    toml = "[broker]\nheap_mb = 300\nport = 1\nbrokers = 3"

    config = loaded(tmp_path, toml, {"broker.heap_mb": 500}, PENSTOCK_BROKER_HEAP_MB="400", PENSTOCK_BROKER_PORT="2")

    broker = config.settings.broker
    assert (broker.heap_mb, broker.port, broker.brokers, broker.start_timeout) == (500, 2, 3, duration("90s"))
    assert str(config.origins["broker.heap_mb"]) == "flag --heap-mb"
    assert str(config.origins["broker.port"]) == "env PENSTOCK_BROKER_PORT"
    assert str(config.origins["broker.brokers"]) == f"file {tmp_path}/penstock.toml:broker.brokers"
    assert "broker.start_timeout" not in config.origins


def test_a_flag_that_was_not_given_changes_nothing(tmp_path: Path) -> None:
    assert loaded(tmp_path, "", {"broker.heap_mb": None}).settings.broker.heap_mb == 512


def test_every_shown_setting_can_be_set_by_its_own_name_in_the_environment(tmp_path: Path) -> None:
    for one in loaded(tmp_path).shown():
        value = {
            "log.level": "debug",
            "log.format": "json",
            "broker.heap_mb": "999",
            "broker.data": "/d",
            "queue.time_limit": "5m",
            "lake.driver_memory": "4g",
        }.get(one.name)
        if value is None:
            value = "3" if one.value.isdecimal() else "5m" if one.value.endswith(("s", "m")) else "x"

        config = load(environ={env_name(one.path): value}, folder=tmp_path)

        again = next(other for other in config.shown() if other.name == one.name)
        assert (again.value, again.origin.kind) == (value, "env")


@pytest.mark.parametrize(
    ("toml", "says", "next_step"),
    [
        ("[broker]\nheep_mb = 1", "penstock.toml: broker.heep_mb is no setting", "did you mean broker.heap_mb?"),
        ("[brokr]\nheap_mb = 1", "penstock.toml: brokr is no setting", "did you mean broker?"),
        (
            "[ledgers.orders]\npartition = 1",
            "ledgers.orders.partition is no",
            "did you mean ledgers.orders.partitions?",
        ),
        ("nothing_like_it_at_all = 1", "nothing_like_it_at_all is no setting", "known here: broker, claims, kafka"),
        ("broker = 3", "penstock.toml: broker is a section, not a value", "write [broker]"),
        ("[broker]\nheap_mb = 'much'", "penstock.toml:broker.heap_mb: 'much' is not", "give a whole number"),
        ("[broker]\nheap_mb = true", "broker.heap_mb: True is not", "give a whole number"),
        ("[broker]\nheap_mb = 1.5", "broker.heap_mb: 1.5 is not", "give a whole number"),
        ("[broker]\nstart_timeout = 'soon'", "broker.start_timeout: 'soon' is not", "give a duration such as"),
        ("[broker]\nstart_timeout = inf", "broker.start_timeout: inf is not", "give a duration such as"),
        ("topic_prefix = 3", "penstock.toml:topic_prefix: 3 is not", "give text"),
        ("[log]\nlevel = 'loud'", "penstock.toml:log.level: 'loud' is not", "give one of debug, info, warning, error"),
        ("[broker]\nport = 70000", "broker.port 70000 is no port (", "use 0"),
        ("[ledgers.a]\npartitions = 0", "penstock.toml:ledgers.a.partitions)", "use 1 to 10000"),
        ("broker = ", "penstock.toml is not TOML", "mend that line"),
    ],
)
def test_what_is_wrong_in_a_file_is_named_with_the_file_the_key_and_what_to_do(
    tmp_path: Path, toml: str, says: str, next_step: str
) -> None:
    with pytest.raises(ConfigError) as problem:
        loaded(tmp_path, toml)

    assert says in problem.value.what
    assert next_step in problem.value.next_step
    assert problem.value.exit_code == 2


def test_an_unknown_variable_is_an_error_that_says_which_was_meant(tmp_path: Path) -> None:
    with pytest.raises(
        ConfigError, match=r"PENSTOCK_BROKER_HEEP_MB is no setting; did you mean PENSTOCK_BROKER_HEAP_MB"
    ):
        loaded(tmp_path, PENSTOCK_BROKER_HEEP_MB="1")


def test_variables_that_are_no_settings_are_left_alone(tmp_path: Path) -> None:
    loaded(tmp_path, PENSTOCK_JARS="/j", PENSTOCK_JAVA="wheel", PENSTOCK_CACHE="/c", PATH="/bin")


def test_client_properties_keep_their_dots_from_every_source(tmp_path: Path) -> None:
    toml = '[kafka.client]\n"socket.timeout.ms" = 5000\nenable.ssl.certificate.verification = false\nlinger.ms = 1'

    config = loaded(
        tmp_path, toml, {"kafka.client": {"linger.ms": "9"}}, PENSTOCK_KAFKA_CLIENT_SECURITY_PROTOCOL="SASL_SSL"
    )

    assert config.settings.kafka.client == {
        "socket.timeout.ms": "5000",
        "enable.ssl.certificate.verification": "false",
        "linger.ms": "9",
        "security.protocol": "SASL_SSL",
    }
    assert str(config.origins["kafka.client.linger.ms"]) == "flag -X linger.ms"


@pytest.mark.parametrize("name", ["bootstrap.servers", "metadata.broker.list"])
def test_brokers_named_as_a_client_property_are_the_brokers(tmp_path: Path, name: str) -> None:
    kafka = loaded(tmp_path, "[kafka]\nbootstrap_servers = 'a:1'", {"kafka.client": {name: "b:2"}}).settings.kafka

    assert (kafka.bootstrap_servers, kafka.client) == ("b:2", {})


def test_brokers_named_twice_in_one_place_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"named twice: --bootstrap-servers and -X bootstrap\.servers"):
        loaded(tmp_path, "", {"kafka.bootstrap_servers": "a:1", "kafka.client": {"bootstrap.servers": "b:2"}})


def test_a_section_without_a_line_below_is_a_ledger_with_defaults(tmp_path: Path) -> None:
    assert loaded(tmp_path, '[ledgers."orders.eu"]').settings.ledgers == {"orders.eu": LedgerSettings()}


def test_a_variable_for_a_ledger_finds_the_spelling_of_the_file(tmp_path: Path) -> None:
    ledgers = loaded(
        tmp_path,
        '[ledgers."orders.EU"]\npartitions = 2',
        PENSTOCK_LEDGERS_ORDERS_EU_PARTITIONS="3",
        PENSTOCK_LEDGERS_RETURNS_SNAPSHOT_EVERY="7",
    ).settings.ledgers

    assert ledgers == {"orders.EU": LedgerSettings(partitions=3), "returns": LedgerSettings(snapshot_every=7)}


def test_relative_paths_in_a_file_count_from_the_file(tmp_path: Path) -> None:
    below = tmp_path / "app"
    below.mkdir()
    (tmp_path / ".git").mkdir()
    (tmp_path / "penstock.toml").write_text("[broker]\ndata = 'kafka'")

    assert load(environ={}, folder=below).settings.broker.data == tmp_path / "kafka"


def test_the_nearest_file_counts_and_penstock_toml_before_pyproject(tmp_path: Path) -> None:
    below = tmp_path / "a"
    below.mkdir()
    (tmp_path / ".git").mkdir()
    (tmp_path / "penstock.toml").write_text("topic_prefix = 'far'")
    assert load(environ={}, folder=below).settings.topic_prefix == "far"

    (below / "pyproject.toml").write_text("[project]\nname = 'x'")
    assert load(environ={}, folder=below).settings.topic_prefix == "far"

    (below / "pyproject.toml").write_text("[tool.penstock]\ntopic_prefix = 'near'")
    config = load(environ={}, folder=below)
    assert config.settings.topic_prefix == "near"
    assert config.origins["topic_prefix"].where.endswith("pyproject.toml:tool.penstock.topic_prefix")

    (below / "penstock.toml").write_text("topic_prefix = 'nearest'")
    assert load(environ={}, folder=below).settings.topic_prefix == "nearest"


def test_the_search_ends_at_the_repository_and_does_not_leave_a_foreign_folder(tmp_path: Path) -> None:
    (tmp_path / "penstock.toml").write_text("topic_prefix = 'of-somebody-else'")
    repository = tmp_path / "repository" / "src"
    repository.mkdir(parents=True)

    assert load(environ={}, folder=repository).settings.topic_prefix == ""
    (tmp_path / "repository" / ".git").mkdir()
    assert load(environ={}, folder=repository).settings.topic_prefix == ""


def test_a_named_file_is_taken_wherever_it_is_and_must_be_there(tmp_path: Path) -> None:
    named = tmp_path / "other.toml"
    named.write_text("topic_prefix = 'named'")

    assert load(file=named, environ={}, folder=tmp_path).settings.topic_prefix == "named"
    assert load(environ={"PENSTOCK_CONFIG": str(named)}, folder=tmp_path).settings.topic_prefix == "named"
    with pytest.raises(ConfigError, match=r"cannot read .*missing\.toml"):
        load(file=tmp_path / "missing.toml", environ={}, folder=tmp_path)


def test_secrets_come_from_files_and_variables(tmp_path: Path) -> None:
    (tmp_path / "password").write_text(f"{CANARY}\n")
    toml = '[kafka.client]\n"sasl.password" = { file = "password" }\n"sasl.username" = { env = "WHO" }'

    client = loaded(tmp_path, toml, WHO="me").settings.kafka.client

    assert client == {"sasl.password": CANARY, "sasl.username": "me"}
    assert all(type(str(value)) is str for value in client.values())


def test_librdkafka_properties_that_end_in_file_are_not_taken_for_secrets_elsewhere(tmp_path: Path) -> None:
    toml = "[kafka.client]\nsasl.oauthbearer.assertion.file = 'jwt'\nsasl.oauthbearer.assertion.private.key.file = 'k'"

    assert loaded(tmp_path, toml).settings.kafka.client == {
        "sasl.oauthbearer.assertion.file": "jwt",
        "sasl.oauthbearer.assertion.private.key.file": "k",
    }


@pytest.mark.parametrize(
    ("reference", "says"),
    [("{ file = 'nowhere' }", "cannot read nowhere: No such file"), ("{ env = 'NOT_SET' }", "NOT_SET is not set")],
)
def test_a_secret_that_is_not_there_says_where_it_was_looked_for(tmp_path: Path, reference: str, says: str) -> None:
    with pytest.raises(ConfigError, match=f"kafka.client.sasl.password: .*{says}"):
        loaded(tmp_path, f"[kafka.client]\n'sasl.password' = {reference}")


def test_no_secret_shows_in_a_repr_a_table_or_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text(CANARY)
    toml = (
        "[kafka.client]\n'sasl.password' = 'canary-Zq7'\n'ssl.key.password' = { file = 'file' }\n"
        "'client.rack' = { env = 'RACK' }"
    )

    config = loaded(tmp_path, toml, RACK=CANARY, PENSTOCK_KAFKA_CLIENT_SSL_KEYSTORE_PASSWORD=CANARY)

    assert set(config.settings.kafka.client.values()) == {CANARY}
    assert CANARY not in repr(config)
    assert CANARY not in repr(config.settings)
    assert [one.value for one in config.shown() if one.name.startswith("kafka.client")] == [MASK] * 4


def test_a_secret_of_the_wrong_form_is_not_repeated_in_the_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as problem:
        loaded(tmp_path, "[broker]\nheap_mb = { env = 'HEAP' }", HEAP=CANARY)

    assert "give a whole number" in str(problem.value)
    assert CANARY not in f"{problem.value!r} {problem.value.__cause__!r}"


def test_every_variable_that_penstock_looks_at_itself_is_known_as_no_setting() -> None:
    """Otherwise whoever sets it could run no command any more."""
    source = Path(penstock.__file__).parent
    asked = {
        name
        for path in source.rglob("*.py")
        for name in re.findall(r"environ(?:\.get\(|\[)\s*\"(PENSTOCK_\w+)\"", path.read_text())
    }

    assert {"PENSTOCK_JAVA", "PENSTOCK_CONFIG"} <= asked
    assert asked <= OTHER_VARIABLES


LAKE = """
[lake]
master = "local[2]"
spark.sql.shuffle.partitions = 4

[lake.orders]
topic = "orders"
table = "lake/orders"
allowed_latency = "10s"
transforms = { file = "kafka.topic" }
registry_password = { env = "REGISTRY" }
consumer = { "sasl.jaas.config" = "shown to nobody" }

[[lake.orders.route]]
table = "lake/other"
condition = "kind = 'other'"
"""


def test_a_pipeline_is_a_table_beside_the_settings_of_the_lake(tmp_path: Path) -> None:
    (tmp_path / "penstock.toml").write_text(LAKE)
    environ = {"REGISTRY": "secret", "PENSTOCK_LAKE_ORDERS_ALLOWED_LATENCY": "2s", "PENSTOCK_LAKE_MASTER": "yarn"}

    config = load(environ=environ, folder=tmp_path)

    lake = config.settings.lake
    assert (lake.master, lake.spark, lake.folder) == ("yarn", {"sql.shuffle.partitions": "4"}, tmp_path)
    assert lake.pipelines["orders"] == {
        "topic": "orders",
        "table": "lake/orders",
        "allowed_latency": "2s",
        "transforms": {"file": "kafka.topic"},
        "registry_password": "secret",
        "consumer": {"sasl.jaas.config": "shown to nobody"},
        "route": [{"table": "lake/other", "condition": "kind = 'other'"}],
    }
    shown = {one.name: one.value for one in config.shown()}
    assert shown["lake.orders.allowed_latency"] == "2s"
    assert shown["lake.orders.registry_password"] == MASK
    assert "shown to nobody" not in shown["lake.orders.consumer"]
    assert "secret" not in repr(lake)


@pytest.mark.parametrize(
    ("toml", "says"),
    [
        ("[lake]\nmastr = 'x'", "lake.mastr is no setting"),
        ("[lake]\ndriver_memory = '2 GB'", "no amount of memory"),
        ("[lake.'a b']\ntopic = 'x'", "lake pipeline name 'a b' is not allowed"),
    ],
)
def test_a_mistake_in_the_lake_is_named(tmp_path: Path, toml: str, says: str) -> None:
    (tmp_path / "penstock.toml").write_text(toml)

    with pytest.raises(ConfigError, match=re.escape(says)):
        load(environ={}, folder=tmp_path)


def test_a_variable_for_a_pipeline_that_no_file_names_is_a_mistake(tmp_path: Path) -> None:
    (tmp_path / "penstock.toml").write_text(LAKE)

    with pytest.raises(ConfigError, match="PENSTOCK_LAKE_ORDRS_TOPIC is no setting"):
        load(environ={"REGISTRY": "x", "PENSTOCK_LAKE_ORDRS_TOPIC": "x"}, folder=tmp_path)
