"""Any environment of ours as an OpenEnv app, which any OpenEnv client can play.

An action is `{"tool": "guess", "arguments": {"word": "crane"}}` or `{"text": "[crane]"}`. What the model
did wrong comes back as an observation with `mistake`, never as a server error: those are for the world.
Where a reward is worked out when play is over, `done` brings it, or an action `{"conclude": true}`.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable
from concurrent.futures import TimeoutError as FutureTimeout
from contextlib import suppress
from functools import partial
from typing import Any, Literal

from fastapi import FastAPI
from pydantic import Field

from envrl.env import build
from envrl.env.base import Face, ToolCall, checked_call
from envrl.env.host import CLOSE_TIMEOUT_S, Host
from envrl.env.openenv import without_gradio
from envrl.errors import Blame, WorldError, classify, finite_number
from envrl.spec import EnvSpec

with without_gradio():
    from openenv.core.env_server import Action, Observation, State, create_app
    from openenv.core.env_server import Environment as Served

log = logging.getLogger(__name__)


class EnvrlAction(Action):  # type: ignore[misc]  # openenv has no types
    """A call of one of the environment's tools, or a text in which it finds an action."""

    tool: str | None = None
    arguments: dict[str, Any] = Field(default_factory=dict)
    text: str | None = None
    conclude: bool = False
    """Play is over, for a reason of the player's; the answer has the final reward."""


class EnvrlObservation(Observation):  # type: ignore[misc]
    """What the environment says; `reward`, beside it, is that of the last action alone."""

    text: str
    total: float | None
    """The episode's reward so far."""
    success: bool | None
    metrics: dict[str, float]
    extra: dict[str, Any]
    """More about the episode, as plain data."""
    mistake: Literal["parse", "call"] | None = None
    """No action in the text, or a call that was refused; `text` says what was wrong."""
    instructions: dict[str, str] | None = None
    """The rules for the tool and the text face; after a reset."""
    tools: list[dict[str, Any]] | None = None
    """JSON schemas of the tools; after a reset."""


class Hosted(Served):  # type: ignore[misc]
    """One session's environment. Games run on the server's own loop, those that block in a thread."""

    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(
        self, key: str, spec: EnvSpec, live: set[Hosted], *, describe: bool, step_timeout_s: float | None
    ) -> None:
        super().__init__()
        self._host = Host(build(key, spec))
        self._live = live
        self._describe = describe
        self._step_timeout_s = step_timeout_s
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: int | None = None
        self._credited: float | None = None
        self._begun = False
        self._concluded = False
        live.add(self)

    async def reset_async(self, **row: Any) -> EnvrlObservation:
        """Starts the episode of the row and its seed. Where it fails, the one before is not gone on with."""
        self._begun = self._concluded = False
        self._loop, self._thread = asyncio.get_running_loop(), threading.get_ident()
        self._credited = None
        environment = self._host.environment
        text = await self._ask(environment.reset, **row)
        if not isinstance(text, str | None):
            raise RuntimeError(f"reset returned {text!r:.80}, not text")
        observation = self._observation(text)
        observation.instructions = {face: await self._ask(environment.instructions, face) for face in Face}
        if self._describe:
            from envrl.env.schema import tool_schemas  # heavy, and our own client brings its own

            observation.tools = tool_schemas(environment)
        self._begun = True
        return observation

    async def step_async(self, action: EnvrlAction, **options: Any) -> EnvrlObservation:
        """One action."""
        if not self._begun:
            raise RuntimeError("there is no episode to act in: reset comes first")
        said, mistake = ("", None) if action.conclude else await self._act(action)
        if action.conclude or self._host.environment.done:
            await self._conclude()
        return self._observation(said, mistake)

    def reset(self, **row: Any) -> EnvrlObservation:
        """Plain HTTP, which has no sessions."""
        return asyncio.run(self.reset_async(**row))

    def step(self, action: EnvrlAction, **options: Any) -> EnvrlObservation:
        """Plain HTTP, which has no sessions."""
        return asyncio.run(self.step_async(action))

    @property
    def state(self) -> State:
        """Nothing that a player should not know."""
        return State()

    def close(self) -> None:
        """Called in a thread of the session's, or on the loop; the environment is closed where it played."""
        self._live.discard(self)
        if self._loop is None or not self._loop.is_running():
            return
        closing = asyncio.run_coroutine_threadsafe(self._host.close(), self._loop)
        if threading.get_ident() == self._thread:
            return  # waiting here would keep the loop from closing it
        with suppress(FutureTimeout):
            closing.result(CLOSE_TIMEOUT_S + 1)

    async def _act(self, action: EnvrlAction) -> tuple[object, Literal["parse", "call"] | None]:
        try:
            call = await self._drafted(action)
        except ValueError as mistake:
            return mistake, "parse"
        try:
            tool, arguments = checked_call(self._host.environment, call)
            return await self._ask(tool, **arguments), None
        except ValueError as mistake:
            return mistake, "call"

    async def _drafted(self, action: EnvrlAction) -> ToolCall:
        if action.tool is not None:
            return ToolCall(action.tool, action.arguments)
        if action.text is None:
            raise ValueError("give a tool with its arguments, or a text")
        call: ToolCall = await self._ask(self._host.environment.parse_action, action.text)
        return call

    async def _conclude(self) -> None:
        if not self._concluded:
            self._concluded = True
            await self._ask(self._host.environment.conclude)

    async def _ask(self, method: Callable[..., Any], *args: Any, **arguments: Any) -> Any:
        """Runs a method of the environment; what it raises, other than to the model, is named and logged."""
        try:
            return await self._host.call(method, self._step_timeout_s, *args, **arguments)
        except Exception as error:
            if classify(error) is Blame.MODEL:
                raise
            log.exception("%s", getattr(method, "__name__", method))  # openenv sends the text alone
            raise WorldError(f"{type(error).__name__}: {error}") from error

    def _observation(self, text: object, mistake: Literal["parse", "call"] | None = None) -> EnvrlObservation:
        environment = self._host.environment
        # JSON would make null of what is not finite, which means unscored.
        total = None if environment.reward is None else finite_number("reward", environment.reward)
        rise = None if total is None else total - (self._credited or 0.0)
        self._credited = self._credited if total is None else total
        return EnvrlObservation(
            text="" if text is None else str(text),
            reward=rise,
            done=environment.done,
            total=total,
            success=None if environment.success is None else bool(environment.success),
            metrics={n: finite_number(f"metric {n}", value) for n, value in environment.metrics.items()},
            mistake=mistake,
            extra=environment.extra,
        )


def app(
    key: str, spec: EnvSpec, *, capacity: int, describe: bool = True, step_timeout_s: float | None = None
) -> FastAPI:
    """The ASGI app for this environment, with room for `capacity` sessions.

    `GET /sessions` says how many are open.
    """
    live: set[Hosted] = set()
    hosted = partial(Hosted, key, spec, live, describe=describe, step_timeout_s=step_timeout_s)
    served: FastAPI = create_app(
        hosted, EnvrlAction, EnvrlObservation, env_name=spec.kind, max_concurrent_envs=capacity
    )

    @served.get("/sessions")
    async def sessions() -> dict[str, int]:
        return {"active": len(live), "capacity": capacity}

    return served
