from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envrl.env.sudoku.board import Board, cell_at, where
from envrl.env.sudoku.deduction import deduce, hints
from envrl.env.sudoku.puzzle import MOST_EMPTIES, draw, read

PEERS = [
    {
        other
        for other in range(81)
        if other != cell
        and (
            other // 9 == cell // 9
            or other % 9 == cell % 9
            or (other // 27, other % 9 // 3) == (cell // 27, cell % 9 // 3)
        )
    }
    for cell in range(81)
]
LADDER = "".join(str((3 * (row % 3) + row // 3 + col) % 9 + 1) for row in range(9) for col in range(9))
"""A full board: 123456789 456789123 789123456 234567891 …"""
HOLES = [(1, 1), (1, 2), (4, 1), (4, 9), (9, 9)]
ONES = "." * 9 + "...1....." + "......1.." + ".1......." + "." * 18 + "..1......" + "." * 18
"""They leave a 1 only one place in row 1, while every cell has several options."""


def count(cells: list[int], limit: int) -> int:
    """How many ways there are to fill the board, by trying everything in reading order."""
    if 0 not in cells:
        return 1
    cell, found = cells.index(0), 0
    for digit in set(range(1, 10)) - {cells[peer] for peer in PEERS[cell]}:
        found += count([*cells[:cell], digit, *cells[cell + 1 :]], limit - found)
        if found >= limit:
            break
    return found


@given(seed=st.integers(0, 2**31), empties=st.integers(1, 45))
def test_a_drawn_board_has_one_solution_and_so_many_holes(seed: int, empties: int) -> None:
    puzzle = draw(seed, empties)
    assert puzzle.givens.count(0) == empties
    assert all(given in (0, right) for given, right in zip(puzzle.givens, puzzle.solution, strict=True))
    assert all(puzzle.solution[cell] != puzzle.solution[peer] for cell in range(81) for peer in PEERS[cell])
    assert count(list(puzzle.givens), 2) == 1


def test_the_sparsest_boards() -> None:
    puzzle = draw(5, 58)
    assert puzzle.givens.count(0) == 58
    assert read("".join(map(str, puzzle.givens))) == puzzle
    assert MOST_EMPTIES == 60


def test_a_seed_is_a_board() -> None:
    boards = {draw(seed, 20).givens for seed in range(50)}
    assert len(boards) == 50
    draw.cache_clear()
    assert {draw(seed, 20).givens for seed in range(50)} == boards


def test_a_board_looks_as_in_textarena() -> None:
    text = "429763815367500040" + "." * 63
    lines = str(Board.parse(text)).split("\n")
    assert lines[0] == "   C1 C2 C3   C4 C5 C6   C7 C8 C9  "
    assert lines[1] == "R1  4  2  9 |  7  6  3 |  8  1  5"
    assert lines[2] == "R2  3  6  7 |  5  .  . |  .  4  ."
    assert lines[4] == lines[8] == "   - - - - - - - - - - - - - - - - "
    assert len(lines) == 12


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "81 characters over 1-9"),
        (LADDER[:-1], "81 characters over 1-9"),
        (LADDER[:-1] + "x", "81 characters over 1-9"),
        (LADDER, "no cell is empty"),
        ("." * 81, "17 givens or more, got 0"),
        (LADDER[:27] + "." * 54, "one solution is needed, several fit"),
        ("11" + LADDER[2:], "1 at row 1, column 2 breaks the rules"),
        ("12345678." + "." * 8 + "9" + "." * 54 + "21436587.", "one solution is needed, none fit"),
        (
            ".....5.8....6.1.43..........1.5........1.6...3.......553.....61........4.........",
            "too hard to tell",
        ),
    ],
)
def test_a_bad_board_is_refused(text: str, reason: str) -> None:
    with pytest.raises(ValueError, match=f"board: .*{reason}"):
        read(text)


def test_rows_and_columns_count_from_one() -> None:
    assert [where(cell) for cell in (0, 8, 9, 80)] == [(1, 1), (1, 9), (2, 1), (9, 9)]
    assert all(cell_at(*where(cell)) == cell for cell in range(81))


@given(seed=st.integers(0, 1000))
def test_what_is_deduced_is_right(seed: int) -> None:
    puzzle = draw(seed, 45)
    board = Board(puzzle.givens)
    while board.filled < 81:
        deduced = deduce(board, puzzle.solution)
        assert puzzle.solution[deduced.cell] == deduced.digit
        board.put(deduced.cell, deduced.digit)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("." + LADDER[1:], "Row 1, column 1: only 1 is in none of its row, column and box."),
        (ONES, "Row 1, column 1: 1 fits nowhere else in its row."),
        ("." * 81, "Row 1, column 1 is 1, 2, 3, 4, 5, 6, 7, 8 or 9; I try 1."),
    ],
)
def test_reasons(text: str, reason: str) -> None:
    deduced = deduce(Board.parse(text), [int(digit) for digit in LADDER])
    assert (deduced.cell, deduced.digit, deduced.reason) == (0, 1, reason)


def test_hints() -> None:
    board = Board(0 if where(cell) in HOLES else int(digit) for cell, digit in enumerate(LADDER))
    lines = [
        "GUARANTEED MOVES (only one option): [1 2 2], [4 1 2], [4 9 1], [9 9 8]",
        "Other options: (1,1)->1,2",
    ]
    assert hints(board, []).split("\n") == lines
    tried = [(1, 1, number) for number in (7, 8, 9, 1, 2, 3, 4, 5, 6, 7, 8)]
    shown = "[1 1 8], [1 1 9], [1 1 1], [1 1 2], [1 1 3], [1 1 4], [1 1 5], [1 1 6], [1 1 7], [1 1 8]"
    assert hints(board, tried).split("\n") == [f"MOVES ALREADY TRIED (do not repeat): {shown}", *lines]


def test_hints_are_few() -> None:
    sure, other = hints(Board(draw(1, 40).givens), []).split("\n")[0], hints(Board(draw(1, 54).givens), [])
    assert sure.count("[") == 5
    assert other.split("Other options: ")[1].count("->") == 5
    assert hints(Board(), []) == ""
