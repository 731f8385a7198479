"""ms-swift's scheduler for OpenEnv servers, at servers of ours."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from served import serving  # type: ignore[import-not-found]

from envrl.env.compat.swift import OpenEnvScheduler, OpenEnvWrapper
from envrl.env.openenv.sessions import ServerError
from envrl.errors import SessionLost
from envrl.spec import EnvSpec
from envrl.stop import StopReason

DANCE = "dance: Extra inputs are not permitted"
ZEBRA, CRANE = {"text": "[zebra]"}, {"text": "[crane]"}


@pytest.fixture(scope="module")
def app() -> Any:
    from envrl.env.openenv.hosting import app

    return app("custom", EnvSpec(kind="custom", target="games:Tricky"), capacity=4)


@pytest.fixture
def wrapper(app: Any) -> Iterator[OpenEnvWrapper]:
    with serving(app) as url:
        wrapper = OpenEnvWrapper({"base_url": url, "seed": 5})
        wrapper.reset()
        yield wrapper
        wrapper.close()


def test_a_game_from_reset_to_done(wrapper: OpenEnvWrapper) -> None:
    observation, reward, done, metadata = wrapper.step(ZEBRA)
    assert (observation["text"], reward, done, metadata) == ("not zebra", 0.0, False, None)
    _, reward, done, _ = wrapper.step(CRANE)
    assert (reward, done) == (1.0, True)


def test_an_action_that_cannot_be_read_is_an_observation(wrapper: OpenEnvWrapper) -> None:
    refused = {"error": DANCE}
    assert wrapper.step({"dance": 1}) == (refused, 0.0, False, None)
    assert wrapper.step(CRANE)[2], "the game goes on"


def test_what_the_environment_raises_is_raised(wrapper: OpenEnvWrapper) -> None:
    with pytest.raises(ServerError, match="server gone"):
        wrapper.step({"text": "[crash]"})


def test_no_step_reaches_the_game_of_a_server_that_was_restarted(app: Any) -> None:
    with serving(app) as url:
        wrapper = OpenEnvWrapper({"base_url": url, "seed": 5})
        wrapper.reset()
        wrapper.step(ZEBRA)
    with serving(app, port=int(url.rpartition(":")[2])):
        for _ in range(2):
            with pytest.raises(SessionLost):
                wrapper.step(CRANE)
        observation, _ = wrapper.reset()
        assert "seed 5" in observation["text"]
        assert wrapper.step(CRANE)[2], "a new game is one that was asked for"
        wrapper.close()
        with pytest.raises(SessionLost, match="reset comes first"):
            wrapper.step(CRANE)


def test_a_model_plays_through_the_scheduler(play: Any, dataset: Any, app: Any) -> None:
    replies = [
        "no json",
        '```{"dance": 1}```',
        '```json\n{"tool": "guess", "arguments": {"word": "crane"}}\n```',
    ]
    with serving(app) as url:
        row = {"env_config": {"base_url": url, "seed": 5, "system_message": "Guess."}}
        target = ["scheduler.target=openenv_scheduler", "env.custom.target=none"]
        (episode,) = play(replies, *target, dataset(row))
    assert [message["role"] for message in episode.messages[:2]] == ["system", "user"]
    answers = [message["content"] for message in episode.messages[3::2]]
    assert answers[:2] == ['{"error": "message: Extra inputs are not permitted"}', f'{{"error": "{DANCE}"}}']
    assert (episode.reward, episode.stop) == (1.0, StopReason.DONE)


def test_what_is_json_is_an_action() -> None:
    scheduler = OpenEnvScheduler()
    assert scheduler.parse_action('```{"a": 1}```') == scheduler.parse_action('{"a": 1}') == {"a": 1}
    assert scheduler.format_observation({"a": "ü"}) == '{"a": "ü"}'


def test_nobody_answers(app: Any) -> None:
    with serving(app) as url:
        pass
    with pytest.raises(ConnectionError):
        OpenEnvWrapper({"base_url": url}).reset()
