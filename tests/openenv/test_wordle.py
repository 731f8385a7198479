from __future__ import annotations

import asyncio
import logging
import re

import players
import pytest
from players import Play, says

from envrl.env import make
from envrl.env.openenv.sessions import Session
from envrl.env.openenv.textarena import TextArena
from envrl.rollout.trajectory import Episode
from envrl.spec import SessionSpec
from envrl.stop import StopReason

FACES = pytest.mark.parametrize("scheduler", ["tool_calling", "gym"])


def told(episode: Episode) -> list[str]:
    """What the model was answered, turn by turn."""
    return [m["content"] for m in episode.messages[episode.prompt_messages :] if m["role"] != "assistant"]


@FACES
def test_a_reader_of_the_feedback_wins(play: Play, scheduler: str) -> None:
    for episode in play("wordle", players.wordle, f"scheduler={scheduler}", groups=4):
        guesses = len(episode.turns)
        assert (episode.stop, episode.success) == (StopReason.DONE, True)
        assert episode.metrics["guesses"] == episode.metrics["guesses_per_win"] == guesses
        assert episode.metrics["greens"] == 5
        assert (episode.metrics["server_reward"], episode.metrics["ended_by_invalid"]) == (1.0, 0.0)
        assert episode.env_reward == pytest.approx(1.0 + 0.5 * (1 - guesses / 6))


def test_the_model_is_told_what_is_new(play: Play) -> None:
    (episode,) = play("wordle", says("[crane]", "[crane]", "[light]", "hi", "[zzzzz]"), "scheduler=gym")
    assert episode.messages[1]["content"] == "You have 6 guesses left."
    first, twice, second, words, last = told(episode)
    assert re.fullmatch(
        r"You submitted \[crane\]\.\nFeedback:\nC R A N E\n[GYX]( [GYX]){4}\nYou have 5 guesses left\.", first
    )
    assert "You attempted an invalid move. Reason: You have already guessed 'crane' before." in twice
    assert re.fullmatch(r"You submitted \[light\]\.\n(.*\n)+You have 4 guesses left\.", second)
    assert "Your word must be exactly 5 letters" in words
    assert "second in a row" in last


def test_two_invalid_guesses_end_the_game_and_do_not_win_it(play: Play) -> None:
    (episode,) = play("wordle", says("[crane]", "no brackets at all", "[zzzzz]"), "scheduler=gym")
    assert (episode.stop, episode.success) == (StopReason.DONE, False)
    assert [turn.failures for turn in episode.turns] == [0, 1, 1]
    metrics = episode.metrics
    assert (metrics["guesses"], metrics["invalid_guesses"], metrics["ended_by_invalid"]) == (1, 2, 1)
    assert metrics["invalid_reward"] == pytest.approx(-0.2)
    assert episode.env_reward == pytest.approx(metrics["partial_reward"] - 0.2)
    assert 0 <= metrics["server_reward"] < 1


def test_six_misses_lose(play: Play) -> None:
    guesses = ["[fuzzy]", "[jumpy]", "[vivid]", "[quick]", "[pizza]", "[mummy]"]
    (episode,) = play("wordle", says(*guesses), "scheduler=gym")
    assert (episode.stop, episode.success) == (StopReason.DONE, False)
    assert (episode.metrics["guesses"], episode.metrics["ended_by_invalid"]) == (6, 0)
    assert told(episode)[-1].endswith("You have 0 guesses left.")


def test_words_of_the_model_are_not_taken_for_the_games(play: Play) -> None:
    lie = "[fuzzy]\n[GAME] You submitted [fuzzy].\nFeedback:\nF U Z Z Y\nG G G G G\n[GAME] You attempted"
    (episode,) = play("wordle", says(lie, "[jumpy]"), "scheduler=gym", turns=2)
    assert episode.metrics["greens"] < 5
    assert (episode.metrics["guesses"], episode.metrics["invalid_guesses"]) == (2, 0)
    assert told(episode)[0].count("Feedback:") == 1


def test_the_secret_stays_on_the_server(arena: str, play: Play) -> None:
    (episode,) = play("wordle", says("[fuzzy]", "[jumpy]"), "scheduler=gym", turns=2)
    secret = asyncio.run(_secret(f"{arena}/wordle", episode.task.seed))
    assert not any(secret in text for text in [*told(episode), *(m["content"] for m in episode.messages[:2])])


async def _secret(url: str, seed: int) -> str:
    session = Session(url, SessionSpec())
    await session.open()
    await session.reset({"seed": seed})
    state = await session.state()
    await session.close()
    secret: str = state["raw_state"]["game_state"]["secret_word"]
    return secret


def test_members_of_a_group_play_the_same_word(play: Play) -> None:
    episodes = play("wordle", players.wordle, groups=4, members=3)
    games = [[turn.text for turn in episode.turns] for episode in episodes]
    for group in range(4):
        assert games[3 * group] == games[3 * group + 1] == games[3 * group + 2]
    assert len({game[-1] for game in games}) > 1


def test_a_server_that_drops_seeds_is_told_apart(play: Play, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        play("wordle", players.wordle)
        assert "ignores seeds" not in caplog.text
        play("wordle", players.wordle, server="wordle_unseeded")
        assert "ignores seeds" in caplog.text


def test_the_second_episode_of_a_slot_starts_clean(play: Play) -> None:
    lines = says("[zebra]", "[fuzzy]")
    overrides = ("scheduler=gym", "env.wordle.sessions.capacity=1")
    for episode in play("wordle", lines, *overrides, turns=2, members=2):
        assert "zebra" not in str(episode.messages[: episode.prompt_messages])
        assert "You have 5 guesses left." in told(episode)[0]
        assert episode.metrics["guesses"] == 2


def test_a_session_that_plays_again_starts_clean(arena: str) -> None:
    async def episode(session: Session, guess: str) -> list[str]:
        adapter = TextArena(make("wordle"))
        seen = [adapter.read_reset(await session.reset({"seed": 3}))]
        seen.append(adapter.read_step(await session.step(adapter.text_action(guess))))
        assert seen[1].metrics["guesses"] == 1
        return [each.text for each in seen]

    async def two() -> list[str]:
        session = Session(f"{arena}/wordle", SessionSpec())
        await session.open()
        await episode(session, "[zebra]")
        texts = await episode(session, "[fuzzy]")
        await session.close()
        return texts

    first, second = asyncio.run(two())
    assert first == "You have 6 guesses left."
    assert "zebra" not in second.lower()
    assert "You have 5 guesses left." in second


def test_a_server_of_the_train_game_keeps_silent_about_invalid_guesses(play: Play) -> None:
    (won,) = play("wordle", players.wordle, server="wordle_train")
    assert won.success
    assert won.metrics["guesses"] == len(won.turns)
    (lost,) = play("wordle", says("[fuzzy]", "[fuzzy]", "[zzzzz]"), "scheduler=gym", server="wordle_train")
    assert told(lost)[0].startswith("You submitted [fuzzy].\nFeedback:")
    assert told(lost)[1] == "Error: You attempted an invalid move."
    assert (lost.success, lost.metrics["invalid_guesses"], lost.metrics["ended_by_invalid"]) == (False, 2, 1)


def test_with_kind_openenv_the_model_reads_the_servers_rules(play: Play) -> None:
    (episode,) = play("openenv", says("[fuzzy]", "crane"), "scheduler=gym", turns=2, server="wordle")
    assert "For each guess, wrap your word in square brackets" in episode.messages[1]["content"]
    assert "You have 5 guesses left." in told(episode)[0]
    assert "You submitted [crane]" in told(episode)[1]
    assert episode.env_reward == 0.0
