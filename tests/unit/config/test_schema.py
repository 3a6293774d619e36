"""New dataclasses in settings.py are loaded by reflection: nothing here knows Penstock's own settings."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.schema import WRONG_FORM, SettingPath, build, env_name, form_of, path_of_env, spelled, values_of
from penstock.settings import Settings
from penstock.values import Duration, duration


@dataclass(frozen=True, slots=True, kw_only=True)
class Retry:
    delay: Duration = duration("1s")
    factor: float = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Queue:
    retry: Retry = field(default_factory=Retry)
    order: Literal["none", "key"] = "none"
    is_strict: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Everything:
    queues: Mapping[str, Queue] = field(default_factory=dict)
    properties: Mapping[str, str] = field(default_factory=dict)
    folder: Path | None = None
    packages: tuple[str, ...] = ()
    count: int = 1


def test_given_values_find_their_place_and_the_rest_are_defaults() -> None:
    built = build(
        Everything,
        {
            ("queues", "a.b", "retry", "delay"): duration("5s"),
            ("queues", "plain"): None,
            ("properties", "x.y"): "1",
            ("packages",): ("p",),
        },
    )

    assert built == Everything(
        queues={"a.b": Queue(retry=Retry(delay=duration("5s"))), "plain": Queue()},
        properties={"x.y": "1"},
        packages=("p",),
    )


def test_every_value_of_a_settings_object_is_found_with_its_path() -> None:
    settings = Everything(queues={"q": Queue()}, properties={"x.y": "1"})

    assert dict(values_of(settings)) == {
        ("queues", "q", "retry", "delay"): duration("1s"),
        ("queues", "q", "retry", "factor"): 2.0,
        ("queues", "q", "order"): "none",
        ("queues", "q", "is_strict"): False,
        ("properties", "x.y"): "1",
        ("folder",): None,
        ("packages",): (),
        ("count",): 1,
    }


@pytest.mark.parametrize(
    ("variable", "path"),
    [
        ("PENSTOCK_COUNT", ("count",)),
        ("PENSTOCK_QUEUES_ORDERS_RETRY_DELAY", ("queues", "orders", "retry", "delay")),
        ("PENSTOCK_QUEUES_ORDERS_EU_IS_STRICT", ("queues", "Orders.EU", "is_strict")),
        ("PENSTOCK_PROPERTIES_A_B", ("properties", "a.b")),
        ("PENSTOCK_QUEUES_ORDERS_NOTHING", None),
        ("PENSTOCK_QUEUES_IS_STRICT", None),
        ("PENSTOCK_COUNTS", None),
        ("PENSTOCK_", None),
    ],
)
def test_variables_name_settings_at_every_depth(variable: str, path: SettingPath | None) -> None:
    assert path_of_env(variable, Everything, frozenset({("queues", "Orders.EU", "order")})) == path


@given(st.sampled_from([path for path, _ in values_of(Settings())]))
def test_the_variable_of_a_setting_names_that_setting(path: SettingPath) -> None:
    assert path_of_env(env_name(path), Settings, frozenset()) == path


@pytest.mark.parametrize(
    ("kind", "written", "read"),
    [
        (int, "1_000", 1_000),
        (float, 3, 3.0),
        (bool, "Yes", True),
        (bool, "0", False),
        (bool, True, True),
        (Duration, "30", duration("30s")),
        (Duration, 1.5, duration("1500ms")),
        (Duration, "1h30m", duration("90m")),
        (Path, "/x", Path("/x")),
        (Path | None, "/x", Path("/x")),
        (tuple[str, ...], "a, b,,c", ("a", "b", "c")),
        (tuple[str, ...], ["a"], ("a",)),
        (Literal["a", "b"], "b", "b"),
    ],
)
def test_each_form_reads_what_people_write(kind: object, written: object, read: object) -> None:
    assert form_of(kind).read(written) == read


@pytest.mark.parametrize(
    ("kind", "written"),
    [
        (int, True),
        (int, 1.0),
        (int, "x"),
        (bool, 2),
        (bool, "maybe"),
        (str, 1),
        (Duration, "-1s"),
        (Duration, True),
        (Duration, "nan"),
        (Path, ""),
        (tuple[str, ...], [1]),
        (Literal["a"], "b"),
        (Literal["a"], ["a"]),
    ],
)
def test_each_form_refuses_what_it_does_not_mean(kind: object, written: object) -> None:
    with pytest.raises(WRONG_FORM):
        form_of(kind).read(written)


json_like = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


@given(st.sampled_from([int, float, bool, str, Duration, Path, tuple[str, ...], Literal["a", "b"]]), json_like)
def test_whatever_stands_in_a_file_is_read_or_refused_as_a_wrong_form(kind: object, written: object) -> None:
    with contextlib.suppress(*WRONG_FORM):
        form_of(kind).read(written)


def test_a_type_without_a_form_is_told_to_whoever_adds_it() -> None:
    with pytest.raises(TypeError, match="have no form yet"):
        form_of(complex)


def test_names_with_dots_are_spelled_as_in_a_file() -> None:
    assert spelled(("ledgers", "a.b", "partitions")) == 'ledgers."a.b".partitions'
    assert spelled(("kafka", "client", "sasl.password")) == "kafka.client.sasl.password"
