"""A Sudoku board: its cells, what may still stand in them, and how it looks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

CELLS = range(81)
"""Row by row; rows and columns that people see count from 1."""
DIGITS = range(1, 10)

Move = tuple[int, int, int]
"""Row, column and number, each 1 to 9."""

UNITS_OF: list[tuple[int, int, int]] = [
    (cell // 9, 9 + cell % 9, 18 + cell // 27 * 3 + cell % 9 // 3) for cell in CELLS
]
"""The row, column and box of each cell, numbered 0 to 26."""

_ALL = 0b111111111
_DIGITS_IN = [tuple(digit for digit in DIGITS if mask >> (digit - 1) & 1) for mask in range(_ALL + 1)]
_HEADER = "   " + " ".join(f"C{col}" + "  " * (col % 3 == 0) for col in DIGITS)
_RULE = "   " + "- " * 16


class Board:
    """81 cells, 0 where empty; no digit stands twice in a row, column or box."""

    def __init__(self, cells: Iterable[int] = (0,) * 81) -> None:
        self.cells = [0] * 81
        self._used = [0] * 27
        for cell, digit in enumerate(cells):
            if digit:
                self.put(cell, digit)

    @classmethod
    def parse(cls, text: str) -> Board:
        """The board of 81 characters, row by row; `.` or `0` is empty. Raises ValueError."""
        if len(text) != 81 or set(text) - set(".0123456789"):
            raise ValueError(f"board: 81 characters over 1-9 and . are needed, got {text!r}")
        board = cls()
        for cell, character in enumerate(text.replace(".", "0")):
            digit = int(character)
            if digit and not board.allows(cell, digit):
                row, col = where(cell)
                raise ValueError(f"board: {digit} at row {row}, column {col} breaks the rules in {text!r}")
            if digit:
                board.put(cell, digit)
        return board

    @property
    def filled(self) -> int:
        """How many cells hold a digit."""
        return 81 - self.cells.count(0)

    def empty(self) -> list[int]:
        """The empty cells."""
        return [cell for cell in CELLS if not self.cells[cell]]

    def options(self, cell: int) -> tuple[int, ...]:
        """The digits that are in none of the cell's row, column and box."""
        row, col, box = UNITS_OF[cell]
        return _DIGITS_IN[~(self._used[row] | self._used[col] | self._used[box]) & _ALL]

    def allows(self, cell: int, digit: int) -> bool:
        """Whether the digit breaks no rule in an empty cell."""
        return digit in self.options(cell)

    def put(self, cell: int, digit: int) -> None:
        """Writes a digit that the rules allow into an empty cell."""
        self.cells[cell] = digit
        self._flip(cell, digit)

    def lift(self, cell: int) -> int:
        """Empties a filled cell and returns what stood there."""
        digit = self.cells[cell]
        self.cells[cell] = 0
        self._flip(cell, digit)
        return digit

    def _flip(self, cell: int, digit: int) -> None:
        for unit in UNITS_OF[cell]:
            self._used[unit] ^= 1 << (digit - 1)

    def __str__(self) -> str:
        """TextArena's picture of a board."""
        return "\n".join([_HEADER, *self._lines()])

    def _lines(self) -> Iterator[str]:
        for row in range(9):
            yield f"R{row + 1} {_line(self.cells[9 * row : 9 * row + 9])}"
            if row in (2, 5):
                yield _RULE


def where(cell: int) -> tuple[int, int]:
    """Row and column of a cell, from 1."""
    return cell // 9 + 1, cell % 9 + 1


def cell_at(row: int, col: int) -> int:
    """The cell in this row and column, from 1."""
    return 9 * row + col - 10


def _line(digits: Sequence[int]) -> str:
    thirds = ("".join(f" {digit or '.'} " for digit in digits[start : start + 3]) for start in (0, 3, 6))
    return "| ".join(thirds).rstrip()
