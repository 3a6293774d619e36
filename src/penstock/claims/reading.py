"""Reading partitions, each from where the work on it is, and past what is gone. The same with claims and without."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from penstock.claims.batch import Work
from penstock.claims.discovery import Discovery, Mend
from penstock.claims.display import Display
from penstock.claims.ends import Ends
from penstock.claims.progress import Progress
from penstock.claims.tenure import Tenure
from penstock.claims.terms import Terms
from penstock.errors import NotFound, OffsetGone, Refused, TransientError
from penstock.kafka.reader import Reader, Received
from penstock.kafka.topics import Admin
from penstock.observe import events
from penstock.observe.events import tell
from penstock.settings import Settings
from penstock.values import Bounds, TopicPartition

READ_TIMEOUT_MS = 50
BACK_OFF_S = 0.2
# A new leader may not know for a moment how far its log was acknowledged.
BEYOND_MAX_S = 5.0

log = logging.getLogger("penstock.claims")


class Run(NamedTuple):
    """Records of one partition, in the order of offsets."""

    place: TopicPartition
    work: Work
    records: list[Received]


class Reading:
    """What is read now, by one thread."""

    def __init__(self, settings: Settings, terms: Terms, *, group: str, mend: Mend) -> None:
        """`group` is the one that Kafka shows, with the offsets that are committed for it.

        `mend` says how to set the position in a topic that is not the one that we knew.
        """
        self.work: dict[TopicPartition, Work] = {}
        self._terms, self._group, self._mend = terms, group, mend
        self._admin = Admin(settings.kafka)
        self.reader = Reader(settings.kafka, group=group)
        self.discovery = Discovery(self._admin, terms.topics, group=group, mend=mend)
        self.ends = Ends(self._admin, every=settings.claims.heartbeat)
        self._display = Display(self.reader)
        self._beyond_since_s: dict[TopicPartition, float] = {}

    def follow(self, held: Mapping[TopicPartition, Tenure]) -> None:
        """Read exactly these from now on; what is read already goes on where it is.

        A broker that is away is waited for. Raises Refused if a position is beyond the log's end, and stays so.
        """
        try:
            self._follow({place: held[place] for place in held if place.topic not in self.discovery.missing})
            self._show()
        except NotFound:
            self.discovery.hurry()
        except TransientError as trouble:
            log.warning("the broker is out of reach: %s", trouble)
            time.sleep(BACK_OFF_S)

    def runs(self) -> Iterator[Run]:
        """The next records of each partition that has any; nothing after a moment without."""
        for place, records in by_partition(self._read()).items():
            work = self.work[place]
            if records[0].offset() < work.next_offset:
                records = [record for record in records if record.offset() >= work.next_offset]
            if records:
                yield Run(place, work, records)

    def _read(self) -> list[Received]:
        if not self.work or self._is_full():
            time.sleep(READ_TIMEOUT_MS / 1_000)
            return []
        try:
            records = self.reader.read(self._terms.batch_max, READ_TIMEOUT_MS)
            if not records:
                self._pass_invisible()
            return records
        except OffsetGone as gone:
            self._pass_over(TopicPartition(gone.topic, gone.partition))
        except NotFound:
            # A topic was deleted: the next look tells, and leaves it out.
            self.discovery.hurry()
            time.sleep(BACK_OFF_S)
        return []

    def again(self, place: TopicPartition) -> None:
        """Read again from where the work is: what came was not handed out, and must not be passed over."""
        self.reader.seek(place, self.work[place].next_offset)

    def forget(self, places: Iterable[TopicPartition]) -> None:
        """Begin these anew: what was read of them since their position comes again."""
        for place in places:
            self.work.pop(place, None)

    def positions(self) -> dict[TopicPartition, int]:
        return {place: work.position() for place, work in self.work.items()}

    def _show(self, *, at_once: bool = False) -> None:
        if not self._terms.transactions:
            self._display.show(self.positions(), at_once=at_once)

    def close(self) -> None:
        try:
            self._show(at_once=True)
        except (TransientError, NotFound) as trouble:
            log.warning("the last positions are not committed to Kafka: %s", trouble)
        self.reader.close()
        self._admin.close()

    def _follow(self, held: Mapping[TopicPartition, Tenure]) -> None:
        work = {place: work for place, work in self.work.items() if held.get(place) is work.tenure}
        is_less = len(work) < len(self.work)
        if not is_less and len(work) == len(held):
            return
        new = {place: begun for place in held.keys() - work.keys() if (begun := self._begun(place, held[place]))}
        if new or is_less:
            work |= new
            self.reader.assign({place: each.next_offset for place, each in work.items()})
            self.work = work

    def _begun(self, place: TopicPartition, tenure: Tenure) -> Work | None:
        bounds = self._admin.bounds([place])[place]
        start = self._position(place, tenure)
        if start is None:
            start = bounds.start if self._terms.start == "earliest" else bounds.stable_end
            tenure.position = start
        elif self._is_beyond(place, start, bounds):
            return None
        elif start < bounds.start:
            _tell_lost_data(place, start, bounds.start)
            start = bounds.start
        return Work(tenure, Progress(start), start)

    def _position(self, place: TopicPartition, tenure: Tenure) -> int | None:
        if not self._terms.transactions:
            return tenure.position
        known = [*self.reader.committed([place]).values(), *([] if tenure.position is None else [tenure.position])]
        return max(known, default=None)

    def _is_full(self) -> bool:
        return sum(work.outstanding() for work in self.work.values()) >= self._terms.outstanding_max

    def _pass_invisible(self) -> None:
        """Nothing more to read: what lies between the last message and the end is markers and aborted records."""
        for place, work in self.work.items():
            if work.outstanding() == 0 and not work.tenure.draining:
                work.passed(self.reader.position(place))

    def _pass_over(self, place: TopicPartition) -> None:
        """Retention deleted what we were about to read: say exactly what, and go on behind it."""
        work = self.work[place]
        try:
            bounds = self._admin.bounds([place])[place]
        except TransientError:
            return  # the reader says it again
        if self._is_beyond(place, work.next_offset, bounds):
            time.sleep(BACK_OFF_S)
        elif work.next_offset < bounds.start:
            _tell_lost_data(place, work.next_offset, bounds.start)
            work.passed(bounds.start)
        self.reader.seek(place, work.next_offset)

    def _is_beyond(self, place: TopicPartition, position: int, bounds: Bounds) -> bool:
        """Whether the log ends before our position. Raises Refused when that lasts: it is not the log that we knew."""
        if position <= bounds.end:
            self._beyond_since_s.pop(place, None)
            return False
        since_s = self._beyond_since_s.setdefault(place, time.monotonic())
        if time.monotonic() - since_s > BEYOND_MAX_S:
            raise Refused(
                f"the position of group {self._group} in {place} is {position}, but the log ends at {bounds.end}: "
                "the topic was made anew, or has lost records",
                next_step=self._mend(place.topic),
            )
        return True


def _tell_lost_data(place: TopicPartition, start: int, end: int) -> None:
    tell(events.DataLost(topic=place.topic, partition=place.partition, start=start, end=end))


def by_partition(records: list[Received]) -> dict[TopicPartition, list[Received]]:
    """Each partition's records in the order of offsets. They come in runs, so most need no look-up."""
    runs: dict[TopicPartition, list[Received]] = {}
    topic, partition, run = "", -1, list[Received]()
    for record in records:
        if record.partition() != partition or record.topic() != topic:
            topic, partition = record.topic(), record.partition()
            run = runs.setdefault(TopicPartition(topic, partition), [])
        run.append(record)
    return runs
