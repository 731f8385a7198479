"""Adapter: how an OpenEnv server speaks. One object per episode, so that it may remember what was said.

An OpenEnv server takes any JSON object as an action and answers with any JSON object as an observation;
only `reward` and `done` have their place, beside the observation. An adapter turns the model's call or
text into the one and reads the other.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from envrl.env.base import Environment, ToolCall
from envrl.errors import ConfigError, unknown
from envrl.importing import load_object

if TYPE_CHECKING:
    from envrl.env.openenv.sessions import Reply

ADAPTERS: dict[str, str] = {
    "envrl": "envrl.env.openenv.envrl:Envrl",
    "textarena": "envrl.env.openenv.textarena:TextArena",
    "openspiel": "envrl.env.openenv.openspiel:OpenSpiel",
    "echo": "envrl.env.openenv.echo:Echo",
    "echo_old": "envrl.env.openenv.echo:OldEcho",
    "generic": "envrl.env.openenv.generic:Generic",
}
"""name -> `module:Class`, in the order in which `auto` asks them; generic is last, for it never says no."""

AUTO = "auto"


@dataclass(frozen=True)
class Outcome:
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


class Adapter(ABC):
    """How the server of one episode is spoken to. `local` is the class of env.<key>.kind, never reset."""

    title: ClassVar[str | None] = None
    """The action's class as the server's /schema names it; None where any will do."""

    def __init__(self, local: Environment) -> None:
        self.local = local
        self.total: float | None = None

    @classmethod
    def speaks(cls, schema: Mapping[str, Any]) -> bool:
        """Whether a server whose /schema is this one is spoken to by this adapter."""
        return cls.title in (None, schema.get("action", {}).get("title"))

    def reset(self, seed: int | None, row: Mapping[str, Any]) -> dict[str, Any]:
        """The data of the reset message. The total starts anew."""
        self.total = None
        return {**({} if seed is None else {"seed": seed}), **row}

    @abstractmethod
    def action(self, call: ToolCall) -> dict[str, Any]:
        """The action that a tool call stands for. Raises ValueError with the text for the model."""

    @abstractmethod
    def text_action(self, text: str) -> dict[str, Any]:
        """The action that a text stands for. Raises ValueError with the text for the model."""

    def conclusion(self) -> dict[str, Any] | None:
        """The action that asks for a reward which is worked out when play is over, if there is one."""
        return None

    def read_reset(self, reply: Reply) -> Outcome:
        """Reads the reply to a reset."""
        return self.read_step(reply)

    @abstractmethod
    def read_step(self, reply: Reply) -> Outcome:
        """Reads the reply to an action. Raises WorldError where it cannot be understood."""

    def add(self, reward: float | None) -> float | None:
        """The episode's total with the reward of a step; one that is null counts for nothing."""
        if reward is not None:
            self.total = (self.total or 0.0) + float(reward)
        return self.total


def adapter_class(name: str) -> type[Adapter]:
    """The adapter of a name. Raises ConfigError that lists the choices."""
    if name not in ADAPTERS:
        raise ConfigError(unknown("adapter", name, [AUTO, *ADAPTERS]))
    cls: type[Adapter] = load_object(ADAPTERS[name])
    return cls


def detected(schema: Mapping[str, Any]) -> type[Adapter]:
    """The first adapter that speaks to a server with this /schema."""
    return next(cls for cls in map(adapter_class, ADAPTERS) if cls.speaks(schema))
