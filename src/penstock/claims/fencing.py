"""Fencing: no transaction of a former owner may commit once its successor has begun to read.

Every slot names the transactional ids that may still have something open there. Whoever is granted a slot initialises
every one of them but its own, which aborts what they had open and fences who used them:

    granted ──▶ initialise the first ──▶ read on ──▶ the next … ──▶ one heartbeat lists them ──▶ read back: gained
                     (elsewhere)          │ not ours any more
                                          └──▶ stop: they are the next owner's business, and may be in use again

An initialisation takes up to a second, so it runs elsewhere and heartbeats go on. The own id is initialised before the
claim is sent, and a fresh one is told by a heartbeat, and read back, before it is used.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from penstock.claims.records import Beat, Slot
from penstock.claims.sight import Sight
from penstock.claims.state import Claims
from penstock.claims.tenure import Tenure
from penstock.crash import crash_point
from penstock.errors import InvariantBroken, PenstockError, TransientError
from penstock.ledger.tail import Tail

UNDER_WAY_MAX = 8
ANNOUNCE_WITHIN_S = 30.0


@dataclass(slots=True)
class Initialisation:
    """One initialisation of an id, under way elsewhere."""

    is_over: bool = False
    is_done: bool = False
    failure: PenstockError | None = None


Initialise = Callable[[str], Initialisation]
"""Begins to initialise an id, now, and does not wait for it."""


def in_a_thread(fence: Callable[[str], None]) -> Initialise:
    def begin(transactional_id: str) -> Initialisation:
        initialisation = Initialisation()
        threading.Thread(
            target=_run, args=(fence, transactional_id, initialisation), name=f"fence-{transactional_id}", daemon=True
        ).start()
        return initialisation

    return begin


def _run(fence: Callable[[str], None], transactional_id: str, initialisation: Initialisation) -> None:
    try:
        fence(transactional_id)
        initialisation.is_done = True
    except PenstockError as failure:
        initialisation.failure = failure
    finally:
        initialisation.is_over = True


class Sweeping:
    """Initialises what slots without an owner still name, for whoever asks again and again whether it is done.

    Each slot has initialisations of its own: one that began before an asker looked is worth nothing to it.
    """

    def __init__(self, initialise: Initialise) -> None:
        self._initialise = initialise
        self._under_way: dict[tuple[Slot, str], Initialisation] = {}

    def is_fenced(self, slot: Slot, transactional_id: str) -> bool:
        """The first question begins it; the one that is answered with yes ends it.

        Raises what will not go away by itself.
        """
        asked = slot, transactional_id
        initialisation = self._under_way.get(asked)
        if initialisation is None:
            self._under_way[asked] = self._initialise(transactional_id)
            return False
        # Not `is_done`: its thread may be between the two, and a yes must leave nothing behind.
        if not initialisation.is_over:
            return False
        del self._under_way[asked]
        check(initialisation)
        return initialisation.is_done


def check(initialisation: Initialisation) -> None:
    """Raises why it failed, unless it may work later."""
    if initialisation.failure is not None and not isinstance(initialisation.failure, TransientError):
        raise initialisation.failure


@dataclass(slots=True)
class _Grant:
    """How far a tenure is with the producers that its slot names."""

    tenure: Tenure
    own: str
    """The id of ours that the log has."""
    feared: list[str]
    """Others' ids that were not initialised since the grant."""
    fenced: set[str] = field(default_factory=set)
    """Initialised since, or our own and settled: a heartbeat is to list them."""
    reads_on: bool = False

    @property
    def is_listing(self) -> bool:
        """Whether all is fenced. Until then heartbeats list nothing."""
        return not self.feared and not self.reads_on


class Fencing:
    """The transactional side of one member. Its holder tells ids and what is open; the member does the rest."""

    def __init__(self, initialise: Initialise, *, within_s: float = ANNOUNCE_WITHIN_S) -> None:
        self._initialise, self._within_s = initialise, within_s
        self._changed = threading.Condition()
        self._id: str | None = None
        self._retired: set[str] = set()
        self._open: frozenset[Slot] = frozenset()
        self._doubtful: frozenset[Slot] = frozenset()
        self._grants: dict[Slot, _Grant] = {}
        self._under_way: dict[str, tuple[Initialisation, list[_Grant]]] = {}

    # What the holder says, from its own thread

    @property
    def id(self) -> str:
        """The present transactional id; it was initialised before it came here."""
        if self._id is None:
            raise InvariantBroken("a transactional member asks for slots before its id was initialised")
        return self._id

    def announce(self, transactional_id: str) -> None:
        """A fresh id, initialised, its predecessors settled: return when the log names it at every slot that is ours.

        Raises TransientError if that takes too long.
        """
        deadline = time.monotonic() + self._within_s
        with self._changed:
            self.renew(transactional_id)
            while not self.is_announced:
                if not self._changed.wait(deadline - time.monotonic()):
                    raise TransientError(
                        f"the coordination ledger did not take the id {transactional_id} in {self._within_s:g} s",
                        next_step="settle and renew again when the broker answers",
                    )

    def renew(self, transactional_id: str) -> None:
        """The same without waiting: the id may be used when it is announced."""
        if self._id is not None:
            self._retired.add(self._id)
        self._id, self._doubtful = transactional_id, frozenset()

    @property
    def is_announced(self) -> bool:
        return all(grant.own == self._id for grant in self._grants.values())

    def begun(self, slots: Iterable[Slot]) -> None:
        """A transaction with work of these slots is open; none of them is given back before it has ended.

        Look whether the claims are still good *after* this.
        """
        self._open = frozenset(slots)

    def ended(self, *, is_known: bool) -> None:
        """It is over. If nobody knows how, whoever comes next must initialise our id before it reads."""
        if not is_known:
            self._doubtful |= self._open
        self._open = frozenset()

    # What the member asks, from its own thread

    def granted(self, tenure: Tenure, producers: Iterable[str], *, own: str | None) -> None:
        """A claim that named the id `own` was granted, and found these in the slot."""
        others = set(producers) - {own, self.id}
        retired = others & self._retired
        with self._changed:
            self._grants[tenure.slot] = _Grant(tenure, own or "", sorted(others - retired), retired)

    def is_ready(self, tenure: Tenure) -> bool:
        """Whether the position may be read: nothing that a former owner had open can commit any more."""
        grant = self._grants.get(tenure.slot)
        return grant is not None and grant.is_listing and not grant.fenced and grant.own == self._id

    def beat(self, tenure: Tenure, beat: Beat) -> Beat:
        """The heartbeat of a slot, with what is to be told of producers."""
        grant = self._grants.get(tenure.slot)
        if grant is None:
            return beat
        is_new = grant.own != self.id
        fenced = grant.fenced | {own for own in (grant.own,) if is_new and own in self._retired}
        return beat._replace(
            producer=self.id if is_new else None, fenced=tuple(sorted(fenced)) if grant.is_listing else ()
        )

    def has_news(self, tenure: Tenure) -> bool:
        beat = self.beat(tenure, Beat(tenure.slot, tenure.token))
        return beat.producer is not None or bool(beat.fenced)

    def told(self, beat: Beat) -> None:
        """A heartbeat was read back, and accepted."""
        grant = self._grants.get(beat.slot)
        if grant is None or grant.tenure.token != beat.epoch:
            return
        with self._changed:
            grant.fenced -= set(beat.fenced)
            grant.own = beat.producer or grant.own
            self._changed.notify_all()

    def may_leave(self, slot: Slot) -> bool:
        return slot not in self._open

    def settled(self, slot: Slot, producers: Iterable[str]) -> tuple[str, ...]:
        """Those that a release may list: our own too, if all that they did there has a known outcome."""
        grant = self._grants.get(slot)
        fenced = set() if grant is None else set(grant.fenced)
        if slot not in self._open | self._doubtful:
            fenced |= {self.id, *self._retired}
        return tuple(sorted(fenced.intersection(producers)))

    def step(self, tail: Tail[Claims], sight: Sight, held: Mapping[Slot, Tenure]) -> None:
        """Go on with every takeover. The member has just read, and let go what is not its own any more."""
        self._forget_all_but(held)
        self._end_initialisations(tail)
        for grant in self._grants.values():
            # An end that was asked for after the initialisation. Had we lost the slot, it would be gone by now.
            if grant.reads_on and sight.is_ready(grant.tenure.slot):
                grant.reads_on = False
        self._begin_initialisations()

    # Inside

    def _forget_all_but(self, held: Mapping[Slot, Tenure]) -> None:
        gone = [slot for slot, grant in self._grants.items() if held.get(slot) is not grant.tenure]
        if gone:
            with self._changed:
                for slot in gone:
                    del self._grants[slot]
                self._changed.notify_all()

    def _end_initialisations(self, tail: Tail[Claims]) -> None:
        over = {name: under_way for name, under_way in self._under_way.items() if under_way[0].is_over}
        if over:
            tail.ask_ends()
        for name, (initialisation, grants) in over.items():
            del self._under_way[name]
            check(initialisation)
            for grant in grants if initialisation.is_done else ():
                self._initialised(grant, name)

    def _initialised(self, grant: _Grant, name: str) -> None:
        grant.feared.remove(name)
        grant.fenced.add(name)
        grant.reads_on = True

    def _begin_initialisations(self) -> None:
        """One for all the slots that fear the same id; who was granted one meanwhile waits for the next."""
        waiting: dict[str, list[_Grant]] = {}
        for grant in self._grants.values():
            if grant.feared and not grant.reads_on and grant.tenure.leaving is None:
                waiting.setdefault(grant.feared[0], []).append(grant)
        for name, grants in waiting.items():
            if name not in self._under_way and len(self._under_way) < UNDER_WAY_MAX:
                crash_point("claims.fencing")
                self._under_way[name] = self._initialise(name), grants
