"""What a member holds: kept by heartbeats, given back by releases, noticed when it is lost."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from msgspec.structs import replace

from penstock.claims.fencing import Fencing
from penstock.claims.records import Beat, ClaimReleased, ClaimsFounded, Heartbeat, Slot
from penstock.claims.sight import Partition, Sight
from penstock.claims.state import Claims
from penstock.claims.tenure import Listener, Tenure
from penstock.crash import crash_point
from penstock.ledger.tail import ReadBack, Tail, Ticket

REST_MS = 50


class Holder:
    """Keeps what it was granted, and its own name; what to ask for is another's business."""

    def __init__(
        self,
        tail: Tail[Claims],
        *,
        founded: ClaimsFounded,
        client: str,
        place: Callable[[Slot, int], int],
        monotonic_ms: Callable[[], int],
        listener: Listener | None = None,
        host: str = "",
        fencing: Fencing | None = None,
    ) -> None:
        self.tail, self.client, self.instance = tail, client, tail.instance
        self.held: dict[Slot, Tenure] = {}
        self._founded, self._now_ms, self._host = founded, monotonic_ms, host
        self._listener = listener or Listener()
        self._fencing = fencing
        self._sight = Sight(tail, founded=founded, place=place, monotonic_ms=monotonic_ms)
        self._name: Tenure | None = None
        self._releases: dict[Slot, Ticket] = {}
        self._ask_at_ms: dict[Slot, int] = {}

    def release(self, slot: Slot, *, position: int | None = None, reset: bool = False) -> None:
        """Give a slot back with its position; `reset` is the only way to move that backwards."""
        tenure = self.held[slot]
        if position is None:
            position = tenure.position
        tenure.leaving = ClaimReleased(slot, self.client, self.instance, tenure.token, position, reset)

    def beat_now(self, slot: Slot) -> None:
        """Tell the position with the next step instead of within HB / 3."""
        self._sight.of(slot).heartbeat_at_ms = 0

    def follows(self, slot: Slot) -> bool:
        """Whether the log is read where the slot lives."""
        return self._sight.is_followed(slot)

    def is_good(self, tenure: Tenure) -> bool:
        """Whether work on the slot may be handed out now: nobody else can own it."""
        is_ours = self.held.get(tenure.slot) is tenure and tenure.is_ready and tenure.leaving is None
        return is_ours and tenure.lease.is_good(self._now_ms())

    # Keeping

    def _tenures(self) -> Iterator[Tenure]:
        yield from self.held.values()
        if self._name is not None:
            yield self._name

    def _beat_at_ms(self) -> int:
        """When the next heartbeat is due."""
        due = (each for each in self._sight.all() if each.heartbeat is None and (each.is_watched or each.is_beating))
        return min((each.heartbeat_at_ms for each in due), default=self._now_ms() + REST_MS)

    def _heartbeat(self, partition: Partition) -> None:
        """One record for all our slots here. Without any it is a tick: it moves the clock, and is read back."""
        now_ms = self._now_ms()
        if now_ms < partition.heartbeat_at_ms:
            return
        if partition.heartbeat is not None and not self._sight.is_overdue(partition.heartbeat):
            return
        beats = self._beats(partition.number)
        partition.is_beating = bool(beats)
        if not beats and not partition.is_watched:
            return
        partition.heartbeat_at_ms = now_ms + self._founded.heartbeat_ms // 3
        if partition.heartbeat is not None:
            self.tail.forget(partition.heartbeat)
        heartbeat = Heartbeat(self.client or self._host, self.instance, beats)
        partition.heartbeat = self.tail.append(partition.number, heartbeat)
        crash_point("claims.beaten")

    def _beats(self, number: int) -> tuple[Beat, ...]:
        ours = (tenure for tenure in self._tenures() if self._sight.number(tenure.slot) == number)
        return tuple(self._beat(tenure) for tenure in ours if tenure.leaving is None or not self._may_leave(tenure))

    def _beat(self, tenure: Tenure) -> Beat:
        beat = Beat(tenure.slot, tenure.token, tenure.position)
        return beat if self._fencing is None or tenure is self._name else self._fencing.beat(tenure, beat)

    # Fencing

    def _fence_former_owners(self) -> None:
        """Go on with it; what is done with is gained now, and its position is the one of now."""
        if self._fencing is None:
            return
        self._fencing.step(self.tail, self._sight, self.held)
        for slot, tenure in self.held.items():
            if self._fencing.has_news(tenure):
                self.beat_now(slot)
            elif not tenure.is_ready and self._fencing.is_ready(tenure):
                tenure.position = tenure.told = self._sight.state(slot).position
                tenure.is_ready = True
                self._listener.gained(tenure)

    def _may_leave(self, tenure: Tenure) -> bool:
        """Not while a transaction with work of the slot is open; until then it is renewed."""
        return self._fencing is None or self._fencing.may_leave(tenure.slot)

    def _settled(self, record: ClaimReleased) -> ClaimReleased:
        """The release, with the producers that the next owner need not fear."""
        if self._fencing is None or record.slot.partition is None:
            return record
        return replace(record, fenced=self._fencing.settled(record.slot, self._sight.state(record.slot).producers))

    # Giving back

    def _dismiss(self, tenure: Tenure) -> None:
        """Let it go soon: work in hand has one HB to end."""
        tenure.draining = True
        if tenure.drains_until_ms is None:
            tenure.drains_until_ms = self._now_ms() + self._founded.heartbeat_ms

    def _give_back(self, partition: Partition) -> None:
        for tenure in list(self._tenures()):
            if tenure.leaving is None or self._sight.number(tenure.slot) != partition.number:
                continue
            if not self._may_leave(tenure):
                continue
            if self._is_beating(partition, tenure.slot):
                continue  # no heartbeat in flight when a release is sent
            ticket = self._releases.get(tenure.slot)
            if ticket is None or self._sight.is_overdue(ticket):
                tenure.leaving = tenure.leaving if ticket is not None else self._settled(tenure.leaving)
                self._send_release(tenure.leaving)

    def _is_beating(self, partition: Partition, slot: Slot) -> bool:
        """Whether a heartbeat for the slot may still be on its way. One that was given up is not waited for."""
        ticket = partition.heartbeat
        return ticket is not None and _names(ticket, slot) and not self._sight.is_overdue(ticket)

    def _send_release(self, record: ClaimReleased) -> None:
        self._releases[record.slot] = self.tail.append(self._sight.number(record.slot), record)
        crash_point("claims.released")

    # What the log says

    def _on_renewed(self, record: Heartbeat, read_back: ReadBack) -> None:
        ticket = read_back.ticket
        partition = self._sight.partition(read_back.partition)
        if ticket is None or partition.heartbeat is not ticket:
            return
        partition.heartbeat = None
        ours = {tenure.slot: tenure for tenure in self._tenures()}
        for beat, verdict in zip(record.beats, read_back.verdict.parts, strict=False):
            tenure = ours.get(beat.slot)
            if tenure is not None and tenure.token == beat.epoch and verdict.is_accepted:
                tenure.lease.renewed(sent_ms=ticket.sent_ms)
                tenure.told = beat.position
                if self._fencing is not None and tenure is not self._name:
                    self._fencing.told(beat)

    def _on_released(self, slot: Slot, read_back: ReadBack) -> None:
        if read_back.ticket is not None and self._releases.get(slot) is read_back.ticket:
            del self._releases[slot]
        record = read_back.record
        if not isinstance(record, ClaimReleased) or not read_back.verdict.is_accepted:
            return
        # Whichever of several it was: by now the next one may have a later position.
        leaving = (tenure for tenure in self._tenures() if tenure.leaving is not None)
        tenure = next((each for each in leaving if (each.slot, each.token) == (slot, record.epoch)), None)
        if tenure is None:
            return
        self._ask_at_ms[slot] = self._now_ms() + self._founded.heartbeat_ms
        if tenure is self._name:
            self._name, self.client = None, ""
        else:
            del self.held[slot]
            if tenure.is_ready:
                self._listener.released(tenure)

    def _notice_losses(self) -> None:
        for tenure in list(self._tenures()):
            state = self._sight.state(tenure.slot)
            if state.owner == (self.client, self.instance) and state.epoch == tenure.token:
                continue
            if tenure is self._name:
                self._name = None
                continue
            del self.held[tenure.slot]
            owner = "nobody" if state.owner is None else "/".join(state.owner)
            if tenure.is_ready:
                self._listener.lost(tenure, f"epoch {state.epoch} of {tenure.slot} belongs to {owner}")


def _names(heartbeat: Ticket, slot: Slot) -> bool:
    record = heartbeat.record
    return isinstance(record, Heartbeat) and any(beat.slot == slot for beat in record.beats)
