"""As many episodes at once as the engine's memory carries, first come, first served."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from typing import Any

import pytest
from games import Counted, call  # type: ignore[import-not-found]

from envrl import compose
from envrl.engine import EngineStats, Generation, Sampling, ScriptedEngine
from envrl.rollout.inflight import Gate
from envrl.rollout.metrics import inflight_metrics
from envrl.rollout.runner import Runner
from envrl.rollout.tasks import Task

REPLIES = [call("zebra"), call("crane")]


def gate(*overrides: str, guess: int = 100, kv_tokens: int | None = 2000) -> Gate:
    gate = Gate(compose(list(overrides)).rollout, guess=guess)
    engine = ScriptedEngine(["x"])
    engine.kv_tokens = kv_tokens
    gate.serves(engine)
    return gate


@pytest.mark.parametrize(
    ("kv_tokens", "overrides", "limit"),
    [
        (2000, [], 20),
        (2000, ["rollout.max_inflight=12"], 12),
        (300, [], 8),
        (300, ["rollout.min_inflight=2"], 3),
        (10, ["rollout.min_inflight=1"], 1),
        (300, ["rollout.max_inflight=4"], 4),
        (None, ["rollout.max_inflight=64"], 64),
        (None, [], float("inf")),
    ],
)
def test_the_limit_is_what_memory_carries_between_the_two(
    kv_tokens: int | None, overrides: list[str], limit: float
) -> None:
    assert gate(*overrides, kv_tokens=kv_tokens).limit == limit


def test_few_begin_before_the_engine_is_known() -> None:
    assert Gate(compose(["rollout.min_inflight=3"]).rollout, guess=100).limit == 3


def test_it_grows_where_episodes_are_shorter_than_guessed_and_shrinks_where_they_are_longer() -> None:
    async def learned(tokens: int) -> float:
        limited = gate("rollout.min_inflight=1")
        for _ in range(200):
            await limited.learn(tokens)
        return limited.limit

    assert [asyncio.run(learned(tokens)) for tokens in (50, 400)] == [39, 5]


def test_what_was_learned_can_be_kept() -> None:
    first, second = gate(), gate()
    asyncio.run(first.learn(3000))
    second.load_state(first.state())
    assert second.limit == first.limit == 10


async def visit(gate: Gate, name: int, seen: list[int], stay: int = 3) -> None:
    async with gate.place():
        seen.append(name)
        for _ in range(stay):
            await asyncio.sleep(0)


def test_whoever_came_first_gets_in_first() -> None:
    async def visits() -> list[int]:
        limited, seen = gate("rollout.max_inflight=2"), list[int]()
        await asyncio.gather(*(visit(limited, n, seen, stay=n % 5) for n in range(20)))
        assert limited.measured().most == 2
        return seen

    assert asyncio.run(visits()) == list(range(20))


def test_whoever_is_cancelled_gives_up_the_place() -> None:
    async def visits() -> list[int]:
        limited, seen = gate("rollout.max_inflight=1"), list[int]()
        async with limited.place():
            tasks = [asyncio.create_task(visit(limited, n, seen)) for n in range(4)]
            await asyncio.sleep(0)
            tasks[0].cancel()  # while it waits
        tasks[1].cancel()  # when it was let in and does not know yet
        await asyncio.gather(*tasks, return_exceptions=True)
        await visit(limited, 4, seen)
        return seen

    assert asyncio.run(visits()) == [2, 3, 4]


class Cramped(ScriptedEngine):
    """Preempts a request for every one that is more than six at once."""

    running = preempted = 0
    kv_tokens = 20_000

    async def generate(self, ids: Sequence[int], sampling: Sampling, *, episode: str) -> Generation:
        self.running += 1
        self.preempted += self.running > 6
        try:
            return await super().generate(ids, sampling, episode=episode)
        finally:
            self.running -= 1

    async def stats(self) -> EngineStats:
        return EngineStats(preemptions=self.preempted)


def test_it_shrinks_to_what_the_engine_stands_and_recovers() -> None:
    async def limits() -> tuple[float, float, float]:
        limited, engine = gate("rollout.min_inflight=1", guess=1000), Cramped(lambda *_: "x")
        limited.serves(engine)

        async def episode(name: int) -> None:
            async with limited.place():
                await engine.generate([1], Sampling(max_tokens=9), episode=str(name))
            await limited.learn(1000)

        before = limited.limit
        await asyncio.gather(*map(episode, range(600)))
        shrunk = limited.limit
        for _ in range(1000):
            await limited.learn(1000)
        return before, shrunk, limited.limit

    before, shrunk, recovered = asyncio.run(limits())
    assert (before, recovered) == (20, 20)
    assert 5 <= shrunk <= 8


def test_the_mean_is_over_time() -> None:
    async def visits() -> tuple[float, int]:
        limited = gate()
        async with limited.place():
            await asyncio.sleep(0.02)
            limited.restart()
            async with limited.place():
                await asyncio.sleep(0.04)
        await asyncio.sleep(0.04)
        measured = limited.measured()
        return measured.mean, measured.most

    mean, most = asyncio.run(visits())
    assert mean == pytest.approx(1, abs=0.2)
    assert most == 2


def test_ranks_are_summed_and_no_limit_is_left_out() -> None:
    bounded, unbounded = gate().measured(), gate(kv_tokens=None).measured()
    assert inflight_metrics([bounded, bounded])["rollout/inflight_limit"] == 40
    assert "rollout/inflight_limit" not in inflight_metrics([bounded, unbounded])


def test_an_engine_with_little_memory_plays_all_episodes_a_few_at_a_time(play: Any, chat: Any) -> None:
    Counted.live = Counted.peak = 0
    engine = ScriptedEngine(REPLIES, encode=chat.encode, stop_id=chat.turn_end, delay_s=0.002)
    engine.kv_tokens = 10
    episodes = play("Counted", engine, "rollout.min_inflight=2", members=8)
    assert [episode.reward for episode in episodes] == [1.0] * 8
    assert (Counted.live, Counted.peak) == (0, 2)


def together(runner: Runner, engine: ScriptedEngine, groups: int) -> Coroutine[Any, Any, Any]:
    tasks = [[Task("custom", 7, group, member) for member in range(4)] for group in range(groups)]
    return runner.run(tasks, lambda episode, face: engine, Sampling(max_tokens=1000), name="test")


def test_a_group_counts_its_prompt_once_and_the_next_step_knows_more(chat: Any) -> None:
    spec = compose(["env=custom", "env.custom.target=games:Guess", "model.warm_start=null"])
    runner = Runner(spec, chat)
    engine = ScriptedEngine(REPLIES, encode=chat.encode, stop_id=chat.turn_end)
    engine.kv_tokens = 100_000
    (first,) = asyncio.run(together(runner, engine, 1))
    asyncio.run(together(runner, engine, 64))
    transcript = first[0].transcripts[0]
    own = len(transcript.ids) - transcript.prompt_tokens
    learned = runner.gate.state()["tokens"]
    assert learned == pytest.approx(own + transcript.prompt_tokens / 4, rel=0.01)
    assert runner.inflight.limit == 100_000 // learned
