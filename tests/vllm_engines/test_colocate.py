"""vLLM in the trainer's process: exact weights, exact limits, and what breaks stays small."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from typing import Any

import numpy as np
import pytest
import torch
from tiny import PROMPT, Tiny, assert_exact_after_updates, play, running

from envrl import compose
from envrl.engine import GenerationStop, Sampling
from envrl.engine.vllm.colocate import MAX_DEATHS, ColocateEngine
from envrl.errors import ConfigError, EngineError
from envrl.model.weights import Weights

pytestmark = pytest.mark.anyio


@asynccontextmanager
async def started(
    tiny: Tiny, *overrides: str, eos: Iterable[int] | None = None
) -> AsyncIterator[ColocateEngine]:
    ends = [tiny.eos] if eos is None else eos
    spec = compose(["vllm_mode=colocate", *overrides]).vllm_mode
    made = ColocateEngine(spec, tiny.folder, dtype="float32", max_context=1024, eos=ends, threads=1)
    async with running(made, tiny) as engine:
        yield engine


async def test_logprobs_are_the_trainers_after_every_update(tiny: Tiny) -> None:
    async with started(tiny) as engine:
        await assert_exact_after_updates(engine, tiny)


async def test_merged_adapters_are_the_trainers_too(tiny: Tiny) -> None:
    from peft import LoraConfig, get_peft_model

    model = get_peft_model(tiny.model, LoraConfig(r=4, target_modules="all-linear"))
    adapted = Tiny(model, tiny.tokenizer, tiny.folder)
    async with started(tiny) as engine:
        adapted.change()
        await engine.load_weights(Weights(adapted.model), 1)
        assert await adapted.difference(engine) < 1e-4


async def test_untied_weights_are_the_trainers_too(untied: Tiny) -> None:
    async with started(untied) as engine:
        untied.change()
        await engine.load_weights(Weights(untied.model), 1)
        assert await untied.difference(engine) < 1e-4


async def test_many_episodes_of_many_turns_at_once(tiny: Tiny) -> None:
    async with started(tiny) as engine:
        await asyncio.gather(*(play(engine, index) for index in range(64)))
        stats = await engine.stats()
        assert engine.kv_tokens
    assert stats.decode_s > 0
    # eight prompts of a hundred tokens were prefilled once each; later turns meet their earlier ones
    assert stats.cached_tokens > 0.7 * stats.prompt_tokens


async def test_the_same_seed_samples_the_same_and_the_engine_lists_ends(tiny: Tiny) -> None:
    async with started(tiny) as engine:
        whole = await _answer(engine, max_tokens=30, seed=5)
        assert (await _answer(engine, max_tokens=30, seed=5)).ids == whole.ids
        stops = frozenset(whole.ids[4:7])
        short = await _answer(engine, max_tokens=30, seed=5, stop_ids=stops)
        first = next(i for i, token in enumerate(whole.ids) if token in stops)
        assert short.ids == whole.ids[: first + 1]
        assert short.stop is GenerationStop.STOP
        assert len(short.logprobs) == len(short.ids)
        assert set((await _answer(engine, temperature=0.0)).logprobs) == {0.0}


async def test_end_tokens_of_the_model_end_a_turn(tiny: Tiny) -> None:
    async with started(tiny, eos=range(400)) as engine:
        generation = await _answer(engine)
    assert generation.stop is GenerationStop.EOS
    assert generation.ids[-1] < 400


async def test_the_context_ends_a_turn_without_an_exception(tiny: Tiny) -> None:
    async with started(tiny, "vllm_mode.max_model_len=112", "scheduler.max_tokens=100") as engine:
        assert engine.max_context == 112
        cut = await _answer(engine, max_tokens=100)
        assert (cut.stop, len(cut.ids)) == (GenerationStop.LENGTH, 12)
        full = await engine.generate(PROMPT + cut.ids, Sampling(max_tokens=5), episode="a")
        assert (full.stop, full.ids) == (GenerationStop.LENGTH, [])


async def test_cancelling_aborts_the_request(tiny: Tiny) -> None:
    async with started(tiny, eos=()) as engine:
        await _answer(engine)
        task = asyncio.create_task(_answer(engine, max_tokens=900))
        await asyncio.sleep(0.1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await engine.load_weights(Weights(tiny.model), 1)  # which waits for all that runs
        assert (await engine.stats()).decode_s < 1
        assert (await _answer(engine)).ids


async def test_new_weights_wait_for_what_runs_and_later_requests_wait_for_them(tiny: Tiny) -> None:
    async with started(tiny) as engine:
        before = [asyncio.create_task(_answer(engine, max_tokens=60, seed=i)) for i in range(8)]
        await asyncio.sleep(0.05)
        update = asyncio.create_task(engine.load_weights(Weights(tiny.model), 1))
        await asyncio.sleep(0)
        after = asyncio.create_task(_answer(engine))
        await update
        assert {(await task).weights_version for task in before} == {0}
        assert (await after).weights_version == 1


async def test_a_dead_engine_fails_its_turns_and_is_built_again_with_its_weights(tiny: Tiny) -> None:
    async with started(tiny) as engine:
        tiny.change()
        await engine.load_weights(Weights(tiny.model), 1)
        _break(engine)
        failures = await asyncio.gather(*[_answer(engine) for _ in range(4)], return_exceptions=True)
        assert {str(failure) for failure in failures} == {"RuntimeError: out of luck"}
        assert await tiny.difference(engine) < 1e-4
        for _ in range(MAX_DEATHS):
            await engine._call(lambda: None)  # the next one is built
            _break(engine)
            with pytest.raises(EngineError):
                await _answer(engine)
        with pytest.raises(EngineError, match="died 3 times in a row: RuntimeError: out of luck"):
            await _answer(engine)


async def test_engines_follow_one_another_and_leave_the_process_as_it_was(tiny: Tiny) -> None:
    def state() -> tuple[Any, ...]:
        torch_state = torch.get_rng_state().tolist()
        return torch.set_num_threads, random.getstate(), np.random.get_state()[1].tolist(), torch_state

    for _ in range(2):
        before = state()
        async with started(tiny) as engine:
            assert state() == before
            assert (await _answer(engine)).ids
    tiny.model(torch.tensor([PROMPT])).logits.sum().backward()
    assert tiny.model.get_input_embeddings().weight.grad is not None


REFUSED = {
    "vllm_mode.sleep=true": "vllm_mode.sleep: frees a GPU's memory, and there is none",
    "vllm_mode.args.max_num_batched_token=4": "did you mean max_num_batched_tokens?",
    "vllm_mode.args.model=other": "vllm_mode.args.model: is envrl's to set",
    "vllm_mode.args.dtype=half": "vllm_mode.args.dtype: is envrl's to set; mend: vllm_mode.dtype=half",
    "vllm_mode.quantization=nope": "vllm_mode=colocate: ",
    "vllm_mode.kv_cache_gib=1e-4": "vllm_mode=colocate: ",
}


@pytest.mark.parametrize("override", REFUSED)
async def test_what_vllm_cannot_do_is_refused_at_start(tiny: Tiny, override: str) -> None:
    with pytest.raises(ConfigError) as refusal:
        async with started(tiny, override):
            pass
    assert REFUSED[override] in str(refusal.value)


async def _answer(engine: ColocateEngine, **settings: Any) -> Any:
    sampling = Sampling(**{"max_tokens": 10, "seed": 1, **settings})
    return await engine.generate(PROMPT, sampling, episode="a")


def _break(engine: ColocateEngine) -> None:
    """What an illegal memory access does, in the engine's own step."""

    def step() -> None:
        raise RuntimeError("out of luck\nand a page of configuration")

    engine._running.engine.step = step


async def test_an_engine_of_two_workers_takes_the_weights_by_file(tiny: Tiny) -> None:
    async with started(tiny, "vllm_mode.tensor_parallel_size=2") as engine:
        assert await tiny.difference(engine) < 1e-4
        tiny.change()
        await engine.load_weights(Weights(tiny.model), 1)
        assert await tiny.difference(engine) < 1e-4
