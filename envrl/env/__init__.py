"""What an episode talks to: the environments, by name or by import path."""

from __future__ import annotations

from typing import Any

from envrl.env.base import Environment, Face, ToolCall, checked_arguments, tool
from envrl.errors import ConfigError, unknown
from envrl.importing import load_object

__all__ = ["REGISTRY", "Environment", "Face", "ToolCall", "environment_class", "make", "tool"]

REGISTRY: dict[str, str] = {
    "frozen_lake": "envrl.env.frozen_lake:FrozenLake",
}
"""kind -> `module:Class`; a class is imported when it is first asked for."""

CUSTOM = "custom"


def environment_class(kind: str, target: str | None = None) -> type[Environment]:
    """The class behind a kind, or behind the import path `target` where the kind is `custom`.

    Raises ConfigError.
    """
    if target is None:
        if kind == CUSTOM:
            raise ConfigError("env.custom.target: missing; give the class as package.module:Name")
        if kind not in REGISTRY:
            raise ConfigError(unknown("env", kind, [*REGISTRY, CUSTOM]))
        return _class_at(REGISTRY[kind])
    if kind != CUSTOM:
        raise ConfigError(f"env {kind}: has a target, {target!r}; set kind=custom or leave the target out")
    return _class_at(target)


def make(name: str, **args: Any) -> Environment:
    """Builds an environment of the registry. Raises ConfigError naming the argument that is wrong."""
    cls = environment_class(name)
    try:
        arguments = checked_arguments(cls, args)
    except ValueError as error:
        raise ConfigError(f"env.{name}.args: {error}") from None
    return cls(**arguments)


def _class_at(path: str) -> type[Environment]:
    cls = load_object(path)
    if not (isinstance(cls, type) and issubclass(cls, Environment)):
        raise ConfigError(f"{path}: not a subclass of envrl.env.Environment")
    return cls
