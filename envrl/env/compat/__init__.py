"""Environments written for others: classes as TRL and as ms-swift call for, unchanged."""

from __future__ import annotations

from typing import Any

from envrl.env.base import Environment
from envrl.env.compat import swift, trl
from envrl.env.compat.swift import adapter
from envrl.errors import ConfigError

__all__ = ["adapt", "swift", "trl"]


def adapt(target: Any, name: str) -> type[Environment]:
    """A class that was found under this name, as an Environment. Raises ConfigError where it is none."""
    if isinstance(target, type) and issubclass(target, Environment):
        return target
    if isinstance(target, type) and issubclass(target, swift.Env):
        return adapter.adapt(target)
    if trl.is_factory(target):
        return trl.adapt(target)
    raise ConfigError(
        f"{name}: not a subclass of envrl.env.Environment, nor a class with reset as TRL, "
        "or a subclass of envrl.env.compat.swift.Env as ms-swift has them"
    )
