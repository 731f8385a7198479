from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from envrl import compose
from envrl.engine import Engine, Sampling, ScriptedEngine
from envrl.model.chat import Chat
from envrl.model.tiny import bootstrap_tokenizer
from envrl.rollout.runner import Runner
from envrl.rollout.tasks import Tasks
from envrl.rollout.trajectory import Episode

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))  # where the classes of the guides stand

Play = Callable[..., list[Episode]]
Replies = Sequence[str | list[int]] | Callable[[str, int], str] | Engine

UNLIMITED = [
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
def play(chat: Chat) -> Play:
    """Plays the first group of what the overrides say, with a scripted model."""

    def run(replies: Replies, *overrides: str, members: int = 1, groups: int = 1, **engine: Any) -> Any:
        chosen = [] if overrides[0].startswith("env=") else ["env=custom"]
        spec = compose([*UNLIMITED, *chosen, *overrides])
        if not isinstance(replies, Engine):
            replies = ScriptedEngine(replies, encode=chat.encode, stop_id=chat.turn_end, **engine)
        tasks = Tasks(spec.env, seed=1, stage="train", members=members).groups(0, groups)
        sampling = Sampling(max_tokens=100000)
        runner = Runner(spec, chat)
        played = asyncio.run(runner.run(tasks, lambda episode, face: replies, sampling, name="test"))
        return [episode for group in played for episode in group]

    return run


@pytest.fixture
def dataset(tmp_path: Path) -> Callable[..., str]:
    """An override that names a file with these rows."""

    def write(*rows: dict[str, Any]) -> str:
        file = tmp_path / "rows.jsonl"
        file.write_text("".join(json.dumps(row) + "\n" for row in rows))
        return f"env.custom.dataset={file}"

    return write


@pytest.fixture
def classes() -> Callable[[str], str]:
    """An override that loads a file of this folder as a plugin."""
    return lambda name: f"plugins=[{HERE / name}.py]"


def said(episode: Episode, role: str) -> list[str]:
    return [message["content"] for message in episode.messages if message["role"] == role]
