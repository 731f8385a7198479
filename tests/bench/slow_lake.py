"""FrozenLake behind a tool that takes a while, for both sides of the comparison with TRL."""

from __future__ import annotations

import asyncio
import time
from random import expovariate
from typing import Literal

from envrl.env import tool
from envrl.env.frozen_lake import FrozenLake

LATENCY_S = 0.05
Direction = Literal["up", "down", "left", "right"]


class Latency:
    """How long a call of the tool takes."""

    mean_s = LATENCY_S
    """Of an exponential distribution."""

    @classmethod
    def draw(cls) -> float:
        return expovariate(1 / cls.mean_s) if cls.mean_s else 0.0


class OurLake(FrozenLake):
    """As envrl plays it: other episodes go on while one waits."""

    @tool
    async def move(self, direction: Direction) -> str:
        """Move one cell.

        Args:
            direction: Where to go.
        """
        answer = super().move(direction)
        await asyncio.sleep(Latency.draw())
        return answer


class TrlLake:
    """As TRL plays it: every public method but `reset` is a tool."""

    def __init__(self) -> None:
        self._game = FrozenLake()

    def reset(self, seed: int, **row: object) -> str:
        return self._game.reset(seed=seed)

    def move(self, direction: Direction) -> str:
        """Move one cell.

        Args:
            direction: Where to go.
        """
        answer = self._game.move(direction)
        time.sleep(Latency.draw())
        return answer


class AsyncTrlLake(TrlLake):
    """TRL awaits the async tools of one turn together, and one episode after the other."""

    async def move(self, direction: Direction) -> str:
        """Move one cell.

        Args:
            direction: Where to go.
        """
        answer = self._game.move(direction)
        await asyncio.sleep(Latency.draw())
        return answer
