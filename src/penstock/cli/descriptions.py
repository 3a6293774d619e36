"""What each setting means, in the words that stand below its field in `settings.py`."""

from __future__ import annotations

import ast
import functools
import inspect
import textwrap

from penstock.lake.options import LakeOptions
from penstock.schema import Properties, Section, Sections, SettingPath, Tables, shapes


def description_of(settings: type, path: SettingPath) -> str:
    """The description of the setting at this path; nothing where there is none."""
    name, rest = path[0], path[1:]
    match shapes(settings).get(name):
        case Section(settings=inside):
            return description_of(inside, rest)
        case Sections(settings=inside):
            return description_of(inside, rest[1:])
        case Properties():
            return ""
        case None | Tables():
            return _below_fields(LakeOptions).get(path[-1], "")
        case _:
            return _below_fields(settings).get(name, "")


@functools.cache
def _below_fields(settings: type) -> dict[str, str]:
    """Field name to the string that follows it in the class body."""
    try:
        (body,) = ast.parse(textwrap.dedent(inspect.getsource(settings))).body
    except (OSError, SyntaxError):  # no source to read: a frozen or zipped program
        return {}
    if not isinstance(body, ast.ClassDef):
        return {}
    found = {}
    for field, below in zip(body.body, body.body[1:], strict=False):
        match field, below:
            case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(text))):
                found[name] = " ".join(text.split())
    return found
