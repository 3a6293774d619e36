"""A member: claims slots through the coordination ledger, keeps them by heartbeats, gives them back.

It acts only on what it has read back. Locally it believes in a slot for one HB after it sent the last heartbeat that
was read back; nobody else can win the slot before two. One thread drives it by `step`; the simulator does the same.

    wanted ── Claimed ──▶ read back: granted ──▶ held ── Heartbeat every HB/3 ──▶ held …
      ▲                        │ refused           │
      └── ask again after ◀────┘                   ├── ClaimReleased ──▶ given back
          the log time that remains                └── another epoch in the log ──▶ lost
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from penstock.claims.decide import Standing, counted, richest, share, standing
from penstock.claims.placement import genesis, mend_for, partition_of
from penstock.claims.records import Beat, Claimed, ClaimReleased, ClaimsFounded, Heartbeat, Slot
from penstock.claims.state import Claims, SlotState
from penstock.crash import crash_point
from penstock.ledger.clock import LocalLease
from penstock.ledger.log import Entry
from penstock.ledger.machine import Fold, Judged
from penstock.ledger.tail import ReadBack, Tail, Ticket, monotonic_ms
from penstock.settings import ClaimsSettings


@dataclass(slots=True)
class Tenure:
    """A slot that is ours, as far as we know."""

    slot: Slot
    token: int
    """The epoch of the grant: hand it on to what must not be touched by a former owner."""
    lease: LocalLease
    position: int | None
    """The next offset to read. The holder moves it; heartbeats tell it."""
    told: int | None
    """The position that the log is known to have."""
    draining: bool = False
    """To be given back as soon as the work in hand is done: hand out nothing more."""
    leaving: ClaimReleased | None = None


@dataclass(slots=True)
class Listener:
    """What the holder of slots is told and asked, from the member's own thread."""

    gained: Callable[[Tenure], None] = lambda tenure: None
    is_drained: Callable[[Tenure], bool] = lambda tenure: True
    lost: Callable[[Tenure, str], None] = lambda tenure, reason: None
    released: Callable[[Tenure], None] = lambda tenure: None


@dataclass(slots=True)
class _Partition:
    """What the member remembers of one coordination partition."""

    heartbeat: Ticket | None = None
    heartbeat_at_ms: int = 0
    clock_ms: int = 0
    clock_read_at_ms: int = 0
    founding: Ticket | None = None


class Member:
    """Holds its fair share of the slots that it wants."""

    def __init__(
        self,
        tail: Tail[Claims],
        *,
        founded: ClaimsFounded,
        client: str,
        place: Callable[[Slot, int], int],
        monotonic_ms: Callable[[], int],
        listener: Listener | None = None,
        reclaim: bool = False,
    ) -> None:
        """`place` tells the coordination partition of a slot; `reclaim` takes over from an older self, at the start."""
        self.tail, self.client, self.instance = tail, client, tail.instance
        self.held: dict[Slot, Tenure] = {}
        self._founded, self._place, self._now_ms = founded, place, monotonic_ms
        self._listener = listener or Listener()
        self._wanted: set[Slot] = set()
        self._reclaims: set[Slot] | None = set() if reclaim else None
        self._questions: dict[Slot, Ticket] = {}
        self._releases: dict[Slot, Ticket] = {}
        self._ask_at_ms: dict[Slot, int] = {}
        self._hungry: dict[str, int] = {}
        self._gave_back_at_ms = -founded.heartbeat_ms
        self._partitions: dict[int, _Partition] = {}
        tail.witness = self._saw

    @property
    def holds(self) -> int:
        return len(self.held)

    # What the holder says

    def want(self, slots: Iterable[Slot]) -> None:
        """From now on hold a fair share of exactly these; what is no longer wanted is given back."""
        self._wanted = set(slots)
        new = {self._place(slot, self._founded.partitions) for slot in self._wanted} - set(self._partitions)
        if new:
            self._partitions |= {partition: _Partition() for partition in sorted(new)}
            self.tail.follow(sorted(new))
        for slot in list(self.held):
            if slot not in self._wanted:
                self.release(slot)

    def release(self, slot: Slot, *, position: int | None = None, reset: bool = False) -> None:
        """Give a slot back with its position; `reset` is the only way to move that backwards."""
        tenure = self.held[slot]
        if position is None:
            position = tenure.position
        tenure.leaving = ClaimReleased(slot, self.client, self.instance, tenure.token, position, reset)

    def beat_now(self, slot: Slot) -> None:
        """Tell the position with the next step instead of within HB / 3."""
        self._partitions[self._place(slot, self._founded.partitions)].heartbeat_at_ms = 0

    def is_good(self, tenure: Tenure) -> bool:
        """Whether work on the slot may be handed out now: nobody else can own it."""
        return self.held.get(tenure.slot) is tenure and tenure.leaving is None and tenure.lease.is_good(self._now_ms())

    # Driving

    def step(self, timeout_ms: int) -> None:
        """Read what is new, then ask, renew and give back what is due."""
        for read_back in self.tail.step(timeout_ms):
            self._on_read_back(read_back)
        self._notice_losses()
        for number, partition in self._partitions.items():
            fold = self.tail.checked_fold(number)
            self._watch_clock(partition, fold)
            if not self.tail.is_caught_up(number):
                continue
            if fold.genesis is None:
                self._found(number, partition)
                continue
            self.tail.check_genesis(number, self._founded, mend=mend_for(fold.genesis))
            self._give_back(number, partition)
            self._heartbeat(number, partition)
        self._balance()
        self._release_drained()
        if self.held:
            self.tail.keep_snapshots()

    def _watch_clock(self, partition: _Partition, fold: Fold[Claims]) -> None:
        if fold.clock_ms != partition.clock_ms:
            partition.clock_ms, partition.clock_read_at_ms = fold.clock_ms, self._now_ms()

    def _log_ms(self, slot: Slot) -> int:
        """What the log clock should say by now, reckoned on our own clock since it last moved."""
        partition = self._partitions[self._place(slot, self._founded.partitions)]
        return partition.clock_ms + self._now_ms() - partition.clock_read_at_ms

    def _found(self, number: int, partition: _Partition) -> None:
        partition.founding = self._asked(number, partition.founding, self._founded)

    # Asking

    def _balance(self) -> None:
        """Take what is free up to our share; give one back if we have more and somebody has less."""
        states = {slot: self._state(slot) for slot in sorted(self._wanted, key=str)}
        # Those who have expired are not counted: the dead would keep their share for ever.
        owners = counted(state.owner for slot, state in states.items() if self._standing(slot, state).is_alive)
        clients = {owner[0]: count for owner, count in owners.items()}
        hungry = self._hungry_lately()
        fair = share(len(states), len({*clients, *hungry, self.client}))
        room = fair.most - len(self.held) - len(self._questions)
        for slot, state in states.items():
            if slot in self.held or not self._is_ready(slot):
                continue
            if self._is_stray(slot, state):
                self._release_stray(slot, state)
            elif room > 0 and self._may_claim(slot, state):
                self._claim(slot, state)
                room -= 1
        somebody_starves = any(clients.get(client, 0) < fair.least for client in hungry)
        if len(self.held) > (fair.least if somebody_starves else fair.most):
            self._give_one_back()
        elif len(self.held) < fair.least and not self._questions:
            self._show_hunger(states, owners)

    def _is_ready(self, slot: Slot) -> bool:
        number = self._place(slot, self._founded.partitions)
        return self.tail.is_caught_up(number) and self.tail.fold(number).genesis is not None

    def _state(self, slot: Slot) -> SlotState:
        return self.tail.fold(self._place(slot, self._founded.partitions)).machine.slot(slot)

    def _may_claim(self, slot: Slot, state: SlotState) -> bool:
        if slot in self._questions:
            return self._is_overdue(self._questions[slot])
        if self._now_ms() < self._ask_at_ms.get(slot, 0):
            return False
        if self._is_older_self(slot, state):
            return True
        match self._standing(slot, state):
            case Standing.FREE:
                return True
            case Standing.EXPIRED:
                # After an outage of the coordination leader every claim looks expired at once.
                number = self._place(slot, self._founded.partitions)
                return self.tail.calm_ms(number) >= self._founded.heartbeat_ms
            case _:
                return False

    def _standing(self, slot: Slot, state: SlotState) -> Standing:
        machine = self.tail.fold(self._place(slot, self._founded.partitions)).machine
        return standing(machine, state, self._log_ms(slot))

    def _is_older_self(self, slot: Slot, state: SlotState) -> bool:
        return (
            self._reclaims is not None
            and slot not in self._reclaims
            and state.owner is not None
            and state.owner[0] == self.client
            and state.owner[1] != self.instance
        )

    def _claim(self, slot: Slot, state: SlotState) -> None:
        reclaim = self._is_older_self(slot, state)
        if self._reclaims is not None:
            self._reclaims.add(slot)
        number = self._place(slot, self._founded.partitions)
        if slot in self._questions:
            self.tail.forget(self._questions[slot])
        question = Claimed(slot, self.client, self.instance, expects=state.epoch, reclaim=reclaim)
        self._questions[slot] = self.tail.append(number, question)
        crash_point("claims.asked")

    def _is_stray(self, slot: Slot, state: SlotState) -> bool:
        """Ours in the log, though we do not believe in it: a grant that nobody waits for any more."""
        return state.owner == (self.client, self.instance) and slot not in self._questions

    def _release_stray(self, slot: Slot, state: SlotState) -> None:
        ticket = self._releases.get(slot)
        if ticket is None or self._is_overdue(ticket):
            self._send_release(ClaimReleased(slot, self.client, self.instance, state.epoch, state.position))

    def _is_overdue(self, ticket: Ticket) -> bool:
        """Whether to ask again: it was given up, or nothing came back for a whole HB."""
        return ticket.failure is not None or self._now_ms() - ticket.sent_ms >= self._founded.heartbeat_ms

    def _asked(self, number: int, ticket: Ticket | None, record: ClaimsFounded) -> Ticket:
        if ticket is not None and not self._is_overdue(ticket):
            return ticket
        return self.tail.append(number, record)

    # Sharing

    def _saw(self, entry: Entry, judged: Judged) -> None:
        """Somebody asks for what we want and own: it is hungry, and only its refused questions show it."""
        record = judged.record
        if isinstance(record, Claimed) and record.slot in self._wanted and record.client != self.client:
            self._hungry[record.client] = self._now_ms()

    def _hungry_lately(self) -> list[str]:
        since_ms = self._now_ms() - 2 * self._founded.heartbeat_ms
        return [client for client, at_ms in self._hungry.items() if at_ms > since_ms]

    def _give_one_back(self) -> None:
        if self._now_ms() - self._gave_back_at_ms < self._founded.heartbeat_ms // 3:
            return
        if any(tenure.draining or tenure.leaving is not None for tenure in self.held.values()):
            return
        self._gave_back_at_ms = self._now_ms()
        self.held[max(self.held, key=str)].draining = True

    def _release_drained(self) -> None:
        for slot, tenure in self.held.items():
            if tenure.draining and tenure.leaving is None and self._listener.is_drained(tenure):
                self.release(slot)

    def _show_hunger(self, states: dict[Slot, SlotState], owners: dict[tuple[str, str], int]) -> None:
        whom = richest(owners, but=(self.client, self.instance))
        slot = next((slot for slot, state in states.items() if whom is not None and state.owner == whom), None)
        if slot is not None and self._now_ms() >= self._ask_at_ms.get(slot, 0):
            self._ask_at_ms[slot] = self._now_ms() + self._founded.heartbeat_ms
            number = self._place(slot, self._founded.partitions)
            self.tail.forget(self.tail.append(number, Claimed(slot, self.client, self.instance, expects=-2)))

    # Keeping

    def _heartbeat(self, number: int, partition: _Partition) -> None:
        """One record for all our slots here. Without any it is a tick: it moves the clock, and is read back."""
        now_ms = self._now_ms()
        if partition.heartbeat is not None and not self._is_overdue(partition.heartbeat):
            return
        if now_ms < partition.heartbeat_at_ms or (not (beats := self._beats(number)) and not self._watches(number)):
            return
        partition.heartbeat_at_ms = now_ms + self._founded.heartbeat_ms // 3
        if partition.heartbeat is not None:
            self.tail.forget(partition.heartbeat)
        partition.heartbeat = self.tail.append(number, Heartbeat(self.client, self.instance, beats))
        crash_point("claims.beaten")

    def _beats(self, number: int) -> tuple[Beat, ...]:
        ours = (tenure for tenure in self.held.values() if self._place(tenure.slot, self._founded.partitions) == number)
        return tuple(Beat(tenure.slot, tenure.token, tenure.position) for tenure in ours if tenure.leaving is None)

    def _watches(self, number: int) -> bool:
        """Whether something here may soon be ours: to take it we must have been at the end for a while."""
        return any(
            self._standing(slot, self._state(slot)) in (Standing.SILENT, Standing.EXPIRED)
            for slot in self._wanted
            if slot not in self.held and self._place(slot, self._founded.partitions) == number
        )

    # Giving back

    def _give_back(self, number: int, partition: _Partition) -> None:
        for slot, tenure in list(self.held.items()):
            if tenure.leaving is None or self._place(slot, self._founded.partitions) != number:
                continue
            if _names(partition.heartbeat, slot):
                continue  # no heartbeat in flight when a release is sent
            ticket = self._releases.get(slot)
            if ticket is None or self._is_overdue(ticket):
                self._send_release(tenure.leaving)

    def _send_release(self, record: ClaimReleased) -> None:
        number = self._place(record.slot, self._founded.partitions)
        self._releases[record.slot] = self.tail.append(number, record)
        crash_point("claims.released")

    # Answers

    def _on_read_back(self, read_back: ReadBack) -> None:
        match read_back.record:
            case Claimed(slot=slot):
                self._on_answer(slot, read_back)
            case Heartbeat():
                self._on_renewed(read_back.record, read_back)
            case ClaimReleased(slot=slot):
                self._on_released(slot, read_back)
            case _:
                pass

    def _on_answer(self, slot: Slot, read_back: ReadBack) -> None:
        if read_back.ticket is None or self._questions.get(slot) is not read_back.ticket:
            return  # if it was granted, `_is_stray` gives it back
        del self._questions[slot]
        state = self._state(slot)
        if read_back.verdict.is_accepted and slot in self._wanted and state.epoch == read_back.offset:
            lease = LocalLease(lasts_ms=self._founded.heartbeat_ms)
            lease.renewed(sent_ms=read_back.ticket.sent_ms)
            tenure = Tenure(slot, read_back.offset, lease, state.position, state.position)
            self.held[slot] = tenure
            self._listener.gained(tenure)
        elif read_back.verdict.is_accepted:
            self._send_release(ClaimReleased(slot, self.client, self.instance, read_back.offset, state.position))
        else:
            remaining_ms = state.renewed_ms + 2 * self._founded.heartbeat_ms - self._log_ms(slot)
            self._ask_at_ms[slot] = self._now_ms() + min(max(1, remaining_ms), self._founded.heartbeat_ms)

    def _on_renewed(self, record: Heartbeat, read_back: ReadBack) -> None:
        ticket = read_back.ticket
        partition = self._partitions[read_back.partition]
        if ticket is None or partition.heartbeat is not ticket:
            return
        partition.heartbeat = None
        for beat, verdict in zip(record.beats, read_back.verdict.parts, strict=False):
            tenure = self.held.get(beat.slot)
            if tenure is not None and tenure.token == beat.epoch and verdict.is_accepted:
                tenure.lease.renewed(sent_ms=ticket.sent_ms)
                tenure.told = beat.position

    def _on_released(self, slot: Slot, read_back: ReadBack) -> None:
        if read_back.ticket is not None and self._releases.get(slot) is read_back.ticket:
            del self._releases[slot]
        tenure = self.held.get(slot)
        if tenure is not None and tenure.leaving == read_back.record and read_back.verdict.is_accepted:
            del self.held[slot]
            self._ask_at_ms[slot] = self._now_ms() + self._founded.heartbeat_ms
            self._listener.released(tenure)

    def _notice_losses(self) -> None:
        for slot, tenure in list(self.held.items()):
            state = self._state(slot)
            if state.owner == (self.client, self.instance) and state.epoch == tenure.token:
                continue
            del self.held[slot]
            owner = "nobody" if state.owner is None else "/".join(state.owner)
            self._listener.lost(tenure, f"epoch {state.epoch} of {slot} belongs to {owner}")


def made(settings: ClaimsSettings, *, client: str, listener: Listener) -> Callable[[Tail[Claims]], Member]:
    """How a running member is made, on real clocks."""
    return lambda tail: Member(
        tail,
        founded=genesis(settings),
        client=client,
        place=partition_of,
        monotonic_ms=monotonic_ms,
        listener=listener,
    )


def _names(heartbeat: Ticket | None, slot: Slot) -> bool:
    record = None if heartbeat is None else heartbeat.record
    return isinstance(record, Heartbeat) and any(beat.slot == slot for beat in record.beats)
