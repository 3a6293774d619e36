"""Which columns a row has and where each comes from: a field of the message, an expression, or a constant."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from pyspark.sql import Column, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql import types as T  # noqa: N812

from penstock.errors import ConfigError, InvariantBroken

_NAME = r"[A-Za-z_][A-Za-z0-9_-]*"
_PATH = re.compile(rf"{_NAME}(?:\.{_NAME}|\[(?:-?\d+|\*)\])*")
_STEP = re.compile(rf"\.?({_NAME})|\[(-?\d+|\*)\]")


@dataclass(frozen=True)
class Target:
    """One column of the table, or one field of a nested one."""

    value: Column
    source: T.DataType
    """The type that it comes in."""
    field: T.StructField
    """The name, type and nullability that it has where no table says otherwise."""
    is_json: bool = False


Tree = dict[str, "Target | Tree"]


def message_targets(row: Column, read: T.StructType, declared: T.StructType, *, is_json: bool) -> Tree:
    """Every field of the message as a column of its own."""
    return {
        field.name: Target(row.getField(field.name), read[field.name].dataType, field, is_json)
        for field in declared.fields
    }


def put(tree: Tree, target: str, value: Column, kind: T.DataType) -> None:
    """Set a column, or with dots a field inside one, in the place of what the message has there."""
    *above, last = target.split(".")
    if not all((*above, last)):
        raise ConfigError(f"{target!r} is no column", next_step='write "column" or "column.field"')
    for name in above:
        tree = _inside(tree, name, target)
    same = next((name for name in tree if name.lower() == last.lower()), last)
    tree[same] = Target(value, kind, T.StructField(same, kind))


def _inside(tree: Tree, name: str, target: str) -> Tree:
    """The fields of a nested column: those of the message's own struct, if there is one."""
    same = next((one for one in tree if one.lower() == name.lower()), name)
    here = tree.get(same, {})
    if isinstance(here, Target):
        here = _fields_of(here, target)
    tree[same] = here
    return here


def _fields_of(column: Target, target: str) -> Tree:
    match column.source, column.field.dataType:
        case T.StructType() as source, T.StructType() as declared:
            return message_targets(column.value, source, declared, is_json=column.is_json)
    raise ConfigError(
        f"transform {target}: {column.field.name} is {column.source.simpleString()} and has no fields",
        next_step=f"set {column.field.name} itself, or choose another name",
    )


def assembled(tree: Tree) -> tuple[Target, ...]:
    """One target per column: what is nested becomes a struct."""
    return tuple(one if isinstance(one, Target) else _struct(name, one) for name, one in tree.items())


def _struct(name: str, tree: Tree) -> Target:
    inside = assembled(tree)
    return Target(
        F.struct(*(one.value.alias(one.field.name) for one in inside)),
        T.StructType([T.StructField(one.field.name, one.source) for one in inside]),
        T.StructField(name, T.StructType([one.field for one in inside])),
        any(one.is_json for one in inside),
    )


def compiled(source: str, fields: T.StructType, kafka: T.StructType) -> Column:
    """A source as a column: a path into the message or `kafka`, else a Spark SQL expression over both.

    Raises ConfigError for a path to a field that is not there.
    """
    text = source.strip()
    if _PATH.fullmatch(text):
        first = re.match(_NAME, text)
        name = first[0] if first else ""
        if name == "kafka" or name in fields.names:
            return _path(text, T.StructType([*fields.fields, T.StructField("kafka", kafka)]))
    return F.expr(text)


def _path(text: str, fields: T.StructType) -> Column:
    column, kind = F.lit(None), fields
    for number, step in enumerate(_STEP.finditer(text)):
        name, index = step[1], step[2]
        column, kind = (
            _field(column, kind, name, text, first=number == 0) if name else _element(column, kind, index, text)
        )
    return column


def _field(column: Column, kind: T.DataType, name: str, text: str, *, first: bool) -> tuple[Column, T.DataType]:
    match kind:
        case T.StructType() if name in kind.names:
            return F.col(f"`{name}`") if first else column.getField(name), kind[name].dataType
        case T.ArrayType(elementType=T.StructType() as inside) if name in inside.names:
            return F.transform(column, lambda one: one.getField(name)), T.ArrayType(inside[name].dataType)
        case T.MapType():
            return F.try_element_at(column, F.lit(name)), kind.valueType
    known = kind.names if isinstance(kind, T.StructType) else []
    raise _unknown(name, text, known)


def _element(column: Column, kind: T.DataType, index: str, text: str) -> tuple[Column, T.DataType]:
    if not isinstance(kind, T.ArrayType):
        raise ConfigError(
            f"{text}: [{index}] is for lists, and this is {kind.simpleString()}", next_step="leave it out"
        )
    if index == "*":
        return column, kind
    # From 0, or from the end with -1; beyond the end there is nothing, which is no mistake of the message.
    position = int(index) + 1 if int(index) >= 0 else int(index)
    return F.try_element_at(column, F.lit(position)), kind.elementType


def _unknown(name: str, text: str, known: Iterable[str]) -> ConfigError:
    meant = difflib.get_close_matches(name, list(known), n=1, cutoff=0.5)
    hint = f"did you mean {meant[0]}?" if meant else f"known there: {', '.join(known) or 'nothing'}"
    return ConfigError(f"{text}: there is no field {name}", next_step=hint)


def constant(value: str | int | float | bool) -> tuple[Column, T.DataType]:
    kinds: Mapping[type, T.DataType] = {
        bool: T.BooleanType(),
        int: T.LongType(),
        float: T.DoubleType(),
        str: T.StringType(),
    }
    kind = kinds[type(value)]
    return F.lit(value).cast(kind), kind


def tried(expression: Column) -> Column:
    """A struct with the expression's `value`, or null where computing it fails: one bad message, not a dead stream.

    Spark's own `try_` functions only cover a few operators; this is the expression that they are made of.
    """
    spark = SparkSession.getActiveSession()
    if spark is None:
        raise InvariantBroken("a shape was made without a Spark session")
    jvm = spark._jvm
    bridge = jvm.org.apache.spark.sql.classic.ExpressionUtils
    child = bridge.expression(F.struct(expression.alias("value"))._jc)
    return Column(bridge.column(jvm.org.apache.spark.sql.catalyst.expressions.TryEval(child)))
