"""Real parts for the tests of this folder: games of FrozenLake, and the tokenizer that is made from them."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

import pytest
from transformers import PreTrainedTokenizerFast

from envrl.env import Face, policies
from envrl.env.frozen_lake import FrozenLake
from envrl.env.schema import tool_schemas
from envrl.model import format_tool_call, tiny
from envrl.model.chat import Chat

Game = Callable[[Chat, Face, int], list[int]]


@pytest.fixture(scope="session")
def game() -> Game:
    """Plays a game of a seed and returns its tokens."""
    return played


def played(chat: Chat, face: Face, seed: int) -> list[int]:
    """The tokens of a FrozenLake game that the noisy solver plays."""
    lake, rng = FrozenLake(), Random(seed)
    observation, rules, tools = lake.reset(seed=seed), lake.instructions(face), face is Face.TOOL
    schemas: list[Any] = tool_schemas(FrozenLake())
    opening = [{"role": "system", "content": rules}, {"role": "user", "content": observation}]
    if tools:
        opening = [{"role": "user", "content": f"{rules}\n\n{observation}"}]
    ids = chat.start(opening, schemas if tools else None)
    while not lake.done:
        call = policies.noisy(0.5)(lake, rng)
        text = format_tool_call(call) if tools else lake.format_action(call)
        ids += [*chat.encode(text), chat.turn_end]
        observation = lake.move(**call.arguments)
        if not lake.done:
            ids += chat.extend([{"role": "tool" if tools else "user", "content": observation}])
    return ids


@pytest.fixture(scope="session")
def texts() -> list[str]:
    """Rendered games, through both faces."""
    bytewise = tiny.bootstrap_tokenizer()
    chat = Chat(bytewise, template_kwargs={})
    return [str(bytewise.decode(played(chat, face, seed))) for face in Face for seed in range(128)]


@pytest.fixture(scope="session")
def trained(texts: list[str]) -> PreTrainedTokenizerFast:
    """The tiny model's tokenizer, made from them."""
    return tiny.train_tokenizer(texts, 600, choices=["up", "down", "left", "right"])
