"""The kind `openenv`: any environment behind an OpenEnv server, without a class of its own here."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from envrl.env.base import Environment, Face, ToolCall, tool
from envrl.env.openenv.adapters import as_text, json_action
from envrl.errors import ConfigError
from envrl.importing import load_object


class OpenEnv(Environment):
    """Actions are JSON that the model writes, observations JSON that it reads.

    `parse_action(text) -> dict` and `format_observation(observation) -> str`, given as
    `package.module:function`, put other words in place of the JSON.
    """

    def __init__(self, *, parse_action: str | None = None, format_observation: str | None = None) -> None:
        self.to_action: Callable[[str], dict[str, Any]] = (
            _function("parse_action", parse_action) or json_action
        )
        self.to_text: Callable[[Any], str] = _function("format_observation", format_observation) or as_text

    def instructions(self, face: Face) -> str:
        """What can be said of any environment; env.<key>.prompt says more."""
        if face is Face.TOOL:
            return "Play the environment: call act once per turn."
        return "Play the environment: answer every turn with one action, a JSON object."

    def reset(self, *, seed: int | None = None, **row: Any) -> str:
        """Refused: the game is on a server."""
        raise ConfigError("kind=openenv has no game of its own; mend: env.<key>.backend=url")

    @tool
    def act(self, action: dict[str, Any]) -> str:
        """Acts in the environment.

        Args:
            action: The action, with the fields that the environment's server takes.
        """
        return self.reset()

    def parse_action(self, text: str) -> ToolCall:
        """The text as an action."""
        return ToolCall("act", {"action": self.to_action(text)})

    def format_action(self, call: ToolCall) -> str:
        """The action as JSON."""
        return as_text(call.arguments["action"])


def _function(name: str, path: str | None) -> Callable[..., Any] | None:
    if path is None:
        return None
    try:
        function: Callable[..., Any] = load_object(path)
    except ConfigError as error:
        raise ValueError(f"{name}: {error}") from error
    return function
