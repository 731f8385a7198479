"""The tool face: the model calls the environment's tools, several per turn if it likes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from envrl.env.base import Face
from envrl.model.tool_calls import parse_tool_calls
from envrl.scheduler.base import TurnScheduler

if TYPE_CHECKING:
    from envrl.rollout.trajectory import Episode
    from envrl.rollout.transcript import Turn


class ToolCallingScheduler(TurnScheduler):
    """Runs a turn's calls in order; each is answered, a wrong one with what was wrong."""

    face = Face.TOOL

    async def act(self, episode: Episode, turn: Turn) -> list[dict[str, Any]]:
        """One `tool` message per call."""
        with episode.parsing():
            calls = parse_tool_calls(turn.text, prefix=f"call_{len(episode.turns)}")
        if not calls and turn.cut:
            return [{"role": "user", "content": "Your last turn was cut short. Call a tool."}]
        return [
            {"role": "tool", "name": call.name, "tool_call_id": call.id, "content": await episode.call(call)}
            for call in calls
        ]
