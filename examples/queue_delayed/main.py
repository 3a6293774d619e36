"""Messages that are not due yet hold nobody up; one that is too late is not handled at all."""

import threading
import time
from datetime import UTC, datetime, timedelta

import penstock
from penstock.settings import KafkaSettings, Settings

with penstock.broker.Embedded() as kafka:
    app = penstock.App("shop", settings=Settings(kafka=KafkaSettings(bootstrap_servers=kafka.bootstrap)))
    reminders = app.queue("reminders", partitions=1)
    came: dict[str, float] = {}
    done = threading.Event()

    @reminders.handler()
    def remind(text: str) -> None:
        came[text] = time.time()
        if len(came) == 3:
            done.set()

    with app:
        reminders.send("too late", ttl="10ms")  # nobody works yet, so it is dropped
        with app.working() as [station]:
            station.is_ready.wait()
            sent = time.time()
            reminders.send("in two seconds", delay="2s")  # any horizon: the message waits in its topic
            reminders.send("in one second", at=datetime.now(UTC) + timedelta(seconds=1))
            reminders.send("now")
            done.wait()

    print("came:", ", ".join(sorted(came, key=lambda text: came[text])))
    print("none too early:", came["in one second"] >= sent + 1 and came["in two seconds"] >= sent + 2)
