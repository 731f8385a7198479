"""The five rewards of Sudoku, in the two forms that were published.

TRL's guide has five columns, ms-swift's one total, which is their sum; they differ in what a repeated
move costs.
"""

from __future__ import annotations

from collections import Counter
from enum import StrEnum
from statistics import fmean

from envrl.env.sudoku.board import Move

NEW, WARNED, LOST = 1.0, -0.5, 0.0
"""valid_move of a move that stands, of one that is refused with a warning, and of one that ends the game."""


class Scoring(StrEnum):
    """Whose form of the rewards."""

    TRL = "trl"
    SWIFT = "swift"


def repetition(earlier: int, scoring: Scoring) -> float:
    """Of a move made n times `earlier`: -2^(n-1) in TRL's form, -2^n in ms-swift's, and no less than -10."""
    if not earlier:
        return 0.0
    exponent = earlier - 1 if scoring is Scoring.TRL else earlier
    return -min(2.0 ** min(exponent, 4), 10.0)


def progress(filled: int, initial: int) -> float:
    """Share of the holes that are filled."""
    return (filled - initial) / (81 - initial)


class Tally:
    """The moves of one game; three rewards are means over them."""

    def __init__(self, scoring: Scoring) -> None:
        self.moves: list[Move] = []
        """Those that named a cell and a number, in order."""
        self._scoring = scoring
        self._times: Counter[Move] = Counter()
        self._columns: dict[str, list[float]] = {"empty_cell": [], "valid_move": [], "repetition": []}

    def add(self, move: Move | None, *, empty: bool, valid: float) -> None:
        """Counts a move (None: unreadable), whether its cell was empty, and one of NEW, WARNED and LOST."""
        earlier = 0
        if move is not None:
            self.moves.append(move)
            earlier = self._times[move]
            self._times[move] += 1
        scores = (1.0 if empty else -1.0, valid, repetition(earlier, self._scoring))
        for column, score in zip(self._columns.values(), scores, strict=True):
            column.append(score)

    def means(self) -> dict[str, float]:
        """empty_cell, valid_move and repetition; 0 before the first move."""
        return {name: fmean(column) if column else 0.0 for name, column in self._columns.items()}
