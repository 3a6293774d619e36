"""The fencing token at a resource, step by step, on the real machine: every interleaving of members that pause.

A member that was granted the slot writes to a resource that remembers the highest token. However long it pauses, and
whether or not it has noticed its loss: once a newer owner's effect was accepted, no older one's is (invariant I7).
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from enum import Enum, auto
from typing import NamedTuple

from penstock.claims.records import Claimed, ClaimReleased
from penstock.claims.state import Claims
from penstock.testing.claims_models import Ledger, founded
from penstock.testing.claims_worlds import SLOT
from penstock.testing.explore import Exploration, Move, explore


class Laxity(Enum):
    """What a resource, or whoever writes to it, may get wrong."""

    CHECKS_NOTHING = auto()
    CHECKS_THEN_WRITES = auto()
    """Compares in one step and writes in another."""
    REMEMBERS_NOTHING = auto()
    """Compares, but does not keep the token that it saw."""
    TOKEN_OF_NOW = auto()
    """The writer asks for the slot's present epoch instead of passing on its own grant's."""


class Step(Enum):
    CLAIM = "claims"
    READ_GRANT = "reads its claim back"
    CHECK = "has its token compared"
    WRITE = "writes"
    RELEASE = "gives it back"
    OUT = "stopped"


class Writer(NamedTuple):
    client: str
    step: Step = Step.CLAIM
    token: int = -1
    granted_at: int = -1
    """The offset of its grant, whatever the machine says: what the order of owners really is."""
    is_accepted: bool = False
    writes_left: int = 2

    @property
    def owner(self) -> tuple[str, str]:
        return self.client, "1"


class World(NamedTuple):
    ledger: Ledger
    writers: tuple[Writer, ...]
    highest: int = -1
    """What the resource remembers."""
    accepted: tuple[int, ...] = ()
    """The grants whose effects were accepted, in that order."""


class TokenModel:
    def __init__(self, *clients: str, machine: type[Claims] = Claims, laxity: Laxity | None = None) -> None:
        self._laxity = laxity
        self._initial = World(founded(machine), tuple(Writer(client) for client in clients))

    def search(self) -> Exploration:
        return explore(self._initial, self._moves, self._check, key=self._key)

    def _check(self, world: World) -> str | None:
        if list(world.accepted) != sorted(world.accepted):
            return f"I7: an effect of a former owner was accepted: grants {list(world.accepted)}"
        return None

    def _key(self, world: World) -> Hashable:
        """Offsets only by their order."""
        writers = (number for writer in world.writers for number in (writer.token, writer.granted_at))
        numbers = sorted({world.highest, world.ledger.view.epoch, *writers, *world.accepted[-1:]})
        rank = {number: place for place, number in enumerate(numbers)}
        writers_seen = tuple(w._replace(token=rank[w.token], granted_at=rank[w.granted_at]) for w in world.writers)
        last = tuple(rank[grant] for grant in world.accepted[-1:])
        return world.ledger.key(), rank[world.ledger.view.epoch], writers_seen, rank[world.highest], last

    def _moves(self, world: World) -> Iterator[Move[World]]:
        if not world.ledger.is_expired:
            yield Move("2 HB pass", world._replace(ledger=world.ledger.aged()))
        for index, writer in enumerate(world.writers):
            if writer.step is not Step.OUT:
                after, landmarks = self._stepped(world, index, writer)
                yield Move(f"{writer.client} {writer.step.value}", after, None, landmarks)
            if writer.step is Step.CHECK:
                after = _placed(world, index, writer._replace(step=Step.RELEASE))
                yield Move(f"{writer.client} has enough", after)

    def _stepped(self, world: World, index: int, writer: Writer) -> tuple[World, tuple[str, ...]]:
        ledger, landmarks = world.ledger, tuple[str, ...]()
        match writer.step:
            case Step.CLAIM:
                is_accepted, after = ledger.appended(Claimed(SLOT, *writer.owner))
                world = world._replace(ledger=after)
                writer = writer._replace(
                    step=Step.READ_GRANT, token=after.view.epoch, granted_at=ledger.offset, is_accepted=is_accepted
                )
            case Step.READ_GRANT:
                writer = writer._replace(step=Step.CHECK if writer.is_accepted else Step.CLAIM)
            case Step.CHECK | Step.WRITE:
                return self._written(world, index, writer)
            case Step.RELEASE:
                _, after = ledger.appended(ClaimReleased(SLOT, *writer.owner, writer.token))
                world, writer = world._replace(ledger=after), writer._replace(step=Step.OUT)
                landmarks = ("released",)
            case Step.OUT:
                pass
        return _placed(world, index, writer), landmarks

    def _written(self, world: World, index: int, writer: Writer) -> tuple[World, tuple[str, ...]]:
        token = world.ledger.view.epoch if self._laxity is Laxity.TOKEN_OF_NOW else writer.token
        is_stale = not world.ledger.is_owned_by(writer.owner, writer.token)
        is_checked = writer.step is Step.WRITE or self._laxity is Laxity.CHECKS_NOTHING
        if not is_checked and token < world.highest:
            return _placed(world, index, writer._replace(step=Step.OUT)), ("a former owner's effect is refused",)
        if not is_checked and self._laxity is Laxity.CHECKS_THEN_WRITES:
            return _placed(world, index, writer._replace(step=Step.WRITE)), ()
        if self._laxity is not Laxity.REMEMBERS_NOTHING:
            world = world._replace(highest=max(world.highest, token))
        world = world._replace(accepted=(*world.accepted[-1:], writer.granted_at))
        writer = writer._replace(writes_left=writer.writes_left - 1, step=Step.CHECK)
        if not writer.writes_left:
            writer = writer._replace(step=Step.OUT)
        return _placed(world, index, writer), ("accepted after the loss",) if is_stale else ("accepted",)


def _placed(world: World, index: int, writer: Writer) -> World:
    return world._replace(writers=(*world.writers[:index], writer, *world.writers[index + 1 :]))
