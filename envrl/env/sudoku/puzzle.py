"""Boards with exactly one solution: drawn from a seed, or read from a dataset row."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import count, islice
from random import Random

from envrl.env.sudoku.board import CELLS, Board

MOST_EMPTIES = 60
"""A board of 20 empty cells is drawn in 1 ms, one of 57 in about 30 ms, one of 60 in seconds."""
FEWEST_GIVENS = 17
"""Boards with fewer never have one solution alone (McGuire, Tugemann and Civario 2012)."""
PATIENCE = 100_000
"""Cells that may be tried on a dataset's board, a second's work; published puzzles take a hundredth of it."""
_REFILLED = 6  # digits put back after a dead end; fewer stay in it, more lose what was dug


@dataclass(frozen=True)
class Puzzle:
    """A board and its only solution, 81 digits each; 0 is an empty cell."""

    givens: tuple[int, ...]
    solution: tuple[int, ...]


@lru_cache(maxsize=1024)  # the members of a group play the same board
def draw(seed: int, empties: int) -> Puzzle:
    """The board of a seed with exactly this many empty cells."""
    assert 1 <= empties <= MOST_EMPTIES
    rng = Random(seed)
    solution = next(solutions(Board(), rng))
    best = Board(solution)
    while True:
        board = Board(best.cells)
        for cell in rng.sample(holes := board.empty(), min(_REFILLED, len(holes))):
            board.put(cell, solution[cell])
        _dig(board, empties, rng)
        if 81 - board.filled == empties:
            return Puzzle(tuple(board.cells), solution)
        if board.filled <= best.filled:
            best = board


@lru_cache(maxsize=1024)
def read(text: str) -> Puzzle:
    """The puzzle of an 81-character board. Raises ValueError unless it has holes and one way to fill them."""
    board = Board.parse(text)
    if board.filled == 81:
        raise ValueError(f"board: no cell is empty in {text!r}")
    if board.filled < FEWEST_GIVENS:
        raise ValueError(
            f"board: one solution takes {FEWEST_GIVENS} givens or more, got {board.filled} in {text!r}"
        )
    tries = iter(range(PATIENCE))
    found = list(islice(solutions(Board(board.cells), tries=tries), 2))
    if next(tries, None) is None:
        raise ValueError(f"board: too hard to tell whether it has one solution: {text!r}")
    if len(found) != 1:
        raise ValueError(f"board: one solution is needed, {'several' if found else 'none'} fit {text!r}")
    return Puzzle(tuple(board.cells), found[0])


def solutions(
    board: Board, rng: Random | None = None, *, tries: Iterator[int] | None = None
) -> Iterator[tuple[int, ...]]:
    """All ways to fill the board, which is worked on in place; an rng shuffles the order of digits.

    Each cell that is tried takes one of `tries`, and the search ends with them.
    """
    return _filled(board, board.empty(), rng, tries or count())


def _filled(
    board: Board, empty: list[int], rng: Random | None, tries: Iterator[int]
) -> Iterator[tuple[int, ...]]:
    if not empty:
        yield tuple(board.cells)
        return
    if next(tries, None) is None:
        return
    cell = min(empty, key=lambda cell: len(board.options(cell)))
    rest = [other for other in empty if other != cell]
    options = list(board.options(cell))
    if rng is not None:
        rng.shuffle(options)
    for digit in options:
        board.put(cell, digit)
        yield from _filled(board, rest, rng, tries)
        board.lift(cell)


def _dig(board: Board, empties: int, rng: Random) -> None:
    """Empties cells in random order, each if the solution stays the only one, down to so many holes."""
    cells = [cell for cell in CELLS if board.cells[cell]]
    rng.shuffle(cells)
    for cell in cells:
        if 81 - board.filled == empties:
            return
        digit = board.lift(cell)
        if any(_solvable(board, cell, other) for other in board.options(cell) if other != digit):
            board.put(cell, digit)


def _solvable(board: Board, cell: int, digit: int) -> bool:
    trial = Board(board.cells)
    trial.put(cell, digit)
    return next(solutions(trial), None) is not None
