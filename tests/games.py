"""Small environments that tests play with, named as `games:Name`."""

from __future__ import annotations

import asyncio
import time
from typing import Any, ClassVar

from envrl.env import Environment, Face, ToolCall, tool


class Guess(Environment):
    """Guess a word; the secret one wins."""

    def __init__(self, secret: str = "crane") -> None:
        self.secret = secret
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
        if word == self.secret:
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
    """The first one made breaks on its second guess."""

    made: ClassVar[list[Flaky]] = []

    def __init__(self) -> None:
        super().__init__()
        self.broken = not Flaky.made
        self.closed = False
        Flaky.made.append(self)

    @tool
    def guess(self, word: str) -> str:
        """Guess a word.

        Args:
            word: The guess.
        """
        if self.broken and self.guesses:
            raise ConnectionError("socket closed")
        return super().guess(word)

    def close(self) -> None:
        self.closed = True


class Counted(Guess):
    """Knows how many of its kind are open, and how many ever were at once."""

    live = peak = 0

    def __init__(self) -> None:
        super().__init__()
        Counted.live += 1
        Counted.peak = max(Counted.peak, Counted.live)

    def close(self) -> None:
        Counted.live -= 1


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


def call(word: str) -> str:
    """A model's turn that guesses a word."""
    return f'<tool_call>\n{{"name": "guess", "arguments": {{"word": "{word}"}}}}\n</tool_call>'
