from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from played import played  # type: ignore[import-not-found]

from envrl.model.chat import Chat
from envrl.model.tiny import bootstrap_tokenizer

GAME = ("env=custom", "env.custom.target=games:Guess")


@pytest.fixture(scope="session")
def chat() -> Chat:
    return Chat(bootstrap_tokenizer(), template_kwargs={})


@pytest.fixture
def play(chat: Chat) -> Callable[..., Any]:
    """Plays one group of games.py's Guess with a scripted model, through a scheduler of the test's."""
    return lambda replies, *overrides, **settings: played(chat, replies, *GAME, *overrides, **settings)
