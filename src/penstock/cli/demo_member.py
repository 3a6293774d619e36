"""A member of the demo's group, as a process of its own: `python -m penstock.cli.demo_member BOOTSTRAP TOPIC CLIENT`.

It says on stdout what it was handed, a line per batch: the time of the machine's monotonic clock, partition, first
offset, one past the last.
"""

from __future__ import annotations

import sys
import time

from penstock.app import App
from penstock.settings import KafkaSettings, Settings


def main() -> None:
    bootstrap, topic, client = sys.argv[1:]
    app = App("demo", settings=Settings(kafka=KafkaSettings(bootstrap_servers=bootstrap)))
    with app.group(client=client).consume([topic]) as messages:
        for batch in messages.batches():
            first, last = batch.records[0], batch.records[-1]
            print(time.monotonic(), first.partition(), first.offset(), last.offset() + 1, flush=True)
            batch.ack()


if __name__ == "__main__":
    main()
