"""Servers as child processes: killed, restarted, left behind."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from games import call  # type: ignore[import-not-found]
from served import eventually, game, play  # type: ignore[import-not-found]

from envrl.child import ChildServer
from envrl.env.openenv.process import Container
from envrl.env.openenv.source import OpenEnvSource
from envrl.errors import StageError
from envrl.model.chat import Chat


def gone(pid: int) -> bool:
    """Whether a process has ended, if only as a zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


def pid_of(source: OpenEnvSource) -> int:
    assert isinstance(source._server, ChildServer)
    assert source._server.pid is not None
    return source._server.pid


def test_a_server_that_dies_takes_down_no_run(tmp_path: Path, chat: Chat) -> None:
    """Whoever killed it breaks; its neighbours are played again on the server that follows."""
    spec = game("rollout.retries=2", "scheduler.max_turns=3")

    def reply(episode: str, turn: int) -> str:
        _, _, member, attempt = episode.split("/")
        if (member, attempt, turn) == ("0", "0", 1):
            return call("die")  # type: ignore[no-any-return]
        return call("crane" if turn == 2 else "zebra")  # type: ignore[no-any-return]

    async def through_it() -> None:
        source = OpenEnvSource("custom", spec, tmp_path)
        await source.prepare(4)
        first = pid_of(source)
        episodes = await play(source, spec, chat, reply, members=4, delay_s=0.01)
        assert [episode.reward for episode in episodes] == [1.0] * 4
        assert episodes[0].retries > 0
        assert [len(episode.turns) for episode in episodes] == [3] * 4  # nobody went on in a fresh game
        assert pid_of(source) != first
        last = pid_of(source)
        await source.close()
        assert gone(last)

    asyncio.run(through_it())


def test_a_game_that_was_lost_is_never_continued(tmp_path: Path, chat: Chat) -> None:
    """Though a new server is up before the next move."""
    spec = game()

    async def restarted() -> Any:
        source = OpenEnvSource("custom", spec, tmp_path)
        environment = source.make()
        await environment.open()
        await environment.reset(seed=1)  # type: ignore[misc]
        os.kill(pid_of(source), signal.SIGKILL)
        assert eventually(lambda: source._server._process.poll() is not None)  # type: ignore[attr-defined]
        other = source.make()
        await other.open()
        with pytest.raises(Exception, match=r"the session at .* broke"):
            await environment.tools()["guess"](word="zebra")
        with pytest.raises(Exception, match=r"the session at .* is gone"):
            await environment.tools()["guess"](word="zebra")
        await other.reset(seed=2)  # type: ignore[misc]
        assert await other.tools()["guess"](word="crane") == "right"
        for one in (environment, other):
            await one.close()
        await source.close()

    asyncio.run(restarted())


def test_a_server_that_cannot_start_is_quoted(tmp_path: Path) -> None:
    spec = game().model_copy(update={"plugins": ["no_such_module"]})

    async def start() -> None:
        source = OpenEnvSource("custom", spec, tmp_path)
        with pytest.raises(
            StageError, match=r"env\.custom: its server ended with status 1(.|\n)*no_such_module"
        ):
            await source.prepare(1)
        await source.close()

    asyncio.run(start())


def test_a_server_that_dies_again_and_again_ends_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("envrl.child.MAX_DEATHS", 1)

    async def die() -> None:
        source = OpenEnvSource("custom", game(), tmp_path)
        await source.prepare(1)
        os.kill(pid_of(source), signal.SIGKILL)
        assert eventually(lambda: source._server._process.poll() is not None)  # type: ignore[attr-defined]
        with pytest.raises(
            StageError, match=r"its server died 1 times in a row; the end of .*server-custom\.log"
        ):
            await source._server.url()
        await source.close()

    asyncio.run(die())


def test_a_server_that_hangs_is_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("envrl.env.openenv.process.GRACE_S", 0.1)

    async def hang() -> None:
        source = OpenEnvSource("custom", game("scheduler.step_timeout_s=1"), tmp_path)
        await source.prepare(1)
        first = pid_of(source)
        os.kill(first, signal.SIGSTOP)
        await source._server.url()
        assert pid_of(source) != first
        assert gone(first)
        await source.close()

    asyncio.run(hang())


def test_a_server_killed_while_it_starts_is_started_again(tmp_path: Path) -> None:
    async def kill_early() -> None:
        source = OpenEnvSource("custom", game(), tmp_path)
        starting = asyncio.create_task(source.prepare(1))
        while source._server.pid is None:  # type: ignore[union-attr]
            await asyncio.sleep(0.01)
        first = pid_of(source)
        os.kill(first, signal.SIGKILL)
        await starting
        assert pid_of(source) != first
        await source.close()

    asyncio.run(kill_early())


def test_a_container_that_cannot_start_is_told_of() -> None:
    """No machine of ours has Docker running; where one has, there is no such image."""
    with pytest.raises(StageError, match=r"env\.custom: image no/such:image: \S"):
        asyncio.run(Container("custom", "no/such:image", start_timeout_s=5).url())


RUN = """
import asyncio, sys
from pathlib import Path
from served import game
from envrl.env.openenv.source import OpenEnvSource
async def main():
    source = OpenEnvSource("custom", game(), Path(sys.argv[1]))
    await source.prepare(1)
    print(source._server.pid, flush=True)
    await asyncio.sleep(600)
asyncio.run(main())
"""


def test_no_server_outlives_its_run(tmp_path: Path) -> None:
    """However the run ends."""
    command = [sys.executable, "-c", RUN, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as run:
        assert run.stdout is not None
        server = int(run.stdout.readline())
        assert not gone(server)
        run.kill()
    assert eventually(lambda: gone(server))
