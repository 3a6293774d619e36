"""An `async def` handler: many messages at once on one loop, none of them in a thread of its own."""

import asyncio
import threading
import time

import penstock
from penstock.settings import KafkaSettings, Settings

COUNT = 200

with penstock.broker.Embedded() as kafka:
    app = penstock.App("crawler", settings=Settings(kafka=KafkaSettings(bootstrap_servers=kafka.bootstrap)))
    pages = app.queue("pages")
    fetched: set[str] = set()
    threads: set[str] = set()
    times: list[float] = []
    done = threading.Event()

    @pages.handler(concurrency=100)
    async def fetch(page: str) -> None:
        times.append(time.monotonic())
        threads.add(threading.current_thread().name)
        await asyncio.sleep(0.2)  # as if it waited for a server
        fetched.add(page)
        times.append(time.monotonic())
        if len(fetched) == COUNT:
            done.set()

    with app:
        pages.send_many(f"https://example.org/{number}" for number in range(COUNT))
        app.work(stopping=done)

    print(f"{len(fetched)} pages fetched by {len(threads)} thread")
    print("one after the other it takes five times as long:", 5 * (max(times) - min(times)) < COUNT * 0.2)
