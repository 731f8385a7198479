from __future__ import annotations

import asyncio
from random import Random

import pytest
import torch
from dialogue import GREEDY, assert_plain, generate_all, tokens  # type: ignore[import-not-found]
from transformers import MistralConfig, MistralForCausalLM

from envrl.engine import GenerationStop, Sampling
from envrl.engine.transformers import TransformersEngine
from envrl.errors import ConfigError, EngineError


def test_end_ids(build):
    # every token ends the turn: the model's own two ids as eos, all others as stop
    model = build()
    model.generation_config.eos_token_id = [3, 4]
    stop_ids = frozenset(range(48)) - {3, 4}
    prompts = [[seed % 48, 1] for seed in range(120)]
    engine = TransformersEngine(model)
    answers = asyncio.run(generate_all(engine, prompts, Sampling(max_tokens=5, stop_ids=stop_ids)))
    for answer in answers:
        assert len(answer.ids) == 1
        assert answer.stop is (GenerationStop.EOS if answer.ids[0] in (3, 4) else GenerationStop.STOP)
    assert {answer.stop for answer in answers} == {GenerationStop.EOS, GenerationStop.STOP}


def test_padding_may_be_the_end_token(build):
    model = build(pad_token_id=3, eos_token_id=3)
    prompts = [[3] * n + tokens(Random(n), 30) + [3] for n in range(6)]
    answers = asyncio.run(generate_all(TransformersEngine(model), prompts, Sampling(max_tokens=9)))
    assert_plain(model, [(p + a.ids, [(len(p), a)]) for p, a in zip(prompts, answers, strict=True)])


def test_the_context_ends_a_turn_and_never_raises(build):
    engine = TransformersEngine(build(max_position_embeddings=64))
    prompts = [[1] * length for length in (1, 60, 63, 64, 70)]
    answers = asyncio.run(generate_all(engine, prompts, Sampling(max_tokens=1000)))
    assert [len(answer.ids) for answer in answers] == [63, 4, 1, 0, 0]
    assert {answer.stop for answer in answers} == {GenerationStop.LENGTH}


def test_cancelling_aborts_the_request(model):
    async def play():
        engine = TransformersEngine(model)
        request = asyncio.create_task(engine.generate([1, 2], Sampling(max_tokens=400), episode="a"))
        while engine.passes < 3:
            await asyncio.sleep(0)
        request.cancel()
        await asyncio.gather(request, return_exceptions=True)
        passes = engine.passes
        await asyncio.sleep(0.02)
        again = await engine.generate([1, 2, 3], Sampling(max_tokens=4), episode="a")
        return request.cancelled(), passes, engine.passes, again

    cancelled, passes, later, again = asyncio.run(play())
    assert cancelled
    assert later == passes + 4
    assert_plain(model, [([1, 2, 3, *again.ids], [(3, again)])])


def test_releasing_a_running_episode_aborts_it(model):
    async def play():
        engine = TransformersEngine(model)
        request = asyncio.create_task(engine.generate([1, 2], Sampling(max_tokens=400), episode="a"))
        while engine.passes < 3:
            await asyncio.sleep(0)
        await engine.release("a")
        await engine.release("unknown")
        return await request

    answer = asyncio.run(play())
    assert answer.stop is GenerationStop.ABORT
    assert len(answer.ids) == 3


def test_loading_weights_waits_and_drops_what_is_cached(build):
    model, other = build(), build()
    for parameter in other.parameters():
        parameter.data.mul_(1.1)

    async def play():
        engine = TransformersEngine(model)
        running = asyncio.create_task(engine.generate([1, 2], Sampling(max_tokens=30), episode="a"))
        while engine.passes < 3:
            await asyncio.sleep(0)
        loading = asyncio.create_task(engine.load_weights(other.named_parameters(), 7))
        await asyncio.sleep(0)
        queued = asyncio.create_task(engine.generate([1, 2], Sampling(max_tokens=5), episode="b"))
        await loading
        old = await running
        ids = [1, 2, *old.ids]
        return old, await queued, (ids, await engine.generate(ids, Sampling(max_tokens=5), episode="a"))

    old, queued, (ids, new) = asyncio.run(play())
    assert [old.weights_version, queued.weights_version, new.weights_version] == [0, 7, 7]
    assert len(old.ids) == 30
    assert_plain(other, [([1, 2, *queued.ids], [(2, queued)]), (ids + new.ids, [(len(ids), new)])])


def test_loading_an_unknown_weight_names_it(model):
    with pytest.raises(EngineError, match="nonsense"):
        asyncio.run(TransformersEngine(model).load_weights([("nonsense", torch.zeros(1))], 1))


def as_found(model) -> tuple[str, list[bool]]:
    return model.config._attn_implementation, [module.training for module in model.modules()]


async def _answer(engine, request):
    await request


async def _cancel(engine, request):
    request.cancel()


async def _release(engine, request):
    await engine.release("a")


async def _close(engine, request):
    await engine.close()


async def _fail(engine, request):
    with pytest.raises(EngineError):
        await engine.generate([10_000], Sampling(max_tokens=1), episode="b")


async def _load(engine, request):
    """While weights are loaded a request queues."""
    meanwhile = []

    def weights():
        meanwhile.append(as_found(engine.model))
        yield from ()

    loading = asyncio.create_task(engine.load_weights(weights(), 1))
    await asyncio.sleep(0)
    await asyncio.gather(loading, engine.generate([1], GREEDY, episode="b"))
    assert meanwhile == [as_found(engine.model)]


async def _leave(engine, request):
    """The event loop ends with the request outstanding."""


@pytest.mark.parametrize("end", [_answer, _cancel, _release, _close, _fail, _load, _leave])
def test_the_module_is_given_back_as_it_was_found(build, end):
    # without a trace it is lent for as long as a request runs
    rope = {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4}
    model = build("llama", rope_parameters=rope, attn_implementation="eager")
    model.train()
    model.model.layers[0].eval()  # frozen, say
    found = as_found(model)
    lent = []

    async def play():
        engine = TransformersEngine(model)
        request = asyncio.create_task(engine.generate([1, 2], Sampling(max_tokens=20), episode="a"))
        while engine.passes < 3:
            await asyncio.sleep(0)
        lent.append(as_found(model))
        await end(engine, request)
        if end is not _leave:
            await asyncio.gather(request, return_exceptions=True)
            lent.append(as_found(model))

    asyncio.run(play())
    assert lent[0] == ("envrl", [False] * len(found[1]))
    assert [*lent[1:], as_found(model)] == [found] * (len(lent[1:]) + 1)


def test_a_refused_model_is_given_back(build):
    model = build("llama", attn_implementation="eager")
    model.train()
    model.model.layers[1].self_attn.forward = lambda hidden_states, **rest: (hidden_states, None)
    found = as_found(model)
    for play in (TransformersEngine(model).start(), generate_all(TransformersEngine(model), [[1]], GREEDY)):
        with pytest.raises(ConfigError, match="layers of another kind"):
            asyncio.run(play)
        assert as_found(model) == found


def test_the_trainer_goes_on_with_the_same_module(model):
    engine = TransformersEngine(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for version in range(1, 4):
        model.train()
        ids = torch.tensor([[1, 2, 3, 4, 5]])
        model(ids, labels=ids).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        asyncio.run(engine.load_weights(model.named_parameters(), version))
        (answer,) = asyncio.run(generate_all(engine, [[1, 2, 3]], Sampling(max_tokens=6)))
        assert model.training
        assert model.config._attn_implementation == "sdpa"
        assert answer.weights_version == version
        assert_plain(model, [([1, 2, 3, *answer.ids], [(3, answer)])])


def test_replaced_weights_are_noticed(build):
    model = build(tie_word_embeddings=False)
    engine = TransformersEngine(model)
    asyncio.run(generate_all(engine, [[1, 2, 3]], Sampling(max_tokens=2)))
    model.lm_head.weight = torch.nn.Parameter(torch.randn_like(model.lm_head.weight))
    asyncio.run(engine.load_weights([], 1))
    (answer,) = asyncio.run(generate_all(engine, [[1, 2, 3]], Sampling(max_tokens=6)))
    assert_plain(model, [([1, 2, 3, *answer.ids], [(3, answer)])])


def test_a_failing_pass_fails_all_and_the_engine_goes_on(model):
    async def play():
        engine = TransformersEngine(model)
        good = [1, 2, 3]
        both = [engine.generate(ids, Sampling(max_tokens=3), episode=str(ids)) for ids in (good, [1, 10_000])]
        failures = await asyncio.gather(*both, return_exceptions=True)
        return failures, await engine.generate(good, Sampling(max_tokens=3), episode="again")

    failures, again = asyncio.run(play())
    assert [type(failure) for failure in failures] == [EngineError, EngineError]
    assert "index out of range" in str(failures[0])
    assert "\n" not in str(failures[0])
    assert_plain(model, [([1, 2, 3, *again.ids], [(3, again)])])


def test_logits_that_are_not_finite_are_an_error(model):
    engine = TransformersEngine(model)
    asyncio.run(engine.start())
    model.model.norm.weight.data.fill_(torch.nan)
    for temperature in (0.0, 1.0):
        with pytest.raises(EngineError, match="not finite"):
            asyncio.run(generate_all(engine, [[1, 2]], Sampling(max_tokens=2, temperature=temperature)))


def test_a_closed_engine_says_so(model):
    async def play():
        engine = TransformersEngine(model)
        request = asyncio.create_task(engine.generate([1, 2], Sampling(max_tokens=400), episode="a"))
        while engine.passes < 3:
            await asyncio.sleep(0)
        await engine.close()
        assert (await request).stop is GenerationStop.ABORT
        with pytest.raises(EngineError, match="closed"):
            await engine.generate([1], Sampling(max_tokens=1), episode="b")

    asyncio.run(play())


def test_an_empty_prompt_is_refused(model):
    with pytest.raises(EngineError, match="empty"):
        asyncio.run(generate_all(TransformersEngine(model), [[]], Sampling(max_tokens=1)))


def test_other_kinds_of_attention_are_refused(build):
    layers = ["full_attention", "sliding_attention"]
    with pytest.raises(ConfigError, match="mend: model.name_or_path"):
        TransformersEngine(build(layer_types=layers, sliding_window=8, use_sliding_window=True))


def test_a_window_that_only_attention_knows_of_is_refused():
    config = MistralConfig(
        vocab_size=48,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        sliding_window=8,
        max_position_embeddings=64,
    )
    engine = TransformersEngine(MistralForCausalLM(config))
    with pytest.raises(ConfigError, match="mend: model.name_or_path"):
        asyncio.run(engine.start())
