"""How large batches are: as soon as the files are worth writing, or at the allowed latency."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.lake.options import LakeOptions

# Before anything is known of the rows; it is mended after the first batch.
BYTES_PER_ROW = 100.0
# A batch that may be larger than what it waited for, by this much, does not leave a small rest behind.
_ROOM = 1.25
# On a backlog smaller batches than this are mostly overhead; where their files would be too large, they are split.
_MOST_LEAST = 100_000
# Beginning a stream again takes about a second.
_WORTH_IT = 1.4
_LOOKS_PER_LATENCY = 8
# Every look is a request to the broker; on a backlog Spark does not wait for it.
_LOOK_MS = (100, 1_000)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizing:
    """What Spark is told of the size of batches; fixed as long as a stream runs."""

    messages_min: int
    """A batch begins when so many wait, or when the oldest has waited for the allowed latency."""
    messages_max: int
    """No batch takes more."""
    look_every_ms: int
    """How often Spark looks whether it is so."""
    bytes_per_row: float
    """What was known of the rows when this was reckoned."""


def sizing(options: LakeOptions, *, cores: int, bytes_per_row: float | None) -> Sizing:
    """Enough messages for one file of the wanted size per core, and no fewer than the user's own least."""
    known = bytes_per_row or BYTES_PER_ROW
    worth_writing = round(options.min_bytes_per_file * cores / known)
    least = max(options.max_messages_per_batch, worth_writing)
    most = options.max_offsets_per_trigger or max(round(least * _ROOM), _MOST_LEAST)
    shortest, longest = _LOOK_MS
    look = min(longest, max(shortest, options.allowed_latency // _LOOKS_PER_LATENCY))
    return Sizing(messages_min=min(least, most), messages_max=most, look_every_ms=look, bytes_per_row=known)


def has_outgrown(used: Sizing, now: Sizing) -> bool:
    """Whether batches would be so different in size that beginning the stream again is worth it."""
    return not used.messages_min / _WORTH_IT <= now.messages_min <= used.messages_min * _WORTH_IT
