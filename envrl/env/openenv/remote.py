"""Remote: an episode that is played through a session.

What the model is shown, rules and tools, comes from the local class; what happens comes from the server.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any

from envrl.env.base import Environment, Face, ToolCall
from envrl.env.openenv.adapters import Adapter, Outcome

if TYPE_CHECKING:
    from envrl.env.openenv.sessions import Reply, Session
    from envrl.env.openenv.source import OpenEnvSource

TEXT_TOOL = "(text)"
"""The tool that a text becomes: no model sees it, and no model can name it before it has spoken."""


class Remote(Environment):
    """Stands for the environment of one session."""

    def __init__(self, local: Environment, source: OpenEnvSource) -> None:
        self._local = local
        self._source = source
        self._session: Session | None = None
        self._adapter: Adapter  # comes with the session
        self._tools = {name: self._over_the_wire(name, method) for name, method in local.tools().items()}
        self._text_outcome: Outcome | None = None
        self._rules: Mapping[str, str] = {}
        self.conversational = local.conversational

    async def open(self) -> None:
        """Waits for a session."""
        self._session, self._adapter = await self._source.take()

    async def close(self) -> None:
        """Gives the session back."""
        session, self._session = self._session, None
        if session is not None:
            self._source.give(session)

    def instructions(self, face: Face) -> str:
        """Those of this episode where the server has them, else the local class's."""
        return self._rules[face] if face in self._rules else self._local.instructions(face)

    def tools(self) -> dict[str, Callable[..., Any]]:
        """The local class's, each of them a call over the wire."""
        return self._tools if self._text_outcome is None else {**self._tools, TEXT_TOOL: self._text_result}

    async def reset(self, *, seed: int | None = None, **row: Any) -> str:  # type: ignore[override]
        """Starts the episode on the server."""
        self._text_outcome = None
        reply = await self._source.reset(self._live, self._adapter.reset(seed, row))
        outcome = self._adapter.read_reset(reply)
        self._rules = outcome.instructions or {}
        return self._take_over(outcome)

    async def parse_action(self, text: str) -> ToolCall:  # type: ignore[override]
        """Sends the text, which only the server can read, and keeps its answer for the call that follows."""
        if self.done:
            raise ValueError("the episode is over; this text was not sent")
        outcome = await self._step(self._adapter.text_action(text))
        if outcome.mistake == "parse":
            self._take_over(outcome)
        self._text_outcome = outcome
        return ToolCall(TEXT_TOOL)

    async def conclude(self) -> None:
        """Asks for a reward that is worked out at the end."""
        action = self._adapter.conclusion()
        if action is not None:
            self._take_over(await self._step(action))

    def _text_result(self) -> str:
        """The answer to the text that was parsed last."""
        outcome, self._text_outcome = self._text_outcome, None
        assert outcome is not None
        return self._take_over(outcome)

    def _over_the_wire(self, name: str, method: Callable[..., Any]) -> Callable[..., Awaitable[str]]:
        async def call(**arguments: Any) -> str:
            return self._take_over(await self._step(self._adapter.action(ToolCall(name, arguments))))

        call.__name__ = name
        # Schemas and argument checks are made from the function of the class, once for all episodes.
        call.__func__ = getattr(method, "__func__", method)  # type: ignore[attr-defined]
        return call

    @property
    def _live(self) -> Session:
        assert self._session is not None, "open() comes first"
        return self._session

    async def _step(self, action: dict[str, Any]) -> Outcome:
        """One action. What the server says the model did wrong is a mistake like any other."""
        from envrl.env.openenv.sessions import INVALID_ACTION, ServerError  # imports openenv

        try:
            reply: Reply = await self._live.step(action)
        except ServerError as error:
            if error.code == INVALID_ACTION:
                raise ValueError(error.message) from error
            raise
        return self._adapter.read_step(reply)

    def _take_over(self, outcome: Outcome) -> str:
        """Makes the server's state that of this object. Raises ValueError where the model erred."""
        self.reward, self.done, self.success = outcome.reward, outcome.done, outcome.success
        self.metrics, self.extra = dict(outcome.metrics), dict(outcome.extra)
        if outcome.mistake:
            raise ValueError(outcome.text)
        return outcome.text
