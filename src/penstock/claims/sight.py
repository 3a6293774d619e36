"""What a member sees of the coordination ledger: its partitions, and each slot at the log time that it is by now."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from penstock.claims.decide import Standing, standing
from penstock.claims.placement import mend_for
from penstock.claims.records import ClaimsFounded, Slot
from penstock.claims.slots import SlotState
from penstock.claims.state import Claims
from penstock.ledger.tail import Tail, Ticket


@dataclass(slots=True)
class Partition:
    """What a member remembers of one coordination partition."""

    number: int
    begun_at: int | None = None
    """The first offset that was not there yet when we came: grants below it are older than we are."""
    clock_ms: int = 0
    clock_read_at_ms: int = 0
    founding: Ticket | None = None
    heartbeat: Ticket | None = None
    heartbeat_at_ms: int = 0
    is_beating: bool = False
    """Whether the last heartbeat had slots to tell of, or the next one will."""
    is_watched: bool = False
    """Whether we tick here though we hold nothing: who takes what has expired must have been at the end for a while."""


class Sight:
    """Follows the partitions of the slots that it is asked about."""

    def __init__(
        self,
        tail: Tail[Claims],
        *,
        founded: ClaimsFounded,
        place: Callable[[Slot, int], int],
        monotonic_ms: Callable[[], int],
    ) -> None:
        self._tail, self._founded, self._place, self._now_ms = tail, founded, place, monotonic_ms
        self._partitions: dict[int, Partition] = {}
        self._numbers: dict[Slot, int] = {}

    def follow(self, slots: Iterable[Slot]) -> None:
        new = sorted({self.number(slot) for slot in slots} - set(self._partitions))
        if new:
            self._tail.follow(new)
            self._partitions |= {number: Partition(number) for number in new}

    def number(self, slot: Slot) -> int:
        """The coordination partition that a slot lives in."""
        number = self._numbers.get(slot)
        if number is None:
            number = self._numbers[slot] = self._place(slot, self._founded.partitions)
        return number

    def of(self, slot: Slot) -> Partition:
        return self._partitions[self.number(slot)]

    def partition(self, number: int) -> Partition:
        return self._partitions[number]

    def all(self) -> Iterable[Partition]:
        return self._partitions.values()

    def look(self) -> Iterator[Partition]:
        """Those that may be acted on: read to the end, and founded as we expect. Others are founded, or waited for.

        Raises Halted where a record must not be passed, GenesisMismatch where others agreed on other values.
        """
        for partition in self._partitions.values():
            fold = self._tail.checked_fold(partition.number)
            if fold.clock_ms != partition.clock_ms:
                partition.clock_ms, partition.clock_read_at_ms = fold.clock_ms, self._now_ms()
            if not self._tail.is_caught_up(partition.number):
                continue
            if partition.begun_at is None:
                partition.begun_at = fold.next_offset
            if fold.genesis is None:
                self._found(partition)
                continue
            self._tail.check_genesis(partition.number, self._founded, mend=mend_for(fold.genesis))
            yield partition

    def _found(self, partition: Partition) -> None:
        if partition.founding is None or self.is_overdue(partition.founding):
            partition.founding = self._tail.append(partition.number, self._founded)

    def is_overdue(self, ticket: Ticket) -> bool:
        """Whether to ask again: it was given up, or nothing came back for a whole HB."""
        return ticket.failure is not None or self._now_ms() - ticket.sent_ms >= self._founded.heartbeat_ms

    # Slots

    def is_followed(self, slot: Slot) -> bool:
        """Whether the partition of the slot is read. Until then nothing can be said of the slot."""
        return self.number(slot) in self._partitions

    def is_ready(self, slot: Slot) -> bool:
        number = self.number(slot)
        return self._tail.is_caught_up(number) and self._tail.fold(number).genesis is not None

    def is_present(self, slot: Slot) -> bool:
        """Whether what we see is the present state: we lately read a record of our own back there."""
        return self._tail.at_end(self.number(slot))

    def is_calm(self, slot: Slot) -> bool:
        """After an outage of the coordination leader every claim looks expired at once; after a calm HB it is."""
        return self._tail.calm_ms(self.number(slot)) >= self._founded.heartbeat_ms

    def state(self, slot: Slot) -> SlotState:
        return self._tail.fold(self.number(slot)).machine.slot(slot)

    def standing(self, slot: Slot, state: SlotState) -> Standing:
        return standing(self._tail.fold(self.number(slot)).machine, state, self.log_ms(slot))

    def is_paused(self, slot: Slot, client: str) -> bool:
        """Whether somebody else has paused the group."""
        pause = self._tail.fold(self.number(slot)).machine.pause_of(slot.group, self.log_ms(slot))
        return pause is not None and pause.by != client

    def is_older(self, slot: Slot, state: SlotState) -> bool:
        """Whether the slot was last granted before we came."""
        begun_at = self.of(slot).begun_at
        return begun_at is not None and state.epoch < begun_at

    def log_ms(self, slot: Slot) -> int:
        """What the log clock should say by now, reckoned on our own clock since it last moved."""
        partition = self.of(slot)
        return partition.clock_ms + self._now_ms() - partition.clock_read_at_ms
