"""A tiny model, its folder for engines, and how exactly an engine agrees with it."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import torch

from envrl.engine import Engine, Generation, Sampling
from envrl.model.weights import Weights

E = TypeVar("E", bound=Engine)

PROMPT = [5 + 37 * i % 280 for i in range(100)]
"""Longer than the blocks of the prefix cache, so that a stale one would show."""


@dataclass
class Tiny:
    """A trainer's model in float32 with tied embeddings, and what an engine is started from."""

    model: Any
    tokenizer: Any
    folder: Path

    @property
    def eos(self) -> int:
        return int(self.tokenizer.eos_token_id)

    def change(self, scale: float = 0.02) -> None:
        """What an update with a large learning rate does."""
        with torch.no_grad():
            for parameter in self.model.parameters():
                parameter.add_(torch.randn_like(parameter) * scale)

    @torch.no_grad()
    def logprobs(self, ids: list[int], *, last: int, temperature: float) -> torch.Tensor:
        """Of the last tokens, by transformers."""
        logits_TV = self.model(torch.tensor([ids])).logits[0, -last - 1 : -1] / temperature
        return torch.log_softmax(logits_TV, -1).gather(1, torch.tensor(ids[-last:])[:, None])[:, 0]

    async def difference(self, engine: Engine, *, temperature: float = 0.7) -> float:
        """Mean distance between the engine's log-probs of what it samples and the trainer's."""
        sampling = Sampling(max_tokens=40, temperature=temperature, seed=3)
        generation: Generation = await engine.generate(PROMPT, sampling, episode="probe")
        ids = PROMPT + generation.ids
        ours = self.logprobs(ids, last=len(generation.ids), temperature=temperature)
        return float((torch.tensor(generation.logprobs) - ours).abs().mean())


@asynccontextmanager
async def running(engine: E, tiny: Tiny) -> AsyncIterator[E]:
    """Started, with the model's weights."""
    try:
        await engine.start()
        await engine.load_weights(Weights(tiny.model), 0)
        yield engine
    finally:
        await engine.close()


async def play(engine: Engine, index: int) -> None:
    """An episode of four turns of random length, with pauses between them; eight begin alike."""
    ids, drawn = [*PROMPT, index % 8], random.Random(index)
    for turn in range(4):
        sampling = Sampling(max_tokens=drawn.randint(1, 30), seed=100 * index + turn)
        generation = await engine.generate(ids, sampling, episode=str(index))
        assert 0 < len(generation.ids) <= sampling.max_tokens
        await asyncio.sleep(drawn.expovariate(100))
        ids = ids + generation.ids + PROMPT[:10]
    await engine.release(str(index))


async def assert_exact_after_updates(engine: Engine, tiny: Tiny) -> None:
    """The engine's log-probs are the trainer's after every update, and only then."""
    assert await tiny.difference(engine) < 1e-4
    for version in (1, 2, 3):
        tiny.change()
        assert await tiny.difference(engine) > 0.1  # the old weights, and the old prefix cache
        await engine.load_weights(Weights(tiny.model), version)
        assert await tiny.difference(engine) < 1e-4
        generation = await engine.generate(PROMPT, Sampling(max_tokens=10, seed=1), episode="a")
        assert generation.weights_version == version
