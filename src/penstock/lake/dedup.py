"""Messages that come twice, within a window of time: Spark remembers their ids in its own state.

The state forgets by a watermark, and Spark drops what is older than that, for it cannot tell whether it came before. We
lose nothing: such late messages are read from Kafka once more, and landed without the question.
"""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from penstock.claims.lag import next_times
from penstock.kafka.topics import Admin
from penstock.lake.offsets import Offsets
from penstock.lake.options import LakeOptions
from penstock.settings import KafkaSettings
from penstock.values import TopicPartition

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

_NODE = "StreamingDeduplicateWithinWatermark"


def deduplicated(frame: DataFrame, options: LakeOptions, schema: StructType) -> DataFrame:
    """Kafka's stream without messages whose id came before, within the window.

    A message without an id, or one that cannot be read, is like no other.
    """
    from pyspark.sql import functions as F  # noqa: N812

    from penstock.lake.kafka_frame import SERVICE
    from penstock.lake.shape import Shape

    everything = replace(options, route=(), condition="")
    shaped = Shape(everything, schema).shaped(frame)
    ids = [F.col(name) for name in options.dedup]
    has_id = F.col("__error").isNull()
    for each in ids:
        has_id &= each.isNotNull()
    own = F.concat_ws("/", "__topic", "__partition", "__offset")
    named = F.to_json(F.struct(*(each.alias(f"id{number}") for number, each in enumerate(ids))))
    return (
        shaped.select(*SERVICE, F.when(has_id, named).otherwise(own).alias("__id"))
        .withWatermark("__timestamp", f"{int(options.dedup_within)} milliseconds")
        .dropDuplicatesWithinWatermark(["__id"])
        .select(*(F.col(name).alias(name.removeprefix("__")) for name in SERVICE))
    )


def dropped_before(run: Any) -> int | None:
    """The time (in ms) up to which the batch that was just run dropped messages as late; none if there were none."""
    node = _node(run.lastExecution().executedPlan())
    if node is None or not int(node.metrics().apply("numRowsDroppedByWatermark").value()):
        return None
    return int(node.eventTimeWatermarkForLateEvents().get())


def _node(plan: Any) -> Any:
    todo = [plan]
    while todo:
        node = todo.pop()
        if str(node.nodeName()).startswith(_NODE):
            return node
        children = node.children()
        todo += [children.apply(number) for number in range(children.size())]
    return None


def remembering(
    admin: Admin, kafka: KafkaSettings, options: LakeOptions, *, starts: Offsets, stored: Offsets
) -> dict[TopicPartition, int]:
    """Where to begin without a checkpoint: one window earlier, so that the state knows again what came before.

    What is read again does not land again; it only teaches.
    """
    bounds = admin.bounds(starts)
    waiting = {(each, start) for each, start in starts.items() if start < bounds[each].stable_end}
    times = next_times(kafka, waiting).values()
    since = min(times, default=int(time.time() * 1_000)) - options.dedup_within
    earlier = admin.offsets_at(list(starts), max(0, since))
    return {
        each: max(bounds[each].start, min(start, earlier.get(each, start))) if each in stored else start
        for each, start in starts.items()
    }
