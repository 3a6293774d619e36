"""Finding the application that a command names as MODULE:APP."""

from __future__ import annotations

import difflib
import importlib
import os
import sys
from functools import reduce
from types import ModuleType
from typing import TYPE_CHECKING

from penstock.errors import UsageError

if TYPE_CHECKING:
    from penstock.app import App

DEFAULT_ATTRIBUTE = "app"


def split_target(target: str) -> tuple[str, str]:
    """Module and attribute; `app` unless said otherwise. Raises UsageError for what names no module."""
    module, _, attribute = target.partition(":")
    attribute = attribute or DEFAULT_ATTRIBUTE
    if module.endswith(".py") or "/" in module:
        meant = module.removesuffix(".py").strip("./").replace("/", ".")
        raise UsageError(f"{module} is a file, not a module", next_step=f"give it as {meant}:{attribute}")
    if not all(part.isidentifier() for part in (*module.split("."), *attribute.split("."))):
        raise UsageError(f"{target!r} names no application", next_step="give MODULE:APP, as in shop.orders:app")
    return module, attribute


def loaded_app(target: str) -> App:
    """The application of that name, from the present folder or what is installed.

    Raises UsageError if there is none; whatever the module raises is passed on.
    """
    from penstock.app import App

    name, attribute = split_target(target)
    module = _imported(name)
    try:
        found = reduce(getattr, attribute.split("."), module)
    except AttributeError as problem:
        raise UsageError(f"{name} has no {attribute}", next_step=_hint(module, name, attribute)) from problem
    if not isinstance(found, App):
        raise UsageError(f"{target} is no App but {_a(type(found).__name__)}", next_step=_hint(module, name, attribute))
    return found


def _imported(name: str) -> ModuleType:
    folder = os.getcwd()
    if not {"", folder} & set(sys.path):
        sys.path.insert(0, folder)
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as problem:
        # One that the module itself cannot find is another matter.
        if problem.name is None or not f"{name}.".startswith(f"{problem.name}."):
            raise
        raise UsageError(
            f"there is no module {problem.name}",
            next_step=f"run this in the folder that has {problem.name.partition('.')[0]}, or install it",
        ) from problem


def _hint(module: ModuleType, name: str, attribute: str) -> str:
    from penstock.app import App

    apps = sorted(key for key, value in vars(module).items() if isinstance(value, App))
    meant = difflib.get_close_matches(attribute, apps, n=1) or apps[:1]
    return f"did you mean {name}:{meant[0]}?" if meant else f'make one there: app = penstock.App("{name}")'


def _a(kind: str) -> str:
    return f"{'an' if kind[:1].lower() in 'aeiou' else 'a'} {kind}"
