"""OpenSpiel's games behind its OpenEnv server: `catch` as text, any other in JSON.

The server takes any number for an action, and a step after the end starts a new game without a word. So
nothing is sent that it did not call legal, and after the end nothing is legal.
"""

from __future__ import annotations

import re
from copy import copy
from typing import TYPE_CHECKING, Any

from envrl.env.base import Environment, ToolCall
from envrl.env.catch import COLUMNS, ROWS, STEP, Catch
from envrl.env.openenv.adapters import Outcome
from envrl.env.openenv.foreign import Foreign, server_reward
from envrl.env.openenv.generic import json_action
from envrl.errors import WorldError

if TYPE_CHECKING:
    from envrl.env.openenv.sessions import Reply


class OpenSpiel(Foreign):
    """A game for one player; it is won where its last reward is above 0."""

    title = "OpenSpielAction"

    def __init__(self, local: Environment) -> None:
        super().__init__(copy(local))  # a Catch that is told where ball and paddle are
        self._legal: list[int] = []
        self._steps = 0

    def action(self, call: ToolCall) -> dict[str, Any]:
        """Catch numbers left, stay and right from 0."""
        if call.name == "act":
            return self._checked(super().action(call))
        moves = list(STEP)
        return self._checked({"action_id": moves.index(call.arguments.get("direction", call.name))})

    def text_action(self, text: str) -> dict[str, Any]:
        """Catch's own words; else a number, or JSON."""
        if isinstance(self.local, Catch):
            return self.action(self.local.parse_action(text))
        if self.to_action is json_action and re.fullmatch(r"\s*\d+\s*", text):
            return self._checked({"action_id": int(text)})
        return self._checked(self.to_action(text))

    def read_reset(self, reply: Reply) -> Outcome:
        """The first board; its reward is null."""
        self._steps = -1
        return self.read_step(reply)

    def read_step(self, reply: Reply) -> Outcome:
        """Reads the board, and what may be done next."""
        done, paid = bool(reply.done), reply.reward
        try:
            self._legal = list(reply.observation["legal_actions"])
            board = reply.observation["info_state"]
        except (KeyError, TypeError) as error:
            raise WorldError(f"no reply of an OpenSpiel server: {reply.observation!r:.200}") from error
        self._steps += 1
        won = done and (paid or 0.0) > 0
        total = self.add(paid)
        metrics = {"steps": float(self._steps), "score": total or 0.0, **server_reward(paid)}
        if isinstance(self.local, Catch):
            return Outcome(self._told(self.local, board, done, won), float(won), done, won, metrics)
        text = self.to_text(reply.observation)
        return Outcome(text, total, done, won, metrics)

    def _told(self, game: Catch, board: list[float], done: bool, won: bool) -> str:
        """Catch's board in our words. The ball keeps its column, so it is known in the last row too."""
        lit = [divmod(cell, COLUMNS) for cell, value in enumerate(board) if value]
        if len(board) != ROWS * COLUMNS or len(lit) != (1 if won else 2):
            raise WorldError(f"kind=catch: no board of {ROWS}x{COLUMNS} with ball and paddle: {board}")
        if not done:
            game.ball, game.paddle = lit[0], lit[1][1]
            return game.board() if self._steps else f"Catch:\n{game.board()}"
        game.ball = ROWS - 1, game.ball[1]
        game.paddle = game.ball[1] if won else sum(column for _, column in lit) - game.ball[1]
        return f"You {'caught' if won else 'missed'} the ball.\n{game.board()}"

    def _checked(self, action: dict[str, Any]) -> dict[str, Any]:
        """Raises ValueError for what is not legal now."""
        chosen = action.get("action_id")
        if not self._legal:
            raise ValueError("the episode is over; nothing was sent")
        if type(chosen) is not int or chosen not in self._legal:
            raise ValueError(f"action_id: one of {self._legal} is needed, got {chosen!r}")
        return action
