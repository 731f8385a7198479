"""Scripted players: for warm start, for checks and for baselines."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from envrl.env.base import Environment, ToolCall

Policy = Callable[[Environment, Random], ToolCall]
"""The next call in the environment's current state."""


def gold(environment: Environment, rng: Random) -> ToolCall:
    """Plays as well as the environment's solver can."""
    return environment.gold_action()


def random(environment: Environment, rng: Random) -> ToolCall:
    """Plays blindly."""
    return environment.random_action(rng)


def noisy(noise: float) -> Policy:
    """Gold, with this chance of a random call at each turn."""

    def policy(environment: Environment, rng: Random) -> ToolCall:
        return (random if rng.random() < noise else gold)(environment, rng)

    return policy
