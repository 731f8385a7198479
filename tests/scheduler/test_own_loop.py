"""The example of a user's own loop: an agent in another process."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path
from typing import Any

import pytest
from games import call  # type: ignore[import-not-found]

from envrl.importing import load_object
from envrl.stop import StopReason

EXAMPLES = Path(__file__).parents[2] / "examples"
OWN_LOOP = f"scheduler.target={EXAMPLES}/own_loop.py:AgentProcess"


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The processes that were started, in order."""
    processes: list[Any] = []
    start = asyncio.create_subprocess_exec

    async def noted(*command: Any, **settings: Any) -> Any:
        processes.append(await start(*command, **settings))
        return processes[-1]

    monkeypatch.setattr(asyncio, "create_subprocess_exec", noted)
    return processes


def alive(process: Any) -> bool:
    try:
        os.kill(process.pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_the_agent_plays(play: Any, started: list[Any]) -> None:
    first, second = play([call("zebra"), call("crane")], OWN_LOOP, members=2)
    for episode in (first, second):
        assert (episode.stop, episode.reward) == (StopReason.DONE, 1.0)
        assert [message["role"] for message in episode.messages] == ["user", "assistant", "tool", "assistant"]
        assert [turn.reward for turn in episode.turns] == [0.0, 1.0]
        assert [turn.calls for turn in episode.turns] == [1, 1]
    assert not any(map(alive, started))


def test_it_plays_what_our_own_loop_plays(play: Any, chat: Any) -> None:
    replies = [call("zebra"), call("house"), call("crane")]
    (theirs,), (ours,) = play(replies, OWN_LOOP), play(replies)
    assert vars(theirs.transcripts[0]) == vars(ours.transcripts[0])


def test_it_may_stop_and_limits_stop_it(play: Any) -> None:
    (stopped,) = play(["I have no idea."], OWN_LOOP)
    assert (stopped.stop, stopped.reward) == (StopReason.NO_TOOL_CALL, 0.0)
    (long,) = play([call("zebra")] * 9, OWN_LOOP, "scheduler.max_turns=2")
    assert (long.stop, len(long.turns)) == (StopReason.MAX_TURNS, 2)
    (full,) = play([call("zebra")] * 9, OWN_LOOP, "scheduler.max_tokens=150")
    assert full.stop is StopReason.LENGTH


def test_it_dies_with_its_episode(play: Any, started: list[Any]) -> None:
    (episode,) = play([call("zebra")], OWN_LOOP, "scheduler.episode_timeout_s=2", delay_s=60)
    assert episode.stop is StopReason.DEADLINE
    assert not any(map(alive, started))


def test_a_killed_agent_breaks_its_own_episode_alone(play: Any, started: list[Any]) -> None:
    def reply(episode: str, turn: int) -> str:
        if turn == 1 and episode.endswith("/0/0"):
            os.kill(started[0].pid, signal.SIGKILL)
        return call("crane" if turn == 2 else "zebra")  # type: ignore[no-any-return]

    first, *others = play(reply, OWN_LOOP, members=3)
    dead = [episode for episode in (first, *others) if episode.stop is StopReason.ERROR]
    assert len(dead) == 1
    assert dead[0].reward is None
    assert [episode.reward for episode in (first, *others) if episode not in dead] == [1.0, 1.0]
    assert not any(map(alive, started))


def test_an_agent_that_is_just_ending_is_killed_in_silence(play: Any, monkeypatch: Any, caplog: Any) -> None:
    """asyncio's own kill would reap it here and there, and its watcher would miss it."""
    program = "input(); print('{\"finish\": 1}', flush=True)"
    agent = load_object(f"{EXAMPLES}/own_loop.py:AgentProcess")
    monkeypatch.setattr(agent, "command", (agent.command[0], "-S", "-c", program))
    episodes = play([call("crane")], OWN_LOOP, members=64)
    assert {episode.stop for episode in episodes} == {StopReason.NO_TOOL_CALL}
    assert "Unknown child process" not in caplog.text


@pytest.mark.parametrize(
    ("program", "reason"),
    [
        ("import sys; sys.exit(3)", "the agent ended with status 3"),
        ("print('{\"dance\": 1}', flush=True); input()", "the agent asked {'dance': 1}"),
        ("print('hello', flush=True); input()", "JSONDecodeError"),
    ],
)
def test_an_agent_that_makes_no_sense(play: Any, monkeypatch: Any, program: str, reason: str) -> None:
    agent = load_object(f"{EXAMPLES}/own_loop.py:AgentProcess")
    monkeypatch.setattr(agent, "command", (agent.command[0], "-c", program))
    (episode,) = play([call("crane")], OWN_LOOP)
    assert episode.stop is StopReason.ERROR
    assert reason in episode.error
