"""Episodes per second: TransformersEngine against transformers' own `generate`.

The workload is that of the default experiment: 64 episodes of four turns, eight to a group with one prompt
of about 60 tokens, observations of about 25, six to eight sampled tokens a turn, a random Qwen3 of
0.4 million parameters. `generate` plays them in lock-step, left-padded, and prefills the whole history
every turn, as rollouts without a cache do. Both sides sample the same number of tokens from the same
module with one thread, in turns; delays stand for tools and are the same for both.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from random import Random

import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

from envrl.engine import Sampling
from envrl.engine.transformers import TransformersEngine

VOCABULARY = 600
EPISODES = 64
GROUP = 8
TURNS = (6, 7, 8, 7)
"""Sampled tokens of each turn."""
ROUNDS = 5


def build_model() -> Qwen3ForCausalLM:
    """A random model that never ends a turn by itself."""
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=VOCABULARY, hidden_size=96, intermediate_size=288, num_hidden_layers=3,
        num_attention_heads=4, num_key_value_heads=2, head_dim=24, max_position_embeddings=1024,
        tie_word_embeddings=True, bos_token_id=None, eos_token_id=None, pad_token_id=0,
    )
    return Qwen3ForCausalLM(config).eval()


def prompt(episode: int) -> list[int]:
    """What all members of the episode's group begin with."""
    rng = Random(f"prompt {episode // GROUP}")
    return [rng.randrange(VOCABULARY) for _ in range(rng.randint(55, 65))]


def observation(episode: int, turn: int) -> list[int]:
    """What the environment answers."""
    rng = Random(f"observation {episode} {turn}")
    return [rng.randrange(VOCABULARY) for _ in range(rng.randint(20, 30))]


def delay(episode: int, turn: int, mean_s: float) -> float:
    """How long the tool takes."""
    return Random(f"delay {episode} {turn}").expovariate(1 / mean_s) if mean_s else 0.0


async def ours(model: Qwen3ForCausalLM, mean_s: float) -> None:
    """Each episode goes at its own pace."""
    engine = TransformersEngine(model)

    async def play(episode: int) -> None:
        ids = prompt(episode)
        for turn, tokens in enumerate(TURNS):
            sampling = Sampling(max_tokens=tokens, seed=episode)
            generation = await engine.generate(ids, sampling, episode=str(episode))
            ids += generation.ids + observation(episode, turn)
            if mean_s:
                await asyncio.sleep(delay(episode, turn, mean_s))
        await engine.release(str(episode))

    await asyncio.gather(*(play(episode) for episode in range(EPISODES)))


async def theirs(model: Qwen3ForCausalLM, mean_s: float) -> None:
    """Each turn waits for the slowest episode."""
    histories = [prompt(episode) for episode in range(EPISODES)]
    for turn, tokens in enumerate(TURNS):
        width = max(map(len, histories))
        padded = [[0] * (width - len(ids)) + ids for ids in histories]
        mask = [[0] * (width - len(ids)) + [1] * len(ids) for ids in histories]
        with torch.inference_mode():
            output = model.generate(
                torch.tensor(padded), attention_mask=torch.tensor(mask), do_sample=True, top_k=0,
                max_new_tokens=tokens, pad_token_id=0,
            )
        for episode, sampled in enumerate(output[:, width:].tolist()):
            assert len(sampled) == tokens
            histories[episode] += sampled + observation(episode, turn)
        if mean_s:
            await asyncio.gather(*(asyncio.sleep(delay(e, turn, mean_s)) for e in range(EPISODES)))


def compare(model: Qwen3ForCausalLM, mean_s: float) -> None:
    """Plays both sides in turns and prints medians."""
    seconds: dict[str, list[float]] = {"ours": [], "theirs": []}
    for _ in range(ROUNDS):
        for name, side in (("ours", ours), ("theirs", theirs)):
            start = time.perf_counter()
            asyncio.run(side(model, mean_s))
            seconds[name].append(time.perf_counter() - start)
    rates = {name: EPISODES / statistics.median(times) for name, times in seconds.items()}
    print(
        f"tools {1000 * mean_s:3.0f} ms: TransformersEngine {rates['ours']:6.1f} episodes/s, "
        f"generate in lock-step {rates['theirs']:6.1f} episodes/s, ratio {rates['ours'] / rates['theirs']:.1f}",
        flush=True,
    )


def main() -> None:
    """Both comparisons, after a round that is not counted."""
    torch.set_num_threads(1)
    model = build_model()
    asyncio.run(ours(model, 0.0))
    asyncio.run(theirs(model, 0.0))
    for mean_s in (0.0, 0.05):
        compare(model, mean_s)


if __name__ == "__main__":
    main()
