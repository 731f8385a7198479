"""The guides' Wordle: the class and the reward functions that TRL is given, and an ms-swift Env."""

from __future__ import annotations

import re
from random import Random
from typing import Any

from envrl.env.compat.swift import Env, Messages, RolloutInferRequest, envs
from envrl.env.wordle.feedback import feedback

SECRETS = ["crane", "slate", "house", "robot"]
GUESSES = 6


class WordleEnv:
    """What TRL's guide calls for: a tool, and attributes for the reward functions."""

    def __init__(self) -> None:
        self.secret = ""
        self.rows: list[str] = []
        self.invalid = 0
        self.won = self.done = False
        self.closed = 0

    def reset(self, seed: int | None = None, **row: Any) -> str | None:
        self.__init__()  # type: ignore[misc]
        self.secret = row.get("secret") or Random(seed).choice(SECRETS)
        return "You have six guesses."

    def guess(self, word: str) -> str:
        """
        Guess the secret word.

        Args:
            word: A word of five letters.

        Returns:
            The feedback on the guess.
        """
        if self.done:
            raise ValueError("Game over.")
        if not re.fullmatch("[a-z]{5}", word):
            self.invalid += 1
            raise ValueError(f"{word!r} has not five letters")
        self.rows.append(feedback(word, self.secret))
        self.won = word == self.secret
        self.done = self.won or len(self.rows) == GUESSES
        return self.rows[-1]

    def close(self) -> None:
        """Not a tool, though it is public."""
        self.closed += 1


def reward_win(environments: list[WordleEnv], **kwargs: Any) -> list[float]:
    """More for fewer guesses."""
    return [1.0 + 0.5 * (1 - len(e.rows) / GUESSES) if e.won else 0.0 for e in environments]


def reward_partial(environments: list[WordleEnv], **kwargs: Any) -> list[float]:
    """For greens, where the word was not found."""
    best = [max((row.count("G") for row in e.rows), default=0) for e in environments]
    return [0.0 if e.won else 0.1 * greens for e, greens in zip(environments, best, strict=True)]


async def reward_invalid(environments: list[WordleEnv], **kwargs: Any) -> list[float | None]:
    """For guesses that were none; no opinion on games without any."""
    return [-0.1 * e.invalid if e.invalid else None for e in environments]


class SwiftWordle(Env):
    """The same game in text: `[crane]`."""

    async def reset(self, config: RolloutInferRequest) -> tuple[str, dict[str, Any], str]:
        self.game = WordleEnv()
        first = self.game.reset(**self.env_config)
        return f"{first} Answer [word].", {"secret_letters": len(self.game.secret)}, "Play Wordle."

    async def step(self, action: Messages) -> tuple[str, float, bool, dict[str, Any]]:
        found = re.findall(r"\[(\w+)\]", action[-1]["content"])
        try:
            observation = self.game.guess(found[-1] if found else "")
        except ValueError as mistake:
            observation = str(mistake)
        info = {"invalid": self.game.invalid, "success": self.game.won}
        return observation, float(self.game.won), self.game.done, info

    async def close(self) -> None:
        self.game.close()


envs["guides_wordle"] = SwiftWordle
