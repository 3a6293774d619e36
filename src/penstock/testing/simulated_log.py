"""A host's view of the broker in a simulation: a network that delays, doubles and loses."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING

from penstock.errors import OutcomeUnknown
from penstock.ledger.log import Announce, Entry, FailureListener
from penstock.ledger.memory_log import MemoryLog, MemoryTransactions
from penstock.values import Bounds

if TYPE_CHECKING:
    from penstock.testing.simulation import Host, Simulation


class SimulatedLog:
    """A host's view of a topic, through a network that delays, doubles and loses."""

    def __init__(self, host: Host, log: MemoryLog) -> None:
        self.name = log.name
        self.on_failure: FailureListener | None = None
        self._host, self._log, self._simulation = host, log, host.simulation
        # A scan of snapshots waits until it has come to the end; virtual time would stand still for it.
        self._can_be_unreachable = not log.name.endswith(".snapshots")
        self._deaf_until_ms = 0

    def partition_count(self) -> int:
        return self._log.partition_count()

    def assign(self, positions: Mapping[int, int]) -> None:
        self._log.assign(positions)

    def read(self, count_max: int, timeout_ms: int) -> list[Entry]:
        if self._is_unreachable() or self._simulation.now_ms < self._deaf_until_ms:
            return []
        faults = self._simulation.faults
        courses = ["all"]
        courses += ["one", "nothing"] if faults.slow_reads else []
        courses += ["nothing for long"] if faults.deaf_ms and self._can_be_unreachable else []
        match self._simulation.choose(f"{self._host.instance} reads", courses):
            case "one":
                return self._log.read(1, timeout_ms)
            case "nothing":
                return []
            case "nothing for long":
                self._simulation.reach("read nothing for long")
                self._deaf_until_ms = self._simulation.now_ms + faults.deaf_ms
                return []
        return self._log.read(count_max, timeout_ms)

    def _is_unreachable(self) -> bool:
        return self._can_be_unreachable and self._simulation.is_away()

    def position(self, partition: int) -> int:
        return self._log.position(partition)

    def bounds(self, partitions: Iterable[int]) -> dict[int, Bounds]:
        return self._log.bounds(partitions)

    def append(self, partition: int, value: bytes | None, key: bytes | None = None) -> None:
        if self._is_unreachable():
            self._give_up(partition, key)
            return
        faults = self._simulation.faults
        options = ["arrives"]
        options += ["late"] if faults.delay_ms else []
        options += ["twice"] if faults.duplicates else []
        options += ["unacknowledged"] if faults.lost_acks else []
        options += ["dropped"] if faults.drops else []
        fate = self._simulation.choose(f"{self._host.instance} appends", options)
        if fate != "arrives":
            self._simulation.reach(f"append {fate}")
        if fate != "dropped":
            self._deliver(partition, value, key, faults.delay_ms if fate == "late" else 0)
        if fate == "twice":
            self._simulation.schedule(
                faults.delay_ms or 1, "a doubled append arrives", self._arrival(partition, value, key)
            )
        if fate in ("unacknowledged", "dropped"):
            self._give_up(partition, key)

    def _give_up(self, partition: int, key: bytes | None) -> None:
        if self.on_failure is not None:
            self.on_failure(partition, key, "timed out")

    def _deliver(self, partition: int, value: bytes | None, key: bytes | None, delay_ms: int) -> None:
        simulation, queue = self._simulation, (self.name, partition)
        arrives_ms = max(simulation.now_ms + delay_ms, self._host.queues.get(queue, 0))
        if arrives_ms <= simulation.now_ms:
            self._log.append(partition, value, key)
            return
        self._host.queues[queue] = arrives_ms
        simulation.schedule(
            arrives_ms - simulation.now_ms, "a late append arrives", self._arrival(partition, value, key)
        )

    def _arrival(self, partition: int, value: bytes | None, key: bytes | None) -> Callable[[], None]:
        return lambda: self._log.append(partition, value, key)

    def flush(self, timeout_ms: int) -> None:
        """Late appends arrive when they arrive; nobody may rely on this."""

    def cut(self, partition: int, before: int) -> None:
        self._log.cut(partition, before)

    def transactions(self, *, group: str, instance: str, announce: Announce) -> SimulatedTransactions:
        return SimulatedTransactions(self._simulation, f"{group}-{instance}", announce)

    def fence(self, transactional_id: str) -> None:
        self._log.fence(transactional_id)

    def close(self) -> None:
        self._log.close()


class SimulatedTransactions(MemoryTransactions):
    """Transactions whose commit may be fenced, or end without anybody knowing how."""

    def __init__(self, simulation: Simulation, name: str, announce: Announce) -> None:
        super().__init__(simulation.broker, name, announce)
        self._simulation = simulation

    def commit(self) -> None:
        faults = self._simulation.faults
        options = ["commits"]
        options += ["fenced"] if faults.fences else []
        options += ["unknown, committed"] if faults.lost_acks else []
        options += ["unknown, open"] if faults.drops else []
        fate = self._simulation.choose("commit", options)
        if fate != "commits":
            self._simulation.reach(f"commit {fate}")
        if fate == "fenced":
            self._simulation.broker.initialise(self.id)
        if fate != "unknown, open":
            super().commit()
        if fate.startswith("unknown"):
            self.spend()
            raise OutcomeUnknown(f"the commit of {self.id} was not answered", next_step="settle the id")
