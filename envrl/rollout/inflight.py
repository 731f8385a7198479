"""How many episodes run at once: as many as the engine's memory for keys and values carries.

With more, they push each other's out of it, to be computed again; with fewer, the engine idles.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from envrl.engine.base import Engine
from envrl.spec import RolloutSpec

_LOOK = 16
"""Endings of episodes between two looks at the engine's preemptions: a server answers them by HTTP."""
_MEMORY = 32
"""Episodes that the mean of their tokens goes back to."""
_SHRINK, _RECOVER = 0.75, 0.02


@dataclass(frozen=True)
class Inflight:
    """What was in flight while a runner ran."""

    mean: float
    """Over time."""
    most: int
    limit: float
    """At the end; infinite where nothing bounds it."""


class Gate:
    """Lets episodes in as they came, while their number is below the limit; the first is always let in.

    The limit is the share of the engine's `kv_tokens` over the tokens that an episode takes: first a guess,
    then a running mean. The share shrinks when the engine had to preempt and recovers while it has not to.
    """

    def __init__(self, spec: RolloutSpec, *, guess: int) -> None:
        """`guess` are the tokens of an episode before any has ended."""
        self._least = spec.min_inflight
        self._most = spec.max_inflight or math.inf
        self._tokens = float(guess)
        self._share = 1.0
        self._engine: Engine | None = None
        self._preemptions: int | None = None
        self._unlooked = 0
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._inflight = 0
        self.restart()

    @property
    def limit(self) -> float:
        """Episodes that may be in flight now; the least of them before an engine is known."""
        if self._engine is None:
            carried: float = self._least
        elif self._engine.kv_tokens is None:
            carried = math.inf
        else:
            carried = int(self._share * self._engine.kv_tokens / self._tokens)
        return min(max(carried, self._least), self._most)

    @asynccontextmanager
    async def place(self) -> AsyncIterator[None]:
        """Waits until an episode may begin, and counts it until it has ended."""
        if self._waiting or self._inflight >= self.limit:
            turn = asyncio.get_running_loop().create_future()
            self._waiting.append(turn)
            try:
                await turn
            except asyncio.CancelledError:
                if not turn.cancelled():  # it was let in and will not come
                    self._count(-1)
                    self._let_in()
                raise
        else:
            self._count(1)
        try:
            yield
        finally:
            self._count(-1)
            self._let_in()

    def serves(self, engine: Engine) -> None:
        """Tells which engine the episodes are played by: its memory is the limit."""
        if engine is not self._engine:
            self._engine = engine
            self._preemptions = None
            self._let_in()

    async def learn(self, tokens: float) -> None:
        """Takes in how many tokens an episode held when it ended, and now and then how the engine is."""
        self._tokens += (max(tokens, 1) - self._tokens) / _MEMORY
        self._unlooked += 1
        if self._unlooked >= _LOOK and self._engine is not None and self._engine.kv_tokens is not None:
            self._unlooked = 0
            self._adapt((await self._engine.stats()).preemptions)
        self._let_in()

    def _adapt(self, preemptions: int) -> None:
        before, self._preemptions = self._preemptions, preemptions
        if before is None:
            return
        if preemptions <= before:
            self._share = min(1.0, self._share + _RECOVER)
        elif self._inflight <= self.limit:  # else an earlier cut has not come to effect yet
            self._share *= _SHRINK

    def _let_in(self) -> None:
        while self._waiting and self._inflight < self.limit:
            turn = self._waiting.popleft()
            if not turn.done():  # its episode was cancelled
                turn.set_result(None)
                self._count(1)

    # --- what is kept and told --------------------------------------------------------------

    def state(self) -> dict[str, float]:
        """What it has learned."""
        return {"tokens": self._tokens, "share": self._share}

    def load_state(self, state: dict[str, float]) -> None:
        """Goes on from there."""
        self._tokens, self._share = state["tokens"], state["share"]

    def restart(self) -> None:
        """Begins to measure."""
        self._peak = self._inflight
        self._area = 0.0
        self._started = self._changed = time.perf_counter()

    def measured(self) -> Inflight:
        """Since `restart`."""
        self._count(0)
        return Inflight(self._area / max(self._changed - self._started, 1e-9), self._peak, self.limit)

    def _count(self, change: int) -> None:
        now = time.perf_counter()
        self._area += self._inflight * (now - self._changed)
        self._changed = now
        self._inflight += change
        self._peak = max(self._peak, self._inflight)
