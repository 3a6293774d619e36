"""How the options of a pipeline are written, where that is more than a number or a text."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time
from pathlib import Path
from typing import Any

from penstock.schema import PROPERTY, Form, form_of

# Options that name a place: relative ones count from the folder of the configuration.
PLACES = frozenset(("table", "dead_letters", "checkpoint", "schema_file", "route"))

_TOPIC = re.compile(r"[a-zA-Z0-9._-]{1,249}")
_SCHEME = re.compile(r"[a-zA-Z][a-zA-Z0-9+.-]*:/")
_OFFSETS_LEAST = -2  # Spark's words for earliest and latest are -2 and -1


@dataclass(frozen=True, slots=True)
class Topics:
    """What is read: topics by name, or all whose name matches a pattern."""

    names: tuple[str, ...] = ()
    pattern: str = ""

    def __str__(self) -> str:
        return self.pattern or ",".join(self.names)

    def __bool__(self) -> bool:
        return bool(self.names or self.pattern)

    @property
    def is_one(self) -> bool:
        """Whether partitions alone tell messages apart."""
        return len(self.names) == 1


@dataclass(frozen=True, slots=True)
class StartingOffsets:
    """Where to begin: earliest, latest, at the first message of a point in time, or at given offsets."""

    where: str = "earliest"
    """earliest, latest, timestamp or offsets."""

    timestamp_ms: int = 0

    offsets: Mapping[str, Mapping[int, int]] = field(default_factory=dict)
    """By topic and partition; the topic is "" where only partitions were given. Others begin at the earliest."""

    def __str__(self) -> str:
        match self.where:
            case "timestamp":
                return datetime.fromtimestamp(self.timestamp_ms / 1_000, UTC).isoformat()
            case "offsets":
                return json.dumps(self.offsets.get("", self.offsets))
        return self.where


def form_of_option(option: str, kind: Any) -> Form:
    """How an option is written; those without a form of their own are written like settings."""
    return _FORMS.get(option) or form_of(kind)


def placed(option: str, value: Any, folder: Path | None) -> Any:
    """A place that does not depend on where the process was started."""
    if option == "route":
        return tuple({k: placed(k, v, folder) if k in PLACES else v for k, v in one.items()} for one in value)
    if isinstance(value, Path):
        return (folder or Path()) / value
    if not value or _SCHEME.match(value):
        return value
    return str((folder or Path()).absolute() / Path(value).expanduser())


def _topics(value: object) -> Topics:
    if isinstance(value, Topics):
        return value
    given = [value] if isinstance(value, str) else value
    if not isinstance(given, list | tuple) or not given or not all(isinstance(one, str) and one for one in given):
        raise ValueError
    patterns = [one for one in given if not _TOPIC.fullmatch(one)]
    if not patterns:
        return Topics(names=tuple(dict.fromkeys(given)))
    if len(given) > 1:
        raise ValueError
    try:
        re.compile(patterns[0])  # Java's dialect is close enough to catch what is no pattern in either
    except re.error:
        raise ValueError from None
    return Topics(pattern=patterns[0])


def _starting_offsets(value: object) -> StartingOffsets:
    match value:
        case StartingOffsets():
            return value
        case "earliest" | "latest":
            return StartingOffsets(where=value)
        case datetime():
            return _from_time(value)
        case date():
            return _from_time(datetime.combine(value, time()))
        case str() if value.lstrip().startswith("{"):
            return _starting_offsets(json.loads(value))
        case str():
            return _from_time(datetime.fromisoformat(value))
        case Mapping() if value:
            by_topic = value if all(isinstance(inside, Mapping) for inside in value.values()) else {"": value}
            return StartingOffsets("offsets", offsets={str(t): _by_partition(inside) for t, inside in by_topic.items()})
    raise ValueError


def _from_time(moment: datetime) -> StartingOffsets:
    aware = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    return StartingOffsets("timestamp", timestamp_ms=round(aware.timestamp() * 1_000))


def _by_partition(offsets: Mapping[object, object]) -> dict[int, int]:
    read = {}
    for partition, offset in offsets.items():
        if isinstance(offset, bool) or not isinstance(offset, int) or offset < _OFFSETS_LEAST:
            raise ValueError
        read[int(str(partition))] = offset
    return read


def _texts(value: object) -> dict[str, str]:
    table = _table(value)
    if not all(isinstance(inside, str) and inside.strip() for inside in table.values()):
        raise ValueError
    return {name: str(inside) for name, inside in table.items()}


def _nested_texts(value: object) -> dict[str, str]:
    """TOML reads `address.city = "..."` without quotes as nested tables; a target with dots is meant."""
    return _texts(dict(_flattened(_table(value))))


def _constants(value: object) -> dict[str, object]:
    table = dict(_flattened(_table(value)))
    if not all(isinstance(inside, str | int | float | bool) for inside in table.values()):
        raise ValueError
    return table


def _properties(value: object) -> dict[str, object]:
    return {name: PROPERTY.read(inside) for name, inside in _flattened(_table(value))}


def _routes(value: object) -> tuple[dict[str, Any], ...]:
    if not isinstance(value, list | tuple) or not value:
        raise ValueError
    return tuple(_table(one) for one in value)


def _table(value: object) -> dict[str, Any]:
    """A table; in an environment variable it is JSON."""
    given = json.loads(value) if isinstance(value, str) else value
    if not isinstance(given, Mapping) or not all(isinstance(name, str) and name for name in given):
        raise ValueError
    return dict(given)


def _flattened(table: Mapping[str, Any], above: str = "") -> list[tuple[str, Any]]:
    flat: list[tuple[str, Any]] = []
    for name, value in table.items():
        flat += _flattened(value, f"{above}{name}.") if isinstance(value, Mapping) else [(above + name, value)]
    return flat


def _form(expected: str, read: Callable[[object], object]) -> Form:
    return Form(expected, read)


_FORMS: Mapping[str, Form] = {
    "topic": _form('a topic "orders", a list ["orders", "returns"], or one pattern "orders-.*"', _topics),
    "starting_offsets": _form(
        '"earliest", "latest", a time "2026-01-31T12:00:00Z", or the offsets { "0" = 123 }', _starting_offsets
    ),
    "transforms": _form('a table of texts: { date = "to_date(kafka.timestamp)" }', _nested_texts),
    "metadata": _form('a table of constants: { service = "checkout" }', _constants),
    "table_properties": _form('a table of properties: { "delta.appendOnly" = true }', _properties),
    "consumer": _form('a table of properties: { "max.poll.records" = 10000 }', _properties),
    "route": _form('a list of tables: [[lake.NAME.route]] with table = "..." and condition = "..."', _routes),
}
