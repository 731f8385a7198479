"""Session: one connection to an OpenEnv server, which is one environment there.

openenv's client reconnects in silence, and what it then continues is a fresh environment. A session of
ours connects once. Whatever comes between a question and its answer, be it a lost socket, a deadline or a
cancelled episode, breaks it for good, so that no answer is ever taken for that to another question.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, TypeAlias

from pydantic_core import from_json, to_json
from websockets.exceptions import ConnectionClosed

from envrl.env.openenv import without_gradio
from envrl.errors import SessionLost, WorldError
from envrl.spec import SessionSpec

with without_gradio():
    import openenv.core
    from openenv.core.client_types import StepResult
    from openenv.core.generic_client import GenericEnvClient

log = logging.getLogger(__name__)

LOST = (ConnectionClosed, getattr(openenv.core, "SessionLostError", ConnectionClosed))
"""A newer openenv may tell by itself that a session is lost."""

INVALID_ACTION = "VALIDATION_ERROR"
"""The code of a server's error that the model answers for; all others are the world's."""

Reply: TypeAlias = "StepResult[dict[str, Any]]"


class ServerError(WorldError):
    """The server's own error message."""

    def __init__(self, message: str, code: str | None = None) -> None:
        super().__init__(message if code is None else f"the server says {message} ({code})")
        self.message = message
        self.code = code


class Full(ServerError):
    """The server has no session left."""


NOT_YET = (ConnectionError, SessionLost, Full)
"""What may be better in a moment."""


class Session(GenericEnvClient):  # type: ignore[misc]  # openenv has no types
    """One environment on a server, as long as the connection lasts."""

    _ws: Any
    spoiled = False
    """Its environment raised what was not meant for the model: nobody knows what state it is in."""

    def __init__(self, url: str, settings: SessionSpec) -> None:
        ping = settings.ping_interval_s
        super().__init__(
            url,
            connect_timeout_s=settings.open_timeout_s,
            websocket_ping_interval_s=ping,
            websocket_ping_timeout_s=ping,
            mode="simulation",
        )
        self._one_at_a_time = asyncio.Lock()

    @property
    def alive(self) -> bool:
        """Whether the connection is open, as far as this side knows."""
        return self._ws is not None and self._ws.close_code is None

    async def open(self) -> None:
        """Connects, and asks one question: a server that is full says so only in its first answer.

        Raises ConnectionError, ServerError, SessionLost.
        """
        await self._connect_async()
        try:
            await self.state()
        except ServerError as error:
            if error.code != "EXECUTION_ERROR":  # an environment may have no state before its reset
                raise

    async def reset(self, data: Mapping[str, Any]) -> Reply:
        """Starts an episode. Raises ServerError, SessionLost."""
        return self._read(await self._ask({"type": "reset", "data": data}))

    async def step(self, action: Mapping[str, Any]) -> Reply:
        """Acts. Raises ServerError, SessionLost."""
        return self._read(await self._ask({"type": "step", "data": action}))

    async def state(self) -> dict[str, Any]:
        """What the environment says of itself; may hold secrets, so it is never shown to a model."""
        data: dict[str, Any] = (await self._send_and_receive({"type": "state"})).get("data", {})
        return data

    async def close(self) -> None:
        """Tells the server, and waits until it has closed the connection."""
        await self._close_async()

    async def _ask(self, message: Mapping[str, Any]) -> dict[str, Any]:
        try:
            return await self._send_and_receive(message)
        except ServerError as error:
            self.spoiled |= error.code != INVALID_ACTION
            raise

    def _read(self, answer: Mapping[str, Any]) -> Reply:
        data = answer.get("data", {})
        if missing := [name for name in ("reward", "done") if name not in data]:
            _warn_once(f"{self.base_url} sends no {' and no '.join(missing)} beside the observation")
        reply: Reply = self._parse_result(data)
        return reply

    async def _send_and_receive(self, message: Mapping[str, Any]) -> dict[str, Any]:
        """One question and its answer."""
        async with self._one_at_a_time:
            if self._ws is None:
                raise SessionLost(f"the session at {self.base_url} is gone")
            try:
                with suppress(ConnectionClosed):  # a server that refuses us says why before it closes
                    await self._ws.send(to_json(message, fallback=str).decode())
                reply: dict[str, Any] = from_json(await self._ws.recv())
            except LOST as error:
                self._break()
                raise SessionLost(f"the session at {self.base_url} broke: {error}") from error
            except BaseException:
                self._break()
                raise
        if reply.get("type") == "error":
            raise _error(reply.get("data", {}))
        return reply

    def _break(self) -> None:
        """The socket closes in the background; nothing is read from it any more."""
        socket, self._ws = self._ws, None
        self._schedule_socket_close(socket)


def _error(data: Mapping[str, Any]) -> ServerError:
    code, message = str(data.get("code")), str(data.get("message"))
    if details := data.get("errors"):
        message = "; ".join(f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in details)
    return Full(message, code) if code == "CAPACITY_REACHED" else ServerError(message, code)


_warned: set[str] = set()


def _warn_once(text: str) -> None:
    if text not in _warned:
        _warned.add(text)
        log.warning("%s", text)
