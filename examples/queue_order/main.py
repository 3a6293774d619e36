"""Order by key: what one customer did is handled in turn, also through a retry; nobody waits for other customers."""

import threading
import time

import penstock
from penstock.settings import KafkaSettings, Settings

STEPS = ["ordered", "paid", "shipped"]
CUSTOMERS = ["ann", "bob", "cem"]

with penstock.broker.Embedded() as kafka:
    app = penstock.App("shop", settings=Settings(kafka=KafkaSettings(bootstrap_servers=kafka.bootstrap)))
    events = app.queue("events", order="key", backoff="500ms")
    seen: dict[str, list[str]] = {customer: [] for customer in CUSTOMERS}
    finished: list[str] = []
    done = threading.Event()

    @events.handler(concurrency=8)
    def follow(step: str, message: penstock.Message) -> None:
        customer = (message.key or b"").decode()
        if (customer, step, message.attempt) == ("bob", "paid", 1):
            raise TimeoutError  # "shipped" waits until "paid" was tried again
        time.sleep(0.01)
        seen[customer].append(step)
        if step == STEPS[-1]:
            finished.append(customer)
        if len(finished) == len(CUSTOMERS):
            done.set()

    with app:
        events.send_many(penstock.Outgoing(step, key=customer) for step in STEPS for customer in CUSTOMERS)
        app.work(stopping=done)

    for customer, steps in seen.items():
        print(f"{customer}: {' → '.join(steps)}")
    print("bob came last:", finished[-1] == "bob")
