"""The demo's chapter on the queue: four workers as processes, one killed with messages in hand, twelve bad orders."""

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
    from penstock.ledger.log import Entry
    from penstock.ledger.machine import Judged
    from penstock.queue.look import Folds, Named
    from penstock.settings import KafkaSettings, Settings

ORDERS = 10_000
WORKERS = 4
KILLED = 2
PATIENCE_S = 60.0

Place = tuple[int, int]
"""A partition, and an offset in it or in its ledger."""


class _Begun(NamedTuple):
    """One message that a handler began with."""

    at_s: float
    place: Place
    lease: Place
    order: int


@dataclass(slots=True)
class _Worker(Child):
    """One process that works on the queue, and what it says it did."""

    holds: int = 0
    begun: list[_Begun] = field(default_factory=list)
    done: list[int] = field(default_factory=list)

    @classmethod
    def started(cls, settings: KafkaSettings, name: str) -> _Worker:
        return cls.running("penstock.cli.demo_worker", settings.bootstrap_servers, name)

    def hear(self, words: list[str]) -> None:
        match words:
            case ["holds", count]:
                self.holds = int(count)
            case ["begun", at_s, partition, offset, token, order]:
                number = int(partition)
                lease = (number, int(token))
                self.begun.append(_Begun(float(at_s), (number, int(offset)), lease, int(order)))
            case ["done", order]:
                self.done.append(int(order))


@dataclass(slots=True)
class _Books:
    """What the queue's ledger says, record by record, and at its end."""

    acked: set[Place] = field(default_factory=set)
    worker_of: dict[Place, str] = field(default_factory=dict)
    """Who took a lease."""
    holder: dict[Place, str] = field(default_factory=dict)
    """Who took a message last, and has not said what became of it."""
    left: dict[str, set[Place]] = field(default_factory=dict)
    """By worker: what others took because it never said so."""
    folds: Folds = field(default_factory=dict)

    @classmethod
    def read(cls, settings: Settings, ledger: str) -> _Books:
        from penstock.queue.look import read_ledger

        books = cls()
        books.folds = read_ledger(settings, ledger, witness=books._note)
        return books

    def _note(self, entry: Entry, judged: Judged) -> None:
        from penstock.queue.records import Acked, Buried, Released, Taken
        from penstock.queue.rulings import Ruling

        if not isinstance(judged.verdict, Ruling):
            return
        places = {(entry.partition, n) for start, end in judged.verdict.covered for n in range(start, end)}
        match judged.record:
            case Taken(worker=worker):
                self.worker_of[entry.partition, entry.offset] = worker
                for place in places:
                    if self.holder.get(place, worker) != worker:
                        self.left.setdefault(self.holder[place], set()).add(place)
                self.holder.update(dict.fromkeys(places, worker))
            case Acked() | Released() | Buried():
                for place in places:
                    self.holder.pop(place, None)
                if isinstance(judged.record, Acked):
                    self.acked |= places

    def left_by(self, worker: _Worker) -> set[Place]:
        """The messages that it had, said nothing of, and that others took."""
        names = {self.worker_of[begun.lease] for begun in worker.begun if begun.lease in self.worker_of}
        return set().union(*(self.left.get(name, set()) for name in names))

    @property
    def dead(self) -> int:
        from penstock.queue.look import dead_count

        return sum(dead_count(fold.machine) for fold in self.folds.values())


def queue(story: Story, settings: KafkaSettings) -> None:
    from penstock.cli.demo_worker import PARTITIONS, QUEUE
    from penstock.kafka.topics import Admin, TopicSpec

    with Admin(settings) as admin:
        admin.create([TopicSpec(name=QUEUE, partitions=PARTITIONS, config={}, reason="the demo")])
    workers = [_Worker.started(settings, f"worker-{number + 1}") for number in range(WORKERS)]
    try:
        _work_and_kill(story, settings, workers)
    finally:
        for worker in workers:
            worker.kill()


def _work_and_kill(story: Story, settings: KafkaSettings, workers: list[_Worker]) -> None:
    from penstock.cli.demo_worker import GROUP, PARTITIONS, QUEUE, demo_queue
    from penstock.queue.look import Named
    from penstock.queue.names import ledger_topic

    app, orders = demo_queue(settings.bootstrap_servers)
    named = Named(QUEUE, GROUP, ledger_topic(app.settings, topic=QUEUE, group=GROUP))
    _wait(lambda: all(worker.holds == PARTITIONS // WORKERS for worker in workers), "the workers did not share")
    with app:
        sent = orders.send_many(range(1, ORDERS + 1))
    victim = workers[KILLED - 1]
    _wait(lambda: len(victim.begun) >= sent // WORKERS // 4, f"worker-{KILLED} did not work")
    victim.kill()
    killed_at = time.monotonic()
    books = _settled(app.settings, named, sent)
    for worker in workers:  # then all that they said was heard
        worker.kill()
    # What it had lost before, because the machine was busy, was not in its hand.
    lost = {each.place for worker in workers for each in worker.begun if worker is not victim and each.at_s < killed_at}
    in_hand = books.left_by(victim) - lost
    _tell(story, _Outcome(workers, sent, killed_at, books, in_hand, _dead_letters(app.settings, named)))


def _settled(settings: Settings, named: Named, sent: int) -> _Books:
    """The books when every order is acked or dead in them, or when nobody would wait for it any longer."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        books = _Books.read(settings, named.ledger)
        if len(books.acked) + books.dead >= sent or time.monotonic() > deadline:
            return books
        time.sleep(0.5)


def _dead_letters(settings: Settings, named: Named) -> list[int]:
    """The orders in the dead-letter topic."""
    from penstock.queue.peek import DEAD, peek

    found = peek(settings, named, state=DEAD, limit=ORDERS, wall_ms=int(time.time() * 1_000))
    return sorted(int(letter.value or b"0") for letter in found.messages)


@dataclass(frozen=True, slots=True)
class _Outcome:
    """What happened, from its three sides: what the handlers said, the ledger, the dead-letter topic."""

    workers: list[_Worker]
    sent: int
    killed_at: float
    books: _Books
    in_hand: set[Place]
    dead: list[int]

    def done(self) -> Counter[int]:
        return Counter(order for worker in self.workers for order in worker.done)

    def tried(self) -> Counter[int]:
        return Counter(begun.order for worker in self.workers for begun in worker.begun)

    def redelivered(self) -> dict[Place, float]:
        """What was in hand at the kill, and how many seconds later another worker began with it."""
        begun = sorted(each for worker in self.workers for each in worker.begun if each.at_s > self.killed_at)
        return {each.place: each.at_s - self.killed_at for each in reversed(begun) if each.place in self.in_hand}


def _tell(story: Story, outcome: _Outcome) -> None:
    from penstock.cli.demo_worker import ATTEMPTS_MAX, POISON_EVERY

    sent, dead, in_hand = outcome.sent, outcome.dead, len(outcome.in_hand)
    done, tried, redelivered = outcome.done(), outcome.tried(), outcome.redelivered()
    lost = len(set(range(1, sent + 1)) - done.keys() - set(dead))
    repeated, acked = done.total() - len(done), len(outcome.books.acked)
    after_s = max(redelivered.values(), default=0.0)
    story.tell("queue", f"{sent:,} orders sent, {WORKERS} workers; worker-{KILLED} killed with {in_hand} in hand")
    story.tell("", f"{len(redelivered)} redelivered, the last after {after_s:.1f} s, to the other workers")
    story.tell("", f"acked {acked:,} · dead {len(dead)} · lost {lost} · repeated {repeated} (at least once)")
    story.figures["queue"] = {
        "sent": sent,
        "in_hand": in_hand,
        "redelivered": len(redelivered),
        "redelivered_s": round(after_s, 2),
        "acked": acked,
        "dead": len(dead),
        "lost": lost,
        "repeated": repeated,
    }
    story.check(f"worker-{KILLED} was killed with nothing in hand", in_hand > 0)
    story.check(f"of {in_hand} orders in hand {len(redelivered)} were redelivered", len(redelivered) == in_hand)
    story.check(f"{lost} orders were lost", lost == 0)
    story.check(f"of {sent} orders {acked} are acked and {len(dead)} dead", acked + len(dead) == sent)
    story.check("other orders are dead than the bad ones", dead == list(range(POISON_EVERY, sent + 1, POISON_EVERY)))
    story.check("a bad order was given up too soon", all(tried[order] >= ATTEMPTS_MAX for order in dead))


def _wait(is_so: Callable[[], bool], problem: str) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not is_so():
        if time.monotonic() > deadline:
            raise CheckFailed(problem, next_step="please report this with the output of `penstock doctor`")
        time.sleep(0.02)
