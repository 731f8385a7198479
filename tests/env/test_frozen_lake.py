from __future__ import annotations

from random import Random
from typing import Any

import pytest

from envrl.env import ToolCall, policies
from envrl.env.frozen_lake import FrozenLake, random_map
from envrl.env.schema import tool_schemas

LAKE = ["SFF", "HFH", "FFG"]


def on(grid: list[str]) -> FrozenLake:
    lake = FrozenLake()
    lake.reset(grid=grid)
    return lake


@pytest.mark.parametrize(
    ("seed", "grid"),
    [
        (0, ["GFFF", "FFSF", "FFHF", "FFFF"]),
        (1, ["FHFF", "SFFF", "GFHF", "FFFF"]),
        (2, ["HHFF", "HFFF", "GFFS", "FFFH"]),
    ],
)
def test_golden_maps(seed: int, grid: list[str]) -> None:
    assert random_map(size=4, p=0.8, seed=seed) == grid


def test_observations() -> None:
    lake = FrozenLake()
    first = lake.reset(grid=LAKE)
    board = "P F F\nH F H\nF F G"
    assert first == f"FrozenLake 3x3:\n{board}\n\nYou are at row 0, col 0. Output your first move."
    board = "S P F\nH F H\nF F G"
    second = f"You moved right. Now at row 0, col 1 (step 1).\n{board}\nOutput your next move."
    assert lake.move("right") == second


def test_walls_stop() -> None:
    lake = on(LAKE)
    assert "Now at row 0, col 0 (step 1)" in lake.move("up")
    assert "Now at row 0, col 0 (step 2)" in lake.move("left")
    assert not lake.done


def test_the_goal_pays_and_ends() -> None:
    lake = on(LAKE)
    rewards = []
    for direction in ("right", "down", "down"):
        lake.move(direction)  # type: ignore[arg-type]
        rewards.append(lake.reward)
    assert lake.move("right") == "You moved right and reached the goal!\nS F F\nH F H\nF F *"
    assert rewards == [0.0, 0.0, 0.0]
    assert (lake.reward, lake.done, lake.success) == (1.0, True, True)
    assert lake.metrics == {"steps": 4}


def test_a_hole_ends_without_reward() -> None:
    lake = on(LAKE)
    assert lake.success is False
    assert lake.move("down") == "You moved down and fell into a hole. Episode over.\nS F F\nP F H\nF F G"
    assert (lake.reward, lake.done, lake.success) == (0.0, True, False)
    with pytest.raises(ValueError, match="over"):
        lake.move("up")


@pytest.mark.parametrize(
    ("text", "direction"),
    [
        ("<action>up</action>", "up"),
        ("left? <action> UP </action> <action>down</action> right", "up"),
        ("not left, not up: Down!", "down"),
        ("<action>upwards</action> or Right", "right"),
    ],
)
def test_texts_that_name_a_move(text: str, direction: str) -> None:
    assert on(LAKE).parse_action(text) == ToolCall("move", {"direction": direction})


def test_a_text_without_a_move_uses_up_a_step() -> None:
    lake = on(LAKE)
    with pytest.raises(ValueError, match="Invalid response") as raised:
        lake.parse_action("upwards, I think")
    assert str(raised.value) == (
        "Invalid response: could not find a move. "
        "Reply with <action>up|down|left|right</action>.\n\nP F F\nH F H\nF F G"
    )
    assert (lake.reward, lake.done) == (0.0, False)
    assert "(step 2)" in lake.move("right")


def test_gold_takes_a_shortest_path() -> None:
    lake = on(LAKE)
    path = []
    while not lake.done:
        path.append(lake.gold_action().arguments["direction"])
        lake.move(path[-1])
    assert path == ["right", "down", "down", "right"]


def test_noise_of_none_and_all() -> None:
    lake = on(LAKE)
    assert {policies.noisy(0)(lake, Random(i)).arguments["direction"] for i in range(20)} == {"right"}
    assert len({policies.noisy(1)(lake, Random(i)).arguments["direction"] for i in range(40)}) == 4


def test_maps_can_always_be_solved() -> None:
    for seed in range(50):
        FrozenLake(size=2, p=1e-9).reset(seed=seed)
        FrozenLake(size=7, p=0.5).reset(seed=seed)


@pytest.mark.parametrize(
    "grid", [["SF", "F"], ["SF", "FF"], ["SG", "XF"], ["SG", "SF"], ["SH", "HG"], [], "SFFG"]
)
def test_a_row_with_a_bad_grid_is_refused(grid: Any) -> None:
    with pytest.raises(ValueError, match="grid"):
        FrozenLake().reset(grid=grid)


def test_the_schema_names_the_directions() -> None:
    (schema,) = tool_schemas(FrozenLake())
    assert schema["function"]["name"] == "move"
    direction = schema["function"]["parameters"]["properties"]["direction"]
    assert direction["enum"] == ["up", "down", "left", "right"]


def test_a_row_of_ms_swifts_draws_its_board() -> None:
    lake = FrozenLake(size=6)
    lake.reset(seed=9, env_config={"name": "frozen_lake", "seed": 1, "size": 4})
    assert lake.grid == ["FHFF", "SFFF", "GFHF", "FFFF"]
