"""Sending without a broker: what goes where, and which messages are named when records are lost."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import pytest

from penstock.errors import NotAllSent, OutcomeUnknown, TransientError, UsageError
from penstock.kafka.reporting import Lost, Tally, Unwritten
from penstock.observe.events import subscribed
from penstock.queue.outgoing import Outgoing
from penstock.queue.partitioning import partition_of
from penstock.queue.sending import Sender, Sent
from penstock.settings import KafkaSettings, SendSettings

PARTITIONS = 3
REFUSED = Unwritten(UsageError("refused"), in_doubt=False)
IN_DOUBT = Unwritten(TransientError("no answer"), in_doubt=True)


class Memory:
    """Writers that keep what they get, and lose what they are told to."""

    settings = SendSettings()

    def __init__(self, lose: Callable[[bytes | None], Unwritten | None] = lambda value: None) -> None:
        self.records: list[tuple[int, bytes | None, bytes | None, Any]] = []
        self._lose = lose

    def get(self, durability: str) -> Memory:
        return self

    def partitions(self, topic: str, durability: str = "replicated") -> int:
        return PARTITIONS

    def forbid_waiting_for_itself(self) -> None:
        pass

    def forget(self, topic: str) -> None:
        pass

    def tally(self, topic: str) -> Tally:
        return Tally(lambda error, partition, value: REFUSED)

    def send_batch(self, topic: str, partition: int, records: list[dict[str, Any]], tally: Tally) -> None:
        for record in records:
            self._take(tally, None, partition, record.get("key"), record["value"], None)

    def send_counted(
        self, topic: str, partition: int, value: bytes | None, *, key: Any, headers: Any, number: int, tally: Tally
    ) -> None:
        self._take(tally, number, partition, key, value, headers)

    def wait(self, tally: Tally) -> tuple[Lost, ...]:
        return tuple(tally.lost)

    def send(self, topic: str, partition: int, value: Any, *, key: Any = None, headers: Any = None) -> None:
        self.records.append((partition, key, value, headers))

    def _take(self, tally: Tally, number: int | None, partition: int, key: Any, value: Any, headers: Any) -> None:
        self.records.append((partition, key, value, headers))
        if why := self._lose(value):
            tally.lost.append(Lost(number, partition, key, value, why))


def sender(memory: Any) -> Sender:
    return Sender(KafkaSettings(), "orders", writers=memory)


def test_nothing_is_sent_when_there_is_nothing_to_send() -> None:
    memory = Memory()

    assert sender(memory).send_many([]) == 0
    assert memory.records == []


def test_the_quick_way_and_the_thorough_one_spread_messages_alike() -> None:
    quick, thorough = Memory(), Memory()
    sender(quick).send_many([b"%d" % number for number in range(5_000)])
    sender(thorough).send_many([Outgoing(b"%d" % number) for number in range(5_000)])

    for memory in (quick, thorough):
        parts = [[value for at, _, value, _ in memory.records if at == number] for number in range(PARTITIONS)]
        firsts = sorted(int(part[0] or b"") for part in parts)
        assert firsts == [0, 1, 2]
        assert all(part == [b"%d" % n for n in range(int(part[0] or b""), 5_000, PARTITIONS)] for part in parts)


def test_lost_messages_are_named_by_their_place_in_what_was_given() -> None:
    lost = {b"2": IN_DOUBT, b"5": REFUSED}
    with pytest.raises(NotAllSent, match=r"2 messages were not sent to orders \(of 1 nobody can tell\)") as told:
        sender(Memory(lambda value: lost.get(value or b""))).send_many([b"%d" % number for number in range(9)])

    doubt, refusal = told.value.failures
    assert (doubt.index, refusal.index, refusal.reason) == (2, 5, REFUSED.reason)
    assert isinstance(doubt.reason, OutcomeUnknown)
    assert (doubt.reason.id, doubt.reason.__cause__) == (None, IN_DOUBT.reason)


def test_messages_with_the_same_payload_are_told_apart_by_id_or_key() -> None:
    twins = [
        Outgoing(b"twin", id="a"),
        Outgoing(b"twin", key="k"),
        Outgoing(b"other"),
        Outgoing(b"twin", id="b"),
        Outgoing(b"twin", key="l"),
    ]
    memory = Memory(lambda value: IN_DOUBT if value == b"twin" else None)
    with pytest.raises(NotAllSent) as told:
        sender(memory).send_many(twins)

    assert [(failure.index, failure.id) for failure in told.value.failures] == [
        (0, "a"),
        (1, None),
        (3, "b"),
        (4, None),
    ]


def test_of_messages_that_are_alike_in_all_as_many_are_named_as_were_lost() -> None:
    fates = [None, IN_DOUBT, None, IN_DOUBT]
    memory = Memory(lambda value: fates.pop() if value == b"twin" else None)
    with pytest.raises(NotAllSent) as told:
        sender(memory).send_many([Outgoing(b"twin", key="k")] * 4 + [Outgoing(b"other", key="k")])

    assert len(told.value.failures) == 2
    assert {failure.index for failure in told.value.failures} < {0, 1, 2, 3}


def test_of_messages_that_are_alike_each_named_one_has_a_reason_of_its_own() -> None:
    fates = [REFUSED, IN_DOUBT]
    with pytest.raises(NotAllSent, match=r"2 messages .* \(of 1 nobody can tell\)"):
        sender(Memory(lambda value: fates.pop())).send_many([Outgoing(b"twin", key="k")] * 2)


@pytest.mark.parametrize("one", ["text", b"bytes", bytearray(b"x"), {"a": 1}])
def test_one_value_is_not_taken_for_many(one: Any) -> None:
    with pytest.raises(UsageError, match=f"send_many takes many values, not one {type(one).__name__}"):
        sender(Memory()).send_many(one)


def test_an_outgoing_is_not_taken_for_a_value() -> None:
    with pytest.raises(UsageError, match="not an Outgoing"):
        sender(Memory()).send(Outgoing(b"x"))
    with pytest.raises(UsageError, match="not an Outgoing"):
        sender(Memory()).send_soon(Outgoing(b"x"))


def test_many_may_come_from_a_generator() -> None:
    memory = Memory()

    assert sender(memory).send_many(str(number) for number in range(7)) == 7
    assert len(memory.records) == 7


def test_what_came_before_a_message_with_headers_in_its_partition_goes_before_it() -> None:
    memory = Memory()
    sender(memory).send_many([Outgoing(b"1", key="k"), Outgoing(b"2", key="k", id="i"), Outgoing(b"3", key="k")])

    assert [value for _, _, value, _ in memory.records] == [b"1", b"2", b"3"]


def test_a_transaction_gets_each_message_where_it_belongs() -> None:
    transaction = Memory()
    sender(Memory()).send_many([Outgoing(b"x", key="k"), {"n": 1}], transaction=transaction)
    receipt = sender(Memory()).send(b"y", key="k", id="i", transaction=transaction)

    place = partition_of(b"k", PARTITIONS)
    assert transaction.records[0] == (place, b"k", b"x", [])
    assert transaction.records[1][1:] == (None, b'{"n":1}', [("content-type", b"application/json")])
    assert transaction.records[2] == (place, b"k", b"y", [("penstock-id", b"i")])
    assert receipt == ("i", place, None)


def test_a_queue_name_that_cannot_be_part_of_a_topic_is_refused() -> None:
    with pytest.raises(UsageError, match="queue name 'my orders' is not allowed"):
        Sender(KafkaSettings(), "my orders")


def test_who_waits_for_a_message_has_it_before_it_is_announced() -> None:
    futures: list[Future[Sent]] = []
    at_announcement: list[bool] = []
    memory = Reporting()
    with subscribed(lambda event: at_announcement.append(futures[0].done())):
        futures.append(sender(memory).send_soon(b"x"))
        memory.reports[0](7, None)

    assert at_announcement == [True]
    assert futures[0].result(0).offset == 7


class Reporting(Memory):
    """Reports when it is told to."""

    def __init__(self) -> None:
        super().__init__()
        self.reports: list[Any] = []

    def send(self, *place: Any, on_report: Any = None, **record: Any) -> None:
        self.reports.append(on_report)
