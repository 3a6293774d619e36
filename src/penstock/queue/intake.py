"""What a message's own headers say about when it may be handed out, and whether at all."""

from __future__ import annotations

from typing import NamedTuple

from penstock.kafka.reader import Received, every
from penstock.queue.headers import marks_of
from penstock.queue.ranges import Range
from penstock.queue.stretch import Stretch, spanned


class Sorted(NamedTuple):
    wanted: list[Stretch]
    """To be asked for now."""
    put_off: list[tuple[Range, int]]
    """Not before that time."""
    dropped: dict[str, list[Range]]
    """Not at all, by the reason."""


class Intake:
    """For a queue that has its topic for itself."""

    def sorted(self, stretch: Stretch, log_ms: int) -> Sorted:
        if not any(every(stretch.records, "headers")):
            return Sorted([stretch], [], {})
        found = Sorted([], [], {})
        run: list[tuple[Received, Range]] = []
        for record, part in stretch.spans():
            marks = marks_of(record.headers())
            if marks.expires_ms is not None and marks.expires_ms <= log_ms:
                found.dropped.setdefault("expired", []).append(part)
            elif marks.due_ms is not None and marks.due_ms > log_ms:
                found.put_off.append((part, marks.due_ms))
            else:
                run.append((record, part))
        if run:
            found.wanted.append(spanned(run))
        return found
