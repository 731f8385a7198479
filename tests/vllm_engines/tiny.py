"""A tiny model, its folder for engines, and how exactly an engine agrees with it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from envrl.engine import Engine, Generation, Sampling

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
