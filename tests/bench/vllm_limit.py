"""How fast a rollout could be, from the engine's step at each batch size and what was generated when."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

import numpy as np

from envrl.engine.base import Engine, Generation, Sampling

BATCHES = (1, 2, 4, 8, 16, 32, 64)
PROMPT, TOKENS = 8 * 32 + 1, 16
"""All of the prompt but one token is in whole blocks of the cache, so that decoding alone is measured."""
REPEATS = 2


@dataclass(frozen=True)
class Span:
    """One generation."""

    episode: str
    start_s: float
    end_s: float
    tokens: int


class Watched(Engine):
    """Notes when an engine generates for whom."""

    def __init__(self, engine: Engine) -> None:
        self.max_context = engine.max_context
        self.spans: list[Span] = []
        self._engine = engine

    async def generate(self, ids: Sequence[int], sampling: Sampling, *, episode: str) -> Generation:
        """The engine's."""
        start_s = time.perf_counter()
        generation = await self._engine.generate(ids, sampling, episode=episode)
        self.spans.append(Span(episode, start_s, time.perf_counter(), len(generation.ids)))
        return generation


@dataclass(frozen=True)
class Pace:
    """Seconds of an engine's step, by batch size."""

    step_s: Sequence[float]

    def at(self, batch: float) -> float:
        """Between two measured sizes, on the line through them."""
        return float(np.interp(batch, BATCHES, self.step_s))


async def measure_pace(engine: Engine) -> Pace:
    """The shortest of some repeats, which is the engine's peak."""
    return Pace([await _step_s(engine, batch) for batch in BATCHES])


async def _step_s(engine: Engine, batch: int) -> float:
    rng = Random(batch)
    prompts = [[rng.randrange(100) for _ in range(PROMPT)] for _ in range(batch)]

    async def one(index: int) -> int:
        sampling = Sampling(max_tokens=TOKENS, seed=index)
        return len((await engine.generate(prompts[index], sampling, episode=f"pace/{index}")).ids)

    times = []
    for _ in range(REPEATS + 1):
        started = time.perf_counter()
        tokens = sum(await asyncio.gather(*map(one, range(batch))))
        times.append(batch * (time.perf_counter() - started) / tokens)
    return min(times[1:])


class Load:
    """How many generations ran at once."""

    def __init__(self, spans: Sequence[Span]) -> None:
        edges = sorted([(span.start_s, 1) for span in spans] + [(span.end_s, -1) for span in spans])
        self._times = np.array([time_s for time_s, _ in edges])
        running = np.cumsum([change for _, change in edges])[:-1]
        self._area = np.concatenate([[0], np.cumsum(running * np.diff(self._times))])
        self.mean = float(self._area[-1] / np.diff(self._times)[running > 0].sum())
        """While any ran."""

    def during(self, span: Span) -> float:
        """Over one generation, itself included."""
        area = np.interp([span.start_s, span.end_s], self._times, self._area)
        return float((area[1] - area[0]) / (span.end_s - span.start_s))


def limit_s(spans: Sequence[Span], tools_s: dict[str, float], pace: Pace) -> float:
    """The least that a rollout can take: all tokens at the engine's peak, or its slowest episode alone.

    `tools_s` are the seconds of every episode's tools.
    """
    load = Load(spans)
    all_s = sum(span.tokens for span in spans) * pace.at(load.mean) / load.mean
    alone_s = dict(tools_s)
    for span in spans:
        alone_s[span.episode] += span.tokens * pace.at(load.during(span))
    return max(all_s, *alone_s.values())
