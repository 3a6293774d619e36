"""How a member shares slots with others: what the log shows of them, and what follows for what it takes and lets go.

Shares are counted in *units*: slots or, where topics are claimed whole, the partitions 0 of the topics. The rest of a
topic follows its partition 0.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

from penstock.claims.decide import Appetite, Share, Standing, counted, lead_of, richest, share
from penstock.claims.health import SHUN_HB, Pace, to_give_up
from penstock.claims.intervals import Owner
from penstock.claims.records import Slot
from penstock.claims.sight import Sight
from penstock.claims.slots import SlotState
from penstock.claims.tenure import Tenure


@dataclass(slots=True)
class View:
    """How things stand at one moment."""

    client: str
    held: Mapping[Slot, Tenure]
    order: list[Slot]
    """What we want, in the order in which we ask for it."""
    states: dict[Slot, SlotState]
    alive: dict[Slot, Owner]
    """The units that have a valid owner."""
    fair: Share
    units: list[Slot]
    """What we hold, counted as shares are."""
    hungry: list[str]
    room: int
    """How many units we may ask for."""
    open: set[Slot]
    """What may be asked for, our share aside."""
    left_over: set[Slot]
    """What nobody has taken for so long that shares do not matter."""
    dismissed: list[Slot]
    """What we hold and may not keep."""
    appetite: Appetite
    asked: set[Slot] = field(default_factory=set)

    def may_take(self, slot: Slot) -> bool:
        if slot not in self.open:
            return False
        if self.appetite.is_unit(slot):
            return self.room > 0 or slot in self.left_over or slot in self.asked
        # The others of a topic, in order; a lower one that is still held is waited for.
        return all(lower in self.held or lower in self.asked for lower in _lower(slot))

    def took(self, slot: Slot) -> None:
        if self.appetite.is_unit(slot) and slot not in self.asked:
            self.room -= 1
        self.asked.add(slot)

    @property
    def is_letting_go(self) -> bool:
        return any(tenure.draining or tenure.leaving is not None for tenure in self.held.values())

    def slots_of_others(self) -> dict[str, list[Slot]]:
        """What each other living member has; those who plead may have nothing."""
        found: dict[str, list[Slot]] = {client: [] for client in self.hungry}
        for slot, owner in self.alive.items():
            if owner[0] != self.client:
                found.setdefault(owner[0], []).append(slot)
        return found


class Sharing:
    """Remembers what a single look cannot show: who pleaded, what is free for how long, what keeps up."""

    def __init__(self, sight: Sight, appetite: Appetite, *, heartbeat_ms: int) -> None:
        self.has_rivals = False
        self._sight, self._appetite, self._heartbeat_ms = sight, appetite, heartbeat_ms
        self._pleaded: dict[str, int] = {}
        self._free_since_ms: dict[Slot, int] = {}
        self._shunned_until_ms: dict[Slot, int] = {}
        self._gave_back: Slot | None = None
        self._gave_back_at_ms = 0
        self._turns: tuple[tuple[frozenset[Slot], str], list[Slot]] | None = None
        self._pace = Pace()
        self._epochs: dict[Slot, int] = {}
        self._ends: Mapping[Slot, int] = {}

    def heard_plea(self, client: str, now_ms: int) -> None:
        """Somebody asks for what we want too: it is hungry, and only its refused questions show it."""
        self._pleaded[client] = now_ms

    def heard_release(self, client: str) -> None:
        """Who gives back is not hungry: one that leaves would keep its share while its pleas are remembered."""
        self._pleaded.pop(client, None)

    def look(
        self,
        wanted: frozenset[Slot],
        *,
        client: str,
        held: Mapping[Slot, Tenure],
        asked: Iterable[Slot],
        ends: Mapping[Slot, int],
        now_ms: int,
    ) -> View:
        states = {slot: self._sight.state(slot) for slot in self._in_turn(wanted, client)}
        standings = {slot: self._sight.standing(slot, state) for slot, state in states.items()}
        self._remember(states, standings, ends, now_ms)
        # Those who have expired are not counted: the dead would keep their share for ever.
        alive = {
            slot: state.owner
            for slot, state in states.items()
            if state.owner is not None and standings[slot].is_alive and self._appetite.is_unit(slot)
        }
        hungry = self._hungry(now_ms)
        clients = {owner[0] for owner in alive.values()} | set(hungry)
        self.has_rivals = bool(clients - {client})
        units = [slot for slot in states if self._appetite.is_unit(slot)]
        ours = [slot for slot in held if self._appetite.is_unit(slot)]
        fair = share(len(units), len(clients | {client}))
        left_over = self._free_for(self._long_ms, now_ms)
        view = View(
            client=client,
            held=held,
            order=list(states),
            states=states,
            alive=alive,
            fair=fair,
            units=ours,
            hungry=hungry,
            room=fair.most - len(ours) - sum(self._appetite.is_unit(slot) for slot in asked),
            open={slot for slot in states if self._is_open(slot, held, now_ms)},
            left_over=left_over,
            dismissed=[slot for slot in held if self._has_no_lead(slot, held)],
            appetite=self._appetite,
            asked=set(asked),
        )
        self._watch(view, standings)
        return view

    def _in_turn(self, wanted: frozenset[Slot], client: str) -> list[Slot]:
        if self._turns is None or self._turns[0] != (wanted, client):
            self._turns = (wanted, client), self._appetite.first_come(wanted, client)
        return self._turns[1]

    @property
    def _long_ms(self) -> int:
        return 2 * self._heartbeat_ms

    def _remember(
        self,
        states: Mapping[Slot, SlotState],
        standings: Mapping[Slot, Standing],
        ends: Mapping[Slot, int],
        now_ms: int,
    ) -> None:
        free = {slot for slot, standing in standings.items() if not standing.is_alive}
        self._free_since_ms = {slot: self._free_since_ms.get(slot, now_ms) for slot in free}
        for slot, state in states.items():
            if self._epochs.get(slot) != state.epoch:
                self._epochs[slot] = state.epoch
                self._pace.forget(slot)
        if ends is not self._ends:
            self._ends = ends
            self._pace.observe({slot: state.position for slot, state in states.items()}, ends)

    def _hungry(self, now_ms: int) -> list[str]:
        return [client for client, at_ms in self._pleaded.items() if at_ms > now_ms - self._long_ms]

    def _free_for(self, span_ms: int, now_ms: int) -> set[Slot]:
        """What nobody has taken for so long."""
        return {slot for slot, since_ms in self._free_since_ms.items() if now_ms - since_ms >= span_ms}

    def _is_open(self, slot: Slot, held: Mapping[Slot, Tenure], now_ms: int) -> bool:
        if not self._appetite.is_unit(slot):
            lead = held.get(lead_of(slot))
            return lead is not None and not lead.draining and lead.leaving is None
        # What we gave up is left over for others first: else whoever looks sooner has it, and that may always be us.
        return now_ms >= self._shunned_until_ms.get(slot, 0) or slot in self._free_for(2 * self._long_ms, now_ms)

    def _has_no_lead(self, slot: Slot, held: Mapping[Slot, Tenure]) -> bool:
        return not self._appetite.is_unit(slot) and lead_of(slot) not in held

    def _watch(self, view: View, standings: Mapping[Slot, Standing]) -> None:
        """Where something may soon be ours we must have been at the end for a while."""
        for slot in view.open:
            is_near = standings[slot] in (Standing.SILENT, Standing.EXPIRED)
            if is_near and slot not in view.held and not self._sight.is_paused(slot, view.client):
                self._sight.of(slot).is_watched = True

    # Letting go

    def next_gone(self, view: View, now_ms: int) -> list[Slot] | None:
        """What to give back now, a unit at a time: what is beyond our share, or what we are too slow for."""
        if view.is_letting_go or self._is_too_soon(view, now_ms):
            return None
        unit = self._beyond_share(view) or self._too_slow(view, now_ms)
        if unit is None:
            return None
        self._gave_back, self._gave_back_at_ms = unit, now_ms
        if not self._appetite.whole_topics:
            return [unit]
        return [slot for slot in view.held if lead_of(slot) == unit]

    def _is_too_soon(self, view: View, now_ms: int) -> bool:
        """What we gave back last is still there to be taken: whoever is hungry may have asked for that already."""
        return (
            self._gave_back is not None
            and self._gave_back not in view.alive
            and now_ms - self._gave_back_at_ms < self._heartbeat_ms // 3
        )

    def _beyond_share(self, view: View) -> Slot | None:
        have = counted(view.alive.values())
        counts = {owner[0]: count for owner, count in have.items()}
        somebody_starves = any(counts.get(client, 0) < view.fair.least for client in view.hungry)
        if len(view.units) <= (view.fair.least if somebody_starves else view.fair.most):
            return None
        return self._appetite.first_gone(view.units, {slot: view.held[slot].since_ms for slot in view.units})

    def _too_slow(self, view: View, now_ms: int) -> Slot | None:
        if not self._appetite.give_up_lag or self._appetite.whole_topics:
            return None
        others = view.slots_of_others().values()
        slot = to_give_up(self._pace, ours=view.units, others=others, lag_min=self._appetite.give_up_lag)
        if slot is not None:
            self._shunned_until_ms[slot] = now_ms + SHUN_HB * self._heartbeat_ms
        return slot

    def may_go(self, slot: Slot, held: Collection[Slot]) -> bool:
        """The partition 0 of a whole topic goes last: who takes it finds the others free."""
        if not self._appetite.whole_topics or slot.partition:
            return True
        return not any(other != slot and lead_of(other) == slot for other in held)

    # Pleading

    def next_plea(self, view: View) -> Slot | None:
        """The slot to ask for in vain, if we have less than our share: one of who has most."""
        if len(view.units) >= view.fair.least:
            return None
        theirs = {slot: owner for slot, owner in view.alive.items() if owner[0] != view.client}
        whom = richest(counted(theirs.values()), but=(view.client, ""))
        slots = (slot for slot, owner in theirs.items() if owner == whom)
        return next((slot for slot in slots if not self._sight.is_paused(slot, view.client)), None)


def _lower(slot: Slot) -> Iterable[Slot]:
    return (slot._replace(partition=number) for number in range(slot.partition or 0))
