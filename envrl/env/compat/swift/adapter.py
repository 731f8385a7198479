"""An ms-swift environment as an environment of ours."""

from __future__ import annotations

import json
import math
from collections.abc import Awaitable, Callable
from copy import deepcopy
from functools import cache
from random import Random
from typing import Any, ClassVar
from uuid import uuid4

from envrl.env.base import Environment, Face, ToolCall
from envrl.env.compat.swift.gym_env import Env, envs, make_env, opened, outcome, settled
from envrl.env.compat.swift.protocol import Messages
from envrl.env.compat.swift.protocol import RolloutInferRequest as Request
from envrl.errors import WorldError


class SwiftEnvironment(Environment):
    """Every turn of the model, as a whole, is one step of the `Env`; the sum of its rewards is the reward.

    It plays under scheduler=gym. Under a scheduler that is ms-swift's too, that one opens the `Env`
    itself, and this object carries what the episode's record shows of it. There is no `success`, unless
    `info` has one. A turn that was cut short ends the episode unless scheduler.continue_on_length is true.
    """

    conversational = True
    author: ClassVar[type[Env]]
    """What env.<key> names; a row's `env_config.name` comes first."""

    def __init__(self, **env_config: Any) -> None:
        """Takes the settings that a row's `env_config` does not have."""
        self._settings = env_config
        self._env: Env | None = None
        self._messages: Messages = []
        self._infos: list[dict[str, Any]] = []
        self.finalizer: Callable[[], Awaitable[None]] | None = None
        """Frees what a scheduler opened for this episode."""

    @property
    def unwrapped(self) -> Any:
        """The author's object."""
        return self._env

    @property
    def default(self) -> type[Env] | str:
        """What plays where a row names nothing: the class, by its registered name where it has one."""
        names = (name for name, cls in envs.items() if cls is self.author)
        return next(names, self.author)

    def request(self, *, seed: int | None = None, messages: Messages | None = None, **row: Any) -> Request:
        """A row as `reset` takes it. An `env_config` passes as it was written; a row without gets our own."""
        config = row.get("env_config")
        if config is None:
            config = {"seed": seed, **self._settings}
        elif isinstance(config, dict):
            config = {**self._settings, **config}
        columns = {"seed": seed, **row, "env_config": config}
        uuid = f"chatcmpl-{uuid4().hex}"
        return Request(deepcopy(messages or []), data_dict=columns, uuid=uuid)

    def instructions(self, face: Face) -> str:
        """The system message of this episode."""
        first = self._messages[:1]
        return str(first[0]["content"]) if first and first[0]["role"] == "system" else ""

    async def reset(  # type: ignore[override]  # methods may be async
        self, *, seed: int | None = None, **row: Any
    ) -> str:
        """Opens the environment that the row asks for."""
        self.reward, self.done, self.success = 0.0, False, None
        self.metrics, self.extra, self._infos = {}, {}, []
        request = self.request(seed=seed, **row)
        self._env = make_env(request.data_dict["env_config"], self.default)
        observation, info, system = opened(await settled(self._env.reset(request)))
        self._messages = [{"role": "system", "content": system}] if system else []
        self._messages.append({"role": "user", "content": observation})
        self.note(info)
        return observation

    def tools(self) -> dict[str, Callable[..., Any]]:
        """`step`, which the text face calls."""
        return {"step": self.step}

    async def step(self, text: str) -> str:
        """Answer the environment.

        Args:
            text: The whole turn.
        """
        assert self._env is not None, "reset comes first"
        self._messages.append({"role": "assistant", "content": text})
        try:
            parts = await settled(self._env.step(deepcopy(self._messages)))
        except ValueError as error:  # ms-swift's environments answer with text, and raise what is broken
            raise WorldError(f"step: ValueError: {error}") from error
        observation, reward, self.done, info = outcome(parts)
        self.reward = (self.reward or 0.0) + reward
        self._messages.append({"role": "user", "content": observation})
        self.note(info)
        return observation

    def note(self, info: dict[str, Any]) -> None:
        """Keeps an `info`: its numbers as metrics, the last one of a name; all of it in the record."""
        self._infos.append(plain(info))
        self.extra["infos"] = self._infos
        self.metrics |= numbers(info)
        if isinstance(info.get("success"), bool):
            self.success = info["success"]

    def parse_action(self, text: str) -> ToolCall:
        """The whole text is the action."""
        return ToolCall("step", {"text": text})

    def format_action(self, call: ToolCall) -> str:
        """The whole action is the text."""
        return str(call.arguments["text"])

    def random_action(self, rng: Random) -> ToolCall:
        """A word of what was said last; so a model's vocabulary gets to know the game."""
        words = self._messages[-1]["content"].split() if self._messages else []
        return ToolCall("step", {"text": rng.choice(words or ["ok"])})

    async def close(self) -> None:
        """Closes the author's object."""
        if self.finalizer is not None:
            await self.finalizer()
        if self._env is not None:
            await settled(self._env.close())


@cache
def adapt(cls: type[Env]) -> type[SwiftEnvironment]:
    """The environment class of ours that plays this one of theirs."""
    described = {"author": cls, "__module__": cls.__module__, "__doc__": cls.__doc__}
    return type(cls.__name__, (SwiftEnvironment,), described)


def plain(value: Any) -> Any:
    """What JSON can say of a value; the rest as text, and so is what holds itself."""
    try:
        return json.loads(json.dumps(value, default=str, skipkeys=True))
    except (ValueError, RecursionError):
        return str(value)


def numbers(info: dict[str, Any]) -> dict[str, float]:
    """The finite numbers among the values; true is 1."""
    numeric = {str(name): value for name, value in info.items() if isinstance(value, int | float)}
    return {name: float(value) for name, value in numeric.items() if math.isfinite(value)}
