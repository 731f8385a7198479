"""Real parts for the tests of this folder: Qwen's vocabulary and chat template, games of FrozenLake."""

from __future__ import annotations

import base64
from collections.abc import Callable
from importlib.metadata import distribution
from pathlib import Path
from random import Random
from typing import Any

import pytest
from tokenizers import AddedToken, normalizers
from transformers import PreTrainedTokenizerFast
from transformers.convert_slow_tokenizer import TikTokenConverter

from envrl.env import Face, policies
from envrl.env.frozen_lake import FrozenLake
from envrl.env.schema import tool_schemas
from envrl.model import format_tool_call, tiny
from envrl.model.chat import Chat

PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
ADDED = ["<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>", "<think>", "</think>"]


def packaged(package: str, file: str) -> str:
    """A data file of an installed package, which is not imported for it."""
    return Path(str(distribution(package).locate_file(file))).read_text("utf-8")


class QwenConverter(TikTokenConverter):
    """Reads the ranks from dashscope's file without the tiktoken package."""

    def load_tiktoken_bpe(self, tiktoken_url: str) -> dict[bytes, int]:  # type: ignore[override]
        lines = packaged("dashscope", tiktoken_url).splitlines()
        return {base64.b64decode(token): int(rank) for token, rank in map(str.split, lines)}


@pytest.fixture(scope="session")
def qwen() -> PreTrainedTokenizerFast:
    """Qwen3's tokenizer; the ids of its added tokens are not the published ones."""
    backend = QwenConverter("dashscope/resources/qwen.tiktoken", pattern=PATTERN).converted()
    backend.normalizer = normalizers.NFC()
    backend.add_special_tokens([AddedToken(token, normalized=False, special=True) for token in SPECIAL])
    backend.add_tokens([AddedToken(token, normalized=False) for token in ADDED])
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend, eos_token="<|im_end|>", pad_token="<|endoftext|>"
    )
    tokenizer.chat_template = packaged("trl", "trl/chat_templates/qwen3.jinja")
    return tokenizer


Game = Callable[[Chat, Face, int], list[int]]


@pytest.fixture(scope="session")
def game() -> Game:
    """Plays a game of a seed and returns its tokens."""
    return played


def played(chat: Chat, face: Face, seed: int) -> list[int]:
    """The tokens of a FrozenLake game that the noisy solver plays."""
    lake, rng = FrozenLake(), Random(seed)
    observation, rules, tools = lake.reset(seed=seed), lake.instructions(face), face is Face.TOOL
    schemas: list[Any] = tool_schemas(FrozenLake)
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
    return tiny.train_tokenizer(texts, 600)
