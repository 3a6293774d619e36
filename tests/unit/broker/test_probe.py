from __future__ import annotations

import contextlib
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.broker.ports import free_ports
from penstock.broker.probe import NOBODY, Membership, membership, membership_of, metadata_request


def _string(text: bytes | None) -> bytes:
    return struct.pack(">h", -1) if text is None else struct.pack(">h", len(text)) + text


def _response(nodes: dict[int, bytes | None], cluster_id: bytes | None = b"abc", correlation: int = 7) -> bytes:
    brokers = b"".join(
        struct.pack(">i", node) + _string(b"127.0.0.1") + struct.pack(">i", 9092) + _string(rack)
        for node, rack in nodes.items()
    )
    return struct.pack(">ii", correlation, len(nodes)) + brokers + _string(cluster_id) + struct.pack(">ii", 1, 0)


def test_members_with_and_without_a_rack_are_read() -> None:
    assert membership_of(_response({1: None, 2: b"rack-a", 3: None})) == Membership("abc", frozenset({1, 2, 3}))


def test_a_cluster_without_an_id_has_none() -> None:
    assert membership_of(_response({1: None}, cluster_id=None)) == Membership(None, frozenset({1}))


def test_the_answer_to_another_question_is_no_answer() -> None:
    with pytest.raises(struct.error):
        membership_of(_response({1: None}, correlation=8))


def test_the_request_names_its_own_length() -> None:
    request = metadata_request()

    assert struct.unpack(">i", request[:4]) == (len(request) - 4,)


@given(st.binary(max_size=200))
def test_strange_bytes_are_read_or_refused_as_no_answer(response: bytes) -> None:
    with contextlib.suppress(struct.error):
        membership_of(response)


def test_where_nobody_listens_nobody_is_a_member() -> None:
    (port,) = free_ports(1)

    assert membership(port) == NOBODY
