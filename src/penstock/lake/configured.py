"""The pipelines that the configuration names."""

from __future__ import annotations

import difflib

from penstock.errors import ConfigError, NotFound
from penstock.lake.options import LakeOptions
from penstock.settings import LakeSettings


def pipelines_of(lake: LakeSettings, name: str | None = None) -> list[LakeOptions]:
    """The pipeline of this name, or all of them.

    Raises NotFound without such a section, ConfigError without any, for one that is wrong, or for a shared app_id.
    """
    if not lake.pipelines:
        raise ConfigError(
            "no pipeline is configured",
            next_step='add [lake.orders] with app_id, topic and table = "lake/orders" to penstock.toml',
        )
    if name is not None and name not in lake.pipelines:
        meant = difflib.get_close_matches(name, lake.pipelines, n=1)
        hint = f"did you mean {meant[0]}?" if meant else f"there are {', '.join(sorted(lake.pipelines))}"
        raise NotFound(f"there is no pipeline [lake.{name}]", next_step=hint)
    found = [LakeOptions.read(each, given, folder=lake.folder) for each, given in lake.pipelines.items()]
    names_by_app_id: dict[str, str] = {}
    for options in found:
        if (other := names_by_app_id.setdefault(options.app_id, options.name)) != options.name:
            raise ConfigError(
                f"[lake.{other}] and [lake.{options.name}] have the same app_id {options.app_id}",
                next_step="give each its own: under it the table keeps the offsets",
            )
    return [options for options in found if name in (None, options.name)]
