"""Episodes per second: TransformersEngine against transformers' own `generate`.

The workload is that of the default experiment: 64 episodes of two to six turns, eight to a group with one
prompt of about 60 tokens, observations of about 25, six to eight sampled tokens a turn, and the tiny model
of conf/model/tiny.yaml with random weights. `generate` plays them in lock-step, left-padded, without
those that have ended, and prefills the whole history every turn, as rollouts without a cache do. Both
sides sample the same number of tokens from the same module with one thread, one side after the other in
every round; delays stand for tools, are exponential, and the same for both.
"""

from __future__ import annotations

import os

os.environ["OMP_NUM_THREADS"] = "1"  # for both sides; torch reads it when it is imported

import asyncio
import statistics
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from random import Random

import torch
from transformers import Qwen3ForCausalLM

from envrl import compose
from envrl.engine import Sampling
from envrl.engine.transformers import TransformersEngine
from envrl.model.tiny import build_model
from envrl.rollout.corpus import tiny_tokenizer

EPISODES = 64
GROUP = 8
SAMPLED = (6, 7, 8, 7, 6, 7)
"""Tokens of each turn, for those episodes that get so far."""
ROUNDS = 5


@dataclass(frozen=True)
class Script:
    """One episode: what it begins with, and for each turn the environment's answer and how long it takes."""

    prompt: list[int]
    observations: list[list[int]]
    delays: list[float]
    """In units of the mean."""


def scripts(vocabulary: int) -> list[Script]:
    """Groups share a prompt; games last two to six turns."""
    prompts = [_tokens(Random(f"prompt {group}"), vocabulary, 55, 65) for group in range(EPISODES // GROUP)]
    games = []
    for episode in range(EPISODES):
        rng = Random(f"game {episode}")
        turns = rng.randint(2, len(SAMPLED))
        observations = [_tokens(rng, vocabulary, 20, 30) for _ in range(turns)]
        games.append(
            Script(prompts[episode // GROUP], observations, [rng.expovariate(1) for _ in range(turns)])
        )
    return games


def _tokens(rng: Random, vocabulary: int, least: int, most: int) -> list[int]:
    return [rng.randrange(vocabulary) for _ in range(rng.randint(least, most))]


def tiny_model() -> Qwen3ForCausalLM:
    """The default experiment's model, untrained; it never ends a turn by itself."""
    spec = compose(["model=tiny"])
    assert spec.model.tiny
    with tempfile.TemporaryDirectory() as cache:
        tokenizer = asyncio.run(tiny_tokenizer(spec, cache=Path(cache)))
    model = build_model(spec.model.tiny, tokenizer, seed=0)
    model.set_attn_implementation(spec.model.attn_implementation)
    model.config.eos_token_id = model.generation_config.eos_token_id = None
    return model


async def ours(engine: TransformersEngine, games: list[Script], mean_s: float) -> None:
    """Each episode goes at its own pace."""

    async def play(index: int, game: Script) -> None:
        ids = list(game.prompt)
        for turn, observation in enumerate(game.observations):
            sampling = Sampling(max_tokens=SAMPLED[turn], seed=index)
            generation = await engine.generate(ids, sampling, episode=str(index))
            assert len(generation.ids) == SAMPLED[turn]
            ids += generation.ids + observation
            if mean_s:
                await asyncio.sleep(mean_s * game.delays[turn])
        await engine.release(str(index))

    await asyncio.gather(*(play(index, game) for index, game in enumerate(games)))


async def theirs(model: Qwen3ForCausalLM, games: list[Script], mean_s: float) -> None:
    """Each turn waits for the slowest episode that still plays."""
    histories = [list(game.prompt) for game in games]
    for turn, tokens in enumerate(SAMPLED):
        playing = [index for index, game in enumerate(games) if turn < len(game.observations)]
        width = max(len(histories[index]) for index in playing)
        padding = [width - len(histories[index]) for index in playing]
        padded = [[0] * pad + histories[index] for pad, index in zip(padding, playing, strict=True)]
        mask = [[0] * pad + [1] * (width - pad) for pad in padding]
        with torch.inference_mode():
            output = model.generate(
                torch.tensor(padded),
                attention_mask=torch.tensor(mask),
                do_sample=True,
                top_k=0,
                max_new_tokens=tokens,
                pad_token_id=0,
            )
        for index, sampled in zip(playing, output[:, width:].tolist(), strict=True):
            assert len(sampled) == tokens
            histories[index] += sampled + games[index].observations[turn]
        if mean_s:
            await asyncio.gather(*(asyncio.sleep(mean_s * games[index].delays[turn]) for index in playing))


def compare(model: Qwen3ForCausalLM, games: list[Script], mean_s: float) -> None:
    """Plays both sides in turns and prints medians."""
    seconds: dict[str, list[float]] = {"ours": [], "theirs": []}
    engine = TransformersEngine(model)
    for index in range(ROUNDS + 1):
        for name, play in (("ours", ours(engine, games, mean_s)), ("theirs", theirs(model, games, mean_s))):
            start = time.perf_counter()
            asyncio.run(play)
            if index:  # the first round warms up
                seconds[name].append(time.perf_counter() - start)
    rates = {name: EPISODES / statistics.median(times) for name, times in seconds.items()}
    ratio = rates["ours"] / rates["theirs"]
    print(
        f"tools {1000 * mean_s:3.0f} ms: TransformersEngine {rates['ours']:6.1f} episodes/s, "
        f"generate in lock-step {rates['theirs']:6.1f} episodes/s, ratio {ratio:.1f}",
        flush=True,
    )


def main() -> None:
    """Both comparisons."""
    torch.set_num_threads(1)
    model = tiny_model()
    games = scripts(model.config.vocab_size)
    for mean_s in (0.0, 0.05):
        compare(model, games, mean_s)


if __name__ == "__main__":
    main()
