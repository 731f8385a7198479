"""Reward functions as TRL calls them: once per group, by keyword, while its environments are open."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest
from games import Moody, call  # type: ignore[import-not-found]

from envrl import compose
from envrl.engine import Sampling, ScriptedEngine
from envrl.model.chat import Chat
from envrl.rollout.runner import Runner
from envrl.rollout.tasks import Task
from envrl.rollout.trajectory import Episode
from envrl.stop import StopReason

SEEN: list[dict[str, Any]] = []


class Tracked(Moody):  # type: ignore[misc]
    """Knows whether it is open."""

    def __init__(self) -> None:
        super().__init__()
        self.is_open = True

    def close(self) -> None:
        self.is_open = False


def guessed_right(environments: list[Any], **kwargs: Any) -> list[float]:
    """What a guide's reward function does: look into the environments."""
    SEEN.append({"environments": [(e, e.is_open) for e in environments], **kwargs})
    return [float(environment.guesses[-1] == "crane") for environment in environments]


async def by_column(prompts: list[Any], completions: list[Any], bonus: list[float], **kwargs: Any) -> Any:
    await asyncio.sleep(0)
    return [None if value is None else value * len(completions[0]) for value in bonus]


def noted(
    completions: list[Any], log_metric: Callable[..., None], log_extra: Callable[..., None], **kwargs: Any
) -> list[float]:
    log_metric("spoken", len(completions))
    log_extra("rank", list(range(len(completions))))
    return [0.0] * len(completions)


def too_few(completions: list[Any], **kwargs: Any) -> list[float]:
    return [1.0]


def fails_in_the_first(group: list[int], completions: list[Any], **kwargs: Any) -> list[float]:
    if group[0] == 0:
        raise KeyError("no such column")
    return [1.0] * len(completions)


def endless(completions: list[Any], **kwargs: Any) -> list[float]:
    return [float("inf")] * len(completions)


def praise(record: dict[str, Any]) -> str:
    return "good"


def fails_in_the_second(record: dict[str, Any]) -> float:
    return 1.0 / (1 - record["member"] % 2)


def plain(record: dict[str, Any]) -> float:
    return float(len(record["turns"]))


WORDS = {0: ["crane"], 1: ["zebra", "crane"], 2: ["zebra"]}
"""What each member of a group guesses before it stops."""


def play(
    chat: Chat,
    terms: str,
    *overrides: str,
    groups: int = 1,
    words: Any = WORDS,
    row: Any = None,
    scored: bool = True,
) -> list[list[Episode]]:
    """Groups of three that play Tracked and are scored by these terms of this file."""
    SEEN.clear()
    spec = compose(
        [
            "env=custom",
            f"env.custom.target={__name__}:Tracked",
            "model.warm_start=null",
            "scheduler.max_tokens=100000",
            "scheduler.max_turn_tokens=null",
            f"reward.terms=[{','.join(t if t in BUILT_IN else f'{__name__}:{t}' for t in terms.split())}]",
            "rollout.retries=0",
            *overrides,
        ]
    )

    def reply(episode: str, turn: int) -> str:
        said = words[int(episode.split("/")[2])]
        return call(said[turn]) if turn < len(said) else "I stop."  # type: ignore[no-any-return]

    engine = ScriptedEngine(reply, encode=chat.encode, stop_id=chat.turn_end)
    tasks = [
        [Task("custom", 7, g, m, None, {"group": g, **(row or {})}) for m in range(3)] for g in range(groups)
    ]
    played = Runner(spec, chat).run(
        tasks, lambda episode, face: engine, Sampling(max_tokens=100000), name="test", scored=scored
    )
    return asyncio.run(played)


BUILT_IN = {"env", "format", "length"}


def test_one_call_per_group_with_all_that_trl_gives(chat: Chat) -> None:
    groups = play(chat, "guessed_right", groups=2, row={"secret": "crane", "prompts": "a column"})
    assert [[episode.reward for episode in group] for group in groups] == [[1.0, 1.0, 0.0]] * 2
    assert len(SEEN) == 2
    for seen, group in zip(SEEN, groups, strict=True):
        assert seen["secret"] == ["crane"] * 3
        assert seen["group"] == [group[0].task.group] * 3
        assert seen["prompts"] == [episode.messages[:1] for episode in group]
        assert [[m["role"] for m in said] for said in seen["completions"]] == [
            ["assistant", "tool"],
            ["assistant", "tool"] * 2,
            ["assistant", "tool", "assistant"],
        ]
        for ids, episode in zip(seen["completion_ids"], group, strict=True):
            assert chat.decode(ids).startswith(episode.turns[0].text)
        assert [environment for environment, _ in seen["environments"]] == [
            episode.host.environment for episode in group
        ]
        assert {"trainer_state", "log_metric", "log_extra"} <= seen.keys()


def test_environments_are_open_in_the_call_and_closed_after_it(chat: Chat) -> None:
    play(chat, "guessed_right", groups=2)
    seen = [environment for call in SEEN for environment in call["environments"]]
    assert [was_open for _, was_open in seen] == [True] * 6
    assert [environment.is_open for environment, _ in seen] == [False] * 6


def test_async_functions_are_awaited_and_columns_arrive_by_name(chat: Chat) -> None:
    ((first, *_),) = play(chat, "by_column", row={"bonus": 0.5})
    assert first.rewards == {f"{__name__}:by_column": 1.0}


def test_none_leaves_a_term_out(chat: Chat) -> None:
    (group,) = play(chat, "by_column env", row={"bonus": None})
    assert [episode.reward for episode in group] == [1.0, 1.0, 0.0]
    (group,) = play(chat, "by_column", row={"bonus": None})
    assert [episode.reward for episode in group] == [None] * 3
    assert StopReason.ERROR not in [episode.stop for episode in group]


def test_terms_of_both_kinds_are_weighed_together(chat: Chat) -> None:
    (group,) = play(chat, "format plain guessed_right env", "reward.weights=[0.5,0.1,2,0]")
    assert [episode.reward for episode in group] == pytest.approx([0.5 + 0.1 + 2, 0.5 + 0.2 + 2, 0.5 + 0.2])
    assert list(group[0].rewards) == ["format", f"{__name__}:plain", f"{__name__}:guessed_right", "env"]


def test_leaving_env_out_trains_without_it(chat: Chat) -> None:
    (group,) = play(chat, "format")
    assert [episode.reward for episode in group] == [1.0, 1.0, 1.0]
    assert [episode.env_reward for episode in group] == [1.0, 1.0, 0.0]


def test_notes_of_a_function_reach_the_record(chat: Chat) -> None:
    (group,) = play(chat, "noted")
    records = [json.loads(json.dumps(episode.record())) for episode in group]
    assert [record["extra"] for record in records] == [{"rank": n} for n in range(3)]
    assert [record["metrics"]["spoken"] for record in records] == [3.0] * 3


def test_a_function_that_raises_takes_its_own_group_out(chat: Chat) -> None:
    first, second = play(chat, "fails_in_the_first", groups=2)
    assert [(episode.stop, episode.reward) for episode in first] == [(StopReason.ERROR, None)] * 3
    named = f"reward term {__name__}:fails_in_the_first: KeyError: 'no such column'"
    assert [episode.error for episode in first] == [named] * 3
    assert [episode.reward for episode in second] == [1.0] * 3
    assert not any(episode.host.environment.is_open for episode in first + second)


@pytest.mark.parametrize(
    ("term", "says"),
    [
        ("too_few", "too_few: 1 values for 3 episodes"),
        ("endless", "env custom: reward term {here}:endless is inf, no finite number"),
        ("praise", "env custom: reward term {here}:praise is 'good', no finite number"),
    ],
)
def test_values_that_are_no_rewards_are_refused_by_name(chat: Chat, term: str, says: str) -> None:
    (group,) = play(chat, term, "rollout.max_error_rate=1")
    assert [(episode.stop, episode.reward) for episode in group] == [(StopReason.ERROR, None)] * 3
    assert says.format(here=__name__) in str(group[0].error)


def test_a_term_that_fails_takes_its_own_episode_out_and_replays_nothing(chat: Chat) -> None:
    group = play(chat, "fails_in_the_second env guessed_right", "rollout.retries=2")[0]
    assert [(episode.stop, episode.reward) for episode in group] == [
        (StopReason.DONE, 3.0),
        (StopReason.ERROR, None),
        (StopReason.NO_TOOL_CALL, 1.0),
    ]
    assert [episode.retries for episode in group] == [0, 0, 0]
    assert group[1].rewards == {}
    assert [len(seen["completions"]) for seen in SEEN] == [2]


def test_play_without_scores_asks_no_term(chat: Chat) -> None:
    (group,) = play(chat, "guessed_right fails_in_the_second", scored=False)
    assert SEEN == []
    assert [(episode.reward, episode.success) for episode in group] == [
        (None, True),
        (None, True),
        (None, False),
    ]
    assert not any(episode.host.environment.is_open for episode in group)


def test_an_episode_that_the_world_broke_is_not_in_the_call(chat: Chat) -> None:
    (group,) = play(chat, "guessed_right", words={**WORDS, 1: ["crash"]})
    assert [episode.reward for episode in group] == [1.0, None, 0.0]
    assert [len(seen["completions"]) for seen in SEEN] == [2]


def test_a_group_that_the_world_broke_is_not_asked_for(chat: Chat) -> None:
    broken = {member: ["crash"] for member in range(3)}
    (group,) = play(chat, "guessed_right", "rollout.max_error_rate=1", words=broken)
    assert [episode.reward for episode in group] == [None] * 3
    assert SEEN == []
