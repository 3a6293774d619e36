"""A ledger with a hundred thousand open gaps is read again in bounded time and memory."""

from __future__ import annotations

import random
import subprocess
import sys
import time

import pytest

from penstock.ledger.codec import encode
from penstock.ledger.machine import Fold
from penstock.queue.records import Acked, QueueFounded, Released, Taken
from penstock.queue.state import QueueMachine

BATCH = 500


def written(records: int, gaps: int) -> list[bytes]:
    """Batches of which a few messages each are released for a day, then single takes and releases among those."""
    chance = random.Random(1)
    values = [encode(QueueFounded(1, "t", 0, ()))]
    opened: list[int] = []
    first = 0
    while len(opened) < gaps:
        epoch = len(values)
        values.append(encode(Taken("w1", epoch, ((first, first + BATCH),), 30_000)))
        for offset in sorted(chance.sample(range(first, first + BATCH), min(50, gaps - len(opened)))):
            opened.append(offset)
            values.append(encode(Released(epoch, ((offset, offset + 1),), chance.randrange(1, 5), counts=True)))
        values.append(encode(Acked(epoch, ((first, first + BATCH),))))
        first += BATCH
    while len(values) < records:
        offset, epoch = chance.choice(opened), len(values)
        values.append(encode(Taken("w2", epoch, ((offset, offset + 1),), 30_000)))
        values.append(encode(Released(epoch, ((offset, offset + 1),), chance.randrange(1, 5), counts=False)))
    return values


def rebuilt(values: list[bytes]) -> tuple[Fold[QueueMachine], float]:
    fold = Fold(QueueMachine())
    begun = time.process_time()
    for offset, value in enumerate(values):
        fold.feed(offset, 1_000 + offset, value)
    return fold, time.process_time() - begun


@pytest.mark.parametrize(
    ("records", "gaps", "seconds"),
    [(100_000, 10_000, 10), pytest.param(1_000_000, 100_000, 30, marks=pytest.mark.long)],
)
def test_a_ledger_with_many_open_gaps_is_rebuilt_in_time(records: int, gaps: int, seconds: float) -> None:
    values = written(records, gaps)

    fold, took = rebuilt(values)

    assert fold.junk_count == 0
    open_ones = sum(
        run.end - run.start
        for run in fold.machine.cells.runs(0, gaps // 50 * BATCH)
        if run.value.status.value != "finished"
    )
    assert open_ones == gaps
    assert took < seconds


@pytest.mark.long
def test_rebuilding_a_million_records_takes_less_than_a_gigabyte() -> None:
    code = (
        "import sys; sys.path.insert(0, sys.argv[1]); import test_rebuild as t; "
        "from penstock.bench.queue_worker import peak_mb; "
        "t.rebuilt(t.written(1_000_000, 100_000)); print(peak_mb())"
    )
    folder = __file__.rpartition("/")[0]

    shown = subprocess.run(
        [sys.executable, "-c", code, folder], capture_output=True, text=True, check=True, timeout=280
    ).stdout

    assert float(shown) < 1_000
