"""What the real engine says of its memory, and how many episodes it is given."""

from __future__ import annotations

import asyncio

import pytest
from test_colocate import started
from tiny import PROMPT, Tiny

from envrl import compose
from envrl.engine import Sampling
from envrl.rollout.inflight import Gate

pytestmark = pytest.mark.anyio
LONG = PROMPT * 2


async def test_a_groups_prompt_is_computed_once(tiny: Tiny) -> None:
    async with started(tiny) as engine:
        members = [
            engine.generate(LONG, Sampling(max_tokens=4, seed=member), episode=str(member))
            for member in range(8)
        ]
        await asyncio.gather(*members)
        stats = await engine.stats()
    assert stats.prompt_tokens == 8 * len(LONG)
    assert stats.cached_tokens == 7 * (len(LONG) // 32 * 32)  # whole blocks


async def test_fewer_are_in_flight_once_the_engine_had_to_preempt(tiny: Tiny) -> None:
    """Episodes take eight times what was guessed, and the gate is not told."""
    small = ("vllm_mode.kv_cache_gib=0.002", "vllm_mode.max_model_len=512", "scheduler.max_tokens=256")
    async with started(tiny, *small) as engine:
        assert engine.kv_tokens == 928
        gate = Gate(compose(["rollout.min_inflight=2"]).rollout, guess=32)
        gate.serves(engine)
        assert gate.limit == 29

        async def episode(index: int) -> None:
            async with gate.place():
                ids = [index % 200 + 5, *[9] * 40]
                await engine.generate(ids, Sampling(max_tokens=200, seed=index), episode=str(index))
            await gate.learn(32)

        await asyncio.gather(*map(episode, range(160)))
        assert (await engine.stats()).preemptions > 0
        assert 2 <= gate.limit <= 8
