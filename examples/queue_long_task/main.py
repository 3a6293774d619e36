"""A task that takes longer than its lease, and goes on where a failed attempt had stopped.

The lease is renewed for as long as the process lives, so it need not be as long as the task. What was done is left as
a resume token, which the next attempt finds, in whatever process it runs.
"""

import threading
import time

import penstock
from penstock.settings import KafkaSettings, Settings

PAGES = 8

with penstock.broker.Embedded() as kafka:
    app = penstock.App("press", settings=Settings(kafka=KafkaSettings(bootstrap_servers=kafka.bootstrap)))
    books = app.queue("books", lease="1s", backoff="100ms")
    printed: list[int] = []
    took: list[float] = []
    done = threading.Event()

    @books.handler()
    def print_book(title: str, message: penstock.Message) -> None:
        began = time.monotonic()
        start = int(message.resume_token or b"1")
        print(f"{title}: attempt {message.attempt} begins at page {start}")
        for page in range(start, PAGES + 1):
            if message.lease_lost:
                return  # somebody else has it: what is done from here on does not count
            time.sleep(0.4)
            printed.append(page)
            message.progress(b"%d" % (page + 1))
            if page == 4 and message.attempt == 1:
                raise RuntimeError("paper jam")
        took.append(time.monotonic() - began)
        done.set()

    with app:
        books.send("Moby Dick")
        app.work(stopping=done)

    print("pages:", *printed)
    print("longer than the lease:", took[0] > books.settings.lease.seconds)
