"""What a queue needs around it, in a thread that nobody waits for: its topics, their growth, the shown offsets."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from contextlib import ExitStack

from penstock.claims.discovery import Discovery
from penstock.claims.display import Display
from penstock.claims.running import broken_by
from penstock.errors import NotFound, PenstockError, TransientError
from penstock.kafka.reader import Reader
from penstock.kafka.topics import Admin, TopicSpec
from penstock.ledger.topics import for_cluster, ledger_topics
from penstock.queue.census import Census
from penstock.queue.names import ledger_topic
from penstock.queue.records import QueueFounded
from penstock.settings import Settings
from penstock.values import TopicPartition

log = logging.getLogger("penstock.queue")

_EVERY_S = 0.5
_BACK_OFF_S = 0.5

ALL_QUEUES = ("*",)
PROTOCOL = 1


def make_topic(admin: Admin, topic: str, *, partitions: int) -> None:
    """The topic of a queue, where it is missing."""
    if topic not in admin.describe([topic]):
        spec = TopicSpec(name=topic, partitions=partitions, config={}, reason=f"the messages of queue {topic}")
        admin.create([for_cluster(spec, brokers=len(admin.cluster().brokers))])


class Upkeep:
    """Knows which partitions a queue has, and makes sure that its ledger has them too."""

    def __init__(self, settings: Settings, *, queue: str, topic: str, group: str, starts_at_end: bool) -> None:
        self.failure: PenstockError | None = None
        self.partitions: frozenset[int] = frozenset()
        """Those that can be worked on: the ledger has them, and it is known where they begin."""
        self.positions: Mapping[int, int] = {}
        """Put a mapping here, and its offsets are shown to whoever asks Kafka for the group's."""
        self.on_growth: Callable[[frozenset[int]], None] = lambda partitions: None
        self.census = Census(settings.kafka, queue=queue, topic=topic)
        self.ledger = ledger_topic(settings, topic=topic, group=group)
        self._settings, self._topic, self._group, self._starts_at_end = settings, topic, group, starts_at_end
        self._founded: dict[int, QueueFounded] = {}
        self._has_grown = False
        self._closing = threading.Event()
        self._admin = Admin(settings.kafka)
        self._reader = Reader(settings.kafka, group=group)
        self._display = Display(self._reader)
        self._discovery = Discovery(self._admin, [topic], group=group, mend=self._mend)
        self._thread = threading.Thread(target=self._run, name=f"penstock-upkeep-{topic}", daemon=True)

    def founded(self, partition: int) -> QueueFounded:
        """What the ledger of that partition is for."""
        return self._founded[partition]

    def prepare(self) -> None:
        """Make what is missing, before anything is opened. Raises TransientError while the broker is away."""
        make_topic(self._admin, self._topic, partitions=self._settings.queue.partitions)
        self._look()

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        self._closing.set()
        if self._thread.is_alive():
            self._thread.join(5)
        with ExitStack() as ends:
            ends.callback(self._admin.close)
            ends.callback(self._reader.close)
            try:
                self._show(at_once=True)
            except PenstockError as trouble:
                log.warning("the group's offsets could not be shown: %s", trouble)

    def _run(self) -> None:
        while not self._closing.wait(_EVERY_S):
            try:
                self._look_for_growth()
                self._show()
                self.census.look(self._admin, self.positions)
            except NotFound as trouble:
                # A topic was deleted a moment ago. The next look says whether it is another one by now.
                log.warning("topics cannot be looked after: %s", trouble)
                self._discovery.hurry()
            except TransientError as trouble:
                log.warning("topics cannot be looked after: %s", trouble)
                self._closing.wait(_BACK_OFF_S)
            except PenstockError as failure:
                self.failure = failure
                return
            except Exception as bug:
                log.exception("the upkeep of %s stopped by a bug", self._topic)
                self.failure = broken_by(bug, f"the upkeep of {self._topic}")
                return

    def _look_for_growth(self) -> None:
        # It is found once only; what cannot be done about it now is done the next time.
        self._has_grown |= self._discovery.found_more()
        if self._has_grown:
            self._look()
            self.on_growth(self.partitions)
            self._has_grown = False

    def _look(self) -> None:
        """Let the ledger have as many partitions as the topic."""
        if not self._discovery.known:
            self._discovery.hurry()
            self._discovery.found_more()
        numbers = sorted(place.partition for place in self._discovery.known)
        if not numbers:
            raise TransientError(f"topic {self._topic} is not known to the broker yet")
        self._make_ledger(len(numbers))
        info = self._admin.describe([self._topic]).get(self._topic)
        if info is None:
            # If another one comes in its place, the next look says so.
            raise TransientError(f"topic {self._topic} vanished while it was looked at")
        new = [TopicPartition(self._topic, number) for number in numbers if number not in self._founded]
        for place, bounds in self._admin.bounds(new).items():
            # A partition that appears later is read from its beginning: what is in it came after us.
            at_end = self._starts_at_end and not self.partitions
            start = bounds.end if at_end else bounds.start
            self._founded[place.partition] = QueueFounded(PROTOCOL, info.topic_id, start, ALL_QUEUES)
        self.partitions = frozenset(self._founded)

    def _make_ledger(self, partitions: int) -> None:
        specs = ledger_topics(self.ledger, partitions)
        there = self._admin.describe([spec.name for spec in specs])
        if missing := [spec for spec in specs if spec.name not in there]:
            brokers = len(self._admin.cluster().brokers)
            self._admin.create(for_cluster(spec, brokers=brokers) for spec in missing)
        for spec in specs:
            if spec.name in there and there[spec.name].partitions < partitions:
                self._admin.grow_together(spec.name, partitions)

    def _show(self, *, at_once: bool = False) -> None:
        positions = dict(self.positions)
        if positions:
            self._display.show(
                {TopicPartition(self._topic, number): position for number, position in positions.items()},
                at_once=at_once,
            )

    def _mend(self, topic: str) -> str:
        return f"stop the app, delete {self.ledger} and {self.ledger}.snapshots, and start it again"
