"""The contract of an environment: one object is one episode at a time.

An environment offers *tools*: typed methods marked with `@tool`. The tool face shows them to the
model as functions; the text face turns the model's words into one of the same calls with
`parse_action`. Rules and observations are text, `reward` is the episode's total so far, `done` says
that the environment ended the episode, and `success` (solved?) is kept apart from reward.
"""

from __future__ import annotations

import inspect
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cache
from random import Random
from typing import Any, Literal, Self, TypeVar, get_type_hints

from pydantic import BaseModel, ConfigDict, ValidationError, create_model

from envrl.errors import unknown

F = TypeVar("F", bound=Callable[..., Any])


class Face(StrEnum):
    """How an environment is shown to the model."""

    TOOL = "tool"
    TEXT = "text"


@dataclass(frozen=True)
class ToolCall:
    """A call of an environment's tool. `error` says why a drafted call cannot be run."""

    name: str
    arguments: Mapping[str, Any] = field(default_factory=dict)
    id: str = ""
    error: str | None = None


def tool(method: F) -> F:
    """Marks a method as a tool: it needs type hints and a Google docstring, which the model reads."""
    method._envrl_tool = True  # type: ignore[attr-defined]
    return method


class Environment(ABC):
    """One episode at a time; the same seed gives the same episode. Methods may be sync or async."""

    blocking: bool = False
    """True: calls may block, so they run in a thread that the episode owns."""
    conversational: bool = False
    """True: it hears whole turns, thinking included, through the text face alone, and what its reset says
    replaces a dataset row's own messages."""

    reward: float | None = None
    """The episode's total so far; None means unscored."""
    done: bool = False
    """The environment ended the episode."""
    success: bool | None = None
    """Whether the task is solved; None where that has no meaning."""

    metrics: dict[str, float]
    """Logged per environment (greens, invalid moves, …)."""
    extra: dict[str, Any]
    """Kept in the episode's record as it is: plain data."""

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:
        """A subclass need not call super().__init__()."""
        self = super().__new__(cls)
        self.metrics = {}
        self.extra = {}
        return self

    @abstractmethod
    def instructions(self, face: Face) -> str:
        """The rules, for a model that acts through this face."""

    @abstractmethod
    def reset(self, *, seed: int | None = None, **row: Any) -> str | None:
        """Starts the episode of this seed (and dataset row) and returns the first observation."""

    def parse_action(self, text: str) -> ToolCall:
        """The call that a text stands for.

        Raises ValueError with the text for the model where there is no action in it, and may set
        `reward` or `done` first.
        """
        raise NotImplementedError(f"{type(self).__name__} has no text face; use scheduler=tool_calling")

    def format_action(self, call: ToolCall) -> str:
        """The text that stands for a call: the inverse of `parse_action`, used by scripted policies."""
        raise NotImplementedError(f"{type(self).__name__} has no text face; use scheduler=tool_calling")

    def gold_action(self) -> ToolCall:
        """The best next call from the current state, which scripted play may know."""
        raise NotImplementedError(f"{type(self).__name__} has no solver")

    def random_action(self, rng: Random) -> ToolCall:
        """A call drawn without looking at the state."""
        raise NotImplementedError(f"{type(self).__name__} has no random policy")

    def thought(self) -> str:
        """One sentence of reasoning that leads to the gold action, for models that think."""
        return ""

    def tasks(self, *, held_out: bool) -> list[dict[str, Any]] | None:
        """The rows for `reset` where tasks can be listed: those to train on, or those held out.

        None: as many as there are seeds. Empty: only a dataset can bring them. Where all tasks are needed for
        training, both lists are equal.
        """
        return None

    async def open(self) -> None:
        """Gets hold of what `reset` needs, such as a session. Waiting here costs the episode no time."""

    def conclude(self) -> Any:
        """Called once when play is over, before the reward is read: for one that is worked out only then."""

    def close(self) -> Any:
        """Frees what the episode holds. Called on every exit path."""

    @property
    def unwrapped(self) -> Any:
        """The object that its author wrote: this one, or the one that this one adapts."""
        return self

    def tools(self) -> dict[str, Callable[..., Any]]:
        """What the model may call, by name: the bound `@tool` methods, in the order of their definition."""
        return {name: getattr(self, name) for name in tool_names(type(self))}


@cache
def tool_names(environment: type[Environment]) -> tuple[str, ...]:
    """The names of a class's `@tool` methods, base classes first, in the order of their definition."""
    names: dict[str, None] = {}
    for cls in reversed(environment.__mro__):
        names.update((name, None) for name, value in vars(cls).items() if hasattr(value, "_envrl_tool"))
    return tuple(name for name in names if hasattr(getattr(environment, name), "_envrl_tool"))


def unreadable(function: Callable[..., Any]) -> str | None:
    """What a model would miss in a tool: a Google docstring that has all arguments, and type hints."""
    text = inspect.getdoc(function)
    if not text:
        return "has no docstring for the model to read"
    try:
        hints = get_type_hints(function)
    except (NameError, AttributeError, TypeError, SyntaxError) as error:
        return f"has type hints that cannot be read ({type(error).__name__}: {error})"
    names = list(inspect.signature(function).parameters)
    if untyped := [name for name in names if name not in hints]:
        return f"has no type hint for {', '.join(untyped)}"
    if silent := [name for name in names if not re.search(rf"^\s*{name}\b.*:", text, re.MULTILINE)]:
        return f"has no line under Args: in its docstring for {', '.join(silent)}"
    return None


def has_solver(environment: type[Environment]) -> bool:
    """Whether the class brings a gold policy."""
    return environment.gold_action is not Environment.gold_action


@cache
def argument_model(function: Callable[..., Any]) -> type[BaseModel]:
    """A pydantic model of a function's or class's keyword arguments; extras are forbidden."""
    callee = function.__init__ if inspect.isclass(function) else function
    hints = get_type_hints(callee, include_extras=True)
    fields: dict[str, Any] = {}
    extra: Literal["allow", "forbid"] = "forbid"
    for name, parameter in inspect.signature(callee).parameters.items():
        if name == "self" or parameter.kind is parameter.VAR_POSITIONAL:
            continue
        if parameter.kind is parameter.VAR_KEYWORD:
            extra = "allow"
            continue
        default = ... if parameter.default is parameter.empty else parameter.default
        fields[name] = (hints.get(name, Any), default)
    config = ConfigDict(extra=extra, arbitrary_types_allowed=True)
    return create_model("Arguments", __config__=config, **fields)


def checked_arguments(function: Callable[..., Any], arguments: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments, converted to the function's types.

    Raises ValueError in words that a model or a person can act on.
    """
    model = argument_model(getattr(function, "__func__", function))
    try:
        parsed = model.model_validate(dict(arguments))
    except ValidationError as error:
        raise ValueError("; ".join(_explain(e, model) for e in error.errors(include_url=False))) from None
    return {name: getattr(parsed, name) for name in parsed.model_fields_set}


def checked_call(environment: Environment, call: ToolCall) -> tuple[Callable[..., Any], dict[str, Any]]:
    """The tool that a call names, and its arguments.

    Raises ValueError, in words for the model, for a call that cannot be run.
    """
    tools = environment.tools()
    if call.error is not None:
        raise ValueError(call.error)
    if environment.done:
        raise ValueError("the episode is over; this call was not run")
    if call.name not in tools:
        raise ValueError(unknown("tool", call.name, tools))
    return tools[call.name], checked_arguments(tools[call.name], call.arguments)


def _explain(error: Any, model: type[BaseModel]) -> str:
    name = ".".join(map(str, error["loc"]))
    if error["type"] == "missing":
        return f"{name}: missing"
    if error["type"] == "extra_forbidden":
        return unknown("argument", name, model.model_fields)
    return f"{name}: {error['msg'][:1].lower()}{error['msg'][1:]}, got {error['input']!r}"
