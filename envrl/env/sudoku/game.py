"""Sudoku as text, with the rules and the feedback of TextArena's Sudoku-v0.

A refused move costs nothing but a warning; the second in a row ends the game. Nothing that stands on the
board can be changed.
"""

from __future__ import annotations

import re
from random import Random
from typing import Annotated, Any, Literal, NoReturn

from pydantic import Field

from envrl.env.base import Environment, Face, ToolCall, tool
from envrl.env.sudoku import scoring as rewards
from envrl.env.sudoku.board import DIGITS, Board, Move, cell_at, where
from envrl.env.sudoku.deduction import Deduction, deduce, hints
from envrl.env.sudoku.puzzle import MOST_EMPTIES, Puzzle, draw, read
from envrl.env.sudoku.scoring import Scoring, Tally

OneToNine = Annotated[int, Field(ge=1, le=9)]

_MOVE = re.compile(r"\[\s*(\d{1,3})\s+(\d{1,3})\s+(\d{1,3})\s*\]")
_NUMBERS = re.compile(r"(?<!\d)(\d{1,3})\D+(\d{1,3})\D+(\d{1,3})(?!\d)")
_WARNING = "Please resubmit a valid move and remember to follow the game rules to avoid penalties."


class Sudoku(Environment):
    """A board with so many `empties` and one solution; reward is the sum of the five rewards.

    `hints` follow every observation. `scoring` chooses the published form of the rewards. `judge` says
    which numbers stand: the solution's alone, as TextArena 0.7 has it, or all that break no rule, after
    which a wrong one makes the board unsolvable.
    """

    def __init__(
        self,
        *,
        empties: Annotated[int, Field(ge=1, le=MOST_EMPTIES)] = 20,
        hints: bool = False,
        scoring: Literal["trl", "swift"] = "trl",
        judge: Literal["rules", "solution"] = "solution",
    ) -> None:
        self.empties = empties
        self.hints = hints
        self.scoring = Scoring(scoring)
        self.judge = judge
        self.board = Board()
        self._puzzle = Puzzle((), ())
        self._tally = Tally(self.scoring)
        self._refused_in_a_row = 0

    def instructions(self, face: Face) -> str:
        """The rules."""
        rules = (
            "Sudoku: fill the empty cells (.) so that every row, column and 3x3 box holds 1 to 9 once. "
            "Filled cells stay as they are; two invalid moves in a row end the game.\n"
        )
        if face is Face.TOOL:
            return rules + "Call place once per turn."
        return rules + "Answer [row col number], for example [2 5 8], once per turn."

    def reset(self, *, seed: int | None = None, board: str | None = None, **row: Any) -> str:
        """Draws the board of the seed, or takes the row's own `board`: 81 characters, `.` or `0` for empty.

        Raises ValueError for a board that does not have exactly one solution.
        """
        seed = Random().randrange(1 << 30) if seed is None else seed
        self._puzzle = draw(seed, self.empties) if board is None else read(str(board))
        self.board = Board(self._puzzle.givens)
        self._tally = Tally(self.scoring)
        self._refused_in_a_row = 0
        self.done, self.success = False, False
        self.metrics = {"invalid_moves": 0}
        self._score()
        return self._shown("Game Board:")

    @tool
    def place(self, row: OneToNine, col: OneToNine, number: OneToNine) -> str:
        """Write a number into an empty cell.

        Args:
            row: Row of the cell, 1 to 9 from the top.
            col: Column of the cell, 1 to 9 from the left.
            number: The number, 1 to 9.
        """
        if self.done:
            raise ValueError("the episode is over")
        move, cell = (row, col, number), cell_at(row, col)
        if self.board.cells[cell]:
            self._refuse(move, f"Invalid move. ({row}, {col}) is a filled cell.")
        if not self._stands(cell, number):
            self._refuse(move, f"Invalid move. {number} at ({row}, {col}) violates Sudoku rules.", empty=True)
        self.board.put(cell, number)
        self._tally.add(move, empty=True, valid=rewards.NEW)
        self._refused_in_a_row = 0
        if self.board.filled == 81:
            self.done, self.success = True, True
            self._score(last=1.0)
            return f"Congratulations, the board is complete.\n{self.board}"
        self._score()
        return self._shown("Board state:")

    def parse_action(self, text: str) -> ToolCall:
        """The first `[row col number]`; with ms-swift's scoring, else the first three numbers anywhere.

        A text without a move is an invalid move, and with ms-swift's scoring the end: -1 in total.
        """
        found = _MOVE.search(text)
        if found is None and self.scoring is Scoring.SWIFT:
            found = _NUMBERS.search(text)
            if found is None:
                self.reward, self.done = -1.0, True
                raise ValueError("Invalid move format: there is no [row col number]. The game is over.")
        if found is None:
            self._refuse(None, "Invalid move format. Answer [row col number].")
        row, col, number = move = int(found[1]), int(found[2]), int(found[3])
        if not all(n in DIGITS for n in move):
            self._refuse(move, f"Invalid move. {number} at ({row}, {col}) is out of bounds.")
        return ToolCall("place", {"row": row, "col": col, "number": number})

    def format_action(self, call: ToolCall) -> str:
        """The bracketed move."""
        return f"[{call.arguments['row']} {call.arguments['col']} {call.arguments['number']}]"

    def gold_action(self) -> ToolCall:
        """The next move that can be deduced."""
        deduced = self._deduction()
        row, col = where(deduced.cell)
        return ToolCall("place", {"row": row, "col": col, "number": deduced.digit})

    def random_action(self, rng: Random) -> ToolCall:
        """Any number anywhere."""
        return ToolCall("place", {name: rng.choice(DIGITS) for name in ("row", "col", "number")})

    def thought(self) -> str:
        """Why the gold move is right."""
        return self._deduction().reason

    def _deduction(self) -> Deduction:
        return deduce(self.board, self._puzzle.solution)

    def _stands(self, cell: int, number: int) -> bool:
        if self.judge == "solution":
            return self._puzzle.solution[cell] == number
        return self.board.allows(cell, number)

    def _refuse(self, move: Move | None, reason: str, *, empty: bool = False) -> NoReturn:
        self._refused_in_a_row += 1
        self.metrics["invalid_moves"] += 1
        self.done = self._refused_in_a_row == 2
        self._tally.add(move, empty=empty, valid=rewards.LOST if self.done else rewards.WARNED)
        self._score(last=self._share_right() if self.done else 0.0)
        news = f"You attempted an invalid move. Reason: {reason} "
        raise ValueError(news + "The game is over." if self.done else self._hinted(news + _WARNING))

    def _score(self, *, last: float = 0.0) -> None:
        """Brings metrics and reward up to date; `last` is what TextArena itself pays for the move."""
        initial = 81 - self._puzzle.givens.count(0)
        five = self._tally.means()
        five["progress"] = rewards.progress(self.board.filled, initial)
        five["correct"] = last
        self.metrics |= {**five, "filled": self.board.filled - initial}
        self.reward = sum(five.values())

    def _share_right(self) -> float:
        """Share of the holes that hold the solution's digit."""
        holes = [cell for cell, digit in enumerate(self._puzzle.givens) if not digit]
        return sum(self.board.cells[cell] == self._puzzle.solution[cell] for cell in holes) / len(holes)

    def _shown(self, title: str) -> str:
        return self._hinted(f"{title}\n{self.board}")

    def _hinted(self, text: str) -> str:
        lines = hints(self.board, self._tally.moves) if self.hints else ""
        return f"{text}\n\n{lines}" if lines else text
