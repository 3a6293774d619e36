"""A member of its own on a log in memory: what its listener is told."""

from __future__ import annotations

from dataclasses import dataclass, field

from penstock.claims.member import Member
from penstock.claims.records import Slot
from penstock.claims.state import Claims
from penstock.claims.tenure import Listener
from penstock.ledger.memory_log import MemoryBroker
from penstock.ledger.snapshot import Snapshots
from penstock.ledger.tail import Tail
from penstock.testing.claims_cluster import FOUNDED, HB_MS, PARTITIONS, place

SLOT = Slot("g", "t", 0)


@dataclass
class World:
    now_ms: int = 1_000
    told: list[str] = field(default_factory=list)

    def member(self) -> Member:
        broker = MemoryBroker(now_ms=lambda: self.now_ms)
        broker.create("l", PARTITIONS)
        broker.create("l.snapshots", PARTITIONS)
        tail = Tail(
            broker.log("l"),
            Snapshots(broker.log("l.snapshots")),
            machine=Claims,
            instance="i1",
            monotonic_ms=lambda: self.now_ms,
            fresh_ms=HB_MS // 2,
            snapshot_every=1_000,
        )
        listener = Listener(
            lost=lambda tenure, reason: self.told.append(f"lost: {reason}"),
            released=lambda tenure: self.told.append("released"),
        )
        return Member(
            tail, founded=FOUNDED, client="a", place=place, monotonic_ms=lambda: self.now_ms, listener=listener
        )

    def run(self, member: Member, steps: int) -> None:
        for _ in range(steps):
            self.now_ms += HB_MS // 20
            member.step(0)


def test_a_slot_that_is_given_back_twice_with_a_new_position_is_not_lost() -> None:
    world = World()
    member = world.member()
    member.want([SLOT])
    world.run(member, 100)
    tenure = member.held[SLOT]

    tenure.position = 5
    member.want([])
    while not member._releases:
        world.run(member, 1)
    # The release is under way; what was finished meanwhile is in the next one.
    tenure.position = 7
    member.want([])
    world.run(member, 20)

    assert world.told == ["released"]
    assert SLOT not in member.held
