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

    A target is an import path, or a name that a plugin registered. Raises ConfigError, which begins with
    the field that is wrong.
    """
    if kind not in kinds():
        raise ConfigError(unknown("kind", kind, kinds()))
    if kind != CUSTOM:
        if target is not None:
            raise ConfigError(f"target: {target!r} is for kind=custom (got kind={kind})")
        return _class_at("kind", kind, REGISTRY[kind])
    if target is None:
        raise ConfigError("target: missing; kind=custom needs a class as package.module:Name")
    return _class_at("target", target, (REGISTRY | envs).get(target, target))


def kinds() -> list[str]:
    """What env.<key>.kind may be: the shipped names, those of plugins, and `custom`."""
    return [*REGISTRY, CUSTOM]


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


def _class_at(field: str, name: str, found: Any) -> type[Environment]:
    try:
        return adapt(load_object(found) if isinstance(found, str) else found, name)
    except ConfigError as error:
        raise ConfigError(f"{field}: {error}") from error
