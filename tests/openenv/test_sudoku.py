from __future__ import annotations

import re

import players
import pytest
from players import Play

from envrl.env.sudoku.board import Board
from envrl.stop import StopReason

FACES = pytest.mark.parametrize("scheduler", ["tool_calling", "gym"])


@FACES
@pytest.mark.parametrize("server", ["sudoku", "sudoku_train"])
def test_solved(play: Play, scheduler: str, server: str) -> None:
    (episode,) = play("sudoku", players.sudoku, f"scheduler={scheduler}", server=server)
    assert (episode.stop, episode.success) == (StopReason.DONE, True)
    five = ("empty_cell", "valid_move", "repetition", "progress", "correct")
    assert [episode.metrics[name] for name in five] == [1.0, 1.0, 0.0, 1.0, 1.0]
    assert episode.env_reward == pytest.approx(4.0)
    assert episode.metrics["filled"] == len(episode.turns)
    assert episode.metrics["server_reward"] == 1.0


@pytest.mark.parametrize("server", ["sudoku", "sudoku_train"])
def test_the_board_is_shown_as_our_own_game_shows_it(play: Play, server: str) -> None:
    (episode,) = play("sudoku", players.sudoku, "scheduler=gym", turns=1, server=server)
    first, after = episode.messages[1]["content"], episode.messages[-1]["content"]
    cells = "".join(re.findall(r"[1-9.]", "".join(re.findall(r"^R[1-9] (.*)$", first, re.MULTILINE))))
    assert first == f"Game Board:\n{Board.parse(cells)}"
    assert after.startswith("Board state: \n   C1 C2 C3")
    assert after.count("\n") == 12


def test_two_invalid_moves_end_it(play: Play) -> None:
    (episode,) = play("sudoku", lambda messages: "[1 1 0]", "scheduler=gym")
    assert (episode.stop, episode.success) == (StopReason.DONE, False)
    assert (episode.metrics["invalid_moves"], episode.metrics["ended_by_invalid"]) == (2, 1)
    assert [turn.failures for turn in episode.turns] == [1, 1]
    assert "out of bounds" in episode.messages[-3]["content"]
    assert episode.metrics["valid_move"] == pytest.approx(-0.25)


def test_hints_follow_the_servers_board(play: Play) -> None:
    (episode,) = play("sudoku", players.sudoku, "env.sudoku.args.hints=true", turns=3)
    assert "GUARANTEED MOVES" in episode.messages[0]["content"]
    assert "MOVES ALREADY TRIED" in episode.messages[-1]["content"]


def test_members_of_a_group_get_the_same_board(play: Play) -> None:
    episodes = play("sudoku", players.sudoku, turns=1, groups=2, members=2)
    boards = [episode.messages[0]["content"] for episode in episodes]
    assert boards[0] == boards[1] != boards[2] == boards[3]
