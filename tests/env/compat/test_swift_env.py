"""ms-swift's environments under our scheduler=gym."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterator
from typing import Any

import pytest
from lake_classes import FrozenLakeEnv  # type: ignore[import-not-found]
from swift_classes import Diary  # type: ignore[import-not-found]

from envrl import compose
from envrl.env import build
from envrl.errors import ConfigError
from envrl.spec import EnvSpec
from envrl.stop import StopReason

DIARY = ["scheduler=gym", "env.custom.target=swift_classes:Diary"]
LAKE = ["scheduler=gym", "env.custom.target=guides_lake"]


@pytest.fixture(autouse=True)
def _closed() -> Iterator[None]:
    """Whatever happens, all that was opened is closed, once."""
    Diary.written.clear()
    yield
    assert all(diary.closed == 1 for diary in Diary.written)
    assert FrozenLakeEnv.live == 0


def texts(episode: Any) -> list[str]:
    return [message["content"] for message in episode.messages]


@pytest.mark.parametrize("replies", [["right"] * 9, ["<action>down</action>", "no idea"] * 5])
def test_the_guides_lake_is_ours(play: Any, classes: Any, replies: list[str]) -> None:
    limits = ["scheduler.max_turns=6"]
    theirs = play(replies, *LAKE, *limits, classes("lake_classes"), groups=6)
    ours = play(replies, "env=frozen_lake", "scheduler=gym", *limits, groups=6)
    for one, other in zip(theirs, ours, strict=True):
        assert texts(one)[1:] == texts(other)[1:]
        assert (one.reward, one.stop) == (other.reward, other.stop)
        assert [turn.reward for turn in one.turns] == [turn.reward for turn in other.turns]
    assert len({texts(episode)[1] for episode in theirs}) == 6


def test_the_guides_wordle(play: Any, classes: Any, dataset: Any) -> None:
    target, rows = "env.custom.target=guides_wordle", dataset({"env_config": {"secret": "crane"}})
    replies = ["[four]", "I say [crate]", "[crane]"]
    (episode,) = play(replies, "scheduler=gym", target, classes("wordle_classes"), rows)
    assert texts(episode)[:2] == ["Play Wordle.", "You have six guesses. Answer [word]."]
    assert texts(episode)[3::2] == ["'four' has not five letters", "GGGXG", "GGGGG"]
    assert (episode.reward, episode.success, episode.metrics["invalid"]) == (1.0, True, 1.0)


def test_a_row_reaches_it_as_it_was_written(play: Any, dataset: Any) -> None:
    config = {"seed": 3, "size": None, "nested": {"a": [1, 2.0, "x", True]}, "system": "Write."}
    row = {"messages": [{"role": "user", "content": "placeholder"}], "env_config": config, "level": 2}
    (episode,) = play(["stop"], *DIARY, dataset(row))
    (diary,) = Diary.written
    assert diary.env_config == config
    assert diary.request.messages == row["messages"]
    assert diary.request.data_dict["level"] == 2
    assert diary.request.uuid
    assert [(m["role"], m["content"]) for m in episode.messages[:2]] == [
        ("system", "Write."),
        ("user", "Dear diary"),
    ]


def test_a_row_without_config_gets_the_args_and_the_groups_seed(play: Any) -> None:
    play(["stop"], *DIARY, "env.custom.args.size=5", members=2, groups=2)
    configs = [diary.env_config for diary in Diary.written]
    assert all(config.keys() == {"seed", "size"} and config["size"] == 5 for config in configs)
    assert len({config["seed"] for config in configs}) == 2


def test_no_system_message_is_no_message(play: Any) -> None:
    (episode,) = play(["stop"], *DIARY)
    assert episode.messages[0] == {"role": "user", "content": "Dear diary"}


def test_a_step_hears_the_whole_talk_in_a_copy_of_its_own(play: Any) -> None:
    (episode,) = play(["<think>hm</think>one", "stop"], *DIARY)
    assert Diary.written[0].heard == [[], []], "it may do with it as it likes"
    assert texts(episode) == ["Dear diary", "<think>hm</think>one", "page 1", "stop", "page 2"]
    infos = episode.extra["infos"]
    assert [info.get("text") for info in infos] == [None, "<think>hm</think>one", "stop"]


def test_infos_are_kept(play: Any) -> None:
    (episode,) = play(["one", "stop"], *DIARY)
    assert episode.reward == 1.0
    assert [turn.reward for turn in episode.turns] == [0.5, 0.5]
    assert episode.metrics == {"page": 2.0}
    record = json.loads(json.dumps(episode.record()))
    assert [info.get("page") for info in record["extra"]["infos"]] == [None, 1, 2]


def test_five_parts_and_sync_methods_will_do(play: Any) -> None:
    (episode,) = play(["x"], "scheduler=gym", "env.custom.target=swift_classes:Modern")
    assert (episode.stop, episode.reward, episode.success) == (StopReason.DONE, 1.0, True)


def test_what_it_raises_is_the_worlds(play: Any) -> None:
    first, other = play(lambda episode, turn: "crash" if episode[-3] == "0" else "stop", *DIARY, members=2)
    assert first.stop is StopReason.ERROR
    assert "no ink left" in first.error
    assert other.reward == 0.5


@pytest.mark.parametrize("scheduler", ["scheduler=gym", "scheduler.target=gym_scheduler"])
@pytest.mark.parametrize(
    ("returned", "said"),
    [
        ("None", "step returned None"),
        ("('well', 1.0)", r"step returned \('well', 1.0\)"),
        ("'abcd'", "step returned 'abcd'"),
        ("('well', 1.0, False, 'info')", "step returned"),
        ("('well', 1.0, 'no', {})", "does not say whether it is done"),
        ("('well', 'much', False, {})", "reward is 'much', no finite number"),
    ],
)
def test_a_step_that_returns_something_else_is_the_worlds(
    play: Any, scheduler: str, returned: str, said: str
) -> None:
    (episode,) = play([returned] * 3, scheduler, "env.custom.target=swift_classes:Parrot")
    assert episode.stop is StopReason.ERROR
    assert re.search(said, episode.error)


@pytest.mark.parametrize(
    ("limit", "stop"),
    [
        ("scheduler.max_turns=2", StopReason.MAX_TURNS),
        ("scheduler.step_timeout_s=0.05", StopReason.ERROR),
        ("scheduler.episode_timeout_s=0.05", StopReason.DEADLINE),
    ],
)
def test_it_is_closed_whatever_ends_it(play: Any, limit: str, stop: StopReason) -> None:
    words = ["sleep"] if "timeout" in limit else ["one", "two", "three"]
    (episode,) = play(words, *DIARY, limit)
    assert episode.stop is stop


def test_one_loop_for_all_its_life(play: Any) -> None:
    play(["one", "stop"], *DIARY, members=3)
    assert all(len(diary.loops) == 1 for diary in Diary.written)


def test_a_turn_cut_short_may_go_on(play: Any) -> None:
    cut = [*DIARY, "scheduler.max_turn_tokens=3"]
    (ended,) = play(["onward", "stop"], *cut)
    assert ended.stop is StopReason.LENGTH
    (went_on,) = play(["onward", "stop"], *cut, "scheduler.continue_on_length=true", "scheduler.max_turns=2")
    assert len(went_on.turns) == 2
    assert went_on.extra["infos"][1]["text"] == "onw"


def test_a_row_names_its_environment() -> None:
    diary = build("custom", EnvSpec(kind="custom", target="swift_classes:Diary"))

    async def opened(**row: Any) -> str:
        await diary.reset(seed=1, **row)  # type: ignore[misc]
        name = type(diary.unwrapped).__name__
        await diary.close()
        return name

    assert asyncio.run(opened(env_config={"name": "modern"})) == "Modern"
    assert asyncio.run(opened(env_config={"name": "custom"})) == "Diary"


def test_it_hears_no_tool_calls() -> None:
    with pytest.raises(ConfigError, match=r"env\.custom: Diary hears text, not tool calls"):
        compose(["env=custom", "model.warm_start=null", "env.custom.target=swift_classes:Diary"])
