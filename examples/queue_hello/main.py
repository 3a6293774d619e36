"""A queue: messages are sent to it, and a handler gets each of them."""

import threading
from dataclasses import dataclass

import penstock
from penstock.settings import KafkaSettings, Settings


@dataclass
class Order:
    id: int
    item: str


with penstock.broker.Embedded() as kafka:
    app = penstock.App("shop", settings=Settings(kafka=KafkaSettings(bootstrap_servers=kafka.bootstrap)))
    orders = app.queue("orders")
    packed: list[str] = []
    done = threading.Event()

    @orders.handler(concurrency=4)
    def pack(order: Order) -> None:
        packed.append(f"order {order.id}: {order.item}")
        if len(packed) == 3:
            done.set()

    with app:
        orders.send_many(Order(number, item) for number, item in enumerate(["kettle", "lamp", "rope"], start=1))
        app.work(stopping=done)  # a program of its own would say app.work(), and end by SIGTERM or Ctrl-C

    print(*sorted(packed), sep="\n")
