"""One request to the transformers engine, and what it took."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field
from random import Random

from envrl.engine.base import EngineStats, Generation, Sampling
from envrl.engine.slots import Slot


@dataclass(slots=True, eq=False)
class Request:
    """From its arrival to its last token. Times are those of `time.perf_counter`; 0 is not yet."""

    episode: str
    ids: list[int]
    """The prompt, then what was sampled."""
    limit: int
    """Length of `ids` at which it ends."""
    ends: frozenset[int]
    """Ids that end it, the model's own among them."""
    sampling: Sampling
    future: asyncio.Future[Generation]
    random: Random
    logprobs: list[float] = field(default_factory=list)
    slot: Slot = field(init=False)
    arrived: float = field(default_factory=time.perf_counter)
    seated: float = 0.0
    spoken: float = 0.0
    """When its first token was sampled."""
    cached: int = 0
    """Tokens of the prompt that were not fed."""

    def seat(self, slot: Slot) -> None:
        """Gives it a slot, the first time or again."""
        self.slot = slot
        if not self.seated:
            self.seated, self.cached = time.perf_counter(), slot.cached

    def spent(self) -> EngineStats:
        """Its share of the engine's totals, when it has ended; nothing where it never spoke.

        A request that gives up its seat waits, and is fed again, within whatever it was at.
        """
        if not self.spoken:
            return EngineStats()
        return EngineStats(
            queue_s=self.seated - self.arrived,
            prefill_s=self.spoken - self.seated,
            decode_s=time.perf_counter() - self.spoken,
            prompt_tokens=len(self.ids) - len(self.logprobs),
            cached_tokens=self.cached,
        )
