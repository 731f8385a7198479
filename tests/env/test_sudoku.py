from __future__ import annotations

from collections.abc import Iterable
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envrl.env import ToolCall, make
from envrl.env.schema import tool_schemas
from envrl.env.sudoku import Sudoku
from envrl.env.sudoku.board import Board, where
from envrl.env.sudoku.puzzle import draw
from envrl.env.sudoku.scoring import Scoring, repetition
from envrl.errors import ConfigError

FIVE = ("empty_cell", "valid_move", "repetition", "progress", "correct")
LADDER = "".join(str((3 * (row % 3) + row // 3 + col) % 9 + 1) for row in range(9) for col in range(9))
FOUR_HOLES = ".." + LADDER[2:40] + "." + LADDER[41:80] + "."
"""Solved by [1 1 1], [1 2 2], [5 5 9] and [9 9 8]."""


def on(board: str, **args: Any) -> Sudoku:
    sudoku = Sudoku(**args)
    sudoku.reset(board=board)
    return sudoku


def say(sudoku: Sudoku, *moves: str) -> str:
    """Plays texts; returns the last answer."""
    seen = ""
    for move in moves:
        try:
            seen = sudoku.place(**sudoku.parse_action(move).arguments)
        except ValueError as refusal:
            seen = str(refusal)
    return seen


def five(sudoku: Sudoku) -> list[float]:
    return [sudoku.metrics[name] for name in FIVE]


def test_observations() -> None:
    sudoku = Sudoku()
    assert sudoku.reset(board=FOUR_HOLES) == f"Game Board:\n{Board.parse(FOUR_HOLES)}"
    shown = Board.parse("1" + FOUR_HOLES[1:])
    assert sudoku.place(1, 1, 1) == f"Board state:\n{shown}"
    assert str(shown).split("\n")[1] == "R1  1  .  3 |  4  5  6 |  7  8  9"


WARNING = " Please resubmit a valid move and remember to follow the game rules to avoid penalties."
OVER = " The game is over."
REFUSED = "You attempted an invalid move. Reason: "


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("[1 3 1]", "Invalid move. (1, 3) is a filled cell."),
        ("[1 1 2]", "Invalid move. 2 at (1, 1) violates Sudoku rules."),
        ("[0 1 2]", "Invalid move. 2 at (0, 1) is out of bounds."),
        ("[1 1 10]", "Invalid move. 10 at (1, 1) is out of bounds."),
        ("1 1 1", "Invalid move format. Answer [row col number]."),
    ],
)
def test_the_second_refusal_in_a_row_ends_the_game(text: str, reason: str) -> None:
    sudoku = on("1." + LADDER[2:40] + "." + LADDER[41:80] + "." if "[1 1" not in text else FOUR_HOLES)
    before = list(sudoku.board.cells)
    assert say(sudoku, text) == REFUSED + reason + WARNING
    assert (sudoku.done, sudoku.metrics["invalid_moves"]) == (False, 1)
    say(sudoku, "[5 5 9]")
    assert say(sudoku, text) == REFUSED + reason + WARNING
    assert say(sudoku, text) == REFUSED + reason + OVER
    assert (sudoku.done, sudoku.success, sudoku.metrics["invalid_moves"]) == (True, False, 3)
    assert [cell for cell in range(81) if before[cell] != sudoku.board.cells[cell]] == [40]
    with pytest.raises(ValueError, match="episode is over"):
        sudoku.place(9, 9, 8)


def test_the_last_hole_wins() -> None:
    sudoku = on(FOUR_HOLES)
    seen = say(sudoku, "[1 1 1]", "[9 9 8]", "[5 5 9]", "[1 2 2]")
    assert seen == f"Congratulations, the board is complete.\n{Board.parse(LADDER)}"
    assert (sudoku.done, sudoku.success, sudoku.reward) == (True, True, 4.0)
    assert five(sudoku) == [1, 1, 0, 1, 1]
    assert sudoku.metrics["filled"] == 4


def test_a_number_that_breaks_no_rule_stands_unless_the_solution_judges() -> None:
    puzzle = draw(1, 50)
    text, board = "".join(map(str, puzzle.givens)), Board(puzzle.givens)
    cell, wrong = next(
        (cell, digit)
        for cell in board.empty()
        for digit in board.options(cell)
        if digit != puzzle.solution[cell]
    )
    move = "[{} {} {}]".format(*where(cell), wrong)
    lenient, strict = on(text, judge="rules"), on(text)
    assert say(lenient, move).startswith("Board state:")
    assert lenient.metrics["progress"] == 1 / 50
    assert "violates Sudoku rules" in say(strict, move)
    assert strict.metrics["progress"] == 0
    say(lenient, move, move)
    assert (lenient.done, lenient.metrics["correct"]) == (True, 0)


# --- the five rewards -----------------------------------------------------------------------


def test_what_a_repetition_costs() -> None:
    assert [repetition(n, Scoring.TRL) for n in range(7)] == [0, -1, -2, -4, -8, -10, -10]
    assert [repetition(n, Scoring.SWIFT) for n in range(7)] == [0, -2, -4, -8, -10, -10, -10]
    assert repetition(5000, Scoring.SWIFT) == -10


@pytest.mark.parametrize(("scoring", "repeated", "total"), [("trl", -1, 1.5), ("swift", -2, 0.5)])
def test_both_published_forms(scoring: str, repeated: float, total: float) -> None:
    """Seven moves, three of them the first again: -1-2-4 in TRL's form, -2-4-8 in ms-swift's."""
    sudoku = on(FOUR_HOLES, scoring=scoring)
    moves = ["[1 1 1]", "[1 1 1]", "[1 2 2]", "[1 1 1]", "[5 5 9]", "[1 1 1]", "[9 9 8]"]
    say(sudoku, *moves[:6])
    assert five(sudoku)[3:] == [3 / 4, 0]
    say(sudoku, moves[6])
    assert five(sudoku) == pytest.approx([(4 - 3) / 7, (4 - 3 * 0.5) / 7, repeated, 1, 1])
    assert sudoku.reward == pytest.approx(total)


def test_a_game_ended_by_refusals_is_paid_its_share() -> None:
    """As TextArena's own reward: 1 of 21 holes is 0.0476. The refusal that ends it was no warning."""
    puzzle = draw(3, 21)
    sudoku = on("".join(map(str, puzzle.givens)))
    call = sudoku.gold_action()
    sudoku.place(**call.arguments)
    say(sudoku, *[sudoku.format_action(call)] * 2)
    assert sudoku.metrics["correct"] == pytest.approx(0.0476, abs=1e-4)
    assert five(sudoku)[:4] == pytest.approx([(1 - 2) / 3, (1 - 0.5 + 0) / 3, (0 - 1 - 2) / 3, 1 / 21])
    assert sudoku.reward == pytest.approx(sum(five(sudoku)))


def test_before_the_first_move_nothing_is_earned() -> None:
    sudoku = on(FOUR_HOLES)
    assert (five(sudoku), sudoku.reward) == ([0] * 5, 0)


def test_a_text_without_a_move_costs_all_in_ms_swifts_form() -> None:
    sudoku = on(FOUR_HOLES, scoring="swift")
    say(sudoku, "[1 1 1]")
    assert "game is over" in say(sudoku, "I give up")
    assert (sudoku.reward, sudoku.done, sudoku.success) == (-1.0, True, False)


@pytest.mark.parametrize(
    ("text", "scoring", "move"),
    [
        ("[1 2 3]", "trl", (1, 2, 3)),
        ("I think [ 1  2 3 ] or [4 5 6]", "trl", (1, 2, 3)),
        ("R1 [4 5 6]", "swift", (4, 5, 6)),
        ("row 1, column 2: 3", "swift", (1, 2, 3)),
    ],
)
def test_texts_that_name_a_move(text: str, scoring: str, move: Iterable[int]) -> None:
    call = ToolCall("place", dict(zip(("row", "col", "number"), move, strict=True)))
    assert on(FOUR_HOLES, scoring=scoring).parse_action(text) == call


# --- what the model sees --------------------------------------------------------------------


@given(seed=st.integers(0, 2000), hints=st.booleans(), judge=st.sampled_from(["rules", "solution"]))
def test_only_what_is_on_the_board_is_shown(seed: int, hints: bool, judge: Any) -> None:
    """Every board shown is the current one, holes included, however the game goes; gold always has a move."""
    sudoku, rng = Sudoku(empties=30, hints=hints, judge=judge), Random(seed)
    seen = sudoku.reset(seed=seed)
    while not sudoku.done:
        if "R1 " in seen:
            assert seen.split("\n", 1)[1].split("\n\n")[0] == str(sudoku.board)
        assert not hints or "(do not repeat)" in seen or "(only one option)" in seen
        call = sudoku.gold_action()
        if rng.random() < 0.3:
            cell = rng.choice(sudoku.board.empty())
            row, col = where(cell)
            number = rng.choice(sudoku.board.options(cell) or (1,))
            call = ToolCall("place", {"row": row, "col": col, "number": number})
        seen = say(sudoku, sudoku.format_action(call))


def test_hints_follow_observations_and_warnings() -> None:
    sudoku = Sudoku(hints=True)
    assert "\n\nGUARANTEED MOVES (only one option): [1 " in sudoku.reset(board=FOUR_HOLES)
    assert "MOVES ALREADY TRIED (do not repeat): [1 1 1]\n" in say(sudoku, "[1 1 1]")
    assert say(sudoku, "[1 1 1]").startswith(
        f"{REFUSED}Invalid move. (1, 1) is a filled cell.{WARNING}\n\nMOVES"
    )


def test_the_schema_of_place() -> None:
    (schema,) = tool_schemas(Sudoku())
    properties = schema["function"]["parameters"]["properties"]
    assert [properties[name]["type"] for name in ("row", "col", "number")] == ["integer"] * 3


@pytest.mark.parametrize("args", [{"empties": 0}, {"empties": 61}, {"scoring": "verl"}, {"judge": "me"}])
def test_wrong_arguments_are_named(args: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=f"env.sudoku.args: {next(iter(args))}"):
        make("sudoku", **args)


@pytest.mark.parametrize("board", [LADDER, "." * 81, 12, ["1"]])
def test_a_row_with_a_bad_board_is_refused(board: Any) -> None:
    with pytest.raises(ValueError, match="board: "):
        Sudoku().reset(board=board)
