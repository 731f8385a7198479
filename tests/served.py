"""OpenEnv servers for tests: in a thread where a server only has to serve, as a process where it may die."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any
from urllib.request import urlopen

import uvicorn

from envrl import compose
from envrl.engine import Sampling, ScriptedEngine
from envrl.env.openenv.source import OpenEnvSource
from envrl.model.chat import Chat
from envrl.rollout.runner import Runner
from envrl.rollout.tasks import Task
from envrl.rollout.trajectory import Episode
from envrl.spec import RunSpec

Serve = Callable[..., AbstractContextManager[str]]
GAME = [
    "env=custom",
    "env.custom.target=games:Tricky",
    "model.warm_start=null",
    "scheduler.max_tokens=100000",
    "scheduler.max_turn_tokens=null",
    "grpo.groups_per_step=2",
    "grpo.num_generations=4",
    "rollout.max_error_rate=1",
    "rollout.retries=0",
]


@contextmanager
def serving(app: Any, port: int = 0) -> Iterator[str]:
    """The address of an ASGI app that a thread of this process serves."""
    listener = socket.create_server(("127.0.0.1", port))
    config = uvicorn.Config(app, log_level="error", ws_ping_interval=None, timeout_graceful_shutdown=1)
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, args=([listener],), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join(10)
        listener.close()


def game(*overrides: str, url: str | None = None) -> RunSpec:
    """A spec whose environment is remote: at this address, or a server process of its own."""
    key = "openenv" if "env=openenv" in overrides else "custom"
    backend = ["backend=url", f"url={url}"] if url else ["backend=server"]
    chosen = GAME if key == "custom" else GAME[2:]
    return compose([*chosen, *(f"env.{key}.{setting}" for setting in backend), *overrides])


async def play(
    source: OpenEnvSource | None,
    spec: RunSpec,
    chat: Chat,
    replies: Sequence[str] | Callable[[str, int], str],
    *,
    members: int = 1,
    seed: int = 7,
    **engine: Any,
) -> list[Episode]:
    """Plays the members of one group with a scripted model, in this process where there is no source."""
    scripted = ScriptedEngine(replies, encode=chat.encode, stop_id=chat.turn_end, **engine)
    (key,) = spec.env
    tasks = [Task(key, seed, 0, member) for member in range(members)]
    runner = Runner(spec, chat, {key: source} if source else None)
    sampling = Sampling(max_tokens=100000)
    (episodes,) = await runner.run([tasks], lambda episode, face: scripted, sampling, name="test")
    return episodes


def active(url: str) -> int:
    """How many sessions the server has."""
    with urlopen(f"{url}/sessions", timeout=10) as reply:
        return int(json.load(reply)["active"])


def eventually(happened: Callable[[], bool], seconds: float = 10) -> bool:
    deadline = time.monotonic() + seconds
    while not happened() and time.monotonic() < deadline:
        time.sleep(0.01)
    return happened()


def answers(episode: Episode) -> list[str]:
    """What the environment said."""
    return [m["content"] for m in episode.messages[episode.prompt_messages :] if m["role"] != "assistant"]


class Adder:
    """A class as TRL takes it, whose reward is worked out at the end."""

    def reset(self, **row: Any) -> str:
        self.total = 0
        return "Add up to three."

    def add(self, number: int) -> str:
        """Add a number.

        Args:
            number: What is added.
        """
        self.total += number
        return f"{self.total}"

    def get_reward(self) -> float:
        return float(self.total == 3)
