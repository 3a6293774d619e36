"""Every example is run, as a reader would run it, and says what it should."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"

# Java says it when Spark starts; nothing can keep it from that.
OF_JAVA = "WARNING: Using incubator modules: jdk.incubator.vector\n"

# With a master, two workers and their executors it is the example that takes longest.
LONG = {"lake_cluster"}

SAID = {
    "broadcast": [
        "till-1 knows [b'kettle 20', b'lamp 35']",
        "till-2 knows [b'kettle 20', b'lamp 35']",
        "dead letters: {b'rope ??'}",
    ],
    "embedded_broker": ["Kafka 4.3.1 said: hello world"],
    "exactly_once_effects": [
        "rolled back: the batch comes again",
        "invoice of order 1",
        "invoice of order 2",
        "invoice of order 3",
    ],
    "lake_cluster": ["1000 rows landed by 2 executors, 1000 of them distinct"],
    "lake_dead_letters": [
        "landed 2, put aside 6",
        "offset 1: wrong type, or out of bounds: id",
        "offset 2: not one JSON object",
        "offset 3: not one JSON object",
        "offset 4: wrong type, or out of bounds: size",
        "offset 5: the value is not UTF-8",
        "offset 6: id is missing or does not fit bigint NOT NULL",
        "replayed 1, still bad 5: [(1, 3), (3, 99999999999), (4, 5)]",
    ],
    "lake_dedup": [
        "100 sent, 100 landed",
        "100 sent, 50 landed: half of them came before the restart",
        "150 rows, 150 different ids",
    ],
    "lake_json": [
        "landed 1000 orders, offsets [499, 499]",
        "landed 500 more, offsets [749, 749]",
        "1500 rows, 1500 of them distinct",
    ],
    "lake_transforms_and_routing": [
        "order 1: 20.50 from SE, tag new, t-1, checkout",
        "order 3: 9.99 from TR, tag None, t-3, checkout",
        "returns: ['return 1'], date: False",
        "other: ['login 4'], date: True",
    ],
    "own_ledger": [
        "seat 0 for ann: accepted",
        "seat 0 for bob: ignored taken by ann",
        "seat 1 for bob: accepted",
        "seat 7 for cem: ignored there is no such seat",
        "both desks agree: True",
    ],
    "queue_async": [
        "200 pages fetched by 1 thread",
        "one after the other it takes five times as long: True",
    ],
    "queue_delayed": [
        "came: now, in one second, in two seconds",
        "none too early: True",
    ],
    "queue_hello": ["order 1: kettle", "order 2: lamp", "order 3: rope"],
    "queue_long_task": [
        "Moby Dick: attempt 1 begins at page 1",
        "Moby Dick: attempt 2 begins at page 5",
        "pages: 1 2 3 4 5 6 7 8",
        "longer than the lease: True",
    ],
    "queue_order": [
        "ann: ordered → paid → shipped",
        "bob: ordered → paid → shipped",
        "cem: ordered → paid → shipped",
        "bob came last: True",
    ],
    "queue_pull": [
        "from a friend: read at attempt 1",
        "smeared: attempt 1",
        "smeared: attempt 2",
        "from the bank: read at attempt 2",
    ],
    "queue_retries": [
        "attempts: {'ann': 2, 'bob': 1, 'cem': 1, 'dee': 2, 'eve': 3}",
        "dead: bob: given up",
        "dead: cem: closed his account",
        "dead: eve: attempts used up",
    ],
    "ranges": [
        "300 orders worked on by 3 members of one partition",
        "order 77 was tried 5 times, the others 1",
        "dead letters: [b'order 77']",
    ],
    "shared_consumption": ["1000 orders sent, 1000 worked on, by 2 members"],
    "at_most_once": [
        "first prints a",
        "first prints b",
        "second prints c",
        "second prints d",
        "second prints e",
    ],
    "lock": [
        "written: first report",
        "written: second report",
        "refused: a zombie's report",
        "run under a token: True",
    ],
    "singleton_job": [
        "periods that were run more than once: 0",
        "enough periods were run: True",
        "the report is that of the newest one: True",
    ],
    "transactions": [
        "fenced: stop this work, or call settle_and_renew, read positions again, and go on under the fresh id",
        "goes on under: shop-worker-1-2",
        "orders:   [b'order 1']",
        "invoices: [b'invoice 1']",
    ],
}


def test_there_is_a_check_for_every_example() -> None:
    assert {path.parent.name for path in EXAMPLES.glob("*/main.py")} == set(SAID)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", [pytest.param(name, marks=[pytest.mark.long] * (name in LONG)) for name in SAID])
def test_the_example_runs_and_says_what_it_should(name: str, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, EXAMPLES / name / "main.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=560,
        check=False,
    )

    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == SAID[name]
    assert done.stderr.replace(OF_JAVA, "") == ""
