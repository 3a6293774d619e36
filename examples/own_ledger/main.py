"""A ledger of your own: seats that can be booked once, whoever asks, in whatever process.

The rules are a pure function of the log, so two processes that read the same log agree on who has which seat, without
a database or a lock.
"""

import uuid
from typing import Any, ClassVar

import penstock
from penstock.ledger import ACCEPTED, Genesis, Record, Tail, Verdict, ignored
from penstock.ledger.kafka_log import open_ledger
from penstock.ledger.tail import monotonic_ms
from penstock.ledger.topics import make_ledger
from penstock.settings import KafkaSettings


class HallOpened(Genesis, frozen=True):
    """The first fact: how many seats there are. Nobody can change it later."""

    seats: int


class SeatBooked(Record, frozen=True):
    seat: int
    guest: str


class Hall:
    """Replay: a fact changes the state, nothing else does."""

    record_types: ClassVar[tuple[type[Record], ...]] = (HallOpened, SeatBooked)
    speaks: ClassVar[int] = 1

    def __init__(self) -> None:
        self.seats = 0
        self.guests: dict[int, str] = {}

    def apply(self, record: Any, offset: int, clock_ms: int) -> Verdict:
        match record:
            case HallOpened(seats=seats):
                self.seats = seats
                return ACCEPTED
            case SeatBooked(seat=seat) if not 0 <= seat < self.seats:
                return ignored("there is no such seat")
            case SeatBooked(seat=seat) if seat in self.guests:
                return ignored(f"taken by {self.guests[seat]}")
            case SeatBooked(seat=seat, guest=guest):
                self.guests[seat] = guest
                return ACCEPTED
        return ignored("unknown")

    def reset_clock(self, clock_ms: int) -> None:
        """Nothing here depends on time."""

    def dump(self) -> Any:
        return [self.seats, sorted(self.guests.items())]

    def load(self, dumped: Any) -> None:
        self.seats = dumped[0]
        self.guests = dict(dumped[1])


def opened(settings: KafkaSettings) -> Tail[Hall]:
    log, snapshots = open_ledger(settings, "hall")
    tail = Tail(
        log,
        snapshots,
        machine=Hall,
        instance=uuid.uuid4().hex,  # new at every start: so a tail knows its own records
        monotonic_ms=monotonic_ms,
        fresh_ms=1_000,
        snapshot_every=10_000,
    )
    tail.follow([0])
    return tail


def book(tail: Tail[Hall], seat: int, guest: str) -> Verdict:
    """Append, then act on the read-back: the log decides, not the sender."""
    ticket = tail.append(0, SeatBooked(seat, guest))
    while ticket.verdict is None:
        tail.step(100)
    return ticket.verdict


with penstock.broker.Embedded() as kafka:
    settings = KafkaSettings(bootstrap_servers=kafka.bootstrap)
    make_ledger(settings, "hall", partitions=1)

    north, south = opened(settings), opened(settings)
    north.append(0, HallOpened(seats=3))
    for desk, seat, guest in ((north, 0, "ann"), (south, 0, "bob"), (south, 1, "bob"), (north, 7, "cem")):
        verdict = book(desk, seat, guest)
        print(f"seat {seat} for {guest}: {verdict.kind.value} {verdict.reason}".rstrip())

    while north.fold(0).next_offset < south.fold(0).next_offset:
        north.step(100)
    while south.fold(0).next_offset < north.fold(0).next_offset:
        south.step(100)
    print("both desks agree:", north.fold(0).hash() == south.fold(0).hash())
    north.close()
    south.close()
