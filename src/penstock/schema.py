"""What can be set, read off the dataclasses of `settings.py`: a new field or section there needs no code here.

A setting has one name in many spellings: `broker.heap_mb` is `[broker] heap_mb` in a file, `PENSTOCK_BROKER_HEAP_MB` in
the environment and `--heap-mb` on the command line. Here it is a path, ("broker", "heap_mb"), because names that users
give (ledgers, librdkafka properties) may have dots of their own.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple, Union, get_args, get_origin, get_type_hints

from penstock.errors import UsageError
from penstock.values import Duration, duration

SettingPath = tuple[str, ...]

ENV_PREFIX = "PENSTOCK_"


class Form(NamedTuple):
    """How a type is written by people, and how it is read; `read` raises one of WRONG_FORM."""

    expected: str
    read: Callable[[object], object]


WRONG_FORM = (ValueError, OverflowError, UsageError)


class Leaf(NamedTuple):
    """One setting with one value."""

    path: SettingPath
    form: Form


class Properties(NamedTuple):
    """An open set of text settings, such as librdkafka's: any name below this one is allowed."""

    path: SettingPath


class Sections(NamedTuple):
    """Sections that the user names, such as ledgers: `ledgers.orders`, `ledgers.returns`."""

    path: SettingPath
    settings: type


class Section(NamedTuple):
    path: SettingPath
    settings: type


class Tables(NamedTuple):
    """Tables that the user names beside a section's own settings, such as `[lake.orders]`: read by somebody else."""

    path: SettingPath
    """The path of the section: the tables have no word of their own in between."""


Shape = Leaf | Properties | Sections | Section | Tables


def shapes(settings: type, path: SettingPath = ()) -> dict[str, Shape]:
    """What each field of a settings class can hold."""
    hints = get_type_hints(settings)
    return {field.name: _shape(hints[field.name], (*path, field.name)) for field in fields(settings)}


def _shape(kind: Any, path: SettingPath) -> Shape:
    if get_origin(kind) in (Mapping, dict):
        inside = get_args(kind)[1]
        if get_origin(inside) is Mapping:
            return Tables(path[:-1])
        return Sections(path, inside) if is_dataclass(inside) else Properties(path)  # type: ignore[arg-type]
    return Section(path, kind) if is_dataclass(kind) else Leaf(path, form_of(kind))  # type: ignore[arg-type]


def build(settings: type, given: Mapping[SettingPath, object], path: SettingPath = ()) -> Any:
    """The frozen settings object with the given values, and defaults for the rest.

    Raises the UsageError of whichever `__post_init__` objects.
    """
    values: dict[str, object] = {}
    for name, shape in shapes(settings, path).items():
        match shape:
            case Section():
                values[name] = build(shape.settings, given, shape.path)
            case Sections():
                names = _names_below(given, shape.path)
                values[name] = {key: build(shape.settings, given, (*shape.path, key)) for key in names}
            case Properties():
                values[name] = {key: given[(*shape.path, key)] for key in _names_below(given, shape.path)}
            case Tables():
                ours = {field.name for field in fields(settings)} - {name}
                names = [key for key in _names_below(given, shape.path) if key not in ours]
                values[name] = {key: _values_in(given, (*shape.path, key)) for key in names}
            case Leaf() if shape.path in given:
                values[name] = given[shape.path]
            case Leaf():
                pass
    return settings(**values)


def _names_below(given: Mapping[SettingPath, object], path: SettingPath) -> list[str]:
    return list(dict.fromkeys(key[len(path)] for key in given if key[: len(path)] == path))


def _values_in(given: Mapping[SettingPath, object], table: SettingPath) -> dict[str, object]:
    return {path[-1]: value for path, value in given.items() if path[:-1] == table}


def values_of(settings: object, path: SettingPath = ()) -> Iterator[tuple[SettingPath, object]]:
    """Every setting of a settings object with its value."""
    if is_dataclass(settings):
        known = shapes(type(settings), path)
        for field in fields(settings):
            value = getattr(settings, field.name)
            if isinstance(known[field.name], Tables):
                for table, inside in value.items():
                    yield from (((*path, table, key), one) for key, one in inside.items())
            else:
                yield from values_of(value, (*path, field.name))
    elif isinstance(settings, Mapping):
        for key, value in settings.items():
            yield from values_of(value, (*path, key))
    else:
        yield path, settings


def spelled(path: SettingPath) -> str:
    """As in a file: names with dots of their own in quotes, but for librdkafka's, which are known with dots."""
    return ".".join(f'"{part}"' if "." in part and i < len(path) - 1 else part for i, part in enumerate(path))


def env_name(path: SettingPath) -> str:
    return ENV_PREFIX + "".join(c if c.isalnum() else "_" for c in "_".join(path)).upper()


def path_of_env(name: str, settings: type, known: frozenset[SettingPath], path: SettingPath = ()) -> SettingPath | None:
    """The setting that an environment variable names. `known` paths tell how the user spells names of sections."""
    for shape in shapes(settings, path).values():
        here = env_name(shape.path)
        rest = name.removeprefix(f"{here}_") if name.startswith(f"{here}_") else ""
        match shape:
            case Leaf() if name == here:
                return shape.path
            case Properties() if rest:
                return (*shape.path, rest.lower().replace("_", "."))
            case Section() if rest and (found := path_of_env(name, shape.settings, known, shape.path)):
                return found
            case Sections() if rest and (found := _path_in_sections(name, rest, shape, known)):
                return found
            case Tables() if rest and (found := _path_in_tables(name, shape, known)):
                return found
            case _:
                pass
    return None


def _path_in_sections(name: str, rest: str, shape: Sections, known: frozenset[SettingPath]) -> SettingPath | None:
    depth = len(shape.path)
    in_files = sorted({path[depth] for path in known if path[:depth] == shape.path})
    guessed = (rest[:end].lower() for end, c in enumerate(rest) if c == "_" and end)
    found = (path_of_env(name, shape.settings, known, (*shape.path, section)) for section in (*in_files, *guessed))
    return next((path for path in found if path is not None), None)


def _path_in_tables(name: str, shape: Tables, known: frozenset[SettingPath]) -> SettingPath | None:
    """Only in tables that a file names: any other variable is rather a mistake than a table of one value."""
    depth = len(shape.path)
    for table in sorted({path[:-1] for path in known if path[:depth] == shape.path and len(path) == depth + 2}):
        if name.startswith(f"{env_name(table)}_"):
            return (*table, name.removeprefix(f"{env_name(table)}_").lower())
    return None


def env_names(settings: type, path: SettingPath = ()) -> Iterator[str]:
    """The variables that exist whatever the user names, for finding the one that was meant."""
    for shape in shapes(settings, path).values():
        match shape:
            case Leaf():
                yield env_name(shape.path)
            case Section():
                yield from env_names(shape.settings, shape.path)
            case Properties() | Sections():
                yield f"{env_name(shape.path)}_"
            case Tables():
                pass


def form_of(kind: Any) -> Form:
    if kind in _FORMS:
        return _FORMS[kind]
    if get_origin(kind) is Literal:
        return _choice(get_args(kind))
    if get_origin(kind) in (Union, types.UnionType):
        return form_of(next(k for k in get_args(kind) if k is not type(None)))
    if get_origin(kind) is tuple:
        return _FORMS[tuple]
    raise TypeError(f"settings of type {kind!r} have no form yet; add one to penstock.schema")


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise ValueError
    return value


def _whole(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise ValueError
    return int(value)


def _number(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise ValueError
    return float(value)


_TRUTHS = {"true": True, "yes": True, "on": True, "1": True, "false": False, "no": False, "off": False, "0": False}


def _truth(value: object) -> bool:
    if isinstance(value, bool):
        return value
    if not isinstance(value, str) or value.strip().lower() not in _TRUTHS:
        raise ValueError
    return _TRUTHS[value.strip().lower()]


def _span(value: object) -> Duration:
    if isinstance(value, Duration):
        return value
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise ValueError
    try:
        return duration(float(value))  # the environment has only text: "30" is a number of seconds there
    except ValueError:
        return duration(value)


def _path(value: object) -> Path:
    if isinstance(value, Path):
        return value
    if not isinstance(value, str) or not value:
        raise ValueError
    return Path(value).expanduser()


def _list(value: object) -> tuple[str, ...]:
    if isinstance(value, str):
        return tuple(part.strip() for part in value.split(",") if part.strip())
    if not isinstance(value, list | tuple):
        raise ValueError
    return tuple(_text(part) for part in value)


def _property(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return str(value) if isinstance(value, int | float) else _text(value)


def _choice(allowed: tuple[Any, ...]) -> Form:
    def read(value: object) -> object:
        if value not in allowed:
            raise ValueError
        return value

    return Form("one of " + ", ".join(map(str, allowed)), read)


_FORMS: dict[Any, Form] = {
    str: Form("text (in quotes, in a file)", _text),
    int: Form("a whole number", _whole),
    float: Form("a number", _number),
    bool: Form("true or false", _truth),
    Duration: Form('a duration such as "250ms", "30s", "10m", "1h30m" or a number of seconds', _span),
    Path: Form("a path", _path),
    tuple: Form('a list of texts, or text with commas: "a,b"', _list),
}

PROPERTY = Form("text, a number, true or false", _property)

ANYTHING = Form("what its reader says", lambda value: value)
