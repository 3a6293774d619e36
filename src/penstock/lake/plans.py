"""What a frame would do, read off its plan before anything runs; and selections that are prepared once for many."""

from __future__ import annotations

from collections.abc import Iterator

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

_OF_MORE_THAN_ONE_ROW = (
    *("Aggregate", "Window", "Join", "Distinct", "Deduplicate", "Sort"),
    *("Repartition", "Limit", "Sample", "Generate"),
)
_PROJECTIONS = ("Project", "LogicalRDD", "LocalRelation", "SubqueryAlias", "MapInArrow")


class Projection:
    """`select` with columns that are handed to Java once: each of them would be a call of its own, in every batch."""

    def __init__(self, *columns: Column | str) -> None:
        named = [F.col(one) if isinstance(one, str) else one for one in columns]
        self._columns = SparkSession.active()._jvm.PythonUtils.toSeq([one._jc for one in named])

    def of(self, frame: DataFrame) -> DataFrame:
        return DataFrame(frame._jdf.select(self._columns), frame.sparkSession)


def nodes_of_more_than_one_row(frame: DataFrame) -> list[str]:
    """The parts of a plan that look at more than one message, or make more than one row of it."""
    names = set(_nodes(frame))
    return sorted(word for word in _OF_MORE_THAN_ONE_ROW if any(word in name for name in names))


def nodes_other_than_projections(frame: DataFrame) -> list[str]:
    return sorted({name for name in _nodes(frame) if name not in _PROJECTIONS})


def _nodes(frame: DataFrame) -> Iterator[str]:
    todo = [frame._jdf.queryExecution().analyzed()]
    while todo:
        node = todo.pop()
        yield node.nodeName()
        children = node.children()
        todo += [children.apply(number) for number in range(children.size())]
