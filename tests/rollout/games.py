"""Small environments that rollout tests play with."""

from __future__ import annotations

import asyncio
import time
from typing import Any

from envrl.env import Environment, Face, ToolCall, tool


class Guess(Environment):
    """Guess a word; `crane` wins."""

    def __init__(self) -> None:
        super().__init__()
        self.guesses: list[str] = []

    def instructions(self, face: Face) -> str:
        return "Guess the word."

    def reset(self, *, seed: int | None = None, **row: Any) -> str | None:
        self.reward, self.done, self.success = 0.0, False, False
        return f"seed {seed}"

    @tool
    def guess(self, word: str) -> str:
        """Guess a word.

        Args:
            word: The guess.
        """
        self.guesses.append(word)
        if word == "crane":
            self.reward, self.done, self.success = 1.0, True, True
        return f"not {word}" if not self.done else "right"

    def parse_action(self, text: str) -> ToolCall:
        if "[" not in text:
            raise ValueError("write [word]")
        return ToolCall("guess", {"word": text.split("[")[1].split("]")[0]})


class Moody(Guess):
    """Does what the guessed word says."""

    @tool
    def guess(self, word: str) -> str:
        """Guess a word.

        Args:
            word: The guess.
        """
        if word == "crash":
            raise RuntimeError("server gone")
        if word == "refuse":
            raise ValueError("that is not allowed")
        if word == "nan":
            self.reward = float("nan")
        if word == "unscored":
            self.reward = None
        if word == "long":
            return "x" * 4000
        return super().guess(word)


class Flaky(Guess):
    """Every first instance of a pair breaks on its first guess."""

    instances = 0

    def __init__(self) -> None:
        super().__init__()
        Flaky.instances += 1
        self.broken = Flaky.instances % 2 == 1

    @tool
    def guess(self, word: str) -> str:
        """Guess a word.

        Args:
            word: The guess.
        """
        if self.broken:
            raise ConnectionError("socket closed")
        return super().guess(word)


class Slow(Guess):
    """Blocks a thread of its own for 50 ms a call."""

    blocking = True

    @tool
    def guess(self, word: str) -> str:
        """Guess a word.

        Args:
            word: The guess.
        """
        time.sleep(0.05)
        return super().guess(word)


class Patient(Guess):
    """Awaits for a minute."""

    @tool
    async def guess(self, word: str) -> str:
        """Guess a word.

        Args:
            word: The guess.
        """
        await asyncio.sleep(60)
        return word
