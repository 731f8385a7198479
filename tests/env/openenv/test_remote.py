"""Episodes through sessions: what comes back, and that nothing of it leaks into the next."""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from games import call  # type: ignore[import-not-found]
from served import Serve, active, answers, eventually, game, play, serving  # type: ignore[import-not-found]

from envrl import compose
from envrl.env.openenv.pool import Pool
from envrl.env.openenv.sessions import ServerError, Session
from envrl.env.openenv.source import OpenEnvSource, RunningServer
from envrl.env.sources import episodes_at_once
from envrl.errors import SessionLost, StageError
from envrl.model.chat import Chat
from envrl.spec import EnvSpec, SessionSpec
from envrl.stop import StopReason

LAKE = ["env=frozen_lake", "model.warm_start=null", "scheduler.max_tokens=100000"]
MOVE = '<tool_call>{{"name":"move","arguments":{{"direction":"{}"}}}}</tool_call>'
TEXTS = ["no idea", "<action>down</action>", "left, then right", "<action>up</action>"] * 3
CALLS = [MOVE.format("far"), "<tool_call>{", MOVE.format("up") + MOVE.format("left"), MOVE.format("down")] * 3


@pytest.mark.parametrize(("scheduler", "replies"), [("gym", TEXTS), ("tool_calling", CALLS)])
def test_remote_play_is_in_process_play(
    tmp_path: Path, chat: Chat, scheduler: str, replies: list[str], lake: str
) -> None:
    """Every word, reward, metric and failure, mistakes of the model included."""
    here = compose([*LAKE, f"scheduler={scheduler}"])
    there = compose([*LAKE, f"scheduler={scheduler}", *remote("frozen_lake", lake)])

    async def both() -> list[list[dict[str, Any]]]:
        source = OpenEnvSource("frozen_lake", there, tmp_path)
        sides = [(None, here), (source, there)]
        played = [[await play(s, spec, chat, replies, seed=n) for n in range(6)] for s, spec in sides]
        await source.close()
        return [[timeless(episode.record()) for (episode,) in side] for side in played]

    in_process, remote_play = asyncio.run(both())
    assert remote_play == in_process
    assert sum(turn["failures"] for record in in_process for turn in record["turns"]) > 5


@pytest.fixture(scope="module")
def lake() -> Any:
    from envrl.env.openenv.hosting import app

    with serving(app("frozen_lake", EnvSpec(kind="frozen_lake"), capacity=8)) as url:
        yield url


def remote(key: str, url: str) -> list[str]:
    return [f"env.{key}.backend=url", f"env.{key}.url={url}"]


def timeless(record: dict[str, Any]) -> dict[str, Any]:
    record["duration_s"] = record["reset_s"] = record["prompt_s"] = None
    for turn in record["turns"]:
        turn["generate_s"] = turn["step_s"] = turn["parse_s"] = None
    return record


@pytest.fixture(scope="module")
def tricky(serve: Serve) -> Any:
    with serve(capacity=16) as url:
        yield url


def test_episodes_overlap_and_end_apart(remotely: Any, tricky: str) -> None:
    words = ["crane", "zebra", "raise", "unscored", "crash", "refuse", "nan", "crane"]

    def reply(episode: str, turn: int) -> str:
        member = int(episode.split("/")[2])
        return call(words[member] if turn == 0 else "crane")  # type: ignore[no-any-return]

    episodes = remotely(reply, url=tricky, members=8)
    assert [episode.reward for episode in episodes] == [1, 1, 1, 1, None, 1, None, 1]
    assert "env custom, turn 1: the server says RuntimeError: server gone" in episodes[4].error
    assert "reward is nan" in episodes[6].error
    assert "not allowed" in answers(episodes[5])[0]
    assert episodes[3].turns[0].reward is None  # null is unscored, not 0 (OpenEnv#1017)
    assert eventually(lambda: active(tricky) == 0)


def test_an_episode_leaves_no_trace_in_the_next(tmp_path: Path, chat: Chat) -> None:
    """On one reused session of a server of our own (OpenEnv#166)."""
    wordle = ["env.custom.target=envrl.env.wordle:Wordle", "scheduler.max_turns=2"]
    spec = game(*wordle, "env.custom.sessions.capacity=1")
    turns = [call("crane"), call("slate")]

    async def twice() -> list[Any]:
        source = OpenEnvSource("custom", spec, tmp_path)
        try:
            (first,) = await play(source, spec, chat, [call("zebra"), call("zebra")], seed=1)
            assert source._pool is not None
            (session,) = source._pool._idle
            (second,) = await play(source, spec, chat, turns, seed=2)
            assert list(source._pool._idle) == [session]
            (alone,) = await play(None, spec, chat, turns, seed=2)
            return [first, second, alone]
        finally:
            await source.close()

    first, second, alone = asyncio.run(twice())
    assert first.metrics["invalid_guesses"] == 1
    assert "zebra" in str(first.messages)
    assert "zebra" not in str(second.messages)
    assert "You have 6 guesses left." in second.messages[0]["content"]
    assert timeless(second.record()) == timeless(alone.record())


def test_nothing_is_held_after_many_broken_episodes(tmp_path: Path, chat: Chat, serve: Serve) -> None:
    """(OpenEnv#1000)"""

    async def batches(url: str) -> None:
        spec = game("env.custom.sessions.capacity=4", url=url)
        source = OpenEnvSource("custom", spec, tmp_path)
        for _ in range(10):
            episodes = await play(source, spec, chat, one_crashes, members=4)
            assert [episode.reward for episode in episodes] == [None, 1, 1, 1]
        await source.close()

    def one_crashes(episode: str, turn: int) -> str:
        return call("crash" if episode.split("/")[2] == "0" else "crane")  # type: ignore[no-any-return]

    with serve(capacity=4) as url:
        asyncio.run(batches(url))
        assert eventually(lambda: active(url) == 0)


@pytest.mark.parametrize("target", ["games:Slow", "games:Tricky"])
def test_games_that_block_or_await_are_played_at_once(remotely: Any, serve: Serve, target: str) -> None:
    with serve(target) as url:
        episodes = remotely([call("zebra"), call("crane")], f"env.custom.target={target}", url=url, members=8)
    assert [episode.reward for episode in episodes] == [1.0] * 8


def test_a_reward_that_is_worked_out_at_the_end_arrives(remotely: Any, serve: Serve) -> None:
    """Of a class written for TRL, with one session for the group."""
    add = '<tool_call>{"name": "add", "arguments": {"number": 3}}</tool_call>'
    overrides = ["env.custom.target=served:Adder", "env.custom.sessions.capacity=1"]
    with serve("served:Adder") as url:
        episodes = remotely([add, "Done."], *overrides, url=url, members=4)
    assert [episode.reward for episode in episodes] == [1.0] * 4


def test_an_environment_that_raised_is_not_used_again(tmp_path: Path, serve: Serve) -> None:
    async def take_turns(url: str) -> None:
        settings = SessionSpec(capacity=1)
        pool = Pool("custom", RunningServer(url), settings, limit=1, reuse=True)
        seen = []
        for word in ("zebra", "crash", "zebra", "refuse", "zebra"):
            session = await pool.take()
            seen.append(session)
            await session.reset({"seed": 1})
            with suppress(ServerError):
                await session.step({"tool": "guess", "arguments": {"word": word}})
            pool.give(session)
        await pool.close()
        first, raised, *later = seen
        assert first is raised
        assert raised is not later[0]
        assert later == [later[0]] * 3

    with serve() as url:
        asyncio.run(take_turns(url))


def test_a_step_past_its_deadline_takes_its_session_along(remotely: Any, serve: Serve) -> None:
    """The late answer is never read as that to the next question (OpenEnv#1143)."""
    with serve("games:Tricky", capacity=2, step_timeout_s=1.5) as url:
        overrides = ["scheduler.step_timeout_s=1", "env.custom.sessions.capacity=2"]

        def reply(episode: str, turn: int) -> str:
            member = int(episode.split("/")[2])
            return call("hang" if member == 0 else "crane")  # type: ignore[no-any-return]

        episodes = remotely(reply, *overrides, url=url, members=6)
        assert [episode.reward for episode in episodes] == [None, 1, 1, 1, 1, 1]
        assert "env custom, turn 1: guess took longer than 1 s; raise scheduler.step_timeout_s" in str(
            episodes[0].error
        )
        assert eventually(lambda: active(url) == 0)


def test_a_late_answer_is_not_that_to_the_next_question(tmp_path: Path, serve: Serve) -> None:
    """Neither on the session that timed out nor on the one that takes its place (OpenEnv#1143)."""

    async def take_turns(url: str) -> None:
        pool = Pool("custom", RunningServer(url), SessionSpec(capacity=1), limit=1, reuse=True)
        late = await pool.take()
        await late.reset({"seed": 1})
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(late.step({"tool": "guess", "arguments": {"word": "block"}}), 0.1)
        with pytest.raises(SessionLost, match="is gone"):
            await late.reset({"seed": 2})
        pool.give(late)
        session = await pool.take()
        assert session is not late
        assert (await session.reset({"seed": 2})).observation["text"] == "seed 2"
        pool.give(session)
        await pool.close()

    with serve() as url:
        asyncio.run(take_turns(url))
        assert eventually(lambda: active(url) == 0)


def test_no_keepalive_is_sent_unless_asked_for(tmp_path: Path, serve: Serve) -> None:
    """Left out, websockets' own default would end a step of 40 seconds (OpenEnv#875)."""

    async def interval(url: str, ping_interval_s: float | None) -> Any:
        session = Session(url, SessionSpec(ping_interval_s=ping_interval_s))
        await session.open()
        asked = session._ws.ping_interval
        await session.close()
        return asked

    with serve() as url:
        assert [asyncio.run(interval(url, seconds)) for seconds in (None, 30.0)] == [None, 30.0]


def test_a_server_may_be_deaf_while_it_computes(remotely: Any, tricky: str) -> None:
    """No keepalive cuts it off, unless one is asked for (OpenEnv#875)."""
    (patient,) = remotely([call("block"), call("crane")], url=tricky)
    assert (patient.stop, patient.reward) == (StopReason.DONE, 1.0)
    (cut,) = remotely([call("block")] * 9, "env.custom.sessions.ping_interval_s=0.1", url=tricky)
    assert "the session at" in cut.error
    assert "keepalive" in cut.error


def test_more_episodes_than_the_server_has_room_for(remotely: Any, serve: Serve) -> None:
    with serve(capacity=1) as url:
        for overrides in ([], ["env.custom.sessions.capacity=1"]):
            episodes = remotely([call("zebra"), call("crane")], *overrides, url=url, members=8)
            assert [episode.reward for episode in episodes] == [1.0] * 8
        assert eventually(lambda: active(url) == 0)


def test_a_server_that_stays_full_stops_the_run(tmp_path: Path, chat: Chat, serve: Serve) -> None:
    spec = "env.custom.sessions.open_timeout_s=1"
    needs = r"env\.custom: Server at capacity: 2/2 .* has 0 sessions there and needs 8 .*sessions\.capacity=1"

    async def full(url: str) -> None:
        others = OpenEnvSource("custom", game("env.custom.sessions.capacity=2", url=url), tmp_path)
        taken = [await others.take() for _ in range(2)]
        source = OpenEnvSource("custom", game(spec, url=url), tmp_path)
        with pytest.raises(StageError, match=needs):
            await play(source, game(spec, url=url), chat, [call("crane")])
        for session, _ in taken:
            others.give(session)
        await asyncio.gather(source.close(), others.close())

    with serve(capacity=2) as url:
        asyncio.run(full(url))
        assert eventually(lambda: active(url) == 0)


def test_the_preflight_says_how_many_sessions_there_are(tmp_path: Path, serve: Serve) -> None:
    async def prepare(url: str, *overrides: str) -> None:
        source = OpenEnvSource(
            "custom", game("env.custom.sessions.open_timeout_s=1", *overrides, url=url), tmp_path
        )
        try:
            await source.prepare(8)
        finally:
            await source.close()

    with serve(capacity=3) as url:
        with pytest.raises(StageError, match=r"has 3 sessions there and needs 8 at once.*capacity=3"):
            asyncio.run(prepare(url))
        asyncio.run(prepare(url, "env.custom.sessions.capacity=3"))
        assert eventually(lambda: active(url) == 0)
    with pytest.raises(StageError, match=r"env\.custom: Failed to connect .*tried for 1 s"):
        asyncio.run(prepare(url))


def test_a_server_that_speaks_no_openenv_is_not_stormed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    monkeypatch.setattr("envrl.env.openenv.pool.PREFLIGHT_PATIENCE_S", 1.0)

    async def website(scope: Any, receive: Any, send: Any) -> None:
        asked.append(scope["type"])
        await send({"type": "websocket.close"})  # before it is accepted: 403

    async def prepare(url: str) -> None:
        source = OpenEnvSource("custom", game("env.custom.sessions.open_timeout_s=9", url=url), tmp_path)
        try:
            await source.prepare(2)
        finally:
            await source.close()

    tried = r"Failed to connect .*tried for 1 s \(see env\.custom\.url"
    with serving(website) as url, pytest.raises(StageError, match=tried):
        asyncio.run(prepare(url))
    assert 3 <= asked.count("websocket") < 12


@pytest.mark.parametrize(
    ("target", "warnings"), [("games:Careless", 1), ("games:Forgetful", 1), ("games:Guess", 0)]
)
def test_a_server_that_ignores_seeds_is_told_of_once(
    remotely: Any, serve: Serve, caplog: pytest.LogCaptureFixture, target: str, warnings: int
) -> None:
    with serve(target) as url, caplog.at_level(logging.WARNING):
        remotely([call("crane")] * 2, f"env.custom.target={target}", url=url, members=3)
    assert len([r for r in caplog.records if "ignores seeds" in r.getMessage()]) == warnings


def test_a_training_step_needs_its_share_of_the_groups() -> None:
    one = ["grpo.groups_per_step=4", "grpo.num_generations=8"]
    assert episodes_at_once(compose(one), "frozen_lake") == 32
    mixture = compose([*one, "env=[frozen_lake,catch]", "env.frozen_lake.weight=3"])
    assert [episodes_at_once(mixture, key) for key in ("frozen_lake", "catch")] == [32, 16]
