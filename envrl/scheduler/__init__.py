"""Loops that drive one episode each."""

from __future__ import annotations

import inspect

from envrl.errors import ConfigError
from envrl.importing import load_object
from envrl.scheduler.base import Scheduler, TurnScheduler
from envrl.scheduler.gym import GymScheduler
from envrl.scheduler.tool_calling import ToolCallingScheduler
from envrl.spec import SchedulerSpec

SCHEDULERS: dict[str, type[Scheduler]] = {
    "tool_calling": ToolCallingScheduler,
    "gym": GymScheduler,
}

__all__ = [
    "SCHEDULERS",
    "GymScheduler",
    "Scheduler",
    "ToolCallingScheduler",
    "TurnScheduler",
    "scheduler_class",
]


def scheduler_class(settings: SchedulerSpec) -> type[Scheduler]:
    """The loop that these settings name, a user's own where they have a target. Raises ConfigError."""
    if settings.target is None:
        return SCHEDULERS[settings.kind]
    cls = load_object(settings.target)
    if not (isinstance(cls, type) and issubclass(cls, Scheduler)) or inspect.isabstract(cls):
        raise ConfigError(f"{settings.target} is no finished envrl.scheduler.Scheduler")
    return cls
