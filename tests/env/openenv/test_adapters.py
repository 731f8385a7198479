"""How servers are spoken to, and what is read from their replies."""

from __future__ import annotations

import json
import logging
from typing import Any

import pytest
from served import Serve, answers, serving  # type: ignore[import-not-found]

from envrl import compose
from envrl.env import ToolCall, make
from envrl.env.openenv.adapters import ADAPTERS, adapter_class
from envrl.env.openenv.generic import Generic, as_text, json_action
from envrl.errors import ConfigError


@pytest.mark.parametrize(
    ("text", "action"),
    [
        (' {"word": "crane"} ', {"word": "crane"}),
        ('```json\n{"word": "crane"}\n```', {"word": "crane"}),
        ("```\n[1, 2]\n```", {"message": "[1, 2]"}),
        ("3", {"message": "3"}),
        ("[crane]", {"message": "[crane]"}),
        ('I say {"word": "crane"}', {"message": 'I say {"word": "crane"}'}),
        ("", {"message": ""}),
    ],
)
def test_a_text_is_an_action_in_json(text: str, action: dict[str, Any]) -> None:
    assert json_action(text) == action


def test_observations_are_json_in_the_languages_they_have() -> None:
    assert as_text({"text": "你好", "cells": {1}}) == '{"text": "你好", "cells": "{1}"}'
    assert as_text("plain") == "plain"


def test_both_ways_can_be_replaced() -> None:
    local = make("openenv", parse_action="json:loads", format_observation="builtins:repr")
    assert Generic(local).text_action('{"a": 1}') == {"a": 1}
    assert local.to_text({"a": 1}) == "{'a': 1}"  # type: ignore[attr-defined]
    assert Generic(local).action(ToolCall("act", {"action": {"b": 2}})) == {"b": 2}
    with pytest.raises(ConfigError, match=r"env\.openenv\.args: parse_action: .*nowhere"):
        make("openenv", parse_action="nowhere:f")


def test_adapters_are_classes_and_unknown_ones_list_the_choices() -> None:
    for name in ADAPTERS:
        assert adapter_class(name)
    assert list(ADAPTERS)[-1] == "generic"
    with pytest.raises(ConfigError, match=r"unknown 'textarea'; did you mean textarena\?"):
        adapter_class("textarea")


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (["env.frozen_lake.backend=url"], "url: missing for backend=url; mend: env.frozen_lake.url=..."),
        (["env.frozen_lake.url=http://x"], "mend: env.frozen_lake.backend=url, or env.frozen_lake.url=null"),
        (["env.frozen_lake.backend=docker"], "image: missing for backend=docker"),
        (["env.frozen_lake.backend=url", "env.frozen_lake.url=x:8000"], "(got 'x:8000'); mend:"),
        (["env=openenv", "env.openenv.url=http://x:99999"], "a port below 65536 if any (got 'http://x:999"),
        (["env=openenv", "env.openenv.url=http://:80"], "a host, and a port below 65536 if any (got"),
        (["env.frozen_lake.adapter=generic"], "adapter: unknown 'generic'; choose from: auto (backend=in_p"),
        (["env=openenv", "env.openenv.url=http://x", "env.openenv.adapter=echoo"], "did you mean echo?"),
        (["env=openenv", "env.openenv.url=http://x", "env.openenv.backend=server"], "kind=openenv has no"),
        (
            [
                "env=custom",
                "env.custom.target=none",
                "env.custom.backend=server",
                "scheduler.target=gym_scheduler",
            ],
            "gym_scheduler opens its environment in this process (got server)",
        ),
        (["env=openenv"], "env.openenv.url: no value; mend: env.openenv.url=..."),
    ],
)
def test_what_does_not_fit_together_is_refused(overrides: list[str], said: str) -> None:
    with pytest.raises(ConfigError) as refused:
        compose(["model.warm_start=null", *overrides])
    assert said in str(refused.value)


OPENENV = ["env=openenv", "scheduler=gym"]


def test_a_model_that_writes_json_plays_any_server(remotely: Any, serve: Serve) -> None:
    """What the server cannot read is the model's mistake (garbage in), and the session goes on."""
    replies = [
        "garbage",
        '{"tool": "guess", "arguments": []}',
        '{"tool": "guess", "arguments": {"word": "crane"}}',
    ]
    with serve("games:Guess") as url:
        (episode,) = remotely(replies, *OPENENV, "env.openenv.adapter=generic", url=url)
    garbage, ill_typed, won = answers(episode)
    assert "message: Extra inputs are not permitted" in garbage
    assert "arguments: Input should be a valid dictionary" in ill_typed
    assert json.loads(won)["text"] == "right"
    assert (episode.reward, [turn.failures for turn in episode.turns]) == (1.0, [1, 1, 0])


def test_a_server_of_ours_explains_itself_to_strangers(remotely: Any, serve: Serve) -> None:
    action = {"tool": "guess", "arguments": {"word": "crane"}}
    act = f"<tool_call>{json.dumps({'name': 'act', 'arguments': {'action': action}})}</tool_call>"
    with serve("games:Guess") as url:
        (spoken,) = remotely(["[zebra]", "[crane]"], *OPENENV, url=url)
        (called,) = remotely([act], "env=openenv", url=url)
    assert answers(spoken) == ["not zebra", "right"]
    assert (spoken.reward, called.reward) == (1.0, 1.0)
    assert "Guess the word." in called.messages[0]["content"]
    assert '"name": "guess"' in called.messages[0]["content"]


def test_a_server_of_ours_that_plays_something_else_is_found_out(remotely: Any, serve: Serve) -> None:
    with serve("games:Guess") as url:
        (episode,) = remotely(["<action>up</action>"], "env.custom.target=envrl.env.catch:Catch", url=url)
    assert "the server plays another environment: it has the tools guess, not move, stay" in episode.error


def replying(*replies: dict[str, Any]) -> Any:
    """An ASGI app that answers whatever it is asked with these."""
    from starlette.applications import Starlette
    from starlette.routing import WebSocketRoute
    from starlette.websockets import WebSocket

    async def speak(websocket: WebSocket) -> None:
        await websocket.accept()
        left = iter(replies)
        async for question in websocket.iter_json():
            data = {} if question["type"] == "state" else next(left)
            await websocket.send_json({"type": "observation", "data": data})

    return Starlette(routes=[WebSocketRoute("/ws", speak)])


def test_reward_and_done_are_read_beside_the_observation(
    remotely: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """(OpenEnv#1017)"""
    first = {"observation": {"reward": 9, "done": True}, "reward": None, "done": False}
    unscored = {"observation": {}, "reward": None, "done": False}
    paid = {"observation": {}, "reward": 0.7, "done": True}
    with (
        serving(replying(first, first, first, first, unscored, paid)) as url,
        caplog.at_level(logging.WARNING),
    ):
        (episode,) = remotely(["{}", "{}"], *OPENENV, "env.openenv.adapter=generic", url=url)
    assert [turn.reward for turn in episode.turns] == [None, 0.7]
    assert (episode.reward, episode.stop) == (0.7, "done")
    assert not [r for r in caplog.records if "sends no" in r.getMessage()]


def test_what_is_missing_there_is_said_once(remotely: Any, caplog: pytest.LogCaptureFixture) -> None:
    bare = {"observation": {"done": True, "reward": 1.0}}
    with serving(replying(*[bare] * 9)) as url, caplog.at_level(logging.WARNING):
        (episode,) = remotely(
            ["{}", "{}"], *OPENENV, "env.openenv.adapter=generic", "scheduler.max_turns=2", url=url
        )
    assert (episode.reward, episode.stop) == (None, "max_turns")
    said = "sends no reward and no done beside the observation"
    assert len([r for r in caplog.records if said in r.getMessage()]) == 1
