from __future__ import annotations

import json
import time
from typing import Any

import pytest
from games import Counted, Flaky, Guess, call  # type: ignore[import-not-found]

from envrl.engine import ScriptedEngine
from envrl.env.base import tool_names
from envrl.errors import ConfigError, StageError
from envrl.rollout.metrics import episode_metrics
from envrl.stop import StopReason


def tool_answers(episode: Any) -> list[str]:
    return [m["content"] for m in episode.messages if m["role"] == "tool"]


def test_a_solved_episode(play: Any) -> None:
    (episode,) = play("Guess", [call("zebra"), call("crane")])
    assert (episode.stop, episode.reward, episode.host.environment.success) == (StopReason.DONE, 1.0, True)
    assert [turn.reward for turn in episode.turns] == [0.0, 1.0]
    assert tool_answers(episode) == ["not zebra", "right"]


def test_malformed_arguments_are_answered_and_never_run(play: Any) -> None:
    broken = '<tool_call>{"name":"guess","arguments":{"word":"cra</tool_call>'
    (episode,) = play("Guess", [broken, call("crane")])
    assert episode.host.environment.guesses == ["crane"]
    assert "JSON" in tool_answers(episode)[0]
    assert episode.stop is StopReason.DONE
    assert [turn.failures for turn in episode.turns] == [1, 0]


def test_a_malformed_call_never_becomes_one_without_arguments(play: Any) -> None:
    """Of a tool that would take it (verifiers#1763)."""
    broken = '<tool_call>{"name":"stay","arguments":{"for</tool_call>'
    whole = '<tool_call>{"name":"stay","arguments":{}}</tool_call>'
    catch = ["env.custom.target=envrl.env.catch:Catch", "scheduler.max_turns=2"]
    (episode,) = play("Guess", [broken, whole], *catch)
    assert "invalid JSON" in tool_answers(episode)[0]
    assert [turn.failures for turn in episode.turns] == [1, 0]
    assert episode.metrics["steps"] == 1


def test_a_call_drafted_in_thought_is_not_run(play: Any) -> None:
    (episode,) = play("Guess", [f"<think>maybe {call('aaaaa')}</think>{call('crane')}"])
    assert episode.host.environment.guesses == ["crane"]


def test_text_drafted_in_thought_is_not_an_action(play: Any) -> None:
    (episode,) = play("Guess", ["<think>[aaaaa]</think>[crane]"], "scheduler=gym")
    assert episode.host.environment.guesses == ["crane"]
    assert episode.messages[0]["role"] == "system"


def test_all_calls_of_a_turn_are_answered_in_order(play: Any) -> None:
    (episode,) = play("Guess", [call("zebra") + call("slate"), call("flame") + call("crane")])
    assert episode.host.environment.guesses == ["zebra", "slate", "flame", "crane"]
    assert tool_answers(episode) == ["not zebra", "not slate", "not flame", "right"]
    ids = [m["tool_call_id"] for m in episode.messages if m["role"] == "tool"]
    assert len(set(ids)) == 4


def test_a_call_after_the_end_is_answered_but_not_run(play: Any) -> None:
    (episode,) = play("Guess", [call("crane") + call("zebra")])
    assert episode.host.environment.guesses == ["crane"]
    assert "over" in tool_answers(episode)[1]


@pytest.mark.parametrize(
    ("turn", "said"),
    [
        ('<tool_call>{"name":"gess","arguments":{}}</tool_call>', "guess"),
        ('<tool_call>{"name":"guess","arguments":{"wrod":"crane"}}</tool_call>', "word"),
        ('<tool_call>{"name":"guess","arguments":{"word":["a"]}}</tool_call>', "word"),
        ('<tool_call>{"name":"reset","arguments":{}}</tool_call>', "unknown"),
    ],
)
def test_what_the_model_did_wrong_goes_back_to_it(play: Any, turn: str, said: str) -> None:
    (episode,) = play("Guess", [turn, call("crane")])
    assert said in tool_answers(episode)[0]
    assert episode.reward == 1.0


def test_an_environments_value_error_is_the_tools_answer(play: Any) -> None:
    (episode,) = play("Moody", [call("refuse"), call("crane")])
    assert "not allowed" in tool_answers(episode)[0]
    assert episode.stop is StopReason.DONE


def test_one_turn_allowed_is_one_step(play: Any) -> None:
    (episode,) = play("Guess", [call("zebra")], "scheduler.max_turns=1")
    assert episode.host.environment.guesses == ["zebra"]
    assert episode.stop is StopReason.MAX_TURNS
    assert episode.stop.truncated


def test_no_turns_is_refused(play: Any) -> None:
    with pytest.raises(ConfigError, match="max_turns"):
        play("Guess", [call("zebra")], "scheduler.max_turns=0")


def test_a_turn_without_a_call_ends_the_episode(play: Any) -> None:
    (episode,) = play("Guess", ["I give up."])
    assert (episode.stop, episode.reward) == (StopReason.NO_TOOL_CALL, 0.0)


def test_the_model_may_speak_once_more(play: Any) -> None:
    (episode,) = play("Guess", [call("crane"), "Thanks!"], "scheduler.after_done=speak")
    assert [turn.text for turn in episode.turns][1] == "Thanks!"
    assert episode.stop is StopReason.DONE


def test_the_budget_counts_turns_and_observations(play: Any) -> None:
    (episode,) = play("Moody", [call("long")] * 3, "scheduler.max_tokens=2000")
    assert episode.stop is StopReason.LENGTH
    assert len(episode.turns) == 1
    transcript = episode.transcripts[0]
    assert len(transcript.ids) - transcript.prompt_tokens <= 2000


@pytest.mark.parametrize("context", [1, 300, 420, 500, 620])
def test_the_context_ends_an_episode_as_length(play: Any, context: int) -> None:
    (episode,) = play("Guess", [call("zebra")] * 30, max_context=context)
    assert episode.stop in (StopReason.LENGTH, StopReason.MAX_TURNS)
    if episode.turns:
        assert len(episode.transcripts[0].ids) <= context


@pytest.mark.parametrize("context", [48, 64, 96, 128])
def test_a_turn_is_never_asked_for_more_than_the_context_has_room_for(
    play: Any, chat: Any, context: int
) -> None:
    """Long observations end the episode; what it earned stays, and it counts as truncated (prime-rl#1782)."""
    replies = ["[raise]", "[raise]", "[long]"]
    engine = ScriptedEngine(replies, encode=chat.encode, stop_id=chat.turn_end, max_context=context)
    (episode,) = play("Moody", engine, "scheduler=gym")
    assert engine.requests
    assert all(0 < asked.max_tokens <= context - len(ids) for _, ids, asked in engine.requests)
    assert (episode.stop, episode.error) == (StopReason.LENGTH, None)
    assert episode.reward == 0.25 * sum(not turn.cut and "raise" in turn.text for turn in episode.turns)
    assert all(row.truncated for row in episode.rows(1.0))


def test_what_the_world_broke_is_unscored(play: Any) -> None:
    (episode,) = play("Moody", [call("crash")], "rollout.retries=0", "rollout.max_error_rate=1")
    assert (episode.stop, episode.reward) == (StopReason.ERROR, None)
    assert "env custom, turn 1: RuntimeError: server gone" in episode.error


@pytest.mark.parametrize("reward", ["nan", "inf", "-inf"])
def test_a_reward_that_is_no_number_is_refused_by_name(play: Any, reward: str) -> None:
    (episode,) = play("Moody", [call(reward)], "rollout.retries=0", "rollout.max_error_rate=1")
    assert f"env custom, turn 1: reward is {reward}" in episode.error


def test_a_reset_that_gives_no_text_is_the_worlds(play: Any) -> None:
    (episode,) = play("Wordless", ["I stop."], "rollout.retries=0", "rollout.max_error_rate=1")
    assert episode.error == "env custom, turn 0: reset returned {'board': 7}, not text"


def test_a_turn_is_credited_with_the_rise_of_the_reward(play: Any) -> None:
    (episode,) = play("Moody", [call("raise"), call("raise") * 2, call("zebra"), call("crane")])
    assert [turn.reward for turn in episode.turns] == [0.25, 0.5, 0.0, 0.25]
    assert episode.reward == 1.0


def test_rewards_of_every_shape_stand_in_one_batch(play: Any) -> None:
    """None is "no reward this turn", 0 is a reward (SkyRL#299)."""
    shapes = [["unscored", "unscored", "crane"], ["zebra", "zebra", "crane"], ["crane"]]

    def reply(episode: str, turn: int) -> str:
        member = int(episode.split("/")[2])
        return call(shapes[member][turn])  # type: ignore[no-any-return]

    episodes = play("Moody", reply, members=3)
    rewards = [[turn.reward for turn in episode.turns] for episode in episodes]
    assert rewards == [[None, None, 1.0], [0.0, 0.0, 1.0], [1.0]]
    assert [episode.reward for episode in episodes] == [1.0, 1.0, 1.0]
    metrics = episode_metrics([episode.record() for episode in episodes])
    assert (metrics["reward"], metrics["reward_std"], metrics["turns/mean"]) == (1.0, 0.0, 7 / 3)


def test_a_broken_episode_is_tried_again_in_a_fresh_environment(play: Any) -> None:
    Flaky.played.clear()
    (episode,) = play("Flaky", [call("zebra"), call("crane")], "rollout.retries=1")
    assert (episode.stop, episode.reward, episode.retries) == (StopReason.DONE, 1.0, 1)
    first, second = Flaky.played
    assert episode.host.environment is second
    assert (first.guesses, second.guesses) == (["zebra"], ["zebra", "crane"])
    assert (first.closed, second.closed) == (True, True)
    assert [turn.reward for turn in episode.turns] == [0.0, 1.0]
    assert tool_answers(episode) == ["not zebra", "right"]


def test_no_more_episodes_at_once_than_asked(play: Any) -> None:
    for limit, peak in (("3", 3), ("null", 8)):
        Counted.live = Counted.peak = 0
        replies, wait = [call("zebra"), call("crane")], {"delay_s": 0.002}
        episodes = play("Counted", replies, f"rollout.max_inflight={limit}", members=8, **wait)
        assert all(episode.reward == 1.0 for episode in episodes)
        assert (Counted.live, Counted.peak) == (0, peak)


def test_too_many_broken_episodes_stop_the_run(play: Any) -> None:
    with pytest.raises(StageError, match="rollout.max_error_rate"):
        play("Moody", [call("crash")], "rollout.retries=0", "rollout.max_error_rate=0.2", members=4)


def test_environments_that_block_overlap(play: Any) -> None:
    started = time.perf_counter()
    episodes = play("Slow", [call("zebra")] * 3 + [call("crane")], members=16)
    assert all(episode.reward == 1.0 for episode in episodes)
    assert time.perf_counter() - started < 16 * 4 * 0.05 / 2


def test_a_step_past_its_deadline_breaks_the_episode(play: Any) -> None:
    (episode,) = play(
        "Patient",
        [call("crane")],
        "scheduler.step_timeout_s=0.05",
        "rollout.retries=0",
        "rollout.max_error_rate=1",
    )
    assert episode.stop is StopReason.ERROR
    assert "env custom, turn 1" in episode.error
    assert "scheduler.step_timeout_s" in episode.error


def test_an_episode_past_its_deadline_is_truncated(play: Any) -> None:
    (episode,) = play("Patient", [call("crane")], "scheduler.episode_timeout_s=0.05")
    assert (episode.stop, episode.reward) == (StopReason.DEADLINE, 0.0)


def test_only_tools_are_visible() -> None:
    assert tool_names(Guess) == ("guess",)


def test_the_record_is_plain_data(play: Any) -> None:
    (episode,) = play("Guess", [call("crane")])
    record = json.loads(json.dumps(episode.record()))
    assert {"env", "seed", "group", "stop", "reward", "rewards", "success", "messages", "turns"} <= set(
        record
    )
