from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from envrl import compose
from envrl.engine import Engine, Sampling, ScriptedEngine
from envrl.model.chat import Chat
from envrl.model.tiny import bootstrap_tokenizer
from envrl.rollout.runner import Runner
from envrl.rollout.tasks import Tasks

UNLIMITED = [
    "env=custom",
    "env.custom.target=games:Guess",
    "model.warm_start=null",
    "stages=[train]",
    "scheduler.max_tokens=100000",
    "scheduler.max_turn_tokens=null",
    "rollout.retries=0",
    "rollout.max_error_rate=1",
]


@pytest.fixture(scope="session")
def chat() -> Chat:
    return Chat(bootstrap_tokenizer(), template_kwargs={})


@pytest.fixture
def play(chat: Chat) -> Callable[..., Any]:
    """Plays one group with a scripted model, through a scheduler of the test's."""

    def run(replies: Any, *overrides: str, members: int = 1, **engine: Any) -> Any:
        spec = compose([*UNLIMITED, *overrides])
        if not isinstance(replies, Engine):
            replies = ScriptedEngine(replies, encode=chat.encode, stop_id=chat.turn_end, **engine)
        tasks = Tasks(spec.env, seed=1, stage="train", members=members).groups(0, 1)
        sampling = Sampling(max_tokens=100000)
        played = Runner(spec, chat).run(tasks, lambda episode, face: replies, sampling, name="test")
        return asyncio.run(played)[0]

    return run
