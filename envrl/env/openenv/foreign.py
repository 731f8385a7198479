"""What adapters to other people's servers share."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Mapping
from functools import cache
from typing import Any

from envrl.env.base import Environment
from envrl.env.openenv.generic import Generic

log = logging.getLogger(__name__)


class Foreign(Generic):
    """A server that is not ours, playing a game that may also be a kind of ours.

    With such a kind, tools and rewards are those of the kind, so that a run scores alike wherever its
    game is, and what the server pays is the metric `server_reward`. With kind=openenv the server's
    rewards are the episode's.
    """

    def reset(self, seed: int | None, row: Mapping[str, Any]) -> dict[str, Any]:
        """The seed and the row, but for the columns that would set the task here: there is no way to ask."""
        own = _task_columns(type(self.local)) & row.keys()
        for column in sorted(own):
            _warn_once(type(self).__name__, column)
        return super().reset(seed, {name: value for name, value in row.items() if name not in own})


def server_reward(reward: float | None) -> dict[str, float]:
    """The metric, where the server paid anything for the last action."""
    return {} if reward is None else {"server_reward": float(reward)}


@cache
def _task_columns(kind: type[Environment]) -> frozenset[str]:
    parameters = inspect.signature(kind.reset).parameters.values()
    return frozenset(p.name for p in parameters if p.kind is p.KEYWORD_ONLY) - {"seed"}


@cache
def _warn_once(adapter: str, column: str) -> None:
    log.warning("%s servers draw their tasks themselves: a row's %s is not sent to them", adapter, column)
