from __future__ import annotations

import pytest

from envrl.env import ToolCall, make
from envrl.env.echo import SUGGESTIONS, Echo
from envrl.errors import ConfigError


def test_longer_messages_earn_more() -> None:
    echo = Echo()
    echo.reset(seed=1)
    assert echo.reward == 0.0
    assert echo.echo("hello") == "hello"
    assert echo.reward == pytest.approx(0.5)
    echo.echo("hello world")
    assert echo.reward == pytest.approx(1.1)
    assert echo.metrics == {"messages": 2, "characters": 11}


def test_the_newest_message_counts() -> None:
    echo = Echo()
    echo.reset(seed=1)
    echo.echo("a long message")
    echo.echo("")
    assert echo.reward == 0.0


def test_the_reward_is_bounded() -> None:
    echo = Echo(longest=20)
    echo.reset(seed=1)
    echo.echo("x" * 5000)
    assert echo.reward == pytest.approx(2.0)
    assert echo.metrics["characters"] == 5000
    with pytest.raises(ConfigError, match="longest"):
        make("echo", longest=0)


@pytest.mark.parametrize("longest", [1, 2, 100])
def test_gold_earns_the_most(longest: int) -> None:
    echo = Echo(longest=longest)
    echo.reset(seed=1)
    echo.echo(**echo.gold_action().arguments)
    assert echo.reward == pytest.approx(0.1 * longest)
    assert echo.metrics["characters"] == longest


def test_it_never_ends() -> None:
    echo = Echo()
    echo.reset(seed=1)
    for _ in range(100):
        echo.echo("again")
    assert (echo.done, echo.success) == (False, None)


def test_what_to_echo_comes_from_the_seed_or_the_row() -> None:
    echo = Echo()
    assert {echo.reset(seed=seed) for seed in range(60)} == {f"Try to echo '{text}'" for text in SUGGESTIONS}
    assert echo.reset(seed=1, message="Hi") == "Try to echo 'Hi'"


def test_the_text_is_the_message() -> None:
    assert Echo().parse_action(" Hello [there]\n") == ToolCall("echo", {"message": "Hello [there]"})
    with pytest.raises(ValueError, match="message"):
        Echo().parse_action(" \n")
