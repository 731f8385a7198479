"""The guides' Sudoku, four by four: ms-swift's scheduler over an OpenEnv server, and TRL's class.

The server is a stand-in with the wrapper's blocking methods; its transcript grows as TextArena's does.
"""

from __future__ import annotations

import re
import time
from collections import Counter
from typing import Any

from envrl.env.compat.swift import OpenEnvScheduler, multi_turns

SOLUTION = ["1234", "3412", "2143", "4321"]
BOARD = ["12.4", "3412", "2.43", "432."]
SYSTEM = "Fill the grid; answer [row col number]."


class Grid:
    """The rules: a cell of the board is filled with the solution's number, or not at all."""

    def __init__(self) -> None:
        self.rows = list(BOARD)

    @property
    def filled(self) -> int:
        return 16 - str(self.rows).count(".")

    def place(self, row: int, col: int, number: int) -> str:
        line = self.rows[row - 1]
        if line[col - 1] != "." or SOLUTION[row - 1][col - 1] != str(number):
            return "Invalid move, please resubmit."
        self.rows[row - 1] = line[: col - 1] + str(number) + line[col:]
        return "\n".join(self.rows)


class Server:
    """What OpenEnvWrapper offers: blocking calls, and observations that repeat all that was said."""

    live = 0

    def __init__(self, env_config: dict[str, Any]) -> None:
        self.delay_s = env_config.get("delay_s", 0.0)
        self.grid = Grid()
        self.said = "\n".join(BOARD)
        Server.live += 1

    def reset(self) -> tuple[Any, Any]:
        return {"messages": [{"content": self.said}]}, None

    def step(self, action: dict[str, Any]) -> tuple[Any, float, bool, Any]:
        time.sleep(self.delay_s)
        self.said += "\n" + self.grid.place(*map(int, re.findall(r"\d", action["message"])))
        solved = self.grid.rows == SOLUTION
        return {"messages": [{"content": self.said}]}, float(solved), solved, None

    def close(self) -> None:
        Server.live -= 1


class SudokuScheduler(OpenEnvScheduler):
    """Five rewards in one total, which every turn writes anew; only what is new is shown to the model."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._seen: dict[str, int] = {}
        self._moves: dict[str, Counter[str]] = {}
        self._scores: dict[str, list[tuple[float, float, float]]] = {}

    def _create_env(self, env_config: dict[str, Any]) -> Any:
        return Server(env_config)

    async def on_trajectory_start(self, requests: list[Any]) -> None:
        for request in requests:
            request.data_dict.setdefault("env_config", {}).setdefault("system_message", SYSTEM)
            self._seen[request.uuid], self._moves[request.uuid] = 0, Counter()
            self._scores[request.uuid] = []
        await super().on_trajectory_start(requests)

    async def on_turn_end(
        self, infer_request: Any, response_choice: Any, current_turn: int
    ) -> dict[str, Any]:
        uuid = infer_request.uuid
        move = self.parse_action(response_choice.message.content)
        if move is None:
            self._total_rewards[uuid] -= 1.0
            infos = {"total_reward": self._total_rewards[uuid], "gym_done": True}
            await self._close_and_remove(uuid)
            return {"done": True, "rollout_infos": infos}
        grid = self._envs[uuid].grid
        row, col, _ = map(int, re.findall(r"\d", move["message"]))
        empty = 1.0 if grid.rows[row - 1][col - 1] == "." else -1.0
        result = await super().on_turn_end(infer_request, response_choice, current_turn)
        again = self._moves[uuid][move["message"]]
        self._moves[uuid][move["message"]] += 1
        valid = float("Invalid" not in str(self._pending_obs[uuid]) and not again)
        self._scores[uuid].append((empty, valid, -min(2.0**again, 10.0) if again else 0.0))
        parts = [sum(part) / current_turn for part in zip(*self._scores[uuid], strict=True)]
        progress = (grid.filled - 13) / 3
        self._total_rewards[uuid] = sum(parts) + progress + self._step_rewards[uuid][-1]
        infos = {"total_reward": self._total_rewards[uuid], "progress_reward": progress}
        return {"done": result["done"], "rollout_infos": result["rollout_infos"] | infos}

    def parse_action(self, text: str) -> dict[str, Any] | None:
        found = re.search(r"\[\s*(\d)\s+(\d)\s+(\d)\s*\]", text)
        return {"message": f"[{found[1]} {found[2]} {found[3]}]"} if found else None

    def format_observation(self, observation: Any) -> str:
        return str(observation["messages"][0]["content"]).splitlines()[-1]


multi_turns["guides_sudoku"] = SudokuScheduler


class SudokuEnv:
    """TRL's form: a tool, and a reward function per column."""

    def __init__(self) -> None:
        self.grid = Grid()
        self.moves: list[tuple[int, int, int]] = []
        self.reward = 0.0

    @property
    def done(self) -> bool:
        return self.grid.rows == SOLUTION

    def reset(self, **row: Any) -> str:
        return "\n".join(BOARD)

    def place(self, row: int, col: int, number: int) -> str:
        """
        Place a number.

        Args:
            row: From 1 to 4.
            col: From 1 to 4.
            number: From 1 to 4.
        """
        self.moves.append((row, col, number))
        answer = self.grid.place(row, col, number)
        self.reward = float(self.done)
        return answer


def reward_progress(environments: list[SudokuEnv], **kwargs: Any) -> list[float]:
    """The share of the empty cells that were filled."""
    return [(environment.grid.filled - 13) / 3 for environment in environments]


def reward_repetition(environments: list[SudokuEnv], **kwargs: Any) -> list[float]:
    """Costs more each time a move is repeated."""
    return [-float(len(e.moves) - len(set(e.moves))) for e in environments]
