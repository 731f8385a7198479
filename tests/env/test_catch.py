from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envrl.env import ToolCall
from envrl.env.catch import COLUMNS, Catch

SIDES = st.lists(st.sampled_from(["left", "stay", "right"]), min_size=9, max_size=9)


def act(catch: Catch, side: str) -> str:
    return catch.stay() if side == "stay" else catch.move(side)  # type: ignore[arg-type]


def test_the_board_is_ten_rows_of_five() -> None:
    catch = Catch()
    title, *lines = catch.reset(column=4).split("\n")
    assert title == "Catch:"
    assert lines == [". . . . o", *[". . . . ."] * 8, ". . = . ."]
    assert catch.move("right").split("\n") == [". . . . .", ". . . . o", *[". . . . ."] * 7, ". . . = ."]


@given(column=st.integers(0, 4), sides=SIDES)
def test_the_rules(column: int, sides: list[str]) -> None:
    """The ball falls a row a step, the paddle stops at the walls, and the ninth step decides."""
    catch, paddle = Catch(), 2
    catch.reset(column=column)
    for step, side in enumerate(sides, 1):
        assert (catch.done, catch.reward, catch.metrics["score"]) == (False, 0.0, 0)
        act(catch, side)
        paddle = min(4, max(0, paddle + {"left": -1, "stay": 0, "right": 1}[side]))
        assert (catch.ball, catch.paddle) == ((step, column), paddle)
    caught = paddle == column
    assert (catch.done, catch.success, catch.reward) == (True, caught, float(caught))
    assert catch.metrics == {"steps": 9, "score": 1 if caught else -1}


def test_the_end_is_told() -> None:
    catch = Catch()
    catch.reset(column=2)
    for _ in range(8):
        assert "ball" not in catch.stay()
    assert catch.stay().split("\n") == ["You caught the ball.", *[". . . . ."] * 9, ". . = . ."]
    with pytest.raises(ValueError, match="over"):
        catch.stay()
    catch.reset(column=1)
    for _ in range(8):
        catch.stay()
    assert catch.stay().split("\n") == ["You missed the ball.", *[". . . . ."] * 9, ". o = . ."]


def test_seeds_drop_balls_in_every_column() -> None:
    catch, columns = Catch(), set()
    for seed in range(40):
        catch.reset(seed=seed)
        columns.add(catch.ball[1])
    assert columns == set(range(COLUMNS))


def test_both_sides_play_every_column() -> None:
    catch = Catch()
    tasks = catch.tasks(held_out=False)
    assert tasks == catch.tasks(held_out=True)
    assert [task["column"] for task in tasks] == list(range(COLUMNS))


def test_a_row_may_bring_a_grid() -> None:
    catch = Catch()
    grid = [*["....."] * 7, "o....", ".....", "....="]
    first = catch.reset(grid=grid)
    assert first.replace(" ", "").split("\n")[1:] == grid
    assert catch.reset(grid=[" ".join(line) for line in grid]) == first
    catch.move("left")
    catch.move("left")
    assert (catch.done, catch.success) == (True, False)


@pytest.mark.parametrize(
    "grid",
    [
        [],
        [*["....."] * 9, "..=.."],
        ["o....", *["....."] * 9],
        ["o....", *["....."] * 8, "..==."],
        ["o....", *["....."] * 8, "..=..."],
        ["..=..", "o....", *["....."] * 8],
        [*["....."] * 9, "o.=.."],
        ["o...x", *["....."] * 8, "..=.."],
    ],
)
def test_a_bad_grid_is_refused(grid: list[str]) -> None:
    with pytest.raises(ValueError, match="grid: 10 rows of 5"):
        Catch().reset(grid=grid)


def test_a_bad_column_is_refused() -> None:
    with pytest.raises(ValueError, match="column: 0 to 4 is needed, got 5"):
        Catch().reset(column=5)


@pytest.mark.parametrize(
    ("text", "call"),
    [
        ("<action>left</action>", ToolCall("move", {"direction": "left"})),
        ("left? <action> STAY </action> right", ToolCall("stay")),
        ("not left: Right!", ToolCall("move", {"direction": "right"})),
    ],
)
def test_texts_that_name_a_move(text: str, call: ToolCall) -> None:
    assert Catch().parse_action(text) == call


def test_a_text_without_a_move_leaves_the_game_as_it_is() -> None:
    catch = Catch()
    board = catch.reset(column=0).partition("\n")[2]
    with pytest.raises(ValueError, match="Invalid response") as raised:
        catch.parse_action("upwards")
    assert str(raised.value).endswith(board)
    assert catch.metrics == {"steps": 0, "score": 0}


def test_thoughts_lead_to_the_gold_action() -> None:
    catch = Catch()
    catch.reset(column=0)
    assert catch.thought() == "The ball is to the left of the paddle, so I move left."
    assert catch.gold_action() == ToolCall("move", {"direction": "left"})
    catch.reset(column=2)
    assert "I stay" in catch.thought()
    assert catch.gold_action() == ToolCall("stay")
