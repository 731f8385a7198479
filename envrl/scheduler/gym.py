"""The text face: the model's words are the action, and observations come back as user messages."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from envrl.env.base import Face
from envrl.model.tool_calls import strip_thinking
from envrl.scheduler.base import TurnScheduler

if TYPE_CHECKING:
    from envrl.rollout.trajectory import Episode
    from envrl.rollout.transcript import Turn


class GymScheduler(TurnScheduler):
    """One action per turn; a text without an action uses up the turn."""

    face = Face.TEXT

    async def act(self, episode: Episode, turn: Turn) -> list[dict[str, Any]]:
        """One `user` message."""
        with episode.parsing():
            heard = turn.text if episode.host.environment.conversational else strip_thinking(turn.text)
        try:
            call = await episode.parse_action(heard)
        except ValueError as mistake:
            return [{"role": "user", "content": str(mistake)}]
        return [{"role": "user", "content": await episode.call(call)}]
