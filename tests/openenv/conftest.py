"""The servers run in a process of their own, as a stranger's would; this side is the whole real stack."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from urllib.error import URLError
from urllib.request import urlopen

import pytest

sys.path.insert(0, str(Path(__file__).parent))  # the servers, and the players that the tests share

import nltk_data
from players import Play, Policy

from envrl import compose
from envrl.engine import Engine, Generation, GenerationStop, Sampling
from envrl.env import Face, ToolCall, make
from envrl.env.sources import sources
from envrl.model.chat import Chat
from envrl.model.tiny import bootstrap_tokenizer
from envrl.model.tool_calls import format_tool_call
from envrl.rollout.runner import Runner
from envrl.rollout.tasks import Tasks
from envrl.rollout.trajectory import Episode

START_TIMEOUT_S = 120


@pytest.fixture(scope="session")
def arena(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL below which all servers of arena.py answer."""
    folder = tmp_path_factory.mktemp("arena")
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
    command = [
        sys.executable,
        "-m",
        "uvicorn",
        "--app-dir",
        str(Path(__file__).parent),
        "arena:app",
        "--port",
        str(port),
    ]
    environ = {**os.environ, "NLTK_DATA": str(nltk_data.write(folder / "nltk"))}
    with (folder / "arena.log").open("w") as log:
        server = subprocess.Popen(command, env=environ, stdout=log, stderr=log, start_new_session=True)
    try:
        _wait(server, f"http://127.0.0.1:{port}", folder / "arena.log")
        yield f"http://127.0.0.1:{port}"
    finally:
        os.killpg(server.pid, signal.SIGKILL)
        server.wait()


def _wait(server: subprocess.Popen[bytes], url: str, log: Path) -> None:
    until = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < until and server.poll() is None:
        try:
            urlopen(f"{url}/ready", timeout=5).close()
        except (URLError, TimeoutError):
            time.sleep(0.1)
        else:
            return
    pytest.fail(f"the servers did not start:\n{log.read_text()[-4000:]}")


class Player(Engine):
    """Speaks for one episode in the words of a policy that reads the conversation."""

    max_context = 1 << 20

    def __init__(self, policy: Policy, episode: Episode, face: Face) -> None:
        self._policy, self._episode, self._face = policy, episode, face

    async def generate(self, ids: Sequence[int], sampling: Sampling, *, episode: str) -> Generation:
        said = self._policy(self._episode.messages)
        if isinstance(said, ToolCall):
            in_words = make(self._episode.task.env).format_action
            said = format_tool_call(said) if self._face is Face.TOOL else in_words(said)
        spoken = [*self._episode.chat.encode(said), self._episode.chat.turn_end]
        return Generation(spoken, [0.0] * len(spoken), GenerationStop.EOS, 0)


@pytest.fixture(scope="session")
def chat() -> Chat:
    return Chat(bootstrap_tokenizer(), template_kwargs={})


@pytest.fixture
def play(arena: str, chat: Chat, tmp_path: Path) -> Play:
    """Plays `groups` groups of `members` episodes of a kind at the server of that name, or at another."""

    def run(
        kind: str,
        policy: Policy,
        *overrides: str,
        server: str = "",
        turns: int = 100,
        groups: int = 1,
        members: int = 1,
    ) -> list[Episode]:
        spec = compose(
            [
                f"env={kind}",
                f"env.{kind}.backend=url",
                f"env.{kind}.url={arena}/{server or kind}",
                f"env.{kind}.max_turns={turns}",
                "model.warm_start=null",
                "scheduler.max_tokens=100000",
                "scheduler.max_turn_tokens=null",
                "rollout.retries=0",
                "rollout.max_error_rate=0",
                *overrides,
            ]
        )

        async def rollout() -> list[list[Episode]]:
            environments = sources(spec, tmp_path)
            tasks = Tasks(spec.env, seed=spec.seed, stage="train", members=members).groups(0, groups)
            runner = Runner(spec, chat, environments)
            try:
                return await runner.run(
                    tasks,
                    lambda episode, face: Player(policy, episode, face),
                    Sampling(max_tokens=100000),
                    name="test",
                )
            finally:
                for source in environments.values():
                    await source.close()

        return [episode for group in asyncio.run(rollout()) for episode in group]

    return run
