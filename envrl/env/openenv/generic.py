"""Any OpenEnv server, played in JSON: the kind `openenv`, with no class of the game here, and its adapter."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from envrl.env.base import Environment, Face, ToolCall, tool
from envrl.env.openenv.adapters import Adapter, Outcome
from envrl.errors import ConfigError
from envrl.importing import load_object

if TYPE_CHECKING:
    from envrl.env.openenv.sessions import Reply

_FENCE = re.compile(r"```\w*\s*(.*?)\s*```", re.DOTALL)


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


class Generic(Adapter):
    """Any server: actions are JSON that the model writes, observations JSON that it reads."""

    def action(self, call: ToolCall) -> dict[str, Any]:
        """The object given to `act`; of any other tool its arguments."""
        action = call.arguments.get("action")
        return dict(action) if call.name == "act" and isinstance(action, dict) else dict(call.arguments)

    def text_action(self, text: str) -> dict[str, Any]:
        """By `parse_action` of env.<key>.args, else as JSON."""
        return self.to_action(text)

    def read_step(self, reply: Reply) -> Outcome:
        """By `format_observation` of env.<key>.args, else as JSON."""
        return Outcome(self.to_text(reply.observation), self.add(reply.reward), bool(reply.done))

    @property
    def to_action(self) -> Callable[[str], dict[str, Any]]:
        """What reads the model's text."""
        return self.local.to_action if isinstance(self.local, OpenEnv) else json_action

    @property
    def to_text(self) -> Callable[[Any], str]:
        """What words an observation."""
        return self.local.to_text if isinstance(self.local, OpenEnv) else as_text


def json_action(text: str) -> dict[str, Any]:
    """A JSON object, fenced or not, as it is; any other text or JSON as {"message": text}.

    The rules are those of ms-swift's OpenEnvScheduler.
    """
    text = text.strip()
    fenced = _FENCE.fullmatch(text)
    try:
        value = json.loads(fenced[1] if fenced else text)
    except ValueError:
        return {"message": text}
    return value if isinstance(value, dict) else {"message": str(value)}


def as_text(observation: Any) -> str:
    """An observation as JSON, a string as it is."""
    if isinstance(observation, str):
        return observation
    return json.dumps(observation, ensure_ascii=False, default=str)


def _function(name: str, path: str | None) -> Callable[..., Any] | None:
    if path is None:
        return None
    try:
        function: Callable[..., Any] = load_object(path)
    except ConfigError as error:
        raise ValueError(f"{name}: {error}") from error
    return function
