"""Groups that a scripted model plays, whatever the overrides say of environment and scheduler."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from envrl import compose
from envrl.engine import Engine, Sampling, ScriptedEngine
from envrl.model.chat import Chat
from envrl.rollout.runner import Runner
from envrl.rollout.tasks import Tasks
from envrl.rollout.trajectory import Episode

Replies = Sequence[str | list[int]] | Callable[[str, int], str] | Engine

UNLIMITED = [
    "model.warm_start=null",
    "stages=[train]",
    "scheduler.max_tokens=100000",
    "scheduler.max_turn_tokens=null",
    "rollout.retries=0",
    "rollout.max_error_rate=1",
]


def played(
    chat: Chat, replies: Replies, *overrides: str, members: int = 1, groups: int = 1, **engine: Any
) -> list[Episode]:
    """The episodes of the first groups."""
    spec = compose([*UNLIMITED, *overrides])
    if not isinstance(replies, Engine):
        replies = ScriptedEngine(replies, encode=chat.encode, stop_id=chat.turn_end, **engine)
    tasks = Tasks(spec.env, seed=1, stage="train", members=members).groups(0, groups)
    sampling = Sampling(max_tokens=100000)
    run = Runner(spec, chat).run(tasks, lambda episode, face: replies, sampling, name="test")
    return [episode for group in asyncio.run(run) for episode in group]
