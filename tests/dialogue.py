"""Conversations with an engine, and what a model itself says of them."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from random import Random

import pytest
import torch

from envrl.engine import Generation, Sampling

GREEDY = Sampling(max_tokens=1, temperature=0)


def plain_logprobs(model, ids: Sequence[int], temperature: float = 1.0) -> torch.Tensor:
    """What the model itself says of each next token."""
    model.eval()
    with torch.no_grad():
        return (model(torch.tensor([ids])).logits[0].float() / temperature).log_softmax(-1)


def tokens(rng: Random, most: int, least: int = 1) -> list[int]:
    return [rng.randrange(48) for _ in range(rng.randint(least, most))]


async def converse(engine, seed: int, *, prompt=None, turns: int = 3, pause: bool = False, most: int = 9):
    """One episode; all its tokens, and each turn's start and generation."""
    rng = Random(seed)
    ids = list(prompt or tokens(rng, 40))
    said: list[tuple[int, Generation]] = []
    for turn in range(turns):
        if pause:
            await asyncio.sleep(rng.random() / 100)
        sampling = Sampling(max_tokens=rng.randint(1, most), seed=100 * seed + turn)
        generation = await engine.generate(ids, sampling, episode=str(seed))
        said.append((len(ids), generation))
        ids = ids + generation.ids + tokens(rng, 20, least=0)
    return ids, said


async def generate_all(engine, prompts, sampling: Sampling) -> list[Generation]:
    seeded = [replace(sampling, seed=sampling.seed + index) for index in range(len(prompts))]
    requests = enumerate(zip(prompts, seeded, strict=True))
    return await asyncio.gather(*(engine.generate(p, s, episode=f"e{i}") for i, (p, s) in requests))


def assert_plain(model, conversations) -> None:
    for ids, said in conversations:
        expected = plain_logprobs(model, ids)
        for start, generation in said:
            assert ids[start : start + len(generation.ids)] == generation.ids
            for index, (token, logprob) in enumerate(zip(generation.ids, generation.logprobs, strict=True)):
                assert logprob == pytest.approx(expected[start + index - 1, token].item(), abs=1e-4)
