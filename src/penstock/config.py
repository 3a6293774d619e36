"""Where settings come from: flags, then `PENSTOCK_...`, then `penstock.toml` or `[tool.penstock]`, then defaults.

Each value remembers its origin. Three pure steps, `given_by_flags`, `given_by_environ` and `given_by_file`, turn what
was found into the same flat form; `assembled` lays them over each other. `load` is the shell that reads.
"""

from __future__ import annotations

import difflib
import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

from penstock.config_file import ConfigFile, find_file
from penstock.errors import ConfigError, UsageError
from penstock.schema import (
    ANYTHING,
    ENV_PREFIX,
    PROPERTY,
    WRONG_FORM,
    Form,
    Leaf,
    Properties,
    Section,
    Sections,
    SettingPath,
    Tables,
    build,
    env_name,
    env_names,
    path_of_env,
    shapes,
    spelled,
    values_of,
)
from penstock.settings import MASK, Secret, Settings, is_secret

# Variables that steer Penstock but are no settings: where the configuration, the jars, Java, the caches and a
# mirror of Maven Central are.
OTHER_VARIABLES = frozenset(f"PENSTOCK_{name}" for name in ("CONFIG", "JARS", "JAVA", "CACHE", "MAVEN"))

_BOOTSTRAP = ("kafka", "bootstrap_servers")
_CLIENT = ("kafka", "client")
_LAKE, _LAKE_FOLDER = ("lake",), ("lake", "folder")
_CLIENT_BOOTSTRAP = ("bootstrap.servers", "metadata.broker.list")

# librdkafka's own properties that end in ".file": without quotes TOML shows them like our { file = "..." }.
_FILE_PROPERTIES = frozenset(f"sasl.oauthbearer.assertion{part}" for part in ("", ".private.key", ".jwt.template"))


_SECTION = Form("a section", lambda nothing: nothing)


class Origin(NamedTuple):
    """Who said so: a flag, a variable, a key of a file, or nobody (the default)."""

    kind: Literal["flag", "env", "file", "default"]
    where: str = ""

    def __str__(self) -> str:
        return f"{self.kind} {self.where}".strip()


class Given(NamedTuple):
    """A value as it was found, with the form that is expected of it."""

    value: object
    form: Form
    origin: Origin
    folder: Path | None = None
    """Relative paths in a file count from the file's folder."""


class SecretFrom(NamedTuple):
    """A value that is kept elsewhere: `{ file = "..." }` or `{ env = "NAME" }`."""

    kind: Literal["file", "env"]
    name: str


class Shown(NamedTuple):
    """A setting as it may be shown: secrets are masked."""

    name: str
    value: str
    origin: Origin
    path: SettingPath


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    settings: Settings
    origins: Mapping[str, Origin]
    file: Path | None = None

    def shown(self) -> tuple[Shown, ...]:
        return tuple(
            Shown(spelled(path), _as_shown(path, value), self.origins.get(spelled(path), Origin("default")), path)
            for path, value in values_of(self.settings)
        )


def load(
    flags: Mapping[str, object] | None = None,
    *,
    spellings: Mapping[str, str] | None = None,
    file: Path | None = None,
    environ: Mapping[str, str] | None = None,
    folder: Path | None = None,
) -> Config:
    """Read every source. Flags are by dotted name, `{"broker.heap_mb": 256, "kafka.client": {...}}`; None is not given.
    `spellings` are flags that are not called like the last part of their setting.

    Raises ConfigError, naming file and key, for whatever is unknown or has the wrong form.
    """
    environ = os.environ if environ is None else environ
    found = find_file(file or _path_from(environ), folder or Path.cwd())
    in_file = given_by_file(found) if found else {}
    in_environ = given_by_environ(environ, frozenset(in_file))
    layers = (in_file, in_environ, given_by_flags(flags or {}, spellings or {}))
    return assembled(layers, environ, _secret_in_file, file=found.path if found else None)


def assembled(
    layers: Iterable[Mapping[SettingPath, Given]],
    environ: Mapping[str, str],
    secret_in_file: Callable[[Path], str],
    *,
    file: Path | None = None,
) -> Config:
    """Lay the layers over each other, the last on top, and read each value in its form."""
    given = {path: one for layer in layers for path, one in layer.items()}
    values = {path: _read(path, one, environ, secret_in_file) for path, one in given.items()}
    origins = {spelled(path): one.origin for path, one in given.items()}
    try:
        return Config(settings=build(Settings, values), origins=origins, file=file)
    except UsageError as problem:
        raise ConfigError(f"{problem.what}{_blamed(problem.what, origins)}", next_step=problem.next_step) from problem


def given_by_flags(flags: Mapping[str, object], spellings: Mapping[str, str]) -> dict[SettingPath, Given]:
    nested: dict[str, Any] = {}
    for name, value in flags.items():
        if value is None:
            continue
        *above, last = name.split(".")
        table = nested
        for part in above:
            table = table.setdefault(part, {})
        table[last] = value
    found = _walk(nested, Settings, (), "flags ")
    return _aliased({p: Given(v, form, Origin("flag", spellings.get(spelled(p)) or _flag(p))) for p, form, v in found})


def given_by_environ(
    environ: Mapping[str, str], known: frozenset[SettingPath] = frozenset()
) -> dict[SettingPath, Given]:
    """`known` are the paths of the file: they tell how names of ledgers are really spelled."""
    given = {}
    for name in sorted(environ):
        if not name.startswith(ENV_PREFIX) or name in OTHER_VARIABLES:
            continue
        path = path_of_env(name, Settings, known)
        if path is None:
            raise _unknown_variable(name)
        given[path] = Given(environ[name], _form_at(path), Origin("env", name))
    return _aliased(given)


def given_by_file(file: ConfigFile) -> dict[SettingPath, Given]:
    label = f"{file.path}: {file.inside}"
    given = {
        path: Given(value, form, Origin("file", f"{file.path}:{file.inside}{spelled(path)}"), file.path.parent)
        for path, form, value in _walk(file.table, Settings, (), label)
    }
    if any(path[: len(_LAKE)] == _LAKE for path in given):
        origin = Origin("file", f"{file.path}:{file.inside}lake")
        given.setdefault(_LAKE_FOLDER, Given(".", _form_at(_LAKE_FOLDER), origin, file.path.parent))
    return _aliased(given)


def _walk(table: object, settings: type, path: SettingPath, label: str) -> Iterator[tuple[SettingPath, Form, object]]:
    """Every value of a nested table with its path and form; anything that no setting is called so is an error."""
    known = shapes(settings, path)
    tables = next((shape for shape in known.values() if isinstance(shape, Tables)), None)
    for name, value in _table(table, path, label).items():
        shape = known.get(name)
        match shape:
            case None | Tables() if tables and isinstance(value, Mapping):
                yield (*tables.path, name), _SECTION, None
                for option, inside in value.items():
                    # Only where a secret belongs: elsewhere a table with the one key `file` may mean something else.
                    secret = _reference(inside) if is_secret(option) else None
                    yield (*tables.path, name, option), ANYTHING, secret or inside
            case None | Tables():
                raise _unknown_key(name, path, known, label)
            case Section():
                yield from _walk(value, shape.settings, shape.path, label)
            case Sections():
                for section, inside in _table(value, shape.path, label).items():
                    # The name alone is worth keeping: [ledgers.orders] without a line below is a ledger too.
                    yield (*shape.path, section), _SECTION, None
                    yield from _walk(inside, shape.settings, (*shape.path, section), label)
            case Properties():
                for key, inside in _flattened(_table(value, shape.path, label)):
                    yield (*shape.path, key), PROPERTY, inside
            case Leaf():
                yield shape.path, shape.form, _reference(value) or value


def _table(value: object, path: SettingPath, label: str) -> Mapping[str, object]:
    if isinstance(value, Mapping):
        return value
    raise ConfigError(
        f"{label}{spelled(path)} is a section, not a value",
        next_step=f"write [{spelled(path)}] and its settings below it",
    )


def _flattened(table: Mapping[str, object], above: str = "") -> Iterator[tuple[str, object]]:
    """TOML reads sasl.password = "x" without quotes as nested tables; librdkafka means one name with dots."""
    for key, value in table.items():
        name = f"{above}{key}"
        reference = None if name in _FILE_PROPERTIES else _reference(value)
        if isinstance(value, Mapping) and reference is None:
            yield from _flattened(value, f"{name}.")
        else:
            yield name, reference or value


def _reference(value: object) -> SecretFrom | None:
    match value:
        case {"file": str(name), **rest} if not rest:
            return SecretFrom("file", name)
        case {"env": str(name), **rest} if not rest:
            return SecretFrom("env", name)
    return None


def _read(path: SettingPath, given: Given, environ: Mapping[str, str], secret_in_file: Callable[[Path], str]) -> object:
    value = given.value
    secret = isinstance(value, SecretFrom) or is_secret(spelled(path))
    if isinstance(value, SecretFrom):
        value = _fetched(value, given, environ, secret_in_file)
    try:
        read = given.form.read(value)
    except WRONG_FORM:
        raise ConfigError(
            f"{given.origin.where}: {MASK if secret else repr(value)} is not the expected form",
            next_step=f"give {given.form.expected}",
        ) from None  # the reason would repeat the value, which may be a secret
    if isinstance(read, Path) and given.folder is not None:
        return given.folder / read
    return Secret(read) if secret and isinstance(read, str) else read


def _fetched(
    secret: SecretFrom, given: Given, environ: Mapping[str, str], secret_in_file: Callable[[Path], str]
) -> str:
    if secret.kind == "file":
        try:
            return secret_in_file((given.folder or Path()) / Path(secret.name).expanduser()).rstrip("\r\n")
        except (OSError, UnicodeDecodeError) as failure:
            reason = failure.strerror if isinstance(failure, OSError) else "not UTF-8"
            raise ConfigError(
                f"{given.origin.where}: cannot read {secret.name}: {reason}",
                next_step="make that file, readable by this user",
            ) from None
    if secret.name not in environ:
        raise ConfigError(
            f"{given.origin.where}: the variable {secret.name} is not set", next_step=f"export {secret.name}=..."
        )
    return environ[secret.name]


def _aliased(given: dict[SettingPath, Given]) -> dict[SettingPath, Given]:
    """`bootstrap.servers` among the client's properties means `kafka.bootstrap_servers`."""
    for alias in ((*_CLIENT, name) for name in _CLIENT_BOOTSTRAP):
        if alias not in given:
            continue
        one = given.pop(alias)
        if _BOOTSTRAP in given:
            raise ConfigError(
                f"the brokers are named twice: {given[_BOOTSTRAP].origin.where} and {one.origin.where}",
                next_step="keep one of them",
            )
        given[_BOOTSTRAP] = one
    return given


def _form_at(path: SettingPath, settings: type = Settings, start: int = 0) -> Form:
    match shapes(settings).get(path[start], Tables(path)):
        case Leaf(form=form):
            return form
        case Section(settings=inside):
            return _form_at(path, inside, start + 1)
        case Sections(settings=inside):
            return _form_at(path, inside, start + 2)
        case Tables():
            return ANYTHING
        case _:
            return PROPERTY


def _flag(path: SettingPath) -> str:
    if path[: len(_CLIENT)] == _CLIENT:
        return f"-X {path[-1]}"
    return "--" + path[-1].replace("_", "-")


def _as_shown(path: SettingPath, value: object) -> str:
    if isinstance(value, Secret) or (is_secret(spelled(path)) and value):
        return MASK
    if isinstance(value, list | tuple) and all(isinstance(one, str) for one in value):
        return ",".join(value)
    if isinstance(value, Mapping | list):
        return json.dumps(_masked_inside(value), default=str)
    return "" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


def _masked_inside(value: object) -> object:
    match value:
        case Mapping():
            return {name: MASK if is_secret(name) else _masked_inside(inside) for name, inside in value.items()}
        case list():
            return [_masked_inside(one) for one in value]
    return value


def _blamed(message: str, origins: Mapping[str, Origin]) -> str:
    """Which of the given values an objection of the settings themselves is about, by the names in it."""
    guilty = [str(origin.where) for name, origin in origins.items() if name.rsplit(".", 1)[-1] in message]
    return f" ({'; '.join(guilty)})" if guilty else ""


def _unknown_key(name: str, path: SettingPath, known: Iterable[str], label: str) -> ConfigError:
    here = f"{spelled(path)}." if path else ""
    meant = difflib.get_close_matches(name, list(known), n=1, cutoff=0.5)
    hint = f"did you mean {here}{meant[0]}?" if meant else f"known here: {', '.join(sorted(known))}"
    return ConfigError(f"{label}{here}{name} is no setting", next_step=hint)


def _unknown_variable(name: str) -> ConfigError:
    meant = difflib.get_close_matches(name, [*env_names(Settings), *OTHER_VARIABLES], n=1, cutoff=0.6)
    hint = f"did you mean {meant[0]}?" if meant else "`penstock config show` lists every setting; unset this variable"
    return ConfigError(f"the variable {name} is no setting", next_step=hint)


def _path_from(environ: Mapping[str, str]) -> Path | None:
    return Path(environ["PENSTOCK_CONFIG"]).expanduser() if environ.get("PENSTOCK_CONFIG") else None


def _secret_in_file(path: Path) -> str:
    return path.read_text(encoding="utf-8")


__all__ = ["Config", "ConfigFile", "Given", "Origin", "Shown", "assembled", "env_name", "find_file", "load"]
