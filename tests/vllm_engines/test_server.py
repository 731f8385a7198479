"""A vLLM server as the engine: exact weights, exact limits."""

from __future__ import annotations

import asyncio
from urllib.request import urlopen

import pytest
import torch
from serving import answer, at, started  # type: ignore[import-not-found]
from test_colocate import started as in_process  # type: ignore[import-not-found]
from tiny import PROMPT, Tiny, assert_exact_after_updates, play  # type: ignore[import-not-found]

from envrl.engine import GenerationStop, Sampling
from envrl.engine.vllm.client import Client
from envrl.errors import EngineError, StageError
from envrl.model.weights import Weights

pytestmark = pytest.mark.anyio


async def test_logprobs_are_the_trainers_after_every_update(tiny: Tiny, url: str) -> None:
    async with started(tiny, *at(url)) as engine:
        await assert_exact_after_updates(engine, tiny)


async def test_merged_adapters_are_the_trainers_too(tiny: Tiny, url: str) -> None:
    from peft import LoraConfig, get_peft_model

    model = get_peft_model(tiny.model, LoraConfig(r=4, target_modules="all-linear"))
    adapted = Tiny(model, tiny.tokenizer, tiny.folder)
    async with started(tiny, *at(url)) as engine:
        adapted.change()
        await engine.load_weights(Weights(adapted.model), 1)
        assert await adapted.difference(engine) < 1e-4


async def test_untied_weights_are_the_trainers_too(untied: Tiny, urls: dict[str, str]) -> None:
    async with started(untied, *at(urls["untied"])) as engine:
        for version in (1, 2):
            untied.change()
            await engine.load_weights(Weights(untied.model), version)
            assert await untied.difference(engine) < 1e-4


async def test_a_server_is_one_runs_alone(tiny: Tiny, url: str) -> None:
    async with started(tiny, *at(url)) as first:
        await first.load_weights(Weights(tiny.model), 1)
        await first.sleep()
        async with started(tiny, *at(url)) as second:
            await second.load_weights(Weights(tiny.model), 1)
            with pytest.raises(StageError, match="serves another run, too; mend: give every run servers"):
                await first.sleep()


async def test_an_update_that_a_dead_trainer_began_is_closed(tiny: Tiny, url: str) -> None:
    client = Client(url)
    await client.pause()
    await client.start_update()
    await client.drop()
    async with started(tiny, *at(url)) as engine:
        await engine.load_weights(Weights(tiny.model), 1)
        assert await tiny.difference(engine) < 1e-4


async def test_it_samples_what_the_engine_in_process_samples(tiny: Tiny, url: str) -> None:
    settings = [Sampling(max_tokens=30, seed=seed, top_p=0.9, temperature=0.8) for seed in range(4)]
    async with in_process(tiny) as colocate:
        expected = [await colocate.generate(PROMPT, sampling, episode="a") for sampling in settings]
    async with started(tiny, *at(url)) as engine:
        for sampling, other in zip(settings, expected, strict=True):
            same = await engine.generate(PROMPT, sampling, episode="a")
            assert (same.ids, same.stop) == (other.ids, other.stop)
            assert same.logprobs == pytest.approx(other.logprobs, abs=1e-4)


async def test_many_episodes_of_many_turns_at_once(tiny: Tiny, url: str) -> None:
    async with started(tiny, *at(url)) as engine:
        await asyncio.gather(*(play(engine, index) for index in range(64)))
        stats = await engine.stats()
        assert engine.kv_tokens
        assert min(stats.queue_s, stats.prefill_s, stats.decode_s) > 0
        assert stats.prompt_tokens > 64 * 4 * len(PROMPT)
        assert stats.cached_tokens > 0.7 * stats.prompt_tokens


async def test_stop_ids_and_end_tokens_end_a_turn(tiny: Tiny, url: str) -> None:
    async with started(tiny, *at(url), eos=[]) as engine:
        whole = await answer(engine, max_tokens=30, seed=5)
        assert (whole.stop, len(whole.ids)) == (GenerationStop.LENGTH, 30)
        stops = frozenset(whole.ids[4:7])
        first = next(i for i, token in enumerate(whole.ids) if token in stops)
        short = await answer(engine, max_tokens=30, seed=5, stop_ids=stops)
        assert (short.stop, short.ids) == (GenerationStop.STOP, whole.ids[: first + 1])
        assert short.logprobs == pytest.approx(whole.logprobs[: first + 1], abs=1e-4)
    async with started(tiny, *at(url), eos=stops) as engine:
        ended = await answer(engine, max_tokens=30, seed=5)
        assert (ended.stop, ended.ids) == (GenerationStop.EOS, short.ids)


async def test_greedy_tokens_are_certain(tiny: Tiny, url: str) -> None:
    async with started(tiny, *at(url)) as engine:
        greedy = await answer(engine, temperature=0.0)
    with torch.no_grad():
        best = tiny.model(torch.tensor([PROMPT])).logits[0, -1].argmax().item()
    assert greedy.ids[0] == best
    assert greedy.logprobs == [0.0] * len(greedy.ids)


async def test_the_context_ends_a_turn_without_an_exception(tiny: Tiny, url: str) -> None:
    async with started(tiny, *at(url), eos=[]) as engine:
        engine.max_context = 112
        cut = await answer(engine, max_tokens=100)
        assert (cut.stop, len(cut.ids)) == (GenerationStop.LENGTH, 12)
        full = await engine.generate(PROMPT + cut.ids, Sampling(max_tokens=5), episode="a")
        assert (full.stop, full.ids) == (GenerationStop.LENGTH, [])


async def test_a_request_that_is_wrong_fails_alone(tiny: Tiny, url: str) -> None:
    async with started(tiny, *at(url)) as engine:
        good = asyncio.create_task(answer(engine, max_tokens=50))
        with pytest.raises(EngineError, match="status 400: Token id 100000 is out of vocabulary"):
            await engine.generate([100000], Sampling(max_tokens=5), episode="b")
        assert (await good).ids


async def test_cancelling_aborts_the_request(tiny: Tiny, url: str) -> None:
    async with started(tiny, *at(url), eos=[]) as engine:
        task = asyncio.create_task(answer(engine, max_tokens=900))
        assert await _until(url, running=1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert await _until(url, running=0)
        assert (await engine.stats()).decode_s < 1  # all of it would have taken several


async def test_new_weights_wait_for_what_runs_and_later_requests_wait_for_them(tiny: Tiny, url: str) -> None:
    async with started(tiny, *at(url), eos=[]) as engine:
        before = [asyncio.create_task(answer(engine, episode=str(i), max_tokens=60)) for i in range(8)]
        assert await _until(url, running=8)
        update = asyncio.create_task(engine.load_weights(Weights(tiny.model), 1))
        await asyncio.sleep(0)
        after = asyncio.create_task(answer(engine))
        await update
        whole = [await task for task in before]
        assert {(len(generation.ids), generation.weights_version) for generation in whole} == {(60, 0)}
        assert (await after).weights_version == 1


async def _until(url: str, *, running: int) -> bool:
    """Whether the server comes to have so many requests within some seconds."""
    for _ in range(200):
        with urlopen(f"{url}/metrics") as reply:
            (line,) = [
                x for x in reply.read().decode().splitlines() if x.startswith("vllm:num_requests_running{")
            ]
        if float(line.rpartition(" ")[2]) == running:
            return True
        await asyncio.sleep(0.02)
    return False
