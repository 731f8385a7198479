"""Two environments in one run: which tools each model sees, and what a foreign call is answered with."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from games import call  # type: ignore[import-not-found]

from envrl import compose
from envrl.engine import Sampling, ScriptedEngine
from envrl.model.chat import Chat
from envrl.rollout.runner import Runner
from envrl.rollout.tasks import Task

MOVE = '<tool_call>\n{"name": "move", "arguments": {"direction": "up"}}\n</tool_call>'
TOOLS = {"custom": "guess(", "frozen_lake": "move("}


def played(chat: Chat, visible: str) -> dict[str, Any]:
    """By environment, the prompt that a model saw and the answer to a call of the other's tool."""
    spec = compose(
        [
            "env=[frozen_lake,custom]",
            "env.custom.target=games:Guess",
            "model.warm_start=null",
            "scheduler.max_tokens=2000",
            "scheduler.max_turn_tokens=null",
            "scheduler.max_turns=1",
            f"scheduler.tools_visible={visible}",
        ]
    )
    engines = {
        env: ScriptedEngine([reply], encode=chat.encode, stop_id=chat.turn_end)
        for env, reply in (("custom", MOVE), ("frozen_lake", call("crane")))
    }
    groups = Runner(spec, chat).run(
        [[Task(env, 3, index, 0)] for index, env in enumerate(engines)],
        lambda episode, face: engines[episode.task.env],
        Sampling(max_tokens=1000),
        name="mixture",
    )
    return {
        episode.task.env: (chat.decode(engines[episode.task.env].requests[0][1]), episode)
        for (episode,) in asyncio.run(groups)
    }


@pytest.mark.parametrize("visible", ["own", "all"])
def test_which_tools_are_shown(chat: Chat, visible: str) -> None:
    for env, (prompt, _) in played(chat, visible).items():
        shown = {name for name, tool in TOOLS.items() if tool in prompt}
        assert shown == (set(TOOLS) if visible == "all" else {env})


def test_a_tool_of_another_environment_is_answered_and_not_run(chat: Chat) -> None:
    foreign = {"custom": "move", "frozen_lake": "guess"}
    for env, (_, episode) in played(chat, "all").items():
        assert f"unknown '{foreign[env]}'" in episode.messages[-1]["content"]
        assert [turn.failures for turn in episode.turns] == [1]
        assert episode.score == 0.0
