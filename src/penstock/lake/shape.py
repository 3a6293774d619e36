"""From Kafka's frame to rows: read each value once, compute columns, fit them to the table, say what is wrong.

Everything here is Spark SQL, prepared once and applied to every micro-batch. A message that cannot be read or does not
fit gets its reason in `__error` and is never dropped; the others are filtered and land.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import reduce

from pyspark.errors import AnalysisException, ParseException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql import types as T  # noqa: N812

from penstock.errors import ConfigError
from penstock.lake.columns import Target, Tree, assembled, compiled, constant, message_targets, put, tried
from penstock.lake.fitting import Fit, fitted, required
from penstock.lake.formats import Reading, json_text
from penstock.lake.kafka_frame import IN_SCOPE, KAFKA, SERVICE, in_scope, service_columns
from penstock.lake.learning import rescued
from penstock.lake.options import ORIGIN, RESCUED, LakeOptions
from penstock.lake.payloads import is_packed, unpacked, unpacked_value
from penstock.lake.plans import Projection, nodes_of_more_than_one_row, nodes_other_than_projections
from penstock.lake.readings import reading_of
from penstock.lake.unpacking import PLAIN, PROBLEM

ERROR = "__error"
UNLEARNED = "__unlearned"

_PARSED, _ROW, _PROBLEM, _RESCUED = "__parsed", "__row", "__problem", "__rescued"

Transform = Callable[[DataFrame], DataFrame]


@dataclass(frozen=True)
class _Expression:
    """Something that the user wrote: what it is for, its text, and the column with its `tried` value."""

    label: str
    text: str
    column: str
    target: str = ""
    """The column that it is for, if it is for one."""


@dataclass(frozen=True)
class _Landed:
    """A column of the table with its value, fitted."""

    field: T.StructField
    fit: Fit


class Shape:
    """How the messages of a topic look as rows of one table.

    `schema` is what a message has, `table` what the table has, if there is one. `columns` are those that land, and
    `new_columns` those of them that the table does not have yet.

    Where it `learns` there are messages that it cannot judge yet: a new field, a schema that was not met before. They
    are marked in `__unlearned`; `learned` is a shape that can, and with it their batch is to be shaped again.

    Raises ConfigError for expressions, columns and types that do not go together.
    """

    def __init__(
        self,
        options: LakeOptions,
        schema: T.StructType,
        *,
        table: T.StructType | None = None,
        transform: Transform | None = None,
        reading: Reading | None = None,
    ) -> None:
        self.options, self.table, self._transform = options, table, transform
        self._reading = reading or reading_of(options, _with_columns_of(table, schema, options))
        self.schema = self._reading.schema
        self.learns = self._unlearned() is not None
        self._expressions = tuple(_expressions(options))
        self._tried = [self._compiled(one).alias(one.column) for one in self._expressions]
        self._prepare()
        self._targets = self._all_targets(self._checked())
        self._landed = self._fitted(self._targets if transform is None else self._after(transform))
        self.columns = T.StructType([one.field for one in self._landed])
        known = {field.name.lower() for field in table.fields} if table else set()
        self.new_columns = tuple(field for field in self.columns.fields if field.name.lower() not in known)
        values = [one.fit.value.alias(one.field.name) for one in self._landed]
        self._lands = Projection(*values, *self._carried(), self._error().alias(ERROR))
        self._keeps = self._kept()

    def shaped(self, frame: DataFrame) -> DataFrame:
        """The rows of a Kafka frame: the table's columns, the service columns and `__error`."""
        kept = self._computed(frame)
        if self._keeps is not None:
            kept = kept.where(self._keeps)
        if self._transform is not None:
            kept = self._transform(self._gives.of(kept))
        return self._lands.of(kept)

    def learned(self, frame: DataFrame) -> Shape:
        """The shape that can judge the messages of this frame, or more of them than this one.

        Raises TransientError when what is to be looked up cannot be had now, Refused when there is no end to it.
        """
        unjudged = (
            self._scoped(frame)
            .where(F.col(UNLEARNED))
            .select(F.col(PLAIN).alias("value"), F.col("__value").alias("raw"))
        )
        reading = self._reading.learned(unjudged)
        return Shape(self.options, reading.schema, table=self.table, transform=self._transform, reading=reading)

    def _carried(self) -> list[str]:
        return [*SERVICE, UNLEARNED] if self.learns else [*SERVICE]

    def _computed(self, frame: DataFrame) -> DataFrame:
        scoped = self._scoped(frame)
        return self._computes.of(scoped) if self._tried else scoped

    def _scoped(self, frame: DataFrame) -> DataFrame:
        """The message's fields and `kafka`, under the names that expressions use."""
        value = unpacked(frame, self.options)
        there = tuple(value._jdf.columns())  # DataFrame.columns would have the whole schema sent over
        if there not in self._reads:
            self._reads[there] = self._reading_from(there)
        return self._scopes.of(self._reads[there].of(value))

    def _reading_from(self, there: tuple[str, ...]) -> Projection:
        # Chance keeps the optimizer from copying the expensive column into every filter above it.
        once = F.when(F.spark_partition_id() >= 0, self._reading.parsed(unpacked_value(self.options))).alias(_PARSED)
        if is_packed(self.options):
            return Projection(*SERVICE, PLAIN, PROBLEM, once)
        return Projection(*service_columns(there), F.col("value").alias(PLAIN), once)

    def _prepare(self) -> None:
        """Every micro-batch goes through the same projections; to make columns anew each time would take longer than
        Spark needs to plan them."""
        self._reads: dict[tuple[str, ...], Projection] = {}
        self._computes = Projection("*", *self._tried)
        parsed = F.col(_PARSED)
        problem, row = self._reading.problem(parsed, F.col(PLAIN)), self._reading.row(parsed)
        if is_packed(self.options):
            problem = F.coalesce(F.col(PROBLEM), problem)
        added = [one for one in (self._unlearned(), self._rescued()) if one is not None]
        self._scopes = Projection(*SERVICE, PLAIN, row.alias(_ROW), problem.alias(_PROBLEM), *added, *self._scope(row))

    def _scope(self, row: Column) -> list[Column]:
        if not self._expressions and self._transform is None:
            return []
        with_headers = self._transform is not None or any("headers" in one.text.lower() for one in self._expressions)
        names = [name for name in self._reading.fields.names if name.lower() != "kafka"]
        return [in_scope(with_headers=with_headers).alias("kafka"), *(row.getField(n).alias(n) for n in names)]

    def _unlearned(self) -> Column | None:
        found = self._reading.unlearned(F.col(_PARSED), F.col(PLAIN))
        return None if found is None else found.alias(UNLEARNED)

    def _rescued(self) -> Column | None:
        if self.options.schema != "rescue":
            return None
        text = json_text(F.col(PLAIN), framed=self.options.format == "json_registry")
        return rescued(text, self._reading.fields).alias(_RESCUED)

    def _compiled(self, one: _Expression) -> Column:
        try:
            return tried(compiled(one.text, self._reading.fields, IN_SCOPE))
        except ParseException as failure:
            raise self._objection(one, failure) from None

    def _checked(self) -> T.StructType:
        """The types of all expressions; each is tried alone, so that an objection names the right one."""
        scope = self._scoped(_empty())
        for one, column in zip(self._expressions, self._tried, strict=True):
            try:
                checked = scope.select("*", column)
            except AnalysisException as failure:
                raise self._objection(one, failure) from None
            if forbidden := nodes_of_more_than_one_row(checked):
                raise ConfigError(
                    f"lake.{self.options.name}.{one.label} needs other messages ({', '.join(forbidden)}): {one.text}",
                    next_step="a row is made from one message; aggregate when you read the table",
                )
            if not one.target and not isinstance(_value_type(checked.schema, one), T.BooleanType):
                raise ConfigError(
                    f"lake.{self.options.name}.{one.label}: {one.text!r} is neither true nor false",
                    next_step='write a condition, such as "amount > 0"',
                )
        schema: T.StructType = scope.select(*self._tried).schema
        return schema

    def _objection(self, one: _Expression, failure: Exception) -> ConfigError:
        reason = next(line for line in str(failure).splitlines() if line.strip()).strip()
        return ConfigError(
            f"lake.{self.options.name}.{one.label}: {one.text!r} does not work: {reason}",
            next_step=f"known are {', '.join(self._reading.fields.names) or 'no fields'} and kafka.*",
        )

    def _all_targets(self, types: T.StructType) -> tuple[Target, ...]:
        reading, options = self._reading, self.options
        tree: Tree = message_targets(F.col(_ROW), reading.fields, reading.schema, is_json=reading.is_json)
        _check_names(tree, options)
        for one in self._expressions:
            if one.target:
                put(tree, one.target, F.col(one.column).getField("value"), _value_type(types, one))
        for name, value in options.metadata.items():
            put(tree, name, *constant(value))
        if options.schema == "rescue":
            put(tree, RESCUED, F.col(_RESCUED), T.StringType())
        if options.origin_columns:
            for name in ORIGIN:
                put(tree, name, F.col(f"_{name}"), KAFKA[name[1:]].dataType)
        return assembled(tree)

    def _given(self) -> Projection:
        """What a `transform` function gets: the row as it would land, and our own columns, which it has to leave."""
        values = [one.value.alias(one.field.name) for one in self._targets]
        return Projection(*values, "kafka", *self._carried(), _PROBLEM, *(one.column for one in self._expressions))

    def _after(self, transform: Transform) -> tuple[Target, ...]:
        """The columns that a `transform` function makes of a row."""
        self._gives = self._given()
        given = self._gives.of(self._computed(_empty()))
        made = transform(given)
        if other := nodes_other_than_projections(made):
            raise ConfigError(
                f"the transform of lake.{self.options.name} does more than compute columns: {', '.join(other)}",
                next_step="make one row of each message: drop messages with filter=, aggregate when you read the table",
            )
        lost = [name for name in given.columns if name.startswith("__") and name not in made.columns]
        if lost:
            raise ConfigError(
                f"the transform of lake.{self.options.name} loses {', '.join(lost)}",
                next_step='keep the columns that begin with __: use select("*", ...), withColumn or drop',
            )
        json = {one.field.name for one in self._targets if one.is_json}
        fields = [field for field in made.schema.fields if not field.name.startswith("__") and field.name != "kafka"]
        return tuple(
            Target(F.col(f"`{f.name}`"), f.dataType, T.StructField(f.name, f.dataType), f.name in json) for f in fields
        )

    def _fitted(self, targets: tuple[Target, ...]) -> tuple[_Landed, ...]:
        if self.table is None:
            return tuple(_landed(one, one.field) for one in targets)
        by_name = {one.field.name.lower(): one for one in targets}
        known = {field.name.lower() for field in self.table.fields}
        missing = [one.name for one in self.table.fields if one.name.lower() not in by_name and _must_be_filled(one)]
        if missing:
            raise ConfigError(
                f"nothing fills {', '.join(missing)}, which the table declares NOT NULL",
                next_step="add it to columns or transforms",
            )
        there = [_landed(by_name[f.name.lower()], f) for f in self.table.fields if f.name.lower() in by_name]
        if self.options.schema == "evolve":
            there += [_landed(one, one.field) for name, one in by_name.items() if name not in known]
        else:
            self._check_all_have_a_column(known)
        return tuple(there)

    def _check_all_have_a_column(self, known: set[str]) -> None:
        """Fields of the message that the table does not have are left out; what was asked for by name is not."""
        absent = [name for name in asked_for(self.options) if name.split(".")[0].lower() not in known]
        if absent:
            raise ConfigError(
                f"the table has no column for {', '.join(absent)}",
                next_step='add it to the table, leave it out (origin_columns = false), or use schema = "evolve"',
            )

    def _error(self) -> Column:
        """The first thing that is wrong with a message."""
        failed = [F.when(F.col(one.column).isNull(), f"{one.label} failed: {one.text}") for one in self._expressions]
        misfits = [
            (one.fit.misfit, f"{one.field.name} is missing or does not fit {_said(one.field)}")
            for one in self._landed
            if one.fit.misfit is not None
        ]
        error = F.coalesce(F.col(_PROBLEM), *failed, *(F.when(misfit, said) for misfit, said in misfits))
        # What is only worked out behind something else, Spark works out again: so all misfits are asked for up front.
        fits = F.least(F.lit(1), *(F.when(misfit, 0) for misfit, _ in misfits)) if misfits else F.lit(1)
        return F.when((fits == 0) | F.coalesce(F.col(_PROBLEM), *failed).isNotNull(), error)

    def _kept(self) -> Column | None:
        """Whether a message is this table's; one that cannot be read is, unless it surely belongs to another."""
        problem, row = F.col(_PROBLEM).isNotNull(), F.col(_ROW)
        kept = []
        for one in self._expressions:
            holds = F.coalesce(F.col(one.column).getField("value"), F.lit(False)) | F.col(one.column).isNull()
            if one.label == "filter":
                kept.append(problem | holds)
            if one.label == "condition":
                named = [row.getField(name).isNotNull() for name in self._named_in(one.text)]
                decided = reduce(lambda a, b: a & b, named, row.isNotNull())
                kept.append(holds | (problem & ~decided))
        return reduce(lambda a, b: a & b, kept) if kept else None

    def _named_in(self, text: str) -> list[str]:
        words = {word.lower() for word in re.findall(r"\w+", text)}
        return [name for name in self._reading.fields.names if name.lower() in words]


def _expressions(options: LakeOptions) -> Iterable[_Expression]:
    written = [
        *((f"transforms.{target}", source, target) for target, source in options.transforms.items()),
        *([("filter", options.filter, "")] if options.filter else []),
        *([("condition", options.condition, "")] if options.condition else []),
    ]
    for number, (label, text, target) in enumerate(written):
        yield _Expression(label, text, f"__computed_{number}", target)


def asked_for(options: LakeOptions) -> list[str]:
    """The columns that are there because of the options, not because of the messages."""
    rescue = (RESCUED,) if options.schema == "rescue" else ()
    return [*options.transforms, *options.metadata, *rescue, *(ORIGIN if options.origin_columns else ())]


def _with_columns_of(table: T.StructType | None, schema: T.StructType, options: LakeOptions) -> T.StructType:
    """A table that evolves knows more fields than the schema did when it was made."""
    if table is None or options.schema != "evolve":
        return schema
    known = {name.lower() for name in (*schema.names, *(asked.split(".")[0] for asked in asked_for(options)))}
    grown = [T.StructField(f.name, f.dataType) for f in table.fields if f.name.lower() not in known]
    return T.StructType([*schema.fields, *grown])


def _value_type(types: T.StructType, one: _Expression) -> T.DataType:
    struct: T.StructType = types[one.column].dataType
    return struct["value"].dataType


def _landed(target: Target, field: T.StructField) -> _Landed:
    if isinstance(field.dataType, T.NullType):
        raise ConfigError(f"{field.name} has no type", next_step=f'give it one: {field.name} = "cast(... AS STRING)"')
    fit = fitted(target.value, target.source, field.dataType, where=field.name, is_json=target.is_json)
    return _Landed(field, fit if field.nullable else required(fit))


def _must_be_filled(field: T.StructField) -> bool:
    filled = ("delta.generationExpression", "CURRENT_DEFAULT", "delta.identity.start")
    return not field.nullable and not any(name in field.metadata for name in filled)


def _check_names(tree: Tree, options: LakeOptions) -> None:
    lowered = [name.lower() for name in tree]
    twice = sorted({name for name in lowered if lowered.count(name) > 1})
    if twice:
        raise ConfigError(
            f"{', '.join(twice)} is there twice", next_step="columns differ in more than upper and lower case"
        )
    ours = {*ORIGIN} if options.origin_columns else set()
    taken = sorted(name for name in tree if name.lower() in ours or name.startswith("__"))
    if taken:
        raise ConfigError(
            f"the message's field {', '.join(taken)} has a name that Penstock uses itself",
            next_step="leave it out of columns and give it another name with a transform, or origin_columns = false",
        )


def _said(field: T.StructField) -> str:
    return f"{field.dataType.simpleString()}{'' if field.nullable else ' NOT NULL'}"


def _empty() -> DataFrame:
    return SparkSession.active().createDataFrame([], KAFKA)
