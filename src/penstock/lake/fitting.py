"""How a value becomes a value of a column's type, and when it does not fit. docs/lake-types.md is this file in words.

Nothing turns into null on its way: what cannot be had exactly (a text that is no number, a number out of bounds, a
missing value in a NOT NULL column) is a misfit, and its message a dead letter. What may be lost is said here: digits
behind a decimal's scale, the precision of a float, the time of day in a date.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import reduce

from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql import types as T  # noqa: N812

from penstock.errors import ConfigError

_WHOLE = (T.ByteType, T.ShortType, T.IntegerType, T.LongType)
_WIDTH = {T.ByteType: 1, T.ShortType: 2, T.IntegerType: 4, T.LongType: 8, T.FloatType: 16, T.DoubleType: 32}
_TIMES = (T.DateType, T.TimestampType, T.TimestampNTZType)
# Milliseconds where seconds are meant are the year 58054: other readers of the table could not even show it.
# So these are the first second of the year 1 and the last of 9999.
_SECONDS = (-62_135_596_800, 253_402_300_799)
_NESTED = (T.StructType, T.ArrayType, T.MapType)


@dataclass(frozen=True)
class Fit:
    """A value in its column's type, and whether it is a misfit; None: it never is."""

    value: Column
    misfit: Column | None = None


def fitted(value: Column, source: T.DataType, target: T.DataType, *, where: str, is_json: bool = False) -> Fit:
    """The value as the target's type. `is_json`: it was just read from JSON, which has no infinity.

    Raises ConfigError when no value of the one type makes sense in the other.
    """
    match source, target:
        case T.NullType(), _:
            return Fit(value.cast(target))
        case T.StructType(), T.StructType():
            return _struct(value, source, target, where, is_json)
        case T.ArrayType(), T.ArrayType():
            return _array(value, source, target, where, is_json)
        case T.MapType(), T.MapType():
            return _map(value, source, target, where, is_json)
        case _, T.StringType() if isinstance(source, _NESTED):
            return Fit(F.to_json(value))
        case _ if type(source) is type(target) and source == target:
            return Fit(value, _not_finite(value) if is_json and _is_float(source) else None)
    cast = value.try_cast(target)
    if isinstance(target, T.StringType | T.BinaryType) and isinstance(source, T.AtomicType):
        return Fit(value.cast(target)) if isinstance(target, T.StringType) else _cast_of_text(value, source, where)
    if isinstance(source, T.StringType) and isinstance(target, T.TimestampType | T.TimestampNTZType):
        return _moment(value, target)
    if isinstance(source, T.StringType) and isinstance(target, T.AtomicType):
        return Fit(cast, value.isNotNull() & cast.isNull())
    if isinstance(source, _TIMES) and isinstance(target, _TIMES):
        return Fit(cast, value.isNotNull() & cast.isNull())
    if isinstance(source, T.NumericType) and isinstance(target, T.NumericType):
        return _number(value, cast, source, target)
    raise _no_way(source, target, where)


def required(fit: Fit) -> Fit:
    """The same for a column that must have a value."""
    missing = fit.value.isNull()
    return Fit(fit.value, missing if fit.misfit is None else fit.misfit | missing)


def _moment(text: Column, target: T.DataType) -> Fit:
    """A date and a time, or whole seconds since 1970. Spark would also take a time alone, and put it on today."""
    seconds = F.timestamp_seconds(text.try_cast("bigint")).cast(target)
    moment = F.when(text.substr(5, 1) == "-", text.try_cast(target)).otherwise(seconds)
    # Milliseconds where seconds are meant are the year 58054: other readers of the table could not even show it.
    of_years_1_to_9999 = F.abs(F.year(moment) - 5_000) < 5_000
    return Fit(moment, text.isNotNull() & ~F.coalesce(of_years_1_to_9999, F.lit(False)))


def _number(value: Column, cast: Column, source: T.DataType, target: T.DataType) -> Fit:
    if isinstance(target, _WHOLE):
        # 2.0 is 2; what has a fraction, or is too large, comes back as another number.
        if isinstance(source, _WHOLE) and _WIDTH[type(source)] <= _WIDTH[type(target)]:
            return Fit(cast)
        return Fit(cast, value.isNotNull() & (cast.isNull() | (cast.cast(source) != value)))
    if _is_float(target):
        overflown = F.abs(cast) == F.lit(float("inf"))
        return Fit(cast, value.isNotNull() & (cast.isNull() | (overflown & ~_is_infinite(value, source))))
    return Fit(cast, value.isNotNull() & cast.isNull())


def _struct(value: Column, source: T.StructType, target: T.StructType, where: str, is_json: bool) -> Fit:
    """Field by field, by name: what the target does not have is left out, what the source does not have is null."""
    if source == target and not _may_misfit(target, is_json):
        return Fit(value)
    by_name = {field.name.lower(): field for field in source.fields}
    fits = []
    for field in target.fields:
        here = by_name.get(field.name.lower())
        inside = value.getField(here.name) if here else F.lit(None)
        kind = here.dataType if here else T.NullType()
        fit = fitted(inside, kind, field.dataType, where=f"{where}.{field.name}", is_json=is_json)
        fits.append(fit if field.nullable else required(fit))
    whole = F.struct(*(fit.value.alias(field.name) for fit, field in zip(fits, target.fields, strict=True)))
    misfit = any_of(fit.misfit for fit in fits)
    return Fit(F.when(value.isNotNull(), whole), None if misfit is None else value.isNotNull() & misfit)


def _array(value: Column, source: T.ArrayType, target: T.ArrayType, where: str, is_json: bool) -> Fit:
    if source.elementType == target.elementType and target.containsNull and not _may_misfit(target, is_json):
        return Fit(value)

    def element(one: Column) -> Fit:
        fit = fitted(one, source.elementType, target.elementType, where=f"{where}[]", is_json=is_json)
        return fit if target.containsNull else required(fit)

    return Fit(F.transform(value, lambda one: element(one).value), _any_inside(value, element))


def _map(value: Column, source: T.MapType, target: T.MapType, where: str, is_json: bool) -> Fit:
    if not isinstance(target.keyType, T.StringType) or not isinstance(source.keyType, T.StringType):
        if source == target:
            return Fit(value)
        raise _no_way(source, target, where)
    if source.valueType == target.valueType and target.valueContainsNull and not _may_misfit(target, is_json):
        return Fit(value)

    def inside(one: Column) -> Fit:
        fit = fitted(one, source.valueType, target.valueType, where=f"{where}{{}}", is_json=is_json)
        return fit if target.valueContainsNull else required(fit)

    return Fit(F.transform_values(value, lambda _, one: inside(one).value), _any_inside(F.map_values(value), inside))


def _any_inside(values: Column, fit: Callable[[Column], Fit]) -> Column | None:
    if fit(F.lit(None)).misfit is None:
        return None
    return F.coalesce(F.exists(values, lambda one: F.coalesce(fit(one).misfit, F.lit(False))), F.lit(False))


def any_of(misfits: object) -> Column | None:
    """Whether any of them is true; a null counts as no."""
    known = [F.coalesce(one, F.lit(False)) for one in misfits if one is not None]  # type: ignore[attr-defined]
    return reduce(lambda a, b: a | b, known) if known else None


def _may_misfit(kind: T.DataType, is_json: bool) -> bool:
    """Whether a value that already has this type may still not fit."""
    match kind:
        case T.StructType():
            return any(not field.nullable or _may_misfit(field.dataType, is_json) for field in kind.fields)
        case T.ArrayType():
            return not kind.containsNull or _may_misfit(kind.elementType, is_json)
        case T.MapType():
            return not kind.valueContainsNull or _may_misfit(kind.valueType, is_json)
    return is_json and _is_float(kind)


def _cast_of_text(value: Column, source: T.DataType, where: str) -> Fit:
    if isinstance(source, T.StringType | T.BinaryType):
        return Fit(value.cast("binary"))
    raise _no_way(source, T.BinaryType(), where)


def _not_finite(value: Column) -> Column:
    return F.isnan(value) | (F.abs(value) == F.lit(float("inf")))


def _is_infinite(value: Column, source: T.DataType) -> Column:
    return F.abs(value) == F.lit(float("inf")) if _is_float(source) else F.lit(False)


def _is_float(kind: T.DataType) -> bool:
    return isinstance(kind, T.FloatType | T.DoubleType)


def _no_way(source: T.DataType, target: T.DataType, where: str) -> ConfigError:
    return ConfigError(
        f"{where} is {target.simpleString()}, and {source.simpleString()} does not go into it",
        next_step=f'give the column another type, or a transform: {where} = "cast(...)"',
    )
