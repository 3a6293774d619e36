"""A member: claims slots through the coordination ledger, keeps them by heartbeats, gives them back.

It acts only on what it has read back. Locally it believes in a slot for one HB after it sent the last heartbeat that
was read back; nobody else can win the slot before two. One thread drives it by `step`; the simulator does the same.

    wanted ── Claimed ──▶ read back: granted ──▶ held ── Heartbeat every HB/3 ──▶ held …
      ▲                        │ refused           │
      └── ask again after ◀────┘                   ├── ClaimReleased ──▶ given back
          the log time that remains                └── another epoch in the log ──▶ lost

A member that was given no name first claims one in the same way, and has it for as long as it wants anything.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from itertools import count

from penstock.claims.decide import Appetite, Standing
from penstock.claims.fencing import Fencing
from penstock.claims.holder import REST_MS, Holder
from penstock.claims.naming import name_slot, ordinal_name, this_host
from penstock.claims.placement import genesis, partition_of
from penstock.claims.records import Claimed, ClaimReleased, ClaimsFounded, Heartbeat, Slot
from penstock.claims.sharing import Sharing
from penstock.claims.slots import SlotState
from penstock.claims.state import Claims
from penstock.claims.tenure import Listener, Tenure
from penstock.crash import crash_point
from penstock.ledger.clock import LocalLease
from penstock.ledger.log import Entry
from penstock.ledger.machine import Judged
from penstock.ledger.tail import ReadBack, Tail, Ticket, monotonic_ms
from penstock.settings import ClaimsSettings

__all__ = ["Listener", "Member", "Tenure", "made"]


class Member(Holder):
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
        appetite: Appetite | None = None,
        host: str = "",
        fencing: Fencing | None = None,
    ) -> None:
        """Without `client` it names itself after `host`. `place` tells the coordination partition of a slot.

        `reclaim` takes over from an older self what that had when we came. `fencing` is for a holder with transactions.
        """
        super().__init__(
            tail,
            founded=founded,
            client=client,
            place=place,
            monotonic_ms=monotonic_ms,
            listener=listener,
            host=host,
            fencing=fencing,
        )
        self._questions: dict[Slot, Ticket] = {}
        self.ends: Mapping[Slot, int] = {}
        """Where partitions end, as whoever reads them last saw it. Any thread may put another mapping here."""
        self._reclaim = reclaim
        self._sharing = Sharing(self._sight, appetite or Appetite(), heartbeat_ms=founded.heartbeat_ms)
        self._wanted: frozenset[Slot] = frozenset()
        self._reclaimable: frozenset[Slot] = frozenset()
        self._is_stirred = True
        self._look_at_ms = self._plead_at_ms = 0
        tail.witness = self._saw

    @property
    def holds(self) -> int:
        """What would be left behind: slots, the name, and questions that may yet be granted."""
        return len(self.held) + len(self._questions) + len(self._releases) + (self._name is not None)

    @property
    def has_rivals(self) -> bool:
        """Whether other living members want the same, as far as the log shows."""
        return self._sharing.has_rivals

    def want(self, slots: Iterable[Slot]) -> None:
        """From now on hold a fair share of exactly these; what is no longer wanted is given back."""
        wanted = frozenset(slots)
        self._sight.follow(wanted)
        self._wanted, self._is_stirred = wanted, True
        if self._reclaim and not self._reclaimable:
            self._reclaimable = wanted
        for slot in list(self.held):
            if slot not in self._wanted:
                self.release(slot)

    # Driving

    def step(self, timeout_ms: int) -> None:
        """Read what is new, then ask, renew and give back what is due."""
        for read_back in self.tail.step(timeout_ms if self._beat_at_ms() > self._now_ms() else 0):
            self._is_stirred |= not self.client or not isinstance(read_back.record, Heartbeat)
            self._on_read_back(read_back)
        ready = list(self._sight.look())
        if self._is_stirred or self._now_ms() >= self._look_at_ms:
            self._is_stirred = False
            self._look_at_ms = self._now_ms() + self._founded.heartbeat_ms // 20
            self._notice_losses()
            self._look_around()
        self._fence_former_owners()  # after losses were noticed: only an owner may
        self._release_drained()
        for partition in ready:
            self._give_back(partition)
            self._heartbeat(partition)
        if self.held:
            self.tail.keep_snapshots()

    def rest_ms(self) -> int:
        """For how long nothing can be due, if no wish comes. While answers are under way: not at all."""
        if self._questions or self._releases or any(t.draining or not t.is_ready for t in self.held.values()):
            return 0
        if any(partition.heartbeat is not None or partition.begun_at is None for partition in self._sight.all()):
            return 0
        return max(0, min(REST_MS, self._founded.heartbeat_ms // 20, self._beat_at_ms() - self._now_ms()))

    def _look_around(self) -> None:
        """What to ask for and what to let go; heartbeats alone change nothing about that."""
        for partition in self._sight.all():
            partition.is_watched = False
        self._drop_overdue_questions()
        if not self.client:
            self._ask_for_name()
        elif self._has_lost_name():
            self._leave_all()
        else:
            self._obey_pauses()
            self._balance()
        if self._name is not None and self._name.leaving is None and not self._wanted and not self.held:
            name = self._name
            name.leaving = ClaimReleased(name.slot, self.client, self.instance, name.token)

    # The name

    def _ask_for_name(self) -> None:
        """The lowest ordinal of this host that no living member of the group has.

        What the dead had is waited for, not passed over: else every crash would make a new name.
        """
        if not self._wanted:
            return
        for ordinal in count():
            name = ordinal_name(self._host, ordinal)
            slot = name_slot(min(self._wanted).group, name)
            self._sight.follow([slot])
            if not self._sight.is_ready(slot):
                return
            state = self._sight.state(slot)
            standing = self._sight.standing(slot, state)
            if state.owner == (name, self.instance) and slot not in self._questions:
                self._release_stray(slot, state, name)
                return
            if standing.is_alive and self._sight.is_present(slot):
                continue
            if self._may_claim(slot, state):
                self._ask(slot, name, state)
            # The clock of a quiet partition stands still: without a tick the dead would look alive.
            self._sight.of(slot).is_watched = True
            return

    def _has_lost_name(self) -> bool:
        """Somebody else is called so now, after a silence of ours."""
        return self._name is None and bool(self._host)

    def _leave_all(self) -> None:
        """Give everything back under the old name, then ask for another one."""
        for tenure in self.held.values():
            self._dismiss(tenure)
        if not self.held and not self._questions and not self._releases:
            self.client, self._reclaim, self._reclaimable = "", False, frozenset()

    # Asking

    def _balance(self) -> None:
        """Take what is free up to our share; give one back if we have more and somebody has less."""
        now_ms = self._now_ms()
        view = self._sharing.look(
            self._wanted, client=self.client, held=self.held, asked=self._questions, ends=self.ends, now_ms=now_ms
        )
        for slot in view.order:
            state = view.states[slot]
            if slot in self.held or not self._sight.is_ready(slot):
                continue
            if self._is_stray(slot, state):
                self._release_stray(slot, state, self.client)
            elif view.may_take(slot) and self._may_claim(slot, state):
                self._claim(slot, state)
                view.took(slot)
        for slot in view.dismissed:
            self._dismiss(self.held[slot])
        if (gone := self._sharing.next_gone(view, now_ms)) is not None:
            for slot in gone:
                self.held[slot].draining = True
        elif not self._questions and (plea := self._sharing.next_plea(view)) is not None:
            self._plead(plea)

    def _drop_overdue_questions(self) -> None:
        """Asked in vain: whether to ask again follows from what is seen now. A late grant is given back as a stray."""
        for slot, ticket in list(self._questions.items()):
            if self._sight.is_overdue(ticket):
                self.tail.forget(ticket)
                del self._questions[slot]

    def _may_claim(self, slot: Slot, state: SlotState) -> bool:
        if slot in self._questions:
            return False
        if self._now_ms() < self._ask_at_ms.get(slot, 0) or self._sight.is_paused(slot, self.client):
            return False
        if self._is_older_self(slot, state):
            return True
        match self._sight.standing(slot, state):
            case Standing.FREE:
                return True
            case Standing.EXPIRED:
                return self._sight.is_calm(slot)
            case _:
                return False

    def _is_older_self(self, slot: Slot, state: SlotState) -> bool:
        return (
            slot in self._reclaimable
            and state.owner is not None
            and state.owner[0] == self.client
            and state.owner[1] != self.instance
            and self._sight.is_older(slot, state)
        )

    def _claim(self, slot: Slot, state: SlotState) -> None:
        producer = None if self._fencing is None else self._fencing.id
        self._ask(slot, self.client, state, reclaim=self._is_older_self(slot, state), producer=producer)

    def _ask(
        self, slot: Slot, client: str, state: SlotState, *, reclaim: bool = False, producer: str | None = None
    ) -> None:
        question = Claimed(slot, client, self.instance, state.epoch, reclaim, producer)
        self._questions[slot] = self.tail.append(self._sight.number(slot), question)
        crash_point("claims.asked")

    def _plead(self, slot: Slot) -> None:
        """A question that must be refused: it shows whoever has too much that we have too little."""
        if self._now_ms() >= max(self._plead_at_ms, self._ask_at_ms.get(slot, 0)):
            # Not `_ask_at_ms`: the slot may expire in a moment, and is then to be asked for in earnest.
            self._plead_at_ms = self._now_ms() + self._founded.heartbeat_ms
            plea = Claimed(slot, self.client, self.instance, expects=-2)
            self.tail.forget(self.tail.append(self._sight.number(slot), plea))

    def _is_stray(self, slot: Slot, state: SlotState) -> bool:
        """Ours in the log, though we do not believe in it: a grant that nobody waits for any more."""
        return state.owner == (self.client, self.instance) and slot not in self._questions

    def _release_stray(self, slot: Slot, state: SlotState, client: str) -> None:
        ticket = self._releases.get(slot)
        if ticket is None or self._sight.is_overdue(ticket):
            stray = ClaimReleased(slot, client, self.instance, state.epoch, state.position)
            self._send_release(self._settled(stray))

    # Giving back

    def _obey_pauses(self) -> None:
        for slot, tenure in self.held.items():
            if self._sight.is_paused(slot, self.client):
                self._dismiss(tenure)

    def _release_drained(self) -> None:
        for slot, tenure in self.held.items():
            if not tenure.draining or tenure.leaving is not None or not self._sharing.may_go(slot, self.held):
                continue
            has_to_go = tenure.drains_until_ms is not None and self._now_ms() >= tenure.drains_until_ms
            if has_to_go or self._listener.is_drained(tenure):
                self.release(slot)

    # What the log says

    def _saw(self, entry: Entry, judged: Judged) -> None:
        record = judged.record
        if isinstance(record, Heartbeat):
            return
        self._is_stirred = True
        if isinstance(record, Claimed) and record.slot in self._wanted and record.client != self.client:
            self._sharing.heard_plea(record.client, self._now_ms())
        elif isinstance(record, ClaimReleased):
            self._sharing.heard_release(record.client)
            if record.instance != self.instance:
                # What kept us from asking is over: who had it has let it go.
                self._ask_at_ms.pop(record.slot, None)

    def _on_read_back(self, read_back: ReadBack) -> None:
        match read_back.record:
            case Claimed():
                self._on_answer(read_back.record, read_back)
            case Heartbeat():
                self._on_renewed(read_back.record, read_back)
            case ClaimReleased(slot=slot):
                self._on_released(slot, read_back)
            case _:
                pass

    def _on_answer(self, question: Claimed, read_back: ReadBack) -> None:
        slot = question.slot
        if read_back.ticket is None or self._questions.get(slot) is not read_back.ticket:
            return  # if it was granted, `_is_stray` gives it back
        del self._questions[slot]
        state = self._sight.state(slot)
        if not read_back.verdict.is_accepted:
            remaining_ms = state.renewed_ms + 2 * self._founded.heartbeat_ms - self._sight.log_ms(slot)
            self._ask_at_ms[slot] = self._now_ms() + min(max(1, remaining_ms), self._founded.heartbeat_ms)
        elif state.epoch == read_back.offset and self._is_wanted(question):
            lease = LocalLease(lasts_ms=self._founded.heartbeat_ms)
            lease.renewed(sent_ms=read_back.ticket.sent_ms)
            self._gained(
                question, Tenure(slot, read_back.offset, lease, state.position, state.position, self._now_ms())
            )
        else:
            unwanted = ClaimReleased(slot, question.client, self.instance, read_back.offset, state.position)
            self._send_release(self._settled(unwanted))

    def _is_wanted(self, question: Claimed) -> bool:
        if not self.client:
            return bool(self._wanted)  # its name
        return question.slot in self._wanted and question.client == self.client and not self._has_lost_name()

    def _gained(self, question: Claimed, tenure: Tenure) -> None:
        self._sight.of(tenure.slot).is_beating = True
        if not self.client:
            self.client, self._name = question.client, tenure
            return
        self.held[tenure.slot] = tenure
        if self._fencing is None:
            self._listener.gained(tenure)
            return
        tenure.is_ready = False
        producers = self._sight.state(tenure.slot).producers
        self._fencing.granted(tenure, producers, own=question.producer)


def made(
    settings: ClaimsSettings,
    *,
    client: str,
    listener: Listener,
    reclaim: bool = False,
    appetite: Appetite | None = None,
    fencing: Fencing | None = None,
) -> Callable[[Tail[Claims]], Member]:
    """How a running member is made, on real clocks. Without `client` it names itself after this host."""
    return lambda tail: Member(
        tail,
        founded=genesis(settings),
        client=client,
        place=partition_of,
        monotonic_ms=monotonic_ms,
        listener=listener,
        reclaim=reclaim,
        appetite=appetite,
        host="" if client else this_host(),
        fencing=fencing,
    )
