"""Echo: says a message back and rewards its length, as OpenEnv's echo environment does."""

from __future__ import annotations

from random import Random
from string import ascii_lowercase
from typing import Annotated, Any

from pydantic import Field

from envrl.env.base import Environment, Face, ToolCall, tool

PER_CHARACTER = 0.1
SUGGESTIONS = [
    "Good morning!",
    "The sun is out.",
    "How are you today?",
    "One, two, three.",
    "Tell me something long.",
]


class Echo(Environment):
    """Reward is 0.1 per character of the newest message, so `hello` earns 0.5.

    Characters past the first `longest` earn nothing, which bounds it: 10 by default. The environment never
    ends the episode; the model does when it stops calling, or scheduler.max_turns does.
    """

    def __init__(self, *, longest: Annotated[int, Field(ge=1)] = 100) -> None:
        self.longest = longest

    def instructions(self, face: Face) -> str:
        """The rules."""
        if face is Face.TOOL:
            return "Call echo with a message, and it is said back to you."
        return "Whatever you write is said back to you."

    def reset(self, *, seed: int | None = None, message: str | None = None, **row: Any) -> str:
        """Suggests the row's own `message`, or one that the seed picks. It earns no more than any other."""
        self.reward = 0.0
        self.metrics = {"messages": 0, "characters": 0}
        suggestion = Random(seed).choice(SUGGESTIONS) if message is None else message
        return f"Try to echo '{suggestion}'"

    @tool
    def echo(self, message: str) -> str:
        """Say a message back.

        Args:
            message: What to say.
        """
        self.metrics["messages"] += 1
        self.metrics["characters"] = len(message)
        self.reward = PER_CHARACTER * min(len(message), self.longest)
        return message

    def parse_action(self, text: str) -> ToolCall:
        """The text is the message."""
        if not text.strip():
            raise ValueError("Write a message.")
        return ToolCall("echo", {"message": text.strip()})

    def format_action(self, call: ToolCall) -> str:
        """The message."""
        return str(call.arguments["message"])

    def gold_action(self) -> ToolCall:
        """The shortest message that earns the most; of words, which are fewer tokens than letters."""
        return ToolCall("echo", {"message": ("echo " * self.longest)[: self.longest - 1] + "!"})

    def random_action(self, rng: Random) -> ToolCall:
        """One to ten letters."""
        return ToolCall("echo", {"message": "".join(rng.choices(ascii_lowercase, k=rng.randint(1, 10)))})

    def thought(self) -> str:
        """What the reward is for."""
        return "Longer messages earn more."
