"""The embedded Apache Kafka, as seen from Python: one broker, or a cluster of three, for as long as a `with` lasts.

with penstock.broker.Embedded() as kafka:
    kafka.bootstrap                             # "127.0.0.1:24119"

with penstock.broker.Embedded(brokers=3) as kafka:
    kafka.kill(2)                               # nodes are numbered 1, 2, 3
    kafka.start(2)
"""

from __future__ import annotations

import shutil
import signal
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from penstock.broker import datafolder, recipe
from penstock.broker.datafolder import node_folder
from penstock.broker.jars import Progress
from penstock.broker.kit import Kit, prepare
from penstock.broker.ports import free_ports, is_free
from penstock.broker.process import Engine, Node, PortTaken
from penstock.errors import UsageError
from penstock.observe import tell
from penstock.settings import BrokerSettings

PORT_TRIES = 5
STOP_TIMEOUT_S = 15.0
_LOOK_EVERY_S = 0.05


class Embedded:
    """A real Kafka of our own on 127.0.0.1. Entering the context (or `start()`) returns when it is ready for use.

    With `data` the folder is kept, and a later start goes on where this one ended; without, it is temporary and goes
    with the broker. `port` 0 takes a free one; in a cluster a given port is node 1's, the others take the next two.
    The broker ends with this process, however that ends; only with `outlives_us` it stays.
    """

    def __init__(
        self,
        settings: BrokerSettings | None = None,
        *,
        data: Path | str | None = None,
        port: int | None = None,
        brokers: int | None = None,
        heap_mb: int | None = None,
        outlives_us: bool = False,
        progress: Progress | None = None,
    ) -> None:
        given: dict[str, Any] = {"data": data and Path(data), "port": port, "brokers": brokers, "heap_mb": heap_mb}
        named = {name: value for name, value in given.items() if value is not None}
        self.settings = replace(settings or BrokerSettings(), **named)
        if outlives_us and self.settings.data is None:
            raise UsageError("a broker that outlives us needs a data folder", next_step="give data=...")
        self.nodes: tuple[Node, ...] = ()
        self.version = ""
        self._outlives_us, self._progress = outlives_us, progress
        self._data: Path | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def bootstrap(self) -> str:
        """Where clients connect: every node, as host:port, separated by commas."""
        if not self.nodes:
            raise UsageError("the embedded broker was not started", next_step="use it in a `with`, or call start()")
        return ",".join(node.bootstrap for node in self.nodes)

    @property
    def data(self) -> Path:
        """The data folder, also while it is a temporary one."""
        if self._data is None:
            raise UsageError("the embedded broker was not started", next_step="use it in a `with`, or call start()")
        return self._data

    def start(self, n: int | None = None, *, wait: bool = True) -> None:
        """Start everything, or all nodes that are down, or node `n`; return when what was started is ready.

        With `wait=False` return at once: while most nodes of a cluster are down, a single one does not become ready.

        Raises BrokerFailed (with the end of the log), BrokerRunning (data in use), Unavailable (no Java, no jars).
        """
        if not self.nodes:
            self._start_first()
            return
        chosen = [self._node(n)] if n is not None else [node for node in self.nodes if not node.is_running]
        for node in chosen:
            node.launch()
        if wait:
            self._wait_until_ready(chosen)

    def wait_until_ready(self) -> None:
        """Return when every node that runs answers as a member of the cluster."""
        self._wait_until_ready([node for node in self.nodes if node.is_running])

    def kill(self, n: int) -> None:
        """SIGKILL node `n`, as a crash would; returns when it is gone."""
        node = self._node(n)
        node.send(signal.SIGKILL)
        _see_end(node, within_s=STOP_TIMEOUT_S)

    def terminate(self, n: int) -> None:
        """End node `n` in order: it hands over what it leads, then closes its files."""
        node = self._node(n)
        node.send(signal.SIGTERM)
        _see_end(node, within_s=STOP_TIMEOUT_S)

    def stop(self, n: int) -> None:
        """SIGSTOP node `n`: it hangs, keeps its connections, and answers nothing, until `cont`."""
        self._node(n).send(signal.SIGSTOP)

    def cont(self, n: int) -> None:
        """SIGCONT: node `n` goes on after `stop`."""
        self._node(n).send(signal.SIGCONT)

    def log_tail(self, lines: int = 20, *, n: int = 1) -> str:
        return self._node(n).log_tail(lines)

    def let_go(self) -> None:
        """Leave a broker that outlives us to itself."""
        for node in self.nodes:
            node.let_go()
        self.nodes = ()

    def close(self) -> None:
        """End every node in order, those that will not by force; a temporary data folder is removed."""
        # Of a temporary folder nothing will be read again, so nothing needs to be put in order.
        self._end_all(signal.SIGKILL if self._is_temporary else signal.SIGTERM)
        if self._is_temporary and self._data is not None:
            shutil.rmtree(self._data, ignore_errors=True)

    @property
    def _is_temporary(self) -> bool:
        return self.settings.data is None

    def _start_first(self) -> None:
        kit = prepare(progress=self._progress)
        self._data = self._made_data_folder()
        try:
            self._start_on_free_ports(self._engine(kit, self._data), self._data)
        except BaseException:
            self.close()
            raise
        self.version = kit.release.version
        datafolder.note_reach(self._data, datafolder.Reach(bootstrap=self.bootstrap, version=self.version))

    def _engine(self, kit: Kit, data: Path) -> Engine:
        cluster = datafolder.found(data, brokers=self.settings.brokers, checkpoint=kit.checkpoint)
        datafolder.refuse_if_in_use(data, brokers=cluster.brokers)
        return Engine(
            java=kit.java,
            release=kit.release,
            heap_mb=self.settings.heap_mb,
            cluster_id=cluster.cluster_id,
            temporary=data if self._is_temporary else None,
            outlives_us=self._outlives_us,
            class_data=kit.class_data,
        )

    def _made_data_folder(self) -> Path:
        if self.settings.data is None:
            return Path(tempfile.mkdtemp(prefix="penstock-broker-"))
        return self.settings.data.expanduser().absolute()

    def _start_on_free_ports(self, engine: Engine, data: Path) -> None:
        for attempt in range(1, PORT_TRIES + 1):
            ports = _chosen_ports(self.settings)
            numbers = range(1, self.settings.brokers + 1)
            self.nodes = tuple(Node(number, node_folder(data, number), engine, ports) for number in numbers)
            try:
                self.start()
                return
            except PortTaken:
                if self.settings.port or attempt == PORT_TRIES:
                    raise
            self._end_all(signal.SIGKILL)

    def _wait_until_ready(self, nodes: Sequence[Node]) -> None:
        seconds = self.settings.start_timeout.seconds
        deadline = time.monotonic() + seconds
        for node in nodes:
            while not node.is_ready():
                if time.monotonic() > deadline:
                    raise node.not_ready_within(seconds)
                time.sleep(_LOOK_EVERY_S)
            tell(node.started())

    def _end_all(self, signal_number: signal.Signals) -> None:
        deadline = time.monotonic() + STOP_TIMEOUT_S
        for node in self.nodes:
            node.ask_to_end(signal_number)
        for node in self.nodes:
            _see_end(node, within_s=deadline - time.monotonic())
        self.nodes = ()

    def _node(self, n: int) -> Node:
        if not 1 <= n <= len(self.nodes):
            raise UsageError(
                f"there is no node {n}", next_step=f"nodes are numbered 1 to {self.settings.brokers}, once started"
            )
        return self.nodes[n - 1]


def _see_end(node: Node, *, within_s: float) -> None:
    stopped = node.see_end(within_s=within_s)
    if stopped is not None:
        tell(stopped)


def _chosen_ports(settings: BrokerSettings) -> list[recipe.NodePorts]:
    count = settings.brokers
    free = free_ports(2 * count)
    clients = [settings.port + index for index in range(count)] if settings.port else free[count:]
    for port in clients:
        if not is_free(port):
            raise PortTaken(
                f"port {port} on {recipe.HOST} is taken by another program",
                next_step="choose another with --port N, or any free one with --port 0",
            )
    return [
        recipe.NodePorts(client=client, controller=controller)
        for client, controller in zip(clients, free[:count], strict=True)
    ]
