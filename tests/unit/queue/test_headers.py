"""Penstock's own headers: written, read back, and never an error whatever others write."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import UsageError
from penstock.queue import headers
from penstock.queue.headers import NO_MARKS, Marks, content_type_of, given_headers, marks_of, message_id, written
from penstock.settings import SendSettings

ROOT = Path(__file__).parents[3]
LIMITS = SendSettings()

times = st.none() | st.integers(0, 2**63 - 1)
names = st.none() | st.from_regex(r"[a-zA-Z0-9_-]{1,20}", fullmatch=True)


@given(id=st.none() | st.text(min_size=1), queue=names, due=times, expires=times)
def test_marks_are_read_as_they_were_written(
    id: str | None, queue: str | None, due: int | None, expires: int | None
) -> None:
    marks = Marks(id, queue, due, expires)

    assert marks_of([("other", b"1"), *written(marks)]) == marks


@given(
    st.lists(
        st.tuples(
            st.sampled_from([headers.ID, headers.QUEUE, headers.DUE, headers.EXPIRES, "x"]), st.none() | st.binary()
        )
    )
)
def test_whatever_stands_there_reading_is_total(wire: list[tuple[str, bytes | None]]) -> None:
    marks = marks_of(wire)

    assert marks.due_ms is None or 0 <= marks.due_ms < 2**63


@pytest.mark.parametrize(
    "junk", [b"", b"-1", b"1.5", b"soon", b"\xff", "²".encode(), b"9" * 19, b"1" * 20, b" 1", b"0x1"]
)
def test_a_time_that_makes_no_sense_counts_as_absent(junk: bytes) -> None:
    assert marks_of([(headers.DUE, junk), (headers.EXPIRES, junk)]) == NO_MARKS


def test_of_two_headers_of_one_name_the_last_counts() -> None:
    assert marks_of([(headers.ID, b"old"), (headers.ID, b"new")]).id == "new"
    assert content_type_of([("content-type", b"a"), ("Content-Type", b"b")]) == "b"


def test_a_message_without_headers_has_no_marks() -> None:
    assert marks_of(None) is NO_MARKS
    assert marks_of([("traceparent", b"00-1-2-01")]) is NO_MARKS
    assert content_type_of(None) is None


class Record:
    def __init__(self, headers: list[tuple[str, bytes | None]] | None) -> None:
        self._headers = headers

    def headers(self) -> list[tuple[str, bytes | None]] | None:
        return self._headers

    def topic(self) -> str:
        return "orders"

    def partition(self) -> int:
        return 3

    def offset(self) -> int:
        return 17


@pytest.mark.parametrize(
    ("wire", "id"),
    [
        ([("penstock-id", b"order-1")], "order-1"),
        ([("penstock-id", b"")], "orders/3/17"),
        ([("other", b"1")], "orders/3/17"),
        (None, "orders/3/17"),
    ],
)
def test_every_message_has_an_id_its_own_or_that_of_its_place(
    wire: list[tuple[str, bytes | None]] | None, id: str
) -> None:
    record: Any = Record(wire)

    assert message_id(record) == id


def test_a_users_headers_go_as_they_are() -> None:
    trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"

    assert given_headers({"traceparent": trace, "raw": b"\xff", "none": None}, LIMITS) == [
        ("traceparent", trace.encode()),
        ("raw", b"\xff"),
        ("none", None),
    ]
    assert given_headers([("a", b"1"), ("a", b"2")], LIMITS) == [("a", b"1"), ("a", b"2")]


@pytest.mark.parametrize(
    ("wrong", "objection"),
    [
        ({"penstock-id": b"1"}, "header penstock-id is Penstock's own"),
        ({"Penstock-Anything": b"1"}, "header Penstock-Anything is Penstock's own"),
        ({"": b"1"}, "header name '' is not allowed"),
        ({7: b"1"}, "header name 7 is not allowed"),
        ({"\ud800": b"1"}, "is not allowed"),
        ({"a": 7}, "header a has the value 7"),
        ({"a": "\ud800"}, "header a has the value"),
        ([("a",)], r"\('a',\) is no header"),
        (["ab"], "'ab' is no header"),
    ],
)
def test_what_a_user_may_not_set_is_refused_by_name(wrong: headers.Given, objection: str) -> None:
    with pytest.raises(UsageError, match=objection):
        given_headers(wrong, LIMITS)


def test_the_limits_are_the_settings() -> None:
    full = [(f"h{number}", b"") for number in range(64)]
    assert len(given_headers(full, LIMITS)) == 64
    with pytest.raises(UsageError, match=r"65 headers are more than 64; .*headers_max in \[send\]"):
        given_headers([*full, ("one", b"")], LIMITS)

    assert given_headers({"ab": b"x" * 16_382}, LIMITS)
    with pytest.raises(UsageError, match="headers of 16385 bytes are more than 16384"):
        given_headers({"ab": b"x" * 16_383}, LIMITS)
    assert given_headers({"ab": b"x" * 16_383}, SendSettings(headers_max_bytes=20_000))


def test_every_header_of_ours_is_in_the_documentation_of_the_wire() -> None:
    documented = (ROOT / "docs" / "wire.md").read_text()
    ours = {value for value in vars(headers).values() if isinstance(value, str) and value.startswith("penstock-")}

    assert {name for name in ours if f"| `{name}`" not in documented} == {headers.RESERVED}
    assert len(ours) == 5


def test_no_part_of_the_package_writes_a_header_that_is_not_documented() -> None:
    documented = (ROOT / "docs" / "wire.md").read_text()
    written_somewhere = {
        name
        for part in ("queue", "claims", "kafka")
        for path in (ROOT / "src" / "penstock" / part).glob("*.py")
        for name in re.findall(r'(?:yield|\() ?"(penstock-[a-z-]+)",', path.read_text())
    }

    assert "penstock-origin-topic" in written_somewhere
    assert {name for name in written_somewhere if f"`{name}`" not in documented} == set()
