"""What members do around a claim, step by step, on the real machine: every interleaving, with pauses and crashes.

Nothing here waits for time: between any two steps of a member any number of steps of others may pass, its lease may run
out, or it may never move again. So whatever holds here holds for every pause and every crash.

Here: exactly once. Members take over from each other, effects and offsets commit in transactions. A *shortcut* is
something that a hasty member would do; the search finds what it breaks. (At most once and at least once, where the
position is the claim's, are in `claims_positions.py`.)
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from dataclasses import dataclass
from enum import Enum, auto
from typing import NamedTuple

from penstock.claims.records import Beat, Claimed, ClaimsFounded, Heartbeat, ProducersFenced
from penstock.claims.state import Claims
from penstock.ledger.codec import Record
from penstock.testing.claims_view import View, view_of
from penstock.testing.claims_worlds import SLOT, twin_of
from penstock.testing.explore import Exploration, Move, explore

HEARTBEAT_MS = 1
LEASE_MS = 2 * HEARTBEAT_MS


class Ledger(NamedTuple):
    """The coordination partition, as whoever read all of it knows it."""

    machine: Claims
    offset: int
    clock_ms: int
    view: View

    @property
    def is_expired(self) -> bool:
        return self.view.owner is None or self.clock_ms - self.view.renewed_ms >= LEASE_MS

    def appended(self, record: Record) -> tuple[bool, Ledger]:
        """Whether it was accepted, which its sender learns when it reads it back, and the ledger with it."""
        twin = twin_of(self.machine)
        verdict = twin.apply(record, self.offset, self.clock_ms)
        return verdict.is_accepted, Ledger(twin, self.offset + 1, self.clock_ms, view_of(twin, SLOT))

    def aged(self) -> Ledger:
        return self._replace(offset=self.offset + 1, clock_ms=self.clock_ms + LEASE_MS)

    def is_owned_by(self, owner: tuple[str, str], epoch: int) -> bool:
        return (self.view.owner, self.view.epoch) == (owner, epoch)

    def key(self) -> Hashable:
        view = self.view
        return view.owner, self.is_expired, view.position, view.producers, view.epoch >= 0


def founded(machine: type[Claims]) -> Ledger:
    first = machine()
    first.apply(ClaimsFounded(partitions=1, heartbeat_ms=HEARTBEAT_MS, window=1, delivery_limit=1), 0, 0)
    return Ledger(first, 1, 0, view_of(first, SLOT))


# Exactly once


class Shortcut(Enum):
    """What a hasty member does."""

    ANNOUNCES_BEFORE_INITIALISING = auto()
    FENCES_ONLY_THE_LAST = auto()
    FENCES_NOBODY = auto()
    DOES_NOT_READ_ON = auto()
    SWEEPS_WITHOUT_THE_EPOCH = auto()
    SWEEPS_WITH_THE_EPOCH_OF_AFTERWARDS = auto()
    TAKES_OFFSETS_BEFORE_FENCING = auto()


class Step(Enum):
    INITIALISE = "initialises its id"
    CLAIM = "claims"
    READ_GRANT = "reads its claim back"
    FENCE = "initialises another's id"
    READ_ON = "reads on"
    TELL = "lists what it fenced"
    READ_TOLD = "reads that back"
    TAKE = "takes the committed offset"
    COMMIT = "commits a transaction"
    LOOK = "looks at a slot that nobody owns"
    SWEEP = "initialises one of its ids"
    SWEPT = "tells that they are fenced"
    OUT = "stopped"


@dataclass(frozen=True, slots=True)
class TransactionalMember:
    client: str
    instance: str
    step: Step = Step.INITIALISE
    is_live: bool = False
    """Whether its producer is the newest under its id: the broker lets only that one commit."""
    epoch: int = -1
    is_accepted: bool = False
    """What it will read back."""
    seen: frozenset[str] = frozenset()
    """Producers as of its grant."""
    to_fence: tuple[str, ...] = ()
    fenced: tuple[str, ...] = ()
    next_offset: int = 0
    beats_left: int = 1
    lives_left: int = 0
    stray_fences: int = 0
    """Ids that it initialised when the slot was no longer its own."""

    @property
    def owner(self) -> tuple[str, str]:
        return self.client, self.instance

    @property
    def id(self) -> str:
        return f"p{self.client}"


class TransactionalWorld(NamedTuple):
    ledger: Ledger
    members: tuple[TransactionalMember, ...]
    committed: int = 0
    effects: tuple[int, ...] = ()
    """Offsets whose effects were committed, in that order."""


class TransactionalModel:
    """Members that read, process and commit in transactions; each effect must be there once, none may be left out."""

    def __init__(
        self,
        *members: TransactionalMember,
        machine: type[Claims] = Claims,
        shortcut: Shortcut | None = None,
        messages: int = 2,
    ) -> None:
        self._shortcut, self._messages = shortcut, messages
        self._first_step = Step.CLAIM if shortcut is Shortcut.ANNOUNCES_BEFORE_INITIALISING else Step.INITIALISE
        started = tuple(
            _with(member, step=self._first_step) if member.step is Step.INITIALISE else member for member in members
        )
        self._initial = TransactionalWorld(founded(machine), started)

    def search(self, *, states_max: int = 1_000_000) -> Exploration:
        return explore(self._initial, self._moves, self._check, key=self._key, states_max=states_max)

    def _check(self, world: TransactionalWorld) -> str | None:
        if sorted(world.effects) != list(range(len(world.effects))):
            return f"not exactly once: the effects of {list(world.effects)} were committed"
        for member in world.members:
            if member.stray_fences > 1:
                return f"{member.client}/{member.instance} goes on fencing others after it lost the slot"
        return None

    def _key(self, world: TransactionalWorld) -> Hashable:
        present = world.ledger.view.epoch
        members = tuple(
            (
                member.client,
                member.instance,
                member.step,
                member.is_live,
                member.epoch == present,
                member.is_accepted,
                member.seen,
                member.to_fence,
                member.fenced,
                member.next_offset,
                member.beats_left,
                member.lives_left,
                member.stray_fences,
            )
            for member in world.members
        )
        return world.ledger.key(), members, world.committed, world.effects

    def _moves(self, world: TransactionalWorld) -> Iterator[Move[TransactionalWorld]]:
        if not world.ledger.is_expired:
            yield Move("2 HB pass", world._replace(ledger=world.ledger.aged()))
        for index, member in enumerate(world.members):
            name = f"{member.client}/{member.instance}"
            if member.step is not Step.OUT:
                after, landmarks = self._stepped(world, index, member)
                yield Move(f"{name} {member.step.value}", after, None, landmarks)
            if member.step in (Step.FENCE, Step.READ_ON, Step.TELL) and member.beats_left:
                yield Move(f"{name} heartbeats", self._beaten(world, index, member))
            if member.lives_left and member.step is not self._first_step:
                again = _with(
                    member,
                    step=self._first_step,
                    is_live=False,
                    epoch=-1,
                    instance="2",
                    beats_left=0,
                    lives_left=member.lives_left - 1,
                )
                yield Move(f"{name} crashes and starts again", _placed(world, index, again))

    def _beaten(self, world: TransactionalWorld, index: int, member: TransactionalMember) -> TransactionalWorld:
        beat = Heartbeat(*member.owner, (Beat(SLOT, member.epoch, None, member.id),))
        _, ledger = world.ledger.appended(beat)
        return _placed(world._replace(ledger=ledger), index, _with(member, beats_left=member.beats_left - 1))

    def _stepped(
        self, world: TransactionalWorld, index: int, member: TransactionalMember
    ) -> tuple[TransactionalWorld, tuple[str, ...]]:
        ledger, landmarks = world.ledger, tuple[str, ...]()
        match member.step:
            case Step.INITIALISE:
                world = _initialised(world, member.id)
                next_step = self._next(member) if member.epoch >= 0 else Step.CLAIM
                member = _with(member, is_live=True, step=next_step)
            case Step.CLAIM:
                is_accepted, ledger = ledger.appended(
                    Claimed(SLOT, *member.owner, reclaim=member.instance == "2", producer=member.id)
                )
                if is_accepted and len(world.ledger.view.producers - {member.id}) > 1:
                    landmarks = ("granted with two others to fence",)
                member = _with(
                    member,
                    step=Step.READ_GRANT,
                    is_accepted=is_accepted,
                    epoch=ledger.view.epoch,
                    seen=ledger.view.producers,
                    fenced=(),
                    stray_fences=0,
                )
            case Step.READ_GRANT:
                member = self._granted(member) if member.is_accepted else _with(member, step=Step.CLAIM, epoch=-1)
            case Step.FENCE:
                first, *rest = member.to_fence
                is_stray = not ledger.is_owned_by(member.owner, member.epoch)
                world = _initialised(world, first)
                member = _with(
                    world.members[index],
                    to_fence=tuple(rest),
                    fenced=(*member.fenced, first),
                    step=Step.READ_ON,
                    stray_fences=member.stray_fences + is_stray,
                )
            case Step.READ_ON:
                is_owner = ledger.is_owned_by(member.owner, member.epoch)
                if not is_owner:
                    landmarks = ("lost while fencing",)
                goes_on = is_owner or self._shortcut is Shortcut.DOES_NOT_READ_ON
                next_step = Step.FENCE if member.to_fence else Step.TELL
                member = _with(member, step=next_step if goes_on else Step.OUT)
            case Step.TELL:
                beat = Beat(SLOT, member.epoch, None, member.id, member.fenced)
                is_accepted, ledger = ledger.appended(Heartbeat(*member.owner, (beat,)))
                member = _with(member, step=Step.READ_TOLD, is_accepted=is_accepted)
            case Step.READ_TOLD:
                member = _with(member, step=self._ready() if member.is_accepted else Step.OUT)
            case Step.TAKE:
                step = Step.COMMIT
                if self._shortcut is Shortcut.TAKES_OFFSETS_BEFORE_FENCING and member.to_fence:
                    step = Step.FENCE
                member = _with(member, step=step, next_offset=world.committed)
            case Step.COMMIT:
                world, member, landmarks = self._committed(world, member)
            case Step.LOOK | Step.SWEEP | Step.SWEPT:
                return self._swept(world, index, member)
            case Step.OUT:
                pass
        return _placed(world._replace(ledger=ledger), index, member), landmarks

    def _ready(self) -> Step:
        return Step.COMMIT if self._shortcut is Shortcut.TAKES_OFFSETS_BEFORE_FENCING else Step.TAKE

    def _granted(self, member: TransactionalMember) -> TransactionalMember:
        others = tuple(sorted(member.seen - {member.id}))
        if self._shortcut is Shortcut.FENCES_ONLY_THE_LAST:
            others = others[-1:]
        if self._shortcut is Shortcut.FENCES_NOBODY:
            others = ()
        member = _with(member, to_fence=others)
        if self._shortcut is Shortcut.ANNOUNCES_BEFORE_INITIALISING:
            return _with(member, step=Step.INITIALISE)
        return _with(member, step=self._next(member))

    def _next(self, member: TransactionalMember) -> Step:
        """After the grant: the others' producers first, then the offset."""
        is_hasty = self._shortcut is Shortcut.TAKES_OFFSETS_BEFORE_FENCING
        return Step.FENCE if member.to_fence and not is_hasty else Step.TAKE

    def _committed(
        self, world: TransactionalWorld, member: TransactionalMember
    ) -> tuple[TransactionalWorld, TransactionalMember, tuple[str, ...]]:
        """The broker's part: only the newest producer under an id commits, effects and offset together."""
        if member.next_offset >= self._messages:
            return world, _with(member, step=Step.OUT), ()
        if not member.is_live:
            return world, _with(member, step=Step.OUT), ("commit refused to a fenced producer",)
        is_stale = not world.ledger.is_owned_by(member.owner, member.epoch)
        world = world._replace(committed=member.next_offset + 1, effects=(*world.effects, member.next_offset))
        landmarks = ("commit after the loss, before the fence",) if is_stale else ("commit",)
        return world, _with(member, next_offset=member.next_offset + 1), landmarks

    def _swept(
        self, world: TransactionalWorld, index: int, member: TransactionalMember
    ) -> tuple[TransactionalWorld, tuple[str, ...]]:
        """Fence what an ownerless slot still names, so that its ranges can be claimed.

        It never looks again: the epoch that it read first, and tells last, has the machine refuse what came too late.
        """
        ledger, name = world.ledger, self._epoch_name(world.ledger, member)
        match member.step:
            case Step.LOOK if ledger.is_expired and ledger.view.producers:
                ids = tuple(sorted(ledger.view.producers))
                member = _with(member, step=Step.SWEEP, to_fence=ids, epoch=ledger.view.epoch)
            case Step.SWEEP:
                first, *rest = member.to_fence
                world = _initialised(world, first)
                step = Step.SWEEP if rest else Step.SWEPT
                member = _with(world.members[index], step=step, to_fence=tuple(rest), fenced=(*member.fenced, first))
            case Step.SWEPT:
                landmarks = ("swept too late",) if ledger.view.epoch != member.epoch else ("swept",)
                _, ledger = ledger.appended(ProducersFenced(SLOT, *member.owner, member.fenced, name))
                member = _with(member, step=Step.OUT)
                return _placed(world._replace(ledger=ledger), index, member), landmarks
        return _placed(world, index, member), ()

    def _epoch_name(self, ledger: Ledger, member: TransactionalMember) -> int | None:
        if self._shortcut is Shortcut.SWEEPS_WITHOUT_THE_EPOCH:
            return None
        is_hasty = self._shortcut is Shortcut.SWEEPS_WITH_THE_EPOCH_OF_AFTERWARDS
        return ledger.view.epoch if is_hasty else member.epoch


def _initialised(world: TransactionalWorld, name: str) -> TransactionalWorld:
    """Whoever initialises an id fences every producer that has it, and aborts what that one had open."""
    members = tuple(_with(member, is_live=False) if member.id == name else member for member in world.members)
    return world._replace(members=members)


def _placed(world: TransactionalWorld, index: int, member: TransactionalMember) -> TransactionalWorld:
    return world._replace(members=(*world.members[:index], member, *world.members[index + 1 :]))


def _with(member: TransactionalMember, **changes: object) -> TransactionalMember:
    values = {name: getattr(member, name) for name in TransactionalMember.__slots__}
    return TransactionalMember(**{**values, **changes})
