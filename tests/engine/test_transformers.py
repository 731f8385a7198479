from __future__ import annotations

import asyncio
from random import Random

import pytest
import torch
from dialogue import assert_plain, converse, generate_all, plain_logprobs, tokens  # type: ignore[import-not-found]

from envrl.engine import Sampling
from envrl.engine.transformers import TransformersEngine


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
@pytest.mark.parametrize(
    ("kind", "changes"),
    [
        ("qwen3", {}),
        ("qwen3", {"num_key_value_heads": 4, "tie_word_embeddings": False}),
        ("llama", {"num_key_value_heads": 1}),
        # Python looks at positions here, so there is no trace
        ("llama", {"rope_parameters": {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4}}),
    ],
)
def test_logprobs_are_those_of_a_plain_forward(build, kind, changes, attention):
    model = build(kind, attn_implementation=attention, **changes)
    group = tokens(Random(5), 40, least=30)

    async def play():
        engine = TransformersEngine(model)
        alone = (converse(engine, seed, pause=True) for seed in range(12))
        together = (converse(engine, seed, prompt=group) for seed in range(12, 20))
        return await asyncio.gather(*alone, *together)

    conversations = asyncio.run(play())
    assert (model.training, model.config._attn_implementation) == (True, attention)
    assert_plain(model, conversations)


@pytest.mark.parametrize("changes", [{}, {"pad_token_id": 3}, {"attn_implementation": "eager"}])
def test_a_plain_model_is_traced_on_a_cpu(build, changes):
    model = build(**changes)
    padding = model.get_input_embeddings().padding_idx
    engine = TransformersEngine(model)
    asyncio.run(engine.start())
    assert engine._forward._traced is not None
    assert model.get_input_embeddings().padding_idx == padding


def bfloat16():
    return torch.autocast("cpu", torch.bfloat16)


def test_passes_run_under_the_trainers_autocast(build):
    model = build(attn_implementation="eager")
    model.activation_checkpointing_enable()
    engine = TransformersEngine(model, autocast=bfloat16)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3)
    prompt = tokens(Random(0), 40, least=40)
    for version in range(3):  # a cast weight that outlived an update would show
        asyncio.run(engine.load_weights([], version))
        (answer,) = asyncio.run(generate_all(engine, [prompt], Sampling(max_tokens=60)))
        ids = torch.tensor([prompt + answer.ids])
        with bfloat16():
            expected = plain_logprobs(model, ids[0].tolist())[len(prompt) - 1 : -1]
        chosen = expected.gather(1, ids[0, len(prompt) :, None])[:, 0]
        assert torch.tensor(answer.logprobs) == pytest.approx(chosen, abs=0.2)
        assert (torch.tensor(answer.logprobs) - chosen).abs().mean() < 0.02
        model.train()
        with bfloat16():
            loss = model(ids, labels=ids).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    assert not torch.is_autocast_enabled("cpu")


def test_keys_and_values_are_stored_as_autocast_has_them(model):
    def kv_bytes(**settings) -> int:
        engine = TransformersEngine(model, **settings)
        asyncio.run(generate_all(engine, [[1, 2, 3]], Sampling(max_tokens=3)))
        return engine.kv_bytes

    assert kv_bytes(autocast=bfloat16) == kv_bytes() // 2


def test_logprobs_are_under_the_temperature(model):
    prompts = [tokens(Random(seed), 30) for seed in range(4)]
    engine = TransformersEngine(model)
    for temperature in (0.5, 1.7):
        sampling = Sampling(max_tokens=6, temperature=temperature)
        for prompt, answer in zip(prompts, asyncio.run(generate_all(engine, prompts, sampling)), strict=True):
            expected = plain_logprobs(model, prompt + answer.ids, temperature)[len(prompt) - 1 : -1]
            chosen = expected.gather(1, torch.tensor(answer.ids)[:, None])[:, 0]
            assert answer.logprobs == pytest.approx(chosen.tolist(), abs=1e-4)


def test_greedy_is_the_models_own_greedy(model):
    prompts = [tokens(Random(seed), 40) for seed in range(6)]
    answers = asyncio.run(
        generate_all(TransformersEngine(model), prompts, Sampling(max_tokens=12, temperature=0))
    )
    for prompt, answer in zip(prompts, answers, strict=True):
        ids = torch.tensor([prompt])
        mask = torch.ones_like(ids)
        expected = model.generate(ids, attention_mask=mask, do_sample=False, max_new_tokens=12)
        assert answer.ids == expected[0, len(prompt) :].tolist()
        assert answer.logprobs == [0.0] * 12


def test_a_later_turn_feeds_only_what_is_new(model):
    async def play():
        engine = TransformersEngine(model)
        ids = list(range(40))
        first = await engine.generate(ids, Sampling(max_tokens=5), episode="a")
        fed = engine.fed
        await engine.generate([*ids, *first.ids, 1, 2, 3], Sampling(max_tokens=1), episode="a")
        return fed, engine.fed - fed

    # the last sampled token of the first turn was never fed
    assert asyncio.run(play()) == (40 + 4, 1 + 3)


def test_reuse_gives_what_a_fresh_prefill_gives(model):
    async def play(forget: bool):
        engine = TransformersEngine(model)
        ids, answers = tokens(Random(1), 40), []
        for turn in range(4):
            sampling = Sampling(max_tokens=7, seed=turn)
            answers.append(await engine.generate(ids, sampling, episode="a"))
            ids = ids + answers[-1].ids + tokens(Random(turn), 20)
            if forget:
                await engine.release("a")
        return [answer.ids for answer in answers]

    assert asyncio.run(play(forget=True)) == asyncio.run(play(forget=False))


def test_a_rewritten_history_is_fed_again_from_where_it_differs(model):
    history = list(range(40))
    changed = [*history[:25], 7, 7, 7]

    async def play():
        engine = TransformersEngine(model)
        await engine.generate(history, Sampling(max_tokens=3), episode="a")
        fed = engine.fed
        answer = await engine.generate(changed, Sampling(max_tokens=4), episode="a")
        return answer, engine.fed - fed

    answer, fed = asyncio.run(play())
    assert fed == 3 + 3
    assert_plain(model, [(changed + answer.ids, [(len(changed), answer)])])


def test_a_common_prompt_is_fed_once(model):
    prompt = tokens(Random(3), 40, least=40)
    engine = TransformersEngine(model)
    answers = asyncio.run(generate_all(engine, [prompt] * 8, Sampling(max_tokens=1)))
    assert engine.fed == 40 + 7
    assert len({answer.ids[0] for answer in answers}) > 1


def test_a_shared_beginning_of_a_live_episode_is_copied(model):
    prompt = tokens(Random(3), 40, least=40)

    async def play():
        engine = TransformersEngine(model)
        await engine.generate(prompt, Sampling(max_tokens=1), episode="a")
        fed = engine.fed
        other = [*prompt[:30], 1, 2]
        answer = await engine.generate(other, Sampling(max_tokens=3), episode="b")
        return engine.fed - fed, (other + answer.ids, [(len(other), answer)])

    fed, conversation = asyncio.run(play())
    assert fed == 2 + 2
    assert_plain(model, [conversation])


def test_a_long_prompt_is_fed_in_pieces(build):
    model = build(max_position_embeddings=2048)
    prompts = [tokens(Random(seed), 1500, least=1200) for seed in range(3)]
    engine = TransformersEngine(model)
    answers = asyncio.run(generate_all(engine, prompts, Sampling(max_tokens=3)))
    assert engine.passes > 3
    assert_plain(model, [(p + a.ids, [(len(p), a)]) for p, a in zip(prompts, answers, strict=True)])


def test_a_request_joins_a_running_batch(model):
    async def play():
        engine = TransformersEngine(model)
        long = asyncio.create_task(engine.generate([1, 2], Sampling(max_tokens=200), episode="long"))
        while engine.passes < 3:
            await asyncio.sleep(0)
        await engine.generate([3, 4], Sampling(max_tokens=2), episode="short")
        joined = not long.done()
        await long
        return joined, engine.passes

    joined, passes = asyncio.run(play())
    assert joined
    assert passes == 200


def test_a_seeded_request_does_not_depend_on_its_company(model):
    sampling = Sampling(max_tokens=12, seed=3, top_p=0.9)

    async def play(company: int):
        engine = TransformersEngine(model)
        others = [converse(engine, seed, pause=True) for seed in range(company)]
        mine = engine.generate([5, 6, 7], sampling, episode="mine")
        return (await asyncio.gather(mine, *others))[0]

    alone, among = asyncio.run(play(0)), asyncio.run(play(9))
    assert alone.ids == among.ids
    assert alone.logprobs == pytest.approx(among.logprobs, abs=1e-5)


@pytest.mark.parametrize("max_batch", [None, 3])
def test_the_same_requests_give_the_same_results(build, max_batch):
    async def play():
        engine = TransformersEngine(build(), max_batch=max_batch)
        return await asyncio.gather(*(converse(engine, seed) for seed in range(10)))

    assert asyncio.run(play()) == asyncio.run(play())


BLOCK = 256 * 64 / 2**30
"""GiB of 64 positions of the model in these tests."""


@pytest.mark.parametrize(("blocks", "most"), [(4, 12), (8, 12), (12, 12), (16, 90)])
def test_little_memory_changes_no_token(model, blocks, most):
    async def play(limit: float | None):
        engine = TransformersEngine(model, kv_cache_gib=limit)
        await engine.start()
        group = tokens(Random(9), 60, least=60)
        games = [
            converse(engine, seed, prompt=group if seed % 2 else None, pause=seed % 3 == 0, most=most)
            for seed in range(10)
        ]
        playing = asyncio.gather(*games)
        peak = 0
        while not playing.done():
            peak = max(peak, engine.kv_bytes)
            await asyncio.sleep(0)
        return await playing, peak, engine.fed

    limit = blocks * BLOCK  # the longest episode takes up to four
    enough, held, fed = asyncio.run(play(None))
    scarce, peak, fed_again = asyncio.run(play(limit))
    assert [ids for ids, _ in scarce] == [ids for ids, _ in enough]
    assert_plain(model, scarce)
    assert peak <= limit * 2**30 < held
    assert fed_again > fed


def test_idle_episodes_give_way_and_are_fed_again(model):
    async def play():
        engine = TransformersEngine(model, kv_cache_gib=BLOCK)
        first = await engine.generate([1] * 20, Sampling(max_tokens=3), episode="a")
        ids = [1] * 20 + first.ids
        await engine.generate([2] * 20, Sampling(max_tokens=1), episode="b")
        fed = engine.fed
        return ids, await engine.generate(ids, Sampling(max_tokens=2), episode="a"), engine.fed - fed

    ids, again, fed = asyncio.run(play())
    assert fed == 23 + 1
    assert_plain(model, [(ids + again.ids, [(23, again)])])


def test_rows_that_outgrow_the_memory_queue_again(model):
    async def play(limit: float | None):
        engine = TransformersEngine(model, kv_cache_gib=limit)
        prompts = [tokens(Random(seed), 20) for seed in range(6)]
        return await generate_all(engine, prompts, Sampling(max_tokens=200)), engine.fed

    enough, fed = asyncio.run(play(None))
    scarce, fed_again = asyncio.run(play(6 * BLOCK))
    assert [answer.ids for answer in scarce] == [answer.ids for answer in enough]
    assert fed_again > fed


def test_a_row_that_queues_again_ends_before_weights_change(build):
    model, other = build(), build()
    for parameter in other.parameters():
        parameter.data.mul_(1.1)

    async def play():
        engine = TransformersEngine(model, kv_cache_gib=6 * BLOCK)
        requests = [
            asyncio.create_task(
                engine.generate([1, seed], Sampling(max_tokens=200, seed=seed), episode=str(seed))
            )
            for seed in range(6)
        ]
        while engine._running or not engine.passes:  # until all that are seated end at once
            await asyncio.sleep(0)
        assert not all(request.done() for request in requests)
        await engine.load_weights(other.named_parameters(), 1)
        done = [request.done() for request in requests]
        return done, await asyncio.gather(*requests)

    plain = build()
    done, answers = asyncio.run(play())
    assert all(done)
    assert_plain(plain, [([1, seed, *a.ids], [(2, a)]) for seed, a in enumerate(answers)])
