from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from played import played  # type: ignore[import-not-found]

from envrl.model.chat import Chat
from envrl.model.tiny import bootstrap_tokenizer
from envrl.rollout.trajectory import Episode

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))  # where the classes of the guides stand


@pytest.fixture(scope="session")
def chat() -> Chat:
    return Chat(bootstrap_tokenizer(), template_kwargs={})


@pytest.fixture
def play(chat: Chat) -> Callable[..., list[Episode]]:
    """Plays the first group of what the overrides say, with a scripted model."""

    def run(replies: Any, *overrides: str, **settings: Any) -> Any:
        chosen = [] if overrides[0].startswith("env=") else ["env=custom"]
        return played(chat, replies, *chosen, *overrides, **settings)

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
