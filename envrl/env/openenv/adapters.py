"""Adapter: how an OpenEnv server speaks. One object per episode, so that it may remember what was said.

An OpenEnv server takes any JSON object as an action and answers with any JSON object as an observation;
only `reward` and `done` have their place, beside the observation. An adapter turns the model's call or
text into the one and reads the other.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from envrl.env.base import Environment, ToolCall
from envrl.errors import ConfigError, WorldError, unknown
from envrl.importing import load_object

if TYPE_CHECKING:
    from openenv.core.client_types import StepResult

ADAPTERS: dict[str, str] = {
    "envrl": "envrl.env.openenv.adapters:Envrl",
    "textarena": "envrl.env.openenv.textarena:TextArena",
    "openspiel": "envrl.env.openenv.openspiel:OpenSpiel",
    "echo": "envrl.env.openenv.echo:Echo",
    "echo_old": "envrl.env.openenv.echo:OldEcho",
    "generic": "envrl.env.openenv.adapters:Generic",
}
"""name -> `module:Class`, in the order in which `auto` asks them; generic is last, for it never says no."""

AUTO = "auto"

_FENCE = re.compile(r"```\w*\s*(.*?)\s*```", re.DOTALL)


@dataclass(frozen=True)
class Seen:
    """What a server's reply says."""

    text: str
    """For the model: the observation, or what was wrong with its action."""
    reward: float | None
    """The episode's total so far; None means unscored."""
    done: bool
    success: bool | None = None
    metrics: Mapping[str, float] = field(default_factory=dict)
    mistake: Literal["parse", "call"] | None = None
    """The model erred: there was no action in its text, or the action was refused."""
    extra: Mapping[str, Any] = field(default_factory=dict)
    instructions: Mapping[str, str] | None = None
    """After a reset: this episode's rules by face, where the server has them."""


class Adapter:
    """How the server of one episode is spoken to. `local` is the class of env.<key>.kind, never reset."""

    mistakes: ClassVar[frozenset[str]] = frozenset({"VALIDATION_ERROR"})
    """Codes of server errors that the model answers for; all others end the episode as `error`."""

    def __init__(self, local: Environment) -> None:
        self.local = local
        self.total: float | None = None

    @classmethod
    def speaks(cls, schema: Mapping[str, Any]) -> bool:
        """Whether a server whose /schema is this one is spoken to by this adapter."""
        return False

    def reset(self, seed: int | None, row: Mapping[str, Any]) -> dict[str, Any]:
        """The data of the reset message. The total starts anew."""
        self.total = None
        return {**({} if seed is None else {"seed": seed}), **row}

    def action(self, call: ToolCall) -> dict[str, Any]:
        """The action that a tool call stands for. Raises ValueError with the text for the model."""
        return dict(call.arguments)

    def spoken(self, text: str) -> dict[str, Any]:
        """The action that a text stands for. Raises ValueError with the text for the model."""
        return {"message": text}

    def conclusion(self) -> dict[str, Any] | None:
        """The action that asks for a reward which is worked out when play is over, if there is one."""
        return None

    def first(self, result: StepResult[dict[str, Any]]) -> Seen:
        """Reads the reply to a reset."""
        return self.seen(result)

    def seen(self, result: StepResult[dict[str, Any]]) -> Seen:
        """Reads the reply to an action. Raises WorldError where it cannot be understood."""
        return Seen(as_text(result.observation), self.add(result.reward), bool(result.done))

    def add(self, reward: float | None) -> float | None:
        """The episode's total with the reward of a step; one that is null counts for nothing."""
        if reward is not None:
            self.total = (self.total or 0.0) + float(reward)
        return self.total


class Envrl(Adapter):
    """Our own hosting (`python -m envrl.serve`): the server parses, scores and says who erred."""

    @classmethod
    def speaks(cls, schema: Mapping[str, Any]) -> bool:
        """By the name of the action's class."""
        return bool(schema.get("action", {}).get("title") == "EnvrlAction")

    def action(self, call: ToolCall) -> dict[str, Any]:
        """The call by name; with kind=openenv the model writes `{"tool": ..., "arguments": ...}` itself."""
        if self._strangers:
            return dict(call.arguments["action"])
        return {"tool": call.name, "arguments": dict(call.arguments)}

    def spoken(self, text: str) -> dict[str, Any]:
        """The text as it is: only the instance behind the session can parse it."""
        return {"text": text}

    def conclusion(self) -> dict[str, Any] | None:
        """For classes that have a conclusion."""
        own = type(self.local).conclude is not Environment.conclude
        return {"conclude": True} if own else None

    def first(self, result: StepResult[dict[str, Any]]) -> Seen:
        """With kind=openenv the rules and the tools come from the server too."""
        seen = self.seen(result)
        if not self._strangers or not result.observation.get("tools"):
            return seen
        rules, tools = result.observation["instructions"]["tool"], as_text(result.observation["tools"])
        how = 'An action is {"tool": <name>, "arguments": {...}}.'
        return replace(seen, text=f"{rules}\n\nTools: {tools}\n{how}\n\n{seen.text}")

    def seen(self, result: StepResult[dict[str, Any]]) -> Seen:
        """The total is read, not added up, so that it is the in-process one to the last bit."""
        try:
            said = result.observation
            return Seen(
                text=said["text"],
                reward=said["total"],
                done=bool(result.done),
                success=said["success"],
                metrics=said["metrics"],
                mistake=said["mistake"],
                extra=said["extra"],
                instructions=said["instructions"],
            )
        except (KeyError, TypeError) as error:
            raise WorldError(f"no reply of an envrl server: {result.observation!r:.200}") from error

    @property
    def _strangers(self) -> bool:
        """There is no class of the environment here."""
        return hasattr(self.local, "to_action")


class Generic(Adapter):
    """Any server: actions are JSON that the model writes, observations JSON that it reads."""

    @classmethod
    def speaks(cls, schema: Mapping[str, Any]) -> bool:
        """Always."""
        return True

    def action(self, call: ToolCall) -> dict[str, Any]:
        """The object given to `act`; of any other tool its arguments."""
        action = call.arguments.get("action")
        return dict(action) if call.name == "act" and isinstance(action, dict) else dict(call.arguments)

    def spoken(self, text: str) -> dict[str, Any]:
        """By `parse_action` of env.<key>.args, else as JSON."""
        parse = getattr(self.local, "to_action", None) or json_action
        action: dict[str, Any] = parse(text)
        return action

    def seen(self, result: StepResult[dict[str, Any]]) -> Seen:
        """By `format_observation` of env.<key>.args, else as JSON."""
        text = (getattr(self.local, "to_text", None) or as_text)(result.observation)
        return Seen(text, self.add(result.reward), bool(result.done))


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


def adapter_class(name: str) -> type[Adapter]:
    """The adapter of a name. Raises ConfigError that lists the choices."""
    if name not in ADAPTERS:
        raise ConfigError(unknown("adapter", name, [AUTO, *ADAPTERS]))
    cls: type[Adapter] = load_object(ADAPTERS[name])
    return cls


def detected(schema: Mapping[str, Any]) -> type[Adapter]:
    """The first adapter that speaks to a server with this /schema."""
    return next(cls for cls in map(adapter_class, ADAPTERS) if cls.speaks(schema))
