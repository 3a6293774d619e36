"""What Kafka is told: its properties, its logging, its Java options. Values in, text out.

Every path is relative to the node's folder, in which the broker runs: a data folder may then be moved, and be named
with commas, blanks or accents, which Kafka's own properties would not bear.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

HOST = "127.0.0.1"
LOG_DIRECTORY = "kafka"
SERVER_PROPERTIES = "server.properties"
LOGGING_PROPERTIES = "log4j2.properties"
LOG_FILE = "broker.log"
CONSOLE_FILE = "console.log"


@dataclass(frozen=True, slots=True, kw_only=True)
class NodePorts:
    """Where one node listens: for clients, and for the other controllers."""

    client: int
    controller: int


def bootstrap(ports: Sequence[NodePorts]) -> str:
    return ",".join(f"{HOST}:{node.client}" for node in ports)


def server_properties(node: int, ports: Sequence[NodePorts]) -> str:
    """Node `node` (from 1) of a cluster whose every node is broker and controller in one."""
    ours = ports[node - 1]
    replication = len(ports)
    in_sync = min(2, replication)
    voters = ",".join(f"{number}@{HOST}:{other.controller}" for number, other in enumerate(ports, 1))
    return _lines(
        {
            "process.roles": "broker,controller",
            "node.id": node,
            "controller.quorum.voters": voters,
            "controller.listener.names": "CONTROLLER",
            "listeners": f"PLAINTEXT://{HOST}:{ours.client},CONTROLLER://{HOST}:{ours.controller}",
            "advertised.listeners": f"PLAINTEXT://{HOST}:{ours.client}",
            "log.dirs": LOG_DIRECTORY,
            # A misspelled topic is an error, not a new topic with the wrong settings.
            "auto.create.topics.enable": "false",
            "default.replication.factor": replication,
            "min.insync.replicas": in_sync,
            "unclean.leader.election.enable": "false",
            # Few partitions of Kafka's own topics: they are made at first use, and somebody waits for it.
            "offsets.topic.num.partitions": 4,
            "offsets.topic.replication.factor": replication,
            "transaction.state.log.num.partitions": 4,
            "transaction.state.log.replication.factor": replication,
            "transaction.state.log.min.isr": in_sync,
            "share.coordinator.state.topic.num.partitions": 4,
            "share.coordinator.state.topic.replication.factor": replication,
            "share.coordinator.state.topic.min.isr": in_sync,
            "group.initial.rebalance.delay.ms": 0,
            # After a kill a node is let in again only when its former self is out of time. A node alone has nobody to
            # hand over to, so that wait is all that the time is for; in a cluster, a busy node must not look dead.
            "broker.session.timeout.ms": 6_000 if replication > 1 else 1_500,
            "broker.heartbeat.interval.ms": 1_000 if replication > 1 else 300,
            # Sized for one machine: the defaults take 128 MB for compaction alone.
            "log.cleaner.dedupe.buffer.size": 16 * 1024 * 1024,
            "log.cleaner.io.buffer.size": 512 * 1024,
            "num.network.threads": 2,
            "num.io.threads": 4,
            "background.threads": 2,
            "num.recovery.threads.per.data.dir": 1,
        }
    )


def logging_properties() -> str:
    """One file of at most 10 MB and three older ones."""
    return _lines(
        {
            "status": "error",
            # Kafka's own shutdown hook still has something to say when log4j's would already have closed the file.
            "shutdownHook": "disable",
            "appender.file.type": "RollingFile",
            "appender.file.name": "file",
            "appender.file.fileName": LOG_FILE,
            "appender.file.filePattern": f"{LOG_FILE}.%i",
            "appender.file.layout.type": "PatternLayout",
            "appender.file.layout.pattern": "%d{ISO8601} %-5p %m (%c{1})%n",
            "appender.file.policy.type": "SizeBasedTriggeringPolicy",
            "appender.file.policy.size": "10MB",
            "appender.file.strategy.type": "DefaultRolloverStrategy",
            "appender.file.strategy.max": 3,
            "rootLogger.level": "info",
            "rootLogger.appenderRef.file.ref": "file",
        }
    )


def java_options(*, heap_mb: int) -> tuple[str, ...]:
    """A broker that starts fast and stays small: it shares the machine with what is being developed on it."""
    return (
        f"-Xms{min(64, heap_mb)}m",
        f"-Xmx{heap_mb}m",
        "-XX:+UseSerialGC",
        # Give memory back after a burst of load, instead of keeping the heap at its largest.
        "-XX:MinHeapFreeRatio=10",
        "-XX:MaxHeapFreeRatio=30",
        "-XX:MaxMetaspaceSize=128m",
        "-XX:ReservedCodeCacheSize=64m",
        "-Xss512k",
        "-Djdk.nio.maxCachedBufferSize=262144",
        "-XX:-UsePerfData",
        "-XX:+ExitOnOutOfMemoryError",
        "-XX:ErrorFile=java-crash.log",
        "-Djava.awt.headless=true",
        "-Dlog4j2.disableJmx=true",
        f"-Dlog4j2.configurationFile={LOGGING_PROPERTIES}",
    )


def _lines(properties: Mapping[str, object]) -> str:
    return "".join(f"{name}={value}\n" for name, value in properties.items())
