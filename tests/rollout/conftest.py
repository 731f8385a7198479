from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from envrl import compose
from envrl.engine import Sampling, ScriptedEngine
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
        game: str, replies: Sequence[str | list[int]], *overrides: str, members: int = 1, **engine: object
    ) -> list[Episode]:
        spec = compose(
            [
                "env=custom", f"env.custom.target=games:{game}",
                "scheduler.max_tokens=100000", "scheduler.max_turn_tokens=null", "model.warm_start=null",
                *overrides,
            ]
        )  # fmt: skip
        runner = Runner(spec, chat)
        scripted = ScriptedEngine(replies, encode=chat.encode, stop_id=chat.turn_end, **engine)  # type: ignore[arg-type]
        tasks = [Task("custom", 7, 0, member) for member in range(members)]
        sampling = Sampling(max_tokens=100000)
        groups = asyncio.run(runner.run([tasks], lambda episode, face: scripted, sampling, name="test"))
        return groups[0]

    return run


def call(word: str) -> str:
    """A model's turn that guesses a word."""
    return f'<tool_call>\n{{"name": "guess", "arguments": {{"word": "{word}"}}}}\n</tool_call>'
