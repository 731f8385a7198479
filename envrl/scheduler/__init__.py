"""Loops that drive one episode each."""

from __future__ import annotations

from envrl.scheduler.base import Scheduler, TurnScheduler
from envrl.scheduler.gym import GymScheduler
from envrl.scheduler.tool_calling import ToolCallingScheduler

SCHEDULERS: dict[str, type[Scheduler]] = {
    "tool_calling": ToolCallingScheduler,
    "gym": GymScheduler,
}

__all__ = ["SCHEDULERS", "GymScheduler", "Scheduler", "ToolCallingScheduler", "TurnScheduler"]
