"""OpenEnv apps that answer as the two published echo servers do: the MCP one of today, and the one before."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

from fastmcp import FastMCP
from openenv.core.env_server import Action, Environment, Observation, State, create_app
from openenv.core.env_server.mcp_environment import MCPEnvironment
from openenv.core.env_server.mcp_types import CallToolAction, CallToolObservation


class EchoEnvironment(MCPEnvironment):
    """Offers two tools and scores nothing."""

    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self) -> None:
        server = FastMCP("echo_env")

        @server.tool
        def echo_message(message: str) -> str:
            """Echo back the provided message."""
            return message

        @server.tool
        def echo_with_length(message: str) -> dict[str, Any]:
            """Echo back the message with its length."""
            return {"message": message, "length": len(message)}

        super().__init__(server)
        self._state = State(episode_id=str(uuid4()), step_count=0)

    def reset(self, seed: int | None = None, episode_id: str | None = None, **row: Any) -> Observation:
        self._state = State(episode_id=episode_id or str(uuid4()), step_count=0)
        ready = {"status": "ready", "message": "Echo environment ready!"}
        return Observation(done=False, reward=0.0, metadata=ready)

    def _step_impl(self, action: Action, timeout_s: float | None = None, **row: Any) -> Observation:
        return Observation(done=False, reward=0.0, metadata={"error": f"Unknown action: {action!r}"})

    @property
    def state(self) -> State:
        return self._state


class EchoAction(Action):
    message: str


class EchoObservation(Observation):
    echoed_message: str
    message_length: int


class OldEchoEnvironment(Environment):
    """Pays 0.1 per character."""

    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self) -> None:
        super().__init__()
        self._state = State(episode_id=str(uuid4()), step_count=0)

    def reset(self) -> EchoObservation:
        return EchoObservation(echoed_message="Echo environment ready!", message_length=0, reward=0.0)

    def step(self, action: EchoAction, timeout_s: float | None = None, **row: Any) -> EchoObservation:
        said = action.message
        return EchoObservation(echoed_message=said, message_length=len(said), reward=len(said) * 0.1)

    @property
    def state(self) -> State:
        return self._state


def app(*, old: bool = False, capacity: int = 64) -> Any:
    """The ASGI app."""
    if old:
        return create_app(OldEchoEnvironment, EchoAction, EchoObservation, max_concurrent_envs=capacity)
    return create_app(EchoEnvironment, CallToolAction, CallToolObservation, max_concurrent_envs=capacity)
