"""Loops that drive one episode each."""

from __future__ import annotations

import inspect

from envrl.env.base import Face
from envrl.env.compat.swift import RolloutScheduler, multi_turns
from envrl.errors import ConfigError, unknown
from envrl.importing import load_object
from envrl.scheduler.base import Scheduler, TurnScheduler
from envrl.scheduler.conversation import answer
from envrl.scheduler.gym import GymScheduler
from envrl.scheduler.swift import SwiftScheduler, adapt
from envrl.scheduler.tool_calling import ToolCallingScheduler
from envrl.spec import SchedulerSpec

SCHEDULERS: dict[str, type[Scheduler] | str] = {
    "tool_calling": ToolCallingScheduler,
    "gym": GymScheduler,
}
"""Name -> class, or its import path. What a plugin adds is chosen with `scheduler.target=<name>`."""

__all__ = [
    "SCHEDULERS",
    "GymScheduler",
    "Scheduler",
    "SwiftScheduler",
    "ToolCallingScheduler",
    "TurnScheduler",
    "answer",
    "make_scheduler",
    "scheduler_class",
]


def make_scheduler(settings: SchedulerSpec) -> Scheduler:
    """The loop that these settings name, ready for any number of episodes. Raises ConfigError."""
    return scheduler_class(settings).of(settings)


def scheduler_class(settings: SchedulerSpec) -> type[Scheduler]:
    """The class of that loop: ours, a user's own, or an ms-swift one. Raises ConfigError."""
    found = SCHEDULERS.get(settings.kind) if settings.target is None else _named(settings.target)
    cls = load_object(found) if isinstance(found, str) else found
    if isinstance(cls, type) and issubclass(cls, RolloutScheduler):
        return adapt(cls)  # type: ignore[arg-type]  # a class can be hashed
    if not (isinstance(cls, type) and issubclass(cls, Scheduler)) or inspect.isabstract(cls):
        raise ConfigError(f"{settings.target} is no finished envrl.scheduler.Scheduler")
    if not isinstance(getattr(cls, "face", None), Face):
        raise ConfigError(f"{settings.target} has no face: set face = Face.TOOL or Face.TEXT")
    return cls


def _named(target: str) -> object:
    """What a target stands for: an import path, or a name that a registry holds."""
    if ":" in target:
        return target
    names = multi_turns | SCHEDULERS
    if target not in names:
        raise ConfigError(f"{unknown('scheduler', target, names)}, or give package.module:Name")
    return names[target]
