"""Apache Kafka itself as the embedded default: a managed child process on the loopback, never a re-implementation."""

from penstock.broker.embedded import Embedded
from penstock.broker.process import Node

__all__ = ["Embedded", "Node"]
