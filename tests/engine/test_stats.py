"""Where the transformers engine's time went, and what it computed."""

from __future__ import annotations

import asyncio
import time
from random import Random

import pytest
import torch
from dialogue import generate_all, tokens  # type: ignore[import-not-found]

from envrl.engine import EngineStats, Sampling, ScriptedEngine
from envrl.engine.transformers import TransformersEngine

BLOCK = 256 * 64 / 2**30
"""GiB of 64 positions of the model in these tests."""


def spent(engine: TransformersEngine, prompts: list[list[int]], *, most: int = 8) -> EngineStats:
    async def play() -> EngineStats:
        await engine.start()
        await generate_all(engine, prompts, Sampling(max_tokens=most))
        return await engine.stats()

    return asyncio.run(play())


def test_totals_are_added_and_subtracted() -> None:
    one = EngineStats(queue_s=0.5, prompt_tokens=3, preemptions=1)
    assert one + one == EngineStats(queue_s=1.0, prompt_tokens=6, preemptions=2)
    assert (one + one) - one == one


def test_a_groups_prompt_is_fed_once(model):
    prompt = tokens(Random(0), 40, least=40)
    engine = TransformersEngine(model)
    stats = spent(engine, [prompt] * 8)
    assert (stats.prompt_tokens, stats.cached_tokens) == (8 * 40, 7 * 39)  # one id is always fed
    assert stats.preemptions == 0


def test_an_earlier_turn_is_not_fed_again(model):
    async def play() -> EngineStats:
        engine = TransformersEngine(model)
        first = await engine.generate([1] * 20, Sampling(max_tokens=3), episode="a")
        before = await engine.stats()
        await engine.generate([1] * 20 + first.ids + [2] * 4, Sampling(max_tokens=3), episode="a")
        return await engine.stats() - before

    stats = asyncio.run(play())
    assert (stats.prompt_tokens, stats.cached_tokens) == (27, 22)  # the last sampled id was never fed


def test_the_parts_of_a_requests_time_add_up(model):
    async def play() -> tuple[EngineStats, float]:
        engine = TransformersEngine(model)
        await engine.start()
        started = time.perf_counter()
        await engine.generate([1] * 20, Sampling(max_tokens=40), episode="a")
        return await engine.stats(), time.perf_counter() - started

    stats, whole = asyncio.run(play())
    parts = [stats.queue_s, stats.prefill_s, stats.decode_s]
    assert min(parts) > 0
    assert sum(parts) == pytest.approx(whole, rel=0.1)
    assert stats.decode_s > stats.prefill_s


def test_who_waits_for_a_seat_queues(model):
    prompts = [tokens(Random(seed), 9) for seed in range(6)]
    together = spent(TransformersEngine(model), prompts)
    in_turn = spent(TransformersEngine(model, max_batch=1), prompts)
    assert in_turn.queue_s > in_turn.prefill_s + in_turn.decode_s
    assert together.queue_s < together.prefill_s + together.decode_s


def test_whoever_gives_up_a_seat_is_counted(model):
    prompts = [tokens(Random(seed), 20) for seed in range(6)]
    assert spent(TransformersEngine(model), prompts, most=200).preemptions == 0
    scarce = TransformersEngine(model, kv_cache_gib=6 * BLOCK)
    stats = spent(scarce, prompts, most=200)
    assert stats.preemptions > 0
    assert stats.prompt_tokens == sum(map(len, prompts))  # though some were fed again


def test_an_idle_episode_that_gives_way_is_counted(model):
    async def play() -> list[int]:
        engine, seen = TransformersEngine(model, kv_cache_gib=BLOCK), []
        for episode in "ab":
            await engine.generate([1] * 20, Sampling(max_tokens=3), episode=episode)
            seen.append((await engine.stats()).preemptions)
        return seen

    assert asyncio.run(play()) == [0, 1]


def test_what_never_spoke_counts_nothing(model):
    async def play() -> EngineStats:
        engine = TransformersEngine(model)
        request = asyncio.create_task(engine.generate([1, 2], Sampling(max_tokens=4), episode="a"))
        await asyncio.sleep(0)
        await engine.close()
        await request
        return await engine.stats()

    assert asyncio.run(play()) == EngineStats()


def test_its_memory_holds_so_many_tokens(model):
    def kv_tokens(**settings) -> int | None:
        engine = TransformersEngine(model, kv_cache_gib=10 * BLOCK, **settings)
        assert engine.kv_tokens is None
        asyncio.run(engine.start())
        return engine.kv_tokens

    assert kv_tokens() == 640
    assert kv_tokens(autocast=lambda: torch.autocast("cpu", torch.bfloat16)) == 1280


@pytest.mark.parametrize("replies", [["x"], [[1, 2]]])
def test_scripted_play_costs_nothing(replies):
    engine = ScriptedEngine(replies)
    asyncio.run(engine.generate([1], Sampling(max_tokens=9), episode="a"))
    assert asyncio.run(engine.stats()) == EngineStats()
    assert engine.kv_tokens is None
