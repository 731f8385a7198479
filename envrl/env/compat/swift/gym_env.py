"""ms-swift's contract of an environment, and its registry."""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from typing import Any

from envrl.env.compat.swift.protocol import Messages, RolloutInferRequest
from envrl.errors import ConfigError, WorldError, finite_number, unknown


class Env(ABC):
    """One object is one trajectory. Methods may be sync; all of them run on the run's one event loop."""

    def __init__(self, env_config: dict[str, Any]) -> None:
        self.env_config = env_config

    @abstractmethod
    async def reset(self, config: RolloutInferRequest) -> tuple[str, dict[str, Any], str]:
        """Starts the trajectory: first observation, info, and a system message or an empty text."""

    @abstractmethod
    async def step(self, action: Messages) -> tuple[Any, ...]:
        """Takes the conversation so far, which ends with the model's turn, in a copy of its own.

        Returns next observation, reward, done, info; or terminated and truncated in place of done.
        """

    @abstractmethod
    async def close(self) -> None:
        """Frees what the trajectory holds; called on every exit path."""


class NoEnv(Env):
    """For schedulers that bring a world of their own, or need none: a row's messages open the talk."""

    async def reset(self, config: RolloutInferRequest) -> tuple[str, dict[str, Any], str]:
        """Repeats what the row says."""
        said = {message["role"]: str(message["content"]) for message in config.messages}
        return said.get("user", ""), {}, said.get("system", "")

    async def step(self, action: Messages) -> tuple[str, float, bool, dict[str, Any]]:
        """Ends after the model's first turn; the terms of the run score it."""
        return "", 0.0, True, {}

    async def close(self) -> None:
        """Holds nothing."""


envs: dict[str, type[Env]] = {"none": NoEnv}
"""Name -> class. Plugins add theirs; `env_config.name` of a dataset row, or env.<key>, chooses among them."""


def make_env(env_config: dict[str, Any], default: type[Env] | str | None) -> Env:
    """The environment that a row names, else the default one. Raises ConfigError for an unknown name."""
    if not isinstance(env_config, dict):
        raise ConfigError(f"env_config: must be an object, got {env_config!r:.60}")
    name = env_config.get("name")
    found = envs.get(name, default) if isinstance(name, str) else default
    cls = envs.get(found) if isinstance(found, str) else found
    if cls is None:
        raise ConfigError(unknown("env_config.name", name or default, envs))
    return cls(env_config)


async def settled(value: Any) -> Any:
    """A result, awaited where it has to be: plugins write their methods sync or async."""
    return await value if inspect.isawaitable(value) else value


def opened(reset: Any) -> tuple[str, dict[str, Any], str]:
    """Observation, info and system message of a reset. Raises WorldError for anything else."""
    if not (isinstance(reset, tuple | list) and len(reset) == 3 and isinstance(reset[1], dict | None)):
        raise WorldError(f"reset returned {reset!r:.80}, not an observation, an info and a system message")
    observation, info, system = reset
    return str(observation), info or {}, system or ""


def outcome(step: Any) -> tuple[str, float, bool, dict[str, Any]]:
    """Observation, reward, done and info of a step that has four or five parts.

    Raises WorldError for anything else: the model has no part in it.
    """
    parts = step if isinstance(step, tuple | list) else ()
    if len(parts) not in (4, 5) or not isinstance(parts[-1], dict | None):
        raise WorldError(f"step returned {step!r:.80}, not an observation, a reward, done and an info")
    observation, reward, *ends, info = parts
    if any(isinstance(end, str | list | dict) for end in ends):
        raise WorldError(f"step returned {step!r:.80}, which does not say whether it is done")
    return str(observation), finite_number("reward", reward or 0.0), any(ends), info or {}
