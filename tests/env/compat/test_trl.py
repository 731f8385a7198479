"""Classes as TRL calls for, and their reward functions, unchanged."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from games import call as guess  # type: ignore[import-not-found]
from wordle_classes import WordleEnv  # type: ignore[import-not-found]

from envrl import compose
from envrl.env import build
from envrl.env.base import ToolCall
from envrl.env.schema import tool_schemas
from envrl.errors import ConfigError
from envrl.model.tool_calls import format_tool_call
from envrl.spec import EnvSpec
from envrl.stop import StopReason

WORDLE = "env.custom.target=wordle_classes:WordleEnv"
TERMS = [f"wordle_classes:reward_{name}" for name in ("win", "partial", "invalid")]
REWARDS = f"reward.terms=[{','.join(TERMS)}]"
CUSTOM = ["env=custom", "model.warm_start=null", "stages=[train]"]


def target(name: str) -> str:
    return f"env.custom.target=trl_classes:{name}"


def made(name: str, **args: Any) -> Any:
    return build("custom", EnvSpec(kind="custom", target=f"trl_classes:{name}", args=args))


def call(name: str, **arguments: Any) -> str:
    return format_tool_call(ToolCall(name, arguments))


def answers(episode: Any) -> list[str]:
    return [message["content"] for message in episode.messages if message["role"] == "tool"]


def test_a_game_and_its_three_rewards(play: Any, dataset: Any) -> None:
    rows = dataset({"prompt": "Guess my word.", "secret": "crane"})
    scripts = [["crate", "crane"], ["slate", "slime"], ["four", "slate", "crane"]]

    def replies(episode: str, turn: int) -> str:
        words = scripts[int(episode.split("/")[2])]
        return guess(words[turn]) if turn < len(words) else "I give up."

    won, lost, careless = play(replies, WORDLE, REWARDS, rows, members=3)
    assert won.messages[0] == {"role": "user", "content": "Guess my word.\n\nYou have six guesses."}
    assert answers(won) == ["GGGXG", "GGGGG"]
    assert answers(careless)[0] == "Error: 'four' has not five letters"
    assert [won.stop, lost.stop] == [StopReason.DONE, StopReason.NO_TOOL_CALL]
    assert [won.success, lost.success] == [True, False]
    assert list(won.rewards.values()) == [1.0 + 0.5 * (1 - 2 / 6), 0.0, None]
    assert list(lost.rewards.values()) == [0.0, 0.2, None]
    assert list(careless.rewards.values()) == [1.0 + 0.5 * (1 - 2 / 6), 0.0, -0.1]


def test_each_episode_has_an_object_of_its_own_which_is_closed(play: Any) -> None:
    episodes = play([guess("crane"), "Enough."], WORDLE, REWARDS, members=4)
    games = [episode.host.environment.unwrapped for episode in episodes]
    assert len({id(game) for game in games}) == 4
    assert all(isinstance(game, WordleEnv) and game.closed == 1 for game in games)
    assert len({game.secret for game in games}) == 1, "the members of a group share its seed"


def test_rewards_that_look_at_environments_need_them_here() -> None:
    refused = (
        r"reward.terms: .* looks at environments, which server hides; mend: env.custom.backend=in_process"
    )
    with pytest.raises(ConfigError, match=refused):
        compose([*CUSTOM, WORDLE, REWARDS, "env.custom.backend=server"])


def test_reset_gets_the_whole_row(play: Any, dataset: Any) -> None:
    row = {"prompt": [{"role": "user", "content": "Go."}], "level": 3, "tags": ["a", None], "seed": 5}
    (episode,) = play(["Done."], target("Base"), dataset(row))
    assert episode.host.environment.unwrapped.rows == [row]
    assert episode.messages[0] == {"role": "user", "content": "Go."}


def test_a_column_env_is_the_classes_own(play: Any, dataset: Any) -> None:
    """As in a class that plays several games, where the row says which."""
    row = {"prompt": "Go.", "env": "wordle", "seed": 5}
    (episode,) = play(["Done."], target("Base"), dataset(row))
    assert episode.host.environment.unwrapped.rows == [row]


def test_tools_are_the_public_methods_but_for_three() -> None:
    assert list(made("Careful").tools()) == ["add", "done", "look"]
    assert list(build("custom", EnvSpec(kind="custom", target="wordle_classes:WordleEnv")).tools()) == [
        "guess"
    ]


def test_what_is_a_method_is_no_attribute(play: Any) -> None:
    (episode,) = play([call("done"), call("add", a=2), "Enough."], target("Careful"))
    assert answers(episode) == ["done is a tool here", "3"]
    assert episode.stop is StopReason.NO_TOOL_CALL


def test_the_reward_is_asked_for_once_at_the_end(play: Any) -> None:
    (episode,) = play([call("look"), call("look"), "Enough."], target("Careful"), "env.custom.args.depth=2")
    assert episode.host.environment.unwrapped.asked == 1
    assert (episode.env_reward, episode.reward) == (0.5, 0.5)
    assert [turn.reward for turn in episode.turns] == [None, None, 0.5]


def test_everything_may_be_async(play: Any) -> None:
    (episode,) = play([call("look"), "Enough."], target("Async"), "env.custom.prompt=Hi.")
    assert episode.messages[0]["content"] == "Hi.\n\nhello"
    assert answers(episode) == ["an async room"]
    assert episode.reward == 0.5
    own = episode.host.environment.unwrapped
    assert own.closed
    assert own.threads == {threading.get_ident()}


def test_a_sync_method_does_not_stall_the_loop(play: Any) -> None:
    episodes = play([call("look"), "Enough."], target("Base"), members=2)
    threads = [episode.host.environment.unwrapped.threads for episode in episodes]
    assert all(len(own) == 1 and threading.get_ident() not in own for own in threads)


def test_a_value_error_is_an_answer_and_anything_else_the_worlds(play: Any) -> None:
    (episode,) = play([call("look", how="badly"), call("look")], target("Broken"))
    assert answers(episode) == ["Error: look well"]
    assert episode.stop is StopReason.ERROR
    assert "env custom, turn 2: RuntimeError: the lamp is broken" in episode.error


def test_a_lake_scores_itself(play: Any) -> None:
    move, size = call("move", direction="right"), "env.custom.args.size=2"
    episodes = play([move, "Enough."], "env.custom.target=lake_classes:TrlLake", size, groups=8)
    for episode in episodes:
        own = episode.host.environment.unwrapped
        assert own.asked == 1
        assert episode.reward == float(own.board.success)
        assert episode.stop is (StopReason.DONE if own.done else StopReason.NO_TOOL_CALL)
    assert {episode.reward for episode in episodes} == {0.0, 1.0}


def test_a_sudoku_scores_by_columns(play: Any) -> None:
    terms = "reward.terms=[env,sudoku_classes:reward_progress,sudoku_classes:reward_repetition]"
    moves = [(1, 3, 3), (1, 3, 3), (3, 2, 1), (4, 4, 1)]
    replies = [call("place", row=row, col=col, number=number) for row, col, number in moves]
    (episode,) = play(replies, "env.custom.target=sudoku_classes:SudokuEnv", terms)
    assert list(episode.rewards.values()) == [1.0, 1.0, -1.0]
    assert [turn.reward for turn in episode.turns] == [0.0, 0.0, 0.0, 1.0]


def test_a_factory_will_do() -> None:
    assert made("deep").unwrapped.depth == 3
    with pytest.raises(ConfigError, match="made object, which has no reset"):
        made("mistaken")


def test_arguments_are_judged() -> None:
    assert made("Careful", depth="2").unwrapped.depth == 2
    with pytest.raises(ConfigError, match=r"env\.custom\.args: argument: unknown 'dept'; did you mean depth"):
        made("Careful", dept=2)
    with pytest.raises(ConfigError, match="unknown 'depth'"):
        made("Base", depth=2)


def test_a_row_without_a_column_that_reset_needs_is_named_at_the_start(dataset: Any) -> None:
    rows = dataset({"prompt": "Go.", "secret": "a"}, {"prompt": "Go."})
    with pytest.raises(ConfigError, match=r"row 2 .*Picky\.reset: missing a required argument: 'secret'"):
        compose([*CUSTOM, target("Picky"), rows])
    needs = r"env\.custom: Picky\.reset: missing .* 'secret', which only a dataset has; mend: env\.custom"
    with pytest.raises(ConfigError, match=needs):
        compose([*CUSTOM, target("Picky")])


@pytest.mark.parametrize("name", ["Undocumented", "Untyped"])
def test_a_tool_that_cannot_be_shown_is_named(name: str) -> None:
    with pytest.raises(ConfigError, match=rf"tool {name}\.peek"):
        tool_schemas(made(name))


@pytest.mark.parametrize(
    ("name", "fault"),
    [
        ("Undocumented", "has no docstring for the model to read"),
        ("Untyped", "has no type hint for where"),
        ("Unexplained", "has no line under Args: in its docstring for where"),
        ("Unresolved", r"has type hints that cannot be read \(NameError: name 'Nowhere' is not defined\)"),
    ],
)
def test_a_tool_that_cannot_be_shown_is_named_at_the_start(name: str, fault: str) -> None:
    with pytest.raises(ConfigError, match=rf"env\.custom: tool peek of {name} {fault}; mend: write it"):
        compose([*CUSTOM, target(name)])


def test_the_text_face_is_refused() -> None:
    with pytest.raises(ConfigError, match="Base has no parse_action for scheduler=gym"):
        compose([*CUSTOM, target("Base"), "scheduler=gym"])
