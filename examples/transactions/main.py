"""Two topics, one outcome: records that become visible together or not at all, and what a fence does."""

import penstock
from penstock.errors import Fenced
from penstock.kafka.reader import Reader
from penstock.kafka.topics import Admin, TopicSpec
from penstock.kafka.transactions import Transactions, fence
from penstock.settings import KafkaSettings
from penstock.values import TopicPartition

ORDERS, INVOICES = TopicPartition("orders", 0), TopicPartition("invoices", 0)


def visible(settings: KafkaSettings, partition: TopicPartition) -> list[bytes | None]:
    with Reader(settings) as reader:
        start, end = reader.bounds(partition)
        return [record.value() for record in reader.ranges(partition, [(start, end)])]


with penstock.broker.Embedded() as kafka:
    settings = KafkaSettings(bootstrap_servers=kafka.bootstrap)
    with Admin(settings) as admin:
        admin.create(
            TopicSpec(name=each.topic, partitions=1, config={}, reason="an example") for each in (ORDERS, INVOICES)
        )

    # `announce` makes the id known to whoever may have to fence it. Here that is the list below; in a cluster, a claim.
    known: list[str] = []
    with Transactions(settings, group="shop", instance="worker-1", announce=known.append) as work:
        work.open()
        work.begin()
        work.send("orders", 0, b"order 1")
        work.send("invoices", 0, b"invoice 1")
        work.commit()

        work.begin()
        work.send("orders", 0, b"order 2")
        fence(settings, known[-1])  # a successor takes over while this worker hangs
        try:
            work.commit()
        except Fenced as fenced:
            print("fenced:", fenced.next_step)
        work.settle_and_renew()
        print("goes on under:", known[-1])

    print("orders:  ", visible(settings, ORDERS))
    print("invoices:", visible(settings, INVOICES))
