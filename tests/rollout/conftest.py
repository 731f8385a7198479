from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from envrl import compose
from envrl.engine import Engine, Sampling, ScriptedEngine
from envrl.model.chat import Chat
from envrl.model.tiny import bootstrap_tokenizer
from envrl.rollout.runner import Runner
from envrl.rollout.tasks import Task
from envrl.rollout.trajectory import Episode

Play = Callable[..., list[Episode]]


@pytest.fixture(scope="session")
def chat() -> Chat:
    return Chat(bootstrap_tokenizer(), template_kwargs={})


@pytest.fixture
def play(chat: Chat) -> Play:
    """Plays `members` episodes of a game of games.py with a scripted model."""

    def run(
        game: str,
        replies: Sequence[str | list[int]] | Callable[[str, int], str] | Engine,
        *overrides: str,
        members: int = 1,
        chat: Chat = chat,
        **engine: Any,
    ) -> list[Episode]:
        spec = compose([*GAME, f"env.custom.target=games:{game}", *overrides])
        if not isinstance(replies, Engine):
            replies = ScriptedEngine(replies, encode=chat.encode, stop_id=chat.turn_end, **engine)
        tasks = [Task("custom", 7, 0, member) for member in range(members)]
        sampling = Sampling(max_tokens=100000)
        played = Runner(spec, chat).run([tasks], lambda episode, face: replies, sampling, name="test")
        return asyncio.run(played)[0]

    return run


GAME = [
    "env=custom",
    "model.warm_start=null",
    "scheduler.max_tokens=100000",
    "scheduler.max_turn_tokens=null",
]
"""A spec whose only limit is that of turns."""
