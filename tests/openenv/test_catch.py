from __future__ import annotations

import logging

import players
import pytest
from players import Play, says

from envrl.env import ToolCall
from envrl.env.catch import Catch
from envrl.stop import StopReason

FACES = pytest.mark.parametrize("scheduler", ["tool_calling", "gym"])


@FACES
def test_caught(play: Play, scheduler: str) -> None:
    for episode in play("catch", players.catch, f"scheduler={scheduler}", groups=6):
        assert (episode.stop, episode.success, episode.env_reward) == (StopReason.DONE, True, 1.0)
        assert len(episode.turns) == 9
        assert episode.metrics == {"steps": 9.0, "score": 1.0, "server_reward": 1.0}


def test_it_looks_like_our_own_game(play: Play) -> None:
    episodes = play("catch", lambda messages: "<action>left</action>", "scheduler=gym", groups=6)
    assert {episode.success for episode in episodes} == {False, True}
    for episode in episodes:
        told = [m["content"] for m in episode.messages[1:] if m["role"] == "user"]
        game = Catch()
        column = told[0].splitlines()[1].split().index("o")
        ours = [game.reset(column=column)]
        ours += [game.move("left") for _ in episode.turns]
        assert told == ours
        assert (episode.env_reward, episode.success) == (game.reward, game.success)
        assert episode.metrics["score"] == game.metrics["score"]


def test_the_turn_after_the_end_is_never_sent(play: Play) -> None:
    """The server would start a new game."""
    calls = ['<tool_call>\n{"name": "stay", "arguments": {}}\n</tool_call>'] * 11
    (episode,) = play("catch", lambda messages: "\n".join(calls))
    assert episode.stop is StopReason.DONE
    assert (episode.turns[0].calls, episode.turns[0].failures) == (11, 2)
    assert "the episode is over" in episode.messages[-1]["content"]
    assert episode.metrics["steps"] == 9


def test_what_is_not_legal_is_the_models_mistake(play: Play) -> None:
    said = says("7", "-1", '{"action_id": "1"}', "nonsense", '{"action_id": 1}', "1")
    (episode,) = play("openenv", said, "scheduler=gym", turns=6, server="catch")
    assert [turn.failures for turn in episode.turns] == [1, 1, 1, 1, 0, 0]
    assert "one of [0, 1, 2] is needed, got 7" in str(episode.messages)
    assert episode.metrics["steps"] == 2
    assert '"info_state"' in episode.messages[-1]["content"]


def test_the_end_of_an_unknown_game_pays_what_the_server_pays(play: Play) -> None:
    stay = ToolCall("act", {"action": {"action_id": 1}})
    episodes = play("openenv", lambda messages: stay, server="catch", groups=6)
    assert {episode.env_reward for episode in episodes} == {-1.0, 1.0}


def test_a_server_without_seeds_is_told_apart(play: Play, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        play("catch", players.catch)
        assert "ignores seeds" not in caplog.text
        for seed in range(3):  # three resets agree by chance once in 25 times
            play("catch", players.catch, f"seed={seed}", server="catch_unseeded")
        assert "ignores seeds" in caplog.text
