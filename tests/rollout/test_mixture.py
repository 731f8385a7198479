"""Two environments in one run: what each model sees, how it plays, and by what it is scored."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from games import Guess, call  # type: ignore[import-not-found]

from envrl import compose
from envrl.engine import Sampling, ScriptedEngine
from envrl.model.chat import Chat
from envrl.reward.terms import SUDOKU
from envrl.rollout.metrics import episode_metrics
from envrl.rollout.runner import Runner
from envrl.rollout.tasks import Task
from envrl.rollout.trajectory import Episode

MOVE = '<tool_call>\n{"name": "move", "arguments": {"direction": "up"}}\n</tool_call>'
TOOLS = {"custom": "guess(", "frozen_lake": "move("}


def played(
    chat: Chat, replies: dict[str, str], *overrides: str, rows: dict[str, Any] | None = None
) -> dict[str, tuple[str, Episode]]:
    """By environment, the prompt that a model saw and its episode of one turn."""
    spec = compose(
        [
            f"env=[{','.join(replies)}]",
            *(["env.custom.target=games:Guess"] if "custom" in replies else []),
            "model.warm_start=null",
            "scheduler.max_tokens=4000",
            "scheduler.max_turn_tokens=null",
            "scheduler.max_turns=1",
            *(f"env.{env}.max_turns=1" for env in replies),
            *overrides,
        ]
    )
    engines = {
        env: ScriptedEngine([reply], encode=chat.encode, stop_id=chat.turn_end)
        for env, reply in replies.items()
    }
    groups = Runner(spec, chat).run(
        [[Task(env, 3, index, 0, None, (rows or {}).get(env, {}))] for index, env in enumerate(engines)],
        lambda episode, face: engines[episode.task.env],
        Sampling(max_tokens=4000),
        name="mixture",
    )
    return {
        episode.task.env: (chat.decode(engines[episode.task.env].requests[0][1]), episode)
        for (episode,) in asyncio.run(groups)
    }


FOREIGN = {"custom": MOVE, "frozen_lake": call("crane")}


@pytest.mark.parametrize("visible", ["own", "all"])
def test_which_tools_are_shown(chat: Chat, visible: str) -> None:
    for env, (prompt, _) in played(chat, FOREIGN, f"scheduler.tools_visible={visible}").items():
        shown = {name for name, tool in TOOLS.items() if tool in prompt}
        assert shown == (set(TOOLS) if visible == "all" else {env})


def test_a_tool_of_another_environment_is_answered_and_not_run(chat: Chat) -> None:
    foreign = {"custom": "move", "frozen_lake": "guess"}
    for env, (_, episode) in played(chat, FOREIGN, "scheduler.tools_visible=all").items():
        assert f"unknown '{foreign[env]}'" in episode.messages[-1]["content"]
        assert [turn.failures for turn in episode.turns] == [1]
        assert episode.reward == 0.0


def test_a_schema_of_the_same_name_is_the_environments_own(chat: Chat) -> None:
    """FrozenLake and Catch both have `move`, with other directions."""
    games = played(chat, {"frozen_lake": "-", "catch": "-"}, "scheduler.tools_visible=all")
    shown = {
        env: prompt.partition("move(direction: ")[2].partition(")")[0] for env, (prompt, _) in games.items()
    }
    assert shown == {"frozen_lake": "up|down|left|right", "catch": "left|right"}
    assert all("stay()" in prompt for prompt, _ in games.values())


def test_each_environment_may_have_a_scheduler_of_its_own(chat: Chat) -> None:
    replies = {"custom": call("crane"), "frozen_lake": "<action>up</action>"}
    games = played(chat, replies, "env.frozen_lake.scheduler=gym")
    prompts = {env: prompt for env, (prompt, _) in games.items()}
    assert "guess(" in prompts["custom"]
    assert "move(" not in prompts["frozen_lake"]
    assert "<action>up</action>" in prompts["frozen_lake"]
    assert [episode.turns[0].failures for _, episode in games.values()] == [0, 0]


def test_terms_score_their_own_environment_alone(chat: Chat) -> None:
    replies = {"wordle": call("crane"), "sudoku": "I pass."}
    terms = [*SUDOKU, "win_reward", "env"]
    games = played(chat, replies, f"reward.terms=[{','.join(terms)}]", rows={"wordle": {"secret": "crane"}})
    wordle, sudoku = (games[env][1].rewards for env in replies)
    assert [name for name in terms if wordle[name] is None] == list(SUDOKU)
    assert [name for name in terms if sudoku[name] is None] == ["win_reward"]
    metrics = episode_metrics([episode.record() for _, episode in games.values()])
    assert metrics["rewards/win_reward/mean"] == wordle["win_reward"]
    assert {"env/wordle/reward", "env/sudoku/reward", "env/wordle/guesses"} <= metrics.keys()


class Greedy(Guess):  # type: ignore[misc]
    """Empties what it is given."""

    def reset(self, *, seed: int | None = None, **row: Any) -> str:
        seen = str(row["env_config"])
        row["env_config"]["deep"].clear()
        return seen


def test_members_of_a_group_get_the_row_as_it_was_written(chat: Chat) -> None:
    row = {
        "env_config": {"name": "custom", "deep": {"a": 1}, "none": None},
        "method": "a free column",
    }
    games = played(chat, {"custom": "-"}, f"env.custom.target={__name__}:Greedy", rows={"custom": row})
    prompt, episode = games["custom"]
    assert "{'name': 'custom', 'deep': {'a': 1}, 'none': None}" in prompt
    assert episode.record()["row"] == row
    assert row["env_config"]["deep"] == {"a": 1}
