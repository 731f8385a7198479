"""Episodes of random length, and a lock-step driver of them.

The same seeds give the same turns, tokens and delays, however they are driven.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from random import Random
from typing import Any

from slow_lake import Latency

from envrl.engine.base import Engine, Generation, Sampling
from envrl.env import Environment, Face, tool
from envrl.env.base import ToolCall
from envrl.rollout.trajectory import Episode
from envrl.rollout.transcript import Turn
from envrl.scheduler import GymScheduler
from envrl.stop import StopReason

DRILL = [
    *["env=custom", "env.custom.target=vllm_drill:Drill", "model=tiny", "scheduler=gym"],
    *["scheduler.max_tokens=900", "scheduler.max_turn_tokens=null", "scheduler.continue_on_length=true"],
]
TURNS = 2, 6
TOKENS = 1, 64


class Drill(Environment):
    """Takes any text for an action; the seed says how many, how long each takes, and what it hears."""

    def instructions(self, face: Face) -> str:
        """The same prompt for all."""
        return "Walk from S to G over ice and around the holes. " * 3

    def reset(self, *, seed: int | None = None, **row: Any) -> str:
        """Draws the length."""
        self._rng = Random(seed)
        self._left = self._rng.randint(*TURNS)
        self.reward = 0.0
        return self._news()

    def parse_action(self, text: str) -> ToolCall:
        """Whatever it is."""
        return ToolCall("say", {"text": text})

    @tool
    async def say(self, text: str) -> str:
        """Say something.

        Args:
            text: What to say.
        """
        self._left -= 1
        self.done = not self._left
        await asyncio.sleep(Latency.mean_s * self._rng.expovariate(1))
        return self._news()

    def _news(self) -> str:
        return f"Now at row {self._rng.randrange(10)}, col {self._rng.randrange(10)}. Output your next move."


class RandomLengths(Engine):
    """Lets the model speak for a number of tokens that the request's seed draws.

    An untrained model hardly ends a turn before its time.
    """

    def __init__(self, engine: Engine) -> None:
        self.max_context = engine.max_context
        self._engine = engine

    async def generate(self, ids: Sequence[int], sampling: Sampling, *, episode: str) -> Generation:
        """The length is drawn."""
        length = Random(sampling.seed).randint(*TOKENS)
        drawn = replace(sampling, max_tokens=min(length, sampling.max_tokens))
        return await self._engine.generate(ids, drawn, episode=episode)


class Barrier:
    """Lets all pass when all who still play have come."""

    def __init__(self, players: int) -> None:
        self._players = players
        self._waiting: list[asyncio.Future[None]] = []

    async def wait(self) -> None:
        """For the others."""
        come = asyncio.get_running_loop().create_future()
        self._waiting.append(come)
        self._let_pass()
        await come

    def leave(self) -> None:
        """Plays no more."""
        self._players -= 1
        self._let_pass()

    def _let_pass(self) -> None:
        if len(self._waiting) == self._players:
            for come in self._waiting:
                come.set_result(None)
            self._waiting = []


class LockStep(GymScheduler):
    """All episodes' turns are generated together, then all tools run at once, then the next turn begins."""

    barrier: Barrier

    async def run(self, episode: Episode, engine: Engine) -> StopReason:
        """Until the end, which the others need not wait for."""
        try:
            return await super().run(episode, engine)
        finally:
            self.barrier.leave()

    async def act(self, episode: Episode, turn: Turn) -> list[dict[str, Any]]:
        """Between the last one's generation and the last one's tool."""
        await self.barrier.wait()
        answers = await super().act(episode, turn)
        await self.barrier.wait()
        return answers
