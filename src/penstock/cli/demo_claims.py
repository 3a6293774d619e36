"""The demo's chapter on claims: members as processes share eight partitions, one is killed, the other takes over."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from penstock.bench.child import Child
from penstock.errors import CheckFailed

if TYPE_CHECKING:
    from penstock.cli.demo import Story
    from penstock.settings import KafkaSettings

TOPIC = "penstock-demo-orders"
PARTITIONS = 8
ORDERS = 10_000
PATIENCE_S = 60.0


class _Handed(NamedTuple):
    """One batch that a member was handed."""

    at_s: float
    partition: int
    start: int
    end: int


@dataclass(slots=True)
class _Member(Child):
    """One process of the group, and what it says it has worked on."""

    seen: Counter[tuple[int, int]] = field(default_factory=Counter)
    handed: list[_Handed] = field(default_factory=list)

    @classmethod
    def started(cls, settings: KafkaSettings, name: str) -> _Member:
        return cls.running("penstock.cli.demo_member", settings.bootstrap_servers, TOPIC, name)

    def hear(self, words: list[str]) -> None:
        at_s, *numbers = words
        batch = _Handed(float(at_s), *map(int, numbers))
        self.handed.append(batch)
        self.seen.update((batch.partition, offset) for offset in range(batch.start, batch.end))

    def first_after(self, at_s: float) -> dict[int, _Handed]:
        """Of each partition, the first batch after that time."""
        later = (batch for batch in reversed(list(self.handed)) if batch.at_s > at_s)
        return {batch.partition: batch for batch in later}


def claims(story: Story, settings: KafkaSettings) -> None:
    from penstock.kafka.topics import Admin, TopicSpec

    with Admin(settings) as admin:
        admin.create([TopicSpec(name=TOPIC, partitions=PARTITIONS, config={}, reason="the demo")])
    members = [_Member.started(settings, f"member-{number}") for number in (1, 2)]
    try:
        _share_and_kill(story, settings, members)
    finally:
        for member in members:
            member.kill()


def _share_and_kill(story: Story, settings: KafkaSettings, members: list[_Member]) -> None:
    first, second = members
    sent = 0
    worked: list[set[int]] = []
    while not worked or not all(worked):  # orders come in while the two still divide the partitions
        before = [set(member.seen) for member in members]
        sent += _send(settings, ORDERS // 20)
        _work_on(members, sent)
        worked = [_partitions_of(set(member.seen) - old) for member, old in zip(members, before, strict=True)]
    time.sleep(1)  # a heartbeat tells the positions: what it has not told yet would be repeated
    first.kill()
    killed_at = time.monotonic()
    sent += _send(settings, ORDERS)
    _wait(lambda: worked[0] <= second.first_after(killed_at).keys(), "nobody took over")
    _work_on(members, sent)
    taken = {number: batch for number, batch in second.first_after(killed_at).items() if number in worked[0]}
    _tell(story, members, sent, taken, killed_at)


def _work_on(members: list[_Member], sent: int) -> None:
    _wait(lambda: _count(members) >= sent, "the members did not work on all that was sent")


def _partitions_of(seen: set[tuple[int, int]]) -> set[int]:
    return {partition for partition, _ in seen}


def _tell(story: Story, members: list[_Member], sent: int, taken: dict[int, _Handed], killed_at: float) -> None:
    seen: Counter[tuple[int, int]] = Counter()
    for member in members:
        seen.update(member.seen)
    lost, again = sent - len(seen), seen.total() - len(seen)
    times = sorted(batch.at_s - killed_at for batch in taken.values())
    story.tell("claims", f"{PARTITIONS} partitions, 2 members; member-1 killed, taken over in {times[-1]:.1f} s")
    took = (f"{n} from offset {batch.start} after {batch.at_s - killed_at:.1f} s" for n, batch in sorted(taken.items()))
    story.tell("", f"member-2 took partitions {' · '.join(took)}")
    story.tell("", f"sent {sent:,} · worked on {len(seen):,} · lost {lost} · repeated {again} (at least once)")
    story.figures["claims"] = {
        "sent": sent,
        "lost": lost,
        "repeated": again,
        "takeover_s": round(times[-1], 2),
        "taken": {str(number): {"from": batch.start} for number, batch in sorted(taken.items())},
    }
    story.check(f"{lost} orders were not worked on", lost == 0)


def _send(settings: KafkaSettings, count: int) -> int:
    from penstock.kafka.writer import Writer

    with Writer(settings) as writer:
        for number in range(count):
            writer.send(TOPIC, number % PARTITIONS, b"order")
    return count


def _count(members: list[_Member]) -> int:
    return len({place for member in members for place in list(member.seen)})


def _wait(is_so: Callable[[], bool], problem: str) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not is_so():
        if time.monotonic() > deadline:
            raise CheckFailed(problem, next_step="please report this with the output of `penstock doctor`")
        time.sleep(0.02)
