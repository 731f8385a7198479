from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from served import Serve, game, play, serving  # type: ignore[import-not-found]

from envrl.env.openenv.source import OpenEnvSource
from envrl.model.chat import Chat
from envrl.model.tiny import bootstrap_tokenizer
from envrl.rollout.trajectory import Episode
from envrl.spec import EnvSpec


@pytest.fixture(scope="session")
def serve() -> Serve:
    """Serves an environment of ours: serve("games:Guess", capacity=4)."""
    from envrl.env.openenv.hosting import app

    def start(target: str = "games:Tricky", *, capacity: int = 64, **options: Any) -> Any:
        spec = EnvSpec(kind="custom", target=target)
        return serving(app("custom", spec, capacity=capacity, **options))

    return start


@pytest.fixture(scope="session")
def chat() -> Chat:
    return Chat(bootstrap_tokenizer(), template_kwargs={})


@pytest.fixture
def remotely(tmp_path: Path, chat: Chat) -> Callable[..., list[Episode]]:
    """Plays at a server's address, or in a server process; afterwards nothing is left open."""

    def run(
        replies: Any, *overrides: str, url: str | None = None, members: int = 1, **engine: Any
    ) -> list[Episode]:
        spec = game(*overrides, url=url)

        async def all_of_it() -> list[Episode]:
            (key,) = spec.env
            source = OpenEnvSource(key, spec, tmp_path)
            try:
                return await play(source, spec, chat, replies, members=members, **engine)
            finally:
                await source.close()

        return asyncio.run(all_of_it())

    return run
