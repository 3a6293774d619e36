from __future__ import annotations

from penstock.broker.recipe import NodePorts, bootstrap, java_options, logging_properties, server_properties

ONE = [NodePorts(client=1000, controller=2000)]
THREE = [NodePorts(client=1000 + number, controller=2000 + number) for number in (1, 2, 3)]


def _properties(text: str) -> dict[str, str]:
    return dict(line.split("=", 1) for line in text.splitlines())


def test_every_listener_is_on_the_loopback() -> None:
    for number in (1, 2, 3):
        properties = _properties(server_properties(number, THREE))
        addresses = [*properties["listeners"].split(","), properties["advertised.listeners"]]

        assert all("://127.0.0.1:" in address for address in addresses)


def test_one_broker_replicates_nothing() -> None:
    properties = _properties(server_properties(1, ONE))

    assert {value for name, value in properties.items() if "replication.factor" in name} == {"1"}
    assert properties["min.insync.replicas"] == properties["transaction.state.log.min.isr"] == "1"


def test_a_cluster_replicates_everything_three_times_and_needs_two() -> None:
    properties = _properties(server_properties(2, THREE))

    assert {value for name, value in properties.items() if "replication.factor" in name} == {"3"}
    assert {value for name, value in properties.items() if name.endswith(("min.isr", "min.insync.replicas"))} == {"2"}
    assert properties["unclean.leader.election.enable"] == "false"


def test_the_nodes_of_a_cluster_know_the_same_voters_and_differ_in_id() -> None:
    nodes = [_properties(server_properties(number, THREE)) for number in (1, 2, 3)]

    assert {node["controller.quorum.voters"] for node in nodes} == {
        "1@127.0.0.1:2001,2@127.0.0.1:2002,3@127.0.0.1:2003"
    }
    assert [node["node.id"] for node in nodes] == ["1", "2", "3"]


def test_topics_are_not_made_by_misspelling() -> None:
    assert _properties(server_properties(1, ONE))["auto.create.topics.enable"] == "false"


def test_no_property_holds_a_path_outside_the_folder_of_the_node() -> None:
    values = [*_properties(server_properties(1, ONE)).values(), *_properties(logging_properties()).values()]

    assert not [value for value in values if value.startswith("/")]


def test_clients_are_given_every_node() -> None:
    assert bootstrap(THREE) == "127.0.0.1:1001,127.0.0.1:1002,127.0.0.1:1003"


def test_the_heap_is_what_was_set_and_never_begins_larger() -> None:
    assert "-Xmx512m" in java_options(heap_mb=512)
    assert {"-Xms48m", "-Xmx48m"} <= set(java_options(heap_mb=48))
