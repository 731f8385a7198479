"""FrozenLake as text: walk from S to G over ice, around the holes; nothing slips.

Maps, observations, rewards and endings are those of ms-swift's FrozenLake plugin, so its seeds give
the same boards here.
"""

from __future__ import annotations

from collections import deque
from random import Random
from typing import Annotated, Any, Literal

from pydantic import Field

from envrl.env.base import Environment, Face, ToolCall, tool
from envrl.env.choice import read_choice, write_choice

Cell = tuple[int, int]

MOVES: dict[str, Cell] = {"up": (-1, 0), "down": (1, 0), "left": (0, -1), "right": (0, 1)}
"""Row and column steps; among equally short paths the solver takes the first."""


class FrozenLake(Environment):
    """A size x size board on which a cell is ice with chance p; a seed draws board, start and goal."""

    def __init__(
        self, *, size: Annotated[int, Field(ge=2)] = 4, p: Annotated[float, Field(gt=0, le=1)] = 0.8
    ) -> None:
        self.size = size
        self.p = p
        self.grid: list[str] = []
        self.position: Cell = (0, 0)
        self._distances: dict[Cell, int] = {}

    def instructions(self, face: Face) -> str:
        """The rules; short, because the tiny model pays for every token."""
        rules = "P is you, S start, G goal, H hole, F ice. Reach G and avoid every H; walls stop you.\n"
        if face is Face.TOOL:
            return rules + "Call move once per turn."
        return rules + "Answer <action>up</action>, with up, down, left or right, once per turn."

    def reset(
        self,
        *,
        seed: int | None = None,
        grid: list[str] | None = None,
        env_config: dict[str, Any] | None = None,
        **row: Any,
    ) -> str:
        """Draws the board of the seed, or takes the row's own `grid` (one string per board row).

        `env_config` is a row of ms-swift's: its seed, size and p draw the board.
        """
        drawn: dict[str, Any] = {"size": self.size, "p": self.p, "seed": seed}
        drawn |= {name: value for name, value in (env_config or {}).items() if name in drawn}
        if isinstance(grid, str):
            raise ValueError(f"grid: a list of rows is needed, got {grid!r}")
        self.grid = random_map(**drawn) if grid is None else list(grid)
        self._distances = _distances(self.grid)
        self.position = _only(self.grid, "S")
        if self.position not in self._distances:
            raise ValueError(f"grid: no way from S to G in {self.grid}")
        self.reward, self.done, self.success = 0.0, False, False
        self.metrics = {"steps": 0}
        r, c = self.position
        head = f"FrozenLake {len(self.grid)}x{len(self.grid[0])}:\n{self._board()}\n\n"
        return head + f"You are at row {r}, col {c}. Output your first move."

    @tool
    def move(self, direction: Literal["up", "down", "left", "right"]) -> str:
        """Move one cell.

        Args:
            direction: Where to go.
        """
        if self.done:
            raise ValueError("the episode is over")
        self.metrics["steps"] += 1
        self.position = self._neighbour(self.position, direction)
        r, c = self.position
        cell = self.grid[r][c]
        if cell == "G":
            self.reward, self.done, self.success = 1.0, True, True
            return f"You moved {direction} and reached the goal!\n{self._board()}"
        if cell == "H":
            self.done = True
            return f"You moved {direction} and fell into a hole. Episode over.\n{self._board()}"
        step = int(self.metrics["steps"])
        news = f"You moved {direction}. Now at row {r}, col {c} (step {step}).\n"
        return news + f"{self._board()}\nOutput your next move."

    def parse_action(self, text: str) -> ToolCall:
        """The first tagged direction, else the last bare one; a text without any costs a step."""
        direction = read_choice(text, tuple(MOVES))
        if direction is None:
            self.metrics["steps"] += 1
            hint = "Reply with <action>up|down|left|right</action>."
            raise ValueError(f"Invalid response: could not find a move. {hint}\n\n{self._board()}")
        return ToolCall("move", {"direction": direction})

    def format_action(self, call: ToolCall) -> str:
        """The tagged direction."""
        return write_choice(call.arguments["direction"])

    def gold_action(self) -> ToolCall:
        """One step of a shortest path."""
        return ToolCall("move", {"direction": min(MOVES, key=self._remaining)})

    def random_action(self, rng: Random) -> ToolCall:
        """Any direction."""
        return ToolCall("move", {"direction": rng.choice(list(MOVES))})

    def _remaining(self, direction: str) -> float:
        """Steps to the goal after a move; infinite through a hole."""
        return self._distances.get(self._neighbour(self.position, direction), float("inf"))

    def _neighbour(self, cell: Cell, direction: str) -> Cell:
        dr, dc = MOVES[direction]
        return (
            max(0, min(len(self.grid) - 1, cell[0] + dr)),
            max(0, min(len(self.grid[0]) - 1, cell[1] + dc)),
        )

    def _board(self) -> str:
        """The grid with P on the player's cell; `*` where that is the goal."""
        rows = [list(line) for line in self.grid]
        r, c = self.position
        rows[r][c] = "*" if rows[r][c] == "G" else "P"
        return "\n".join(" ".join(row) for row in rows)


def random_map(*, size: int, p: float, seed: int | None) -> list[str]:
    """The board of a seed: drawn until the goal can be reached.

    However small p is, S and G are sooner or later drawn side by side, so this ends.
    """
    assert size >= 2
    rng = Random(seed)
    while True:
        cells = [["F" if rng.random() < p else "H" for _ in range(size)] for _ in range(size)]
        start = rng.randrange(size), rng.randrange(size)
        goal = rng.randrange(size), rng.randrange(size)
        if start == goal:
            continue
        cells[start[0]][start[1]] = "S"
        cells[goal[0]][goal[1]] = "G"
        if start in _distances(grid := ["".join(row) for row in cells]):
            return grid


def _distances(grid: list[str]) -> dict[Cell, int]:
    """Steps to the goal from every cell that can reach it; a breadth-first walk from the goal."""
    goal = _only(grid, "G")
    distances = {goal: 0}
    queue = deque([goal])
    while queue:
        r, c = cell = queue.popleft()
        for dr, dc in MOVES.values():
            near = r + dr, c + dc
            inside = 0 <= near[0] < len(grid) and 0 <= near[1] < len(grid[0])
            if inside and near not in distances and grid[near[0]][near[1]] != "H":
                distances[near] = distances[cell] + 1
                queue.append(near)
    return distances


def _only(grid: list[str], mark: str) -> Cell:
    """The cell of a mark that a well-formed grid holds once."""
    if len({len(line) for line in grid}) != 1 or set("".join(grid)) - set("SFHG"):
        raise ValueError(f"grid: rows of equal length over S, F, H, G are needed, got {grid}")
    cells = [(r, line.index(mark)) for r, line in enumerate(grid) if mark in line]
    if "".join(grid).count(mark) != 1:
        raise ValueError(f"grid: exactly one {mark} is needed, got {grid}")
    return cells[0]
