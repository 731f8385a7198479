"""The options of the shipped YAML, and how Hydra finds the recipes.

conf/ is Hydra's config directory. recipes/ stands beside it, so that whole experiments are read apart
from the parts they are made of; a small config source offers its files as the group `recipe`.
"""

from __future__ import annotations

import os
from functools import cache
from typing import Any

from envrl.shipped import CONF, RECIPES

__all__ = ["CONF", "RECIPES", "groups", "options", "register_recipes"]


def options(group: str) -> list[str]:
    """The shipped options of a config group."""
    folder = RECIPES if group == "recipe" else CONF / group
    return sorted(file.stem for file in folder.glob("*.yaml"))


def groups() -> list[str]:
    """The config groups that make up a run."""
    return sorted([*(d.name for d in CONF.iterdir() if d.is_dir() and d.name != "hydra"), "recipe"])


@cache
def register_recipes() -> None:
    """Teaches this process's Hydra the group `recipe`; other Hydra applications never see it."""
    from hydra._internal.core_plugins.file_config_source import FileConfigSource
    from hydra.core.config_search_path import ConfigSearchPath
    from hydra.core.object_type import ObjectType
    from hydra.core.plugins import Plugins
    from hydra.plugins.search_path_plugin import SearchPathPlugin

    # Hydra calls these methods by keyword, so their parameter names are part of the contract.
    class RecipeSource(FileConfigSource):
        """recipe://DIR: the YAML files of DIR, seen as recipe/*.yaml."""

        @staticmethod
        def scheme() -> str:
            return "recipe"

        def load_config(self, config_path: str) -> Any:
            return super().load_config(_below(config_path) or "")

        def is_group(self, config_path: str) -> bool:
            below = _below(config_path)
            return config_path == "" or (below is not None and super().is_group(below))

        def is_config(self, config_path: str) -> bool:
            below = _below(config_path)
            return bool(below) and super().is_config(below or "")

        def list(self, config_path: str, results_filter: ObjectType | None) -> list[str]:
            if config_path == "":
                return [] if results_filter is ObjectType.CONFIG else ["recipe"]
            found: list[str] = []
            for name in os.listdir(os.path.join(self.path, _below(config_path) or "")):
                path = f"{config_path}/{name}"
                self._list_add_result(
                    files=found, file_path=path, file_name=name, results_filter=results_filter
                )
            return sorted(set(found))

    class RecipePath(SearchPathPlugin):
        """Appends the recipes to the search path."""

        def manipulate_search_path(self, search_path: ConfigSearchPath) -> None:
            search_path.append("envrl", f"recipe://{RECIPES}")

    for plugin in (RecipeSource, RecipePath):
        Plugins.instance().register(plugin)


def _below(config_path: str) -> str | None:
    """The part of a Hydra path below the group `recipe`; None outside of it."""
    head, _, rest = config_path.partition("/")
    return rest if head == "recipe" else None
