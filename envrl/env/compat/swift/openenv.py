"""ms-swift's scheduler for OpenEnv servers, which it reaches through a client that blocks."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from envrl.env.compat.swift.multi_turn import Choice, GYMScheduler, Request, multi_turns
from envrl.env.openenv.generic import as_text, json_action
from envrl.errors import SessionLost
from envrl.spec import SessionSpec

_RESETS = 3
"""Connections that are tried before a reset is given up."""
_threads = ThreadPoolExecutor(256, thread_name_prefix="openenv")
"""One for every session that waits for its server; asyncio's own pool has few."""


class OpenEnvWrapper:
    """One session of an OpenEnv server. All methods block, so they belong into a thread.

    `env_config` has `base_url` and `reset_kwargs`; a `seed` of its own is sent along. A reset is tried
    again over a new connection. A step never is: behind a new connection waits another game, so where
    the old one is gone a step raises SessionLost.
    """

    def __init__(self, env_config: dict[str, Any]) -> None:
        self.base_url: str = env_config.get("base_url") or "http://localhost:8000"
        seed = env_config.get("seed")
        self.reset_kwargs = {
            **({} if seed is None else {"seed": seed}),
            **(env_config.get("reset_kwargs") or {}),
        }
        self._client: Any = None

    def reset(self) -> tuple[Any, Any]:
        """The first observation as the server gives it, and its metadata."""
        for attempt in range(1, _RESETS + 1):
            try:
                result = self._connected().reset(**self.reset_kwargs)
                return result.observation, getattr(result, "metadata", None)
            except (OSError, SessionLost):  # refused, late or lost
                self.close()
                if attempt == _RESETS:
                    raise
        raise AssertionError("the last attempt returns or raises")

    def step(self, action_dict: dict[str, Any]) -> tuple[Any, float, bool, Any]:
        """Observation, reward (0 where the server gives none), done, metadata.

        An action that the server cannot read is the model's mistake, and the refusal its observation.
        """
        from envrl.env.openenv.sessions import INVALID_ACTION, ServerError

        if self._client is None:
            raise SessionLost(f"no session at {self.base_url}: reset comes first")
        try:
            result = self._client.step(action_dict)
        except ServerError as error:
            if error.code != INVALID_ACTION:
                raise
            return {"error": error.message}, 0.0, False, None
        metadata = getattr(result, "metadata", None)
        return result.observation, float(result.reward or 0.0), bool(result.done), metadata

    def close(self) -> None:
        """Ends the session."""
        client, self._client = self._client, None
        if client is not None:
            client.close()

    def _connected(self) -> Any:
        if self._client is None:
            from envrl.env.openenv.sessions import Session  # imports openenv

            self._client = Session(self.base_url, SessionSpec()).sync()
            self._client.connect()
        return self._client


class OpenEnvScheduler(GYMScheduler):
    """Plays a server named by `env_config.base_url`; `env_config_defaults` fill in what a row leaves out."""

    env_config_defaults: dict[str, Any]

    async def _reset(self, request: Request) -> None:
        defaults = getattr(self, "env_config_defaults", {})
        config = {**defaults, **(request.data_dict.get("env_config") or {})}
        wrapper = await self._open(request, config)
        observation, _ = await _in_thread(wrapper.reset)
        system = config.get("system_message") or ""
        self._begin(request, self.format_observation(observation), system, None)

    async def on_turn_end(
        self, infer_request: Request, response_choice: Choice, current_turn: int
    ) -> dict[str, Any]:
        """Sends the turn as an action."""
        wrapper = self._envs.get(infer_request.uuid or "")
        if wrapper is None:
            return {"done": True, "rollout_infos": {}}
        action = self.parse_action(response_choice.message.content)
        observation, reward, done, metadata = await _in_thread(wrapper.step, action)
        info = metadata if isinstance(metadata, dict) else {}
        return self._took(infer_request, (self.format_observation(observation), reward, done, info))

    def parse_action(self, text: str) -> Any:
        """A JSON object as it stands, out of a code fence where there is one; else `{"message": text}`."""
        return json_action(text)

    def format_observation(self, observation: Any) -> str:
        """JSON, a string as it is."""
        return as_text(observation)

    def _create_env(self, env_config: dict[str, Any]) -> Any:
        return OpenEnvWrapper(env_config)

    async def _close(self, env: Any) -> None:
        await _in_thread(env.close)


async def _in_thread(function: Callable[..., Any], *args: Any) -> Any:
    return await asyncio.get_running_loop().run_in_executor(_threads, function, *args)


multi_turns["openenv_scheduler"] = OpenEnvScheduler
