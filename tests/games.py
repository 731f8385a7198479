"""Small environments that tests play with, named as `games:Name`."""

from __future__ import annotations

import asyncio
import os
import time
from collections import Counter
from random import Random
from typing import Any, ClassVar

from envrl.env import Environment, Face, ToolCall, tool
from envrl.env.frozen_lake import FrozenLake


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

    def random_action(self, rng: Random) -> ToolCall:
        return ToolCall("guess", {"word": rng.choice(["zebra", "crane"])})


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
        if word in ("nan", "inf", "-inf"):
            self.reward = float(word)
        if word == "unscored":
            self.reward = None
        if word == "raise":
            self.reward = (self.reward or 0.0) + 0.25
        if word == "long":
            return "x" * 4000
        return super().guess(word)


class Flaky(Guess):
    """The first one played breaks on its second guess."""

    played: ClassVar[list[Flaky]] = []
    closed = False

    def reset(self, *, seed: int | None = None, **row: Any) -> str | None:
        self.broken = not Flaky.played
        Flaky.played.append(self)
        return super().reset(seed=seed)

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

    def reset(self, *, seed: int | None = None, **row: Any) -> str | None:
        Counted.live += 1
        Counted.peak = max(Counted.peak, Counted.live)
        return super().reset(seed=seed)

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


class Rated(Guess):
    """The members of a group get the rewards of their dataset row in turn; a null breaks the episode."""

    met: ClassVar[Counter[int | None]] = Counter()

    def reset(self, *, seed: int | None = None, rewards: list[float | None], **row: Any) -> str | None:
        reward = rewards[Rated.met[seed] % len(rewards)]
        Rated.met[seed] += 1
        if reward is None:
            raise ConnectionError("no route to the game")
        self.reward = reward
        return None


class Wordless(Guess):
    """Starts with an object."""

    def reset(self, *, seed: int | None = None, **row: Any) -> Any:
        return {"board": seed}


class Fading(Guess):
    """Every game of the process pays less than the one before."""

    played = 0

    def reset(self, *, seed: int | None = None, **row: Any) -> str | None:
        Fading.played += 1
        self.reward = 1 / Fading.played
        return None


class Unreachable(Guess):
    """No game ever starts."""

    def reset(self, *, seed: int | None = None, **row: Any) -> str | None:
        raise ConnectionError("no route to the game")


class Clueless(FrozenLake):
    """Its solver knows no more than chance."""

    def gold_action(self) -> ToolCall:
        return ToolCall("move", {"direction": "up"})

    def random_action(self, rng: Random) -> ToolCall:
        return self.gold_action()


class FarLake(FrozenLake):
    """Solvable, were it not out of reach."""

    def reset(self, *, seed: int | None = None, **row: Any) -> str:  # type: ignore[override]
        raise ConnectionError("no route to the lake")


class Tricky(Moody):
    """Does to its server what the guessed word says."""

    @tool
    async def guess(self, word: str) -> str:
        """Guess a word.

        Args:
            word: The guess.
        """
        if word == "die":
            os._exit(3)
        if word == "hang":
            await asyncio.sleep(600)
        if word == "block":
            time.sleep(0.6)
        return super().guess(word)


class Careless(Guess):
    """Forgets its seed."""

    played = 0

    def reset(self, *, seed: int | None = None, **row: Any) -> str | None:
        Careless.played += 1
        super().reset(seed=seed)
        return f"game {Careless.played}"


class Forgetful(Guess):
    """Draws another word in every game, though all begin alike."""

    played = 0

    def reset(self, *, seed: int | None = None, **row: Any) -> str | None:
        Forgetful.played += 1
        self.secret = ("zebra", "crane")[Forgetful.played % 2]
        super().reset(seed=seed)
        return "Go."

    def gold_action(self) -> ToolCall:
        return ToolCall("guess", {"word": self.secret})


def call(word: str) -> str:
    """A model's turn that guesses a word."""
    return f'<tool_call>\n{{"name": "guess", "arguments": {{"word": "{word}"}}}}\n</tool_call>'
