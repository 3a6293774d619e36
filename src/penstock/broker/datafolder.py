"""The data folder of an embedded broker: what was founded there, and who runs on it.

cluster.json   the cluster's id and size, written once
running.json   how the last start can be reached; true while a node holds its pid file
node-1/ ...    per node: server.properties, broker.log, broker.pid, and Kafka's own data in kafka/
"""

from __future__ import annotations

import os
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import msgspec

from penstock.broker import pidfile, storage
from penstock.broker.places import locked
from penstock.errors import BrokerRunning, Refused, Unavailable, UsageError

_CLUSTER, _RUNNING = "cluster.json", "running.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """What does not change after the first start."""

    cluster_id: str
    brokers: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Reach:
    """How the last start of the cluster can be reached."""

    bootstrap: str
    version: str


def node_folder(data: Path, number: int) -> Path:
    return data / f"node-{number}"


def cluster_at(data: Path) -> Cluster | None:
    """What was founded there, if anything.

    Raises Refused when its description cannot be read.
    """
    return _read(data / _CLUSTER, Cluster)


def reach_of(data: Path) -> Reach | None:
    return _read(data / _RUNNING, Reach)


def note_reach(data: Path, reach: Reach) -> None:
    _write(data / _RUNNING, reach)


def found(data: Path, *, brokers: int, checkpoint: Path) -> Cluster:
    """Make the folder ready for a cluster of this size; one that was founded before is left as it is.

    Raises UsageError when the folder cannot be, or is for another size, and Refused when it holds other things.
    """
    try:
        data.mkdir(parents=True, exist_ok=True)
        _refuse_other_content(data)
        with locked(data / ".lock"):
            cluster = cluster_at(data)
            if cluster is None:
                cluster = Cluster(cluster_id=storage.new_id(), brokers=brokers)
                _write(data / _CLUSTER, cluster)
            _refuse_other_size(data, cluster, brokers)
            for number in range(1, brokers + 1):
                folder = node_folder(data, number)
                if not storage.is_formatted(folder):
                    storage.format_node(folder, node=number, cluster_id=cluster.cluster_id, checkpoint=checkpoint)
            return cluster
    except OSError as failure:
        raise UsageError(
            f"cannot keep a broker's data in {data}: {failure.strerror or failure}",
            next_step="choose a folder that can be written, with --data DIR",
        ) from failure


def refuse_if_in_use(data: Path, *, brokers: int) -> None:
    """Raises BrokerRunning; only a look, each node's own start decides."""
    for number in range(1, brokers + 1):
        if holder := pidfile.holder(node_folder(data, number)):
            raise BrokerRunning(data=str(data), pid=holder.pid)


def _refuse_other_content(data: Path) -> None:
    ours = {_CLUSTER, ".lock"}
    found_here = {path.name for path in data.iterdir()}
    if found_here and not found_here & ours:
        raise Refused(
            f"{data} holds other things ({', '.join(sorted(found_here)[:3])}) and no broker's data",
            next_step="choose an empty folder, or one that was made by an embedded broker",
        )


def _refuse_other_size(data: Path, cluster: Cluster, brokers: int) -> None:
    if cluster.brokers != brokers:
        raise UsageError(
            f"{data} holds a cluster of {cluster.brokers}, not of {brokers}",
            next_step=f"start it with --brokers {cluster.brokers}, or choose another folder",
        )


_Kind = TypeVar("_Kind", Cluster, Reach)


def _read(path: Path, kind: type[_Kind]) -> _Kind | None:
    try:
        return msgspec.json.decode(path.read_bytes(), type=kind)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as failure:
        raise Unavailable(
            f"cannot read {path}: {failure.strerror or failure}", next_step="check its owner and rights"
        ) from failure
    except msgspec.MsgspecError as failure:
        raise Refused(
            f"{path} is damaged: {failure}", next_step="put it back from a copy, or choose another data folder"
        ) from failure


def _write(path: Path, content: Cluster | Reach) -> None:
    descriptor, draft = tempfile.mkstemp(dir=path.parent, prefix=".", suffix=".draft")
    with os.fdopen(descriptor, "wb") as file:
        file.write(msgspec.json.encode(content) + b"\n")
    os.replace(draft, path)
