"""What an episode talks to: the environments, by name or by import path."""

from __future__ import annotations

from typing import Any

from envrl.env.base import Environment, Face, ToolCall, checked_arguments, tool
from envrl.env.compat import adapt
from envrl.env.compat.swift import envs
from envrl.errors import ConfigError, unknown
from envrl.importing import load_object
from envrl.spec import EnvSpec

__all__ = [
    "REGISTRY",
    "Environment",
    "Face",
    "ToolCall",
    "build",
    "environment_class",
    "kinds",
    "make",
    "tool",
]

REGISTRY: dict[str, Any] = {
    "catch": "envrl.env.catch:Catch",
    "echo": "envrl.env.echo:Echo",
    "frozen_lake": "envrl.env.frozen_lake:FrozenLake",
    "openenv": "envrl.env.openenv.generic:OpenEnv",
    "sudoku": "envrl.env.sudoku:Sudoku",
    "tools": "envrl.env.tools:Tools",
    "wordle": "envrl.env.wordle:Wordle",
}
"""kind -> `module:Class`, imported when it is first asked for; a plugin may add the class itself."""

CUSTOM = "custom"


def environment_class(kind: str, target: str | None = None) -> type[Environment]:
    """The class behind a kind, or behind `target` where the kind is `custom`.

    A target is an import path, or a name that a plugin registered. Raises ConfigError.
    """
    if target is None:
        if kind == CUSTOM:
            raise ConfigError("env.custom.target: missing; give the class as package.module:Name")
        if kind not in kinds():
            raise ConfigError(unknown("env", kind, kinds()))
        return _class_at(REGISTRY[kind] if kind in REGISTRY else envs[kind], kind)
    if kind != CUSTOM:
        raise ConfigError(f"env {kind}: has a target, {target!r}; set kind=custom or leave the target out")
    return _class_at((REGISTRY | envs).get(target, target), target)


def kinds() -> list[str]:
    """What env.<key>.kind may be: the shipped names, those of plugins, and `custom`."""
    return [*dict.fromkeys([*REGISTRY, *envs]), CUSTOM]


def make(name: str, **args: Any) -> Environment:
    """Builds an environment of the registry. Raises ConfigError naming the argument that is wrong."""
    return build(name, EnvSpec(kind=name, args=args))


def build(key: str, spec: EnvSpec) -> Environment:
    """The environment that `env.<key>` describes, in this process. Raises ConfigError."""
    cls = environment_class(spec.kind, spec.target)
    try:
        return cls(**checked_arguments(cls, spec.args))
    except ValueError as error:
        raise ConfigError(f"env.{key}.args: {error}; mend: env.{key}.args.<name>=...") from error
    except ConfigError:
        raise
    except Exception as error:
        raise ConfigError(
            f"env.{key}: {cls.__name__} cannot be built: {type(error).__name__}: {error}; connections and "
            f"the like belong into reset, where they are retried; mend: env.{key}.args.<name>=..."
        ) from error


def _class_at(found: Any, name: str) -> type[Environment]:
    return adapt(load_object(found) if isinstance(found, str) else found, name)
