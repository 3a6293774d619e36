"""Consuming with transactions: what a batch caused in Kafka and how far it is are there together, or not at all."""

import penstock
from penstock.kafka.reader import Reader
from penstock.kafka.topics import Admin, TopicSpec
from penstock.kafka.writer import Writer
from penstock.settings import KafkaSettings, Settings
from penstock.values import TopicPartition

ORDERS = [b"1", b"2", b"3"]

with penstock.broker.Embedded() as kafka:
    settings = Settings(kafka=KafkaSettings(bootstrap_servers=kafka.bootstrap))
    with Admin(settings.kafka) as admin:
        admin.create(
            TopicSpec(name=name, partitions=1, config={}, reason="an example") for name in ("orders", "invoices")
        )
    with Writer(settings.kafka) as writer:
        for order in ORDERS:
            writer.send("orders", 0, order)

    app = penstock.App("shop", settings=settings)
    tries = 0
    with app.group().transact(["orders"]) as orders:
        for batch in orders.batches():
            tries += 1
            try:
                with orders.transaction(batch) as transaction:
                    for order in batch:
                        transaction.send("invoices", 0, b"invoice of order " + (order.value or b""))
                    if tries == 1:
                        raise RuntimeError("a bug, after everything was sent")
            except RuntimeError:
                print("rolled back: the batch comes again")
                continue
            if batch.records[-1].value() == ORDERS[-1]:
                break

    invoices = TopicPartition("invoices", 0)
    with Reader(settings.kafka) as reader:  # reads what is committed
        reader.assign({invoices: 0})
        found: list[bytes | None] = []
        while len(found) < len(ORDERS):
            found += [record.value() for record in reader.read(10, 100)]
    for invoice in found:
        print((invoice or b"").decode())
