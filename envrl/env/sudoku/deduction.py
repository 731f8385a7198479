"""What a player can tell from a board: the next move with its reason, and the hints shown to a model."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from envrl.env.sudoku.board import DIGITS, UNITS_OF, Board, Move, where

TRIED, LOOKED_AT, SHOWN, FEW = 10, 10, 5, 3


@dataclass(frozen=True)
class Deduction:
    """A move and the sentence that leads to it."""

    cell: int
    digit: int
    reason: str


def deduce(board: Board, solution: Sequence[int]) -> Deduction:
    """The next move: a cell with one option, else a digit with one place in a unit, else the right digit.

    On a board that an earlier wrong move has spoilt it is any move that still stands.
    """
    open_cells = [cell for cell in board.empty() if board.options(cell)]
    if not open_cells:
        cell = board.empty()[0]
        return Deduction(cell, solution[cell], "No number fits anywhere.")
    cell = min(open_cells, key=lambda cell: len(board.options(cell)))
    options, (row, col) = board.options(cell), where(cell)
    if len(options) == 1:
        reason = f"Row {row}, column {col}: only {options[0]} is in none of its row, column and box."
        return Deduction(cell, options[0], reason)
    if found := next(_hidden(board, open_cells), None):
        return found
    digit = solution[cell] if solution[cell] in options else options[0]
    return Deduction(cell, digit, f"Row {row}, column {col} is {_or(options)}; I try {digit}.")


def _hidden(board: Board, open_cells: Sequence[int]) -> Iterator[Deduction]:
    """Digits that fit only one cell of a row, column or box."""
    for unit in range(27):
        cells = [cell for cell in open_cells if unit in UNITS_OF[cell]]
        for digit in DIGITS:
            places = [cell for cell in cells if digit in board.options(cell)]
            if len(places) == 1:
                row, col = where(places[0])
                kind = ("row", "column", "box")[unit // 9]
                reason = f"Row {row}, column {col}: {digit} fits nowhere else in its {kind}."
                yield Deduction(places[0], digit, reason)


def hints(board: Board, tried: Sequence[Move]) -> str:
    """Moves already tried (the last 10), cells with one option, and cells with two or three.

    Cells are sought among the 10 with the fewest options, as ms-swift's Sudoku does.
    """
    lines = []
    if tried:
        lines.append(f"MOVES ALREADY TRIED (do not repeat): {_moves(tried[-TRIED:])}")
    cells = sorted(board.empty(), key=lambda cell: len(board.options(cell)))[:LOOKED_AT]
    sure = [(*where(cell), *board.options(cell)) for cell in cells if len(board.options(cell)) == 1]
    if sure:
        lines.append(f"GUARANTEED MOVES (only one option): {_moves(sure[:SHOWN])}")
    few = [cell for cell in cells if 1 < len(board.options(cell)) <= FEW]
    if few:
        lines.append("Other options: " + " | ".join(_options(board, cell) for cell in few[:SHOWN]))
    return "\n".join(lines)


def _options(board: Board, cell: int) -> str:
    row, col = where(cell)
    return f"({row},{col})->{','.join(map(str, board.options(cell)))}"


def _moves(moves: Sequence[tuple[int, ...]]) -> str:
    return ", ".join(f"[{' '.join(map(str, move))}]" for move in moves)


def _or(options: Sequence[int]) -> str:
    return f"{', '.join(map(str, options[:-1]))} or {options[-1]}"
