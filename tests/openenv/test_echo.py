from __future__ import annotations

import pytest
from players import Play

from envrl.env import ToolCall
from envrl.stop import StopReason

HELLO = ToolCall("echo", {"message": "hello"})
SERVERS = pytest.mark.parametrize("server", ["echo", "echo_old"])


@SERVERS
def test_echoed_and_paid_by_length(play: Play, server: str) -> None:
    (episode,) = play("echo", lambda messages: HELLO, turns=2, server=server)
    assert episode.stop is StopReason.MAX_TURNS
    assert "Echo environment ready!" in episode.messages[0]["content"]
    assert episode.messages[-1]["content"] == "hello"
    assert episode.env_reward == pytest.approx(0.5)
    assert (episode.metrics["messages"], episode.metrics["characters"]) == (2, 5)


@SERVERS
def test_in_words(play: Play, server: str) -> None:
    (episode,) = play("echo", lambda messages: "hello there", "scheduler=gym", turns=1, server=server)
    assert episode.messages[-1]["content"] == "hello there"
    assert episode.env_reward == pytest.approx(1.1)


def test_any_tool_of_an_mcp_server_can_be_called(play: Play) -> None:
    call = {"type": "call_tool", "tool_name": "echo_with_length", "arguments": {"message": "hi"}}
    (episode,) = play("openenv", lambda messages: ToolCall("act", {"action": call}), turns=1, server="echo")
    assert episode.messages[-1]["content"] == '{"message":"hi","length":2}'
    assert episode.env_reward == 0.0


@pytest.mark.parametrize(
    "action",
    [
        {"type": "call_tool", "tool_name": "shout", "arguments": {"message": "hi"}},
        {"type": "call_tool", "tool_name": "echo_message", "arguments": {}},
        {"message": "hi"},
    ],
)
def test_a_wrong_call_is_the_models_mistake(play: Play, action: dict[str, object]) -> None:
    (episode,) = play(
        "openenv",
        lambda messages: ToolCall("act", {"action": action}),
        turns=1,
        server="echo",
    )
    assert (episode.stop, episode.turns[0].failures) == (StopReason.MAX_TURNS, 1)
