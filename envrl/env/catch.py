"""Catch as text: a ball falls down a board, and the paddle in the last row has to be under it.

The game is OpenSpiel's `catch`: 10 rows, 5 columns, a ball from the first row, a paddle that starts in
the middle, nine steps.
"""

from __future__ import annotations

from random import Random
from typing import Annotated, Any, Literal

from pydantic import Field

from envrl.env.base import Environment, Face, ToolCall, tool
from envrl.env.choice import read_choice, write_choice

ROWS, COLUMNS = 10, 5
BALL, PADDLE, EMPTY = "o", "=", "."
STEP = {"left": -1, "stay": 0, "right": 1}

Column = Annotated[int, Field(ge=0, lt=COLUMNS)]


class Catch(Environment):
    """A seed draws the ball's column. Reward is 1 for a caught ball, else 0; the metric `score` is ±1."""

    def __init__(self) -> None:
        self.ball = (0, 0)
        self.paddle = COLUMNS // 2

    def instructions(self, face: Face) -> str:
        """The rules; short, because the tiny model pays for every token."""
        rules = "The ball o falls one row per turn. Be under it with the paddle = in the last row.\n"
        if face is Face.TOOL:
            return rules + "Call move or stay once per turn."
        return rules + "Answer <action>left</action>, with left, right or stay, once per turn."

    def reset(
        self,
        *,
        seed: int | None = None,
        column: int | None = None,
        grid: list[str] | None = None,
        **row: Any,
    ) -> str:
        """Drops the ball in the seed's column or the row's `column` (0 to 4), or plays on from its `grid`.

        A grid is ten strings of five characters: `o` the ball, `=` the paddle in the last row, `.` empty.
        """
        if grid is not None:
            self.ball, self.paddle = _positions(grid)
        else:
            column = Random(seed).randrange(COLUMNS) if column is None else column
            if column not in range(COLUMNS):
                raise ValueError(f"column: 0 to {COLUMNS - 1} is needed, got {column!r}")
            self.ball, self.paddle = (0, column), COLUMNS // 2
        self.reward, self.done, self.success = 0.0, False, False
        self.metrics = {"steps": 0, "score": 0}
        return f"Catch:\n{self.board()}"

    @tool
    def move(self, direction: Literal["left", "right"]) -> str:
        """Move the paddle one column while the ball falls one row.

        Args:
            direction: Where to go.
        """
        return self._step(STEP[direction])

    @tool
    def stay(self) -> str:
        """Leave the paddle where it is while the ball falls one row."""
        return self._step(0)

    def parse_action(self, text: str) -> ToolCall:
        """The first tagged word, else the last bare one; a text without any leaves the game as it is."""
        word = read_choice(text, tuple(STEP))
        if word is None:
            hint = "Reply with <action>left|right|stay</action>."
            raise ValueError(f"Invalid response: could not find a move. {hint}\n{self.board()}")
        return _call(word)

    def format_action(self, call: ToolCall) -> str:
        """The tagged word."""
        return write_choice(call.arguments.get("direction", "stay"))

    def gold_action(self) -> ToolCall:
        """One step towards the ball's column."""
        return _call(self._towards())

    def random_action(self, rng: Random) -> ToolCall:
        """Any of the three."""
        return _call(rng.choice(list(STEP)))

    def thought(self) -> str:
        """Where the ball is, seen from the paddle."""
        side = self._towards()
        if side == "stay":
            return "The ball is straight above the paddle, so I stay."
        return f"The ball is to the {side} of the paddle, so I move {side}."

    def tasks(self, *, held_out: bool) -> list[dict[str, Any]]:
        """All five columns, on both sides: held-out games are those of training."""
        return [{"column": column} for column in range(COLUMNS)]

    def _towards(self) -> str:
        side = self.ball[1] - self.paddle
        return "stay" if not side else "right" if side > 0 else "left"

    def board(self) -> str:
        """Rows of cells; the paddle hides a ball that it caught."""
        cells = [[EMPTY] * COLUMNS for _ in range(ROWS)]
        cells[self.ball[0]][self.ball[1]] = BALL
        cells[-1][self.paddle] = PADDLE
        return "\n".join(" ".join(row) for row in cells)

    def _step(self, side: int) -> str:
        if self.done:
            raise ValueError("the episode is over")
        self.paddle = max(0, min(COLUMNS - 1, self.paddle + side))
        self.ball = self.ball[0] + 1, self.ball[1]
        self.metrics["steps"] += 1
        if self.ball[0] < ROWS - 1:
            return self.board()
        self.done, self.success = True, self.ball[1] == self.paddle
        self.reward = float(self.success)
        self.metrics["score"] = 1 if self.success else -1
        return f"You {'caught' if self.success else 'missed'} the ball.\n{self.board()}"


def _call(word: str) -> ToolCall:
    return ToolCall("stay") if word == "stay" else ToolCall("move", {"direction": word})


def _positions(grid: list[str]) -> tuple[tuple[int, int], int]:
    """The ball's row and column, and the paddle's column."""
    lines = [line.replace(" ", "") for line in grid]
    marks = sorted("".join(lines).replace(EMPTY, ""))
    sound = marks == [PADDLE, BALL] and PADDLE in lines[-1] and BALL not in lines[-1]
    if not sound or [len(line) for line in lines] != [COLUMNS] * ROWS:
        raise ValueError(
            f"grid: {ROWS} rows of {COLUMNS} over ., one {BALL} above the last row "
            f"and one {PADDLE} in it are needed, got {grid}"
        )
    row = next(row for row, line in enumerate(lines) if BALL in line)
    return (row, lines[row].index(BALL)), lines[-1].index(PADDLE)
