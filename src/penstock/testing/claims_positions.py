"""At most once and at least once, step by step, on the real machine: every interleaving of two members.

The position is the claim's. *At most once* commits, reads that back, then processes; *at least once* processes, then
moves the position. Members pause and crash between any two steps, also for ever.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from enum import Enum, auto
from typing import NamedTuple

from penstock.claims.records import Beat, Claimed, Heartbeat
from penstock.claims.state import Claims
from penstock.testing.claims_models import Ledger, founded
from penstock.testing.claims_worlds import SLOT
from penstock.testing.explore import Exploration, Move, explore


class Delivery(Enum):
    AT_MOST_ONCE = auto()
    AT_LEAST_ONCE = auto()


class Haste(Enum):
    """What a hasty member does."""

    PROCESSES_BEFORE_THE_READ_BACK = auto()
    PROCESSES_ON_A_REFUSED_COMMIT = auto()
    POSITION_OF_BEFORE_THE_GRANT = auto()
    COMMITS_BEFORE_PROCESSING = auto()


class Step(Enum):
    CLAIM = "claims"
    READ_GRANT = "reads its claim back"
    COMMIT = "commits the next position"
    READ_COMMIT = "reads the commit back"
    PROCESS = "processes"
    OUT = "stopped"


class Member(NamedTuple):
    client: str
    instance: str = "1"
    step: Step = Step.CLAIM
    epoch: int = -1
    is_accepted: bool = False
    """What it will read back."""
    position: int = 0
    lives_left: int = 1

    @property
    def owner(self) -> tuple[str, str]:
        return self.client, self.instance


class World(NamedTuple):
    ledger: Ledger
    members: tuple[Member, ...]
    processed: tuple[int, ...] = ()


class PositionModel:
    def __init__(
        self,
        delivery: Delivery,
        *members: Member,
        machine: type[Claims] = Claims,
        haste: Haste | None = None,
        messages: int = 2,
    ) -> None:
        self._delivery, self._haste, self._messages = delivery, haste, messages
        self._initial = World(founded(machine), members)

    def search(self) -> Exploration:
        return explore(self._initial, self._moves, self._check, key=self._key)

    def _check(self, world: World) -> str | None:
        if self._delivery is Delivery.AT_MOST_ONCE and len(set(world.processed)) < len(world.processed):
            return f"I5: processed twice: {list(world.processed)}"
        position = world.ledger.view.position or 0
        if self._delivery is Delivery.AT_LEAST_ONCE and not set(range(position)) <= set(world.processed):
            return f"I6: skipped: the position is {position}, processed are {list(world.processed)}"
        return None

    def _key(self, world: World) -> Hashable:
        present = world.ledger.view.epoch
        members = tuple(member._replace(epoch=member.epoch == present) for member in world.members)
        return world.ledger.key(), members, tuple(sorted(world.processed))

    def _moves(self, world: World) -> Iterator[Move[World]]:
        if not world.ledger.is_expired:
            yield Move("2 HB pass", world._replace(ledger=world.ledger.aged()))
        for index, member in enumerate(world.members):
            name = f"{member.client}/{member.instance}"
            if member.step is not Step.OUT:
                after, landmarks = self._stepped(world, index, member)
                yield Move(f"{name} {member.step.value}", after, None, landmarks)
            if member.lives_left and member.step is not Step.CLAIM:
                again = Member(member.client, "2", lives_left=member.lives_left - 1)
                lost = ("crash between commit and processing",) if member.step is Step.PROCESS else ()
                yield Move(f"{name} crashes and starts again", _placed(world, index, again), None, lost)

    def _stepped(self, world: World, index: int, member: Member) -> tuple[World, tuple[str, ...]]:
        ledger, processed, landmarks = world.ledger, world.processed, tuple[str, ...]()
        match member.step:
            case Step.CLAIM:
                before = ledger.view.position
                is_accepted, ledger = ledger.appended(Claimed(SLOT, *member.owner, reclaim=member.instance == "2"))
                is_hasty = self._haste is Haste.POSITION_OF_BEFORE_THE_GRANT
                member = member._replace(
                    step=Step.READ_GRANT,
                    epoch=ledger.view.epoch,
                    is_accepted=is_accepted,
                    position=member.position if is_hasty else before or 0,
                )
                landmarks = ("takeover",) if is_accepted and world.ledger.view.epoch >= 0 else ()
            case Step.READ_GRANT:
                member = member._replace(step=self._first() if member.is_accepted else Step.CLAIM)
            case Step.COMMIT:
                beat = Beat(SLOT, member.epoch, member.position + 1)
                is_late = ledger.is_expired
                is_accepted, ledger = ledger.appended(Heartbeat(*member.owner, (beat,)))
                landmarks = _about_commit(is_accepted, is_late)
                is_hasty = self._haste is Haste.PROCESSES_BEFORE_THE_READ_BACK
                member = member._replace(step=Step.PROCESS if is_hasty else Step.READ_COMMIT, is_accepted=is_accepted)
            case Step.READ_COMMIT:
                member = self._committed(member)
            case Step.PROCESS:
                processed = (*processed, member.position)
                landmarks = ("processed after the loss",) if member.owner != ledger.view.owner else ()
                member = self._processed(member)
            case Step.OUT:
                pass
        return _placed(world._replace(ledger=ledger, processed=processed), index, member), landmarks

    @property
    def _commits_first(self) -> bool:
        return self._delivery is Delivery.AT_MOST_ONCE or self._haste is Haste.COMMITS_BEFORE_PROCESSING

    def _first(self) -> Step:
        return Step.COMMIT if self._commits_first else Step.PROCESS

    def _committed(self, member: Member) -> Member:
        if not member.is_accepted and self._haste is not Haste.PROCESSES_ON_A_REFUSED_COMMIT:
            return member._replace(step=Step.OUT)
        is_already_processed = not self._commits_first or self._haste is Haste.PROCESSES_BEFORE_THE_READ_BACK
        return self._advanced(member) if is_already_processed else member._replace(step=Step.PROCESS)

    def _processed(self, member: Member) -> Member:
        if self._haste is Haste.PROCESSES_BEFORE_THE_READ_BACK:
            return member._replace(step=Step.READ_COMMIT)
        return self._advanced(member) if self._commits_first else member._replace(step=Step.COMMIT)

    def _advanced(self, member: Member) -> Member:
        position = member.position + 1
        return member._replace(position=position, step=self._first() if position < self._messages else Step.OUT)


def _about_commit(is_accepted: bool, is_late: bool) -> tuple[str, ...]:
    if not is_accepted:
        return ("commit refused after the loss",)
    return ("late commit accepted",) if is_late else ("commit",)


def _placed(world: World, index: int, member: Member) -> World:
    return world._replace(members=(*world.members[:index], member, *world.members[index + 1 :]))
