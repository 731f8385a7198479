"""The guides' FrozenLake: an ms-swift Env, which seeds boards as ours does, and a class for TRL."""

from __future__ import annotations

import re
from typing import Any, Literal

from envrl.env.compat.swift import Env, Messages, RolloutInferRequest, envs, get_logger
from envrl.env.frozen_lake import MOVES, FrozenLake

logger = get_logger()

SYSTEM = "P is you, S start, G goal, H hole, F ice. Answer <action>up</action>, or another direction."
HINT = "Reply with <action>up|down|left|right</action>."


class FrozenLakeEnv(Env):
    """One move per turn: 1 for the goal, 0 for a hole; no limit of its own."""

    live = 0

    def __init__(self, env_config: dict[str, Any]) -> None:
        super().__init__(env_config)
        self.size = int(env_config.get("size", 4))
        self.seed = env_config.get("seed")
        self.board = FrozenLake(size=self.size)
        self.steps = 0
        FrozenLakeEnv.live += 1

    async def reset(self, config: RolloutInferRequest) -> tuple[str, dict[str, Any], str]:
        return self.board.reset(seed=self.seed), {"size": self.size}, SYSTEM

    async def step(self, action: Messages) -> tuple[str, float, bool, dict[str, Any]]:
        self.steps += 1
        move = read_move(action[-1]["content"])
        info = {"step": self.steps, "parsed_action": move}
        if move is None:
            self.board.metrics["steps"] += 1
            shown = self.board._board()
            observation = f"Invalid response: could not find a move. {HINT}\n\n{shown}"
            return observation, 0.0, False, {**info, "status": "invalid_action"}
        observation = self.board.move(move)
        status = "ok" if not self.board.done else "goal" if self.board.success else "hole"
        reward = 1.0 if status == "goal" else 0.0
        return observation, reward, self.board.done, {**info, "status": status}

    async def close(self) -> None:
        FrozenLakeEnv.live -= 1


def read_move(text: str) -> str | None:
    """The first tagged direction, else the last word that is one."""
    tagged = re.search(rf"<action>\s*({'|'.join(MOVES)})\s*</action>", text, re.IGNORECASE)
    words = [tagged.group(1)] if tagged else re.findall(rf"\b({'|'.join(MOVES)})\b", text, re.IGNORECASE)
    return words[-1].lower() if words else None


class TrlLake:
    """The same game with a tool, whose reward is asked for at the end."""

    def __init__(self, size: int = 4) -> None:
        self.board = FrozenLake(size=size)
        self.asked = 0

    @property
    def done(self) -> bool:
        return self.board.done

    def reset(self, seed: int | None = None, **row: Any) -> str:
        return self.board.reset(seed=seed)

    def move(self, direction: Literal["up", "down", "left", "right"]) -> str:
        """
        Move one cell.

        Args:
            direction: Where to go.
        """
        return self.board.move(direction)

    async def get_reward(self) -> float:
        self.asked += 1
        return float(self.board.success or 0.0)


envs["guides_lake"] = FrozenLakeEnv
logger.info("registered guides_lake")
